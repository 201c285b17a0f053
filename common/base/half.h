// float16 without instructions for it. Bit for bit what VCVTPH2PS and VCVTPS2PH do: rounds to nearest even, keeps
// subnormals, infinities and NaNs (a signalling NaN becomes quiet). Source of the method: F. Giesen, "float->half
// variants". All of it is constexpr, so that nvcc can compile it for a GPU, too.
#pragma once

#include <cstdint>

namespace tensorlane {
namespace {  // not shared between files that are compiled for different machines

// Not std::bit_cast: that is one function for the whole program, and its copy could be the one of a file that is
// compiled for another machine.
constexpr float float_of_bits(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

constexpr std::uint32_t bits_of_float(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}

constexpr float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  const std::uint32_t rest = static_cast<std::uint32_t>(half & 0x7fff) << 13;
  const std::uint32_t exponent = rest & 0x0f800000;
  if (exponent == 0x0f800000) {  // infinity or NaN
    const std::uint32_t quiet = (rest & 0x007fffff) != 0 ? 0x00400000 : 0;
    return float_of_bits(sign | 0x7f800000 | (rest & 0x007fffff) | quiet);
  }
  if (exponent == 0) {  // zero or subnormal: half a subtraction away from exact
    const float magic = float_of_bits(113u << 23);
    return float_of_bits(sign | bits_of_float(float_of_bits(rest + (113u << 23)) - magic));
  }
  return float_of_bits(sign | (rest + (112u << 23)));
}

constexpr std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = bits_of_float(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));  // NaN
  if (magnitude >= 0x47800000) return static_cast<std::uint16_t>(sign | 0x7c00);  // 65536 and more
  if (magnitude < 0x38800000) {  // becomes subnormal: the float addition rounds at the right bit
    const float magic = float_of_bits(126u << 23);
    return static_cast<std::uint16_t>(sign | (bits_of_float(float_of_bits(magnitude) + magic) - (126u << 23)));
  }
  const std::uint32_t odd = (magnitude >> 13) & 1;
  return static_cast<std::uint16_t>(sign | ((magnitude - (112u << 23) + 0xfff + odd) >> 13));
}

constexpr float bfloat_to_float(std::uint16_t bfloat) {
  return float_of_bits(static_cast<std::uint32_t>(bfloat) << 16);
}

constexpr std::uint16_t float_to_bfloat(float value) {
  const std::uint32_t bits = bits_of_float(value);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40;
  return static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

}  // namespace
}  // namespace tensorlane
