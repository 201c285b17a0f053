#include "daemon/transport/mixed/mixed_transport.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <utility>

namespace tensorlane::mixed {
namespace {

class MixedTransport;

// Tells the members' reports apart.
class MemberSink final : public ports::FrameSink {
 public:
  MemberSink(MixedTransport& mixed, std::size_t member, ports::FrameSink& sink)
      : mixed_(mixed), member_(member), sink_(sink) {}
  Result<std::span<std::byte>> on_header(const ports::FlowKey& flow, const protocol::FrameHeader& header) override {
    return sink_.on_header(flow, header);
  }
  void on_frame(const ports::FlowKey& flow, const protocol::FrameHeader& header) override {
    sink_.on_frame(flow, header);
  }
  void on_sent(const ports::FlowKey& flow, std::uint64_t token) override { sink_.on_sent(flow, token); }
  void on_flow_up(const ports::FlowKey& flow) override;
  void on_flow_down(const ports::FlowKey& flow, const Status& cause) override;

 private:
  MixedTransport& mixed_;
  const std::size_t member_;
  ports::FrameSink& sink_;
};

class MixedTransport final : public ports::Transport {
 public:
  MixedTransport(MixedConfig config, ports::FrameSink& sink) : config_(std::move(config)), sink_(sink) {}
  ~MixedTransport() override {
    if (epoll_ >= 0) ::close(epoll_);
  }
  Status open();

  void add_job(const ports::JobCredentials& credentials) override {
    for (const Member& m : members_) m.transport->add_job(credentials);
  }
  void remove_job(JobId job) override {
    for (const Member& m : members_) m.transport->remove_job(job);
  }
  Status connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                 Time deadline) override;
  void close(const ports::FlowKey& flow) override;
  Status map(JobId job, std::span<std::byte> bytes) override;
  Status map(JobId job, const ports::DeviceMemory& memory) override;
  void unmap(JobId job) override {
    for (const Member& m : members_) m.transport->unmap(job);
  }
  bool wants_places() const override { return wants_places_; }
  bool writable(const ports::FlowKey& flow) const override {
    const ports::Transport* transport = find(flow);
    return transport != nullptr && transport->writable(flow);
  }
  void send(const ports::FlowKey& flow, const ports::Outgoing& operation) override {
    ports::Transport* transport = find(flow);
    TL_ASSERT(transport != nullptr);
    transport->send(flow, operation);
  }
  Bytes in_flight(ClassId cls) override {
    Bytes all;
    for (const Member& m : members_) all += m.transport->in_flight(cls);
    return all;
  }
  std::size_t poll(Time now) override {
    now_ = now;
    std::size_t handled = 0;
    for (const Member& m : members_) handled += m.transport->poll(now);
    return handled;
  }
  int wake_fd() const override { return epoll_; }
  bool arm() override {
    bool quiet = true;
    for (const Member& m : members_) quiet = m.transport->arm() && quiet;
    return quiet;
  }
  ports::FlowStats stats(const ports::FlowKey& flow) const override;
  ports::TransportCounters counters() const override;

  void flow_up(std::size_t member, const ports::FlowKey& flow);
  void flow_down(std::size_t member, const ports::FlowKey& flow, const Status& cause);

 private:
  struct Member {
    std::unique_ptr<MemberSink> sink;
    std::unique_ptr<ports::Transport> transport;
  };
  struct Attempt {
    std::size_t member = 0;
    std::string address;
    std::uint16_t data_port = 0;
    Time deadline;
    std::string reason;  // why not a better one
  };
  ports::Transport* find(const ports::FlowKey& flow) const {
    const auto found = routes_.find(flow);
    return found == routes_.end() ? nullptr : members_[found->second].transport.get();
  }
  // Goes on with the first member from attempt.member on that offers the peer.
  Status try_next(const ports::FlowKey& flow, Attempt attempt);

  const MixedConfig config_;
  ports::FrameSink& sink_;
  int epoll_ = -1;
  bool wants_places_ = false;
  Time now_;
  std::map<ports::FlowKey, std::size_t> routes_;  // of flows that are up
  std::map<ports::FlowKey, Attempt> attempts_;
  std::set<std::pair<ports::FlowKey, std::size_t>> unwanted_;  // second flows of a name, closed as they came
  std::vector<Member> members_;
};

void MemberSink::on_flow_up(const ports::FlowKey& flow) {
  mixed_.flow_up(member_, flow);
}
void MemberSink::on_flow_down(const ports::FlowKey& flow, const Status& cause) {
  mixed_.flow_down(member_, flow, cause);
}

Status MixedTransport::open() {
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  for (std::size_t i = 0; i < config_.members.size(); ++i) {
    auto sink = std::make_unique<MemberSink>(*this, i, sink_);
    TL_ASSIGN_OR_RETURN(auto transport, config_.members[i].make(*sink));
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ < 0 || ::epoll_ctl(epoll_, EPOLL_CTL_ADD, transport->wake_fd(), &event) != 0) {
      return {Code::kResourceExhausted, fmt::format("cannot watch a transport: {}", std::strerror(errno)),
              config_.members[i].name + " transport", "raise the limit of open files"};
    }
    wants_places_ = wants_places_ || transport->wants_places();
    members_.push_back({std::move(sink), std::move(transport)});
  }
  return {};
}

