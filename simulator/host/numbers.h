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

// Element `index` of an array of a floating-point `dtype`. float64 holds every other one exactly.
double load_element(const std::byte* array, Dtype dtype, std::uint64_t index);
// Rounds once: from double for float64, from float for the others (`number` must then be a float's value).
void store_element(std::byte* array, Dtype dtype, std::uint64_t index, double number);

// Two such elements under a reduction, in float64 (`wide`) or rounded to float32.
double combine(double a, double b, ReduceOp op, bool wide);

// The same for integers; results wrap around at the width of `dtype`.
std::int64_t load_integer(const std::byte* array, Dtype dtype, std::uint64_t index);
void store_integer(std::byte* array, Dtype dtype, std::uint64_t index, std::int64_t number);
std::int64_t combine_integers(std::int64_t a, std::int64_t b, ReduceOp op, Dtype dtype);

}  // namespace tensorlane::simulator
