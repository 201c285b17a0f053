// What the renderers of command lines share.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "switch-config/model/device_qos.h"

namespace tensorlane::switches {

// InvalidArgument, where = the device's name, unless every port has one of these forms, where '#' stands for a number:
// "Ethernet#/#". So a name is never more than one word of a command.
Status check_ports(const DeviceQos& device, std::string_view nos, std::initializer_list<std::string_view> forms);

// InvalidArgument where a port's MTU is above what the NOS takes.
Status check_mtu(const DeviceQos& device, std::string_view nos, std::uint32_t most);

// The DSCPs, or PCPs, that a queue takes, in ascending order.
std::vector<std::size_t> dscps_of(const DeviceQos& device, std::size_t queue);
std::vector<std::size_t> pcps_of(const DeviceQos& device, std::size_t queue);
// Those that ports without a link do not let through.
std::vector<std::size_t> class_dscps(const DeviceQos& device);

// {1, 2} -> "1,2"
std::string joined(const std::vector<std::size_t>& numbers, std::string_view separator);

bool has_untrusted(const DeviceQos& device);
// Bit i: queue i is lossless at this kind of port.
unsigned lossless_at(const DeviceQos& device, const PortKind& kind);
// The queues that are lossless, in ascending order.
std::vector<std::size_t> lossless_queues(const DeviceQos& device);

// For a renderer that is to write the kind's headroom: InvalidArgument, where = the device's name, where it is an
// estimate that the fabric file does not accept.
Status refuse_estimate(const DeviceQos& device, const PortKind& kind);

// Weights of queues with traffic alone, together 100: for a NOS whose unused queues need none.
std::array<unsigned, kQueues> used_weights(const DeviceQos& device);

// "100 Gbit/s, cable 3 m, MTU 9216", for a comment.
std::string describe(const PortKind& kind);

// "DEVICE: WHAT", the device's warnings and notes, each line behind the mark of a comment.
std::string heading(const DeviceQos& device, std::string_view mark, std::string_view what);

std::uint64_t milliseconds_of(Duration duration);

}  // namespace tensorlane::switches
