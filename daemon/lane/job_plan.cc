// The plan grows: tensors join it, and their buffers. In bounded steps, since the lane carries other jobs meanwhile
// (law 20); what takes long has been prepared (prepared.h).
#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "daemon/lane/job.h"

namespace tensorlane::lane {
namespace {

// Members may come in a step before their batches: nobody submits them until all are there.
constexpr std::size_t kTensorsAtOnce = 32;

}  // namespace

bool Job::grow(PlanGrowth& growth, Time now) {
  if (state_ == State::kClosing || state_ == State::kClosed) return true;
  const auto refused = [&](const Status& why) {
    fail(why);
    return true;
  };
  if (!growth.status.ok()) return refused(growth.status);
  const std::span<const protocol::PlanTensor> added = growth.added.tensors;
  if (growth.taken == 0 && !added.empty() && added.front().id.value != plan_.tensors.size()) {
    return refused({Code::kInternal,
                    fmt::format("plan version {} goes on with tensor {}, the plan has {}", growth.added.version,
                                added.front().id.value, plan_.tensors.size()),
                    fmt::format("job '{}'", spec_.name), "report this"});
  }
  try {
    return take_over(growth, std::min(added.size() - growth.taken, kTensorsAtOnce));
  } catch (const std::bad_alloc&) {
    // What has half grown is not used again.
    const Status cause = on_host(no_memory(), spec_);
    fail(cause);
    abort(cause, now);
    return true;
  }
}

// The next `count` of them. True when all are there, or they cannot be.
bool Job::take_over(PlanGrowth& growth, std::size_t count) {
  const std::size_t known = plan_.tensors.size();
  plan_.version = growth.added.version;
  plan_.rails = growth.added.rails;
  plan_.ordering = growth.added.ordering;
  plan_.concurrent = growth.added.concurrent;
  plan_.rank_hosts = growth.added.rank_hosts;
  const auto first = growth.added.tensors.begin() + static_cast<std::ptrdiff_t>(growth.taken);
  plan_.tensors.insert(plan_.tensors.end(), first, first + static_cast<std::ptrdiff_t>(count));
  for (auto& rail : rails_) {
    if (const Status status = rail->extend_plan(plan_); !status.ok()) {
      plan_.tensors.resize(known);
      fail(status);
      return true;
    }
  }
  if (growth.taken == 0) {
    charges_.push_back(std::move(growth.regions));
    charges_.push_back(std::move(growth.tables));
    if (growth.scratch != nullptr) {
      scratch_.push_back(std::move(growth.scratch));
      map(scratch_.back()->bytes());
    }
  }
  tensors_.resize(plan_.tensors.size());
  local_queue_.reserve(tensors_.size());
  if (pending_.capacity() < tensors_.size()) pending_.reserve(2 * tensors_.size());
  for (std::size_t i = known; i < tensors_.size(); ++i) {
    LocalTensor& t = tensors_[i];
    t.urgency = plan_.tensors[i].urgency;
    t.cls = plan_.tensors[i].cls;
    t.bound.resize(local_ranks_.size());
    t.buffers.resize(local_ranks_.size());
    t.sequence.resize(local_ranks_.size());
    t.storage = growth.storage(growth.taken + i - known);
    t.wide_storage = growth.wide(growth.taken + i - known);
    if (!t.storage.empty()) t.buffer = add_region(t.storage);
    if (!t.wide_storage.empty()) t.wide = add_region(t.wide_storage);
    around_.timeline->name(id(), plan_.tensors[i].id, plan_.tensors[i].name.c_str());
  }
  growth.taken += count;
  if (around_.config->tunes) classify(known);
  if (growth.taken < growth.added.tensors.size()) return false;
  if (!rails_.empty()) admission_.grow(plan_);
  gate_.grow(plan_);
  if (around_.config->observes && !rails_.empty()) begin_observing();
  return true;
}

// Regions are charged before they are added, so that there is always room but for what another lane's jobs forgot.
Descriptor Job::add_region(std::span<std::byte> bytes) {
  const Descriptor region = around_.memory->add(bytes);
  if (region.length != bytes.size()) {
    fail({Code::kResourceExhausted, "the daemon's table of tensors is full", fmt::format("job '{}'", spec_.name),
          "end other jobs or register fewer tensors"});
  }
  return region;
}

void Job::bind(Rank rank, TensorId tensor, const ports::BufferPlace& place) {
  const std::uint32_t local = local_index(rank);
  if (tensor.value >= tensors_.size()) return;  // the job could not have it, and has failed
  const protocol::PlanTensor& planned = plan_.tensors[tensor.value];
  LocalTensor& t = tensors_[tensor.value];
  if (!sessions_[local]) return;
  t.bound[local] = true;
  if (planned.operation == Operation::kBarrier) return;  // moves nobody's memory
  t.buffers[local] = sessions_[local]->map(place);
  if (t.buffers[local].size() != planned.elements * dtype_size(planned.dtype)) {
    return fail({Code::kCorrupt,
                 fmt::format("rank {} registered tensor '{}' outside its arenas", rank.value, planned.name),
                 fmt::format("job '{}'", spec_.name), "use memory of tl_alloc for registered tensors"});
  }
  if (planned.in_batch()) return;  // nothing of it goes between hosts from where it lies
  if (local == leader_of(planned)) {
    t.buffer = add_region(t.buffers[local]);
    map(sessions_[local]->segment(place));
  }
}

}  // namespace tensorlane::lane
