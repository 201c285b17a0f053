#include "daemon/engine_log/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "common/base/token_bucket.h"
#include "common/protocol/frame.h"

namespace tensorlane::engine_log {
namespace {

constexpr std::uint32_t kMaxSlots = 1 << 22;   // prepaid, of all peers
constexpr Bytes kMaxStaging = mib(256 << 10);  // what the engine's grants can name (GrantTable::kMaxCapacity pages)
constexpr std::size_t kReadAtOnce = 1 << 20;

template <typename T>
const std::byte* take(const std::byte* at, T* number) {
  std::memcpy(number, at, sizeof *number);  // little-endian on every machine we run on
  return at + sizeof *number;
}

bool valid(const RateLimit& limit) {
  return !limit.limited() || (limit.burst.value > 0 && limit.burst <= kMaxBurst && limit.rate <= kMaxLimitedRate);
}

// The bounds that engine.h states: what breaks them is a broken invariant there.
bool valid(const LogHeader& header) {
  const engine::EngineConfig& e = header.config;
  const bool counts = e.hosts >= 1 && e.self.value < e.hosts && e.classes >= 1 && e.classes <= kMaxDataClasses &&
                      e.world_size >= 1 && e.rails >= 1 && e.rails <= kMaxRails && e.rail.value < e.rails &&
                      e.eager_credits <= 64 && e.eager_slots <= kMaxSlots && e.eager_limit <= kMaxOperation &&
                      e.staging <= kMaxStaging;
  if (!counts || !std::ranges::all_of(e.limits, [](const RateLimit& limit) { return valid(limit); })) return false;
  if (e.limits[e.classes - 1u].limited() && !e.single_queue) return false;
  return header.staging.length >= engine::Engine::staging_bytes(e).value;
}

}  // namespace

Result<Reader> Reader::open(std::istream& in, std::string name) {
  Reader reader(in, std::move(name));
  TL_RETURN_IF_ERROR(reader.read_file_header());
  TL_RETURN_IF_ERROR(reader.read_header());
  return reader;
}

Status Reader::corrupt(const std::string& what) const {
  return {Code::kCorrupt, what, fmt::format("{}, byte {}", name_, block_at_),
          "what comes before is good; copy the log again, or record anew"};
}

std::size_t Reader::fill(std::byte* to, std::size_t bytes) {
  in_->read(reinterpret_cast<char*>(to), static_cast<std::streamsize>(bytes));
  const auto got = static_cast<std::size_t>(in_->gcount());
  offset_ += got;
  return got;
}

Status Reader::read_file_header() {
  std::array<std::byte, kFileHeaderBytes> bytes;
  const std::size_t got = fill(bytes.data(), bytes.size());
  if (got < bytes.size() || std::memcmp(bytes.data(), kFileMark.data(), kFileMark.size()) != 0) {
    return {Code::kCorrupt, "this is no log of an engine", name_,
            "name a file that a daemon wrote with `record` in its daemon.yaml"};
  }
  std::uint32_t version = 0;
  take(bytes.data() + kFileMark.size(), &version);
  if (version == kVersion) return {};
  return {Code::kVersionMismatch,
          fmt::format("the log has version {}, this program reads version {}", version, kVersion), name_,
          "replay it with the tensorlane version that recorded it"};
}

Status Reader::read_header() {
  Record record;
  TL_ASSIGN_OR_RETURN(const bool there, next(&record));
  if (!there) {
    return {Code::kCorrupt, "the log was cut off before the end of its header", name_,
            "there is nothing in it to replay"};
  }
  if (record.is_event || record.kind != RecordKind::kHeader) return corrupt("the log does not begin with its header");
  if (!valid(header_)) return corrupt("no engine can have been made with what the log's header says");
  decoder_.job = header_.config.job;
  decoder_.epoch = header_.config.epoch;
  return {};
}

// False at the end of the file, or where a block is not there to its end.
Result<bool> Reader::read_block() {
  block_at_ = offset_;
  std::array<std::byte, kBlockHeaderBytes> bytes;
  if (const std::size_t got = fill(bytes.data(), bytes.size()); got < bytes.size()) {
    cut_off_ = got;
    return false;
  }
  const std::byte* at = take(bytes.data(), &block_.mark);
  at = take(at, &block_.bytes);
  at = take(at, &block_.first);
  at = take(at, &block_.records);
  at = take(at, &block_.crc);
  at = take(at, &block_.digest);
  std::uint32_t crc = 0;
  take(at, &crc);
  if (block_.mark != kBlockMark || crc != protocol::crc32c({bytes.data(), at}))
    return corrupt("the head of a block fails its checksum");
  if (block_.first != records_ || block_.records == 0 || block_.bytes > kMaxBlockBytes)
    return corrupt("the head of a block does not continue the log");
  payload_.clear();
  while (payload_.size() < block_.bytes) {
    const std::size_t before = payload_.size(), wanted = std::min<std::size_t>(kReadAtOnce, block_.bytes - before);
    payload_.resize(before + wanted);
    const std::size_t got = fill(payload_.data() + before, wanted);
    if (got == wanted) continue;
    cut_off_ = kBlockHeaderBytes + before + got;
    return false;
  }
  if (protocol::crc32c(payload_) != block_.crc) return corrupt("a block fails its checksum");
  decoder_.read(payload_);
  left_ = block_.records;
  ++blocks_;
  return true;
}

Result<bool> Reader::next(Record* record) {
  checkpoint_.reset();
  if (cut_off_ > 0) return false;
  if (left_ == 0) {
    TL_ASSIGN_OR_RETURN(const bool there, read_block());
    if (!there) return false;
    if (ended_) return corrupt("something comes after the end of the log");
  }
  TL_RETURN_IF_ERROR(decode(record));
  record->number = records_++;
  if (--left_ > 0) return true;
  if (!decoder_.empty()) return corrupt("a block has more bytes than records");
  checkpoint_ = Checkpoint{blocks_, block_.digest};
  return true;
}

Status Reader::decode(Record* record) {
  std::uint8_t kind = 0;
  decoder_.number(kind);
  record->is_event = kind >= kFirstEvent && kind < kFirstEvent + kEventKinds;
  if (record->is_event) {
    record->event.kind = static_cast<engine::Event::Kind>(kind - kFirstEvent);
    decoder_.time(record->now);
    describe_event(decoder_, record->event);
    return decoder_.ok() ? Status() : corrupt(fmt::format("event {} cannot be read", records_));
  }
  record->kind = static_cast<RecordKind>(kind);
  bool good = kind == 0 ? records_ == 0 : kind <= static_cast<std::uint8_t>(RecordKind::kVacate);
  switch (record->kind) {
    case RecordKind::kHeader:
      describe_header(decoder_, header_);
      break;
    case RecordKind::kPlan:
      TL_RETURN_IF_ERROR(grow_plan(&record->tensors));
      break;
    case RecordKind::kVacate:
      describe_range(decoder_, record->tensors);
      good = decoder_.ok() && record->tensors.first <= plan_.tensors.size() &&
             record->tensors.count <= plan_.tensors.size() - record->tensors.first;
      if (good) plan_.vacate(record->tensors);
      break;
    case RecordKind::kPriority:
      describe_priority(decoder_, record->priority);
      break;
    case RecordKind::kPick:
      decoder_.time(record->now);
      describe_pick(decoder_, record->pick);
      break;
    case RecordKind::kWork:
      decoder_.time(record->now);
      break;
    case RecordKind::kEnd:
      decoder_.number(record->end);
      good = good && record->end <= EndReason::kFull;
      ended_ = true;
      break;
  }
  return good && decoder_.ok() ? Status() : corrupt(fmt::format("record {} cannot be read", records_));
}

Status Reader::grow_plan(protocol::TensorRange* added) {
  PlanGrowth growth;
  describe_plan(decoder_, growth);
  *added = {growth.first, static_cast<std::uint32_t>(growth.tensors.size())};
  if (!decoder_.ok() || !plan_.has_room(*added))
    return corrupt(fmt::format("record {}, a plan, does not continue the plan before", records_));
  plan_.version = growth.version;
  plan_.rails = growth.rails;
  plan_.ordering = growth.ordering;
  plan_.concurrent = growth.concurrent;
  plan_.place(*added, std::move(growth.tensors));
  if (!growth.rank_hosts.empty()) plan_.rank_hosts = std::move(growth.rank_hosts);
  return {};
}

}  // namespace tensorlane::engine_log
