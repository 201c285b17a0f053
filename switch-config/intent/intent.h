// What a fabric file asks of a device and the device does not do.
#pragma once

#include <string>
#include <vector>

#include "switch-config/findings/findings.h"
#include "switch-config/intent/treatment.h"
#include "switch-config/lint/observed.h"
#include "switch-config/model/device_qos.h"

namespace tensorlane::switches {

// How what a port does with packets of one DSCP differs from what the file asks, each with the rule that asks for it.
// Numbers of queues may differ: platforms number them as they must.
struct Difference {
  const char* rule;
  std::string what;  // "is weighted, where the file asks for strict"
};
std::vector<Difference> differences(const Treatment& found, const DeviceQos& device, const PortKind& in,
                                    const PortKind& out, std::uint8_t dscp);

// Adds an error for every port and class of `device` that is served otherwise than the file asks, for ports that are
// missing, for classes that share a queue, and for MTUs and cable lengths that are too short. What the configuration
// does not say, and its platform decides, is no finding.
void check_intent(const lint::Device& found, const DeviceQos& device, findings::Report& report);

}  // namespace tensorlane::switches
