// What goes between hosts: frames from peers, each checked before it counts, and what goes next.
#include <fmt/format.h>

#include <algorithm>

#include "common/base/assert.h"
#include "common/protocol/session.h"
#include "daemon/engine/messages/messages.h"

namespace tensorlane::engine {

using protocol::FrameHeader;
using protocol::FrameType;

// ---- frames ----

const char* Messages::take_frame(Time now, HostIndex peer, const FrameHeader& h) {
  if (aborted_) return nullptr;
  if (peer.value >= config_.hosts || peer == config_.self) return "frame from a host that is no peer";
  if (h.job != config_.job || h.epoch != config_.epoch) return "frame of another job or epoch";
  switch (h.type) {
    case FrameType::kMessage:
      return take_announcement(now, peer, h);
    case FrameType::kMessageGrant:
    case FrameType::kMessageRefused:
      return take_answer(now, peer, h);
    case FrameType::kData:
      return take_data(peer, h);
    default:
      return "frame that is not of a message";
  }
}

const char* Messages::take_announcement(Time now, HostIndex peer, const FrameHeader& h) {
  const Rank source(h.tensor.value), destination(h.slice);
  const std::vector<HostIndex>& host_of = config_.host_of;
  if (source.value >= host_of.size() || host_of[source.value] != peer)
    return "message from a rank that is not of this host";
  if (destination.value >= host_of.size() || host_of[destination.value] != config_.self)
    return "message to a rank of another host";
  const std::uint32_t dtype = h.aux & 0xff, set = h.aux >> 8;
  if (dtype >= kDtypeCount || h.offset > protocol::kMaxElements) return "message of an impossible size";
  if (h.grant == 0) return "message without an id";
  if (peers_[peer.value].unanswered == config_.announcements) return "more messages announced than there is credit for";
  ++peers_[peer.value].unanswered;
  announced(now, {source, destination, set, h.sequence.value, h.offset, static_cast<Dtype>(dtype), peer, h.grant});
  return nullptr;
}

const char* Messages::take_answer(Time now, HostIndex peer, const FrameHeader& h) {
  const std::uint32_t index = find(h.aux);
  if (index == kNone) return "answer to a message that was not announced";
  Item& item = items_[index];
  if (!item.sends || item.peer != peer || item.state != State::kAnnounced)
    return "answer to a message that was not announced";
  const bool refused = h.type == FrameType::kMessageRefused;
  if (refused && (h.slice >= kDtypeCount || h.offset > protocol::kMaxElements)) return "refusal without a cause";
  const bool same = h.offset == item.message.count && h.slice == static_cast<std::uint32_t>(item.message.dtype);
  if (refused && same) return "refusal without a cause";
  if (!refused && h.grant == 0) return "grant without an id";
  --peers_[peer.value].announced;
  look_at_control(peer);
  item.done.other_count = refused ? h.offset : item.message.count;
  item.done.other_dtype = refused ? static_cast<Dtype>(h.slice) : item.message.dtype;
  if (refused) {
    finish(index, Code::kMismatch);
  } else if (item.message.count == 0) {
    finish(index, Code::kOk);
  } else {
    item.state = State::kTravels;
    item.other = h.grant;
    item.since = now;
    const ClassId cls = item.message.cls;
    heaps_.push(std::size_t{cls.value} * config_.hosts + peer.value, -item.message.urgency, ++grants_, index);
    data_[cls.value].insert(peer);
  }
  return nullptr;
}

// The receive whose bytes these are; kNone where the grant is stale.
const char* Messages::find_landing(HostIndex peer, const FrameHeader& h, std::uint32_t* receive) const {
  *receive = find(h.grant);
  if (*receive == kNone) return nullptr;
  const Item& item = items_[*receive];
  if (item.sends || item.peer != peer || item.state != State::kTravels || item.answers)
    return "grant of another message";
  const std::uint64_t left = bytes_of(item.message) - item.moved;
  if (h.offset != item.moved || h.payload_bytes != std::min(left, kMaxOperation.value))
    return "payload outside its grant";
  return nullptr;
}

Result<Descriptor> Messages::landing(HostIndex peer, const FrameHeader& h) const {
  if (aborted_) return Descriptor{};
  const char* fault = nullptr;
  std::uint32_t receive = kNone;
  if (peer.value >= config_.hosts || peer == config_.self) fault = "frame from a host that is no peer";
  if (h.job != config_.job || h.epoch != config_.epoch) fault = "frame of another job or epoch";
  if (h.type != FrameType::kData) fault = "payload on a frame that carries none";
  if (fault == nullptr) fault = find_landing(peer, h, &receive);
  if (fault == nullptr)
    return receive == kNone ? Descriptor{} : items_[receive].message.buffer.slice(h.offset, h.payload_bytes);
  return Status(Code::kCorrupt, fault, fmt::format("message under grant {:#x} from host {}", h.grant, peer.value),
                "install the same tensorlane version on every host");
}

const char* Messages::take_data(HostIndex peer, const FrameHeader& h) {
  std::uint32_t receive = kNone;
  if (const char* fault = find_landing(peer, h, &receive)) return fault;
  if (receive == kNone) return nullptr;
  Item& item = items_[receive];
  item.moved += h.payload_bytes;
  if (item.moved == bytes_of(item.message)) finish(receive, Code::kOk);
  return nullptr;
}

// ---- what goes ----

FrameHeader Messages::header_for(FrameType type, ClassId cls) const {
  return {.type = type, .cls = cls, .job = config_.job, .epoch = config_.epoch};
}

void Messages::peer_up(HostIndex host) {
  peers_[host.value].up = true;
  look_at_control(host);
}

// Answers go at once, announcements as far as credit goes.
void Messages::look_at_control(HostIndex host) {
  const Peer& peer = peers_[host.value];
  if (!peer.up) return;
  const bool may_announce = !peer.sends.empty() && peer.announced < config_.announcements;
  if (!peer.answers.empty() || may_announce) {
    control_.insert(host);
  } else {
    control_.erase(host);
  }
}

bool Messages::has_sends(Flow flow) const {
  if (aborted_) return false;
  if (flow.cls == kControlClass) return control_.contains(flow.peer);
  return flow.cls.value < config_.classes && data_[flow.cls.value].contains(flow.peer);
}

bool Messages::next_flow(ClassId cls, HostIndex after, HostIndex* peer) const {
  if (aborted_) return false;
  if (cls == kControlClass) return control_.next(after, peer);
  return cls.value < config_.classes && data_[cls.value].next(after, peer);
}

std::size_t Messages::pick(Flow flow, Bytes credit, std::span<Send> out) {
  if (!has_sends(flow)) return 0;
  return flow.cls == kControlClass ? pick_control(flow.peer, out) : pick_data(flow, credit, out);
}

std::size_t Messages::pick_control(HostIndex host, std::span<Send> out) {
  Peer& peer = peers_[host.value];
  std::size_t picked = 0;
  while (picked < out.size() && !peer.answers.empty()) {
    const std::uint32_t index = take_first(items_, peer.answers);
    Item& item = items_[index];
    Send s{.header = header_for(item.refuses ? FrameType::kMessageRefused : FrameType::kMessageGrant, kControlClass),
           .eligible = item.since};
    s.header.aux = item.other;
    s.header.grant = item.refuses ? 0 : id_of(index);
    s.header.offset = item.refuses ? item.message.count : 0;
    s.header.slice = item.refuses ? static_cast<std::uint32_t>(item.message.dtype) : 0;
    out[picked++] = s;
    --peer.unanswered;
    item.answers = false;
    if (item.refuses) finish(index, Code::kMismatch);
    if (!item.refuses && item.message.count == 0) finish(index, Code::kOk);
  }
  while (picked < out.size() && !peer.sends.empty() && peer.announced < config_.announcements) {
    const std::uint32_t index = take_first(items_, peer.sends);
    Item& item = items_[index];
    Send s{.header = header_for(FrameType::kMessage, kControlClass), .eligible = item.since};
    s.header.tensor = TensorId(item.message.source.value);
    s.header.slice = item.message.destination.value;
    s.header.sequence = Sequence(item.message.tag);
    s.header.offset = item.message.count;
    s.header.aux = static_cast<std::uint32_t>(item.message.dtype) | item.message.set << 8;
    s.header.grant = id_of(index);
    out[picked++] = s;
    item.state = State::kAnnounced;
    ++peer.announced;
  }
  look_at_control(host);
  return picked;
}

std::size_t Messages::pick_data(Flow flow, Bytes credit, std::span<Send> out) {
  const std::size_t queue = std::size_t{flow.cls.value} * config_.hosts + flow.peer.value;
  std::size_t picked = 0;
  while (picked < out.size() && !heaps_.empty(queue)) {
    const std::uint32_t index = heaps_.top(queue);
    Item& item = items_[index];
    const std::uint64_t total = bytes_of(item.message);
    const std::uint64_t bytes = std::min(total - item.moved, kMaxOperation.value);
    if (bytes > credit.value) break;
    credit -= Bytes(bytes);
    Send s{.header = header_for(FrameType::kData, flow.cls), .eligible = item.since};
    s.header.flags = protocol::kFlagMessage;
    s.header.payload_bytes = static_cast<std::uint32_t>(bytes);
    s.header.grant = item.other;
    s.header.offset = item.moved;
    s.payload = item.message.buffer.slice(item.moved, bytes);
    s.token = id_of(index);
    out[picked++] = s;
    item.moved += bytes;
    ++item.in_flight;
    if (item.moved == total) heaps_.pop(queue);
  }
  if (heaps_.empty(queue)) data_[flow.cls.value].erase(flow.peer);
  return picked;
}

void Messages::sent(std::uint64_t token) {
  const std::uint32_t index = find(static_cast<std::uint32_t>(token));
  TL_ASSERT(index != kNone && items_[index].in_flight > 0);
  Item& item = items_[index];
  if (--item.in_flight == 0 && item.moved == bytes_of(item.message)) finish(index, Code::kOk);
}

// ---- copies on this host ----

std::optional<ClassId> Messages::next_copy() const {
  for (std::uint8_t c = 0; c < config_.classes && !aborted_; ++c) {
    if (!heaps_.empty(std::size_t{c} * config_.hosts + config_.self.value)) return ClassId(c);
  }
  return std::nullopt;
}

bool Messages::pick_copy(MessageCopy* out) {
  const std::optional<ClassId> cls = next_copy();
  if (!cls) return false;
  const std::size_t queue = std::size_t{cls->value} * config_.hosts + config_.self.value;
  const std::uint32_t index = heaps_.top(queue);
  Item& item = items_[index];
  const std::uint64_t total = bytes_of(item.message);
  const std::uint64_t bytes = std::min(total - item.moved, kMaxOperation.value);
  *out = {items_[item.other].message.buffer.slice(item.moved, bytes), item.message.buffer.slice(item.moved, bytes),
          *cls, id_of(index)};
  item.moved += bytes;
  ++item.in_flight;
  if (item.moved == total) heaps_.pop(queue);
  return true;
}

void Messages::copied(std::uint64_t token) {
  const std::uint32_t index = find(static_cast<std::uint32_t>(token));
  TL_ASSERT(index != kNone && items_[index].in_flight > 0);
  Item& item = items_[index];
  if (--item.in_flight > 0 || item.moved < bytes_of(item.message)) return;
  finish(item.other, Code::kOk);
  finish(index, Code::kOk);
}

}  // namespace tensorlane::engine
