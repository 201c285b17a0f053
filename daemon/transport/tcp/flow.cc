#include "daemon/transport/tcp/flow.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/transport/handshake/frames.h"

namespace tensorlane::tcp {
namespace {

using handshake::errno_text;
using handshake::read_tag;

// Bytes after which a receiver that has read everything acknowledges at once. The kernel's delayed acknowledgement may
// take 40 ms where both ends send, and until then up to a segment (64 KiB on loopback) of every flow would count
// against the sender's window.
constexpr std::uint64_t kAcknowledgeBytes = 4096;

// Payload that a flow keeps copies of; none in the control class, which has no payloads.
constexpr std::size_t kCopyBytes = 4 * Copies::kLongest;
// What a receiver has delivered when it acknowledges that unasked. Well below what a sender keeps, so that some of it
// is acknowledged when a sender is full.
constexpr std::uint64_t kAckFrames = kKeptOperations / 4;
constexpr std::uint64_t kAckBytes = kCopyBytes / 2;
// ... and when something goes the same way anyway, which costs no system call.
constexpr std::uint64_t kRideFrames = kAckFrames / 6;
constexpr std::uint64_t kRideBytes = kAckBytes / 8;

constexpr std::size_t kWholeRecord = protect::kRecordBytes + protect::kTagBytes;

}  // namespace

Flow::Flow(const ports::FlowKey& key, JobPtr job, Fd socket, ClassShare& share, FlowIdentity identity,
           RecordsPtr records)
    : Resumable(key, job, identity, kQueueOperations + (job->resume_within().value > 0 ? kKeptOperations : 0)),
      socket_(std::move(socket)),
      records_(std::move(records)),
      share_(share),
      queue_(kQueueOperations + (resumes() ? kKeptOperations : 0)),
      copies_(resumes() && key.cls != kControlClass ? kCopyBytes : 0) {
  note_ends(socket_.get());
}

Flow::~Flow() {
  stop();
}

void Flow::stop() {
  if (stopped_) return;
  stopped_ = true;
  share_.window.forget(*this, queued_bytes_);
  queued_bytes_ = 0;
}

// ---- sending ----

void Flow::send(const ports::Outgoing& operation) {
  TL_ASSERT(writable());
  TL_ASSERT(operation.payload.size() <= kMaxOperation.value);
  Queued& added = slot(out_.push());
  protocol::FrameHeader header = handshake::outgoing_header(operation, key_, *job_, share_.payload_crc);
  added.payload = operation.payload;
  added.token = operation.token;
  added.copied = added.payload.empty();
  if (resumes() && !added.payload.empty()) {
    if (const auto copy = copies_.take(added.payload.size())) {
      std::memcpy(copy->data(), added.payload.data(), added.payload.size());
      added.payload = *copy;
      added.copied = true;
    } else if (added.token != 0) {
      header.flags |= protocol::kFlagAck;
    }
  }
  protocol::encode_frame(header, added.header);
  queued_bytes_ += wire_bytes(added);
  share_.window.queued(wire_bytes(added));
  mark_dirty();
}

void Flow::mark_dirty() {
  if (watches_output || !connected() || std::exchange(dirty, true)) return;
  share_.dirty.push_back(this);
}

void Flow::unmark_dirty() {
  if (std::exchange(dirty, false)) std::erase(share_.dirty, this);
}

// An acknowledgement goes between two frames.
void Flow::begin_ack() {
  const bool company = out_.next() < out_.pushed() && resumes();
  const bool rides = company && (in_.unacked() >= kRideFrames || unacked_bytes_ >= kRideBytes);
  if (!(ack_now_ || rides) || ack_left_ > 0 || head_written_ > 0) return;
  ack_now_ = false;
  unacked_bytes_ = 0;
  const ports::Outgoing ack{{.type = protocol::FrameType::kDelivered, .offset = in_.ack()}, {}, 0};
  protocol::encode_frame(handshake::outgoing_header(ack, key_, *job_, false), ack_);
  ack_left_ = header_bytes();
  queued_bytes_ += ack_left_;
  share_.window.queued(ack_left_);
}

Status Flow::write(std::size_t& handled) {
  std::size_t written = 0;
  blocked_ = false;
  while (!queue_empty() && !stopped_ && written < kBlockBytes) {
    const std::span<const iovec> parts = next_parts();
    std::size_t wanted = 0;
    for (const iovec& part : parts) wanted += part.iov_len;
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return failed(errno);
      blocked_ = true;
      return {};
    }
    written += static_cast<std::size_t>(sent);
    if (records_) records_->batch.written(static_cast<std::size_t>(sent));
    account_written(static_cast<std::size_t>(sent), handled);
    if (static_cast<std::size_t>(sent) < wanted) {
      blocked_ = true;
      return {};
    }
  }
  return {};
}

