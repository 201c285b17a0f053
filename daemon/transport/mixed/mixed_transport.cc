#include "daemon/transport/mixed/mixed_transport.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "daemon/ports/refusing_sink.h"
#include "daemon/transport/mixed/prober.h"

namespace tensorlane::mixed {
namespace {

// Figures are used for later jobs, too, for so long.
constexpr Duration kFresh = seconds(300);

ClassId least_urgent(const std::vector<ClassId>& classes) {
  ClassId least{0};
  for (const ClassId cls : classes) {
    if (cls != kControlClass) least = std::max(least, cls);
  }
  return least;
}

class MixedTransport;

// Tells the members' reports apart.
class MemberOwner final : public ports::FlowOwner {
 public:
  MemberOwner(MixedTransport& mixed, std::size_t member) : mixed_(mixed), member_(member) {}
  ports::FrameSink& on_flow_up(const ports::FlowKey& key, ports::Flow& flow) override;
  void on_flow_resumed(const ports::FlowKey& key, const ports::Flow& flow) override;
  void on_flow_down(const ports::FlowKey& key, const Status& cause) override;

 private:
  MixedTransport& mixed_;
  const std::size_t member_;
};

class MixedTransport final : public ports::Transport {
 public:
  MixedTransport(MixedConfig config, ports::FlowOwner& owner)
      : config_(std::move(config)), owner_(owner), prober_(least_urgent(config_.classes)) {}
  ~MixedTransport() override {
    for (const int fd : {epoll_, timer_}) {
      if (fd >= 0) ::close(fd);
    }
  }
  Status open();

  void add_job(const ports::JobCredentials& credentials) override {
    for (const Member& m : members_) m.transport->add_job(credentials);
    prober_.add_job(credentials);
  }
  void remove_job(JobId job) override;
  Status connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                 Time deadline) override;
  void close(const ports::FlowKey& flow) override;
  Status map(JobId job, std::span<std::byte> bytes) override;
  Status map(JobId job, const ports::DeviceMemory& memory) override;
  void unmap(JobId job, std::span<std::byte> bytes) override {
    for (const Member& m : members_) m.transport->unmap(job, bytes);
  }
  void unmap(JobId job) override {
    for (const Member& m : members_) m.transport->unmap(job);
  }
  Bytes in_flight(ClassId cls) override {
    Bytes all;
    for (const Member& m : members_) all += m.transport->in_flight(cls);
    return all;
  }
  void flush() override;
  std::size_t poll(Time now) override;
  int wake_fd() const override { return epoll_; }
  bool arm() override;
  ports::PathReport path(JobId job, HostIndex peer) const override;
  ports::TransportCounters counters() const override;

  ports::FrameSink& flow_up(std::size_t member, const ports::FlowKey& key, ports::Flow& flow);
  void flow_resumed(std::size_t member, const ports::FlowKey& key, const ports::Flow& flow);
  void flow_down(std::size_t member, const ports::FlowKey& flow, const Status& cause);
  Prober& prober() { return prober_; }

 private:
  struct Member {
    std::unique_ptr<MemberOwner> owner;
    std::unique_ptr<ports::Transport> transport;
  };
  using Pair = std::pair<JobId, HostIndex>;
  struct Attempt {
    std::vector<std::size_t> order;  // of members, best first; not empty
    std::size_t at = 0;              // in `order`
    std::string address;
    std::uint16_t data_port = 0;
    Time deadline;
  };
  // A flow that waits until its peer has been measured.
  struct Waiting {
    ports::FlowKey flow;
    Attempt attempt;
  };
  // What is known of the ways to an address.
  struct Known {
    std::vector<std::size_t> order;
    ports::PathReport report;
  };
  ports::Transport* find(const ports::FlowKey& flow) const {
    const auto found = routes_.find(flow);
    return found == routes_.end() ? nullptr : members_[found->second].transport.get();
  }
  const Known* fresh(const std::string& address) const;
  // Goes on with the first member from attempt.at on that takes the flow.
  Status try_next(const ports::FlowKey& flow, Attempt attempt);
  bool replace(const ports::FlowKey& flow, std::size_t old);
  void measured(const Prober::Outcome& outcome);
  void note_chosen(const ports::FlowKey& flow, std::size_t member);
  void note_failed(const ports::FlowKey& flow, const Attempt& attempt, const Status& cause);
  ports::PathCandidate& candidate(const Pair& pair, const std::string& name);

