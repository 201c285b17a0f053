// The part of `tensorlane verify` that fills queues: two senders of different classes into one receiver, at every port
// of a switch where that makes them meet (verify_meetings.h). Bounded in time: some two seconds for each port and pair
// of classes, at VerifyOptions::max_loaded_ports ports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "monitor/cli/verify_run.h"

namespace tensorlane::cli {

// What two streams had beside each other, from what their receiver counted.
struct BurstSlots {
  std::uint64_t start_ms = 0;
  std::uint32_t slot_ms = 5;
  std::vector<std::uint64_t> bytes;
};
// The sum of several streams, in windows of 25 ms of the receiver's clock: bits per second in each, from `from_ms` on.
std::vector<double> window_rates(const std::vector<BurstSlots>& streams, std::uint64_t from_ms, std::uint64_t until_ms);
// The median with an interval of about 95% by order statistics. Zero where there are no values.
verify::Estimate median_of(std::vector<double> values);

// Adds to state.seen.loads.
void measure_load(VerifyState& state);

}  // namespace tensorlane::cli
