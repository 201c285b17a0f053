// Releases of operating systems whose words the renderers know.
#pragma once

#include <compare>

#include "common/base/status.h"
#include "common/fabric/network.h"
#include "switch-config/model/device_qos.h"

namespace tensorlane::switches {

struct Release {
  unsigned major = 0, minor = 0;
  auto operator<=>(const Release&) const = default;
};

// The device's release, as "4.32.1F" -> 4.32; the newest known one where the file names none or a newer one.
// InvalidArgument, where = the device's name, for text that is no release of this NOS or one that is older than those
// that are known, and which are.
Result<Release> release_of(const DeviceQos& device, fabric::Nos nos);

// Adds a warning to a device whose release is newer than those that are known.
void warn_of_release(DeviceQos& device, fabric::Nos nos);

}  // namespace tensorlane::switches
