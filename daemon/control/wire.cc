#include "daemon/control/wire.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <zmq_addon.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "common/base/text.h"
#include "daemon/control/message.h"

namespace tensorlane::control {
namespace {

constexpr std::size_t kKeyText = 40, kKeyBytes = 32;  // Z85
constexpr int kHighWater = 1024;                      // messages inside ZeroMQ, per connection
// What waits in the backlog is accepted, whatever the filter says by then.
constexpr int kBacklog = 256;
constexpr int kHandshakeMs = 5000;  // a connection that says nothing for so long is closed
constexpr int kReconnectMs = 50, kReconnectMaxMs = 500;
constexpr std::size_t kMaxReceivesPerPoll = 1024;       // so that a talkative peer cannot hold up the loop
constexpr std::chrono::milliseconds kReceiveSlice{20};  // nor one whose messages take long to read
constexpr std::int64_t kZmqMaxMessage =
    4 * kMaxWireMessage;  // beyond it the connection is closed, below it the message dropped
constexpr Duration kIdle = seconds(5);
constexpr Duration kAddressesAgain = milliseconds(100);

// Control speaks over the first rail.
const std::string* tcp_address(const fabric::Host& host) {
  return host.find_address("tcp");
}

std::string endpoint(const std::string& address, std::uint16_t port) {
  return address.find(':') == std::string::npos ? fmt::format("tcp://{}:{}", address, port)
                                                : fmt::format("tcp://[{}]:{}", address, port);
}

}  // namespace

Wire::Wire(const fabric::Fabric& fabric, std::string self, std::string secret_key, Duration detection,
           ControlCounters& counters, Resolver& resolver)
    : fabric_(fabric),
      self_(std::move(self)),
      secret_key_(std::move(secret_key)),
      detection_(detection),
      counters_(counters),
      resolver_(resolver),
      strangers_(fabric.hosts.size()) {
  // One socket for each host, and the few of Wire itself. ZeroMQ's default is 1,023 in all.
  context_.set(zmq::ctxopt::max_sockets, static_cast<int>(std::max<std::size_t>(1023, fabric.hosts.size() + 16)));
}

Result<std::unique_ptr<Wire>> Wire::open(const fabric::Fabric& fabric, const std::string& self,
                                         const std::string& secret_key, Duration detection, ControlCounters& counters,
                                         Resolver& resolver) {
  std::unique_ptr<Wire> wire(new Wire(fabric, self, secret_key, detection, counters, resolver));
  if (fabric.hosts.size() > 1) {
    TL_RETURN_IF_ERROR(wire->read_keys());
    TL_RETURN_IF_ERROR(wire->bind());
  }
  return wire;
}

Status Wire::read_keys() {
  for (const fabric::Host& host : fabric_.hosts) {
    const auto bad = [&](std::string what, std::string fix) {
      return Status(Code::kInvalidArgument, std::move(what), fmt::format("{}:{}", fabric_.path, host.line),
                    std::move(fix));
    };
    if (tcp_address(host) == nullptr)
      return bad(fmt::format("host '{}' has no tcp address", host.name), "add addresses: {tcp: ADDRESS}");
    std::array<std::uint8_t, kKeyBytes> raw{};
    if (host.public_key.size() != kKeyText || zmq_z85_decode(raw.data(), host.public_key.c_str()) == nullptr) {
      return bad(fmt::format("host '{}' has no public key of {} Z85 characters", host.name, kKeyText),
                 "add public_key: KEY");
    }
    const std::string key(raw.begin(), raw.end());
    if (const auto [other, fresh] = host_of_key_.emplace(key, host.name); !fresh) {
      return bad(fmt::format("hosts '{}' and '{}' have the same public key", other->second, host.name),
                 "give each host a key pair of its own");
    }
  }
  std::array<char, kKeyText + 1> mine{};
  if (secret_key_.size() != kKeyText || zmq_curve_public(mine.data(), secret_key_.c_str()) != 0) {
    return Status(Code::kInvalidArgument,
                  fmt::format("the secret key of host '{}' is not {} Z85 characters", self_, kKeyText), fabric_.path,
                  "give the daemon the secret key that belongs to its public key");
  }
  public_key_ = mine.data();
  const fabric::Host* self = fabric_.find_host(self_);
  if (self == nullptr || self->public_key != public_key_) {
    return Status(
        Code::kInvalidArgument, fmt::format("the secret key is not that of host '{}'", self_),
        self == nullptr ? fabric_.path : fmt::format("{}:{}", fabric_.path, self->line),
        fmt::format("the file that 'secret_key_file' of the daemon's configuration names has the other half of '{}': "
                    "name the file with this host's key there, or give the host this public key in the fabric file",
                    public_key_));
  }
  return {};
}

void Wire::set_common_options(zmq::socket_t& socket) {
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::immediate, true);
  socket.set(zmq::sockopt::ipv6, true);
  socket.set(zmq::sockopt::sndhwm, kHighWater);
  socket.set(zmq::sockopt::rcvhwm, kHighWater);
  socket.set(zmq::sockopt::maxmsgsize, kZmqMaxMessage);
  socket.set(zmq::sockopt::handshake_ivl, kHandshakeMs);
  socket.set(zmq::sockopt::tos, fabric_.classes.control.dscp << 2);
  // Longer than the detection time (law 10): the connection goes because the host is gone, not the other way round.
  socket.set(zmq::sockopt::tcp_maxrt, static_cast<int>(detection_.value * 2 / 1'000'000));
  socket.set(zmq::sockopt::curve_secretkey, secret_key_);
}