std::span<const iovec> Flow::next_parts() {
  if (!records_) return next_in_clear();
  if (records_->batch.empty()) seal_next();
  return records_->batch.parts();
}

std::span<const iovec> Flow::next_in_clear() {
  begin_ack();
  std::size_t count = 0, wanted = ack_left_, skip = head_written_;
  if (ack_left_ > 0) parts_[count++] = {ack_.data() + ack_.size() - ack_left_, ack_left_};
  const std::size_t queued = out_.pushed() - out_.next();
  for (std::size_t i = 0; i < std::min(queued, kOperationsPerCall); ++i) {
    Queued& operation = slot(out_.next() + i);
    const std::span<const std::byte> pieces[] = {operation.header, operation.payload};
    for (const auto piece : pieces) {
      const auto rest = piece.subspan(std::min(skip, piece.size()));
      skip -= piece.size() - rest.size();
      if (rest.empty()) continue;
      parts_[count++] = {const_cast<std::byte*>(rest.data()), rest.size()};
      wanted += rest.size();
    }
    if (wanted >= 2 * kBlockBytes) break;
  }
  return std::span(parts_).first(count);
}

// All that was sealed before is written, so the head of the queue is written up to the end of a record.
void Flow::seal_next() {
  protect::SealedBatch& batch = records_->batch;
  begin_ack();
  if (ack_left_ > 0 && !batch.add_header(ack_)) return;
  std::size_t written = head_written_;
  for (ledger::Number n = out_.next(); n < out_.pushed(); ++n) {
    const Queued& operation = slot(n);
    if (written == 0 && !batch.add_header(operation.header)) return;
    const std::size_t records = written == 0 ? 0 : (written - header_bytes()) / kWholeRecord;
    if (!batch.add_payload(operation.payload.subspan(records * protect::kRecordBytes))) return;
    written = 0;
  }
}

void Flow::account_written(std::size_t bytes, std::size_t& handled) {
  queued_bytes_ -= bytes;
  share_.window.taken(*this, bytes);
  counts_.bytes_sent += bytes;
  const std::size_t of_ack = std::min(bytes, ack_left_);
  ack_left_ -= of_ack;
  head_written_ += bytes - of_ack;
  while (out_.next() < out_.pushed() && head_written_ >= wire_bytes(slot(out_.next()))) {
    head_written_ -= wire_bytes(slot(out_.next()));
    out_.written();
    ++counts_.frames_sent;
    ++handled;
  }
  // Without a ledger at the other end, what the kernel has is gone.
  if (!resumes()) out_.acknowledge(out_.next());
  report_sent();
}

// In order: the payloads of those before it, too, are not read any more.
void Flow::report_sent() {
  while (!stopped_ && reported_ < out_.next() && (reported_ < out_.delivered() || slot(reported_).copied)) {
    const std::uint64_t token = slot(reported_++).token;
    if (token != 0) sink_->on_sent(token);
  }
}

Status Flow::take_ack(ledger::Number delivered, std::size_t& handled) {
  const ledger::Number before = out_.delivered();
  if (!out_.acknowledge(delivered)) {
    return broken(
        Code::kCorrupt,
        fmt::format("carried a claim to have {} frames, after {}, of {} sent", delivered, before, out_.next()),
        "install the same tensorlane version on every host");
  }
  release(before);
  ++handled;
  report_sent();
  return {};
}

// Copies of frames from `from` on that the peer has by now are not needed any more.
void Flow::release(ledger::Number from) {
  for (ledger::Number n = from; n < out_.delivered(); ++n) {
    if (slot(n).copied && !slot(n).payload.empty()) copies_.give_back(slot(n).payload);
  }
}

