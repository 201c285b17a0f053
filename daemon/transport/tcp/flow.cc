#include "daemon/transport/tcp/flow.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "daemon/transport/handshake/frames.h"

namespace tensorlane::tcp {
namespace {

using handshake::connection_name;
using handshake::errno_text;
using handshake::local_endpoint;
using handshake::peer_endpoint;
using handshake::read_tag;

// Operations in one system call.
constexpr std::size_t kOperationsPerCall = 16;

// Bytes after which a receiver that has read everything acknowledges at once. The kernel's delayed acknowledgement may
// take 40 ms where both ends send, and until then up to a segment (64 KiB on loopback) of every flow would count
// against the sender's window.
constexpr std::uint64_t kAcknowledgeBytes = 4096;

}  // namespace

Flow::Flow(ports::FlowKey key, JobPtr job, Fd socket, ClassWindow& window)
    : Watched(Kind::kFlow),
      key_(key),
      job_(std::move(job)),
      socket_(std::move(socket)),
      window_(window),
      local_(local_endpoint(socket_.get()).text()),
      remote_(peer_endpoint(socket_.get()).text()) {}

Flow::~Flow() {
  stop();
}

void Flow::stop() {
  if (stopped_) return;
  stopped_ = true;
  window_.forget(*this, queued_bytes_);
  queued_ = 0;
  queued_bytes_ = 0;
}

// ---- sending ----

void Flow::enqueue(const ports::Outgoing& operation, bool payload_crc) {
  TL_ASSERT(writable());
  TL_ASSERT(operation.payload.size() <= kMaxOperation.value);
  Queued& slot = queued(queued_);
  protocol::encode_frame(handshake::outgoing_header(operation, key_, *job_, payload_crc), slot.header);
  slot.payload = operation.payload;
  slot.token = operation.token;
  ++queued_;
  queued_bytes_ += slot.bytes();
  window_.queued(slot.bytes());
}

Status Flow::write(ports::FrameSink& sink, std::size_t& handled) {
  std::size_t written = 0;
  blocked_ = false;
  while (queued_ > 0 && !stopped_ && written < kBlockBytes) {
    std::array<iovec, 2 * kOperationsPerCall> parts;
    std::size_t count = 0, wanted = 0, skip = head_written_;
    for (std::size_t i = 0; i < std::min(queued_, kOperationsPerCall); ++i) {
      Queued& slot = queued(i);
      const std::span<const std::byte> pieces[] = {slot.header, slot.payload};
      for (const auto piece : pieces) {
        const auto rest = piece.subspan(std::min(skip, piece.size()));
        skip -= piece.size() - rest.size();
        if (rest.empty()) continue;
        parts[count++] = {const_cast<std::byte*>(rest.data()), rest.size()};
        wanted += rest.size();
      }
      if (wanted >= 2 * kBlockBytes) break;
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return failed(errno);
      blocked_ = true;
      return {};
    }
    written += static_cast<std::size_t>(sent);
    account_written(static_cast<std::size_t>(sent), sink, handled);
    if (static_cast<std::size_t>(sent) < wanted) {
      blocked_ = true;
      return {};
    }
  }
  return {};
}

void Flow::account_written(std::size_t bytes, ports::FrameSink& sink, std::size_t& handled) {
  queued_bytes_ -= bytes;
  window_.taken(*this, bytes);
  counts_.bytes_sent += bytes;
  head_written_ += bytes;
  while (queued_ > 0 && head_written_ >= queued(0).bytes()) {
    const std::uint64_t token = queued(0).token;
    head_written_ -= queued(0).bytes();
    head_ = (head_ + 1) % kQueueOperations;
    --queued_;
    ++counts_.frames_sent;
    ++handled;
    if (token != 0) sink.on_sent(key_, token);
    if (stopped_) return;
  }
}

// ---- receiving ----

Status Flow::read(ports::FrameSink& sink, ReadBuffers& buffers, std::size_t& handled) {
  std::size_t taken = 0;
  while (taken < kBlockBytes && !stopped_) {
    std::array<iovec, 2> parts;
    std::size_t count = 0, asked = 0;
    const std::span<std::byte> payload = wanted(buffers);
    if (!payload.empty()) parts[count++] = {payload.data(), payload.size()};
    // What follows the payload can be read with it only if the payload is read to its end.
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
    if (landed > 0) TL_RETURN_IF_ERROR(payload_arrived(payload.first(landed), sink, handled));
    if (bytes > landed && !stopped_)
      TL_RETURN_IF_ERROR(bounced(std::span(buffers.bounce).first(bytes - landed), sink, handled));
    if (bytes < asked) {
      if (!stopped_) acknowledge();
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
  if (dropping_) return std::span(buffers.scratch).first(std::min(payload_left_, buffers.scratch.size()));
  return landing_.last(payload_left_);
}

Status Flow::payload_arrived(std::span<const std::byte> bytes, ports::FrameSink& sink, std::size_t& handled) {
  payload_left_ -= bytes.size();
  // Here the bytes are still in the cache.
  if ((header_.flags & protocol::kFlagPayloadCrc) && !dropping_) crc_ = protocol::crc32c(bytes, crc_);
  return payload_left_ == 0 ? frame_complete(sink, handled) : Status();
}

Status Flow::bounced(std::span<const std::byte> bytes, ports::FrameSink& sink, std::size_t& handled) {
  while (!bytes.empty() && !stopped_) {
    if (payload_left_ > 0) {
      const auto piece = bytes.first(std::min(bytes.size(), payload_left_));
      bytes = bytes.subspan(piece.size());
      if (!dropping_) std::memcpy(landing_.last(payload_left_).data(), piece.data(), piece.size());
      TL_RETURN_IF_ERROR(payload_arrived(piece, sink, handled));
      continue;
    }
    const auto piece = bytes.first(std::min(bytes.size(), partial_.size() - partial_bytes_));
    std::memcpy(partial_.data() + partial_bytes_, piece.data(), piece.size());
    partial_bytes_ += piece.size();
    bytes = bytes.subspan(piece.size());
    if (partial_bytes_ < partial_.size()) return {};
    partial_bytes_ = 0;
    TL_RETURN_IF_ERROR(header_arrived(partial_, sink, handled));
  }
  return {};
}

Status Flow::header_arrived(std::span<const std::byte, protocol::kFrameHeaderBytes> bytes, ports::FrameSink& sink,
                            std::size_t& handled) {
  Result<protocol::FrameHeader> header = protocol::decode_frame(bytes);
  if (!header.ok()) return broken(header.status().code(), "carried a " + header.status().what(), header.status().fix());
  header_ = *header;
  if (const std::string foreign = handshake::foreign_frame(header_, key_, *job_); !foreign.empty()) {
    return broken(Code::kMismatch, "carried " + foreign, "check that no other program uses the daemons' data ports");
  }
  TL_ASSIGN_OR_RETURN(landing_, sink.on_header(key_, header_));
  TL_ASSERT(landing_.empty() || landing_.size() == header_.payload_bytes);
  payload_left_ = header_.payload_bytes;
  dropping_ = landing_.empty() && payload_left_ > 0;
  crc_ = 0;
  return payload_left_ == 0 && !stopped_ ? frame_complete(sink, handled) : Status();
}

Status Flow::frame_complete(ports::FrameSink& sink, std::size_t& handled) {
  landing_ = {};
  ++counts_.frames_received;
  ++handled;
  if (dropping_) {
    dropping_ = false;
    ++payloads_dropped_;
    return {};
  }
  if (const std::string wrong = handshake::wrong_crc(header_, crc_); !wrong.empty())
    return broken(Code::kCorrupt, "carried " + wrong, "check memory and network cards of both hosts");
  sink.on_frame(key_, header_);
  return {};
}

// ---- ends ----

Status Flow::ended() const {
  std::string where;
  if (partial_bytes_ > 0)
    where = fmt::format(" in the middle of a frame ({} of {} header bytes)", partial_bytes_, partial_.size());
  if (payload_left_ > 0) {
    where = fmt::format(" in the middle of a frame ({} of {} payload bytes)", header_.payload_bytes - payload_left_,
                        header_.payload_bytes);
  }
  return broken(Code::kUnavailable, "was closed by the peer" + where, "look at the log of tensorlaned on that host");
}

Status Flow::failed(int error) const {
  const char* how = error == ECONNRESET || error == EPIPE ? "was reset" : "failed";
  return broken(Code::kUnavailable, fmt::format("{}: {}", how, errno_text(error)),
                "look at the log of tensorlaned on that host");
}

Status Flow::broken(Code code, const std::string& how, const std::string& fix) const {
  return {code, fmt::format("{} {}", connection_name(key_.peer, remote_, key_.cls), how), {}, fix};
}

ports::FlowStats Flow::stats() const {
  ports::FlowStats stats = counts_;
  const handshake::EffectiveTag tag = read_tag(socket_.get());
  stats.effective_dscp = tag.dscp;
  stats.effective_pcp = tag.pcp;
  stats.describe = local_ + " -> " + remote_;
  return stats;
}

}  // namespace tensorlane::tcp