  const MixedConfig config_;
  ports::FlowOwner& owner_;
  int epoll_ = -1, timer_ = -1;
  bool timer_set_ = false;
  Time now_;
  std::map<ports::FlowKey, std::size_t> routes_;  // of flows that are up
  std::map<ports::FlowKey, Attempt> attempts_;
  std::map<Pair, std::vector<Waiting>> waiting_;
  std::vector<std::pair<ports::FlowKey, Status>> ended_;       // reported by the next poll
  std::set<std::pair<ports::FlowKey, std::size_t>> unwanted_;  // second flows of a name, closed as they came
  ports::RefusingSink nobody_{
      // for those
      Status(Code::kUnavailable, "another flow of this name is being closed", "mixed transport", "")};
  std::optional<ports::FlowKey> replaced_;  // while its old one is closed
  std::map<Pair, ports::PathReport> paths_;
  std::map<std::string, Known> known_;  // by address
  Prober prober_;                       // outlives the members, which send from its memory
  std::vector<Member> members_;
};

ports::FrameSink& MemberOwner::on_flow_up(const ports::FlowKey& key, ports::Flow& flow) {
  if (mixed_.prober().owns(key.job)) return mixed_.prober().up(member_, key, flow);
  return mixed_.flow_up(member_, key, flow);
}
void MemberOwner::on_flow_resumed(const ports::FlowKey& key, const ports::Flow& flow) {
  mixed_.flow_resumed(member_, key, flow);
}
void MemberOwner::on_flow_down(const ports::FlowKey& key, const Status& cause) {
  if (mixed_.prober().owns(key.job)) return mixed_.prober().down(member_, key, cause);
  mixed_.flow_down(member_, key, cause);
}

Status MixedTransport::open() {
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  timer_ = ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  const auto watch = [this](int fd, const std::string& what) -> Status {
    epoll_event event{};
    event.events = EPOLLIN;
    if (fd >= 0 && ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0) return {};
    return {Code::kResourceExhausted, fmt::format("cannot watch a descriptor: {}", std::strerror(errno)),
            what + " transport", "raise the limit of open files"};
  };
  TL_RETURN_IF_ERROR(watch(timer_, "mixed"));
  for (std::size_t i = 0; i < config_.members.size(); ++i) {
    const MemberConfig& member = config_.members[i];
    auto owner = std::make_unique<MemberOwner>(*this, i);
    TL_ASSIGN_OR_RETURN(auto transport, member.make(*owner));
    TL_RETURN_IF_ERROR(watch(transport->wake_fd(), member.name));
    prober_.add_member({member.name, member.port_offset, transport.get()});
    members_.push_back({std::move(owner), std::move(transport)});
  }
  return {};
}

// ---- jobs and flows ----

void MixedTransport::remove_job(JobId job) {
  prober_.remove_job(job);
  for (auto waiting = waiting_.begin(); waiting != waiting_.end();) {
    if (waiting->first.first == job) {
      for (const Waiting& w : waiting->second) ended_.emplace_back(w.flow, Status());
      waiting = waiting_.erase(waiting);
    } else {
      ++waiting;
    }
  }
  std::erase_if(paths_, [job](const auto& entry) { return entry.first.first == job; });
  for (const Member& m : members_) m.transport->remove_job(job);
}

const MixedTransport::Known* MixedTransport::fresh(const std::string& address) const {
  const auto known = known_.find(address);
  return known == known_.end() || now_ - known->second.report.measured > kFresh ? nullptr : &known->second;
}

Status MixedTransport::connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                               Time deadline) {
  if (std::ranges::find(config_.classes, flow.cls) == config_.classes.end())
    return {Code::kNotFound, "this transport has no such class", address};
  if (routes_.contains(flow) || attempts_.contains(flow)) return {Code::kAlreadyExists, "the flow is there", address};
  const Pair pair{flow.job, flow.peer};
  Attempt attempt{{}, 0, address, data_port, deadline};
  const auto waiting = waiting_.find(pair);
  if (waiting != waiting_.end()) {
    if (std::ranges::find(waiting->second, flow, &Waiting::flow) != waiting->second.end())
      return {Code::kAlreadyExists, "the flow is there", address};
    waiting->second.push_back({flow, std::move(attempt)});
    return {};
  }
  if (const Known* known = fresh(address)) {
    attempt.order = known->order;
    paths_[pair] = known->report;
    return try_next(flow, std::move(attempt));
  }
  Status none(Code::kUnavailable, "no transport is offered", address);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Status offered = config_.members[i].offers(address);
    if (offered.ok()) {
      attempt.order.push_back(i);
    } else {
      candidate(pair, config_.members[i].name).verdict = offered.to_string();
      none = offered;
    }
  }
  if (attempt.order.empty()) return none;
  if (attempt.order.size() > 1 && prober_.measure(flow.job, flow.peer, address, data_port, attempt.order, deadline)) {
    waiting_[pair].push_back({flow, std::move(attempt)});
    return {};
  }
  return try_next(flow, std::move(attempt));
}

