// From a fabric to what each device is to do, by rules that keep the job from hurting others. Pure.
#pragma once

#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/fabric/fabric.h"
#include "switch-config/model/device_qos.h"

namespace tensorlane::switches {

// What the service of classes comes to, the same on every device.
//
// - Control, CNP and the most urgent data class are strict; each has a shaper: 5 %, 5 % and 40 % of a port by default.
//   All other classes and `default`, which takes every unused DSCP and PCP, share the rest by weight; default is
//   guaranteed at least 10 % of a port.
// - The number of a class is its PCP; `default` is 0; CNP takes the highest free number below the most urgent class,
//   unless the file puts it elsewhere. Strict classes have higher numbers than weighted ones, in the order of their
//   rank.
// - Between two services a weighted class waits for the strict ones' bursts at most: the watchdog's detection and the
//   head-of-line lifetime are longer, and hosts resend for longer than the watchdog takes to detect and to restore.
//
// InvalidArgument, where = "FILE:LINE", for a file that breaks a rule, with the arithmetic.
struct Service {
  std::array<Queue, kQueues> queues;
  std::array<std::uint8_t, kDscps> queue_of_dscp{};
  std::array<std::uint8_t, kPcps> queue_of_pcp{};
  std::uint8_t cnp_queue = 0;
};
Result<Service> service_of(const fabric::Fabric& fabric);

// Which devices.
struct Selection {
  bool hosts = false;              // hosts, else switches
  std::optional<fabric::Nos> nos;  // switches of this NOS and those that name none; unset: all
  bool software = false;           // queues without flow control, as in the lab: whatever the platform is
};

// The devices of a selection, in the order of the file. Beside the rules of service_of():
// - every host has a link to a switch, and every link names its ports;
// - lossless classes are at most as many as the platform is known to take, two without evidence for more; a platform
//   of which nothing is known takes none;
// - headroom of all ports and what is reserved leave at least half of the packet memory to be shared.
// Errors as in service_of(); NotFound where the selection is empty.
Result<std::vector<DeviceQos>> devices_of(const fabric::Fabric& fabric, const Selection& selection);

// How long a weighted class of a port may wait while strict ones send: their bursts, each of kBurst at its shaper's
// rate, at what the shapers leave, and one round of the other queues.
inline constexpr Duration kBurst = milliseconds(1);
Duration longest_wait(const Service& service);

// The platform with the numbers filled in that are known of its name, if any, and with no more memory than SONiC's
// templates use of its ASIC.
fabric::Platform known_platform(const fabric::Platform& platform);

}  // namespace tensorlane::switches
