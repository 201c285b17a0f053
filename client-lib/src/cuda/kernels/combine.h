// How the elements of tensors are combined, for a GPU and for a CPU alike: bit for bit what daemon/reduce gives.
// 16-bit numbers become float32 when they are combined, and stay so until they are finished: divided, and rounded once.
// Integers wrap around, and are not finished.
//
// A processor chooses the bits of a NaN, and GPUs choose others than x86, so no NaN that an instruction gives is kept
// here: nan_of() says which one it is.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "client-lib/src/cuda/kernels/sources.h"
#include "common/base/half.h"

// X(name of the operation, its type, name of the element type, its type), for each kernel that combines. The names are
// those of reduce_op_name() and dtype_name().
#define TL_KERNELS_OF(X, operation, Operation)        \
  X(operation, Operation, float32, Plain<float>)      \
  X(operation, Operation, float64, Plain<double>)     \
  X(operation, Operation, float16, Float16)           \
  X(operation, Operation, bfloat16, Bfloat16)         \
  X(operation, Operation, int8, Plain<std::int8_t>)   \
  X(operation, Operation, int32, Plain<std::int32_t>) \
  X(operation, Operation, int64, Plain<std::int64_t>) \
  X(operation, Operation, uint8, Plain<std::uint8_t>)
#define TL_COMBINING_KERNELS(X)      \
  TL_KERNELS_OF(X, sum, Sum)         \
  TL_KERNELS_OF(X, product, Product) \
  TL_KERNELS_OF(X, min, Min)         \
  TL_KERNELS_OF(X, max, Max)
// X(name of the element type, its type), for each kernel that finishes.
#define TL_FINISHING_KERNELS(X) \
  X(float32, Plain<float>)      \
  X(float64, Plain<double>)     \
  X(float16, Float16)           \
  X(bfloat16, Bfloat16)

namespace tensorlane::client::cuda {

// ---- element types: what is in memory, what is computed with, and the way from one to the other ----

template <typename T>
struct Plain {
  using Stored = T;
  using Accumulator = T;
  static constexpr T widen(T value) { return value; }
  static constexpr T narrow(T value) { return value; }
};
struct Float16 {
  using Stored = std::uint16_t;
  using Accumulator = float;
  static constexpr float widen(Stored value) { return half_to_float(value); }
  static constexpr Stored narrow(float value) { return float_to_half(value); }
};
struct Bfloat16 {
  using Stored = std::uint16_t;
  using Accumulator = float;
  static constexpr float widen(Stored value) { return bfloat_to_float(value); }
  static constexpr Stored narrow(float value) { return float_to_bfloat(value); }
};

// ---- operations: how two values become one, where it is no NaN ----

// The type whose sums and products wrap around.
template <typename T>
struct Wrapping {
  using Type = T;
};
template <std::integral T>
struct Wrapping<T> {
  using Type = std::make_unsigned_t<T>;
};

struct Sum {
  template <typename T>
  static constexpr T of(T a, T b) {
    using Bits = typename Wrapping<T>::Type;
    return static_cast<T>(static_cast<Bits>(a) + static_cast<Bits>(b));
  }
};
struct Product {
  template <typename T>
  static constexpr T of(T a, T b) {
    using Bits = typename Wrapping<T>::Type;
    return static_cast<T>(static_cast<Bits>(a) * static_cast<Bits>(b));
  }
};
struct Quotient {
  template <typename T>
  static constexpr T of(T a, T b) {
    return a / b;
  }
};
// `a` stays where it is no larger, or NaN. Where neither holds, b is less, or NaN. A NaN stays as it is in memory.
struct Min {
  template <typename T>
  static constexpr T of(T a, T b) {
    return a <= b || a != a ? a : b;
  }
};
struct Max {
  template <typename T>
  static constexpr T of(T a, T b) {
    return a >= b || a != a ? a : b;
  }
};

// ---- NaNs ----

// The NaN that x86's vector instructions give for operands a and b: the first NaN of them, made quiet; where none is
// one (inf - inf, 0 * inf, 0 / 0), the default NaN, whose sign is set.
constexpr float nan_of(float a, float b) {
  if (a != a) return float_of_bits(bits_of_float(a) | 0x00400000);
  if (b != b) return float_of_bits(bits_of_float(b) | 0x00400000);
  return float_of_bits(0xffc00000);
}
constexpr double nan_of(double a, double b) {
  constexpr std::uint64_t kQuiet = 0x0008000000000000;
  if (a != a) return __builtin_bit_cast(double, __builtin_bit_cast(std::uint64_t, a) | kQuiet);
  if (b != b) return __builtin_bit_cast(double, __builtin_bit_cast(std::uint64_t, b) | kQuiet);
  return __builtin_bit_cast(double, std::uint64_t{0xfff8000000000000});
}

// Two values, to the last bit of a NaN.
template <typename Operation, typename T>
constexpr T combined(T a, T b) {
  const T result = Operation::of(a, b);
  constexpr bool kComputes = !std::is_same_v<Operation, Min> && !std::is_same_v<Operation, Max>;
  if constexpr (std::is_floating_point_v<T> && kComputes) {
    if (result != result) return nan_of(a, b);
  }
  return result;
}

// ---- the whole ----

// The first `count` of `values`, one of each source, in their order. A copy of a single one keeps even the bits of a
// signalling NaN.
template <typename Element, typename Operation>
constexpr typename Element::Accumulator combine(const typename Element::Stored (&values)[kMaxSources],
                                                std::uint32_t count) {
  typename Element::Accumulator all = Element::widen(values[0]);
  for (std::uint32_t k = 1; k < count; ++k) all = combined<Operation>(all, Element::widen(values[k]));
  return all;
}

// Division by 1 is left out: it would make a signalling NaN quiet.
template <typename Element>
constexpr typename Element::Stored finish(typename Element::Accumulator all, typename Element::Accumulator divisor) {
  return Element::narrow(divisor != 1 ? combined<Quotient>(all, divisor) : all);
}

}  // namespace tensorlane::client::cuda
