// The kernels, for any instruction set: included by one file per set. `Isa` says how wide its vectors are and how it
// converts float16:
//   static constexpr std::size_t kVectorBytes
//   static void widen(const Half* in, float* out, std::size_t n), static void narrow(const float* in, Half* out,
//   std::size_t n)
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/base/half.h"
#include "daemon/ports/reducer.h"

namespace tensorlane::reduce {
namespace {  // internal: every file has copies compiled for its own instruction set

using ports::ReduceSource;

// Tensors need no alignment, and their bytes are seen under several types. The attributes belong to the new name:
// behind the old one, Clang ignores the alignment.
using Double __attribute__((aligned(1), may_alias)) = double;
using Half __attribute__((aligned(1), may_alias)) = std::uint16_t;

template <typename T, std::size_t kBytes>
struct VectorOf {
  using type __attribute__((vector_size(kBytes), aligned(1), may_alias)) = T;
};

// How two elements, or two vectors of elements of type T, become one.
struct Sum {
  template <typename T, typename V>
  static V of(V a, V b) {
    return a + b;
  }
};
struct Product {
  template <typename T, typename V>
  static V of(V a, V b) {
    return a * b;
  }
};
// `a` stays where it is no larger, or no number at all: where neither comparison holds, b is less, or NaN.
struct Min {
  template <typename T, typename V>
  static V of(V a, V b) {
    if constexpr (std::is_floating_point_v<T>) return ((a <= b) | (a != a)) ? a : b;
    return a <= b ? a : b;
  }
};
struct Max {
  template <typename T, typename V>
  static V of(V a, V b) {
    if constexpr (std::is_floating_point_v<T>) return ((a >= b) | (a != a)) ? a : b;
    return a >= b ? a : b;
  }
};

// One type into the same type: one pass, everything in registers. kCount sources, 0 for any number. Every vector is
// read from all sources before it is written, so `out` may be one of them.
template <typename Isa, typename Op, typename T, std::size_t kCount>
void combine_same(std::byte* out, const ReduceSource* sources, std::size_t count, std::size_t elements, T divisor) {
  using Vector = typename VectorOf<T, Isa::kVectorBytes>::type;
  using Scalar = typename VectorOf<T, sizeof(T)>::type;  // a vector of one, so that both loops read alike
  const std::size_t n = kCount > 0 ? kCount : count;
  const std::size_t bytes = elements * sizeof(T);
  const bool divide = divisor != T(1);
  std::size_t at = 0;
  for (; at + sizeof(Vector) <= bytes; at += sizeof(Vector)) {
    Vector all = *reinterpret_cast<const Vector*>(sources[0].data + at);
    for (std::size_t k = 1; k < n; ++k)
      all = Op::template of<T>(all, *reinterpret_cast<const Vector*>(sources[k].data + at));
    if (divide) all /= divisor;
    *reinterpret_cast<Vector*>(out + at) = all;
  }
  for (; at < bytes; at += sizeof(T)) {
    Scalar all = *reinterpret_cast<const Scalar*>(sources[0].data + at);
    for (std::size_t k = 1; k < n; ++k)
      all = Op::template of<T>(all, *reinterpret_cast<const Scalar*>(sources[k].data + at));
    if (divide) all /= divisor;
    *reinterpret_cast<Scalar*>(out + at) = all;
  }
}

template <typename Isa, typename Op, typename T>
void combine_same(std::byte* out, const ReduceSource* sources, std::size_t count, std::size_t elements,
                  double divisor) {
  const T d = static_cast<T>(divisor);
  if (count == 2) return combine_same<Isa, Op, T, 2>(out, sources, count, elements, d);
  combine_same<Isa, Op, T, 0>(out, sources, count, elements, d);
}

// The sums of training get a loop for each of the usual numbers of sources.
template <typename Isa, typename T>
void sum_same(std::byte* out, const ReduceSource* sources, std::size_t count, std::size_t elements, double divisor) {
  const T d = static_cast<T>(divisor);
  switch (count) {
    case 1:
      return combine_same<Isa, Sum, T, 1>(out, sources, count, elements, d);
    case 2:
      return combine_same<Isa, Sum, T, 2>(out, sources, count, elements, d);
    case 3:
      return combine_same<Isa, Sum, T, 3>(out, sources, count, elements, d);
    case 4:
      return combine_same<Isa, Sum, T, 4>(out, sources, count, elements, d);
    default:
      return combine_same<Isa, Sum, T, 0>(out, sources, count, elements, d);
  }
}

// Elements of one type; `Bits` is T, or for integers the unsigned type of its size, whose sums and products wrap.
template <typename Isa, typename T, typename Bits>
void reduce_same(std::byte* out, const ReduceSource* sources, std::size_t count, std::size_t elements, ReduceOp op,
                 double divisor) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return sum_same<Isa, Bits>(out, sources, count, elements, divisor);
    case ReduceOp::kMin:
      return combine_same<Isa, Min, T>(out, sources, count, elements, divisor);
    case ReduceOp::kMax:
      return combine_same<Isa, Max, T>(out, sources, count, elements, divisor);
    case ReduceOp::kProduct:
      return combine_same<Isa, Product, Bits>(out, sources, count, elements, divisor);
  }
}

