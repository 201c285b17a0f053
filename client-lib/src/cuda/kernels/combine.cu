// The kernels of kernels.h. Each thread takes 16 bytes of every source at a time: all of them are loaded before
// anything is computed, so that enough loads are under way to fill the memory's bandwidth.
//
// It computes without a look at the bits of NaNs, and looks once whether one came out. Only then it computes the
// elements again, as combine.h says.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "client-lib/src/cuda/kernels/combine.h"

namespace tensorlane::client::cuda {
namespace {

// What launches are about.
struct Combining {
  unsigned long long out;
  const KernelSources& sources;
  std::uint32_t count;
  std::uint64_t elements;
};
struct Finishing {
  unsigned long long out, in;
  std::uint64_t elements;
  double divisor;
};

// How a thread finds its part of one.
struct Place {
  std::uint64_t thread = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  std::uint64_t threads = std::uint64_t{gridDim.x} * blockDim.x;
};

template <typename T>
__device__ T* at(unsigned long long address, std::uint64_t index) {
  return reinterpret_cast<T*>(address) + index;
}

// ---- rows of elements, which are loaded and stored 16 bytes at a time ----

constexpr unsigned kVectorBytes = sizeof(uint4);

template <typename T, unsigned kCount>
struct Row {
  struct Vectors {
    uint4 of[kCount * sizeof(T) / kVectorBytes];
  };
  static constexpr unsigned kVectors = sizeof(Vectors) / kVectorBytes;

  T of[kCount];