// ---- receiving ----

Status Flow::read(ReadBuffers& buffers, std::size_t& handled) {
  std::size_t taken = 0;
  while (taken < kBlockBytes && !stopped_) {
    std::array<iovec, 3> parts;
    std::size_t count = 0, asked = 0;
    const std::span<std::byte> payload = wanted(buffers);
    if (!payload.empty()) parts[count++] = {payload.data(), payload.size()};
    // What follows can be read with it only if the record, or the payload, is read to its end.
    const std::span<std::byte> tag = payload.size() == record_left_ ? wanted_tag() : std::span<std::byte>();
    if (!tag.empty()) parts[count++] = {tag.data(), tag.size()};
    if (payload.size() == payload_left_) parts[count++] = {buffers.bounce.data(), buffers.bounce.size()};
    for (std::size_t i = 0; i < count; ++i) asked += parts[i].iov_len;
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t received = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
    if (received < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return {};
      return failed(errno);
    }
    if (received == 0) return ended();
    const auto bytes = static_cast<std::size_t>(received);
    taken += bytes;
    counts_.bytes_received += bytes;
    const std::size_t landed = std::min(bytes, payload.size());
    const std::size_t of_tag = std::min(bytes - landed, tag.size());
    if (landed > 0) TL_RETURN_IF_ERROR(payload_arrived(payload.first(landed), handled));
    if (of_tag > 0) TL_RETURN_IF_ERROR(tag_arrived(of_tag, handled));
    if (const std::size_t rest = bytes - landed - of_tag; rest > 0 && !stopped_)
      TL_RETURN_IF_ERROR(bounced(std::span(buffers.bounce).first(rest), handled));
    if (bytes < asked) {
      if (!stopped_ && !ack_now_) acknowledge();  // our acknowledgement carries the kernel's
      return {};
    }
  }
  return {};
}

void Flow::acknowledge() {
  if (counts_.bytes_received - acknowledged_ < kAcknowledgeBytes) return;
  acknowledged_ = counts_.bytes_received;
  const int now = 1;
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_QUICKACK, &now, sizeof now);
}

std::span<std::byte> Flow::wanted(ReadBuffers& buffers) const {
  if (dropping_) return std::span(buffers.scratch).first(std::min(record_left_, buffers.scratch.size()));
  return landing_.last(payload_left_).first(record_left_);
}

void Flow::begin_record() {
  record_bytes_ = records_ ? std::min(payload_left_, protect::kRecordBytes) : payload_left_;
  record_left_ = record_bytes_;
  tag_left_ = records_ ? tag_.size() : 0;
}

Status Flow::payload_arrived(std::span<const std::byte> bytes, std::size_t& handled) {
  payload_left_ -= bytes.size();
  record_left_ -= bytes.size();
  // Here the bytes are still in the cache.
  if ((header_.flags & protocol::kFlagPayloadCrc) && !dropping_ && !records_) crc_ = protocol::crc32c(bytes, crc_);
  return record_left_ + tag_left_ == 0 ? frame_complete(handled) : Status();
}

Status Flow::tag_arrived(std::size_t bytes, std::size_t& handled) {
  tag_left_ -= bytes;
  return tag_left_ == 0 ? record_complete(handled) : Status();
}

Status Flow::record_complete(std::size_t& handled) {
  if (dropping_) {
    records_->receives.skip();  // nobody reads it, and the next record tells whether it was as long as it should be
  } else {
    const auto record = landing_.first(landing_.size() - payload_left_).last(record_bytes_);
    if (!records_->receives.open(record, tag_)) return unauthentic();
    if (header_.flags & protocol::kFlagPayloadCrc) crc_ = protocol::crc32c(record, crc_);
  }
  if (payload_left_ == 0) return frame_complete(handled);
  begin_record();
  return {};
}

