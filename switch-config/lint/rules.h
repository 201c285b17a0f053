// The rules that hold on every device, whoever wrote its configuration.
#pragma once

#include <vector>

#include "switch-config/findings/findings.h"
#include "switch-config/lint/observed.h"

namespace tensorlane::lint {

// Adds what rules L1 to L8, L12 and L13 find on one device. An error is what cannot work on any platform; what works on
// some, or may be meant, is a warning.
void check_device(const Device& device, findings::Report& report);

// Adds what rules L1, L3 and L7 find between devices: both ends of a link that their configurations name, the same code
// points everywhere, and the same lossless priorities on NICs as on switches.
void check_fabric(const std::vector<Device>& devices, findings::Report& report);

}  // namespace tensorlane::lint