  // `index` counts rows.
  __device__ static Row load(unsigned long long address, std::uint64_t index) {
    Vectors vectors;
    for (unsigned i = 0; i < kVectors; ++i) vectors.of[i] = *at<const uint4>(address, index * kVectors + i);
    return __builtin_bit_cast(Row, vectors);
  }
  __device__ void store(unsigned long long address, std::uint64_t index) const {
    const auto vectors = __builtin_bit_cast(Vectors, *this);
    for (unsigned i = 0; i < kVectors; ++i) *at<uint4>(address, index * kVectors + i) = vectors.of[i];
  }
  __device__ bool has_nan() const {
    bool found = false;
    for (unsigned i = 0; i < kCount; ++i) found |= of[i] != of[i];
    return found;
  }
};

// 16 bytes of a tensor, and the same elements in the accumulator's type, which are 32 bytes of a 16-bit type.
template <typename Element>
constexpr unsigned kLanes = kVectorBytes / sizeof(typename Element::Stored);
template <typename Element>
using StoredRow = Row<typename Element::Stored, kLanes<Element>>;
template <typename Element>
using WideRow = Row<typename Element::Accumulator, kLanes<Element>>;

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

template <typename Element>
__device__ WideRow<Element> widen(const StoredRow<Element>& row) {
  WideRow<Element> wide;
  for (unsigned i = 0; i < kLanes<Element>; ++i) wide.of[i] = Fast<Element>::widen(row.of[i]);
  return wide;
}

template <typename Element>
__device__ StoredRow<Element> narrow(const WideRow<Element>& wide) {
  StoredRow<Element> row;
  for (unsigned i = 0; i < kLanes<Element>; ++i) row.of[i] = Fast<Element>::narrow(wide.of[i]);
  return row;
}

template <typename Element, typename Operation>
__device__ void take(WideRow<Element>& all, const StoredRow<Element>& next) {
  for (unsigned i = 0; i < kLanes<Element>; ++i) all.of[i] = Operation::of(all.of[i], Fast<Element>::widen(next.of[i]));
}

// ---- any numbers ----

// Elements `from` to `to`. An element is read from all sources before it is written, so `out` may be one of them.
template <typename Element, typename Operation>
__device__ __noinline__ void combine_elements(const Combining& launch, std::uint64_t from, std::uint64_t to) {
  using Stored = typename Element::Stored;
  for (std::uint64_t i = from; i < to; ++i) {
    Stored values[kMaxSources];
    for (std::uint32_t k = 0; k < launch.count; ++k) values[k] = *at<const Stored>(launch.sources.at[k], i);
    *at<typename Element::Accumulator>(launch.out, i) = combine<Element, Operation>(values, launch.count);
  }
}

template <typename Element>
__device__ __noinline__ void finish_elements(const Finishing& launch, std::uint64_t from, std::uint64_t to) {
  using T = typename Element::Accumulator;
  for (std::uint64_t i = from; i < to; ++i)
    *at<typename Element::Stored>(launch.out, i) =
        finish<Element>(*at<const T>(launch.in, i), static_cast<T>(launch.divisor));
}

// ---- kernels that combine ----

// The rows of all sources at `index`, combined. kCount: their number, known when this is compiled; 0 for any.
template <typename Element, typename Operation, std::uint32_t kCount>
__device__ WideRow<Element> combine_rows(const Combining& launch, std::uint64_t index) {
  using From = StoredRow<Element>;
  if constexpr (kCount == 0) {
    WideRow<Element> all = widen<Element>(From::load(launch.sources.at[0], index));
#pragma unroll 4
    for (std::uint32_t k = 1; k < launch.count; ++k)
      take<Element, Operation>(all, From::load(launch.sources.at[k], index));
    return all;
  } else {
    From rows[kCount];
    for (std::uint32_t k = 0; k < kCount; ++k) rows[k] = From::load(launch.sources.at[k], index);
    WideRow<Element> all = widen<Element>(rows[0]);
    for (std::uint32_t k = 1; k < kCount; ++k) take<Element, Operation>(all, rows[k]);
    return all;
  }
}

template <typename Element, typename Operation, std::uint32_t kCount>
__device__ void combine_all_rows(const Combining& launch, const Place& place) {
  const std::uint64_t rows = launch.elements / kLanes<Element>;
  for (std::uint64_t i = place.thread; i < rows; i += place.threads) {
    const WideRow<Element> all = combine_rows<Element, Operation, kCount>(launch, i);
    if (all.has_nan()) {
      combine_elements<Element, Operation>(launch, i * kLanes<Element>, (i + 1) * kLanes<Element>);
    } else {
      all.store(launch.out, i);
    }
  }
}

// The sums of training get a loop for each of the usual numbers of sources.
template <typename Element, typename Operation>
__device__ void combine_all(const Combining& launch) {
  const Place place;
  constexpr bool kUsual = std::is_same_v<Operation, Sum>;
  if (kUsual && launch.count == 2) {
    combine_all_rows<Element, Operation, kUsual ? 2 : 0>(launch, place);
  } else if (kUsual && launch.count == 4) {
    combine_all_rows<Element, Operation, kUsual ? 4 : 0>(launch, place);
  } else if (kUsual && launch.count == 8) {
    combine_all_rows<Element, Operation, kUsual ? 8 : 0>(launch, place);
  } else {
    combine_all_rows<Element, Operation, 0>(launch, place);
  }
  // Fewer elements are left than make a row, and even a single block has a thread for each.
  const std::uint64_t tail = launch.elements - launch.elements % kLanes<Element> + place.thread;
  if (tail < launch.elements) combine_elements<Element, Operation>(launch, tail, tail + 1);
}

// ---- kernels that finish ----

template <typename Element>
__device__ void finish_all(const Finishing& launch) {
  using T = typename Element::Accumulator;
  const Place place;
  const T divisor = static_cast<T>(launch.divisor);
  const std::uint64_t rows = launch.elements / kLanes<Element>;
  for (std::uint64_t i = place.thread; i < rows; i += place.threads) {
    auto all = WideRow<Element>::load(launch.in, i);
    if (divisor != 1) {
      for (T& value : all.of) value = Quotient::of(value, divisor);
    }
    if (all.has_nan()) {
      finish_elements<Element>(launch, i * kLanes<Element>, (i + 1) * kLanes<Element>);
    } else {
      narrow<Element>(all).store(launch.out, i);
    }
  }
  const std::uint64_t tail = launch.elements - launch.elements % kLanes<Element> + place.thread;
  if (tail < launch.elements) finish_elements<Element>(launch, tail, tail + 1);
}

}  // namespace

#define TL_KERNEL(operation, Operation, dtype, ...)                                                   \
  extern "C" __global__ void __launch_bounds__(256)                                                   \
      tl_##operation##_##dtype(unsigned long long out, const __grid_constant__ KernelSources sources, \
                               std::uint32_t count, std::uint64_t elements) {                         \
    combine_all<__VA_ARGS__, Operation>({out, sources, count, elements});                             \
  }
TL_COMBINING_KERNELS(TL_KERNEL)
#undef TL_KERNEL

#define TL_KERNEL(dtype, ...)                                                                                    \
  extern "C" __global__ void __launch_bounds__(256)                                                              \
      tl_finish_##dtype(unsigned long long out, unsigned long long in, std::uint64_t elements, double divisor) { \
    finish_all<__VA_ARGS__>({out, in, elements, divisor});                                                       \
  }
TL_FINISHING_KERNELS(TL_KERNEL)
#undef TL_KERNEL

}  // namespace tensorlane::client::cuda
