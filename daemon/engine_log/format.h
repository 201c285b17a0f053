// The engine log: what went into one engine, in order, and what its digest was on the way (law 6). A file of
//
//   the file's mark: kFileMark, kVersion                                            16 bytes
//   blocks: BlockHeader, then `bytes` of payload, which are `records` records        as many as there are
//
// The first block holds one record, the log's header (LogHeader). Every block ends with a checkpoint: the digest of the
// engine after its last record. Records are a byte that says which one it is, and its fields (fields.h): numbers as
// LEB128, times as the difference to the one before. Fixed numbers are little-endian.
//
// Payload of tensors is not in it, nor what the engine answered: whoever replays it asks the engine again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/descriptor.h"
#include "common/base/units.h"
#include "daemon/engine/engine.h"

namespace tensorlane::engine_log {

inline constexpr std::array<char, 8> kFileMark = {'T', 'L', 'E', 'N', 'G', 'L', 'O', 'G'};
inline constexpr std::uint32_t kVersion = 7;
inline constexpr std::size_t kFileHeaderBytes = 16;  // the mark, the version, 0

// A block is closed once its payload has this length. A record makes it longer by its own length: most have some 20
// bytes; a plan may be long.
inline constexpr std::size_t kBlockBytes = 64 << 10;
inline constexpr std::uint32_t kMaxBlockBytes = 64 << 20;

inline constexpr std::uint32_t kBlockMark = 0x424c4c54;  // "TLLB"
inline constexpr std::size_t kBlockHeaderBytes = 36;

// In front of a block, in this order; behind it the CRC32C of these 32 bytes.
struct BlockHeader {
  std::uint32_t mark = kBlockMark;
  std::uint32_t bytes = 0;    // of payload, at most kMaxBlockBytes
  std::uint64_t first = 0;    // number of the first record, from 0 in the whole file
  std::uint32_t records = 0;  // at least one
  std::uint32_t crc = 0;      // CRC32C of the payload
  std::uint64_t digest = 0;   // of the engine after the last record
};

// What the engine was made with, and whose it was.
struct LogHeader {
  engine::EngineConfig config;
  Descriptor staging;
  std::string job, host;  // for people
};

// What a record is. Numbers are stable within a version; an event's is kFirstEvent + its Event::Kind.
enum class RecordKind : std::uint8_t {
  kHeader = 0,
  kPlan = 1,      // apply_plan() or extend_plan() has taken a plan: what it adds to the one before
  kPriority = 2,  // set_priority()
  kPick = 3,      // pick() has returned something
  kWork = 4,      // pick_work() has returned something
  kEnd = 5,       // nothing comes behind it
  kVacate = 6,    // vacate()
};
inline constexpr std::uint8_t kFirstEvent = 16;
inline constexpr std::uint8_t kEventKinds = 10;

// Why a log ends. One without an end was cut off: its daemon died, or still writes.
enum class EndReason : std::uint8_t {
  kClosed = 0,  // the engine is gone: its job is over
  kFull = 1,    // the next block would have exceeded the log's limit
};

// "the job is over", "the log has reached its limit".
const char* end_reason_text(EndReason reason);

}  // namespace tensorlane::engine_log
