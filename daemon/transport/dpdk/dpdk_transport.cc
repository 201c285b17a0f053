#include "daemon/transport/dpdk/dpdk_transport.h"

#include <fmt/format.h>
#include <sodium.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>

#include <algorithm>

#include "daemon/transport/dpdk/transport_impl.h"

namespace tensorlane::dpdk {
namespace {

// Little, so that a class that has become urgent waits for little (tests/simulation/datagram/incast_test.cc).
constexpr Bytes kCreditAtOnce = kib(8);

}  // namespace

Result<std::unique_ptr<ports::Transport>> make_dpdk_transport(const DpdkConfig& config,
                                                              std::unique_ptr<PacketPort> port,
                                                              ports::FlowOwner& owner) {
  if (::sodium_init() < 0)
    return Status(Code::kInternal, "libsodium has no source of random numbers", "dpdk transport");
  const handshake::Protection protection{config.protection,
                                         config.ciphers != 0 ? config.ciphers : protect::ciphers_here()};
  auto transport = std::make_unique<DpdkTransport>(protection, std::move(port), config, owner);
  TL_RETURN_IF_ERROR(transport->open(config));
  return std::unique_ptr<ports::Transport>(std::move(transport));
}

DpdkTransport::DpdkTransport(const handshake::Protection& protection, std::unique_ptr<PacketPort> port,
                             const DpdkConfig& config, ports::FlowOwner& owner)
    : port_(std::move(port)),
      detection_(config.detection),
      credits_({.window = config.credit_window, .unasked = kUnasked, .quantum = kCreditAtOnce}),
      connector_(*this, {sizeof(Parameters),
                         [this](const ports::FlowKey& key, const handshake::JobPtr&) { return make_exchange(key); }, 0,
                         protection}),
      flows_(owner, connector_) {}

Status DpdkTransport::open(const DpdkConfig& config) {
  if (config.classes.size() != port_->queues()) {
    return {Code::kInvalidArgument,
            fmt::format("{} classes and {} transmit queues", config.classes.size(), port_->queues()), "dpdk transport",
            "give the port a queue for each class"};
  }
  handshake::ConnectorConfig connector{"dpdk transport", config.listen_address, config.data_port, {}};
  for (const DpdkClass& c : config.classes) connector.listeners.push_back({c.tag, kib(64)});
  TL_RETURN_IF_ERROR(connector_.open(connector));
  for (std::size_t i = 0; i < config.classes.size(); ++i) {
    ClassShare& share = classes_.add(config.classes[i].tag.cls, std::make_unique<ClassShare>());
    share.tag = config.classes[i].tag;
    share.queue = i;
    share.window = config.classes[i].window;
    share.payload_crc = config.payload_crc;
  }
  std::vector<ClassId> of_queues;
  for (const DpdkClass& c : config.classes) of_queues.push_back(c.tag.cls);
  report_.open(*port_, config.metrics, std::move(of_queues));
  for (const int fd : port_->wake_descriptors()) {
    wake_marks_.push_back(std::make_unique<handshake::Watched>(handshake::Watched::Kind::kDevice));
    if (!connector_.watch(*wake_marks_.back(), fd, EPOLLIN, false))
      return {Code::kResourceExhausted, "cannot watch the port's interrupts", port_->config().device,
              "raise the limit of open files"};
  }
  return {};
}

// ---- what the lane asks for ----

void DpdkTransport::add_job(const ports::JobCredentials& credentials) {
  connector_.add_job(credentials);
}

void DpdkTransport::remove_job(JobId job) {
  flows_.remove_job(job, [this](Flow& flow) { end_flow(flow, {}); });
}

Status DpdkTransport::connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                              Time deadline) {
  return connector_.dial(flow, address, data_port, deadline, flows_.find(flow) != nullptr);
}

void DpdkTransport::close(const ports::FlowKey& key) {
  if (Flow* flow = flows_.find(key)) {
    end_flow(*flow, {});
  } else if (connector_.cancel(key)) {
    flows_.end(key, {});
  }
}

Bytes DpdkTransport::in_flight(ClassId cls) {
  const ClassShare* share = classes_.find(cls);
  return Bytes(share == nullptr ? 0 : share->in_flight);
}

std::unique_ptr<handshake::Exchange> DpdkTransport::make_exchange(const ports::FlowKey& key) {
  settling_[key] = now_ + kSettling;
  return std::make_unique<WayExchange>(numbers_, *port_);
}

ports::TransportCounters DpdkTransport::counters() const {
  ports::TransportCounters counters = connector_.counters();
  counters.payloads_dropped = payloads_dropped_;
  flows_.each([&](const Flow& flow) { counters.payloads_dropped += flow.payloads_dropped(); });
  return counters;
}

// ---- the loop ----

std::size_t DpdkTransport::poll(Time now) {
  now_ = now;
  connector_.begin(now);
  connector_.waker().clear_kick();
  std::size_t handled = flows_.report();
  report_.turn(now, packets_ > 0 && !armed_);
  packets_ = 0;
  release(handled);
  receive(handled);
  run_timers();
  credits_.give(now);
  write();
  if (armed_ || now_ >= next_look_) {
    armed_ = false;
    next_look_ = now_ + kLookInterval;
    look_at_descriptors();
    settle_exchanges();
  }
  connector_.run_deadlines();
  handled += flows_.report();
  connector_.end();
  rest_ = idle_.rest(now_, packets_);
  // Handshakes are TCP, which wakes: before a flow there is nothing but questions for this host's address.
  if (rest_.value > 0 && flows_.empty() && settling_.empty()) rest_ = kRestWithoutFlows;
  if (report_.due(now_)) publish();
  look_at_link();
  return handled;
}

void DpdkTransport::look_at_link() {
  const bool up = port_->link().up;
  if (std::exchange(linked_, up) == up) return;
  if (up)
    spdlog::info("the link of port {} is up", port_->config().device);
  else
    spdlog::warn("the link of port {} is down: look at its cable, or set its interface up", port_->config().device);
}

void DpdkTransport::publish() {
  datagram::AssociationCounters packets = packets_ended_;
  flows_.each([&](const Flow& flow) { packets += flow.packets(); });
  report_.publish(now_, packets, strangers_);
}

void DpdkTransport::flush() {
  write();
}

bool DpdkTransport::arm() {
  bool quiet = flows_.quiet() && acks_.empty() && rest_.value > 0;
  classes_.each([&](const ClassShare& share) { quiet = quiet && share.dirty.empty(); });
  if (!quiet) return false;
  // An interrupt ends the rest, too; what came before it was armed is seen by the next poll.
  if (!wake_marks_.empty() && idle_.may_block() && !std::exchange(interrupts_, true)) {
    port_->arm(true);
    return false;
  }
  drop_old_timers();
  Time due = connector_.next_deadline();
  due = std::min(due, now_ + (interrupts_ ? kRestWithInterrupts : rest_));
  if (!settling_.empty()) due = std::min(due, now_ + kLookInterval);
  if (!timers_.empty()) due = std::min(due, timers_.top().at);
  if (const auto credit = credits_.deadline()) due = std::min(due, *credit);
  connector_.waker().wake_at(now_, due);
  armed_ = true;
  return true;
}

}  // namespace tensorlane::dpdk
