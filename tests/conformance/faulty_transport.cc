#include "faulty_transport.h"

#include <utility>

namespace tensorlane::conformance {
namespace {

constexpr std::size_t kHeldOperations = 16;  // of a flow

}  // namespace

Status FaultyTransport::open(const TransportKind& kind, const HostOptions& options, std::uint16_t data_port) {
  TL_ASSIGN_OR_RETURN(inner_, kind.make(options, data_port, *this));
  return {};
}

// ---- faults ----

void FaultyTransport::ask(Fault fault, Moment at) {
  asked_ = Asked{fault, at};
  if (at.count > 0) return;
  TL_ASSERT(fault != Fault::kCut);
  strike(fault, nullptr);
}

void FaultyTransport::count(Moment::Of of, const ports::FlowKey* flow) {
  if (asked_ && asked_->at.of == of && --asked_->at.count == 0) strike(asked_->fault, flow);
}

void FaultyTransport::strike(Fault fault, const ports::FlowKey* flow) {
  asked_.reset();
  if (fault == Fault::kCut) {
    TL_ASSERT(flow != nullptr);
    return close(ports::FlowKey(*flow));
  }
  if (fault == Fault::kFreeze) {
    frozen_ = true;
    return;
  }
  dying_ = true;
  if (!polling_) inner_.reset();
}

std::size_t FaultyTransport::poll(Time now) {
  if (!inner_ || frozen_) return 0;
  ++polls_;
  polling_ = true;
  release_held();
  const std::size_t handled = inner_->poll(now);
  count(Moment::Of::kPoll, nullptr);
  polling_ = false;
  if (dying_) inner_.reset();
  return handled;
}

void FaultyTransport::flush() {
  if (!inner_ || frozen_) return;
  polling_ = true;
  inner_->flush();
  polling_ = false;
  if (dying_) inner_.reset();
}

void FaultyTransport::release_held() {
  for (auto& [flow, held] : held_) {
    while (!held.empty() && held.front().due <= polls_ && inner_->writable(flow)) {
      inner_->send(flow, held.front().operation);
      held.pop_front();
    }
  }
}

// ---- what the host asks for ----

void FaultyTransport::add_job(const ports::JobCredentials& credentials) {
  if (inner_) inner_->add_job(credentials);
}
void FaultyTransport::remove_job(JobId job) {
  std::erase_if(held_, [job](const auto& held) { return held.first.job == job; });
  if (inner_) inner_->remove_job(job);
}
Status FaultyTransport::connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                                Time deadline) {
  return inner_ ? inner_->connect(flow, address, data_port, deadline) : Status();
}
void FaultyTransport::close(const ports::FlowKey& flow) {
  held_.erase(flow);
  if (inner_) inner_->close(flow);
}
Status FaultyTransport::map(JobId job, std::span<std::byte> bytes) {
  return inner_ ? inner_->map(job, bytes) : Status();
}
void FaultyTransport::unmap(JobId job, std::span<std::byte> bytes) {
  if (inner_) inner_->unmap(job, bytes);
}

void FaultyTransport::unmap(JobId job) {
  if (inner_) inner_->unmap(job);
}

bool FaultyTransport::writable(const ports::FlowKey& flow) const {
  if (!inner_ || dying_ || frozen_ || !inner_->writable(flow)) return false;
  const auto held = held_.find(flow);
  return held == held_.end() || held->second.size() < kHeldOperations;
}

void FaultyTransport::send(const ports::FlowKey& flow, const ports::Outgoing& operation) {
  if (!inner_) return;
  if (slow_ == 0) return inner_->send(flow, operation);
  TL_ASSERT(operation.places.empty());  // they are not there any more when it is its turn
  held_[flow].push_back({operation, polls_ + 1 + random_() % slow_});
}

Bytes FaultyTransport::in_flight(ClassId cls) {
  if (!inner_) return {};
  Bytes all = inner_->in_flight(cls);
  for (const auto& [flow, held] : held_) {
    for (const Held& h : held) {
      if (flow.cls == cls) all += Bytes(protocol::kFrameHeaderBytes + h.operation.payload.size());
    }
  }
  return all;
}

bool FaultyTransport::arm() {
  for (const auto& [flow, held] : held_) {
    if (!held.empty()) return false;
  }
  return !inner_ || inner_->arm();
}
ports::FlowStats FaultyTransport::stats(const ports::FlowKey& flow) const {
  return inner_ ? inner_->stats(flow) : ports::FlowStats{};
}
ports::TransportCounters FaultyTransport::counters() const {
  return inner_ ? inner_->counters() : ports::TransportCounters{};
}

// ---- what the transport says; a process that dies hears nothing more ----

Result<std::span<std::byte>> FaultyTransport::on_header(const ports::FlowKey& flow,
                                                        const protocol::FrameHeader& header) {
  if (dying_) return std::span<std::byte>();
  return sink_.on_header(flow, header);
}
void FaultyTransport::on_frame(const ports::FlowKey& flow, const protocol::FrameHeader& header) {
  if (dying_) return;
  sink_.on_frame(flow, header);
  count(Moment::Of::kReceived, &flow);
}
void FaultyTransport::on_sent(const ports::FlowKey& flow, std::uint64_t token) {
  if (dying_) return;
  sink_.on_sent(flow, token);
  count(Moment::Of::kSent, &flow);
}
void FaultyTransport::on_flow_up(const ports::FlowKey& flow) {
  if (!dying_) sink_.on_flow_up(flow);
}
void FaultyTransport::on_flow_down(const ports::FlowKey& flow, const Status& cause) {
  held_.erase(flow);
  if (!dying_) sink_.on_flow_down(flow, cause);
}

TransportKind faulty(const TransportKind& kind) {
  TransportKind wrapped = kind;
  wrapped.make = [kind](const HostOptions& options, std::uint16_t data_port,
                        ports::FrameSink& sink) -> Result<std::unique_ptr<ports::Transport>> {
    auto made = std::make_unique<FaultyTransport>(sink);
    TL_RETURN_IF_ERROR(made->open(kind, options, data_port));
    return std::unique_ptr<ports::Transport>(std::move(made));
  };
  return wrapped;
}

FaultyTransport& faults(Host& host) {
  return static_cast<FaultyTransport&>(*host.transport);
}

}  // namespace tensorlane::conformance
