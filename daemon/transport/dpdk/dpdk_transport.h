// Flows over a port that the daemon drives itself (PacketPort): the state machine of daemon/transport/datagram, an
// association for each flow, beside one TCP connection for the handshake and for liveness.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/data_protection.h"
#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/ports/port_metrics.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/dpdk/port/packet_port.h"

namespace tensorlane::dpdk {

struct DpdkClass {
  ports::ClassTag tag;
  Bytes window = mib(1);  // of the class on its way to one peer, at most
};

struct DpdkConfig {
  std::string listen_address = "0.0.0.0";  // numeric; of the handshake's TCP connections
  std::uint16_t data_port = 7110;          // the control class's handshakes; class c at data_port + 1 + c
  // kControlClass and data classes from 0, each once, in the order of the port's queues: control first.
  std::vector<DpdkClass> classes;
  bool payload_crc = false;          // send a CRC32C with every payload; one that arrives is always checked
  Duration detection = seconds(10);  // a peer that lets control frames wait for so long is gone
  DataProtection protection = DataProtection::kNone;
  std::uint8_t ciphers = 0;                     // protect::Ciphers to use; 0: what this host has
  Bytes credit_window = kib(96);                // of all peers on its way to this port: what the paths hold
  std::shared_ptr<ports::PortMetrics> metrics;  // make_port_metrics() of the port; null: nobody wants to know
};

// Every call belongs to the thread that owns it; `owner` outlives it. Destroying it closes everything without a call.
//
// Payloads are copied once into packets, and once out of them. A packet that is lost is sent again; a link that goes
// down and comes back loses no flow. What ends one is a lost TCP connection, and of the control class also a peer of
// which nothing came for the detection time while something waited for it. A job that resumes lost flows does so over
// other transports; here such a flow goes down at once.
//
// Errors: kInvalidArgument (an address, or classes that are none, or queues that are not as many as classes),
// kUnavailable (a TCP port in use), kResourceExhausted.
Result<std::unique_ptr<ports::Transport>> make_dpdk_transport(const DpdkConfig& config,
                                                              std::unique_ptr<PacketPort> port,
                                                              ports::FlowOwner& owner);

}  // namespace tensorlane::dpdk
