// What transports over packet ports have in common, whatever their ports are: as the options of a test say.
#pragma once

#include <cstdint>

#include "common/base/data_protection.h"
#include "daemon/transport/dpdk/dpdk_transport.h"
#include "tests/conformance/harness.h"

namespace tensorlane::conformance {

struct DpdkSetup {
  dpdk::PortConfig port;  // without a device and addresses
  dpdk::DpdkConfig transport;
};

inline DpdkSetup dpdk_setup(const HostOptions& options, std::uint16_t data_port, DataProtection level) {
  DpdkSetup setup;
  setup.port.udp_port = 7109;
  setup.transport.listen_address = "127.0.0.1";
  setup.transport.data_port = data_port;
  setup.transport.payload_crc = options.payload_crc;
  setup.transport.protection = level;
  setup.transport.ciphers = options.ciphers;
  for (const ClassSetup& c : options.classes) {
    setup.port.queues.push_back({c.tag.dscp, c.tag.pcp});
    setup.transport.classes.push_back({c.tag, c.window});
  }
  return setup;
}

}  // namespace tensorlane::conformance