Status Flow::bounced(std::span<const std::byte> bytes, std::size_t& handled) {
  while (!bytes.empty() && !stopped_) {
    if (record_left_ > 0) {
      const auto piece = bytes.first(std::min(bytes.size(), record_left_));
      bytes = bytes.subspan(piece.size());
      if (!dropping_) std::memcpy(landing_.last(payload_left_).data(), piece.data(), piece.size());
      TL_RETURN_IF_ERROR(payload_arrived(piece, handled));
      continue;
    }
    if (tag_left_ > 0) {
      const auto piece = bytes.first(std::min(bytes.size(), tag_left_));
      bytes = bytes.subspan(piece.size());
      std::memcpy(wanted_tag().data(), piece.data(), piece.size());
      TL_RETURN_IF_ERROR(tag_arrived(piece.size(), handled));
      continue;
    }
    const auto piece = bytes.first(std::min(bytes.size(), header_bytes() - partial_bytes_));
    std::memcpy(partial_.data() + partial_bytes_, piece.data(), piece.size());
    partial_bytes_ += piece.size();
    bytes = bytes.subspan(piece.size());
    if (partial_bytes_ < header_bytes()) return {};
    partial_bytes_ = 0;
    TL_RETURN_IF_ERROR(header_arrived(handled));
  }
  return {};
}

Status Flow::header_arrived(std::size_t& handled) {
  const auto bytes = std::span(partial_).first<protocol::kFrameHeaderBytes>();
  if (records_) {
    protect::Tag tag;
    std::memcpy(tag.data(), partial_.data() + bytes.size(), tag.size());
    if (!records_->receives.open(bytes, tag)) return unauthentic();
  }
  Result<protocol::FrameHeader> header = protocol::decode_frame(bytes);
  if (!header.ok()) return broken(header.status().code(), "carried a " + header.status().what(), header.status().fix());
  header_ = *header;
  if (const std::string foreign = handshake::foreign_frame(header_, key_, *job_); !foreign.empty()) {
    return broken(Code::kMismatch, "carried " + foreign, "check that no other program uses the daemons' data ports");
  }
  if (header_.type == protocol::FrameType::kDelivered || header_.type == protocol::FrameType::kGoodbye)
    return transport_frame(handled);
  waited_for_ = (header_.flags & protocol::kFlagAck) != 0;
  header_.flags &= static_cast<std::uint8_t>(~protocol::kFlagAck);
  TL_ASSIGN_OR_RETURN(landing_, sink_->on_header(header_));
  TL_ASSERT(landing_.empty() || landing_.size() == header_.payload_bytes);
  payload_left_ = header_.payload_bytes;
  dropping_ = landing_.empty() && payload_left_ > 0;
  crc_ = 0;
  if (payload_left_ > 0) begin_record();
  return payload_left_ == 0 && !stopped_ ? frame_complete(handled) : Status();
}

Status Flow::frame_complete(std::size_t& handled) {
  landing_ = {};
  ++counts_.frames_received;
  ++handled;
  if (dropping_) {
    dropping_ = false;
    ++payloads_dropped_;
    note_delivered();
    return {};
  }
  if (const std::string wrong = handshake::wrong_crc(header_, crc_); !wrong.empty())
    return broken(Code::kCorrupt, "carried " + wrong, "check memory and network cards of both hosts");
  note_delivered();
  sink_->on_frame(header_);
  return {};
}

void Flow::note_delivered() {
  in_.deliver();
  if (!resumes()) return;
  unacked_bytes_ += header_.payload_bytes;
  ack_now_ = ack_now_ || waited_for_ || in_.unacked() >= kAckFrames || unacked_bytes_ >= kAckBytes;
}

// Between the transports: the sink sees nothing of it.
Status Flow::transport_frame(std::size_t& handled) {
  if (!resumes()) {
    return broken(Code::kMismatch, "carried a frame of a flow that is resumed",
                  "use the same `on_lost_flow` on every host");
  }
  if (header_.type == protocol::FrameType::kDelivered) return take_ack(header_.offset, handled);
  goodbye_ = true;
  return {};
}

// ---- connections ----

void Flow::disconnect() {
  share_.window.forget(*this, queued_bytes_);
  queued_bytes_ = 0;
  socket_.reset();
  records_.reset();
  blocked_ = false;
  head_written_ = 0;
  ack_left_ = 0;
  partial_bytes_ = 0;
  landing_ = {};
  payload_left_ = record_left_ = tag_left_ = 0;
  dropping_ = false;
}

