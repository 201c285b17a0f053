// Bytes between daemons: ZeroMQ over TCP with CURVE (law 14), tagged as the control class.
//
// Every daemon binds one ROUTER, which only receives, and connects one DEALER per peer, which only sends. So each
// direction between two hosts has a connection of its own, and a network that is cut in one direction looks so. Who
// sent a message is known from the key that authenticated the connection, never from what the message says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "common/base/log_gate.h"
#include "common/base/status.h"
#include "common/base/units.h"
#include "common/fabric/fabric.h"
#include "daemon/control/accept_filter.h"
#include "daemon/control/counters.h"
#include "daemon/control/resolver.h"
#include "daemon/control/strangers.h"

namespace tensorlane::control {

class Wire {
 public:
  // Up to this many messages wait for one peer that is not connected or does not read.
  static constexpr std::size_t kMaxQueued = 4096;
  using Receiver = std::function<void(const std::string& host, std::span<const std::byte> bytes)>;

  // Binds the address of `self`. In a fabric of one host there is nothing to bind and every send fails. Errors:
  // kInvalidArgument (a host without address or public key, a secret key that is not that of `self`), kUnavailable (the
  // address cannot be bound).
  static Result<std::unique_ptr<Wire>> open(const fabric::Fabric& fabric, const std::string& self,
                                            const std::string& secret_key, Duration detection,
                                            ControlCounters& counters, Resolver& resolver);

  // One thread calls everything below.

  // Connects to the host, unless it is connected; each need() wants one release(). Connections that nobody needs are
  // closed some seconds later.
  void need(const std::string& host);
  void release(const std::string& host, Time now);

  // In order per host. False when the queue is full: the message is dropped and counted.
  bool send(const std::string& host, std::vector<std::uint8_t> bytes);
  // Dropped when something waits already: for what is repeated anyway.
  void offer(const std::string& host, std::vector<std::uint8_t> bytes);
  // Whether the host's daemon has accepted our connection and takes messages.
  bool reachable(const std::string& host);

  // Waits until `wake_fd` is readable, something can be received or sent, or `timeout` is over.
  void wait(Duration timeout, int wake_fd);
  // Sends what waits and gives what has come to `receive`. Does not block.
  void process(Time now, const Receiver& receive);

 private:
  struct Peer {
    zmq::socket_t socket;
    bool connecting = false;  // else its name does not resolve yet
    std::deque<std::vector<std::uint8_t>> queue;
    std::size_t needed = 0;
    Time close_at;  // when not needed
  };

  Wire(const fabric::Fabric& fabric, std::string self, std::string secret_key, Duration detection,
       ControlCounters& counters, Resolver& resolver);
  Status bind();
  Status read_keys();
  void set_common_options(zmq::socket_t& socket);
  Peer make_peer(const fabric::Host& host);
  void connect(const std::string& host, Peer& peer);
  bool try_send(Peer& peer, const std::vector<std::uint8_t>& bytes);
  void flush(Peer& peer);
  Status watch_connections();
  void read_connections(Time now);
  void on_connection(Time now, int event, int descriptor);
  void let_in(Time now);
  bool learn_addresses();
  void answer_authentication(Time now);
  void receive_messages(Time now, const Receiver& receive);
  void close_idle(Time now);

  const fabric::Fabric& fabric_;
  const std::string self_, secret_key_;
  std::string public_key_, source_;  // this host's address, as a number
  const Duration detection_;
  ControlCounters& counters_;
  Resolver& resolver_;
  std::map<std::string, std::string> host_of_key_;  // raw 32 bytes -> host
  zmq::context_t context_{1};
  zmq::socket_t authenticator_, router_, connections_;  // the last one: what ZeroMQ tells of router_'s connections
  int listener_ = -1;                                   // router_'s; ZeroMQ's own
  Strangers strangers_;
  Strangers::Shut shut_;     // as the kernel knows it
  AddressBytes newcomer_{};  // the last one of the strangers
  Time addresses_again_;     // when to ask once more for those that are not known
  KnownAddresses known_;     // those of the fabric's hosts, as far as they are known
  std::map<std::string, Peer> peers_;
  LogGate log_gate_;
};

}  // namespace tensorlane::control
