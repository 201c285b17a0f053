#include "simulator/host/numbers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "common/base/assert.h"

namespace tensorlane::simulator {
namespace {
template <typename T>
T load(const std::byte* array, std::uint64_t index) {
  T value;
  std::memcpy(&value, array + index * sizeof(T), sizeof(T));
  return value;
}
template <typename T>
void store(std::byte* array, std::uint64_t index, T value) {
  std::memcpy(array + index * sizeof(T), &value, sizeof(T));
}
}  // namespace

float half_to_float(std::uint16_t half) {
  const int exponent = (half >> 10) & 0x1f;
  const int mantissa = half & 0x3ff;
  const float sign = (half & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 0x1f) {
    const std::uint32_t bits =
        (std::uint32_t{half} & 0x8000u) << 16 | 0x7f800000u | static_cast<std::uint32_t>(mantissa) << 13;
    return std::bit_cast<float>(bits);
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(mantissa | 0x400), exponent - 25);
}

std::uint16_t float_to_half(float number) {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  if (std::isnan(number)) return static_cast<std::uint16_t>(sign | 0x7e00 | ((bits >> 13) & 0x3ff));
  const float magnitude = std::fabs(number);
  if (magnitude == 0) return sign;
  if (magnitude >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7c00);
  // Multiples of the spacing of halves near the number; nearbyint rounds ties to even.
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int spacing = exponent - 11 < -24 ? -24 : exponent - 11;
  const auto steps = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(magnitude, -spacing)));
  // At the smallest spacing `steps` counts up through the subnormals into the normals; a carry runs into the exponent
  // by itself.
  if (spacing == -24) return static_cast<std::uint16_t>(sign | steps);
  return static_cast<std::uint16_t>(sign | ((static_cast<std::uint32_t>(spacing + 25) << 10) + steps - 0x400));
}

float bfloat16_to_float(std::uint16_t number) {
  return std::bit_cast<float>(std::uint32_t{number} << 16);
}

std::uint16_t float_to_bfloat16(float number) {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  if (std::isnan(number)) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

double load_element(const std::byte* array, Dtype dtype, std::uint64_t index) {
  switch (dtype) {
    case Dtype::kFloat32:
      return load<float>(array, index);
    case Dtype::kFloat64:
      return load<double>(array, index);
    case Dtype::kFloat16:
      return half_to_float(load<std::uint16_t>(array, index));
    case Dtype::kBfloat16:
      return bfloat16_to_float(load<std::uint16_t>(array, index));
    default:
      TL_ASSERT(false && "integers have load_integer()");
  }
}

void store_element(std::byte* array, Dtype dtype, std::uint64_t index, double number) {
  switch (dtype) {
    case Dtype::kFloat32:
      return store(array, index, static_cast<float>(number));
    case Dtype::kFloat64:
      return store(array, index, number);
    case Dtype::kFloat16:
      return store(array, index, float_to_half(static_cast<float>(number)));
    case Dtype::kBfloat16:
      return store(array, index, float_to_bfloat16(static_cast<float>(number)));
    default:
      TL_ASSERT(false && "integers have store_integer()");
  }
}

double combine(double a, double b, ReduceOp op, bool wide) {
  if (op == ReduceOp::kMin || op == ReduceOp::kMax) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? a : b;
    return (op == ReduceOp::kMin ? b < a : b > a) ? b : a;
  }
  // In double, what two floats give is exact or rounds to the float that they give: 53 bits are more than twice 24
  // plus 2.
  const double result = op == ReduceOp::kProduct ? a * b : a + b;
  return wide ? result : static_cast<double>(static_cast<float>(result));
}

std::int64_t load_integer(const std::byte* array, Dtype dtype, std::uint64_t index) {
  switch (dtype) {
    case Dtype::kInt8:
      return load<std::int8_t>(array, index);
    case Dtype::kUint8:
      return load<std::uint8_t>(array, index);
    case Dtype::kInt32:
      return load<std::int32_t>(array, index);
    case Dtype::kInt64:
      return load<std::int64_t>(array, index);
    default:
      TL_ASSERT(false && "floating-point numbers have load_element()");
  }
}

void store_integer(std::byte* array, Dtype dtype, std::uint64_t index, std::int64_t number) {
  switch (dtype) {
    case Dtype::kInt8:
    case Dtype::kUint8:
      return store(array, index, static_cast<std::uint8_t>(number));
    case Dtype::kInt32:
      return store(array, index, static_cast<std::int32_t>(number));
    case Dtype::kInt64:
      return store(array, index, number);
    default:
      TL_ASSERT(false && "floating-point numbers have store_element()");
  }
}

std::int64_t combine_integers(std::int64_t a, std::int64_t b, ReduceOp op, Dtype dtype) {
  if (op == ReduceOp::kMin) return std::min(a, b);
  if (op == ReduceOp::kMax) return std::max(a, b);
  const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
  std::byte wrapped[sizeof(std::int64_t)];
  store_integer(wrapped, dtype, 0, static_cast<std::int64_t>(op == ReduceOp::kProduct ? x * y : x + y));
  return load_integer(wrapped, dtype, 0);
}

}  // namespace tensorlane::simulator
