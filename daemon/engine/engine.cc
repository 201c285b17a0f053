#include "daemon/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/assert.h"
#include "daemon/engine/impl.h"

namespace tensorlane::engine {

namespace {

constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t to) {
  return (n + to - 1) / to * to;
}

std::uint8_t queue_classes(const EngineConfig& config) {
  return config.single_queue ? std::uint8_t{1} : config.classes;
}

}  // namespace

Layout::Layout(const EngineConfig& config) {
  eager_offset = kBarrierPlaces * kBarrierPlaceBytes;
  pages_offset = bytes = eager_offset;
  if (config.hosts == 1) return;
  eager_slot_bytes = round_up(config.eager_limit.value, 64);
  eager_slots = static_cast<std::uint32_t>(
      std::min(std::uint64_t{config.hosts - 1u} * config.eager_credits, std::uint64_t{config.eager_slots}));
  pages_offset = round_up(eager_offset + eager_slots * eager_slot_bytes, 4096);
  pages = static_cast<std::uint32_t>(config.staging.value / kPageBytes);
  bytes = pages_offset + pages * kPageBytes;
}

Engine::Impl::Impl(const EngineConfig& config, const Descriptor& staging)
    : config_(config),
      layout_(config),
      staging_(staging),
      pool_(layout_.pages),
      credits_(config.hosts, config.eager_credits, layout_.eager_slots),
      queue_(queue_classes(config), config.hosts),
      control_(queue_classes(config), config.hosts),
      negotiation_(config.self, config.hosts),
      is_neighbour_(config.hosts) {
  TL_ASSERT(config.hosts >= 1 && config.self.value < config.hosts);
  TL_ASSERT(config.classes >= 1 && config.classes <= kMaxDataClasses);
  TL_ASSERT(config.world_size >= 1);
  TL_ASSERT(config.rails >= 1 && config.rails <= kMaxRails && config.rail.value < config.rails);
  TL_ASSERT(config.eager_credits <= kMaxEagerCredits && config.eager_limit <= kMaxOperation);
  TL_ASSERT(staging.length >= layout_.bytes);
  for (std::uint8_t c = 0; c < config.classes && !config.single_queue; ++c) {
    TL_ASSERT(c + 1 < config.classes || !config.limits[c].limited());
    buckets_[c] = TokenBucket(config.limits[c]);
    limited_ = limited_ || buckets_[c].limited();
  }
}

void Engine::Impl::act(const Action& action, ActionRing& out) {
  digest_.mix(action);
  const bool pushed = out.push(action);
  TL_ASSERT(pushed);
}

void Engine::Impl::take_offer(TensorId tensor, ActionRing& out) {
  TL_ASSERT(negotiates_);
  announce_agreed(negotiation_.offer(tensor), out);
  if (config_.self != Negotiation::kLeader) control_.due(ControlQueue::Due::kTensorWords, Negotiation::kLeader, now_);
}

// Every neighbour that is still to come is left its share.
void Engine::Impl::take_peer_up(HostIndex peer) {
  TL_ASSERT(peer.value < config_.hosts && is_neighbour_[peer.value] && neighbours_up_ < neighbours_.size());
  const auto waiting = static_cast<std::uint32_t>(neighbours_.size() - neighbours_up_++);
  if (credits_.lend(peer, waiting)) control_.due(ControlQueue::Due::kCredits, peer, now_);
}

void Engine::Impl::announce_agreed(const TensorWord& word, ActionRing& out) {
  if (word.bits == 0) return;
  for (std::uint16_t h = 0; h < config_.hosts; ++h) {
    if (negotiation_.due(HostIndex(h))) control_.due(ControlQueue::Due::kTensorWords, HostIndex(h), now_);
  }
  act({.kind = Action::Kind::kAgreed, .agreed = {word.index, word.bits}}, out);
}

void Engine::Impl::complete(std::uint32_t tensor, bool ok, ActionRing& out) {
  Tensor& t = tables_.tensors[tensor];
  t.open = false;
  (t.older == kNoIndex ? oldest_ : tables_.tensors[t.older].newer) = t.newer;
  (t.newer == kNoIndex ? newest_ : tables_.tensors[t.newer].older) = t.older;
  --counters_.operations_pending;
  const auto [first, last] = std::exchange(t.announced[t.parity()], {});
  act({.kind = Action::Kind::kComplete, .complete = {t.plan.id, t.sequence, ok, first, last}}, out);
}

