// Flows over TCP: one listener and one socket per flow and class, each tagged as its class says.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/data_protection.h"
#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/ports/probe_tokens.h"
#include "daemon/ports/transport.h"

namespace tensorlane::tcp {

struct TcpClass {
  ports::ClassTag tag;
  // What the lane lets be in flight in this class. The transport sizes send buffers by it and wakes the lane when a
  // full window has room again; it does not refuse more.
  Bytes window = mib(1);
};

struct TcpConfig {
  std::string listen_address =
      "0.0.0.0";                     // numeric; flows that this host makes leave from it too, unless it is a wildcard
  std::uint16_t data_port = 7110;    // the control class listens here, class c at data_port + 1 + c
  std::vector<TcpClass> classes;     // kControlClass and data classes from 0, each once
  bool payload_crc = false;          // send a CRC32C with every payload; one that arrives is always checked
  Duration detection = seconds(10);  // of dead hosts; a flow of the control class whose peer is silent for 1.5 times as
                                     // long is broken: the others may starve (law 10)
  DataProtection protection = DataProtection::kNone;  // of all flows; a peer with another level is refused
  std::uint8_t ciphers = 0;                           // protect::Ciphers that may be used; 0: all that this host has
  ports::ProbeTokens* probes = nullptr;               // whose probes are answered; outlives the transport
};

// A transport that listens. Every call belongs to the thread that owns it; `owner` outlives it. Destroying it closes
// everything without a call.
//
// A send only queues; poll() does all I/O, but for what flush() writes: it writes and reads the control class first,
// then class 0, 1..., and inside a class whoever waited longest, at most a block (256 KiB) of one flow before the next.
// wake_fd() is the epoll descriptor of all of it, so it is readable when a peer has sent something, when a full socket
// takes bytes again, when operations are queued, and when a retry or time-out is due.
//
// A full window (in_flight() has answered so much that not one more whole operation fits) makes wake_fd() readable too,
// after 200 microseconds, growing to 1 ms while nothing is acknowledged: the kernel announces free buffer space, but
// not acknowledged bytes. So a blocked lane learns of room in its window at most that much later than it could.
//
// Errors: kInvalidArgument (an address, or classes that are none), kUnavailable (port in use), kResourceExhausted
// (descriptors).
Result<std::unique_ptr<ports::Transport>> make_tcp_transport(const TcpConfig& config, ports::FlowOwner& owner);

// What make_tcp_transport() would use, for status: "10.77.0.1 (eth0)", or the address alone where no interface has it.
std::string explain_device(const TcpConfig& config);

}  // namespace tensorlane::tcp
