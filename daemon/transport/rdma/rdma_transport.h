// Flows over RoCE v2: reliable-connected queue pairs, tagged as their class says, beside one TCP connection for the
// handshake and for liveness.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/rdma/connect_by.h"

namespace tensorlane::rdma {

struct RdmaClass {
  ports::ClassTag tag;
  Bytes window = mib(1);  // what the lane lets be in flight in this class
};

struct RdmaConfig {
  std::string listen_address = "0.0.0.0";  // numeric; of the handshake's TCP connections
  std::uint16_t data_port = 7110;          // the control class's handshakes; class c at data_port + 1 + c
  std::vector<RdmaClass> classes;          // kControlClass and data classes from 0, each once
  bool payload_crc = false;                // send a CRC32C with every payload; one that arrives is always checked
  std::string address;                     // this host's rdma address in fabric.yaml: names the GID
  std::string device;                      // empty: the one that has the address
  std::uint8_t port = 1;
  int gid_index = -1;                        // negative: by the address
  std::uint8_t queue_pairs = 1;              // of each flow, 1 to 16: several use several paths; the same on all hosts
  ConnectBy connect_by = ConnectBy::kVerbs;  // the same on all hosts
  Duration detection = seconds(10);          // time-outs are longer (law 10), unless there is
  Duration retry{};  // so long queue pairs send again before they are lost; for jobs that resume
};

// A transport on one port of one device. Every call belongs to the thread that owns it; `owner` outlives it. Destroying
// it closes everything without a call.
//
// A payload under a grant whose place the peer has told (FrameSink::granted()) is written straight there, in front of
// the frame that announces it, if both ends have mapped the memory; every other payload travels in messages and is
// copied. poll() makes no system call of its own while it is called often; descriptors are looked at after arm(), and
// every millisecond. A port that goes down ends no flow: its queue pairs retry for longer than the detection time, or
// for as long as the configuration says. What does is a connection of the control class on which nothing came for 1.5
// times the detection time: a host that cannot be reached by this device alone.
//
// Errors: those of Device::open() and CmConnector::open(), kInvalidArgument (an address, classes or queue pairs that
// are none), kUnavailable (a port in use), kResourceExhausted.
Result<std::unique_ptr<ports::Transport>> make_rdma_transport(const RdmaConfig& config, ports::FlowOwner& owner);

// What make_rdma_transport() would use, for status: "rxe0 port 1, GID 1 = 10.77.0.1 (eth0), path MTU 4096, connected by
// verbs: DSCP by traffic class, PCP by service level"; or why it cannot: the errors of Device::open() and, where
// rdma_cm connects, those of CmConnector::open().
Result<std::string> explain_device(const RdmaConfig& config);

}  // namespace tensorlane::rdma
