// What render_linux() writes, port by port: for whoever runs the commands itself.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "switch-config/model/device_qos.h"

namespace tensorlane::switches {

struct LinuxPort {
  std::string name;
  std::string lines;  // as `tc -batch` reads them, for a port that has the kernel's own queue
};

// In the order of device.ports. InvalidArgument for a name that no interface of Linux has, or that `tc` would not take
// for one.
Result<std::vector<LinuxPort>> linux_ports(const DeviceQos& device);

// For kernels that have no sch_red: classes mark no ECN.
void leave_out_ecn(DeviceQos& device);

}  // namespace tensorlane::switches
