// What `nv config show` prints, or keeps in startup.yaml: the settings of `nv set` commands as a tree.
#include <yaml-cpp/yaml.h>

#include <algorithm>

#include <fmt/format.h>

#include "switch-config/lint/cumulus_settings.h"

namespace tensorlane::lint::cumulus {
namespace {

constexpr std::size_t kMaxDepth = 24;
constexpr std::size_t kMaxCommands = 1'000'000;
constexpr const char* kGiveOne = "give what `nv config show` printed";

class Tree {
 public:
  Tree(const std::string& path, std::deque<std::string>& texts) : path_(path), texts_(texts) {}

  Status read(const YAML::Node& root) {
    if (!root.IsSequence()) return wrong("it is no list with 'set'", root);
    for (const YAML::Node& item : root) {
      if (!item.IsMap()) return wrong("an item that is neither 'header' nor 'set'", item);
      if (item["set"]) TL_RETURN_IF_ERROR(flatten(item["set"], "nv set", 0));
    }
    return {};
  }

  std::vector<Line> take() { return std::move(lines_); }

 private:
  Status wrong(const std::string& what, const YAML::Node& node) const {
    return Status(Code::kInvalidArgument, what, fmt::format("{}:{}", path_, node.Mark().line + 1), kGiveOne);
  }

  Status flatten(const YAML::Node& node, const std::string& words, std::size_t depth) {
    if (depth > kMaxDepth) return wrong("nested too deeply", node);
    if (node.IsMap() && node.size() > 0) {
      for (const auto& pair : node) {
        const YAML::Node &key = pair.first, &value = pair.second;
        if (!key.IsScalar()) return wrong("a key that is no word", key);
        TL_RETURN_IF_ERROR(value.IsScalar() || value.size() == 0
                               ? add(fmt::format("{} {}", words, key.Scalar()), value, key.Mark().line)
                               : flatten(value, fmt::format("{} {}", words, key.Scalar()), depth + 1));
      }
      return {};
    }
    if (!node.IsSequence()) return add(words, node, node.Mark().line);
    for (const YAML::Node& item : node) TL_RETURN_IF_ERROR(flatten(item, words, depth + 1));
    return {};
  }

  Status add(const std::string& words, const YAML::Node& value, int line) {
    if (lines_.size() >= kMaxCommands) return wrong("more than a million settings", value);
    const bool is_set = value.IsScalar() && !value.Scalar().empty();
    texts_.push_back(is_set ? fmt::format("{} {}", words, value.Scalar()) : words);
    const std::string& text = texts_.back();
    lines_.push_back({line + 1, 0, text, words_of(text)});
    return {};
  }

  const std::string& path_;
  std::deque<std::string>& texts_;
  std::vector<Line> lines_;
};

}  // namespace

bool is_document(std::string_view text) {
  constexpr std::size_t kLooked = 4096;
  const std::string_view beginning = text.substr(0, kLooked);
  if (beginning.find("nvue-api-version") != std::string_view::npos) return true;
  for (std::string_view rest = beginning; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = trimmed(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line == "- set:" || line == "- header:") return true;
    if (!line.empty() && !line.starts_with('#') && line != "---") return false;
  }
  return false;
}

Result<std::vector<Line>> commands_of(std::string_view text, const std::string& path, std::deque<std::string>& texts) {
  TL_RETURN_IF_ERROR(lines_of(text, path, "#").status());  // refuses what is no text
  Tree tree(path, texts);
  try {
    TL_RETURN_IF_ERROR(tree.read(YAML::Load(std::string(text))));
  } catch (const YAML::Exception& exception) {
    return Status(Code::kInvalidArgument, fmt::format("it is not YAML: {}", exception.msg),
                  fmt::format("{}:{}", path, exception.mark.line + 1), kGiveOne);
  }
  return tree.take();
}

}  // namespace tensorlane::lint::cumulus
