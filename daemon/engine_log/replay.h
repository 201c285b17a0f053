// Runs the engine over a log of one, and compares what both say.
#pragma once

#include <cstdint>
#include <istream>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "daemon/engine_log/format.h"

namespace tensorlane::engine_log {

// Where the log and this engine part.
struct Parting {
  std::uint64_t checkpoint = 0;  // the first that differs, from 1: the end of the block in which they part
  std::uint64_t record = 0;      // the last one before that checkpoint, or the one that this engine cannot follow
  Time now;                      // of it
  std::optional<std::uint64_t> recorded;  // that checkpoint's digest; none: this engine could not follow so far
  std::string why;                        // "the digests differ", or what the engine cannot follow
};

struct Replay {
  LogHeader header;
  std::uint64_t records = 0, checkpoints = 0;                // checkpoints: that were equal
  std::uint64_t events = 0, picks = 0, work = 0, plans = 0;  // carried out
  std::optional<Time> first, last;                           // of these
  std::uint64_t digest = 0;                                  // of this engine, at the end
  std::optional<EndReason> end;                              // none: the log was cut off, or is still written
  std::uint64_t cut_off = 0;                                 // bytes behind the last whole block
  std::optional<Parting> parting;                            // none: they are equal, as far as the log goes

  bool equal() const { return !parting; }
};

// Replays `in` to its end, or to where they part; `name` is what errors call it. A log that was cut off is replayed as
// far as it goes, which is no error. Errors: those of Reader.
Result<Replay> replay(std::istream& in, const std::string& name);

}  // namespace tensorlane::engine_log
