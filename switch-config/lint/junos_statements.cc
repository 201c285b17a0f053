#include "switch-config/lint/junos_statements.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace tensorlane::lint::junos {
namespace {

constexpr std::size_t kMaxDepth = 32;
constexpr std::size_t kMaxStatement = std::size_t{64} << 10;

Status wrong(const std::string& what, const std::string& path, int line) {
  return Status(Code::kInvalidArgument, what, fmt::format("{}:{}", path, line),
                "give a whole configuration, as `show configuration` prints it");
}

// What stands around a configuration that was copied from a terminal: "admin@leaf1> show configuration", "{master:0}",
// "[edit]".
bool is_prompt(const Line& line) {
  const std::string_view word = line[0];
  if (word.starts_with("{master") || word.starts_with("{backup") || word.starts_with("{primary")) return true;
  if (word.starts_with("[edit")) return true;
  constexpr std::string_view kEnds = ">#%";
  return word.find('@') != std::string_view::npos && kEnds.find(word.back()) != std::string_view::npos;
}

// Whether some word says that the statement is not in force.
bool is_inactive(std::string_view text) {
  const auto words = words_of(text);
  return std::find(words.begin(), words.end(), "inactive:") != words.end();
}

// Words between braces and semicolons.
class Braces {
 public:
  explicit Braces(const std::string& path) : path_(path) {}

  Status read(const std::vector<Line>& lines, Statements& statements) {
    for (const Line& line : lines) {
      if (is_prompt(line)) continue;
      for (const std::string_view word : line.words) {
        if (word.starts_with("/*") && !quoted_) comment_ = true;
        const bool commented = comment_;
        if (word.ends_with("*/")) comment_ = false;
        if (commented) continue;
        if (word.starts_with('#') && !quoted_) break;
        TL_RETURN_IF_ERROR(take_quoted(word, line.number, statements));
      }
    }
    if (!open_.empty() || !pending_.empty())
      return wrong("it ends within a statement", path_, lines.empty() ? 1 : lines.back().number);
    return {};
  }

 private:
  // A quoted text may hold what else ends a statement.
  Status take_quoted(std::string_view word, int line, Statements& statements) {
    if (!quoted_ && !word.starts_with('"')) return take(word, line, statements);
    std::size_t end = word.find('"', quoted_ ? 0 : 1);
    while (end != std::string_view::npos && end > 0 && word[end - 1] == '\\') end = word.find('"', end + 1);
    quoted_ = end == std::string_view::npos;
    const std::string_view quoted = word.substr(0, quoted_ ? end : end + 1);
    TL_RETURN_IF_ERROR(append(quoted, line));
    return quoted_ ? Status() : take(word.substr(quoted.size()), line, statements);
  }

  Status append(std::string_view word, int line) {
    if (pending_.empty()) first_ = line;
    pending_ += fmt::format("{}{}", pending_.empty() ? "" : " ", word);
    return pending_.size() > kMaxStatement ? wrong("a statement of more than 64 KiB", path_, line) : Status();
  }

  Status take(std::string_view word, int line, Statements& statements) {
    if (word == "protect:" || word == "replace:") return {};
    std::string_view end;
    while (!word.empty() && (word.back() == ';' || word.back() == '{' || word.back() == '}')) {
      if (!end.empty()) return wrong("a word that Junos does not write", path_, line);
      end = word.substr(word.size() - 1);
      word.remove_suffix(1);
    }
    if (!word.empty()) TL_RETURN_IF_ERROR(append(word, line));
    if (end == "{") return enter(line);
    if (end == "}") return leave(line);
    if (end == ";" && !pending_.empty()) finish(statements);
    return {};
  }

  Status enter(int line) {
    if (open_.size() >= kMaxDepth) return wrong("braces nested too deeply", path_, line);
    const std::size_t before = open_.empty() ? 0 : open_.back().size();
    if (before + pending_.size() > kMaxStatement) return wrong("a statement of more than 64 KiB", path_, line);
    open_.push_back(before == 0 ? pending_ : fmt::format("{} {}", open_.back(), pending_));
    pending_.clear();
    return {};
  }

  Status leave(int line) {
    if (open_.empty() || !pending_.empty()) return wrong("a brace that closes nothing", path_, line);
    open_.pop_back();
    return {};
  }

  void finish(Statements& statements) {
    if (is_inactive(pending_) || (!open_.empty() && is_inactive(open_.back()))) {
      pending_.clear();
      return;
    }
    statements.texts.push_back(open_.empty() ? pending_ : fmt::format("{} {}", open_.back(), pending_));
    const std::string& text = statements.texts.back();
    statements.lines.push_back({first_, 0, text, words_of(text)});
    pending_.clear();
  }

  const std::string& path_;
  std::vector<std::string> open_;  // the words before each brace, with those of the braces around it
  std::string pending_;
  int first_ = 0;
  bool comment_ = false, quoted_ = false;
};

// Takes away the statements before a "delete" or "deactivate" that it names.
void take_away(std::vector<Line>& lines) {
  std::set<std::string> gone;
  std::vector<Line> kept;
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const bool is_gone = (*line)[0] == "delete" || (*line)[0] == "deactivate";
    std::string prefix;
    bool is_kept = true;
    for (std::size_t i = is_gone ? 1 : 0; i < line->size(); ++i) {
      prefix += fmt::format("{}{}", prefix.empty() ? "" : " ", (*line)[i]);
      is_kept &= gone.count(prefix) == 0;
    }
    if (is_gone)
      gone.insert(prefix);
    else if (is_kept)
      kept.push_back(std::move(*line));
  }
  std::reverse(kept.begin(), kept.end());
  lines = std::move(kept);
}

// `show configuration class-of-service` leaves those words out.
void add_left_out(std::vector<Line>& lines) {
  constexpr std::string_view kParts[] = {"forwarding-classes", "classifiers", "congestion-notification-profile",
                                         "scheduler-maps",     "schedulers",  "drop-profiles"};
  const auto begins = [&](const Line& line, std::string_view word) { return line[0] == word; };
  bool part = false;
  for (const Line& line : lines) {
    if (begins(line, "class-of-service")) return;
    part |= std::any_of(std::begin(kParts), std::end(kParts), [&](auto word) { return begins(line, word); });
  }
  if (!part) return;
  for (Line& line : lines) line.words.insert(line.words.begin(), "class-of-service");
}

}  // namespace

Result<Statements> statements_of(std::string_view text, const std::string& path) {
  TL_ASSIGN_OR_RETURN(std::vector<Line> lines, lines_of(text, path, "#"));
  Statements statements;
  const bool commands = std::any_of(lines.begin(), lines.end(), [](const Line& line) { return line[0] == "set"; });
  if (!commands) {
    TL_RETURN_IF_ERROR(Braces(path).read(lines, statements));
    add_left_out(statements.lines);
    return statements;
  }
  for (Line& line : lines) {
    if (is_prompt(line)) continue;
    if (line[0] == "set") line.words.erase(line.words.begin());
    if (line.size() != 0) statements.lines.push_back(std::move(line));
  }
  take_away(statements.lines);
  return statements;
}

}  // namespace tensorlane::lint::junos
