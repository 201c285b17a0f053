// Conversions between element types, written for clarity: the simulator's reference, independent of daemon/reduce.
// Round to nearest, ties to even.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"

namespace tensorlane::simulator {

float half_to_float(std::uint16_t half);
std::uint16_t float_to_half(float number);
float bfloat16_to_float(std::uint16_t number);
std::uint16_t float_to_bfloat16(float number);

// Element `index` of an array of `dtype`. float64 holds every other type exactly.
double load_element(const std::byte* array, Dtype dtype, std::uint64_t index);
// Rounds once: from double for float64, from float for the others (`number` must then be a float's value).
void store_element(std::byte* array, Dtype dtype, std::uint64_t index, double number);

}  // namespace tensorlane::simulator
