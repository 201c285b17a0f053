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
  for (auto& [key, line] : lines_) {
    while (!line->held.empty() && line->held.front().due <= polls_ && line->inner.writable()) {
      line->inner.send(line->held.front().operation);
      line->held.pop_front();
    }
  }
}

// ---- what the host asks for ----

void FaultyTransport::add_job(const ports::JobCredentials& credentials) {
  if (inner_) inner_->add_job(credentials);
}
void FaultyTransport::remove_job(JobId job) {
  for (auto& [key, line] : lines_) {
    if (key.job == job) line->held.clear();
  }
  if (inner_) inner_->remove_job(job);
}
Status FaultyTransport::connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                                Time deadline) {
  return inner_ ? inner_->connect(flow, address, data_port, deadline) : Status();
}
void FaultyTransport::close(const ports::FlowKey& flow) {
  if (const auto line = lines_.find(flow); line != lines_.end()) line->second->held.clear();
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

bool FaultyTransport::Line::writable() const {
  return of.inner_ && !of.dying_ && !of.frozen_ && inner.writable() && held.size() < kHeldOperations;
}

void FaultyTransport::Line::send(const ports::Outgoing& operation) {
  if (!of.inner_) return;
  if (of.slow_ == 0) return inner.send(operation);
  held.push_back({operation, of.polls_ + 1 + of.random_() % of.slow_});
}

Bytes FaultyTransport::in_flight(ClassId cls) {
  if (!inner_) return {};
  Bytes all = inner_->in_flight(cls);
  for (const auto& [key, line] : lines_) {
    for (const Held& h : line->held) {
      if (key.cls == cls) all += Bytes(protocol::kFrameHeaderBytes + h.operation.payload.size());
    }
  }
  return all;
}

bool FaultyTransport::arm() {
  for (const auto& [key, line] : lines_) {
    if (!line->held.empty()) return false;
  }
  return !inner_ || inner_->arm();
}
ports::TransportCounters FaultyTransport::counters() const {
  return inner_ ? inner_->counters() : ports::TransportCounters{};
}

// ---- what the transport says; a process that dies hears nothing more ----

Result<std::span<std::byte>> FaultyTransport::Line::on_header(const protocol::FrameHeader& header) {
  if (of.dying_) return std::span<std::byte>();
  return sink->on_header(header);
}
void FaultyTransport::Line::on_frame(const protocol::FrameHeader& header) {
  if (of.dying_) return;
  sink->on_frame(header);
  of.count(Moment::Of::kReceived, &key);
}
void FaultyTransport::Line::on_sent(std::uint64_t token) {
  if (of.dying_) return;
  sink->on_sent(token);
  of.count(Moment::Of::kSent, &key);
}
ports::FrameSink& FaultyTransport::on_flow_up(const ports::FlowKey& key, ports::Flow& flow) {
  Line& line = *(lines_[key] = std::make_unique<Line>(*this, key, flow));
  if (!dying_) line.sink = &owner_.on_flow_up(key, line);
  return line;
}
void FaultyTransport::on_flow_resumed(const ports::FlowKey& key, const ports::Flow&) {
  if (!dying_) owner_.on_flow_resumed(key, *lines_.at(key));
}
void FaultyTransport::on_flow_down(const ports::FlowKey& key, const Status& cause) {
  if (dying_) return;  // the owner may still ask its flow
  owner_.on_flow_down(key, cause);
  lines_.erase(key);
}

TransportKind faulty(const TransportKind& kind) {
  TransportKind wrapped = kind;
  wrapped.make = [kind](const HostOptions& options, std::uint16_t data_port,
                        ports::FlowOwner& owner) -> Result<std::unique_ptr<ports::Transport>> {
    auto made = std::make_unique<FaultyTransport>(owner);
    TL_RETURN_IF_ERROR(made->open(kind, options, data_port));
    return std::unique_ptr<ports::Transport>(std::move(made));
  };
  return wrapped;
}

FaultyTransport& faults(Host& host) {
  return static_cast<FaultyTransport&>(*host.transport);
}

}  // namespace tensorlane::conformance
