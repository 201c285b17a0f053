#include "daemon/transport/local/local_transport.h"

#include <sodium.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "daemon/transport/local/transport_impl.h"

namespace tensorlane::local {
namespace {

// How often a busy lane looks for connections and ends.
constexpr Duration kLookInterval = microseconds(50);
// Flows of a class are read in one poll until so much has come: then the next class has its turn, and the lane gets to
// act on it. So a class that always has something keeps no other one unread.
constexpr std::uint64_t kReadPerClass = kBlockBytes;

}  // namespace

Result<std::unique_ptr<ports::Transport>> make_local_transport(const LocalConfig& config, ports::FrameSink& sink) {
  if (::sodium_init() < 0)
    return Status(Code::kInternal, "libsodium has no source of random numbers", "local transport");
  auto transport = std::make_unique<LocalTransport>(sink);
  TL_RETURN_IF_ERROR(transport->open(config));
  return std::unique_ptr<ports::Transport>(std::move(transport));
}

Status check_folder(const std::string& folder) {
  return handshake::check_own_folder(folder);
}

LocalTransport::LocalTransport(ports::FrameSink& sink)
    : sink_(sink), connector_(*this, {sizeof(Parameters), [](const ports::FlowKey&, const handshake::JobPtr&) {
                                        return std::make_unique<SegmentExchange>();
                                      }}) {}

Status LocalTransport::open(const LocalConfig& config) {
  TL_RETURN_IF_ERROR(check_folder(config.folder));
  payload_crc_ = config.payload_crc;
  read_peer_memory_ = config.read_peer_memory;
  handshake::ConnectorConfig connector{"local transport", config.listen_address, config.data_port, {}, config.folder};
  for (const LocalClass& c : config.classes) connector.listeners.push_back({c.tag, c.window});
  TL_RETURN_IF_ERROR(connector_.open(connector));
  for (const LocalClass& c : config.classes) {
    auto state = std::make_unique<ClassState>();
    state->share.window = c.window;
    classes_[handshake::service_order(c.tag.cls)] = std::move(state);
  }
  return {};
}

LocalTransport::ClassState* LocalTransport::find_class(ClassId cls) const {
  const std::size_t position = handshake::service_order(cls);
  return position < classes_.size() ? classes_[position].get() : nullptr;
}

// ---- what the lane asks for ----

void LocalTransport::remove_job(JobId job) {
  std::vector<ports::FlowKey> keys;
  for (const auto& [key, flow] : flows_) {
    if (key.job == job) keys.push_back(key);
  }
  for (const ports::FlowKey& key : keys) close(key);
  for (const ports::FlowKey& key : connector_.remove_job(job)) ended_.push_back({key, {}});
}

Status LocalTransport::connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                               Time deadline) {
  return connector_.dial(flow, address, data_port, deadline, flows_.contains(flow));
}

void LocalTransport::close(const ports::FlowKey& key) {
  if (const auto flow = flows_.find(key); flow != flows_.end()) {
    end_flow(*flow->second, {});
  } else if (connector_.cancel(key)) {
    ended_.push_back({key, {}});
  }
}

bool LocalTransport::writable(const ports::FlowKey& key) const {
  const auto flow = flows_.find(key);
  return flow != flows_.end() && flow->second->writable();
}

void LocalTransport::send(const ports::FlowKey& key, const ports::Outgoing& operation) {
  const auto flow = flows_.find(key);
  TL_ASSERT(flow != flows_.end());
  flow->second->enqueue(operation, payload_crc_);
  queued_ = true;
}

Bytes LocalTransport::in_flight(ClassId cls) {
  const ClassState* state = find_class(cls);
  return Bytes(state == nullptr ? 0 : state->share.in_flight);
}

ports::FlowStats LocalTransport::stats(const ports::FlowKey& key) const {
  const auto flow = flows_.find(key);
  return flow == flows_.end() ? ports::FlowStats{} : flow->second->stats();
}

ports::FlowProgress LocalTransport::progress(const ports::FlowKey& key) const {
  const auto flow = flows_.find(key);
  return flow == flows_.end() ? ports::FlowProgress{} : flow->second->progress();
}

ports::TransportCounters LocalTransport::counters() const {
  ports::TransportCounters counters = counters_;
  counters.accepted = connector_.counters().accepted;
  counters.refused = connector_.counters().refused;
  counters.unauthenticated_dropped = connector_.counters().unauthenticated_dropped;
  return counters;
}

// ---- the loop ----