// The peer has been told: the flows to it begin.
void MixedTransport::measured(const Prober::Outcome& outcome) {
  const Pair pair{outcome.job, outcome.peer};
  const auto waiting = waiting_.extract(pair);
  if (waiting.empty() || waiting.mapped().empty()) return;
  Known known;
  for (const std::size_t at : outcome.choice.order) known.order.push_back(outcome.members[at]);
  for (std::size_t i = 0; i < outcome.members.size(); ++i)
    candidate(pair, config_.members[outcome.members[i]].name) = outcome.choice.candidates[i];
  if (outcome.measured) {
    paths_[pair].measured = now_;
    known.report = paths_[pair];
    known_[waiting.mapped().front().attempt.address] = known;
  }
  for (const Waiting& w : waiting.mapped()) {
    Attempt attempt = w.attempt;
    attempt.order = known.order;
    const Status status = try_next(w.flow, std::move(attempt));
    if (!status.ok()) ended_.emplace_back(w.flow, status);
  }
}

Status MixedTransport::try_next(const ports::FlowKey& flow, Attempt attempt) {
  for (;; ++attempt.at) {
    const std::size_t index = attempt.order[attempt.at];
    const bool another = attempt.at + 1 < attempt.order.size();
    const Time until = another ? now_ + Duration((attempt.deadline - now_).value / 3) : attempt.deadline;
    const auto port = static_cast<std::uint16_t>(attempt.data_port + config_.members[index].port_offset);
    attempts_[flow] = attempt;
    Status status = members_[index].transport->connect(flow, attempt.address, port, until);
    if (status.ok()) return status;
    attempts_.erase(flow);
    if (!another) return status;
    note_failed(flow, attempt, status);
  }
}

void MixedTransport::close(const ports::FlowKey& flow) {
  if (ports::Transport* transport = find(flow)) return transport->close(flow);
  if (const auto found = attempts_.find(flow); found != attempts_.end())
    return members_[found->second.order[found->second.at]].transport->close(flow);
  const auto waiting = waiting_.find({flow.job, flow.peer});
  if (waiting != waiting_.end() && std::erase_if(waiting->second, [&](const Waiting& w) { return w.flow == flow; }) > 0)
    ended_.emplace_back(flow, Status());
}

Status MixedTransport::map(JobId job, std::span<std::byte> bytes) {
  for (const Member& m : members_) TL_RETURN_IF_ERROR(m.transport->map(job, bytes));
  return {};
}

Status MixedTransport::map(JobId job, const ports::DeviceMemory& memory) {
  for (const Member& m : members_) TL_RETURN_IF_ERROR(m.transport->map(job, memory));
  return {};
}

// ---- what members say ----

ports::FrameSink& MixedTransport::flow_up(std::size_t member, const ports::FlowKey& key, ports::Flow& flow) {
  const auto known = routes_.find(key);
  if (known != routes_.end() && known->second != member && !replace(key, known->second)) {
    // The old one is still being closed: the peer will come again.
    unwanted_.insert({key, member});
    members_[member].transport->close(key);
    return nobody_;
  }
  routes_[key] = member;
  note_chosen(key, member);
  attempts_.erase(key);
  return owner_.on_flow_up(key, flow);
}

// Not of one that is not wanted, and of the prober's none is resumed.
void MixedTransport::flow_resumed(std::size_t member, const ports::FlowKey& key, const ports::Flow& flow) {
  const auto route = routes_.find(key);
  if (route != routes_.end() && route->second == member) owner_.on_flow_resumed(key, flow);
}

// The peer has lost the flow and comes another way, before we have noticed or while our end is half-open. False: the
// old one is not down at once (law 7).
bool MixedTransport::replace(const ports::FlowKey& flow, std::size_t old) {
  if (replaced_) return false;  // `old` may be polling
  replaced_ = flow;
  members_[old].transport->close(flow);
  members_[old].transport->poll(now_);
  replaced_.reset();
  return !routes_.contains(flow);
}

