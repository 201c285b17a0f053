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

Result<std::unique_ptr<ports::Transport>> make_tcp_transport(const TcpConfig& config, ports::FrameSink& sink) {
  if (::sodium_init() < 0) return Status(Code::kInternal, "libsodium has no source of random numbers", "tcp transport");
  auto transport = std::make_unique<TcpTransport>(
      handshake::Protection{config.protection, config.ciphers != 0 ? config.ciphers : protect::ciphers_here()}, sink);
  TL_RETURN_IF_ERROR(transport->open(config));
  return std::unique_ptr<ports::Transport>(std::move(transport));
}

std::string explain_device(const TcpConfig& config) {
  const std::string interface = handshake::interface_of(config.listen_address);
  return interface.empty() ? config.listen_address : fmt::format("{} ({})", config.listen_address, interface);
}

TcpTransport::TcpTransport(const handshake::Protection& protection, ports::FrameSink& sink)
    : sink_(sink),
      connector_(*this, {0, exchanges(resumer_), sizeof(resume::FlowParameters), protection}),
      resumer_(connector_, *this) {}

Status TcpTransport::open(const TcpConfig& config) {
  payload_crc_ = config.payload_crc;
  detection_ = config.detection;
  handshake::ConnectorConfig connector{"tcp transport", config.listen_address, config.data_port, {}};
  for (const TcpClass& c : config.classes) connector.listeners.push_back({c.tag, c.window});
  TL_RETURN_IF_ERROR(connector_.open(connector));
  ready_.reserve(handshake::Connector::kReadyAtOnce);
  for (const TcpClass& c : config.classes)
    classes_[handshake::service_order(c.tag.cls)] = std::make_unique<ClassState>(c);
  return {};
}

TcpTransport::ClassState* TcpTransport::find_class(ClassId cls) const {
  const std::size_t position = handshake::service_order(cls);
  return position < classes_.size() ? classes_[position].get() : nullptr;
}

void TcpTransport::add_job(const ports::JobCredentials& credentials) {
  connector_.add_job(credentials);
}

void TcpTransport::remove_job(JobId job) {
  std::vector<ports::FlowKey> keys;
  for (const auto& [key, flow] : flows_) {
    if (key.job == job) keys.push_back(key);
  }
  for (const auto& key : keys) close(key);
  for (const auto& key : connector_.remove_job(job)) ended_.push_back({key, {}, nullptr});
  resumer_.forget_job(job);
  connector_.waker().kick();
}

Status TcpTransport::connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                             Time deadline) {
  TL_RETURN_IF_ERROR(connector_.dial(flow, address, data_port, deadline, flows_.contains(flow)));
  resumer_.note_place(flow, address, data_port);
  return {};
}

void TcpTransport::close(const ports::FlowKey& key) {
  if (const auto flow = flows_.find(key); flow != flows_.end()) {
    end_flow(*flow->second, {});
  } else if (connector_.cancel(key)) {
    resumer_.forget(key);
    ended_.push_back({key, {}, nullptr});
  }
  connector_.waker().kick();
}

bool TcpTransport::writable(const ports::FlowKey& key) const {
  const auto flow = flows_.find(key);
  return flow != flows_.end() && flow->second->writable();
}

void TcpTransport::send(const ports::FlowKey& key, const ports::Outgoing& operation) {
  const auto flow = flows_.find(key);
  TL_ASSERT(flow != flows_.end());
  flow->second->enqueue(operation, payload_crc_);
  mark_dirty(*flow->second);
}

Bytes TcpTransport::in_flight(ClassId cls) {
  ClassState* state = find_class(cls);
  if (state == nullptr) return Bytes(0);
  const Bytes bytes = state->window.in_flight(poll_);
  if (bytes.value > 0 && bytes + kMaxOperation > state->window.window()) look_again(*state, bytes);
  return bytes;
}

void TcpTransport::look_again(ClassState& state, Bytes in_flight) {
  if (now_ < window_look_) return;  // a look is due already
  const bool moves = in_flight < state.seen_full;
  state.seen_full = in_flight;
  window_wait_ = moves ? kFirstLook : std::clamp(Duration(window_wait_.value * 2), kFirstLook, kLastLook);
  window_look_ = now_ + window_wait_;
  connector_.waker().wake_at(now_, window_look_);
}

std::size_t TcpTransport::poll(Time now) {
  now_ = now;
  ++poll_;
  connector_.begin(now);
  connector_.waker().clear_kick();
  std::size_t handled = 0;
  report_ended(handled);
  write_dirty(handled);
  serve_events(handled);
  connector_.run_deadlines();
  resumer_.give_up_late(now);
  report_ended(handled);
  handled += connected_;
  connected_ = 0;
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
  return ended_.empty() &&
         std::ranges::none_of(classes_, [](const auto& state) { return state && !state->dirty.empty(); });
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

ports::FlowStats TcpTransport::stats(const ports::FlowKey& key) const {
  const auto flow = flows_.find(key);
  return flow == flows_.end() ? ports::FlowStats{} : flow->second->stats();
}

ports::FlowProgress TcpTransport::progress(const ports::FlowKey& key) const {
  const auto flow = flows_.find(key);
  return flow == flows_.end() ? ports::FlowProgress{} : flow->second->progress();
}

ports::TransportCounters TcpTransport::counters() const {
  ports::TransportCounters counters = connector_.counters();
  counters.payloads_dropped = payloads_dropped_;
  resumer_.count(counters);
  for (const auto& [key, flow] : flows_) counters.payloads_dropped += flow->payloads_dropped();
  return counters;
}

}  // namespace tensorlane::tcp
