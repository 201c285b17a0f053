// Frames from peers. A peer may send anything: each rule is checked before anything changes, and what breaks one
// changes nothing.
#include <algorithm>
#include <bit>
#include <span>

#include "daemon/engine/impl.h"

namespace tensorlane::engine {

using protocol::FrameHeader;
using protocol::FrameType;

Fault Engine::Impl::check_header(HostIndex peer, const FrameHeader& h) const {
  if (peer.value >= config_.hosts || peer == config_.self) return "frame from a host that is no peer";
  if (h.job != config_.job || h.epoch != config_.epoch) return "frame of another job or epoch";
  if ((h.flags & protocol::kFlagMessage) != 0) return "payload of a message in a job that has none";
  return nullptr;
}

// The operation must be the one that runs here, or the next one.
Fault Engine::Impl::find_operation(const FrameHeader& h, bool* current) const {
  if (h.tensor.value >= tables_.tensors.size()) return "tensor that is not in the plan";
  const Tensor& t = tables_.tensors[h.tensor.value];
  *current = t.open && h.sequence == t.sequence;
  if (!*current && h.sequence.value != t.sequence.value + 1)
    return "sequence that is neither the current nor the next one";
  return nullptr;
}

// The slice that the frame names, in the tables. A rail has only its own.
Fault Engine::Impl::find_slice(const FrameHeader& h, std::uint32_t* slice) const {
  const Tensor& t = tables_.tensors[h.tensor.value];
  if (!t.rail.has(h.slice)) return "slice of another rail";
  std::uint32_t index = t.rail.index(h.slice);
  if (t.exchanges) {  // this host has only those of its own blocks
    const auto slices = std::span(tables_.slices).subspan(t.slices.first, t.slices.count);
    const auto found = std::ranges::lower_bound(slices, h.slice, {}, &Slice::number);
    if (found == slices.end() || found->number != h.slice) return "slice that this host has no part in";
    index = static_cast<std::uint32_t>(found - slices.begin());
  }
  if (index >= t.slices.count) return "slice that the tensor does not have";
  *slice = t.slices.first + index;
  return nullptr;
}

std::uint32_t Engine::Impl::find_link(const Tensor& t, HostIndex peer) const {
  const auto first = tables_.links.begin() + t.links.first, end = tables_.links.begin() + t.links.end();
  const auto found = std::lower_bound(first, end, peer, [](const Link& link, HostIndex p) { return link.peer < p; });
  return found != end && found->peer == peer ? static_cast<std::uint32_t>(found - tables_.links.begin()) : kNoIndex;
}

std::uint32_t Engine::Impl::find_source(const Slice& slice, HostIndex peer) const {
  // In a parameter server's slice every peer has its place; other patterns have few sources.
  const std::uint32_t guess = slice.sources.first + peer.value - (peer > config_.self ? 1 : 0);
  if (guess < slice.sources.end() && tables_.sources[guess].peer == peer) return guess;
  for (std::uint32_t i = slice.sources.first; i < slice.sources.end(); ++i) {
    if (tables_.sources[i].peer == peer) return i;
  }
  return kNoIndex;
}

void Engine::Impl::note_announced(Tensor& t, const FrameHeader& h) {
  Tensor::Announced& announced = t.announced[parity_of(h.sequence)];
  if (announced.last == Time()) announced.first = now_;
  announced.last = now_;
  if (h.sequence == t.sequence || t.awaited != kNoIndex) return;
  t.awaited = static_cast<std::uint32_t>(awaited_.size());
  awaited_.push_back(t.plan.id);
}

// The operation that peers had announced begins here.
void Engine::Impl::end_awaited(Tensor& t) {
  if (t.awaited == kNoIndex) return;
  const TensorId last = awaited_.back();
  awaited_[t.awaited] = last;
  tables_.tensors[last.value].awaited = t.awaited;
  awaited_.pop_back();
  t.awaited = kNoIndex;
}

Fault Engine::Impl::take_frame(HostIndex peer, const FrameHeader& h, ActionRing& out) {
  if (Fault fault = check_header(peer, h)) return fault;
  if (h.type != FrameType::kData && h.payload_bytes != 0) return "payload on a frame that carries none";
  switch (h.type) {
    case FrameType::kReady:
      return take_ready(peer, h);
    case FrameType::kRts:
      return take_rts(peer, h);
    case FrameType::kGrant:
      return take_grant(peer, h);
    case FrameType::kData:
      return take_data(peer, h, out);
    case FrameType::kCredit:
      if (static_cast<std::uint32_t>(std::popcount(h.offset)) != h.aux || !credits_.refund(peer, h.offset))
        return "credit that was not spent";
      return nullptr;
    case FrameType::kOffer:
    case FrameType::kAgreed:
      return take_word(peer, h, out);
    case FrameType::kDelivered:
    case FrameType::kGoodbye:
      return "frame that transports keep to themselves";
    case FrameType::kMessage:
    case FrameType::kMessageGrant:
    case FrameType::kMessageRefused:
      return "message in a job that has none";
  }
  return "unknown frame type";
}

// Offers go to the leader, and what is agreed on comes from it.
Fault Engine::Impl::take_word(HostIndex peer, const FrameHeader& h, ActionRing& out) {
  const bool leads = config_.self == Negotiation::kLeader;
  if (!negotiates_) return "negotiation in a job whose plan has none";
  if (leads != (h.type == FrameType::kOffer)) return "negotiation with a host that does not lead it";
  if (!leads && peer != Negotiation::kLeader) return "agreement from a host that does not lead the job";
  TensorWord word{h.slice, h.offset};
  if (!negotiation_.knows(word)) return "negotiation of tensors that are not in the plan";
  if (leads && !negotiation_.offered(peer, word, &word)) return "operation offered twice";
  if (!leads && !negotiation_.agreed(word)) return "agreement on an operation that was not offered";
  announce_agreed(word, out);
  return nullptr;
}

Fault Engine::Impl::take_ready(HostIndex peer, const FrameHeader& h) {
  bool current = false;
  if (Fault fault = find_operation(h, &current)) return fault;
  Tensor& t = tables_.tensors[h.tensor.value];
  const Parity parity = parity_of(h.sequence);
  const std::uint32_t l = find_link(t, peer);
  if (l == kNoIndex) return "announcement from a host that has no part in the tensor";
  Link& link = tables_.links[l];
  if (link.leaf_sources.count == 0 && link.result_sends.count == 0) return "announcement that nobody needs";
  if (link.announced(parity)) return "operation announced twice";
  if ((h.grant != 0) != (link.result_sends.count > 0)) return "announcement with a wrong grant for results";
  const bool in_parts = (h.flags & protocol::kFlagInParts) != 0;
  if (in_parts && link.leaf_sources.count == 0) return "announcement in parts of what has none";
  link.ready[parity] = true;
  link.in_parts[parity] = in_parts;
  link.grant[parity] = h.grant;
  note_announced(t, h);
  if (current) peer_announced(t, link);
  return nullptr;
}

Fault Engine::Impl::take_rts(HostIndex peer, const FrameHeader& h) {
  bool current = false;
  std::uint32_t index = 0;
  if (Fault fault = find_operation(h, &current)) return fault;
  if (Fault fault = find_slice(h, &index)) return fault;
  Tensor& t = tables_.tensors[h.tensor.value];
  const Parity parity = parity_of(h.sequence);
  const std::uint32_t s = find_source(tables_.slices[index], peer);
  if (s == kNoIndex) return "contribution from a host that has none for the slice";
  Source& source = tables_.sources[s];
  if (source.leaf && !tables_.links[source.link].in_parts[parity]) return "partial sum from a host that makes none";
  if (source.rts[parity] || source.eager_slot[parity] != 0) return "contribution announced twice";
  if (current && tables_.slices[index].phase != Slice::Phase::kGathering) return "contribution announced twice";
  source.rts[parity] = true;
  if (t.announced[parity].last == Time()) note_announced(t, h);
  if (current) source_announced(index);
  return nullptr;
}

Fault Engine::Impl::take_grant(HostIndex peer, const FrameHeader& h) {
  bool current = false;
  if (Fault fault = find_operation(h, &current)) return fault;
  std::uint32_t index = 0;
  if (Fault fault = find_slice(h, &index)) return fault;
  if (!current) return "grant for an operation that is not announced";
  const std::uint32_t send = tables_.slices[index].contribution;
  if (send == kNoIndex || tables_.sends[send].peer != peer) return "grant for a contribution that does not go there";
  if (tables_.sends[send].state != SendItem::State::kAnnounced) return "grant for a contribution that is not announced";
  if (h.grant == 0) return "grant without an id";
  tables_.sends[send].grant = h.grant;
  queue_send(send);
  return nullptr;
}

Fault Engine::Impl::find_eager(HostIndex peer, const FrameHeader& h, DataPlace* place) const {
  bool current = false;
  std::uint32_t index = 0;
  if (Fault fault = find_operation(h, &current)) return fault;
  if (Fault fault = find_slice(h, &index)) return fault;
  const Parity parity = parity_of(h.sequence);
  const std::uint32_t s = find_source(tables_.slices[index], peer);
  if (s == kNoIndex) return "contribution from a host that has none for the slice";
  const Source& source = tables_.sources[s];
  const Link& link = tables_.links[source.link];
  if (h.payload_bytes != source.extent.length || h.offset != 0) return "eager payload that is not a whole contribution";
  if (h.payload_bytes > config_.eager_limit.value) return "eager payload above the limit";
  if (h.grant == 0 || !credits_.may_fill(peer, h.grant - 1)) return "eager payload without credit";
  const bool announced = source.eager_slot[parity] != 0 || source.rts[parity] || (source.leaf && link.ready[parity]);
  if (announced || (current && tables_.slices[index].phase != Slice::Phase::kGathering))
    return "contribution sent twice";
  if ((h.aux != 0) != (source.leaf && link.result_sends.count > 0))
    return "eager payload with a wrong grant for results";
  if (source.leaf && link.eager[parity] && link.grant[parity] != h.aux)
    return "eager payload with a wrong grant for results";
  Source landed = source;
  landed.eager_slot[parity] = static_cast<std::uint8_t>(h.grant);
  *place = {false, h.tensor.value, index, s, parity, source_place(landed, parity, 0, h.payload_bytes)};
  return nullptr;
}

Fault Engine::Impl::find_result(HostIndex peer, const FrameHeader& h, std::uint32_t index, DataPlace* place) const {
  const Tensor& t = tables_.tensors[h.tensor.value];
  const Slice& slice = tables_.slices[index];
  if (slice.owner || slice.result_from != peer) return "result from a host that does not send it";
  const bool open = slice.phase == Slice::Phase::kContributed || slice.phase == Slice::Phase::kResult;
  const bool contributed =
      slice.contribution == kNoIndex || tables_.sends[slice.contribution].state >= SendItem::State::kPicked;
  if (!open || !contributed) return "result before its contribution";
  const std::uint64_t begin = slice.offset * dtype_size(t.dtype());
  if (h.offset < begin) return "payload outside its grant";
  if (Fault fault = slice.result.check(h.offset - begin, h.payload_bytes)) return fault;
  *place = {false, h.tensor.value, index, kNoIndex, t.parity(), t.buffer.slice(h.offset, h.payload_bytes)};
  return nullptr;
}

Fault Engine::Impl::find_data(HostIndex peer, const FrameHeader& h, DataPlace* place) const {
  if ((h.flags & protocol::kFlagEager) != 0) return find_eager(peer, h, place);
  const Grant* grant = grants_.find(h.grant);
  if (grant == nullptr) {
    place->stale = true;
    return nullptr;
  }
  if (grant->tensor != h.tensor || grant->sequence != h.sequence) return "grant of another operation";
  const Tensor& t = tables_.tensors[h.tensor.value];
  std::uint32_t index = 0;
  if (Fault fault = find_slice(h, &index)) return fault;
  if (grant->kind == Grant::Kind::kResult) return find_result(peer, h, index, place);
  if (grant->peer != peer) return "grant of another host";
  const Source& source = tables_.sources[grant->source];
  if (source.slice != index) return "grant of another slice";
  if (Fault fault = source.extent.check(h.offset, h.payload_bytes)) return fault;
  *place = {false,         h.tensor.value, source.slice,
            grant->source, t.parity(),     source_place(source, t.parity(), h.offset, h.payload_bytes)};
  return nullptr;
}

Fault Engine::Impl::take_data(HostIndex peer, const FrameHeader& h, ActionRing& out) {
  DataPlace place;
  if (Fault fault = find_data(peer, h, &place)) return fault;
  if (place.stale) {
    ++counters_.stale_grants;
    return nullptr;
  }
  if ((h.flags & protocol::kFlagEager) != 0) return take_eager(peer, h, place);
  if (place.source == kNoIndex) return take_result(h, place, out);
  Source& source = tables_.sources[place.source];
  if (Fault fault = source.extent.take(h.offset, h.payload_bytes)) return fault;
  if (!source.extent.complete()) return nullptr;
  grants_.retire(source.grant);
  source.grant = 0;
  source_landed(place.slice);
  return nullptr;
}

Fault Engine::Impl::take_eager(HostIndex peer, const FrameHeader& h, const DataPlace& place) {
  Tensor& t = tables_.tensors[place.tensor];
  const bool current = t.open && h.sequence == t.sequence;
  Source& source = tables_.sources[place.source];
  Link& link = tables_.links[source.link];
  credits_.fill(peer, h.grant - 1);
  source.eager_slot[place.parity] = static_cast<std::uint8_t>(h.grant);
  const bool first = source.leaf && !link.eager[place.parity];
  if (first || t.announced[place.parity].last == Time()) note_announced(t, h);
  if (first) {
    link.eager[place.parity] = true;
    link.grant[place.parity] = h.aux;
  }
  if (!current) return nullptr;
  source_announced(place.slice);
  if (first) peer_announced(t, link);
  return nullptr;
}

Fault Engine::Impl::take_result(const FrameHeader& h, const DataPlace& place, ActionRing& out) {
  Slice& slice = tables_.slices[place.slice];
  const std::uint64_t begin = slice.offset * dtype_size(tables_.tensors[place.tensor].dtype());
  if (Fault fault = slice.result.take(h.offset - begin, h.payload_bytes)) return fault;
  if (!slice.result.complete()) return nullptr;
  result_in_place(place.slice);
  end_part(place.slice, out);
  return nullptr;
}

}  // namespace tensorlane::engine
