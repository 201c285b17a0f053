// Operations that are late: how old they are, and which ranks keep others waiting (law 21). What is looked at is
// bounded by what goes on, not by what is registered.
#include <algorithm>

#include "daemon/host/context.h"
#include "daemon/host/job.h"

namespace tensorlane::host {
namespace {

constexpr std::size_t kLateScan = 4096;  // tensors of each kind that report_late() looks at in one call, about
constexpr std::size_t kMostAsked = 64;   // by all peers
constexpr std::size_t kMostMissed = 64;  // operations that the rails are asked about in one call

}  // namespace

// From the first submission of a rank here until the operation is complete.
void Job::begin_pending(LocalTensor& t, TensorId tensor) {
  if (t.pending != kNotPending) return;
  t.pending = static_cast<std::uint32_t>(pending_.size());
  pending_.push_back(tensor);
}

void Job::end_pending(LocalTensor& t) {
  if (t.pending == kNotPending) return;
  const TensorId last = pending_.back();
  pending_[t.pending] = last;
  tensors_[last.value].pending = t.pending;
  pending_.pop_back();
  t.pending = kNotPending;
}

void Job::report_late(Time now) {
  report_lost(now);
  if (state_ != State::kRunning) return;
  read_clients();
  look_whose_turn_it_is(now);
  // What is here in part, what peers have announced, and what others are held for.
  for (std::size_t n = 0, looked = 0; n < pending_.size() && looked < kLateScan; ++n) {
    late_scan_ = late_scan_ + 1 < pending_.size() ? late_scan_ + 1 : 0;
    looked += look_at_lateness(pending_[late_scan_], now);
  }
  report_missing(now);
  report_waiting_messages(now);
  for (const Set& set : sets_) {
    std::size_t left = kLateScan;
    for (auto id = set.awaited.begin(); id != set.awaited.end() && left > 0; ++id)
      left -= std::min(left, look_at_lateness(id->tensor, now));
  }
  std::erase_if(asked_, [this](const auto& asked) {
    return asked.second.sequence < tensors_[asked.first.value].next_sequence();
  });
  auto asked = asked_.upper_bound(late_asked_);
  for (std::size_t n = 0, looked = 0; n < asked_.size() && looked < kLateScan; ++n, ++asked) {
    if (asked == asked_.end()) asked = asked_.begin();
    late_asked_ = asked->first;
    looked += look_at_lateness(late_asked_, now);
  }
  if (turn_) look_at_lateness(turn_->first, now);
}

// Asks which hosts operations wait for that all ranks here have submitted.
void Job::report_missing(Time now) {
  late_.clear();
  for (std::size_t n = 0; n < std::min(pending_.size(), kLateScan) && late_.size() < kMostMissed; ++n) {
    missing_scan_ = missing_scan_ + 1 < pending_.size() ? missing_scan_ + 1 : 0;
    const TensorId tensor = pending_[missing_scan_];
    const LocalTensor& t = tensors_[tensor.value];
    const bool complete = t.all_arrived() && !plan_.tensors[tensor.value].in_batch();
    if (complete && now - t.ready >= context_.config->late_after) late_.push_back(tensor);
  }
  if (late_.empty()) return;
  for (const Set& set : sets_) set.rails->look_for_missing(late_, now);
}

// Each host is told of one of them in late_after, as a host that is late with one is late with what follows; and of
// another one the next time, for the first may be held there behind that.
void Job::rails_missing(const Missing& missing, Time now) {
  if (state_ != State::kRunning) return;
  missing_.clear();
  for (const auto& [tensor, host] : missing) {
    const LocalTensor& t = tensors_[tensor.value];
    Missed& missed = missed_[host.value];
    // It may have become complete meanwhile, and another one may have begun.
    if (!t.all_arrived() || now - t.ready < context_.config->late_after) continue;
    if (missed.told != Time() && now - missed.told < context_.config->late_after) continue;
    const auto turn = [&missed](TensorId id) { return id.value - missed.last.value - 1; };  // after the last one
    if (!missed.next) missing_.push_back(host);
    if (!missed.next || turn(tensor) < turn(*missed.next)) missed.next = tensor;
  }
  for (const HostIndex host : missing_) {
    Missed& missed = missed_[host.value];
    missed = {now, *missed.next, {}};
    const LocalTensor& t = tensors_[missed.last.value];
    context_.listener->on_missing(id(), host, missed.last, t.next_sequence(), now - t.ready);
  }
}

void Job::rails_await(std::size_t lane, const Awaited& awaited) {
  set_of(lane).awaited = awaited;
}

void Job::peer_awaits(TensorId tensor, Sequence sequence, Time since) {
  if (tensor.value >= tensors_.size()) return;
  if (const protocol::PlanTensor& planned = plan_.tensors[tensor.value]; planned.vacant || planned.in_batch()) return;
  const Sequence next = tensors_[tensor.value].next_sequence();
  if (sequence < next || sequence.value > next.value + 1) return;
  if (asked_.size() == kMostAsked && !asked_.contains(tensor)) return;
  Asked& asked = asked_[tensor];
  if (asked.sequence != sequence) asked = {sequence, since};
}

// Returns how many tensors it looked at, at least one. A peer may have announced a batch that is not all here yet.
std::size_t Job::look_at_lateness(TensorId operation, Time now) {
  if (!plan_.tensors[operation.value].is_batch()) {
    report_if_late(operation, now);
    return 1;
  }
  const auto members = gate_.members(operation);
  for (const engine::BatchGate::Member& member : members) report_if_late(member.tensor, now);
  return std::max<std::size_t>(members.size(), 1);
}

void Job::report_if_late(TensorId id, Time now) {
  LocalTensor& t = tensors_[id.value];
  const protocol::PlanTensor& tensor = plan_.tensors[id.value];
  if (tensor.vacant) return;
  Time since = t.first_arrival;
  const bool rest_is_late = t.in_parts && !t.parts_over;
  if (t.all_arrived() && !rest_is_late) return;
  const bool holds_others = turn_ && turn_->first == tensor.operation_id();
  if (t.arrived == 0 && !awaited(tensor, &since)) {
    if (!holds_others) return;
    since = turn_->second;
  }
  const Duration waited = now - since;
  if (waited < t.reported + context_.config->late_after) return;
  t.reported = waited;
  for (const std::uint32_t local : t.members->locals()) {
    if (t.sequence[local] > t.completed && !rest_is_late) continue;
    context_.metrics->late_reports.add();
    context_.listener->on_late(this->id(), local_ranks_[local], tensor.id, waited);
  }
}

// Operations that are ready may be held for a tensor that no host has submitted, of which no peer speaks.
void Job::look_whose_turn_it_is(Time now) {
  if (admission_.gate() == engine::Admission::Gate::kNone) return;
  const std::optional<TensorId> missing = admission_.missing();
  if (!missing) turn_.reset();
  if (missing && (!turn_ || turn_->first != *missing)) turn_ = {*missing, now};
}

// Peers have announced an operation that this host has not submitted, since the first announcement on any rail, or ask
// for it; or a rank here waits for another tensor of the same batch.
bool Job::awaited(const protocol::PlanTensor& tensor, Time* since) const {
  const std::optional<Time>& waited = tensors_[tensor.operation_id().value].waited;
  bool found = tensor.in_batch() && waited;
  if (found) *since = *waited;
  const auto asked = asked_.find(tensor.operation_id());
  if (asked != asked_.end() && asked->second.sequence == tensors_[asked->first.value].next_sequence()) {
    if (!found || asked->second.since < *since) *since = asked->second.since;
    found = true;
  }
  for (const Set& set : sets_) {
    const auto said = std::ranges::lower_bound(set.awaited, tensor.operation_id(), {}, &AwaitedOperation::tensor);
    if (said == set.awaited.end() || said->tensor != tensor.operation_id()) continue;
    // What a lane has said may be of an operation that is over by now.
    if (said->sequence != tensors_[tensor.operation_id().value].next_sequence()) continue;
    if (!found || said->since < *since) *since = said->since;
    found = true;
  }
  return found;
}

void Job::look_at_ages(Time now) {
  ages_ = {};
  for (TensorId id : pending_) {
    const LocalTensor& t = tensors_[id.value];
    if (!t.all_arrived()) continue;
    Duration& age = ages_[plan_.tensors[id.value].cls.value];
    age = std::max(age, now - t.ready);
  }
}

}  // namespace tensorlane::host
