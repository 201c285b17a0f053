#include "monitor/cli/verify_hands.h"

#include <utility>

#include "common/base/text.h"
#include "common/probe/session.h"
#include "monitor/answers/parse.h"

namespace tensorlane::cli {
namespace {

using nlohmann::json;

constexpr std::size_t kBytesAround = 512;  // what a command has beside its flows

}  // namespace

ProbePieces::ProbePieces(const ProbeLines& commands, std::size_t max_bytes) {
  for (const json& command : commands) divide(command, max_bytes);
}

void ProbePieces::divide(const json& command, std::size_t max_bytes) {
  pieces_.push_back({command, true});
  const auto all = command.find("flows");
  if (all == command.end()) return;
  json* flows = &(pieces_.back().command["flows"] = json::array());
  std::size_t bytes = kBytesAround, count = 0;
  for (const json& flow : *all) {
    const std::size_t more_bytes = flow.dump().size() + 1, more = flow.value("count", std::size_t{1});
    if (!flows->empty() && (bytes + more_bytes > max_bytes || count + more > probe::kMaxFlows)) {
      pieces_.push_back({pieces_.back().command, false});
      flows = &(pieces_.back().command["flows"] = json::array());
      bytes = kBytesAround, count = 0;
    }
    flows->push_back(flow);
    bytes += more_bytes, count += more;
  }
}

std::optional<json> ProbePieces::next(Time now) {
  while (!pieces_.empty()) {
    Piece piece = std::move(pieces_.front());
    pieces_.pop_front();
    if (piece.is_first) began_ = now;
    const auto deadline = piece.command.find("deadline_ms");
    if (deadline == piece.command.end()) return std::move(piece.command);
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(now - began_).count();
    const auto left = deadline->get<std::int64_t>() - took;
    if (left <= 0) continue;
    *deadline = left;
    return std::move(piece.command);
  }
  return std::nullopt;
}

Result<nlohmann::json> parse_probe_line(const std::string& line) {
  nlohmann::json parsed = answers::parse(line);
  const bool sound = parsed.is_object() && parsed.contains("kind") && parsed["kind"].is_string();
  if (!sound)
    return Status(Code::kCorrupt, "what it says is no answer of tensorlane-probe: " + printable(line.substr(0, 80)));
  if (parsed["kind"] == "error")
    return Status(Code::kInvalidArgument, "it refuses the command: " + printable(probe_text(parsed, "what")));
  return parsed;
}

std::string probe_text(const nlohmann::json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? printable(found->get<std::string>()) : "";
}

std::optional<int> probe_number(const nlohmann::json& line, const char* key, int low, int high) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_number_integer()) return std::nullopt;
  const auto value = found->get<long long>();
  return value < low || value > high ? std::nullopt : std::optional(static_cast<int>(value));
}

}  // namespace tensorlane::cli
