#include "daemon/transport/dpdk/flow.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/base/assert.h"
#include "daemon/transport/handshake/frames.h"

namespace tensorlane::dpdk {
namespace {

// Operations that a flow keeps until the peer has them.
constexpr std::size_t kQueueOperations = 64;

constexpr const char* kLookThere = "look at the log of tensorlaned on that host";

std::string describe(const protect::RecordSecrets& secrets) {
  if (secrets.level == DataProtection::kNone) return {};
  return fmt::format("{}, {}", data_protection_name(secrets.level), protect::cipher_name(secrets.cipher));
}

}  // namespace

datagram::AssociationConfig Flow::config_of(const ports::FlowKey& key, const Way& way,
                                            const protect::RecordSecrets& secrets, const Context& context) {
  datagram::AssociationConfig config;
  config.job = key.job;
  config.slot = datagram::slot_of(key.cls);
  config.frames = kQueueOperations;
  config.remote = way.remote();
  config.packet_bytes = way.packet_bytes();
  config.window = context.share.window;
  config.packets = std::clamp<std::size_t>(2 * config.window.value / config.packet_bytes, 64, 4096);
  config.unasked = way.unasked();
  // Bulk may be starved for as long as more urgent classes like; who is dead, heartbeats say (law 10).
  config.give_up = key.cls == kControlClass ? std::optional(context.detection) : std::nullopt;
  config.level = secrets.level;
  config.cipher = secrets.cipher;
  config.send_secret = secrets.send;
  config.receive_secret = secrets.receive;
  return config;
}

Flow::Flow(const ports::FlowKey& key, handshake::JobPtr job, handshake::Fd socket, std::unique_ptr<Way> way,
           const protect::RecordSecrets& secrets, const Context& context)
    : UpFlow(key, std::move(job)),
      socket_(std::move(socket)),
      way_(std::move(way)),
      share_(context.share),
      numbers_(context.numbers),
      acks_(context.acks),
      protection_(describe(secrets)),
      association_(config_of(key, *way_, secrets, context), context.credits, *this, *this) {
  note_ends(socket_.get());
  numbers_.set(way_->number(), this);
}

Flow::~Flow() {
  stop();
}

void Flow::stop() {
  if (stopped_) return;
  stopped_ = true;
  numbers_.set(way_->number(), nullptr);
  share_.in_flight -= std::exchange(outstanding_, 0);
  if (std::exchange(dirty, false)) std::erase(share_.dirty, this);
  if (std::exchange(has_ack, false)) std::erase(acks_, this);
}

void Flow::mark_dirty() {
  if (!stopped_ && !std::exchange(dirty, true)) share_.dirty.push_back(this);
}

void Flow::mark_ack() {
  if (!stopped_ && !std::exchange(has_ack, true)) acks_.push_back(this);
}

void Flow::count_outstanding() {
  if (stopped_) return;
  const std::uint64_t now = association_.outstanding();
  share_.in_flight += now - outstanding_;
  outstanding_ = now;
}

// ---- sending ----

void Flow::send(const ports::Outgoing& operation) {
  TL_ASSERT(writable());
  TL_ASSERT(operation.payload.size() <= kMaxOperation.value);
  association_.send(
      {handshake::outgoing_header(operation, key_, *job_, share_.payload_crc), operation.payload, operation.token});
  ++counts_.frames_sent;
  counts_.bytes_sent += protocol::kFrameHeaderBytes + operation.payload.size();
  count_outstanding();
  mark_dirty();
}

void Flow::on_sent(std::uint64_t token) {
  if (stopped_) return;
  ++handled_;
  if (token != 0) sink_->on_sent(token);
}

void Flow::released(std::uint64_t packet, std::size_t& handled) {
  if (stopped_) return;
  association_.released(packet);
  handled += std::exchange(handled_, 0);
}

// ---- receiving ----

bool Flow::take(Time now, std::span<std::byte> packet, bool marked, std::size_t& handled) {
  if (stopped_) return true;
  const Status& status = association_.take(now, packet, marked);
  handled += std::exchange(handled_, 0);
  if (stopped_) return true;
  count_outstanding();
  if (!status.ok()) failure_ = status;
  return failure_.ok();
}

Result<std::span<std::byte>> Flow::on_header(const protocol::FrameHeader& header) {
  if (stopped_ || !failure_.ok()) return Status(Code::kAborted, "the flow is closed", name());
  if (const std::string wrong = handshake::foreign_frame(header, key_, *job_); !wrong.empty())
    return broken(Code::kCorrupt, "carried " + wrong, "install the same release on all hosts");
  ++counts_.frames_received;
  counts_.bytes_received += protocol::kFrameHeaderBytes + header.payload_bytes;
  TL_ASSIGN_OR_RETURN(const std::span<std::byte> landing, sink_->on_header(header));
  if (stopped_) return Status(Code::kAborted, "the flow is closed", name());
  if (landing.empty() && header.payload_bytes > 0) ++payloads_dropped_, ++handled_;
  return landing;
}

void Flow::on_frame(const protocol::FrameHeader& header) {
  if (stopped_ || !failure_.ok()) return;
  ++handled_;
  sink_->on_frame(header);
}

// ---- time and ends ----

Status Flow::on_time(Time now, bool linked) {
  if (stopped_) return {};
  const Status silent = association_.on_time(now);
  if (silent.ok()) return {};
  return broken(Code::kUnavailable, "was lost: " + silent.what(),
                linked ? "look whether that host's port and the path to it work"
                       : "this host's own port has no link: look at its cable, or set its interface up");
}

Status Flow::look_at_connection() {
  std::byte byte;
  const ssize_t received = ::recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  if (received == 0) return broken(Code::kUnavailable, "was closed by the peer", kLookThere);
  if (received > 0) return broken(Code::kCorrupt, "carried bytes beside the packets", kLookThere);
  const char* how = errno == ECONNRESET || errno == EPIPE ? "was reset" : "failed";
  return broken(Code::kUnavailable, fmt::format("{}: {}", how, handshake::errno_text(errno)), kLookThere);
}

ports::FlowStats Flow::stats() const {
  ports::FlowStats stats = counts_;
  stats.effective_dscp = share_.tag.dscp;
  stats.effective_pcp = share_.tag.pcp;
  stats.transport = "dpdk";
  stats.describe = fmt::format("{} -> {}, UDP to {}", local_, remote_, to_string(way_->peer()));
  stats.protection = protection_;
  return stats;
}

}  // namespace tensorlane::dpdk