std::uint64_t Flow::resume(Fd socket, RecordsPtr records, ledger::Number delivered) {
  TL_ASSERT(!connected() && !stopped_);
  socket_ = std::move(socket);
  records_ = std::move(records);
  note_ends(socket_.get());
  connection_lost_ = false;
  acknowledged_ = counts_.bytes_received;
  in_.ack();  // the handshake has
  ack_now_ = false;
  unacked_bytes_ = 0;
  const ledger::Number before = out_.delivered();
  const std::optional<std::uint64_t> again = out_.resume(delivered);
  TL_ASSERT(again);
  release(before);
  for (ledger::Number n = out_.next(); n < out_.pushed(); ++n) queued_bytes_ += wire_bytes(slot(n));
  share_.window.queued(queued_bytes_);
  report_sent();
  return *again;
}

void Flow::say_goodbye() {
  if (!resumes() || !connected() || head_written_ > 0 || ack_left_ > 0) return;
  if (records_ && !records_->batch.empty()) return;
  const ports::Outgoing goodbye{{.type = protocol::FrameType::kGoodbye}, {}, 0};
  std::array<std::byte, protocol::kFrameHeaderBytes> header;
  protocol::encode_frame(handshake::outgoing_header(goodbye, key_, *job_, false), header);
  iovec bytes{header.data(), header.size()};
  if (records_ && records_->batch.add_header(header)) bytes = records_->batch.parts().front();
  // A full socket takes it in part or not at all: then the peer finds out when it asks for the flow.
  [[maybe_unused]] const ssize_t sent =
      ::send(socket_.get(), bytes.iov_base, bytes.iov_len, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// ---- ends ----

Status Flow::ended() {
  connection_lost_ = true;
  std::string where;
  if (partial_bytes_ > 0)
    where = fmt::format(" in the middle of a frame ({} of {} header bytes)", partial_bytes_, header_bytes());
  if (record_left_ + tag_left_ > 0) {
    where = fmt::format(" in the middle of a frame ({} of {} payload bytes)", header_.payload_bytes - payload_left_,
                        header_.payload_bytes);
  }
  return broken(Code::kUnavailable, "was closed by the peer" + where, "look at the log of tensorlaned on that host");
}

Status Flow::failed(int error) {
  connection_lost_ = true;
  const char* how = error == ECONNRESET || error == EPIPE ? "was reset" : "failed";
  const bool here = error == ENETUNREACH || error == ENETDOWN || error == EHOSTUNREACH;
  return broken(
      Code::kUnavailable, fmt::format("{}: {}", how, errno_text(error)),
      here ? "look at the network devices and routes of both hosts" : "look at the log of tensorlaned on that host");
}

// One of the connection: what the peer has sent may be in order, and come over another one.
Status Flow::unauthentic() {
  connection_lost_ = true;
  return broken(Code::kCorrupt,
                "carried a record that does not authenticate: the path changed the data, or somebody else sends on it",
                "find out what is on the path between the two hosts: a device that changes packets, or an attacker");
}

ports::FlowStats Flow::stats() const {
  ports::FlowStats stats = counts_;
  if (!connected()) return stats;
  const handshake::EffectiveTag tag = read_tag(socket_.get());
  stats.effective_dscp = tag.dscp;
  stats.effective_pcp = tag.pcp;
  stats.transport = "tcp";
  stats.describe = local_ + " -> " + remote_;
  if (records_) stats.protection = records_->sends.describe();
  return stats;
}

ports::FlowProgress Flow::progress() const {
  ports::FlowProgress progress{.given = out_.pushed(), .received = in_.delivered(), .outstanding_bytes = queued_bytes_};
  if (!connected() || !outstanding) return progress;  // nothing is with the kernel
  const handshake::Unacknowledged kernel = handshake::read_unacknowledged(socket_.get());
  progress.outstanding_bytes += kernel.bytes;
  progress.retransmissions = kernel.retransmissions;
  progress.path_mtu = kernel.path_mtu;
  return progress;
}

}  // namespace tensorlane::tcp
