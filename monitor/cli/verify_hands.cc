#include "monitor/cli/verify_hands.h"

#include "common/base/text.h"
#include "monitor/answers/parse.h"

namespace tensorlane::cli {

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