// Elements that a mixture of types handles at a time; its buffers stay in the first-level cache.
constexpr std::size_t kBlock = 512;

// all[i] = the i-th element of one source, of type In, or that combined with what is there.
template <typename Op, typename In, typename Accumulator>
void take_values(const std::byte* bytes, std::size_t n, Accumulator* all, bool first) {
  using Element __attribute__((aligned(1), may_alias)) = In;
  const auto* in = reinterpret_cast<const Element*>(bytes);
  if (first) {
    for (std::size_t i = 0; i < n; ++i) all[i] = static_cast<Accumulator>(in[i]);
  } else {
    for (std::size_t i = 0; i < n; ++i) all[i] = Op::template of<Accumulator>(all[i], static_cast<Accumulator>(in[i]));
  }
}

template <typename Isa, typename Op, typename Accumulator>
void take(const ReduceSource& source, std::size_t from, std::size_t n, Accumulator* all, bool first) {
  if (source.dtype == Dtype::kFloat64)
    return take_values<Op, double>(source.data + from * sizeof(double), n, all, first);
  if (source.dtype == Dtype::kFloat32) return take_values<Op, float>(source.data + from * sizeof(float), n, all, first);
  float values[kBlock];
  const Half* in = reinterpret_cast<const Half*>(source.data) + from;
  if (source.dtype == Dtype::kFloat16) {
    Isa::widen(in, values, n);
  } else {
    for (std::size_t i = 0; i < n; ++i) values[i] = bfloat_to_float(in[i]);
  }
  take_values<Op, float>(reinterpret_cast<const std::byte*>(values), n, all, first);
}

// Writes a block as `dtype`. A float64 that becomes a 16-bit number goes by way of float32.
template <typename Isa, typename Accumulator>
void give(std::byte* out, Dtype dtype, std::size_t from, std::size_t n, const Accumulator* all) {
  if (dtype == Dtype::kFloat64) {
    Double* to = reinterpret_cast<Double*>(out) + from;
    for (std::size_t i = 0; i < n; ++i) to[i] = all[i];
    return;
  }
  float narrow[kBlock];
  for (std::size_t i = 0; i < n; ++i) narrow[i] = static_cast<float>(all[i]);
  if (dtype == Dtype::kFloat32) {
    std::memcpy(out + from * sizeof(float), narrow, n * sizeof(float));
    return;
  }
  Half* to = reinterpret_cast<Half*>(out) + from;
  if (dtype == Dtype::kFloat16) {
    Isa::narrow(narrow, to, n);
  } else {
    for (std::size_t i = 0; i < n; ++i) to[i] = float_to_bfloat(narrow[i]);
  }
}

