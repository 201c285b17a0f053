// Contributions: they flow up to the owner and are summed on the way, in the plan's order.
#include <algorithm>
#include <bit>

#include "common/base/assert.h"
#include "daemon/engine/impl.h"

namespace tensorlane::engine {
namespace {

// A block is at most kMaxOperation in the widest type that its sum can have, and a power of two of that, so that no
// block crosses a page of staging. Where it has many sources it is smaller, so that it reads at most four pages, and
// what is more urgent does not wait for long.
std::uint64_t block_elements(const Tensor& t, const Slice& slice) {
  constexpr std::uint64_t kPages = 4;
  const std::uint64_t page = kMaxOperation.value / std::max(dtype_size(t.dtype()), dtype_size(t.partial_dtype));
  const auto terms = std::min<std::uint64_t>(slice.sources.count + 1, Work::kMaxSources);
  return page / std::max<std::uint64_t>(std::bit_ceil(terms) / kPages, 1);
}

// More sources than one Work holds are summed in several passes, each beginning with the sum so far.
std::uint32_t passes_of(const Slice& slice) {
  const std::uint32_t n = slice.sources.count + 1;
  if (n <= Work::kMaxSources) return 1;
  return 1 + (n - 2) / (Work::kMaxSources - 1);
}

std::uint64_t work_token(const Tensor& t, std::uint32_t slice) {
  return (t.sequence.value & 0xffffffff) << 32 | (std::uint64_t{slice} + 1);
}

}  // namespace

void Engine::Impl::source_announced(std::uint32_t index) {
  Slice& slice = tables_.slices[index];
  TL_ASSERT(slice.phase == Slice::Phase::kGathering && slice.waiting > 0);
  if (--slice.waiting == 0) all_announced(index);
}

// Everything that the slice's sum needs exists. Only now is staging taken, all of it at once: so no staging ever waits
// for somebody's data to come into being, or for another grant (law 2).
void Engine::Impl::all_announced(std::uint32_t index) {
  Slice& slice = tables_.slices[index];
  const Tensor& t = tables_.tensors[slice.tensor];
  if (pages_wanted(slice) == 0) return queue_work(index);
  slice.phase = Slice::Phase::kStaging;
  staging_wait_[t.cls.value].push(slice_positions_, key_of(t, false), index);
  staging_changed_ = true;
}

std::uint64_t Engine::Impl::pages_wanted(const Slice& slice) const {
  const Parity parity = tables_.tensors[slice.tensor].parity();
  std::uint64_t pages = 0;
  for (std::uint32_t i = slice.sources.first; i < slice.sources.end(); ++i) {
    const Source& source = tables_.sources[i];
    if (source.eager_slot[parity] == 0) pages += pages_for(source.extent.length);
  }
  return pages;
}

// The most urgent slice of each class that waits for staging gets it first; nothing overtakes it inside its class.
// Bounded by the pages there are.
void Engine::Impl::serve_staging() {
  staging_changed_ = false;
  for (std::uint8_t c = 0; c < kMaxDataClasses; ++c) {
    UrgencyHeap& waiting = staging_wait_[c];
    while (!waiting.empty() && pool_.fits(ClassId(c), pages_wanted(tables_.slices[waiting.top()]))) {
      const std::uint32_t slice = waiting.top();
      waiting.pop(slice_positions_);
      grant(slice);
    }
  }
}

void Engine::Impl::grant(std::uint32_t index) {
  Slice& slice = tables_.slices[index];
  const Tensor& t = tables_.tensors[slice.tensor];
  slice.phase = Slice::Phase::kLanding;
  slice.waiting = 0;
  for (std::uint32_t i = slice.sources.first; i < slice.sources.end(); ++i) {
    Source& source = tables_.sources[i];
    if (source.eager_slot[t.parity()] != 0) continue;
    source.pages = pool_.take(t.cls, pages_for(source.extent.length));
    source.extent.arrived = 0;
    source.grant = grants_.give({Grant::Kind::kStaging, t.plan.id, t.sequence, source.peer, i});
    control_.push(source.peer, t.cls,
                  {protocol::FrameType::kGrant, t.plan.id, t.sequence, slice.number, source.grant, now_});
    ++slice.waiting;
    ++counters_.grants_given;
  }
}

void Engine::Impl::source_landed(std::uint32_t index) {
  Slice& slice = tables_.slices[index];
  TL_ASSERT(slice.phase == Slice::Phase::kLanding && slice.waiting > 0);
  if (--slice.waiting == 0) queue_work(index);
}

bool Engine::Impl::needs_arithmetic(const Tensor& t, const Slice& slice) const {
  return slice.sources.count > 0 || t.divisor != 1 || t.leaf_dtype != t.dtype();
}

void Engine::Impl::queue_work(std::uint32_t index) {
  Slice& slice = tables_.slices[index];
  const Tensor& t = tables_.tensors[slice.tensor];
  if (!needs_arithmetic(t, slice)) return reduced(index);
  slice.phase = Slice::Phase::kReducing;
  const std::uint64_t blocks = (slice.elements + block_elements(t, slice) - 1) / block_elements(t, slice);
  slice.units = static_cast<std::uint32_t>(blocks) * passes_of(slice);
  slice.units_picked = slice.units_done = 0;
  work_[t.cls.value].push(slice_positions_, key_of(t, false), index);
}

std::optional<ClassId> Engine::Impl::next_work() const {
  for (std::size_t c = 0; c < work_.size(); ++c) {
    if (!work_[c].empty()) return ClassId(static_cast<std::uint8_t>(c));
  }
  return std::nullopt;
}

bool Engine::Impl::pick_work(Work* out) {
  for (UrgencyHeap& heap : work_) {
    if (heap.empty()) continue;
    const std::uint32_t index = heap.top();
    Slice& slice = tables_.slices[index];
    fill_work(index, slice.units_picked++, out);
    // Passes over a block follow one another; blocks of one pass may be worked on at the same time.
    if (slice.units_picked == slice.units || passes_of(slice) > 1) heap.pop(slice_positions_);
    digest_.mix(*out);
    return true;
  }
  return false;
}

Work::Source Engine::Impl::own_contribution(const Tensor& t, std::uint64_t offset, std::uint64_t elements) const {
  const std::uint64_t size = dtype_size(t.leaf_dtype);
  return {(t.leaf_dtype == t.dtype() ? t.buffer : t.fp32_scratch).slice(offset * size, elements * size), t.leaf_dtype};
}

// Sums on their way lie in the tensor itself, or, where its elements have 16 bits, in its float32 scratch: never in
// staging, so that nothing in staging waits for a grant of the next host.
Work::Source Engine::Impl::partial_place(const Tensor& t, std::uint64_t offset, std::uint64_t elements) const {
  const std::uint64_t size = dtype_size(t.partial_dtype);
  return {(t.partial_dtype == t.dtype() ? t.buffer : t.fp32_scratch).slice(offset * size, elements * size),
          t.partial_dtype};
}

Descriptor Engine::Impl::source_place(const Source& source, Parity parity, std::uint64_t offset,
                                      std::uint64_t bytes) const {
  std::uint64_t at = 0;
  if (source.eager_slot[parity] != 0) {
    const std::uint32_t slot = credits_.place(source.peer, source.eager_slot[parity] - 1u);
    at = layout_.eager_offset + slot * layout_.eager_slot_bytes + offset;
  } else {
    at = layout_.pages_offset + pool_.page(source.pages, offset / kPageBytes) * kPageBytes + offset % kPageBytes;
  }
  return staging_.slice(at, bytes);
}

void Engine::Impl::fill_work(std::uint32_t index, std::uint32_t unit, Work* out) const {
  const Slice& slice = tables_.slices[index];
  const Tensor& t = tables_.tensors[slice.tensor];
  const std::uint32_t passes = passes_of(slice), pass = unit % passes, n = slice.sources.count + 1;
  const std::uint64_t begin = unit / passes * block_elements(t, slice);  // in the slice
  const std::uint64_t elements = std::min(slice.elements - begin, block_elements(t, slice));
  // The i-th term of the sum.
  const auto term = [&](std::uint32_t i) -> Work::Source {
    if (i == slice.self_place) return own_contribution(t, slice.offset + begin, elements);
    const Source& source = tables_.sources[slice.sources.first + i - (i > slice.self_place ? 1 : 0)];
    const Dtype dtype = wire_dtype(t, source.leaf);
    return {source_place(source, t.parity(), begin * dtype_size(dtype), elements * dtype_size(dtype)), dtype};
  };
  const Work::Source place = partial_place(t, slice.offset + begin, elements);
  // Between passes the sum lies where its first term was, if that has the right type: the tensor itself may hold a
  // later term.
  const auto accumulator = [&]() -> Work::Source {
    const Work::Source first = term(0);
    return first.dtype == place.dtype ? first : place;
  };
  const bool last = pass + 1 == passes;
  const std::uint32_t from = pass == 0 ? 0 : Work::kMaxSources + (pass - 1) * (Work::kMaxSources - 1);
  const std::uint32_t to = std::min<std::uint32_t>(n, from + Work::kMaxSources - (pass == 0 ? 0 : 1));
  out->source_count = 0;
  if (pass > 0) out->sources[out->source_count++] = accumulator();
  for (std::uint32_t i = from; i < to; ++i) out->sources[out->source_count++] = term(i);

  const std::uint64_t size = dtype_size(t.dtype());
  const Work::Source result{t.buffer.slice((slice.offset + begin) * size, elements * size), t.dtype()};
  const Work::Source into = !last ? accumulator() : slice.owner ? result : place;
  out->out = into.data;
  out->out_dtype = into.dtype;
  out->elements = elements;
  out->op = combining(t.plan.reduce);
  out->divisor = last && slice.owner ? t.divisor : 1;
  out->cls = t.cls;
  out->tensor = t.plan.id;
  out->sequence = t.sequence;
  out->token = work_token(t, index);
}

void Engine::Impl::take_work_done(std::uint64_t token, ActionRing& out) {
  const std::uint64_t index = (token & 0xffffffff) - 1;
  TL_ASSERT(index < tables_.slices.size());
  Slice& slice = tables_.slices[index];
  const Tensor& t = tables_.tensors[slice.tensor];
  TL_ASSERT(slice.phase == Slice::Phase::kReducing && slice.units_done < slice.units_picked);
  TL_ASSERT(token == work_token(t, static_cast<std::uint32_t>(index)));
  if (++slice.units_done == slice.units) {
    reduced(static_cast<std::uint32_t>(index));
    end_part(static_cast<std::uint32_t>(index), out);
  } else if (passes_of(slice) > 1) {
    work_[t.cls.value].push(slice_positions_, key_of(t, false), static_cast<std::uint32_t>(index));
  }
}

void Engine::Impl::reduced(std::uint32_t index) {
  Slice& slice = tables_.slices[index];
  const Tensor& t = tables_.tensors[slice.tensor];
  release_sources(t, slice);
  ++counters_.slices_reduced;
  if (slice.owner) return result_in_place(index);
  slice.phase = Slice::Phase::kContributed;
  contribute_partial(t, slice);
}

void Engine::Impl::release_sources(const Tensor& t, const Slice& slice) {
  const Parity parity = t.parity();
  for (std::uint32_t i = slice.sources.first; i < slice.sources.end(); ++i) {
    Source& source = tables_.sources[i];
    source.rts[parity] = false;
    if (source.eager_slot[parity] != 0) {
      if (credits_.free(source.peer, source.eager_slot[parity] - 1u)) {
        control_.due(ControlQueue::Due::kCredits, source.peer, now_);
      }
      source.eager_slot[parity] = 0;
    } else {
      pool_.release(t.cls, source.pages);
      source.pages = StagingPool::kNone;
      staging_changed_ = true;
    }
  }
}

// A sum that is not the last one goes on to the next host: at once on credit, else it is announced.
void Engine::Impl::contribute_partial(const Tensor& t, const Slice& slice) {
  SendItem& item = tables_.sends[slice.contribution];
  const bool small =
      t.results && send_bytes(item) <= config_.eager_limit.value;  // a push waits for grants, see eager_fits()
  if (small && credits_.left(item.peer) > 0) return send_eagerly(slice.contribution, 0);
  if (small) ++counters_.eager_refused;
  announce_slice(t, slice.contribution);
}

void Engine::Impl::announce_slice(const Tensor& t, std::uint32_t send) {
  SendItem& item = tables_.sends[send];
  item.state = SendItem::State::kAnnounced;
  control_.push(item.peer, t.cls,
                {protocol::FrameType::kRts, t.plan.id, t.sequence, tables_.slices[item.slice].number, 0, now_});
}

void Engine::Impl::send_eagerly(std::uint32_t send, std::uint32_t aux) {
  SendItem& item = tables_.sends[send];
  item.eager = true;
  item.grant = credits_.spend(item.peer) + 1;
  item.aux = aux;
  queue_send(send);
}

}  // namespace tensorlane::engine
