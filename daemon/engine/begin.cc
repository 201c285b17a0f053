// An operation begins, and its contribution comes to exist where that does so in parts.
#include <algorithm>

#include "common/base/assert.h"
#include "daemon/engine/impl.h"

namespace tensorlane::engine {

void Engine::Impl::begin(const TensorReady& ready, ActionRing& out) {
  TL_ASSERT(ready.tensor.value < tables_.tensors.size());
  Tensor& t = tables_.tensors[ready.tensor.value];
  TL_ASSERT(!t.plan.in_batch());
  TL_ASSERT(!t.open && ready.sequence.value == t.sequence.value + 1 && ready.sequence.value <= kMaxSequence);
  t.open = true;
  end_awaited(t);
  t.boosted = false;
  t.in_parts = ready.in_parts;
  t.sequence = ready.sequence;
  t.iteration = iterations_.begin(t.iteration);
  t.since = now_;
  t.cls = t.next_cls;
  t.urgency = t.next_urgency;
  t.buffer = ready.buffer;
  t.fp32_scratch = ready.fp32_scratch;
  if (t.plan.operation == Operation::kBarrier) {
    t.buffer = staging_.slice(t.barrier % kBarrierPlaces * kBarrierPlaceBytes, dtype_size(t.dtype()));
  }
  TL_ASSERT(t.buffer.length == t.buffer_bytes && !(t.exchanges && t.in_parts));
  TL_ASSERT(!t.sums || !needs_fp32_scratch(t.plan, config_.hosts) ||
            t.fp32_scratch.length == t.plan.elements * sizeof(float));
  t.results_left = t.results_due;
  t.sends_left = t.sends.count;
  t.older = newest_;
  t.newer = kNoIndex;
  (newest_ == kNoIndex ? oldest_ : tables_.tensors[newest_].newer) = ready.tensor.value;
  newest_ = ready.tensor.value;
  ++counters_.operations_pending;

  for (std::uint32_t s = t.sends.first; s < t.sends.end(); ++s) {
    SendItem& item = tables_.sends[s];
    item.state = SendItem::State::kIdle;
    item.eager = false;
    item.grant = item.aux = 0;
    item.picked = 0;
  }
  if (t.result_in)
    t.result_grant = grants_.give({.kind = Grant::Kind::kResult, .tensor = t.plan.id, .sequence = t.sequence});
  announce(t);
  for (std::uint32_t s = t.slices.first; s < t.slices.end(); ++s) begin_slice(t, s);
  complete_if_done(ready.tensor.value, out);
}

// Whether everything that the link's peer gets from me alone can go at once.
//
// Not of a push: nothing comes back from the owner, so a host that did not wait for its grant could be two operations
// ahead of it, and what it announces would have no place there (Parity).
bool Engine::Impl::eager_fits(const Tensor& t, const Link& link) const {
  return t.results && !t.in_parts && link.leaf_out > 0 && link.leaf_out_bytes_most <= config_.eager_limit.value &&
         credits_.left(link.peer) >= link.leaf_out;
}

// For one peer and one operation, my own data is either announced (kReady) or sent eagerly, never both: all of it or
// nothing. So the peer knows from the first frame what to grant. Whichever it is carries the grant for results. Where
// my data comes to exist in parts, kReady says only that, and each contribution is announced when it exists (kRts), so
// that grants answer what is there (law 2).
void Engine::Impl::announce(Tensor& t) {
  for (std::uint32_t l = t.links.first; l < t.links.end(); ++l) {
    const Link& link = tables_.links[l];
    if (link.leaf_out == 0 && !link.result_in) continue;
    const std::uint32_t result_grant = link.result_in ? t.result_grant : 0;
    if (!eager_fits(t, link)) {
      if (t.results && !t.in_parts && link.leaf_out > 0 && link.leaf_out_bytes_most <= config_.eager_limit.value)
        ++counters_.eager_refused;
      control_.push(
          link.peer, t.cls,
          {protocol::FrameType::kReady, t.plan.id, t.sequence, 0, result_grant, now_, t.in_parts && link.leaf_out > 0});
      continue;
    }
    for (std::uint32_t s = t.slices.first; s < t.slices.end(); ++s) {
      const Slice& slice = tables_.slices[s];
      if (slice.contribution == kNoIndex || slice.sources.count > 0 ||
          tables_.sends[slice.contribution].peer != link.peer)
        continue;
      send_eagerly(slice.contribution, result_grant);
    }
  }
}

void Engine::Impl::begin_slice(Tensor& t, std::uint32_t index) {
  Slice& slice = tables_.slices[index];
  slice.result.arrived = 0;
  slice.own_missing = t.in_parts && (t.sums || slice.owner) ? slice.elements : 0;
  if (t.sums) return begin_contributions(t, index);
  slice.phase = Slice::Phase::kContributed;
  if (slice.owner && slice.own_missing == 0) result_in_place(index);
}

void Engine::Impl::begin_contributions(Tensor& t, std::uint32_t index) {
  Slice& slice = tables_.slices[index];
  if (slice.contribution != kNoIndex && slice.sources.count == 0) {
    slice.phase = Slice::Phase::kContributed;
    SendItem& item = tables_.sends[slice.contribution];
    if (!item.eager && slice.own_missing == 0) item.state = SendItem::State::kAnnounced;
    return;
  }
  slice.phase = Slice::Phase::kGathering;
  slice.waiting = slice.own_missing > 0 ? 1 : 0;
  const Parity parity = t.parity();
  for (std::uint32_t i = slice.sources.first; i < slice.sources.end(); ++i) {
    const Source& source = tables_.sources[i];
    const bool announced = source.eager_slot[parity] != 0 || source.rts[parity] ||
                           (source.leaf && tables_.links[source.link].leaves_exist(parity));
    if (!announced) ++slice.waiting;
  }
  if (slice.waiting == 0) all_announced(index);
}

void Engine::Impl::take_part(const PartReady& part, ActionRing& out) {
  TL_ASSERT(part.tensor.value < tables_.tensors.size());
  Tensor& t = tables_.tensors[part.tensor.value];
  TL_ASSERT(t.in_parts && part.sequence == t.sequence);
  TL_ASSERT(part.elements > 0 && part.offset <= t.plan.elements && part.elements <= t.plan.elements - part.offset);
  if (!t.open) return;  // nobody needed all of it, on this rail or at all
  const std::uint64_t end = part.offset + part.elements;
  const auto slices = std::span(tables_.slices).subspan(t.slices.first, t.slices.count);
  const auto first = std::ranges::partition_point(
      slices, [&](const Slice& slice) { return slice.offset + slice.elements <= part.offset; });
  for (auto slice = first; slice != slices.end() && slice->offset < end; ++slice) {
    if (!t.sums && !slice->owner) continue;  // nobody asks for what this host has there
    const std::uint64_t from = std::max(slice->offset, part.offset),
                        to = std::min(slice->offset + slice->elements, end);
    TL_ASSERT(slice->own_missing >= to - from);
    slice->own_missing -= to - from;
    if (slice->own_missing == 0)
      own_part_exists(t, t.slices.first + static_cast<std::uint32_t>(slice - slices.begin()));
  }
  complete_if_done(part.tensor.value, out);
}

// All that this host contributes to the slice.
void Engine::Impl::own_part_exists(const Tensor& t, std::uint32_t index) {
  const Slice& slice = tables_.slices[index];
  if (!t.sums) return result_in_place(index);
  if (slice.contribution == kNoIndex || slice.sources.count > 0) return source_announced(index);
  announce_slice(t, slice.contribution);
}

}  // namespace tensorlane::engine
