// The ports that the daemon drives itself, as daemon.yaml and the fabric file describe them.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/config/config.h"
#include "daemon/transport/dpdk/port/packet_port.h"

namespace tensorlane::wiring {

// What the rail's port is to be: queues in the order of classes, control first. Error: kInvalidArgument, an address,
// network, gateway or neighbour of daemon.yaml or of the fabric file that is none.
Result<dpdk::PortConfig> packet_port_config(const config::DaemonConfig& config, RailIndex rail);

// What can be said of the ports of all rails without opening one: addresses, names of devices, and EAL's arguments.
// Errors: as packet_port_config().
Status check_packet_ports(const config::DaemonConfig& config);

// Opens it. Errors also: those of dpdk::start_eal() and dpdk::open_port().
Result<std::unique_ptr<dpdk::PacketPort>> open_packet_port(const config::DaemonConfig& config, RailIndex rail);

}  // namespace tensorlane::wiring
