#include "daemon/transport/rdma/rdma_transport.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sodium.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "daemon/transport/rdma/cm_connector.h"
#include "daemon/transport/rdma/transport_impl.h"
#include "daemon/transport/rdma/verbs_connector.h"

namespace tensorlane::rdma {
namespace {

// How often a busy lane looks for connections, ends and events of the device.
constexpr Duration kLookInterval = milliseconds(1);

DeviceChoice choice_of(const RdmaConfig& config) {
  return {config.device, config.port, config.gid_index, config.address};
}

struct Nobody final : PairEvents {
  void on_moved(const ports::FlowKey& /*flow*/) override {}
  void on_request_refused(const Status& /*cause*/) override {}
};

}  // namespace

Result<std::unique_ptr<ports::Transport>> make_rdma_transport(const RdmaConfig& config, ports::FlowOwner& owner) {
  if (::sodium_init() < 0)
    return Status(Code::kInternal, "libsodium has no source of random numbers", "rdma transport");
  auto transport = std::make_unique<RdmaTransport>(owner);
  TL_RETURN_IF_ERROR(transport->open(config));
  return std::unique_ptr<ports::Transport>(std::move(transport));
}

Result<std::string> explain_device(const RdmaConfig& config) {
  TL_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, Device::open(choice_of(config)));
  Nobody nobody;
  if (config.connect_by == ConnectBy::kCm) TL_RETURN_IF_ERROR(CmConnector::open(*device, nobody).status());
  return fmt::format("{}, {}", device->describe(), device->marks(config.connect_by));
}

RdmaTransport::RdmaTransport(ports::FlowOwner& owner)
    : connector_(*this,
                 {sizeof(Parameters),
                  [this](const ports::FlowKey& key, const handshake::JobPtr& job) { return make_exchange(key, *job); },
                  sizeof(resume::FlowParameters)}),
      resumer_(connector_, *this),
      flows_(owner, connector_) {}

Status RdmaTransport::open(const RdmaConfig& config) {
  if (config.queue_pairs < 1 || config.queue_pairs > kMaxQueuePairs) {
    return {Code::kInvalidArgument, fmt::format("a flow of {} queue pairs", config.queue_pairs), "rdma transport",
            fmt::format("set `rdma: queue_pairs` to 1 to {}", kMaxQueuePairs)};
  }
  queue_pairs_ = config.queue_pairs;
  detection_ = config.detection;
  retries_ = config.retry.value > 0 ? retries_for(config.retry) : retries_beyond(config.detection);
  TL_ASSIGN_OR_RETURN(device_, Device::open(choice_of(config)));
  channel_.reset(ibv_create_comp_channel(device_->context()));
  if (!channel_) {
    return {Code::kResourceExhausted, "cannot make a completion channel: " + handshake::errno_text(errno),
            device_->name(), "raise the limit of open files"};
  }
  ::fcntl(channel_->fd, F_SETFL, ::fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
  handshake::ConnectorConfig connector{"rdma transport", config.listen_address, config.data_port, {}};
  for (const RdmaClass& c : config.classes) connector.listeners.push_back({c.tag, kib(64)});
  TL_RETURN_IF_ERROR(connector_.open(connector));
  for (const RdmaClass& c : config.classes) {
    ClassShare& share = classes_.add(c.tag.cls, std::make_unique<ClassShare>());
    share.tag = c.tag;
    share.payload_crc = config.payload_crc;
    TL_ASSIGN_OR_RETURN(share.completions, CompletionQueue::create(*device_, channel_.get()));
  }
  if (!connector_.watch(channel_mark_, channel_->fd, EPOLLIN, false) ||
      !connector_.watch(device_mark_, device_->context()->async_fd, EPOLLIN, false)) {
    return {Code::kResourceExhausted, "cannot watch the RDMA device: " + handshake::errno_text(errno), device_->name()};
  }
  return open_connector(config.connect_by);
}

Status RdmaTransport::open_connector(ConnectBy by) {
  if (by == ConnectBy::kVerbs) {
    TL_ASSIGN_OR_RETURN(pair_connector_, VerbsConnector::open(*device_, *this));
  } else {
    TL_ASSIGN_OR_RETURN(pair_connector_, CmConnector::open(*device_, *this));
  }
  if (connector_.watch(connector_mark_, pair_connector_->fd(), EPOLLIN, false)) return {};
  return {Code::kResourceExhausted, "cannot watch what connects queue pairs: " + handshake::errno_text(errno),
          device_->name()};
}

// ---- jobs and their memory ----

void RdmaTransport::add_job(const ports::JobCredentials& credentials) {
  connector_.add_job(credentials);
}

void RdmaTransport::remove_job(JobId job) {
  flows_.remove_job(job, [this](Flow& flow) { end_flow(flow, {}); });
  std::erase_if(places_, [job](const auto& entry) { return entry.first.first == job; });
  resumer_.forget_job(job);
}

Result<std::shared_ptr<Registrations>> RdmaTransport::registrations(JobId job) {
  const auto found = registrations_.find(job);
  if (found != registrations_.end()) return found->second;
  TL_ASSIGN_OR_RETURN(std::shared_ptr<Registrations> made, Registrations::create(*device_));
  registrations_[job] = made;
  return made;
}

Status RdmaTransport::map(JobId job, std::span<std::byte> bytes) {
  TL_ASSIGN_OR_RETURN(const std::shared_ptr<Registrations> registered, registrations(job));
  return registered->map(bytes);
}

Status RdmaTransport::map(JobId job, const ports::DeviceMemory& memory) {
  TL_ASSIGN_OR_RETURN(const std::shared_ptr<Registrations> registered, registrations(job));
  return registered->map(memory);
}

void RdmaTransport::unmap(JobId job) {
  const auto found = registrations_.find(job);
  if (found == registrations_.end()) return;
  // Whatever still holds the domain (a handshake under way) finds no memory in it.
  found->second->clear();
  registrations_.erase(found);
}

void RdmaTransport::unmap(JobId job, std::span<std::byte> bytes) {
  const auto found = registrations_.find(job);
  if (found != registrations_.end()) found->second->unmap(bytes);
}

std::shared_ptr<PlaceTable> RdmaTransport::places(JobId job, HostIndex peer) {
  std::weak_ptr<PlaceTable>& known = places_[{job, peer}];
  std::shared_ptr<PlaceTable> table = known.lock();
  if (!table) known = table = std::make_shared<PlaceTable>();
  return table;
}

std::unique_ptr<handshake::Exchange> RdmaTransport::make_exchange(const ports::FlowKey& key,
                                                                  const handshake::Job& job) {
  ClassShare& share = *classes_.find(key.cls);
  std::optional<resume::FlowExchange> flow;
  if (job.resume_within().value > 0) flow.emplace(key, resumer_);
  return std::make_unique<PairExchange>(PairExchange::Context{*device_, *share.completions, pairs_, *pair_connector_},
                                        key, registrations(key.job), share.tag, retries_, queue_pairs_, flow);
}

// ---- flows ----

Status RdmaTransport::connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                              Time deadline) {
  TL_RETURN_IF_ERROR(connector_.dial(flow, address, data_port, deadline, flows_.find(flow) != nullptr));
  resumer_.note_place(flow, address, data_port);
  return {};
}

