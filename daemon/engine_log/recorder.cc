#include "daemon/engine_log/recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "common/protocol/frame.h"
#include "daemon/engine_log/fields.h"

namespace tensorlane::engine_log {
namespace {

constexpr std::size_t kLongestRecord = 256;  // of all but headers and plans

template <typename T>
std::byte* put(std::byte* at, const T& number) {
  std::memcpy(at, &number, sizeof number);  // little-endian on every machine we run on
  return at + sizeof number;
}

void encode(const BlockHeader& header, std::byte* at) {
  std::byte* const begin = at;
  at = put(at, header.mark);
  at = put(at, header.bytes);
  at = put(at, header.first);
  at = put(at, header.records);
  at = put(at, header.crc);
  at = put(at, header.digest);
  put(at, protocol::crc32c({begin, at}));
}

}  // namespace

const char* end_reason_text(EndReason reason) {
  return reason == EndReason::kClosed ? "the job is over" : "the log has reached its limit";
}

Recorder::Recorder(std::unique_ptr<Sink> sink, Bytes limit, std::string job, std::string host)
    : sink_(std::move(sink)), limit_(limit.value), job_(std::move(job)), host_(std::move(host)), encoder_(block_) {
  block_.reserve(kBlockHeaderBytes + kBlockBytes + kLongestRecord);
  block_.resize(kBlockHeaderBytes);
}

void Recorder::begin(const engine::EngineConfig& config, const Descriptor& staging, std::uint64_t digest) {
  std::array<std::byte, kFileHeaderBytes> mark{};
  put(put(mark.data(), kFileMark), kVersion);
  write(mark);
  encoder_.job = config.job;
  encoder_.epoch = config.epoch;
  start_record(RecordKind::kHeader);
  const LogHeader header{config, staging, job_, host_};
  describe_header(encoder_, header);
  seal(digest);
}

void Recorder::plan(const protocol::Plan& plan, protocol::TensorRange added, std::uint64_t digest) {
  if (!open_) return;
  PlanGrowth growth{plan.version, plan.rails, plan.ordering, plan.concurrent, added.first, {}, {}};
  growth.tensors = plan.part(added).tensors;
  if (plan.rank_hosts != known_rank_hosts_) growth.rank_hosts = known_rank_hosts_ = plan.rank_hosts;
  known_tensors_ = std::max(known_tensors_, added.end());
  start_record(RecordKind::kPlan);
  describe_plan(encoder_, growth);
  seal_if_full(digest);
}

void Recorder::vacate(protocol::TensorRange range, std::uint64_t digest) {
  if (!open_) return;
  start_record(RecordKind::kVacate);
  describe_range(encoder_, range);
  seal_if_full(digest);
}

void Recorder::priority(TensorId tensor, float urgency, ClassId cls, std::uint64_t digest) {
  if (!open_) return;
  start_record(RecordKind::kPriority);
  const Priority priority{tensor, urgency, cls};
  describe_priority(encoder_, priority);
  seal_if_full(digest);
}

void Recorder::events(Time now, std::span<const engine::Event> events, std::uint64_t digest) {
  if (!open_) return;
  for (const engine::Event& event : events) {
    start_record(static_cast<std::uint8_t>(kFirstEvent + static_cast<std::uint8_t>(event.kind)));
    encoder_.time(now);
    describe_event(encoder_, event);
  }
  seal_if_full(digest);
}

void Recorder::pick(Time now, engine::Flow flow, Bytes credit, std::size_t room, std::size_t picked,
                    std::uint64_t digest) {
  if (!open_ || picked == 0) return;
  start_record(RecordKind::kPick);
  encoder_.time(now);
  const Pick pick{flow, credit, static_cast<std::uint32_t>(room), static_cast<std::uint32_t>(picked)};
  describe_pick(encoder_, pick);
  seal_if_full(digest);
}

void Recorder::work(Time now, std::uint64_t digest) {
  if (!open_) return;
  start_record(RecordKind::kWork);
  encoder_.time(now);
  seal_if_full(digest);
}

void Recorder::flush(std::uint64_t digest) {
  if (open_ && records_ > 0) seal(digest);
}

void Recorder::end(std::uint64_t digest) {
  flush(digest);
  if (open_) write_end(EndReason::kClosed, digest);
  open_ = false;
}

void Recorder::start_record(std::uint8_t kind) {
  encoder_.number(kind);
  ++records_;
}

void Recorder::seal_if_full(std::uint64_t digest) {
  if (block_.size() >= kBlockHeaderBytes + kBlockBytes) seal(digest);
}

// A block that has no room is left out as a whole, so that the log ends with a checkpoint.
void Recorder::seal(std::uint64_t digest) {
  if (written_ + block_.size() <= limit_ && block_.size() <= kBlockHeaderBytes + kMaxBlockBytes)
    return write_block(digest);
  block_.resize(kBlockHeaderBytes);
  records_ = 0;
  write_end(EndReason::kFull, sealed_digest_);
  if (!open_) return;
  open_ = false;
  sink_->stopped({Code::kResourceExhausted, fmt::format("the engine's log has reached its limit of {} bytes", limit_),
                  fmt::format("job '{}'", job_), "training goes on; raise record_limit in daemon.yaml to record more"});
}

void Recorder::write_block(std::uint64_t digest) {
  const std::span<const std::byte> payload = std::span(block_).subspan(kBlockHeaderBytes);
  const BlockHeader header{.bytes = static_cast<std::uint32_t>(payload.size()),
                           .first = first_,
                           .records = records_,
                           .crc = protocol::crc32c(payload),
                           .digest = digest};
  encode(header, block_.data());
  write(block_);
  sealed_digest_ = digest;
  first_ += records_;
  records_ = 0;
  block_.resize(kBlockHeaderBytes);
}

void Recorder::write_end(EndReason reason, std::uint64_t digest) {
  start_record(RecordKind::kEnd);
  encoder_.number(reason);
  write_block(digest);
}

void Recorder::write(std::span<const std::byte> bytes) {
  if (!open_) return;
  const Status status = sink_->write(bytes);
  written_ += bytes.size();
  if (status.ok()) return;
  open_ = false;
  sink_->stopped(status);
}

}  // namespace tensorlane::engine_log