Status MixedTransport::connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                               Time deadline) {
  return try_next(flow, {0, address, data_port, deadline, {}});
}

Status MixedTransport::try_next(const ports::FlowKey& flow, Attempt attempt) {
  Status last(Code::kUnavailable, "no transport is left to try", attempt.address);
  for (; attempt.member < members_.size(); ++attempt.member) {
    const MemberConfig& member = config_.members[attempt.member];
    const bool another = attempt.member + 1 < members_.size();
    Status status = member.offers(attempt.address);
    if (status.ok()) {
      const Time until = another ? now_ + Duration((attempt.deadline - now_).value / 3) : attempt.deadline;
      attempts_[flow] = attempt;
      status = members_[attempt.member].transport->connect(
          flow, attempt.address, static_cast<std::uint16_t>(attempt.data_port + member.port_offset), until);
      if (status.ok() || !another) {
        if (!status.ok()) attempts_.erase(flow);
        return status;
      }
    }
    attempt.reason = fmt::format("no {}: {}", member.name, status.to_string());
    last = std::move(status);
  }
  attempts_.erase(flow);
  return last;
}

void MixedTransport::close(const ports::FlowKey& flow) {
  if (ports::Transport* transport = find(flow)) return transport->close(flow);
  if (const auto found = attempts_.find(flow); found != attempts_.end())
    members_[found->second.member].transport->close(flow);
}

Status MixedTransport::map(JobId job, std::span<std::byte> bytes) {
  for (const Member& m : members_) TL_RETURN_IF_ERROR(m.transport->map(job, bytes));
  return {};
}

Status MixedTransport::map(JobId job, const ports::DeviceMemory& memory) {
  for (const Member& m : members_) TL_RETURN_IF_ERROR(m.transport->map(job, memory));
  return {};
}

void MixedTransport::flow_up(std::size_t member, const ports::FlowKey& flow) {
  const auto known = routes_.find(flow);
  if (known != routes_.end() && known->second != member) {
    // The peer has lost the other one and comes another way before we have noticed: it will come again.
    unwanted_.insert({flow, member});
    return members_[member].transport->close(flow);
  }
  routes_[flow] = member;
  if (const auto attempt = attempts_.find(flow); attempt != attempts_.end()) {
    if (config_.chosen) config_.chosen(attempt->second.address, config_.members[member].name, attempt->second.reason);
    attempts_.erase(attempt);
  }
  sink_.on_flow_up(flow);
}

void MixedTransport::flow_down(std::size_t member, const ports::FlowKey& flow, const Status& cause) {
  if (unwanted_.erase({flow, member}) > 0) return;
  Status told = cause;
  if (const auto found = attempts_.find(flow); found != attempts_.end() && found->second.member == member) {
    Attempt next = found->second;
    attempts_.erase(found);
    if (!cause.ok() && next.member + 1 < members_.size()) {
      next.reason = fmt::format("no {}: {}", config_.members[member].name, cause.to_string());
      ++next.member;
      told = try_next(flow, std::move(next));
      if (told.ok()) return;
    }
  }
  routes_.erase(flow);
  sink_.on_flow_down(flow, told);
}

ports::FlowStats MixedTransport::stats(const ports::FlowKey& flow) const {
  const auto found = routes_.find(flow);
  if (found == routes_.end()) return {};
  ports::FlowStats stats = members_[found->second].transport->stats(flow);
  stats.describe = config_.members[found->second].name + ": " + stats.describe;
  return stats;
}

ports::TransportCounters MixedTransport::counters() const {
  ports::TransportCounters all;
  for (const Member& m : members_) all += m.transport->counters();
  return all;
}

}  // namespace

Result<std::unique_ptr<ports::Transport>> make_mixed_transport(MixedConfig config, ports::FrameSink& sink) {
  TL_ASSERT(!config.members.empty());
  auto transport = std::make_unique<MixedTransport>(std::move(config), sink);
  TL_RETURN_IF_ERROR(transport->open());
  return std::unique_ptr<ports::Transport>(std::move(transport));
}

}  // namespace tensorlane::mixed
