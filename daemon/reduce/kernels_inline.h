// The kernels, for any instruction set: included by one file per set. `Isa` says how wide its vectors are and how it
// converts float16:
//   static constexpr std::size_t kVectorBytes
//   static void widen(const Half* in, float* out, std::size_t n), static void narrow(const float* in, Half* out,
//   std::size_t n)
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "daemon/ports/reducer.h"
#include "daemon/reduce/half.h"

namespace tensorlane::reduce {
namespace {  // internal: every file has copies compiled for its own instruction set

using ports::ReduceSource;

// Tensors need no alignment, and their bytes are seen under several types. The attributes belong to the new name:
// behind the old one, Clang ignores the alignment.
using Float __attribute__((aligned(1), may_alias)) = float;
using Double __attribute__((aligned(1), may_alias)) = double;
using Half __attribute__((aligned(1), may_alias)) = std::uint16_t;

template <typename T, std::size_t kBytes>
struct VectorOf {
  using type __attribute__((vector_size(kBytes), aligned(1), may_alias)) = T;
};

// Sums of one type into the same type: one pass, everything in registers. kCount sources, 0 for any number. Every
// vector is read from all sources before it is written, so `out` may be one of them.
template <typename Isa, typename T, std::size_t kCount>
void sum_same(std::byte* out, const ReduceSource* sources, std::size_t count, std::size_t elements, T divisor) {
  using Vector = typename VectorOf<T, Isa::kVectorBytes>::type;
  using Scalar = typename VectorOf<T, sizeof(T)>::type;  // a vector of one, so that both loops read alike
  const std::size_t n = kCount > 0 ? kCount : count;
  const std::size_t bytes = elements * sizeof(T);
  const bool divide = divisor != T(1);
  std::size_t at = 0;
  for (; at + sizeof(Vector) <= bytes; at += sizeof(Vector)) {
    Vector sum = *reinterpret_cast<const Vector*>(sources[0].data + at);
    for (std::size_t k = 1; k < n; ++k) sum += *reinterpret_cast<const Vector*>(sources[k].data + at);
    if (divide) sum /= divisor;
    *reinterpret_cast<Vector*>(out + at) = sum;
  }
  for (; at < bytes; at += sizeof(T)) {
    Scalar sum = *reinterpret_cast<const Scalar*>(sources[0].data + at);
    for (std::size_t k = 1; k < n; ++k) sum += *reinterpret_cast<const Scalar*>(sources[k].data + at);
    if (divide) sum /= divisor;
    *reinterpret_cast<Scalar*>(out + at) = sum;
  }
}

template <typename Isa, typename T>
void sum_same(std::byte* out, const ReduceSource* sources, std::size_t count, std::size_t elements, double divisor) {
  const T d = static_cast<T>(divisor);
  switch (count) {
    case 1:
      return sum_same<Isa, T, 1>(out, sources, count, elements, d);
    case 2:
      return sum_same<Isa, T, 2>(out, sources, count, elements, d);
    case 3:
      return sum_same<Isa, T, 3>(out, sources, count, elements, d);
    case 4:
      return sum_same<Isa, T, 4>(out, sources, count, elements, d);
    default:
      return sum_same<Isa, T, 0>(out, sources, count, elements, d);
  }
}

// Elements that a mixed sum handles at a time; its buffers stay in the first-level cache.
constexpr std::size_t kBlock = 512;

// out[i] = or += the elements of one source, as Sum.
template <typename Isa, typename Sum>
void take(const ReduceSource& source, std::size_t from, std::size_t n, Sum* sum, bool first) {
  float wide[kBlock];
  const float* values = wide;
  if (source.dtype == Dtype::kFloat64) {
    const Double* in = reinterpret_cast<const Double*>(source.data) + from;
    for (std::size_t i = 0; i < n; ++i) sum[i] = static_cast<Sum>(first ? in[i] : sum[i] + in[i]);
    return;
  }
  if (source.dtype == Dtype::kFloat32) {
    std::memcpy(wide, source.data + from * sizeof(float), n * sizeof(float));
  } else {
    const Half* in = reinterpret_cast<const Half*>(source.data) + from;
    if (source.dtype == Dtype::kFloat16) {
      Isa::widen(in, wide, n);
    } else {
      for (std::size_t i = 0; i < n; ++i) wide[i] = bfloat_to_float(in[i]);
    }
  }
  if (first) {
    for (std::size_t i = 0; i < n; ++i) sum[i] = values[i];
  } else {
    for (std::size_t i = 0; i < n; ++i) sum[i] += values[i];
  }
}

// Writes a block of sums as `dtype`. A float64 sum that becomes a 16-bit number goes by way of float32.
template <typename Isa, typename Sum>
void give(std::byte* out, Dtype dtype, std::size_t from, std::size_t n, const Sum* sum) {
  if (dtype == Dtype::kFloat64) {
    Double* to = reinterpret_cast<Double*>(out) + from;
    for (std::size_t i = 0; i < n; ++i) to[i] = sum[i];
    return;
  }
  float narrow[kBlock];
  for (std::size_t i = 0; i < n; ++i) narrow[i] = static_cast<float>(sum[i]);
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

// Any mixture of types. A block is read from all sources before it is written.
template <typename Isa, typename Sum>
void sum_mixed(std::byte* out, Dtype out_dtype, const ReduceSource* sources, std::size_t count, std::size_t elements,
               Sum divisor) {
  Sum sum[kBlock];
  for (std::size_t from = 0; from < elements; from += kBlock) {
    const std::size_t n = elements - from < kBlock ? elements - from : kBlock;
    for (std::size_t k = 0; k < count; ++k) take<Isa>(sources[k], from, n, sum, k == 0);
    if (divisor != Sum(1)) {
      for (std::size_t i = 0; i < n; ++i) sum[i] /= divisor;
    }
    give<Isa>(out, out_dtype, from, n, sum);
  }
}

template <typename Isa>
void reduce_elements(std::byte* out, Dtype out_dtype, const ReduceSource* sources, std::size_t count,
                     std::size_t elements, double divisor) {
  bool same = true, wide = out_dtype == Dtype::kFloat64;
  for (std::size_t k = 0; k < count; ++k) {
    same = same && sources[k].dtype == out_dtype;
    wide = wide || sources[k].dtype == Dtype::kFloat64;
  }
  if (same && count == 1 && divisor == 1) {
    const std::size_t size = out_dtype == Dtype::kFloat64 ? 8 : out_dtype == Dtype::kFloat32 ? 4 : 2;
    if (out != sources[0].data && elements > 0) std::memcpy(out, sources[0].data, elements * size);
    return;
  }
  if (same && out_dtype == Dtype::kFloat32) return sum_same<Isa, float>(out, sources, count, elements, divisor);
  if (same && out_dtype == Dtype::kFloat64) return sum_same<Isa, double>(out, sources, count, elements, divisor);
  if (wide) return sum_mixed<Isa, double>(out, out_dtype, sources, count, elements, divisor);
  return sum_mixed<Isa, float>(out, out_dtype, sources, count, elements, static_cast<float>(divisor));
}

}  // namespace
}  // namespace tensorlane::reduce
