#include "daemon/transport/rdma/flow.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/transport/handshake/frames.h"
#include "daemon/transport/resume/exchange.h"

namespace tensorlane::rdma {
namespace {

// Shorter pieces of a payload are copied behind the header: cheaper than a second address for the device to read, and
// short enough ones go inline.
constexpr std::size_t kGatherBytes = 512;

// Places behind a grant for which there is room from the start: pages of a slice of the default size. A grant of more
// makes room once.
constexpr std::size_t kUsualPlaces = 16;

// The one thing that the handshake's connection may carry.
constexpr std::byte kGoodbye{'B'};

constexpr const char* kSameVersion = "install the same tensorlane version on every host";

// Queued, and posted and not reported as sent: a pair has kCredits messages out at most, and as the pairs take turns
// another one is at most one operation ahead of it.
constexpr std::uint32_t kept_operations(std::size_t pairs) {
  return static_cast<std::uint32_t>(kQueueOperations + pairs * kSendSlots);
}

}  // namespace

Flow::Flow(const ports::FlowKey& key, handshake::JobPtr job, const resume::FlowIdentity& identity, Connected connected,
           const FlowContext& context)
    : Resumable(key, std::move(job), identity, kept_operations(connected.pairs.size())),
      context_(context),
      queue_(kept_operations(connected.pairs.size())) {
  for (Queued& slot : queue_) slot.places.reserve(kUsualPlaces);
  adopt(std::move(connected));
}

void Flow::adopt(Connected connected) {
  socket_ = std::move(connected.socket);
  pairs_ = std::move(connected.pairs);
  note_ends(socket_.get());
  for (const auto& pair : pairs_) pair->flow = this;
  path_mtu_ = pairs_.front()->path_mtu();
  finished_.assign(pairs_.size(), 0);
  send_turn_ = sent_turn_ = receive_turn_ = 0;
  lost_ = false;
  unheard_ = resumes() && connected.connecting_end;
  if (resumes() && !connected.connecting_end) pairs_.front()->push_credit();
}

Flow::~Flow() {
  stop();
}

// ---- sending ----

void Flow::send(const ports::Outgoing& operation) {
  TL_ASSERT(writable());
  TL_ASSERT(operation.payload.size() <= kMaxOperation.value);
  const protocol::FrameHeader header = handshake::outgoing_header(operation, key_, *job_, context_.share.payload_crc);
  Queued& added = slot(out_.push());
  protocol::encode_frame(header, added.header);
  added.payload = operation.payload;
  added.grant = header.grant;
  added.token = operation.token;
  added.target.reset();
  const ibv_mr* region = operation.payload.empty() ? nullptr : context_.registrations->find(operation.payload);
  added.payload_key = region == nullptr ? 0 : region->lkey;
  // A message's grant has numbers of its own, which are of no place.
  constexpr int kUngranted = protocol::kFlagEager | protocol::kFlagMessage;
  const bool granted = header.type == protocol::FrameType::kData && (header.flags & kUngranted) == 0;
  if (region != nullptr && granted)
    added.target = context_.places->take(header.grant, header.offset, operation.payload.size());
  fill_places(added, header);
  in_flight_ += added.bytes();
  context_.share.in_flight += added.bytes();
  mark_dirty();
}

void Flow::mark_dirty() {
  if (gone || std::exchange(dirty, true)) return;
  context_.share.dirty.push_back(this);
}

void Flow::unmark_dirty() {
  if (std::exchange(dirty, false)) std::erase(context_.share.dirty, this);
}

// Where the peer may write under the grant that the frame gives. Nothing: it sends in messages.
void Flow::fill_places(Queued& slot, const protocol::FrameHeader& header) const {
  slot.places.clear();
  if (protocol::given_grant(header) == 0) return;
  const std::span<const std::span<std::byte>> granted = sink_->granted(header);
  if (granted.size() > kMaxPlaces) return;
  for (const std::span<std::byte> bytes : granted) {
    const ibv_mr* region = context_.registrations->find(bytes);
    if (region == nullptr || bytes.empty()) return slot.places.clear();
    slot.places.push_back({reinterpret_cast<std::uintptr_t>(bytes.data()), bytes.size(), region->rkey, 0});
  }
}

Status Flow::write() {
  if (ending_ || stopped_ || !connected()) return {};
  while (out_.next() < out_.pushed()) {
    QueuePair& pair = *pairs_[send_turn_];
    if (!pair.room()) break;
    Queued& operation = slot(out_.next());
    push_message(pair, operation);
    if (head_posted_ < operation.payload.size()) continue;
    counts_.bytes_sent += operation.bytes();
    ++counts_.frames_sent;
    out_.written();
    head_posted_ = 0;
    head_begun_ = false;
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
  MessageHead head{.kind = head_begun_ ? MessageKind::kMore : MessageKind::kFrame};
  if (!head_begun_) used = push_frame(pair, operation);
  head.places = head_begun_ ? 0 : static_cast<std::uint8_t>(operation.places.size());
  head.credits = pair.take_owed();
  const std::size_t left = operation.payload.size() - head_posted_;
  QueuePair::Write write;
  std::size_t bytes = 0;
  QueuePair::Gather gather;
  if (operation.target && left > 0) {
    write = {operation.payload, operation.payload_key, *operation.target};
    head.landed_at = operation.target->address;
    head_posted_ = operation.payload.size();
  } else {
    bytes = std::min(left, kMessageBytes - used);
    const auto piece = operation.payload.subspan(head_posted_, bytes);
    if (operation.payload_key != 0 && bytes > kGatherBytes) {
      gather = {piece, operation.payload_key};
    } else if (bytes > 0) {
      std::memcpy(pair.slot().data() + used, piece.data(), bytes);
      used += bytes;
    }
    head_posted_ += bytes;
  }
  std::memcpy(pair.slot().data(), &head, sizeof head);
  const bool last = head_posted_ == operation.payload.size();
  const std::uint32_t carried = static_cast<std::uint32_t>((head_begun_ ? 0 : operation.header.size()) +
                                                           (head.landed_at != 0 ? operation.payload.size() : bytes));
  const std::uint32_t immediate = head_begun_ ? 0 : operation.grant;
  head_begun_ = true;
  pair.push(used, gather, head.landed_at != 0 ? &write : nullptr, immediate, {carried, last});
}

// The frame's own part of its first message. Returns how much of the slot is used.
std::size_t Flow::push_frame(QueuePair& pair, Queued& operation) {
  std::byte* at = pair.slot().data() + sizeof(MessageHead);
  std::memcpy(at, operation.header.data(), operation.header.size());
  at += operation.header.size();
  if (!operation.places.empty()) std::memcpy(at, operation.places.data(), operation.places.size() * sizeof(Place));
  return kFrameOverhead + operation.places.size() * sizeof(Place);
}

void Flow::sent(QueuePair& pair, std::uint32_t position, std::size_t& handled) {
  while (const auto note = pair.completed(position)) {
    if (stopped_) continue;
    in_flight_ -= note->bytes;
    context_.share.in_flight -= note->bytes;
    if (!note->last) continue;
    ++handled;
    const auto at = std::ranges::find(pairs_, &pair, [](const auto& p) { return p.get(); }) - pairs_.begin();
    ++finished_[static_cast<std::size_t>(at)];
  }
  report_sent();
}

void Flow::report_sent() {
  while (!stopped_ && !unheard_ && finished_[sent_turn_] > 0) {
    --finished_[sent_turn_];
    sent_turn_ = (sent_turn_ + 1) % pairs_.size();
    report_oldest();
  }
}

void Flow::report_oldest() {
  const std::uint64_t token = slot(out_.delivered()).token;
  TL_ASSERT(out_.acknowledge(out_.delivered() + 1));
  if (token != 0) sink_->on_sent(token);
}

// ---- receiving ----

Status Flow::deliver(std::size_t& handled) {
  if (unheard_ && std::ranges::any_of(pairs_, [](const auto& pair) { return pair->heard(); })) {
    unheard_ = false;
    report_sent();
  }
  while (!stopped_ && !settled()) {
    QueuePair& pair = *pairs_[receive_turn_];
    const Message* message = pair.front();
    if (message == nullptr) return {};
    const bool frame = message->head.kind == MessageKind::kFrame;
    if (frame == in_frame_)
      return broken(Code::kCorrupt, frame ? "carried a frame inside another one" : "carried a payload without a frame",
                    kSameVersion);
    const Status status = frame ? take_frame(*message, handled) : take_payload(message->payload, handled);
    pair.pop();
    if (!in_frame_) receive_turn_ = (receive_turn_ + 1) % pairs_.size();
    if (!status.ok()) return status;
  }
  return {};
}

Status Flow::take_frame(const Message& message, std::size_t& handled) {
  Result<protocol::FrameHeader> header =
      protocol::decode_frame(message.frame_header.first<protocol::kFrameHeaderBytes>());
  if (!header.ok()) return broken(header.status().code(), "carried a " + header.status().what(), header.status().fix());
  header_ = *header;
  if (const std::string foreign = handshake::foreign_frame(header_, key_, *job_); !foreign.empty())
    return broken(Code::kMismatch, "carried " + foreign, kSameVersion);
  if (message.head.landed_at != 0 && header_.payload_bytes == 0)
    return broken(Code::kCorrupt, "carried a place without a payload", kSameVersion);
  if (const std::uint32_t grant = protocol::given_grant(header_); grant != 0) context_.places->put(grant, message);
  TL_ASSIGN_OR_RETURN(landing_, sink_->on_header(header_));
  if (stopped_) return {};
  TL_ASSERT(landing_.empty() || landing_.size() == header_.payload_bytes);
  in_frame_ = true;
  payload_left_ = header_.payload_bytes;
  dropping_ = landing_.empty() && payload_left_ > 0;
  crc_ = 0;
  if (message.head.landed_at != 0) {
    TL_RETURN_IF_ERROR(check_landed(message.head.landed_at));
    counts_.bytes_received += header_.payload_bytes;
    return frame_complete(handled);
  }
  if (payload_left_ == 0) return frame_complete(handled);
  ++context_.counters.payloads_copied;
  return take_payload(message.payload, handled);
}

// The payload is where the peer was allowed to write; whether that is where it belongs is for the sink to say.
Status Flow::check_landed(std::uint64_t landed_at) {
  payload_left_ = 0;
  if (dropping_) return {};
  ++context_.counters.payloads_placed;
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

Status Flow::take_payload(std::span<const std::byte> bytes, std::size_t& handled) {
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
  return payload_left_ == 0 ? frame_complete(handled) : Status();
}

Status Flow::frame_complete(std::size_t& handled) {
  landing_ = {};
  in_frame_ = false;
  ++counts_.frames_received;
  counts_.bytes_received += protocol::kFrameHeaderBytes;
  ++handled;
  if (dropping_) {
    ++context_.counters.payloads_dropped;
    in_.deliver();
    return {};
  }
  if (const std::string wrong = handshake::wrong_crc(header_, crc_); !wrong.empty())
    return broken(Code::kCorrupt, "carried " + wrong, "check memory and network cards of both hosts");
  in_.deliver();
  sink_->on_frame(header_);
  return {};
}

// ---- ends ----

Status Flow::look_at_connection() {
  std::byte byte;
  const ssize_t received = ::recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  goodbye_ = goodbye_ || (received > 0 && byte == kGoodbye && resumes());
  if (received == 0 || goodbye_) return broken(Code::kUnavailable, "was closed by the peer", resume::kLookThere);
  if (received > 0) return broken(Code::kCorrupt, "carried bytes beside the queue pairs", kSameVersion);
  const char* how = errno == ECONNRESET || errno == EPIPE ? "was reset" : "failed";
  return broken(Code::kUnavailable, fmt::format("{}: {}", how, handshake::errno_text(errno)), resume::kLookThere);
}

void Flow::disconnect() {
  lost_ = true;
  for (const auto& pair : pairs_) pair->fail();
  socket_.reset();
}

void Flow::drop_pairs() {
  pairs_.clear();
  context_.share.in_flight -= in_flight_;
  in_flight_ = 0;
  head_posted_ = 0;
  head_begun_ = false;
  landing_ = {};
  payload_left_ = 0;
  in_frame_ = dropping_ = false;
}

std::uint64_t Flow::resume(Connected connected, ledger::Number delivered) {
  TL_ASSERT(settled() && !stopped_);
  in_.ack();  // the handshake has
  // Acknowledgements of these were lost with the queue pairs.
  while (!stopped_ && out_.delivered() < delivered) report_oldest();
  if (stopped_) return 0;
  adopt(std::move(connected));
  const std::optional<std::uint64_t> again = out_.resume(delivered);
  TL_ASSERT(again);
  for (ledger::Number n = out_.next(); n < out_.pushed(); ++n) in_flight_ += slot(n).bytes();
  context_.share.in_flight += in_flight_;
  return *again;
}

void Flow::say_goodbye() {
  if (!resumes() || !connected()) return;
  [[maybe_unused]] const ssize_t sent = ::send(socket_.get(), &kGoodbye, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void Flow::begin_end() {
  ending_ = true;
  for (const auto& pair : pairs_) pair->fail();
}

void Flow::stop() {
  if (stopped_) return;
  stopped_ = true;
  context_.share.in_flight -= in_flight_;
  in_flight_ = 0;
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

ports::FlowStats Flow::stats() const {
  ports::FlowStats stats = counts_;
  if (!connected()) return stats;
  const int traffic_class = pairs_.front()->traffic_class();
  stats.effective_dscp = traffic_class < 0 ? -1 : traffic_class >> 2;
  stats.transport = "rdma";
  stats.describe =
      fmt::format("{} -> {}, {} queue pair{}", local_, remote_, pairs_.size(), pairs_.size() == 1 ? "" : "s");
  return stats;
}

ports::FlowProgress Flow::progress() const {
  return {.given = out_.pushed(), .received = in_.delivered(), .outstanding_bytes = in_flight_, .path_mtu = path_mtu_};
}

}  // namespace tensorlane::rdma
