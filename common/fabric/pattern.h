// Patterns: one text of fabric.yaml that stands for many names, addresses or ports.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace tensorlane::fabric {

// The texts that a pattern stands for. A range in brackets counts from its first number to its last:
//   "h[0-2]" -> h0, h1, h2        "Ethernet[0-8:4]" -> Ethernet0, Ethernet4, Ethernet8        "h[08-10]" -> h08, h09,
//   h10
// "*N" repeats every number N times: "leaf[0-1*2]" -> leaf0, leaf0, leaf1, leaf1. With several ranges the last one
// counts fastest: "[0-1]/[1-2]" -> 0/1, 0/2, 1/1, 1/2. A text without brackets stands for itself.
//
// Errors are kInvalidArgument without a place, fix = what was expected: a bracket that does not close or holds no
// range, a range that counts down, more than `limit` texts.
Result<std::vector<std::string>> expand(std::string_view pattern, std::size_t limit);

}  // namespace tensorlane::fabric