Status Wire::bind() {
  const fabric::Host& self = *fabric_.find_host(self_);
  // ZeroMQ binds numeric addresses only.
  const Result<std::string> numeric = fabric::resolve_address(*tcp_address(self));
  source_ = numeric.ok() ? *numeric : *tcp_address(self);
  const std::string where = endpoint(source_, self.control_port);
  try {
    authenticator_ = zmq::socket_t(context_, zmq::socket_type::rep);
    authenticator_.set(zmq::sockopt::linger, 0);
    authenticator_.bind("inproc://zeromq.zap.01");
    router_ = zmq::socket_t(context_, zmq::socket_type::router);
    set_common_options(router_);
    router_.set(zmq::sockopt::router_mandatory, true);
    router_.set(zmq::sockopt::backlog, kBacklog);
    router_.set(zmq::sockopt::zap_domain, "tensorlane");
    router_.set(zmq::sockopt::curve_server, true);
    TL_RETURN_IF_ERROR(watch_connections());
    router_.bind(where);
  } catch (const zmq::error_t& error) {
    return Status(Code::kUnavailable, fmt::format("the control port cannot be bound ({})", error.what()),
                  fmt::format("{}, {}:{}", where, fabric_.path, self.line),
                  "stop the process that uses the port, or correct address and control_port");
  }
  return {};
}

Wire::Peer Wire::make_peer(const fabric::Host& host) {
  Peer peer;
  peer.socket = zmq::socket_t(context_, zmq::socket_type::dealer);
  set_common_options(peer.socket);
  peer.socket.set(zmq::sockopt::reconnect_ivl, kReconnectMs);
  peer.socket.set(zmq::sockopt::reconnect_ivl_max, kReconnectMaxMs);
  peer.socket.set(zmq::sockopt::curve_publickey, public_key_);
  peer.socket.set(zmq::sockopt::curve_serverkey, host.public_key);
  return peer;
}

// ZeroMQ would resolve a name on the thread that moves everybody's messages.
void Wire::connect(const std::string& host, Peer& peer) {
  const fabric::Host* found = fabric_.find_host(host);
  const std::optional<std::string> numeric = resolver_.find(*tcp_address(*found));
  if (!numeric) return;
  // From the address that the fabric file has for this host: a peer that is flooded lets only those in. ZeroMQ writes
  // "tcp://SOURCE:0;PEER:PORT".
  constexpr std::size_t kScheme = std::string_view("tcp://").size();
  const bool same_family = (numeric->find(':') == std::string::npos) == (source_.find(':') == std::string::npos);
  const std::string target = endpoint(*numeric, found->control_port);
  peer.socket.connect(same_family ? endpoint(source_, 0) + ";" + target.substr(kScheme) : target);
  peer.connecting = true;
}

// ---- strangers ----

// Before router_ is bound: the first event tells which descriptor listens.
Status Wire::watch_connections() {
  constexpr const char* kEvents = "inproc://control-port";
  const int events = ZMQ_EVENT_LISTENING | ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED;
  if (zmq_socket_monitor(router_.handle(), kEvents, events) != 0) {
    return {Code::kResourceExhausted, fmt::format("cannot watch the control port: {}", zmq_strerror(zmq_errno())),
            self_, "raise the limit of open files"};
  }
  connections_ = zmq::socket_t(context_, zmq::socket_type::pair);
  connections_.set(zmq::sockopt::linger, 0);
  connections_.connect(kEvents);
  return {};
}

// False: the resolver has not answered yet for some host. Names that do not resolve are of hosts that cannot take part
// in a job either.
bool Wire::learn_addresses() {
  std::set<AddressBytes> addresses;
  bool all = true;
  for (const fabric::Host& host : fabric_.hosts) {
    AddressBytes address{};
    const std::optional<std::string> numeric = resolver_.find(*tcp_address(host));
    if (numeric && parse_address(*numeric, &address)) {
      addresses.insert(address);
    } else {
      all = all && !resolver_.why_not(*tcp_address(host)).empty();
    }
  }
  known_ = known_addresses(addresses);
  return all;
}

