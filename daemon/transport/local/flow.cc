#include "daemon/transport/local/flow.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "daemon/transport/handshake/frames.h"

namespace tensorlane::local {
namespace {

// The peer may begin to read a payload when so much of it is there.
constexpr std::size_t kPieceBytes = std::size_t{64} << 10;

constexpr const char* kLookThere = "look at the log of that daemon";
constexpr const char* kSameVersion = "install the same tensorlane version on every host";

}  // namespace

Flow::Flow(const ports::FlowKey& key, handshake::JobPtr job, Ends ends, ClassShare& share,
           ports::TransportCounters& counters)
    : UpFlow(key, std::move(job)),
      ends_(std::move(ends)),
      share_(share),
      counters_(counters),
      mine_(ends_.connecting ? ends_.segment.page().connecting : ends_.segment.page().accepting),
      theirs_(ends_.connecting ? ends_.segment.page().accepting : ends_.segment.page().connecting),
      out_(ends_.segment.ring(ends_.connecting), mine_, theirs_),
      untaken_(kUntaken),
      in_(ends_.segment.ring(!ends_.connecting), mine_, theirs_) {
  note_ends(fd());
  mine_.reads_memory.store(ends_.peer.readable() ? 1 : 0, std::memory_order_relaxed);
}

Flow::~Flow() {
  stop();
}

// ---- sending ----

void Flow::send(const ports::Outgoing& operation) {
  TL_ASSERT(writable());
  TL_ASSERT(operation.payload.size() <= kMaxOperation.value);
  queue_[(queue_head_ + queued_) % kQueueOperations] = {
      handshake::outgoing_header(operation, key_, *job_, share_.payload_crc), operation.payload, operation.token};
  ++queued_;
  const std::uint64_t bytes = protocol::kFrameHeaderBytes + operation.payload.size();
  in_flight_ += bytes;
  share_.in_flight += bytes;
  share_.queued = true;
}

Status Flow::write(std::size_t& handled) {
  TL_RETURN_IF_ERROR(note_taken(handled));
  while (!stopped_ && queued_ > 0 && put_first()) finish_first(handled);
  return {};
}

Status Flow::note_taken(std::size_t& handled) {
  if (!out_.news()) return {};
  if (!out_.look()) return broken(Code::kCorrupt, "has taken more than it was sent", kSameVersion);
  while (!stopped_ && !untaken_.empty() && untaken_.front().end <= out_.taken()) {
    const Untaken frame = untaken_.front();
    untaken_.pop();
    in_flight_ -= frame.bytes;
    share_.in_flight -= frame.bytes;
    ++handled;
    if (frame.token == 0) continue;
    --unreported_;
    sink_->on_sent(frame.token);
  }
  return {};
}

bool Flow::put_first() {
  const Queued& operation = queue_[queue_head_];
  if (!begun_) {
    if (out_.room() < kRecordBytes || untaken_.full()) return false;
    stays_ = operation.payload.size() >= kStayBytes && theirs_.reads_memory.load(std::memory_order_relaxed) == 1;
    Record record{Record::Payload::kBehind, 0, operation.header};
    if (stays_) {
      record.payload = Record::Payload::kStays;
      record.address = reinterpret_cast<std::uintptr_t>(operation.payload.data());
    }
    RecordBytes bytes;
    encode_record(record, bytes);
    out_.put(bytes);
    begun_ = true;
    put_ = stays_ ? operation.payload.size() : 0;
  }
  while (put_ < operation.payload.size()) {
    const std::size_t piece = std::min({operation.payload.size() - put_, out_.room(), kPieceBytes});
    if (piece == 0) return false;
    out_.put(operation.payload.subspan(put_, piece));
    put_ += piece;
    out_.publish();
    wake(kWakeForBytes);
  }
  out_.publish();
  wake(kWakeForBytes);
  return true;
}

void Flow::finish_first(std::size_t& handled) {
  const Queued operation = queue_[queue_head_];
  queue_head_ = (queue_head_ + 1) % kQueueOperations;
  --queued_;
  begun_ = false;
  const std::uint64_t bytes = protocol::kFrameHeaderBytes + operation.payload.size();
  counts_.bytes_sent += bytes;
  ++counts_.frames_sent;
  ++handled;
  // In order: behind one that stays, every one waits.
  const bool report_now = operation.token != 0 && !stays_ && unreported_ == 0;
  const bool report_later = operation.token != 0 && !report_now;
  TL_ASSERT(untaken_.push({out_.produced(), bytes, report_later ? operation.token : 0, stays_}));
  unreported_ += report_later;
  if (report_now) sink_->on_sent(operation.token);
}

// ---- receiving ----

Status Flow::read(std::uint64_t& moved, std::size_t& handled) {
  // Whatever the peer put in before it went is there to be seen once its end has been seen.
  const bool last = hung_up_;
  if (!in_.look()) return broken(Code::kCorrupt, "has an impossible index in its ring", kSameVersion);
  const std::uint64_t before = in_.consumed(), begin = moved;
  Status status;
  while (status.ok() && !stopped_ && moved - begin < kBlockBytes) {
    if (in_.available() < (in_frame_ ? 1 : kRecordBytes)) break;
    status = in_frame_ ? take_payload(moved, handled) : take_record(moved, handled);
  }
  if (stopped_ || !status.ok()) return status;
  if (in_.consumed() != before) {
    in_.publish();
    wake(kWakeForRoom);
  }
  if (!last || readable()) return {};
  return broken(Code::kUnavailable,
                in_frame_ ? fmt::format("was closed by the peer in the middle of a frame ({} of {} payload bytes)",
                                        header_.payload_bytes - payload_left_, header_.payload_bytes)
                          : "was closed by the peer",
                kLookThere);
}

Status Flow::take_record(std::uint64_t& moved, std::size_t& handled) {
  RecordBytes bytes;
  in_.take(bytes);
  moved += bytes.size();
  const Result<Record> record = decode_record(bytes);
  if (!record.ok()) return broken(record.status().code(), "carried a " + record.status().what(), record.status().fix());
  header_ = record->header;
  if (const std::string foreign = handshake::foreign_frame(header_, key_, *job_); !foreign.empty())
    return broken(Code::kMismatch, "carried " + foreign, kSameVersion);
  TL_ASSIGN_OR_RETURN(landing_, sink_->on_header(header_));
  if (stopped_) return {};
  TL_ASSERT(landing_.empty() || landing_.size() == header_.payload_bytes);
  dropping_ = landing_.empty() && header_.payload_bytes > 0;
  if (record->payload == Record::Payload::kStays) {
    if (!dropping_) TL_RETURN_IF_ERROR(fetch(record->address));
    moved += header_.payload_bytes;
    return frame_complete(handled);
  }
  if (header_.payload_bytes == 0) return frame_complete(handled);
  if (!dropping_) ++counters_.payloads_copied;
  in_frame_ = true;
  payload_left_ = header_.payload_bytes;
  return {};
}

Status Flow::take_payload(std::uint64_t& moved, std::size_t& handled) {
  const std::size_t piece = std::min({in_.available(), payload_left_, kPieceBytes});
  if (dropping_) {
    in_.skip(piece);
  } else {
    in_.take(landing_.last(payload_left_).first(piece));
  }
  in_.publish();
  moved += piece;
  payload_left_ -= piece;
  return payload_left_ == 0 ? frame_complete(handled) : Status();
}

Status Flow::fetch(std::uint64_t address) {
  const bool good = ends_.peer.read(address, landing_);
  const int error = errno;
  // The peer gives its payloads back only after it has said that they count no more; so what was read before that is
  // what was sent. A process that is gone may have left its id to another one.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (theirs_.withdrawn.load(std::memory_order_relaxed) != 0 || peer_gone())
    return broken(Code::kUnavailable, "was closed by the peer before a payload had been read", kLookThere);
  if (!good) {
    return broken(Code::kCorrupt,
                  fmt::format("left a payload of {} bytes at {:#x} of its memory, which cannot be read: {}",
                              landing_.size(), address, handshake::errno_text(error)),
                  kSameVersion);
  }
  ++counters_.payloads_placed;
  return {};
}

Status Flow::frame_complete(std::size_t& handled) {
  in_frame_ = false;
  ++counts_.frames_received;
  counts_.bytes_received += protocol::kFrameHeaderBytes + header_.payload_bytes;
  ++handled;
  if (dropping_) {
    ++counters_.payloads_dropped;
    return {};
  }
  const bool checked = (header_.flags & protocol::kFlagPayloadCrc) != 0;
  const std::string wrong = handshake::wrong_crc(header_, checked ? protocol::crc32c(landing_) : 0);
  landing_ = {};
  if (!wrong.empty()) return broken(Code::kCorrupt, "carried " + wrong, "check the memory of this machine");
  sink_->on_frame(header_);
  return {};
}

// ---- sleeping and waking ----

bool Flow::wants_room() const {
  // The lane waits for what is in flight where a queue or the window is full, or where it has been promised a word.
  return queued_ > 0 || unreported_ > 0 || share_.in_flight + kMaxOperation.value > share_.window.value;
}

bool Flow::arm() {
  // We say that we sleep, then look; the peer moves its counts, then looks whether we sleep. Both in one total order,
  // so at least one of us sees the other.
  mine_.sleeping.store(kWakeForBytes | (wants_room() ? kWakeForRoom : 0), std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return !readable() && !out_.news() && !hung_up_;
}

void Flow::wake(std::uint32_t reason) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if ((theirs_.sleeping.load(std::memory_order_relaxed) & reason) == 0) return;
  if (theirs_.sleeping.exchange(0, std::memory_order_relaxed) == 0) return;
  // Where the socket takes no more, there are bytes that wake already.
  const std::byte byte{};
  (void)::send(fd(), &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void Flow::look_at_socket() {
  std::array<std::byte, 64> bytes;
  const ssize_t received = ::recv(fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  hung_up_ = hung_up_ || received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR);
}

bool Flow::peer_gone() const {
  pollfd socket{fd(), POLLRDHUP, 0};
  return ::poll(&socket, 1, 0) > 0;
}

// ---- ends ----

void Flow::stop() {
  if (stopped_) return;
  stopped_ = true;
  share_.in_flight -= in_flight_;
  in_flight_ = 0;
  queued_ = 0;
  mine_.withdrawn.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  ends_.socket.reset();
}

ports::FlowStats Flow::stats() const {
  ports::FlowStats stats = counts_;
  stats.transport = "local";
  stats.describe = fmt::format(
      "{} -> {}, shared memory{}", local_, remote_,
      ends_.peer.readable() ? ", payloads read from the peer's memory" : ", payloads copied through a ring");
  return stats;
}

}  // namespace tensorlane::local