// Any mixture of floating-point types. A block is read from all sources before it is written.
template <typename Isa, typename Op, typename Accumulator>
void combine_mixed(std::byte* out, Dtype out_dtype, const ReduceSource* sources, std::size_t count,
                   std::size_t elements, double divisor) {
  Accumulator all[kBlock];
  const Accumulator d = static_cast<Accumulator>(divisor);
  for (std::size_t from = 0; from < elements; from += kBlock) {
    const std::size_t n = elements - from < kBlock ? elements - from : kBlock;
    for (std::size_t k = 0; k < count; ++k) take<Isa, Op>(sources[k], from, n, all, k == 0);
    if (d != Accumulator(1)) {
      for (std::size_t i = 0; i < n; ++i) all[i] /= d;
    }
    give<Isa>(out, out_dtype, from, n, all);
  }
}

template <typename Isa, typename Accumulator>
void reduce_mixed(std::byte* out, Dtype out_dtype, const ReduceSource* sources, std::size_t count, std::size_t elements,
                  ReduceOp op, double divisor) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return combine_mixed<Isa, Sum, Accumulator>(out, out_dtype, sources, count, elements, divisor);
    case ReduceOp::kMin:
      return combine_mixed<Isa, Min, Accumulator>(out, out_dtype, sources, count, elements, divisor);
    case ReduceOp::kMax:
      return combine_mixed<Isa, Max, Accumulator>(out, out_dtype, sources, count, elements, divisor);
    case ReduceOp::kProduct:
      return combine_mixed<Isa, Product, Accumulator>(out, out_dtype, sources, count, elements, divisor);
  }
}

// Not dtype_size(): that is one function for the whole program, see kernels.h.
inline std::size_t element_bytes(Dtype dtype) {
  if (dtype == Dtype::kFloat64 || dtype == Dtype::kInt64) return 8;
  if (dtype == Dtype::kFloat32 || dtype == Dtype::kInt32) return 4;
  return dtype == Dtype::kInt8 || dtype == Dtype::kUint8 ? 1 : 2;
}

template <typename Isa>
void reduce_elements(std::byte* out, Dtype out_dtype, const ReduceSource* sources, std::size_t count,
                     std::size_t elements, ReduceOp op, double divisor) {
  bool same = true, doubles = out_dtype == Dtype::kFloat64;
  for (std::size_t k = 0; k < count; ++k) {
    same = same && sources[k].dtype == out_dtype;
    doubles = doubles || sources[k].dtype == Dtype::kFloat64;
  }
  if (same && count == 1 && divisor == 1) {
    if (out != sources[0].data && elements > 0) std::memcpy(out, sources[0].data, elements * element_bytes(out_dtype));
    return;
  }
  switch (same ? out_dtype : Dtype::kFloat16) {
    case Dtype::kFloat32:
      return reduce_same<Isa, float, float>(out, sources, count, elements, op, divisor);
    case Dtype::kFloat64:
      return reduce_same<Isa, double, double>(out, sources, count, elements, op, divisor);
    case Dtype::kInt8:
      return reduce_same<Isa, std::int8_t, std::uint8_t>(out, sources, count, elements, op, divisor);
    case Dtype::kUint8:
      return reduce_same<Isa, std::uint8_t, std::uint8_t>(out, sources, count, elements, op, divisor);
    case Dtype::kInt32:
      return reduce_same<Isa, std::int32_t, std::uint32_t>(out, sources, count, elements, op, divisor);
    case Dtype::kInt64:
      return reduce_same<Isa, std::int64_t, std::uint64_t>(out, sources, count, elements, op, divisor);
    case Dtype::kFloat16:
    case Dtype::kBfloat16:
      break;
  }
  if (doubles) return reduce_mixed<Isa, double>(out, out_dtype, sources, count, elements, op, divisor);
  return reduce_mixed<Isa, float>(out, out_dtype, sources, count, elements, op, divisor);
}

}  // namespace
}  // namespace tensorlane::reduce