void Wire::read_connections(Time now) {
  for (std::size_t i = 0; i < kMaxReceivesPerPoll; ++i) {
    std::vector<zmq::message_t> frames;
    if (!zmq::recv_multipart(connections_, std::back_inserter(frames), zmq::recv_flags::dontwait)) return;
    // A 16-bit event and a 32-bit value; then the endpoint, which is our own.
    std::uint16_t event = 0;
    std::int32_t value = 0;
    if (frames.empty() || frames[0].size() != sizeof event + sizeof value) continue;
    std::memcpy(&event, frames[0].data(), sizeof event);
    std::memcpy(&value, static_cast<const char*>(frames[0].data()) + sizeof event, sizeof value);
    on_connection(now, event, value);
  }
}

void Wire::on_connection(Time now, int event, int descriptor) {
  if (event == ZMQ_EVENT_LISTENING) listener_ = descriptor;
  if (event == ZMQ_EVENT_ACCEPTED && peer_address(descriptor, &newcomer_)) strangers_.connected(descriptor, newcomer_);
  if (event == ZMQ_EVENT_DISCONNECTED && strangers_.gone(descriptor)) ++counters_.unproven_connections;
  let_in(now);
}

// While the resolver has not answered for every host, nobody is shut out for not being one of them.
void Wire::let_in(Time now) {
  Strangers::Shut shut = strangers_.shut();
  if (shut.all_but_known && !shut_.all_but_known) {
    const bool again = now >= addresses_again_;
    if (again) addresses_again_ = now + kAddressesAgain;
    shut.all_but_known = again && learn_addresses();
  }
  if (listener_ < 0 || shut == shut_) return;
  const bool more = shut.addresses.size() > shut_.addresses.size() || shut.all_but_known;
  shut_ = shut;
  const Status filtered = filter_connections(listener_, shut, known_);
  if (!log_gate_.open(now, "connections")) return;
  if (!filtered.ok()) {
    spdlog::warn("host {}: {}", self_, filtered.to_string());
  } else if (more) {
    spdlog::warn(
        "host {}: {} connections to the control port have not shown the key of a host, the last one from {}: for now "
        "none are taken from {} addresses{}: find out what connects from there",
        self_, strangers_.count(), address_text(newcomer_), shut.addresses.size(),
        shut.all_but_known ? ", and from others only of hosts in " + fabric_.path : "");
  }
}

// ---- messages ----

void Wire::need(const std::string& host) {
  auto it = peers_.find(host);
  if (it == peers_.end()) {
    const fabric::Host* found = fabric_.find_host(host);
    if (!router_ || found == nullptr) return;
    try {
      it = peers_.emplace(host, make_peer(*found)).first;
      connect(host, it->second);
    } catch (const zmq::error_t& error) {  // no descriptors left: sends to the host fail, and with them the job
      spdlog::error("host {}: cannot connect to host {}: {}", self_, host, error.what());
      return;
    }
  }
  ++it->second.needed;
}

void Wire::release(const std::string& host, Time now) {
  const auto it = peers_.find(host);
  if (it == peers_.end() || it->second.needed == 0) return;
  if (--it->second.needed == 0) it->second.close_at = now + kIdle;
}

bool Wire::try_send(Peer& peer, const std::vector<std::uint8_t>& bytes) {
  try {
    if (!peer.socket.send(zmq::buffer(bytes), zmq::send_flags::dontwait)) return false;
  } catch (const zmq::error_t&) {
    return false;
  }
  ++counters_.messages_sent;
  return true;
}

void Wire::flush(Peer& peer) {
  while (!peer.queue.empty() && try_send(peer, peer.queue.front())) peer.queue.pop_front();
}

bool Wire::send(const std::string& host, std::vector<std::uint8_t> bytes) {
  const auto it = peers_.find(host);
  if (it == peers_.end() || it->second.queue.size() >= kMaxQueued) {
    ++counters_.dropped_unsent;
    return false;
  }
  it->second.queue.push_back(std::move(bytes));
  flush(it->second);
  return true;
}

void Wire::offer(const std::string& host, std::vector<std::uint8_t> bytes) {
  const auto it = peers_.find(host);
  if (it != peers_.end() && it->second.queue.empty()) send(host, std::move(bytes));
}

bool Wire::reachable(const std::string& host) {
  const auto it = peers_.find(host);
  if (it == peers_.end()) return false;
  flush(it->second);
  return it->second.queue.empty() && (it->second.socket.get(zmq::sockopt::events) & ZMQ_POLLOUT) != 0;
}

