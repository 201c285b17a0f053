#include "switch-config/lint/junos_statements.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace tensorlane::lint::junos {
namespace {

constexpr std::size_t kMaxDepth = 32;
constexpr std::size_t kMaxStatement = 4096;

Status wrong(const std::string& what, const std::string& path, int line) {
  return Status(Code::kInvalidArgument, what, fmt::format("{}:{}", path, line),
                "give a whole configuration, as `show configuration` prints it");
}

// Words between braces and semicolons.
class Braces {
 public:
  explicit Braces(const std::string& path) : path_(path) {}

  Status read(const std::vector<Line>& lines, Statements& statements) {
    for (const Line& line : lines) {
      for (const std::string_view word : line.words) {
        if (word.starts_with("/*")) comment_ = true;
        const bool commented = comment_;
        if (word.ends_with("*/")) comment_ = false;
        if (commented) continue;
        if (word.starts_with('#')) break;
        TL_RETURN_IF_ERROR(take(word, line.number, statements));
      }
    }
    if (!open_.empty() || !pending_.empty())
      return wrong("it ends within a statement", path_, lines.empty() ? 1 : lines.back().number);
    return {};
  }

 private:
  Status take(std::string_view word, int line, Statements& statements) {
    std::string_view end;
    while (!word.empty() && (word.back() == ';' || word.back() == '{' || word.back() == '}')) {
      if (!end.empty()) return wrong("a word that Junos does not write", path_, line);
      end = word.substr(word.size() - 1);
      word.remove_suffix(1);
    }
    if (!word.empty()) {
      if (pending_.empty()) first_ = line;
      pending_ += fmt::format("{}{}", pending_.empty() ? "" : " ", word);
    }
    if (pending_.size() > kMaxStatement) return wrong("a statement of more than 4 KiB", path_, line);
    if (end == "{") return enter(line);
    if (end == "}") return leave(line);
    if (end == ";" && !pending_.empty()) finish(statements);
    return {};
  }

  Status enter(int line) {
    if (open_.size() >= kMaxDepth) return wrong("braces nested too deeply", path_, line);
    const std::size_t before = open_.empty() ? 0 : open_.back().size();
    if (before + pending_.size() > kMaxStatement) return wrong("a statement of more than 4 KiB", path_, line);
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
    statements.texts.push_back(open_.empty() ? pending_ : fmt::format("{} {}", open_.back(), pending_));
    const std::string& text = statements.texts.back();
    statements.lines.push_back({first_, 0, text, words_of(text)});
    pending_.clear();
  }

  const std::string& path_;
  std::vector<std::string> open_;  // the words before each brace, with those of the braces around it
  std::string pending_;
  int first_ = 0;
  bool comment_ = false;
};

}  // namespace

Result<Statements> statements_of(std::string_view text, const std::string& path) {
  TL_ASSIGN_OR_RETURN(std::vector<Line> lines, lines_of(text, path, "#"));
  Statements statements;
  const bool commands = std::any_of(lines.begin(), lines.end(), [](const Line& line) { return line[0] == "set"; });
  if (!commands) {
    TL_RETURN_IF_ERROR(Braces(path).read(lines, statements));
    return statements;
  }
  for (Line& line : lines) {
    if (line[0] == "set") line.words.erase(line.words.begin());
    statements.lines.push_back(std::move(line));
  }
  return statements;
}

}  // namespace tensorlane::lint::junos
