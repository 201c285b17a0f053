// Daemons made by hand: they say whatever a test wants.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>
#include <zmq_addon.hpp>

#include "cluster.h"
#include "daemon/control/message.h"

namespace tensorlane::control::testing {

// Somebody who speaks CURVE to a daemon with a key of the test's choice.
class Stranger {
 public:
  Stranger(const Cluster& cluster, std::size_t to, const KeyPair& keys) {
    const fabric::Host& host = cluster.fabrics[to].hosts[to];
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::curve_publickey, keys.public_key);
    socket_.set(zmq::sockopt::curve_secretkey, keys.secret_key);
    socket_.set(zmq::sockopt::curve_serverkey, host.public_key);
    socket_.connect("tcp://" + host.tcp_address() + ":" + std::to_string(host.control_port));
  }
  void send(const std::vector<std::uint8_t>& bytes) { socket_.send(zmq::buffer(bytes), zmq::send_flags::none); }
  void send(const Message& message) { send(encode(message)); }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_{context_, zmq::socket_type::dealer};
};

// One that has the keys of a host, which must not run, and hears what others say to that host.
class Impostor {
 public:
  // Speaks to host `to`.
  Impostor(const Cluster& cluster, std::size_t as, std::size_t to) : mouth_(cluster, to, cluster.keys[as]) {
    const fabric::Host& host = cluster.fabrics[as].hosts[as];
    ear_.set(zmq::sockopt::linger, 0);
    ear_.set(zmq::sockopt::rcvtimeo, 2000);
    ear_.set(zmq::sockopt::curve_server, true);
    ear_.set(zmq::sockopt::curve_secretkey, cluster.keys[as].secret_key);
    ear_.bind("tcp://" + host.tcp_address() + ":" + std::to_string(host.control_port));
  }
  void send(const Message& message) { mouth_.send(message); }
  // Nothing came within two seconds, or it was no message.
  std::optional<Message> receive() {
    std::vector<zmq::message_t> frames;
    if (!zmq::recv_multipart(ear_, std::back_inserter(frames)) || frames.size() != 2) return std::nullopt;
    const auto message = decode({static_cast<const std::byte*>(frames[1].data()), frames[1].size()});
    return message.ok() ? std::optional(*message) : std::nullopt;
  }

 private:
  zmq::context_t context_;
  zmq::socket_t ear_{context_, zmq::socket_type::router};
  Stranger mouth_;
};

}  // namespace tensorlane::control::testing
