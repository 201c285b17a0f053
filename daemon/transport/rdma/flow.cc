#include "daemon/transport/rdma/flow.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "daemon/transport/handshake/frames.h"

namespace tensorlane::rdma {
namespace {

// Shorter pieces of a payload are copied behind the header: cheaper than a second address for the device to read, and
// short enough ones go inline.
constexpr std::size_t kGatherBytes = 512;

// Places behind a grant for which there is room from the start: pages of a slice of the default size. A grant of more
// makes room once.
constexpr std::size_t kUsualPlaces = 16;

constexpr const char* kLookThere = "look at the log of tensorlaned on that host";
constexpr const char* kSameVersion = "install the same tensorlane version on every host";

}  // namespace

Flow::Flow(ports::FlowKey key, handshake::JobPtr job, handshake::Fd socket,
           std::vector<std::unique_ptr<QueuePair>> pairs, const FlowSurroundings& around)
    : Watched(Kind::kFlow),
      key_(key),
      job_(std::move(job)),
      socket_(std::move(socket)),
      pairs_(std::move(pairs)),
      around_(around),
      local_(handshake::local_endpoint(socket_.get()).text()),
      remote_(handshake::peer_endpoint(socket_.get()).text()) {
  for (const auto& pair : pairs_) {
    pair->flow = this;
    finished_.emplace_back(kSendSlots);
  }
  for (Queued& slot : queue_) slot.places.reserve(kUsualPlaces);
}

Flow::~Flow() {
  stop();
}

// ---- sending ----

void Flow::enqueue(const ports::Outgoing& operation, bool payload_crc) {
  TL_ASSERT(writable());
  TL_ASSERT(operation.payload.size() <= kMaxOperation.value);
  const protocol::FrameHeader header = handshake::outgoing_header(operation, key_, *job_, payload_crc);
  Queued& slot = queued(queued_);
  protocol::encode_frame(header, slot.header);
  slot.payload = operation.payload;
  slot.grant = header.grant;
  slot.token = operation.token;
  slot.posted = 0;
  slot.begun = false;
  slot.target.reset();
  const ibv_mr* region = operation.payload.empty() ? nullptr : around_.registrations->find(operation.payload);
  slot.payload_key = region == nullptr ? 0 : region->lkey;
  const bool granted = header.type == protocol::FrameType::kData && (header.flags & protocol::kFlagEager) == 0;
  if (region != nullptr && granted)
    slot.target = around_.places->take(header.grant, header.offset, operation.payload.size());
  fill_places(slot, operation);
  ++queued_;
  const std::uint64_t bytes = slot.header.size() + slot.payload.size();
  in_flight_ += bytes;
  around_.in_flight += bytes;
}

void Flow::fill_places(Queued& slot, const ports::Outgoing& operation) const {
  slot.places.clear();
  if (operation.places.size() > kMaxPlaces) return;  // the peer sends in messages
  for (const std::span<std::byte> bytes : operation.places) {
    const ibv_mr* region = around_.registrations->find(bytes);
    if (region == nullptr || bytes.empty()) return slot.places.clear();
    slot.places.push_back({reinterpret_cast<std::uintptr_t>(bytes.data()), bytes.size(), region->rkey, 0});
  }
}

Status Flow::write() {
  if (ending_ || stopped_) return {};
  while (queued_ > 0) {
    QueuePair& pair = *pairs_[send_turn_];
    if (!pair.room()) break;
    Queued& operation = queued(0);
    push_message(pair, operation);
    if (operation.posted < operation.payload.size()) continue;
    counts_.bytes_sent += operation.header.size() + operation.payload.size();
    ++counts_.frames_sent;
    queue_head_ = (queue_head_ + 1) % kQueueOperations;
    --queued_;
    send_turn_ = (send_turn_ + 1) % pairs_.size();
  }
  for (const auto& pair : pairs_) {
    if (pair->credit_due()) pair->push_credit();
    TL_RETURN_IF_ERROR(pair->submit());
  }
  return {};
}

void Flow::push_message(QueuePair& pair, Queued& operation) {
  std::size_t used = sizeof(MessageHead);
  MessageHead head{.kind = operation.begun ? MessageKind::kMore : MessageKind::kFrame};
  if (!operation.begun) used = push_frame(pair, operation);
  head.places = operation.begun ? 0 : static_cast<std::uint8_t>(operation.places.size());
  head.credits = pair.take_owed();
  const std::size_t left = operation.payload.size() - operation.posted;
  QueuePair::Write write;
  std::size_t bytes = 0;
  QueuePair::Gather gather;
  if (operation.target && left > 0) {
    write = {operation.payload, operation.payload_key, *operation.target};
    head.landed_at = operation.target->address;
    operation.posted = operation.payload.size();
  } else {
    bytes = std::min(left, kMessageBytes - used);
    const auto piece = operation.payload.subspan(operation.posted, bytes);
    if (operation.payload_key != 0 && bytes > kGatherBytes) {
      gather = {piece, operation.payload_key};
    } else if (bytes > 0) {
      std::memcpy(pair.slot().data() + used, piece.data(), bytes);
      used += bytes;
    }
    operation.posted += bytes;
  }
  std::memcpy(pair.slot().data(), &head, sizeof head);
  const bool last = operation.posted == operation.payload.size();
  const std::uint32_t carried = static_cast<std::uint32_t>((operation.begun ? 0 : operation.header.size()) +
                                                           (head.landed_at != 0 ? operation.payload.size() : bytes));
  const std::uint32_t immediate = operation.begun ? 0 : operation.grant;
  operation.begun = true;
  pair.push(used, gather, head.landed_at != 0 ? &write : nullptr, immediate,
            {last ? operation.token : 0, carried, last});
}

// The frame's own part of its first message. Returns how much of the slot is used.
std::size_t Flow::push_frame(QueuePair& pair, Queued& operation) {
  std::byte* at = pair.slot().data() + sizeof(MessageHead);
  std::memcpy(at, operation.header.data(), operation.header.size());
  at += operation.header.size();
  if (!operation.places.empty()) std::memcpy(at, operation.places.data(), operation.places.size() * sizeof(Place));
  return kFrameOverhead + operation.places.size() * sizeof(Place);
}

void Flow::sent(QueuePair& pair, std::uint32_t position, ports::FrameSink& sink, std::size_t& handled) {
  while (const auto note = pair.completed(position)) {
    if (stopped_) continue;
    in_flight_ -= note->bytes;
    around_.in_flight -= note->bytes;
    if (!note->last) continue;
    ++handled;
    const auto at = std::ranges::find(pairs_, &pair, [](const auto& p) { return p.get(); }) - pairs_.begin();
    TL_ASSERT(finished_[static_cast<std::size_t>(at)].push(note->token));
  }
  while (!stopped_ && !finished_[sent_turn_].empty()) {
    const std::uint64_t token = finished_[sent_turn_].front();
    finished_[sent_turn_].pop();
    sent_turn_ = (sent_turn_ + 1) % pairs_.size();
    if (token != 0) sink.on_sent(key_, token);
  }
}

// ---- receiving ----

Status Flow::deliver(ports::FrameSink& sink, std::size_t& handled) {
  while (!stopped_) {
    QueuePair& pair = *pairs_[receive_turn_];
    const Message* message = pair.front();
    if (message == nullptr) return {};
    const bool frame = message->head.kind == MessageKind::kFrame;
    if (frame == in_frame_)
      return broken(Code::kCorrupt, frame ? "carried a frame inside another one" : "carried a payload without a frame",
                    kSameVersion);
    const Status status = frame ? take_frame(*message, sink, handled) : take_payload(message->payload, sink, handled);
    pair.pop();
    if (!in_frame_) receive_turn_ = (receive_turn_ + 1) % pairs_.size();
    if (!status.ok()) return status;
  }
  return {};
}

Status Flow::take_frame(const Message& message, ports::FrameSink& sink, std::size_t& handled) {
  Result<protocol::FrameHeader> header =
      protocol::decode_frame(message.frame_header.first<protocol::kFrameHeaderBytes>());
  if (!header.ok()) return broken(header.status().code(), "carried a " + header.status().what(), header.status().fix());
  header_ = *header;
  if (const std::string foreign = handshake::foreign_frame(header_, key_, *job_); !foreign.empty())
    return broken(Code::kMismatch, "carried " + foreign, kSameVersion);
  if (message.head.landed_at != 0 && header_.payload_bytes == 0)
    return broken(Code::kCorrupt, "carried a place without a payload", kSameVersion);
  if (const std::uint32_t grant = protocol::given_grant(header_); grant != 0) around_.places->put(grant, message);
  TL_ASSIGN_OR_RETURN(landing_, sink.on_header(key_, header_));
  if (stopped_) return {};
  TL_ASSERT(landing_.empty() || landing_.size() == header_.payload_bytes);
  in_frame_ = true;
  payload_left_ = header_.payload_bytes;
  dropping_ = landing_.empty() && payload_left_ > 0;
  crc_ = 0;
  if (message.head.landed_at != 0) {
    TL_RETURN_IF_ERROR(check_landed(message.head.landed_at));
    counts_.bytes_received += header_.payload_bytes;
    return frame_complete(sink, handled);
  }
  if (payload_left_ == 0) return frame_complete(sink, handled);
  ++around_.counters.payloads_copied;
  return take_payload(message.payload, sink, handled);
}

// The payload is where the peer was allowed to write; whether that is where it belongs is for the sink to say.
Status Flow::check_landed(std::uint64_t landed_at) {
  payload_left_ = 0;
  if (dropping_) return {};
  ++around_.counters.payloads_placed;
  const auto here = reinterpret_cast<std::uintptr_t>(landing_.data());
  if (here != landed_at) {
    return broken(Code::kCorrupt,
                  fmt::format("wrote a payload of {} bytes to {:#x}, it belongs at {:#x}", header_.payload_bytes,
                              landed_at, here),
                  kSameVersion);
  }
  if (header_.flags & protocol::kFlagPayloadCrc) crc_ = protocol::crc32c(landing_);
  return {};
}

Status Flow::take_payload(std::span<const std::byte> bytes, ports::FrameSink& sink, std::size_t& handled) {
  if (bytes.size() > payload_left_ || (bytes.empty() && payload_left_ > 0)) {
    return broken(Code::kCorrupt,
                  fmt::format("carried {} bytes where {} were left of a payload", bytes.size(), payload_left_),
                  kSameVersion);
  }
  if (!dropping_) {
    std::memcpy(landing_.last(payload_left_).data(), bytes.data(), bytes.size());
    if (header_.flags & protocol::kFlagPayloadCrc) crc_ = protocol::crc32c(bytes, crc_);
  }
  counts_.bytes_received += bytes.size();
  payload_left_ -= bytes.size();
  return payload_left_ == 0 ? frame_complete(sink, handled) : Status();
}

Status Flow::frame_complete(ports::FrameSink& sink, std::size_t& handled) {
  landing_ = {};
  in_frame_ = false;
  ++counts_.frames_received;
  counts_.bytes_received += protocol::kFrameHeaderBytes;
  ++handled;
  if (dropping_) {
    ++around_.counters.payloads_dropped;
    return {};
  }
  if (const std::string wrong = handshake::wrong_crc(header_, crc_); !wrong.empty())
    return broken(Code::kCorrupt, "carried " + wrong, "check memory and network cards of both hosts");
  sink.on_frame(key_, header_);
  return {};
}

// ---- ends ----

Status Flow::look_at_connection() {
  std::byte byte;
  const ssize_t received = ::recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  if (received > 0) return broken(Code::kCorrupt, "carried bytes beside the queue pairs", kSameVersion);
  if (received == 0) return broken(Code::kUnavailable, "was closed by the peer", kLookThere);
  const char* how = errno == ECONNRESET || errno == EPIPE ? "was reset" : "failed";
  return broken(Code::kUnavailable, fmt::format("{}: {}", how, handshake::errno_text(errno)), kLookThere);
}

void Flow::begin_end() {
  ending_ = true;
  for (const auto& pair : pairs_) pair->fail();
}

void Flow::stop() {
  if (stopped_) return;
  stopped_ = true;
  around_.in_flight -= in_flight_;
  in_flight_ = 0;
  queued_ = 0;
}

bool Flow::drained() const {
  return std::ranges::all_of(pairs_, [](const auto& pair) { return pair->drained(); });
}

bool Flow::has(const ibv_qp* wanted) const {
  return std::ranges::any_of(pairs_, [wanted](const auto& pair) { return pair->get() == wanted; });
}

Status Flow::failure() const {
  for (const auto& pair : pairs_) {
    if (!pair->failure.ok()) return broken(pair->failure.code(), pair->failure.what(), pair->failure.fix());
  }
  return {};
}

Status Flow::broken(Code code, const std::string& how, const std::string& fix) const {
  return {code, fmt::format("{} {}", handshake::connection_name(key_.peer, remote_, key_.cls), how), {}, fix};
}

ports::FlowStats Flow::stats() const {
  ports::FlowStats stats = counts_;
  const int traffic_class = pairs_.front()->traffic_class();
  stats.effective_dscp = traffic_class < 0 ? -1 : traffic_class >> 2;
  stats.describe =
      fmt::format("{} -> {}, {} queue pair{}", local_, remote_, pairs_.size(), pairs_.size() == 1 ? "" : "s");
  return stats;
}

}  // namespace tensorlane::rdma