void Wire::wait(Duration timeout, int wake_fd) {
  std::vector<zmq::pollitem_t> items{{nullptr, wake_fd, ZMQ_POLLIN, 0}};
  if (router_) {
    items.push_back({authenticator_.handle(), 0, ZMQ_POLLIN, 0});
    items.push_back({router_.handle(), 0, ZMQ_POLLIN, 0});
    items.push_back({connections_.handle(), 0, ZMQ_POLLIN, 0});
    for (auto& [name, peer] : peers_) {
      if (!peer.queue.empty() && peer.connecting) items.push_back({peer.socket.handle(), 0, ZMQ_POLLOUT, 0});
    }
  }
  try {
    zmq::poll(items, std::chrono::milliseconds((timeout.value + 999'999) / 1'000'000));
  } catch (const zmq::error_t&) {
    return;  // a signal: the caller looks at everything anyway
  }
}

void Wire::process(Time now, const Receiver& receive) {
  if (!router_) return;
  for (auto& [name, peer] : peers_) {
    if (!peer.connecting) connect(name, peer);
    flush(peer);
  }
  read_connections(now);
  let_in(now);
  answer_authentication(now);
  receive_messages(now, receive);
  close_idle(now);
}

// ZeroMQ's authentication protocol (RFC 27): only keys of the fabric file may connect, and the name of their host
// becomes the connection's user.
void Wire::answer_authentication(Time now) {
  for (std::size_t i = 0; i < kMaxReceivesPerPoll; ++i) {
    std::vector<zmq::message_t> request;
    if (!zmq::recv_multipart(authenticator_, std::back_inserter(request), zmq::recv_flags::dontwait)) return;
    const bool curve = request.size() == 7 && request[5].to_string_view() == "CURVE" && request[6].size() == kKeyBytes;
    const auto host = curve ? host_of_key_.find(request[6].to_string()) : host_of_key_.end();
    const bool accepted = host != host_of_key_.end();
    AddressBytes address_bytes{};
    if (accepted && parse_address(request[3].to_string(), &address_bytes)) {
      read_connections(now);  // it was accepted before it was asked about
      strangers_.vouched(address_bytes);
    } else if (!accepted) {
      ++counters_.refused_connections;
      const std::string address = request.size() > 3 ? printable(request[3].to_string_view()) : "?";
      const std::string blamed = parse_address(address, &address_bytes) ? network_text(address_bytes) : address;
      if (const auto held_back = log_gate_.pass(now, blamed)) {
        spdlog::warn("host {}: a daemon at {} was refused: its key is not in {}{}", self_, address, fabric_.path,
                     held_back_text(*held_back));
      }
    }
    const std::string id = request.size() > 1 ? request[1].to_string() : std::string();
    const std::array<std::string, 6> reply{
        "1.0", id, accepted ? "200" : "400", accepted ? "OK" : "unknown key", accepted ? host->second : "", ""};
    zmq::send_multipart(authenticator_, std::array<zmq::const_buffer, 6>{zmq::buffer(reply[0]), zmq::buffer(reply[1]),
                                                                         zmq::buffer(reply[2]), zmq::buffer(reply[3]),
                                                                         zmq::buffer(reply[4]), zmq::buffer(reply[5])});
  }
}

void Wire::receive_messages(Time now, const Receiver& receive) {
  // The router takes turns between its peers: what one of them sends does not hold up what another one has sent.
  const auto end = std::chrono::steady_clock::now() + kReceiveSlice;
  for (std::size_t i = 0; i < kMaxReceivesPerPoll && std::chrono::steady_clock::now() < end; ++i) {
    std::vector<zmq::message_t> frames;
    if (!zmq::recv_multipart(router_, std::back_inserter(frames), zmq::recv_flags::dontwait)) return;
    ++counters_.messages_received;
    if (const int descriptor = zmq_msg_get(frames.back().handle(), ZMQ_SRCFD); descriptor >= 0)
      strangers_.proved(descriptor);
    const char* host = frames.size() == 2 ? zmq_msg_gets(frames[1].handle(), "User-Id") : nullptr;
    if (host == nullptr || frames[1].size() > kMaxWireMessage) {
      ++counters_.dropped_malformed;
      if (log_gate_.open(now)) {
        spdlog::warn("host {}: dropped a control message of {} parts and {} bytes from {}", self_, frames.size(),
                     frames.back().size(), host == nullptr ? "?" : host);
      }
      continue;
    }
    receive(host, std::span(static_cast<const std::byte*>(frames[1].data()), frames[1].size()));
  }
}

void Wire::close_idle(Time now) {
  std::erase_if(peers_, [&](const auto& entry) { return entry.second.needed == 0 && now >= entry.second.close_at; });
}

}  // namespace tensorlane::control
