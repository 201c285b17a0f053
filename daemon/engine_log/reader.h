// Reads the log of an engine (format.h), block by block: no more of it is in memory than one block.
#pragma once

#include <cstdint>
#include <istream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "daemon/engine_log/codec.h"
#include "daemon/engine_log/fields.h"
#include "daemon/engine_log/format.h"

namespace tensorlane::engine_log {

struct Record {
  RecordKind kind{};  // of what is not an event
  bool is_event = false;
  std::uint64_t number = 0;  // from 0, the log's header
  Time now;                  // of events, picks and work
  engine::Event event;       // these: the one that `kind` names
  Pick pick;
  Priority priority;
  protocol::TensorRange tensors;  // kPlan: those that it adds; kVacate
  EndReason end{};
};

// The end of a block.
struct Checkpoint {
  std::uint64_t number = 0;  // from 1
  std::uint64_t digest = 0;
};

class Reader {
 public:
  // Reads the log's header. `in` outlives the reader; `name` is what errors call it. Errors: kCorrupt (no such log, or
  // cut off before the end of its header, or a header that no engine could have been made with), kVersionMismatch.
  static Result<Reader> open(std::istream& in, std::string name);

  const LogHeader& header() const { return header_; }

  // The next record; false when there is none: the log's end, or where it was cut off. Errors: kCorrupt, with the place
  // in the file.
  Result<bool> next(Record* record);
  // The block's checkpoint, if the record that next() returned was its last.
  const std::optional<Checkpoint>& checkpoint() const { return checkpoint_; }
  // The plan as of the last record.
  const protocol::Plan& plan() const { return plan_; }
  // After next() has returned false: bytes of a block that is not there to its end.
  std::uint64_t cut_off() const { return cut_off_; }

 private:
  Reader(std::istream& in, std::string name) : in_(&in), name_(std::move(name)) {}

  Status read_file_header();
  Status read_header();
  Result<bool> read_block();
  Status grow_plan(protocol::TensorRange* added);
  Status decode(Record* record);
  std::size_t fill(std::byte* to, std::size_t bytes);
  Status corrupt(const std::string& what) const;

  std::istream* in_;
  std::string name_;
  std::uint64_t offset_ = 0, block_at_ = 0;  // in the file: read so far; of the block
  LogHeader header_;
  protocol::Plan plan_;
  BlockHeader block_;
  std::vector<std::byte> payload_;
  Decoder decoder_;
  std::uint32_t left_ = 0;  // records of the block
  std::uint64_t records_ = 0, blocks_ = 0;
  std::optional<Checkpoint> checkpoint_;
  bool ended_ = false;
  std::uint64_t cut_off_ = 0;
};

}  // namespace tensorlane::engine_log