void MixedTransport::flow_down(std::size_t member, const ports::FlowKey& flow, const Status& cause) {
  if (unwanted_.erase({flow, member}) > 0) return;
  Status reason = cause;
  if (replaced_ == flow) {
    reason = Status(Code::kUnavailable,
                    fmt::format("connection to host {} was replaced by a new one from the same host", flow.peer.value),
                    config_.members[member].name + " transport", "look at the log of tensorlaned on that host");
  }
  if (const auto found = attempts_.find(flow);
      found != attempts_.end() && found->second.order[found->second.at] == member) {
    Attempt next = found->second;
    attempts_.erase(found);
    if (!cause.ok() && next.at + 1 < next.order.size()) {
      note_failed(flow, next, cause);
      ++next.at;
      reason = try_next(flow, std::move(next));
      if (reason.ok()) return;
    }
  }
  routes_.erase(flow);
  owner_.on_flow_down(flow, reason);
}

// ---- reports ----

ports::PathCandidate& MixedTransport::candidate(const Pair& pair, const std::string& name) {
  std::vector<ports::PathCandidate>& candidates = paths_[pair].candidates;
  const auto position = [this](const std::string& wanted) {
    return std::ranges::find(config_.members, wanted, &MemberConfig::name);
  };
  auto at = std::ranges::find(candidates, name, &ports::PathCandidate::transport);
  if (at != candidates.end()) return *at;
  at = std::ranges::find_if(candidates, [&](const auto& c) { return position(c.transport) > position(name); });
  return *candidates.insert(at, {name, false, {}, {}, {}});
}

void MixedTransport::note_chosen(const ports::FlowKey& flow, std::size_t member) {
  const Pair pair{flow.job, flow.peer};
  const bool mine = attempts_.contains(flow);
  if (!mine && paths_[pair].measured == Time()) {
    const std::vector<ports::PathCandidate> reported = prober_.reported(flow.job, flow.peer);
    if (!reported.empty()) paths_[pair] = {now_, reported};
  }
  ports::PathCandidate& chosen = candidate(pair, config_.members[member].name);
  if (chosen.chosen) return;
  for (ports::PathCandidate& c : paths_[pair].candidates) c.chosen = false;
  chosen.chosen = true;
  if (chosen.verdict.empty()) chosen.verdict = mine ? "nothing to choose from" : "the peer's choice";
}

void MixedTransport::note_failed(const ports::FlowKey& flow, const Attempt& attempt, const Status& cause) {
  ports::PathCandidate& failed = candidate({flow.job, flow.peer}, config_.members[attempt.order[attempt.at]].name);
  failed.chosen = false;
  failed.verdict = cause.to_string();
  known_.erase(attempt.address);
}

ports::PathReport MixedTransport::path(JobId job, HostIndex peer) const {
  const auto found = paths_.find({job, peer});
  return found == paths_.end() ? ports::PathReport() : found->second;
}

// ---- the loop ----

std::size_t MixedTransport::poll(Time now) {
  now_ = now;
  prober_.begin(now);
  std::size_t handled = 0;
  for (const Member& m : members_) handled += m.transport->poll(now);
  handled += prober_.poll();
  while (std::optional<Prober::Outcome> outcome = prober_.take()) measured(*outcome);
  for (const auto& [flow, cause] : std::exchange(ended_, {})) {
    ++handled;
    owner_.on_flow_down(flow, cause);
  }
  return handled;
}

void MixedTransport::flush() {
  for (const Member& m : members_) m.transport->flush();
}

bool MixedTransport::arm() {
  bool quiet = ended_.empty();
  for (const Member& m : members_) quiet = m.transport->arm() && quiet;
  const std::optional<Time> due = prober_.next_deadline();
  if (!due && !timer_set_) return quiet;
  const std::int64_t wait = due ? std::max<std::int64_t>((*due - now_).value, 1) : 0;
  const itimerspec once{{}, {wait / 1'000'000'000, wait % 1'000'000'000}};
  ::timerfd_settime(timer_, 0, &once, nullptr);
  timer_set_ = due.has_value();
  return quiet;
}

ports::TransportCounters MixedTransport::counters() const {
  ports::TransportCounters all;
  for (const Member& m : members_) all += m.transport->counters();
  return all;
}

}  // namespace

Result<std::unique_ptr<ports::Transport>> make_mixed_transport(MixedConfig config, ports::FlowOwner& owner) {
  TL_ASSERT(!config.members.empty() && config.members.size() <= kMaxCandidates);
  auto transport = std::make_unique<MixedTransport>(std::move(config), owner);
  TL_RETURN_IF_ERROR(transport->open());
  return std::unique_ptr<ports::Transport>(std::move(transport));
}

}  // namespace tensorlane::mixed