// Takes one event; there is room for one action, and no event but kDrained makes more.
void Engine::Impl::take(const Event& event, ActionRing& out) {
  digest_.mix(now_, event);
  if (aborted_) {
    if (event.kind == Event::Kind::kTensorReady) {
      act({.kind = Action::Kind::kComplete, .complete = {event.tensor_ready.tensor, event.tensor_ready.sequence}}, out);
    } else if (event.kind == Event::Kind::kFrameArrived && event.frame.header.type == protocol::FrameType::kData) {
      ++counters_.stale_grants;
    }
    return;
  }
  switch (event.kind) {
    case Event::Kind::kTensorReady:
      begin(event.tensor_ready, out);
      break;
    case Event::Kind::kPartReady:
      take_part(event.part_ready, out);
      break;
    case Event::Kind::kFrameArrived:
      if (Fault fault = take_frame(event.frame.peer, event.frame.header, out)) {
        act({.kind = Action::Kind::kProtocolError, .error = {event.frame.peer, fault, event.frame.header}}, out);
      }
      break;
    case Event::Kind::kSendDone:
      take_send_done(event.token, out);
      break;
    case Event::Kind::kWorkDone:
      take_work_done(event.token, out);
      break;
    case Event::Kind::kBoost:
      take_boost(event.boost);
      break;
    case Event::Kind::kOffer:
      take_offer(event.offer.tensor, out);
      break;
    case Event::Kind::kPeerUp:
      take_peer_up(event.up.peer);
      break;
    case Event::Kind::kAbort:
    case Event::Kind::kDrained:
      aborted_ = true;
      break;
  }
  if (staging_changed_) serve_staging();
}

// Fails what is pending, oldest first. False when `out` is full before everything is told.
bool Engine::Impl::take_drained(ActionRing& out) {
  aborted_ = true;
  while (oldest_ != kNoIndex) {
    if (out.full()) return false;
    complete(oldest_, false, out);
  }
  return true;
}

void Engine::Impl::take_send_done(std::uint64_t token, ActionRing& out) {
  const std::uint64_t send = (token & 0xffffffff) - 1;
  TL_ASSERT(send < tables_.sends.size());
  SendItem& item = tables_.sends[send];
  const std::uint32_t tensor = tables_.slices[item.slice].tensor;
  Tensor& t = tables_.tensors[tensor];
  TL_ASSERT(item.in_flight > 0 && t.open && token >> 32 == (t.sequence.value & 0xffffffff));
  if (--item.in_flight > 0 || item.state != SendItem::State::kPicked) return;
  item.state = SendItem::State::kDone;
  --t.sends_left;
  complete_if_done(tensor, out);
}

void Engine::Impl::take_boost(const Boost& boost) {
  if (boost.tensor.value >= tables_.tensors.size() || config_.single_queue) return;
  Tensor& t = tables_.tensors[boost.tensor.value];
  if (!t.open || t.sequence != boost.sequence || t.boosted) return;
  t.boosted = true;
  for (std::uint32_t s = t.sends.first; s < t.sends.end(); ++s) {
    const SendItem& item = tables_.sends[s];
    if (item.state == SendItem::State::kQueued) queue_.move_up({item.peer, t.cls}, key_of(t, item.result), s);
  }
  for (std::uint32_t s = t.slices.first; s < t.slices.end(); ++s) {
    if (slice_positions_[s] == kNotQueued) continue;
    UrgencyHeap& heap =
        tables_.slices[s].phase == Slice::Phase::kStaging ? staging_wait_[t.cls.value] : work_[t.cls.value];
    heap.move_up(slice_positions_, key_of(t, false), s);
  }
}

// ---- the public face ----

Engine::Engine(const EngineConfig& config, const Descriptor& staging)
    : impl_(std::make_unique<Impl>(config, staging)) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;

Bytes Engine::staging_bytes(const EngineConfig& config) {
  return Bytes(Layout(config).bytes);
}

Status Engine::apply_plan(const Plan& plan) {
  TL_RETURN_IF_ERROR(check_known(impl_->tables_, plan));
  const auto known = static_cast<std::uint32_t>(std::min(impl_->tables_.tensors.size(), plan.tensors.size()));
  const protocol::TensorRange added{known, static_cast<std::uint32_t>(plan.tensors.size()) - known};
  TL_RETURN_IF_ERROR(protocol::check_batches(plan, added));
  return impl_->extend_plan(plan, added);
}

Status Engine::extend_plan(const Plan& plan, protocol::TensorRange added) {
  return impl_->extend_plan(plan, added);
}

Status Engine::vacate(protocol::TensorRange range) {
  return impl_->vacate(range);
}

std::size_t Engine::step(Time now, std::span<const Event> events, ActionRing& out) {
  impl_->now_ = now;
  std::size_t taken = 0;
  for (const Event& event : events) {
    if (event.kind == Event::Kind::kDrained) {
      if (!impl_->take_drained(out)) break;
      impl_->take(event, out);
    } else {
      if (out.full()) break;
      impl_->take(event, out);
    }
    ++taken;
  }
  return taken;
}

std::size_t Engine::granted(HostIndex peer, const protocol::FrameHeader& header, std::span<Descriptor> out) const {
  return impl_->granted(peer, header, out);
}

std::size_t Engine::pick(Time now, Flow flow, Bytes credit, std::span<Send> out) {
  return impl_->pick(now, flow, credit, out);
}

std::optional<ClassId> Engine::next_work() const {
  return impl_->aborted_ ? std::nullopt : impl_->next_work();
}

