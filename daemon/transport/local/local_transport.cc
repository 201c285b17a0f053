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

Result<std::unique_ptr<ports::Transport>> make_local_transport(const LocalConfig& config, ports::FlowOwner& owner) {
  if (::sodium_init() < 0)
    return Status(Code::kInternal, "libsodium has no source of random numbers", "local transport");
  auto transport = std::make_unique<LocalTransport>(owner);
  TL_RETURN_IF_ERROR(transport->open(config));
  return std::unique_ptr<ports::Transport>(std::move(transport));
}

Status check_folder(const std::string& folder) {
  return handshake::check_own_folder(folder);
}

LocalTransport::LocalTransport(ports::FlowOwner& owner)
    : connector_(*this,
                 {sizeof(Parameters),
                  [](const ports::FlowKey&, const handshake::JobPtr&) { return std::make_unique<SegmentExchange>(); }}),
      flows_(owner, connector_) {}

Status LocalTransport::open(const LocalConfig& config) {
  TL_RETURN_IF_ERROR(check_folder(config.folder));
  read_peer_memory_ = config.read_peer_memory;
  handshake::ConnectorConfig connector{"local transport", config.listen_address, config.data_port, {}, config.folder};
  for (const LocalClass& c : config.classes) connector.listeners.push_back({c.tag, c.window});
  TL_RETURN_IF_ERROR(connector_.open(connector));
  for (const LocalClass& c : config.classes) {
    ClassShare& share = classes_.add(c.tag.cls, std::make_unique<ClassShare>());
    share.window = c.window;
    share.payload_crc = config.payload_crc;
  }
  return {};
}

// ---- what the lane asks for ----

void LocalTransport::remove_job(JobId job) {
  flows_.remove_job(job, [this](Flow& flow) { end_flow(flow, {}); });
}

Status LocalTransport::connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                               Time deadline) {
  return connector_.dial(flow, address, data_port, deadline, flows_.find(flow) != nullptr);
}

void LocalTransport::close(const ports::FlowKey& key) {
  if (Flow* flow = flows_.find(key)) {
    end_flow(*flow, {});
  } else if (connector_.cancel(key)) {
    flows_.end(key, {});
  }
}

Bytes LocalTransport::in_flight(ClassId cls) {
  const ClassShare* share = classes_.find(cls);
  return Bytes(share == nullptr ? 0 : share->in_flight);
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
  std::size_t handled = flows_.report();
  write_flows(handled);
  read_flows(handled);
  if (armed_ || now_ >= next_look_) {
    if (armed_) {
      classes_.each([](const ClassShare& share) {
        for (Flow* flow : share.flows) flow->disarm();
      });
    }
    armed_ = false;
    // Where there was something, a handshake may be going on, and its next step is near.
    next_look_ = look_at_descriptors() ? now_ : now_ + kLookInterval;
  }
  connector_.run_deadlines();
  if (queued()) write_flows(handled);
  handled += flows_.report();
  connector_.end();
  return handled;
}

void LocalTransport::flush() {
  std::size_t handled = 0;
  if (queued()) write_flows(handled);
}

bool LocalTransport::arm() {
  if (!flows_.quiet() || queued()) return false;
  armed_ = true;
  bool quiet = true;
  classes_.each([&](const ClassShare& share) {
    quiet = quiet && std::ranges::all_of(share.flows, [](Flow* flow) { return flow->arm(); });
  });
  if (!quiet) return false;
  if (connector_.next_deadline() != handshake::Connector::never())
    connector_.waker().wake_at(now_, connector_.next_deadline());
  return true;
}

const std::vector<Flow*>& LocalTransport::turns(ClassShare& share) {
  turns_ = share.flows;
  if (!turns_.empty()) {
    share.first = (share.first + 1) % turns_.size();
    std::rotate(turns_.begin(), turns_.begin() + static_cast<std::ptrdiff_t>(share.first), turns_.end());
  }
  return turns_;
}

bool LocalTransport::queued() const {
  bool any = false;
  classes_.each([&](const ClassShare& share) { any = any || share.queued; });
  return any;
}

void LocalTransport::write_flows(std::size_t& handled) {
  // Callbacks may queue more: that is for the next time.
  classes_.each([](ClassShare& share) { share.queued = false; });
  classes_.each([&](ClassShare& share) {
    for (Flow* flow : turns(share)) {
      if (flow->gone) continue;
      Status status = flow->write(handled);
      if (!status.ok() && !flow->gone) end_flow(*flow, std::move(status));
    }
  });
}

void LocalTransport::read_flows(std::size_t& handled) {
  classes_.each([&](ClassShare& share) {
    std::uint64_t moved = 0;
    for (Flow* flow : turns(share)) {
      if (flow->gone) continue;
      if (moved >= kReadPerClass) break;
      Status status = flow->read(moved, handled);
      if (!status.ok() && !flow->gone) end_flow(*flow, std::move(status));
    }
  });
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
    if (connection.connecting_end()) flows_.end(key, process.status());
    return;
  }
  if (Flow* old = flows_.find(key)) {
    // The peer has lost its end of the old one before we have, or has started again. It has proved itself, so the new
    // one counts.
    end_flow(*old, old->broken(Code::kUnavailable, connection.replaces()));
  }
  const std::unique_ptr<handshake::Exchange> exchanged = connection.take_exchange();
  auto& exchange = static_cast<SegmentExchange&>(*exchanged);
  ClassShare& share = *classes_.find(key.cls);
  Flow::Ends ends{connection.take_socket(), exchange.take_segment(), connection.connecting_end(), {}};
  if (read_peer_memory_) ends.peer = PeerMemory(*process, exchange.peer_probe());
  auto flow = std::make_unique<Flow>(key, connection.job(), std::move(ends), share, counters_);
  connector_.watch(*flow, flow->fd(), EPOLLIN, true);
  share.flows.push_back(flow.get());
  flows_.add(std::move(flow));
}

void LocalTransport::end_flow(Flow& flow, Status cause) {
  std::unique_ptr<Flow> owned = flows_.take(flow);
  flow.stop();
  std::erase(classes_.find(flow.key().cls)->flows, &flow);
  flows_.end(std::move(owned), std::move(cause));
}

}  // namespace tensorlane::local
