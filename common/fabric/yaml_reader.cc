#include "common/fabric/yaml_reader.h"

#include <algorithm>
#include <charconv>
#include <map>

#include <fmt/format.h>

#include "common/base/suggestion.h"
#include "common/fabric/pattern.h"

namespace tensorlane::fabric {

namespace {

constexpr std::size_t kMaxName = 63;

// What a person sees where a value of another type was expected.
std::string shown(const YAML::Node& node) {
  if (node.IsMap()) return "a mapping";
  if (node.IsSequence()) return "a list";
  if (node.IsNull()) return "empty";
  return fmt::format("'{}'", node.Scalar());
}

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

}  // namespace

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kMaxName && std::all_of(text.begin(), text.end(), is_name_character);
}

int line_of(const YAML::Node& node) {
  return std::max(node.Mark().line, 0) + 1;  // a document without content has no mark
}

std::string place(const std::string& path, const YAML::Node& node) {
  return fmt::format("{}:{}", path, line_of(node));
}

std::string join(std::span<const std::string_view> words) {
  std::string text;
  for (std::string_view word : words) {
    if (!text.empty()) text += ", ";
    text += word;
  }
  return text;
}

Result<Mapping> Mapping::open(const std::string& path, const YAML::Node& node, std::string subject,
                              std::span<const std::string_view> keys) {
  if (!node.IsMap()) {
    return Status(Code::kInvalidArgument, fmt::format("{} is {}", subject, shown(node)), fabric::place(path, node),
                  "expected a mapping with " + join(keys));
  }
  std::map<std::string, int> lines;
  for (const auto& pair : node) {
    const std::string key = pair.first.IsScalar() ? pair.first.Scalar() : std::string();
    const std::string where = fabric::place(path, pair.first);
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      return Status(Code::kInvalidArgument, fmt::format("unknown key '{}' in {}", key, subject), where,
                    suggestion(key, keys) + "expected one of " + join(keys));
    }
    const auto [first, inserted] = lines.emplace(key, line_of(pair.first));
    if (!inserted) {
      return Status(Code::kInvalidArgument, fmt::format("doubled key '{}' in {}", key, subject), where,
                    fmt::format("it is also on line {}; keep one of them", first->second));
    }
  }
  return Mapping(path, node, std::move(subject));
}

bool Mapping::has(std::string_view key) const {
  return static_cast<bool>(node_[std::string(key)]);
}
YAML::Node Mapping::get(std::string_view key) const {
  return node_[std::string(key)];
}
std::string Mapping::place() const {
  return fabric::place(path_, node_);
}
std::string Mapping::place(std::string_view key) const {
  for (const auto& pair : node_) {
    // The place of a value that is not there is that of the next token: take the key's.
    if (pair.first.Scalar() == key) return fabric::place(path_, pair.second.IsNull() ? pair.first : pair.second);
  }
  return place();
}

Status Mapping::wrong(std::string_view key, const std::string& expected) const {
  const std::string value = has(key) ? shown(get(key)) : "left out";
  return Status(Code::kInvalidArgument, fmt::format("'{}' of {} is {}", key, subject_, value), place(key), expected);
}

Status Mapping::missing(std::string_view key) const {
  return Status(Code::kInvalidArgument, fmt::format("no '{}' in {}", key, subject_), place(),
                fmt::format("add '{}: ...'", key));
}

Result<std::string> Mapping::text(std::string_view key) const {
  if (!has(key)) return missing(key);
  const YAML::Node node = get(key);
  if (!node.IsScalar() || node.Scalar().empty()) return wrong(key, "expected text");
  return node.Scalar();
}

Result<std::string> Mapping::name(std::string_view key) const {
  TL_ASSIGN_OR_RETURN(std::string name, text(key));
  if (is_name(name)) return name;
  return wrong(key, fmt::format("expected at most {} letters, digits, '.', '_' or '-'", kMaxName));
}