std::size_t LocalTransport::poll(Time now) {
  now_ = now;
  connector_.begin(now);
  connector_.waker().clear_kick();
  std::size_t handled = 0;
  report_ended(handled);
  write_flows(handled);
  read_flows(handled);
  if (armed_ || now_ >= next_look_) {
    if (armed_) {
      for (const auto& [key, flow] : flows_) flow->disarm();
    }
    armed_ = false;
    // Where there was something, a handshake may be going on, and its next step is near.
    next_look_ = look_at_descriptors() ? now_ : now_ + kLookInterval;
  }
  connector_.run_deadlines();
  if (queued_) write_flows(handled);
  report_ended(handled);
  handled += connected_;
  connected_ = 0;
  connector_.end();
  return handled;
}

void LocalTransport::flush() {
  std::size_t handled = 0;
  if (queued_) write_flows(handled);
}

bool LocalTransport::arm() {
  if (!ended_.empty() || queued_) return false;
  armed_ = true;
  for (const auto& [key, flow] : flows_) {
    if (!flow->arm()) return false;
  }
  if (connector_.next_deadline() != handshake::Connector::never())
    connector_.waker().wake_at(now_, connector_.next_deadline());
  return true;
}

const std::vector<Flow*>& LocalTransport::turns(ClassState& state) {
  turns_ = state.flows;
  if (!turns_.empty()) {
    state.first = (state.first + 1) % turns_.size();
    std::rotate(turns_.begin(), turns_.begin() + static_cast<std::ptrdiff_t>(state.first), turns_.end());
  }
  return turns_;
}

void LocalTransport::write_flows(std::size_t& handled) {
  queued_ = false;  // callbacks may queue more: that is for the next time
  for (const auto& state : classes_) {
    if (!state) continue;
    for (Flow* flow : turns(*state)) {
      if (flow->gone) continue;
      Status status = flow->write(sink_, handled);
      if (!status.ok() && !flow->gone) end_flow(*flow, std::move(status));
    }
  }
}

void LocalTransport::read_flows(std::size_t& handled) {
  for (const auto& state : classes_) {
    if (!state) continue;
    std::uint64_t moved = 0;
    for (Flow* flow : turns(*state)) {
      if (flow->gone) continue;
      if (moved >= kReadPerClass) break;
      Status status = flow->read(sink_, moved, handled);
      if (!status.ok() && !flow->gone) end_flow(*flow, std::move(status));
    }
  }
}

bool LocalTransport::look_at_descriptors() {
  const std::span<const epoll_event> ready = connector_.ready();
  for (const epoll_event& event : ready) {
    auto* object = static_cast<handshake::Watched*>(event.data.ptr);
    if (object->gone) continue;
    if (object->kind == handshake::Watched::Kind::kFlow) {
      static_cast<Flow&>(*object).look_at_socket();
    } else {
      connector_.serve(event);
    }
  }
  return !ready.empty();
}

// ---- how flows begin and end ----

void LocalTransport::on_connected(handshake::Connection& connection) {
  const ports::FlowKey key = connection.key();
  const Result<PeerProcess> process = peer_process(connection.fd());
  if (!process.ok()) {
    spdlog::warn(process.status().to_string());
    if (connection.connecting_end()) ended_.push_back({key, process.status()});
    return;
  }
  if (const auto old = flows_.find(key); old != flows_.end()) {
    // The peer has lost its end of the old one before we have, or has started again. It has proved itself, so the new
    // one counts.
    end_flow(*old->second, old->second->broken(Code::kUnavailable, connection.replaces()));
    report_ended(connected_);
  }
  const std::unique_ptr<handshake::Exchange> exchanged = connection.take_exchange();
  auto& exchange = static_cast<SegmentExchange&>(*exchanged);
  ClassState& state = *find_class(key.cls);
  Flow::Ends ends{connection.take_socket(), exchange.take_segment(), connection.connecting_end(), {}};
  if (read_peer_memory_) ends.peer = PeerMemory(*process, exchange.peer_probe());
  auto flow = std::make_unique<Flow>(key, connection.job(), std::move(ends), state.share, counters_);
  connector_.watch(*flow, flow->fd(), EPOLLIN, true);
  state.flows.push_back(flow.get());
  flows_[key] = std::move(flow);
  ++connected_;
  sink_.on_flow_up(key);
}

void LocalTransport::end_flow(Flow& flow, Status cause) {
  const auto found = flows_.find(flow.key());
  TL_ASSERT(found != flows_.end() && found->second.get() == &flow);
  flow.gone = true;
  flow.stop();
  std::erase(find_class(flow.key().cls)->flows, &flow);
  ended_.push_back({flow.key(), std::move(cause)});
  connector_.delete_later(std::move(found->second));
  flows_.erase(found);
  connector_.waker().kick();
}

void LocalTransport::report_ended(std::size_t& handled) {
  while (!ended_.empty()) {
    std::vector<Ended> batch;
    batch.swap(ended_);
    for (const Ended& ended : batch) {
      ++handled;
      sink_.on_flow_down(ended.key, ended.cause);
    }
  }
}

}  // namespace tensorlane::local
