// What goes next.
#include <algorithm>

#include "common/base/assert.h"
#include "daemon/engine/impl.h"

namespace tensorlane::engine {

std::uint64_t Engine::Impl::key_of(const Tensor& t, bool result) {
  return config_.single_queue ? ++arrivals_ : send_key(t.boosted, t.iteration, result, t.urgency);
}

protocol::FrameHeader Engine::Impl::header_for(protocol::FrameType type, ClassId cls) const {
  return {.type = type, .cls = cls, .job = config_.job, .epoch = config_.epoch};
}

std::uint64_t Engine::Impl::send_bytes(const SendItem& item) const {
  const Slice& slice = tables_.slices[item.slice];
  const Tensor& t = tables_.tensors[slice.tensor];
  return slice.elements * dtype_size(item.result ? t.dtype() : wire_dtype(t, slice.sources.count == 0));
}

// The bytes exist and may go.
void Engine::Impl::queue_send(std::uint32_t send) {
  SendItem& item = tables_.sends[send];
  const Tensor& t = tables_.tensors[tables_.slices[item.slice].tensor];
  item.state = SendItem::State::kQueued;
  item.eligible = now_;
  queue_.push({item.peer, t.cls}, key_of(t, item.result), send);
}

// What a class may not send any more travels in the next one: so a class is fed by the run of used-up classes directly
// above it, and by itself; one that is used up itself sends nothing.
Engine::Impl::Feeding Engine::Impl::feeding(Time now, ClassId cls) const {
  Feeding f{cls.value, static_cast<std::uint8_t>(cls.value + 1)};
  if (!limited_ || cls.value >= config_.classes) return f;
  if (buckets_[cls.value].empty(now)) return {cls.value, cls.value};
  while (f.first > 0 && buckets_[f.first - 1u].empty(now)) --f.first;
  return f;
}

// The class of the send that goes next in this flow; kControlClass when there is none.
ClassId Engine::Impl::most_urgent(Time now, Flow flow) const {
  const Feeding from = feeding(now, flow.cls);
  ClassId best = kControlClass;
  for (std::uint8_t c = from.first; c < from.end; ++c) {
    const Flow own{flow.peer, ClassId(c)};
    if (queue_.empty(own)) continue;
    if (best == kControlClass || queue_.before(own, {flow.peer, best})) best = own.cls;
  }
  return best;
}

void Engine::Impl::charge(Time now, ClassId of, ClassId in, std::uint64_t bytes) {
  buckets_[in.value].take(now, Bytes(bytes));
  if (of != in) counters_.demoted_bytes[of.value] += bytes;
}

bool Engine::Impl::has_sends(Time now, Flow flow) const {
  return flow.cls == kControlClass ? !control_.empty(flow.peer) : most_urgent(now, flow) != kControlClass;
}

bool Engine::Impl::has_sends(Time now, ClassId cls) const {
  if (cls == kControlClass) return !control_.empty();
  const Feeding from = feeding(now, cls);
  for (std::uint8_t c = from.first; c < from.end; ++c) {
    if (!queue_.empty(ClassId(c))) return true;
  }
  return false;
}

bool Engine::Impl::next_flow(Time now, ClassId cls, HostIndex after, HostIndex* peer) const {
  if (cls == kControlClass) return control_.next_peer(after, peer);
  const Feeding from = feeding(now, cls);
  const auto distance = [&](HostIndex host) { return (host.value + config_.hosts - after.value - 1u) % config_.hosts; };
  bool found = false;
  for (std::uint8_t c = from.first; c < from.end; ++c) {
    HostIndex next;
    if (!queue_.next_peer(ClassId(c), after, &next)) continue;
    if (!found || distance(next) < distance(*peer)) *peer = next;
    found = true;
  }
  return found;
}

std::optional<Time> Engine::Impl::promotion(Time now) const {
  std::optional<Time> first;
  bool waits = false;  // something of this class, or something that is demoted through it
  for (std::uint8_t c = 0; limited_ && c < config_.classes; ++c) {
    const bool empty = buckets_[c].empty(now);
    waits = empty && (waits || !queue_.empty(ClassId(c)));
    if (!waits) continue;
    if (!first || buckets_[c].ready_at() < *first) first = buckets_[c].ready_at();
  }
  return first;
}

std::size_t Engine::Impl::pick(Time now, Flow flow, Bytes credit, std::span<Send> out) {
  if (aborted_) return 0;
  if (flow.cls == kControlClass) return pick_control(flow.peer, out);
  std::size_t picked = 0;
  while (picked < out.size()) {
    const ClassId of = most_urgent(now, flow);
    if (of == kControlClass) break;
    const Flow own{flow.peer, of};
    const std::uint32_t send = queue_.top(own);
    SendItem& item = tables_.sends[send];
    const std::uint64_t total = send_bytes(item);
    const std::uint64_t from = item.picked * kMaxOperation.value;
    const std::uint64_t bytes = std::min(total - from, kMaxOperation.value);
    if (bytes > credit.value) break;
    credit -= Bytes(bytes);
    charge(now, of, flow.cls, bytes);
    out[picked] = make_send(flow, send, from, bytes);
    digest_.mix(out[picked++]);
    ++item.picked;
    ++item.in_flight;
    if (from + bytes < total) continue;
    item.state = SendItem::State::kPicked;
    queue_.pop(own);
    ++counters_.slices_sent;
    if (item.eager) ++counters_.eager_sent;
  }
  return picked;
}

Send Engine::Impl::make_send(Flow flow, std::uint32_t send, std::uint64_t from, std::uint64_t bytes) {
  const SendItem& item = tables_.sends[send];
  const Slice& slice = tables_.slices[item.slice];
  const Tensor& t = tables_.tensors[slice.tensor];
  Send s{.header = header_for(protocol::FrameType::kData, flow.cls), .eligible = item.eligible};
  s.header.flags = item.eager ? protocol::kFlagEager : 0;
  s.header.payload_bytes = static_cast<std::uint32_t>(bytes);
  s.header.grant = item.grant;
  s.header.tensor = t.plan.id;
  s.header.sequence = t.sequence;
  s.header.slice = slice.number;
  s.header.aux = item.aux;
  // What a grant covers starts with the tensor for results, and with the slice for contributions.
  s.header.offset = from + (item.result ? slice.offset * dtype_size(t.dtype()) : 0);
  s.token = (t.sequence.value & 0xffffffff) << 32 | (std::uint64_t{send} + 1);
  if (item.result) {
    s.payload = t.buffer.slice(slice.sent_from * dtype_size(t.dtype()) + from, bytes);
  } else {
    const Work::Source whole = slice.sources.count == 0 ? own_contribution(t, slice.offset, slice.elements)
                                                        : partial_place(t, slice.offset, slice.elements);
    s.payload = whole.data.slice(from, bytes);
  }
  return s;
}

std::size_t Engine::Impl::granted(HostIndex peer, const protocol::FrameHeader& header,
                                  std::span<Descriptor> out) const {
  const Grant* grant = grants_.find(protocol::given_grant(header));
  if (grant == nullptr) return 0;
  if (grant->kind == Grant::Kind::kResult) {
    const Tensor& t = tables_.tensors[grant->tensor.value];
    if (t.buffer.length == 0 || out.empty()) return 0;
    out[0] = t.buffer;
    return 1;
  }
  if (grant->peer != peer) return 0;
  const Source& source = tables_.sources[grant->source];
  const std::uint64_t length = source.extent.length, pages = pages_for(length);
  if (pages > out.size()) return 0;
  const Parity parity = parity_of(grant->sequence);
  for (std::uint64_t i = 0; i < pages; ++i) {
    out[i] = source_place(source, parity, i * kPageBytes, std::min(kPageBytes, length - i * kPageBytes));
  }
  return pages;
}

std::size_t Engine::Impl::pick_control(HostIndex peer, std::span<Send> out) {
  std::size_t picked = 0;
  if (Send s; picked < out.size() && control_.is_due(ControlQueue::Due::kCredits, peer, &s.eligible)) {
    control_.settle(ControlQueue::Due::kCredits, peer);
    s.header = header_for(protocol::FrameType::kCredit, kControlClass);
    s.header.offset = credits_.give_back(peer);
    s.header.aux = static_cast<std::uint32_t>(std::popcount(s.header.offset));
    digest_.mix(s);
    out[picked++] = s;
  }
  for (Send s; picked < out.size() && control_.is_due(ControlQueue::Due::kTensorWords, peer, &s.eligible);) {
    const bool leads = config_.self == Negotiation::kLeader;
    const TensorWord word = negotiation_.take_due(peer);
    if (!negotiation_.due(peer)) control_.settle(ControlQueue::Due::kTensorWords, peer);
    s.header = header_for(leads ? protocol::FrameType::kAgreed : protocol::FrameType::kOffer, kControlClass);
    s.header.slice = word.index;
    s.header.offset = word.bits;
    digest_.mix(s);
    out[picked++] = s;
  }
  ControlMessage message;
  while (picked < out.size() && control_.pop(peer, &message)) {
    Send s{.header = header_for(message.type, kControlClass), .eligible = message.since};
    s.header.tensor = message.tensor;
    s.header.sequence = message.sequence;
    s.header.slice = message.slice;
    s.header.grant = message.grant;
    s.header.flags = message.in_parts ? protocol::kFlagInParts : 0;
    digest_.mix(s);
    out[picked++] = s;
  }
  return picked;
}

}  // namespace tensorlane::engine