void RdmaTransport::close(const ports::FlowKey& key) {
  if (Flow* flow = flows_.find(key)) {
    end_flow(*flow, {}, false);
  } else if (connector_.cancel(key)) {
    resumer_.forget(key);
    flows_.end(key, {});
  } else {
    // It ends already; then at least nothing more of it is delivered.
    for (Closing& closing : closing_) {
      if (closing.flow->key() == key) closing.flow->stop();
    }
  }
}

Bytes RdmaTransport::in_flight(ClassId cls) {
  const ClassShare* share = classes_.find(cls);
  return Bytes(share == nullptr ? 0 : share->in_flight);
}

// ---- the loop ----

std::size_t RdmaTransport::poll(Time now) {
  now_ = now;
  connector_.begin(now);
  connector_.waker().clear_kick();
  std::size_t handled = flows_.report();
  write_dirty();
  classes_.each([&](ClassShare& share) { serve_completions(share, handled); });
  if (armed_ || now_ >= next_look_) {
    armed_ = false;
    next_look_ = now_ + kLookInterval;
    look_at_descriptors();
  }
  connector_.run_deadlines();
  finish_draining();
  resumer_.give_up_late(now);
  finish_closing(false);
  write_dirty();
  handled += flows_.report();
  connector_.end();
  return handled;
}

void RdmaTransport::flush() {
  write_dirty();
}

bool RdmaTransport::arm() {
  bool quiet = flows_.quiet();
  classes_.each([&](ClassShare& share) { quiet = quiet && share.dirty.empty() && share.completions->arm(); });
  if (!quiet) return false;
  Time due = std::min(connector_.next_deadline(), resumer_.next_deadline());
  for (const Closing& closing : closing_) due = std::min(due, closing.deadline);
  if (due != handshake::Connector::never()) connector_.waker().wake_at(now_, due);
  armed_ = true;
  return true;
}

ports::TransportCounters RdmaTransport::counters() const {
  ports::TransportCounters counters = counters_;
  counters.accepted = connector_.counters().accepted;
  counters.refused += connector_.counters().refused;  // beside requests of rdma_cm
  counters.unauthenticated_dropped = connector_.counters().unauthenticated_dropped;
  resumer_.count(counters);
  return counters;
}

}  // namespace tensorlane::rdma
