// A plain reference for what the daemon's reducer does, so that these tests need no other module. Slow and obvious.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "common/base/dtype.h"

namespace tensorlane::engine::testing {

inline std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float from_bfloat16(std::uint16_t value) {
  return std::bit_cast<float>(std::uint32_t{value} << 16);
}

// Finite numbers in the range of normal halves and zero: all that these tests use.
inline std::uint16_t to_float16(float value) {
  if (value == 0) return 0;
  int exponent = 0;
  const float mantissa = std::frexp(std::fabs(value), &exponent);                    // [0.5, 1)
  const auto rounded = static_cast<std::uint32_t>(std::nearbyint(mantissa * 2048));  // 11 bits, half to even
  const std::uint32_t bits = (static_cast<std::uint32_t>(exponent - 1 + 15) << 10) + rounded - 1024;
  return static_cast<std::uint16_t>((std::signbit(value) ? 0x8000u : 0u) | bits);
}

inline float from_float16(std::uint16_t value) {
  if ((value & 0x7fff) == 0) return 0;
  const float mantissa = static_cast<float>((value & 0x3ff) | 0x400) / 1024;
  const float magnitude = std::ldexp(mantissa, (value >> 10 & 0x1f) - 15);
  return (value & 0x8000) != 0 ? -magnitude : magnitude;
}

inline double load(const std::byte* at, Dtype dtype) {
  float f = 0;
  double d = 0;
  std::uint16_t h = 0;
  std::int32_t i32 = 0;
  std::int64_t i64 = 0;
  switch (dtype) {
    case Dtype::kFloat32:
      std::memcpy(&f, at, 4);
      return f;
    case Dtype::kFloat64:
      std::memcpy(&d, at, 8);
      return d;
    case Dtype::kFloat16:
      std::memcpy(&h, at, 2);
      return from_float16(h);
    case Dtype::kBfloat16:
      std::memcpy(&h, at, 2);
      return from_bfloat16(h);
    case Dtype::kInt8:
      return static_cast<std::int8_t>(*at);
    case Dtype::kUint8:
      return static_cast<std::uint8_t>(*at);
    case Dtype::kInt32:
      std::memcpy(&i32, at, 4);
      return i32;
    case Dtype::kInt64:
      std::memcpy(&i64, at, 8);
      return static_cast<double>(i64);
  }
  return 0;
}

inline void store(std::byte* at, Dtype dtype, double value) {
  const auto f = static_cast<float>(value);
  const auto i64 = is_integer(dtype) ? static_cast<std::int64_t>(value) : 0;
  const auto i32 = static_cast<std::int32_t>(i64);
  const std::uint16_t h = dtype == Dtype::kFloat16 ? to_float16(f) : to_bfloat16(f);
  switch (dtype) {
    case Dtype::kFloat32:
      std::memcpy(at, &f, 4);
      break;
    case Dtype::kFloat64:
      std::memcpy(at, &value, 8);
      break;
    case Dtype::kFloat16:
    case Dtype::kBfloat16:
      std::memcpy(at, &h, 2);
      break;
    case Dtype::kInt8:
    case Dtype::kUint8:
      *at = static_cast<std::byte>(i64);
      break;
    case Dtype::kInt32:
      std::memcpy(at, &i32, 4);
      break;
    case Dtype::kInt64:
      std::memcpy(at, &i64, 8);
      break;
  }
}

template <typename T>
T combine(T a, T b, ReduceOp op) {
  if (op == ReduceOp::kMin) return b < a ? b : a;
  if (op == ReduceOp::kMax) return b > a ? b : a;
  return op == ReduceOp::kProduct ? a * b : a + b;
}

// One element: ((a o b) o c) / divisor, in float64 for float64 and integers (which are small here) and in float32 for
// the rest.
inline double reduce(std::span<const double> terms, Dtype dtype, ReduceOp op, double divisor) {
  if (dtype == Dtype::kFloat64 || is_integer(dtype)) {
    double s = terms[0];
    for (std::size_t i = 1; i < terms.size(); ++i) s = combine(s, terms[i], op);
    return divisor == 1 ? s : s / divisor;
  }
  auto s = static_cast<float>(terms[0]);
  for (std::size_t i = 1; i < terms.size(); ++i) s = combine(s, static_cast<float>(terms[i]), op);
  return divisor == 1 ? s : s / static_cast<float>(divisor);
}

}  // namespace tensorlane::engine::testing
