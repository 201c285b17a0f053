// The kernels of kernels.h. Each thread takes 16 bytes of every source at a time: all of them are loaded before
// anything is computed, so that enough loads are under way to fill the memory's bandwidth.
//
// It computes without a look at the bits of NaNs, and looks once whether one came out. Only then it combines the
// elements again, as combine.h says.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "client-lib/src/cuda/kernels/combine.h"

namespace tensorlane::client::cuda {
namespace {

// What a launch is about, and how this thread finds its part of it.
struct Launch {
  unsigned long long out;
  const KernelSources& sources;
  std::uint32_t count;
  std::uint64_t elements;
  double divisor;
};
constexpr unsigned kVectorBytes = sizeof(uint4);

template <typename T>
__device__ T* at(unsigned long long address, std::uint64_t index) {
  return reinterpret_cast<T*>(address) + index;
}

// ---- numbers that are no NaN ----

template <typename Element>
struct Fast : Element {};
template <>
struct Fast<Float16> : Float16 {
  __device__ static float widen(std::uint16_t value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value));
    return wide;
  }
  __device__ static std::uint16_t narrow(float value) {
    std::uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
  }
};
template <>
struct Fast<Bfloat16> : Bfloat16 {
  __device__ static std::uint16_t narrow(float value) {
    const std::uint32_t bits = bits_of_float(value);
    return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
};

// The elements of 16 bytes, widened.
template <typename Element>
struct Lanes {
  using T = typename Element::Accumulator;
  using Stored = typename Element::Stored;
  static constexpr unsigned kCount = kVectorBytes / sizeof(Stored);
  struct Packed {
    Stored of[kCount];
  };
  T of[kCount];

  __device__ explicit Lanes(uint4 vector) {
    const auto packed = __builtin_bit_cast(Packed, vector);
    for (unsigned i = 0; i < kCount; ++i) of[i] = Fast<Element>::widen(packed.of[i]);
  }
  template <typename Operation>
  __device__ void take(const Lanes& next) {
    for (unsigned i = 0; i < kCount; ++i) of[i] = Operation::of(of[i], next.of[i]);
  }
  __device__ void divide(T divisor) {
    for (unsigned i = 0; i < kCount; ++i) of[i] = Quotient::of(of[i], divisor);
  }
  __device__ bool has_nan() const {
    bool found = false;
    for (unsigned i = 0; i < kCount; ++i) found |= of[i] != of[i];
    return found;
  }
  __device__ uint4 packed() const {
    Packed packed;
    for (unsigned i = 0; i < kCount; ++i) packed.of[i] = Fast<Element>::narrow(of[i]);
    return __builtin_bit_cast(uint4, packed);
  }
};

// ---- any numbers ----

// Elements `from` to `to`. An element is read from all sources before it is written, so `out` may be one of them.
template <typename Element, typename Operation>
__device__ __noinline__ void combine_elements(const Launch& launch, std::uint64_t from, std::uint64_t to) {
  using Stored = typename Element::Stored;
  for (std::uint64_t i = from; i < to; ++i) {
    Stored values[kMaxSources];
    for (std::uint32_t k = 0; k < launch.count; ++k) values[k] = *at<const Stored>(launch.sources.at[k], i);
    *at<Stored>(launch.out, i) = combine<Element, Operation>(values, launch.count, launch.divisor);
  }
}

// ---- a kernel ----

// All sources' 16 bytes at `index`, combined. kCount: their number, known when this is compiled; 0 for any.
template <typename Element, typename Operation, std::uint32_t kCount>
__device__ Lanes<Element> combine_vector(const Launch& launch, std::uint64_t index) {
  if constexpr (kCount == 0) {
    Lanes<Element> all(*at<const uint4>(launch.sources.at[0], index));
#pragma unroll 4
    for (std::uint32_t k = 1; k < launch.count; ++k)
      all.template take<Operation>(Lanes<Element>(*at<const uint4>(launch.sources.at[k], index)));
    return all;
  } else {
    uint4 vectors[kCount];
    for (std::uint32_t k = 0; k < kCount; ++k) vectors[k] = *at<const uint4>(launch.sources.at[k], index);
    Lanes<Element> all(vectors[0]);
    for (std::uint32_t k = 1; k < kCount; ++k) all.template take<Operation>(Lanes<Element>(vectors[k]));
    return all;
  }
}

template <typename Element, typename Operation, std::uint32_t kCount>
__device__ void combine_vectors(const Launch& launch, std::uint64_t thread, std::uint64_t threads) {
  using T = typename Element::Accumulator;
  constexpr unsigned kLanes = Lanes<Element>::kCount;
  const bool divide = divides<T>(launch.divisor);
  const std::uint64_t vectors = launch.elements / kLanes;
  for (std::uint64_t i = thread; i < vectors; i += threads) {
    Lanes<Element> all = combine_vector<Element, Operation, kCount>(launch, i);
    if (divide) all.divide(static_cast<T>(launch.divisor));
    if (all.has_nan()) {
      combine_elements<Element, Operation>(launch, i * kLanes, (i + 1) * kLanes);
    } else {
      *at<uint4>(launch.out, i) = all.packed();
    }
  }
}

// The sums of training get a loop for each of the usual numbers of sources.
template <typename Element, typename Operation>
__device__ void combine_all(const Launch& launch) {
  const std::uint64_t thread = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::uint64_t threads = std::uint64_t{gridDim.x} * blockDim.x;
  constexpr bool kUsual = std::is_same_v<Operation, Sum>;
  if (kUsual && launch.count == 2) {
    combine_vectors<Element, Operation, kUsual ? 2 : 0>(launch, thread, threads);
  } else if (kUsual && launch.count == 4) {
    combine_vectors<Element, Operation, kUsual ? 4 : 0>(launch, thread, threads);
  } else if (kUsual && launch.count == 8) {
    combine_vectors<Element, Operation, kUsual ? 8 : 0>(launch, thread, threads);
  } else {
    combine_vectors<Element, Operation, 0>(launch, thread, threads);
  }
  // Fewer elements are left than fill 16 bytes, and even a single block has a thread for each.
  const std::uint64_t tail = launch.elements - launch.elements % Lanes<Element>::kCount + thread;
  if (tail < launch.elements) combine_elements<Element, Operation>(launch, tail, tail + 1);
}

}  // namespace

#define TL_KERNEL(operation, Operation, dtype, ...)                                                   \
  extern "C" __global__ void __launch_bounds__(256)                                                   \
      tl_##operation##_##dtype(unsigned long long out, const __grid_constant__ KernelSources sources, \
                               std::uint32_t count, std::uint64_t elements, double divisor) {         \
    combine_all<__VA_ARGS__, Operation>({out, sources, count, elements, divisor});                    \
  }
TL_KERNELS(TL_KERNEL)
#undef TL_KERNEL

}  // namespace tensorlane::client::cuda
