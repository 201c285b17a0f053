#include "daemon/transport/tcp/tcp_transport.h"

#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>

#include "daemon/transport/tcp/transport_impl.h"

namespace tensorlane::tcp {
namespace {

// How soon a lane that found a window full is woken to look again: first, and at most.
constexpr Duration kFirstLook = microseconds(200);
constexpr Duration kLastLook = milliseconds(1);

auto exchanges(resume::FlowOffers& offers) {
  return [&offers](const ports::FlowKey& key, const JobPtr&) {
    return std::make_unique<resume::FlowExchange>(key, offers);
  };
}

}  // namespace

Result<std::unique_ptr<ports::Transport>> make_tcp_transport(const TcpConfig& config, ports::FlowOwner& owner) {
  if (::sodium_init() < 0) return Status(Code::kInternal, "libsodium has no source of random numbers", "tcp transport");
  auto transport = std::make_unique<TcpTransport>(
      handshake::Protection{config.protection, config.ciphers != 0 ? config.ciphers : protect::ciphers_here()}, owner);
  TL_RETURN_IF_ERROR(transport->open(config));
  return std::unique_ptr<ports::Transport>(std::move(transport));
}

std::string explain_device(const TcpConfig& config) {
  const std::string interface = handshake::interface_of(config.listen_address);
  return interface.empty() ? config.listen_address : fmt::format("{} ({})", config.listen_address, interface);
}

TcpTransport::TcpTransport(const handshake::Protection& protection, ports::FlowOwner& owner)
    : connector_(*this, {0, exchanges(resumer_), sizeof(resume::FlowParameters), protection}),
      resumer_(connector_, *this),
      flows_(owner, connector_) {}

Status TcpTransport::open(const TcpConfig& config) {
  detection_ = config.detection;
  handshake::ConnectorConfig connector{"tcp transport", config.listen_address, config.data_port, {}};
  connector.probes = config.probes;
  for (const TcpClass& c : config.classes) connector.listeners.push_back({c.tag, c.window});
  TL_RETURN_IF_ERROR(connector_.open(connector));
  ready_.reserve(handshake::Connector::kReadyAtOnce);
  for (const TcpClass& c : config.classes)
    classes_.add(c.tag.cls, std::make_unique<ClassShare>(c.tag, c.window, config.payload_crc));
  return {};
}

void TcpTransport::add_job(const ports::JobCredentials& credentials) {
  connector_.add_job(credentials);
}

void TcpTransport::remove_job(JobId job) {
  flows_.remove_job(job, [this](Flow& flow) { end_flow(flow, {}); });
  resumer_.forget_job(job);
}

Status TcpTransport::connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                             Time deadline) {
  TL_RETURN_IF_ERROR(connector_.dial(flow, address, data_port, deadline, flows_.find(flow) != nullptr));
  resumer_.note_place(flow, address, data_port);
  return {};
}

void TcpTransport::close(const ports::FlowKey& key) {
  if (Flow* flow = flows_.find(key)) {
    end_flow(*flow, {});
  } else if (connector_.cancel(key)) {
    resumer_.forget(key);
    flows_.end(key, {});
  }
}

Bytes TcpTransport::in_flight(ClassId cls) {
  ClassShare* share = classes_.find(cls);
  if (share == nullptr) return Bytes(0);
  const Bytes bytes = share->window.in_flight(poll_);
  if (bytes.value > 0 && bytes + kMaxOperation > share->window.window()) look_again(*share, bytes);
  return bytes;
}

void TcpTransport::look_again(ClassShare& share, Bytes in_flight) {
  if (now_ < window_look_) return;  // a look is due already
  const bool moves = in_flight < share.seen_full;
  share.seen_full = in_flight;
  window_wait_ = moves ? kFirstLook : std::clamp(Duration(window_wait_.value * 2), kFirstLook, kLastLook);
  window_look_ = now_ + window_wait_;
  connector_.waker().wake_at(now_, window_look_);
}

std::size_t TcpTransport::poll(Time now) {
  now_ = now;
  ++poll_;
  connector_.begin(now);
  connector_.waker().clear_kick();
  std::size_t handled = flows_.report();
  write_dirty(handled);
  serve_events(handled);
  connector_.run_deadlines();
  resumer_.give_up_late(now);
  handled += flows_.report();
  connector_.end();
  if (connector_.next_deadline() != handshake::Connector::never()) {
    connector_.waker().wake_at(now_, connector_.next_deadline());
  }
  if (resumer_.next_deadline() != handshake::Connector::never()) {
    connector_.waker().wake_at(now_, resumer_.next_deadline());
  }
  if (now_ < window_look_) connector_.waker().wake_at(now_, window_look_);
  return handled;
}

void TcpTransport::flush() {
  std::size_t handled = 0;
  write_dirty(handled);
}

bool TcpTransport::arm() {
  bool quiet = flows_.quiet();
  classes_.each([&](const ClassShare& share) { quiet = quiet && share.dirty.empty(); });
  return quiet;
}

void TcpTransport::serve_events(std::size_t& handled) {
  const std::span<const epoll_event> events = connector_.ready();
  ready_.clear();
  // Flows first, most urgent first; strangers last.
  for (const epoll_event& event : events) {
    auto* object = static_cast<Watched*>(event.data.ptr);
    if (object->kind == Watched::Kind::kFlow) ready_.push_back({static_cast<Flow*>(object), event.events});
    if (object->kind == Watched::Kind::kWaker) connector_.serve(event);
  }
  serve_flows(handled);
  for (const epoll_event& event : events) {
    const Watched::Kind kind = static_cast<Watched*>(event.data.ptr)->kind;
    if (kind != Watched::Kind::kFlow && kind != Watched::Kind::kWaker) connector_.serve(event);
  }
}

ports::TransportCounters TcpTransport::counters() const {
  ports::TransportCounters counters = connector_.counters();
  counters.payloads_dropped = payloads_dropped_;
  resumer_.count(counters);
  flows_.each([&](const Flow& flow) { counters.payloads_dropped += flow.payloads_dropped(); });
  return counters;
}

}  // namespace tensorlane::tcp
