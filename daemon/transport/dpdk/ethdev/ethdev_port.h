// A packet port over DPDK's ethdev.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "daemon/transport/dpdk/port/packet_port.h"

namespace tensorlane::dpdk {

// Opens the device that the configuration names, with a transmit queue for each class, and starts it. EAL runs
// (start_eal()). Takes up to seconds; the link may be down. Whatever thread calls the port first is its owner. Errors:
// kInvalidArgument, a value that cannot be, or that the device does not take; kNotFound, no such device or interface,
// or this build has no DPDK; kAlreadyExists, the device is open, or somebody else has its socket; kPermissionDenied;
// kResourceExhausted, no memory for packets; kUnavailable, EAL does not run; kInternal, with what DPDK said.
Result<std::unique_ptr<PacketPort>> open_port(const PortConfig& config);

}  // namespace tensorlane::dpdk