Result<std::vector<std::string>> Mapping::expanded(std::string_view key, bool slashes) const {
  TL_ASSIGN_OR_RETURN(const std::string pattern, text(key));
  Result<std::vector<std::string>> names = expand(pattern, kMaxItems);
  if (!names.ok()) return wrong(key, names.status().fix());
  const auto fits = [&](char c) { return is_name_character(c) || (slashes && c == '/'); };
  for (const std::string& name : *names) {
    if (name.size() <= kMaxName && std::all_of(name.begin(), name.end(), fits)) continue;
    return wrong(
        key, fmt::format("expected at most {} letters, digits, '.', '_'{} or '-'", kMaxName, slashes ? ", '/'" : ""));
  }
  return names;
}

Result<std::vector<std::string>> Mapping::names(std::string_view key) const {
  return expanded(key, false);
}
Result<std::vector<std::string>> Mapping::ports(std::string_view key) const {
  return expanded(key, true);
}

Result<std::size_t> Mapping::one_of(std::string_view key, std::span<const std::string_view> words) const {
  TL_ASSIGN_OR_RETURN(const std::string word, text(key));
  const auto found = std::find(words.begin(), words.end(), word);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  return wrong(key, suggestion(word, words) + "expected one of " + join(words));
}

Result<std::uint64_t> Mapping::number(std::string_view key, std::uint64_t lowest, std::uint64_t highest) const {
  if (!has(key)) return missing(key);
  const YAML::Node node = get(key);
  const std::string text = node.IsScalar() ? node.Scalar() : std::string();
  std::uint64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = !text.empty() && error == std::errc() && stop == text.data() + text.size();
  if (whole && number >= lowest && number <= highest) return number;
  return wrong(key, fmt::format("expected a whole number from {} to {}", lowest, highest));
}

std::optional<double> fraction_of(const YAML::Node& node) {
  const std::string text = node.IsScalar() ? node.Scalar() : std::string();
  double value = -1;
  const auto [stop, bad] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (bad != std::errc() || stop != text.data() + text.size() || !(value >= 0 && value <= 1)) return std::nullopt;
  return value;
}

Result<double> Mapping::fraction(std::string_view key) const {
  if (!has(key)) return missing(key);
  if (const std::optional<double> value = fraction_of(get(key))) return *value;
  return wrong(key, "expected a number from 0 to 1");
}

Result<bool> Mapping::flag(std::string_view key) const {
  if (!has(key)) return missing(key);
  const YAML::Node node = get(key);
  if (node.IsScalar() && node.Scalar() == "true") return true;
  if (node.IsScalar() && node.Scalar() == "false") return false;
  return wrong(key, "expected true or false");
}

template <typename T>
Result<T> Mapping::parsed(std::string_view key, Result<T> (*parse)(std::string_view)) const {
  if (!has(key)) return missing(key);
  const YAML::Node node = get(key);
  Result<T> result = parse(node.IsScalar() ? node.Scalar() : std::string());
  if (result.ok()) return result;
  return wrong(key, result.status().fix());
}

Result<BitsPerSecond> Mapping::rate(std::string_view key) const {
  return parsed(key, parse_rate);
}
Result<Bytes> Mapping::bytes(std::string_view key) const {
  return parsed(key, parse_bytes);
}
Result<double> Mapping::metres(std::string_view key) const {
  return parsed(key, parse_metres);
}

Result<Duration> Mapping::duration(std::string_view key) const {
  Result<Duration> duration = parsed(key, parse_duration);
  if (duration.ok() && duration->value == 0) return wrong(key, "expected a time longer than nothing");
  return duration;
}

Result<std::uint8_t> Mapping::percent(std::string_view key) const {
  if (!has(key)) return missing(key);
  const YAML::Node node = get(key);
  const std::string text = node.IsScalar() ? node.Scalar() : std::string();
  unsigned number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(stop, static_cast<std::size_t>(text.data() + text.size() - stop));
  if (error == std::errc() && (unit == "%" || unit == " %") && number >= 1 && number <= 100)
    return static_cast<std::uint8_t>(number);
  return wrong(key, "expected a share from '1 %' to '100 %'");
}

Result<YAML::Node> Mapping::list(std::string_view key) const {
  if (!has(key)) return missing(key);
  const YAML::Node node = get(key);
  if (!node.IsSequence()) return wrong(key, "expected a list");
  return node;
}

}  // namespace tensorlane::fabric
