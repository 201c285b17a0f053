// The programs that probe for `tensorlane verify`, one on each host: how they are reached, and what they are asked.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "common/json/json.h"

namespace tensorlane::cli {

// Lines of JSON, as common/probe/README.md describes them.
using ProbeLines = std::vector<nlohmann::json>;

// One thread. Ends all programs when it goes.
class ProbeHands {
 public:
  virtual ~ProbeHands() = default;
  virtual std::size_t size() const = 0;
  // Gives each host its commands, one list for each; an empty one asks nothing. Waits until every command is done, on
  // all hosts beside each other, for `patience` at most. Errors of a host, which is not asked again after one:
  // kUnavailable (it cannot be reached, or its program has ended), kTimedOut, kCorrupt (what it says is no answer).
  virtual std::vector<Result<ProbeLines>> ask(const std::vector<ProbeLines>& commands, Duration patience) = 0;
};

// Commands in pieces that programs take: the flows of one command are divided, by bytes and by what one command may
// ask for. The pieces of a command share its deadline.
class ProbePieces {
 public:
  using Time = std::chrono::steady_clock::time_point;

  ProbePieces() = default;
  // A piece is shorter than `max_bytes`, unless a command without flows is not.
  ProbePieces(const ProbeLines& commands, std::size_t max_bytes);

  // The next piece, which is given once the one before it is done, with what is left of its command's deadline. What
  // nothing is left for is passed over. Nothing: those were all.
  std::optional<nlohmann::json> next(Time now);

 private:
  struct Piece {
    nlohmann::json command;
    bool is_first = false;  // of its command
  };
  void divide(const nlohmann::json& command, std::size_t max_bytes);

  std::deque<Piece> pieces_;
  Time began_;  // the command of which pieces are given
};

// One line. Errors: kCorrupt when it is no JSON object with a kind, kInvalidArgument when it says that a command was
// refused.
Result<nlohmann::json> parse_probe_line(const std::string& line);
// What a host says may be anything: text and whole numbers of a line, where they are there and are what they should be.
std::string probe_text(const nlohmann::json& line, const char* key);
std::optional<int> probe_number(const nlohmann::json& line, const char* key, int low, int high);

}  // namespace tensorlane::cli