bool Engine::pick_work(Time, Work* out) {
  return !impl_->aborted_ && impl_->pick_work(out);
}

bool Engine::next_flow(Time now, ClassId cls, HostIndex after, HostIndex* peer) const {
  return !impl_->aborted_ && impl_->next_flow(now, cls, after, peer);
}

bool Engine::has_sends(Time now, Flow flow) const {
  return !impl_->aborted_ && impl_->has_sends(now, flow);
}

void Engine::set_priority(TensorId tensor, float urgency, ClassId cls) {
  Impl& i = *impl_;
  TL_ASSERT(i.config_.reclassifies && cls.value < i.config_.classes && urgency >= 0 && urgency <= 1);
  TL_ASSERT(tensor.value < i.tables_.tensors.size());
  Tensor& t = i.tables_.tensors[tensor.value];
  t.next_urgency = urgency;
  if (!i.config_.single_queue) t.next_cls = cls;
}

bool Engine::has_sends(Time now, ClassId cls) const {
  return !impl_->aborted_ && impl_->has_sends(now, cls);
}

std::optional<Time> Engine::promotion(Time now) const {
  return impl_->aborted_ ? std::nullopt : impl_->promotion(now);
}

Result<Descriptor> Engine::landing(HostIndex peer, const protocol::FrameHeader& header) const {
  if (impl_->aborted_) return Descriptor{};
  Impl::DataPlace place;
  Fault fault = impl_->check_header(peer, header);
  if (!fault && header.type != protocol::FrameType::kData) fault = "payload on a frame that carries none";
  if (!fault) fault = impl_->find_data(peer, header, &place);
  if (!fault) return place.stale ? Descriptor{} : place.landing;
  return Status(Code::kCorrupt, fault,
                fmt::format("tensor {} sequence {} slice {} from host {}", header.tensor.value, header.sequence.value,
                            header.slice, peer.value),
                "install the same tensorlane version on every host");
}

std::vector<HostIndex> Engine::missing(TensorId tensor) const {
  std::vector<HostIndex> hosts;
  if (tensor.value >= impl_->tables_.tensors.size()) return hosts;
  const Tensor& t = impl_->tables_.tensors[tensor.value];
  if (!t.open) return hosts;
  for (std::uint32_t l = t.links.first; l < t.links.end(); ++l) {
    const Link& link = impl_->tables_.links[l];
    const bool needed = link.leaf_sources.count > 0 || link.result_sends.count > 0;
    if (needed && (!link.announced(t.parity()) || impl_->keeps_parts(t, link))) hosts.push_back(link.peer);
  }
  return hosts;
}

// Whether a sum waits for a contribution that a peer, which began in parts, has not announced yet.
bool Engine::Impl::keeps_parts(const Tensor& t, const Link& link) const {
  if (!link.in_parts[t.parity()]) return false;
  const auto leaves = std::span(tables_.leaf_sources).subspan(link.leaf_sources.first, link.leaf_sources.count);
  return std::ranges::any_of(leaves, [&](std::uint32_t index) {
    const Source& source = tables_.sources[index];
    return !source.rts[t.parity()] && tables_.slices[source.slice].phase == Slice::Phase::kGathering;
  });
}

std::optional<Engine::Pending> Engine::oldest() const {
  if (impl_->oldest_ == kNoIndex) return std::nullopt;
  const Tensor& t = impl_->tables_.tensors[impl_->oldest_];
  return Pending{t.plan.id, t.sequence, t.since};
}

std::uint64_t Engine::vacant_slices() const {
  return impl_->tables_.holes.slices.entries();
}

std::span<const TensorId> Engine::awaited() const {
  return impl_->awaited_;
}

bool Engine::awaited(TensorId tensor, Time* since, Sequence* sequence) const {
  if (tensor.value >= impl_->tables_.tensors.size()) return false;
  const Tensor& t = impl_->tables_.tensors[tensor.value];
  const Tensor::Announced& next = t.announced[parity_of(Sequence(t.sequence.value + 1))];
  if (t.open || next.last == Time()) return false;
  *since = next.first;
  if (sequence != nullptr) *sequence = Sequence(t.sequence.value + 1);
  return true;
}

std::span<const HostIndex> Engine::neighbours() const {
  return impl_->neighbours_;
}

const EngineCounters& Engine::counters() const {
  EngineCounters& c = impl_->counters_;
  c.staging_bytes = impl_->pool_.used() * kPageBytes;
  c.staging_peak_bytes = impl_->pool_.most_used() * kPageBytes;
  c.queued_slices = impl_->queue_.size();
  return c;
}

Engine::Lent Engine::lent(HostIndex peer) const {
  const EagerCredits& credits = impl_->credits_;
  return {credits.out(peer), credits.owed(peer), credits.lent(peer), impl_->grants_.in_use()};
}

std::uint64_t Engine::digest() const {
  return impl_->digest_.value();
}

}  // namespace tensorlane::engine
