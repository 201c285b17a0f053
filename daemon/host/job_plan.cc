// The plan grows: tensors join it, and their buffers; and tensors leave it. In bounded steps, since the lane carries
// other jobs meanwhile (law 20); what takes long has been prepared (prepared.h).
#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "daemon/host/context.h"
#include "daemon/host/job.h"

namespace tensorlane::host {
namespace {

// Members may come in a step before their batches: nobody submits them until all are there.
constexpr std::size_t kTensorsAtOnce = 32;

// The places of tensors of one registration, at least one.
protocol::TensorRange range_of(std::span<const protocol::PlanTensor> tensors) {
  return {tensors.front().id.value, static_cast<std::uint32_t>(tensors.size())};
}

}  // namespace

bool Job::grow(PlanGrowth& growth, Time now) {
  if (state_ == State::kClosing || state_ == State::kClosed) return true;
  const auto refused = [&](const Status& why) {
    fail(why);
    return true;
  };
  if (!growth.status.ok()) return refused(growth.status);
  const std::span<const protocol::PlanTensor> added = growth.added.tensors;
  if (growth.taken == 0 && !added.empty() && !plan_.has_room(range_of(added))) {
    return refused({Code::kInternal,
                    fmt::format("plan version {} goes on with tensor {}, the plan has {}", growth.added.version,
                                added.front().id.value, plan_.tensors.size()),
                    fmt::format("job '{}'", spec_.name), "report this"});
  }
  try {
    const bool all = !added.empty() && growth.taken == added.size()
                         ? go_on(growth.review)
                         : take_over(growth, std::min(added.size() - growth.taken, kTensorsAtOnce));
    if (all && !failed_) settle(now);
    return all;
  } catch (const std::bad_alloc&) {
    return give_up(now);
  }
}

// There is no memory for a plan that has half changed: it is not used again.
bool Job::give_up(Time now) {
  const Status cause = on_host(no_memory(), spec_);
  fail(cause);
  abort(cause, now);
  return true;
}

// The next `count` of them. True when all are there, or they cannot be.
bool Job::take_over(PlanGrowth& growth, std::size_t count) {
  const std::size_t known = plan_.tensors.size();
  plan_.version = growth.added.version;
  plan_.rails = growth.added.rails;
  plan_.ordering = growth.added.ordering;
  plan_.concurrent = growth.added.concurrent;
  plan_.rank_hosts = growth.added.rank_hosts;
  if (count == 0) return true;
  const auto all = std::span(growth.added.tensors);
  const auto next = all.subspan(growth.taken, count);
  const protocol::TensorRange range = range_of(next);
  plan_.place(range, {next.begin(), next.end()});
  vacant_places_ -= std::min<std::size_t>(range.end(), known) - std::min<std::size_t>(range.first, known);
  if (growth.taken == 0) taken_[range.first] = std::move(growth.memory);  // before any table names it
  std::array<OwnMemory, kTensorsAtOnce> memory;
  for (std::size_t i = 0; i < count; ++i) memory[i] = growth.own_memory(growth.taken + i);
  for (const Set& set : sets_) set.rails->extend(plan_, range, std::span(memory).first(count));
  if (failed_) {
    plan_.vacate(range);
    plan_.tensors.resize(known);
    return true;
  }
  if (growth.taken == 0) {
    const Taken& taken = taken_[range.first];
    if (taken.scratch != nullptr) {
      for (const Set& set : sets_) set.rails->map(taken.scratch->bytes());
    }
  }
  tensors_.resize(plan_.tensors.size());
  local_queue_.reserve(tensors_.size());
  if (pending_.capacity() < tensors_.size()) pending_.reserve(2 * tensors_.size());
  for (std::uint32_t i = range.first; i < range.end(); ++i) {
    LocalTensor& t = tensors_[i];
    t.members = growth.members != nullptr ? growth.members : everyone_;
    t.base = plan_.tensors[i].base;
    t.urgency = plan_.tensors[i].urgency;
    t.cls = plan_.tensors[i].cls;
    t.bound.resize(local_ranks_.size());
    t.buffers.resize(t.members->here());
    t.sequence.resize(local_ranks_.size());
    t.submitted.resize(local_ranks_.size());
    t.early.resize(local_ranks_.size());
    t.own = memory[i - range.first];
    if (goes_in_parts(plan_.tensors[i])) t.placed = std::make_unique<LocalTensor::Placed>();
    context_.timeline->name(id(), plan_.tensors[i].id, plan_.tensors[i].name.c_str());
  }
  growth.taken += count;
  if (context_.config->tunes) classify(range);
  if (growth.taken < all.size()) return false;
  const std::size_t here = growth.members != nullptr ? growth.members->here() : local_ranks_.size();
  if (between_hosts() && growth.members == nullptr) admission_.grow(plan_, range_of(all));
  gate_.grow(plan_, range_of(all), static_cast<std::uint32_t>(here));
  growth.review.relearns = context_.config->observes && between_hosts() && growth.members == nullptr;
  begin(growth.review);
  return go_on(growth.review);
}

// ---- tensors leave ----

// Ok, or whose operation is not complete. Nothing is submitted before all are gone, and then nothing is bound.
Status Job::check_unused(protocol::TensorRange range) const {
  for (std::uint32_t i = range.first; i < range.end(); ++i) {
    const LocalTensor& t = tensors_[i];
    if (plan_.tensors[i].is_batch()) continue;  // nobody submits it
    for (const std::uint32_t local : t.members->locals()) {
      if (t.sequence[local] == t.completed) continue;
      return {Code::kCorrupt,
              fmt::format("rank {} has unregistered tensor '{}' while its operation is under way",
                          local_ranks_[local].value, plan_.tensors[i].name),
              fmt::format("job '{}'", spec_.name),
              "the client broke the session protocol; use the client library of this version"};
    }
  }
  return {};
}

bool Job::vacate(PlanShrinking& shrinking, Time now) {
  if (state_ == State::kClosing || state_ == State::kClosed) return true;
  if (shrinking.range.end() > tensors_.size()) return true;  // the job could not have them, and has failed
  try {
    const bool all =
        shrinking.done > 0 && shrinking.done == shrinking.range.count
            ? go_on(shrinking.review)
            : let_go(shrinking, std::min<std::uint32_t>(shrinking.range.count - shrinking.done, kTensorsAtOnce));
    if (all && !failed_) settle(now);
    return all;
  } catch (const std::bad_alloc&) {
    return give_up(now);
  }
}

// Of the next `count` of them. True when all are gone, or they cannot be.
bool Job::let_go(PlanShrinking& shrinking, std::uint32_t count) {
  const protocol::TensorRange range = shrinking.range;
  const auto refused = [&](const Status& why) {
    fail(why);
    return true;
  };
  const protocol::TensorRange next{range.first + shrinking.done, count};
  if (const Status unused = check_unused(next); !unused.ok()) return refused(unused);
  if (gate_of(plan_.tensors[next.first]) != engine::Admission::Gate::kNone) admission_.vacate(next);
  gate_.vacate(next);
  for (const Set& set : sets_) set.rails->vacate(next);
  if (failed_) return true;
  for (std::uint32_t i = next.first; i < next.end(); ++i) {
    LocalTensor& t = tensors_[i];
    end_pending(t);
    asked_.erase(TensorId(i));
    t = {};
    t.members = everyone_;
    t.bound.resize(local_ranks_.size());
  }
  plan_.vacate(next);
  vacant_places_ += count;
  shrinking.done += count;
  if (shrinking.done < range.count) return false;
  plan_.version = shrinking.version;
  if (auto taken = taken_.extract(range.first); !taken.empty()) shrinking.taken = std::move(taken.mapped());
  vacant_tables_.add(std::move(shrinking.taken.tables));
  if (shrinking.taken.scratch != nullptr) {
    for (const Set& set : sets_) set.rails->unmap(shrinking.taken.scratch->bytes());
  }
  if (turn_ && range.contains(turn_->first)) turn_.reset();
  shrinking.review.largest = largest_ && range.contains(*largest_);
  shrinking.review.relearns = observed_.has_value();
  begin(shrinking.review);
  return go_on(shrinking.review);
}

// What has joined is charged for itself, and has taken what fits it of what others left.
void Job::give_back_vacant_tables() {
  std::uint64_t slices = 0;
  for (const Set& set : sets_) slices += set.settled.vacant_slices;
  const std::uint64_t there = vacant_table_bytes(vacant_places_, slices, spec_);
  if (vacant_tables_.amount() > there) vacant_tables_.release(vacant_tables_.amount() - there);
}

void Job::bind(Rank rank, TensorId tensor, const ports::BufferPlace& place) {
  const std::uint32_t local = local_index(rank);
  if (tensor.value >= tensors_.size()) return;  // the job could not have it, and has failed
  const protocol::PlanTensor& planned = plan_.tensors[tensor.value];
  LocalTensor& t = tensors_[tensor.value];
  if (!sessions_[local]) return;
  const std::uint32_t member = t.members->place_of(local);
  if (member == Members::kNone) return;
  t.bound[local] = true;
  if (planned.operation == Operation::kBarrier) return;  // moves nobody's memory
  t.buffers[member] = sessions_[local]->map(place);
  if (t.buffers[member].size() != buffer_bytes(planned, member)) {
    return fail({Code::kCorrupt,
                 fmt::format("rank {} registered tensor '{}' outside its arenas", rank.value, planned.name),
                 fmt::format("job '{}'", spec_.name), "use memory of tl_alloc for registered tensors"});
  }
  if (planned.in_batch()) return;  // nothing of it goes between hosts from where it lies
  if (const auto exchange = exchange_of(planned); exchange && exchange->own_buffer()) return;
  if (member != leader_of(planned) || !t.members->between_hosts()) return;
  for (const Set& set : sets_) set.rails->bind(tensor, t.buffers[member], sessions_[local]->segment(place));
}

}  // namespace tensorlane::host
