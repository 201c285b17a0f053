#include "switch-config/lint/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <utility>

#include <fmt/format.h>

namespace tensorlane::lint {
namespace {

constexpr std::size_t kMaxLine = std::size_t{64} << 10;
constexpr std::size_t kMaxDepth = 8;
constexpr std::size_t kMaxPorts = 65536;
constexpr std::size_t kShownText = 120;
constexpr std::string_view kBlanks = " \t\r";

// The bytes of the UTF-8 character at the front; 0 for what is none, or steers a terminal.
std::size_t character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : first == '\t' || first == '\r' ? 1 : 0;
  const std::size_t size = first >= 0xf5 ? 0 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 0;
  for (std::size_t i = 1; i < size; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  return size;
}

bool is_text(std::string_view line) {
  while (!line.empty()) {
    const std::size_t size = character(line);
    if (size == 0) return false;
    line.remove_prefix(size);
  }
  return true;
}

std::string shortened(std::string_view text) {
  if (text.size() <= kShownText) return std::string(text);
  std::size_t end = kShownText;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

// The names from "swp1" to "swp4", or to the bare number "4".
bool add_range(std::string_view first, std::string_view last, std::vector<std::string>& names) {
  const std::size_t digits = first.find_last_not_of("0123456789") + 1;
  const std::size_t last_digits = last.find_last_not_of("0123456789") + 1;
  const auto low = number(first.substr(digits)), high = number(last.substr(last_digits));
  const std::string_view stem = first.substr(0, digits);
  if (!low || !high || *low > *high || *high - *low >= kMaxPorts) return false;
  if (!stem.ends_with(last.substr(0, last_digits))) return false;
  for (std::uint64_t i = *low; i <= *high && names.size() <= kMaxPorts; ++i)
    names.push_back(fmt::format("{}{}", stem, i));
  return true;
}

}  // namespace

bool Line::starts_with(std::string_view prefix) const {
  for (const std::string_view word : words) {
    if (prefix.empty()) return true;
    if (!prefix.starts_with(word)) return false;
    prefix.remove_prefix(word.size());
    if (prefix.empty()) return true;
    if (prefix.front() != ' ') return false;
    prefix.remove_prefix(1);
  }
  return prefix.empty();
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (;;) {
    text = trimmed(text);
    if (text.empty()) return words;
    const std::size_t end = std::min(text.find_first_of(kBlanks), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

Result<std::vector<Line>> lines_of(std::string_view text, const std::string& path, std::string_view comments) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";
  if (text.starts_with(kMark)) text.remove_prefix(kMark.size());
  std::vector<Line> lines;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view whole = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (whole.size() > kMaxLine || !is_text(whole))
      return Status(Code::kInvalidArgument,
                    whole.size() > kMaxLine ? "a line of more than 64 KiB" : "bytes that are no UTF-8 text",
                    fmt::format("{}:{}", path, number), "give a configuration as the device shows it");
    const std::string_view line = trimmed(whole);
    if (line.empty() || comments.find(line.front()) != std::string_view::npos) continue;
    lines.push_back({number, static_cast<std::size_t>(line.data() - whole.data()), line, words_of(line)});
  }
  return lines;
}

std::vector<Block> blocks_of(std::vector<Line> lines) {
  std::vector<Block> top;
  std::vector<std::pair<std::size_t, Block*>> open;  // by depth: the last block of each, and its indentation
  for (Line& line : lines) {
    while (!open.empty() && (open.back().first >= line.indent || open.size() >= kMaxDepth)) open.pop_back();
    std::vector<Block>& siblings = open.empty() ? top : open.back().second->children;
    const std::size_t indent = line.indent;
    siblings.push_back({std::move(line), {}});
    open.emplace_back(indent, &siblings.back());
  }
  return top;
}

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::uint8_t> small_number(std::string_view text, std::size_t highest) {
  const auto value = number(text);
  if (!value || *value > highest) return std::nullopt;
  return static_cast<std::uint8_t>(*value);
}

std::optional<std::vector<std::uint8_t>> number_list(const Line& line, std::size_t first, std::size_t last,
                                                     std::size_t highest) {
  std::vector<std::uint8_t> all;
  for (std::size_t i = first; i < std::min(last, line.size()); ++i) {
    std::string_view word = line[i];
    while (!word.empty()) {
      const std::size_t end = std::min(word.find_first_of(",[]"), word.size());
      const std::string_view part = word.substr(0, end);
      word.remove_prefix(std::min(end + 1, word.size()));
      if (part.empty()) continue;
      const std::size_t hyphen = part.find('-');
      const auto low = small_number(part.substr(0, hyphen), highest);
      const auto high = hyphen == std::string_view::npos ? low : small_number(part.substr(hyphen + 1), highest);
      if (!low || !high || *low > *high) return std::nullopt;
      for (unsigned value = *low; value <= *high; ++value) all.push_back(static_cast<std::uint8_t>(value));
      if (all.size() > 1024) return std::nullopt;
    }
  }
  if (all.empty()) return std::nullopt;
  return all;
}

std::optional<Duration> duration(std::string_view text, Duration unit) {
  const std::size_t point = text.find('.');
  const auto whole = number(text.substr(0, point));
  if (!whole || *whole > 1'000'000) return std::nullopt;
  std::int64_t result = static_cast<std::int64_t>(*whole) * unit.value;
  if (point == std::string_view::npos) return Duration(result);
  std::int64_t place = unit.value;
  for (const char c : text.substr(point + 1)) {
    if (c < '0' || c > '9') return std::nullopt;
    place /= 10;
    result += place * (c - '0');
  }
  return Duration(result);
}

bool names_notifications(std::string_view name) {
  return lower(name).find("cnp") != std::string::npos;
}

std::optional<std::uint8_t> dscp_number(std::string_view word) {
  if (const auto value = small_number(word, 63)) return value;
  const std::string name = lower(word);
  if (name == "ef") return 46;
  if (name == "default" || name == "be") return 0;
  if (name == "va" || name == "voice-admit") return 44;
  if (name.size() == 3 && name.starts_with("cs") && name[2] >= '0' && name[2] <= '7')
    return static_cast<std::uint8_t>((name[2] - '0') * 8);
  if (name.size() == 4 && name.starts_with("af") && name[2] >= '1' && name[2] <= '4' && name[3] >= '1' &&
      name[3] <= '3')
    return static_cast<std::uint8_t>((name[2] - '0') * 8 + (name[3] - '0') * 2);
  return std::nullopt;
}

std::optional<std::vector<std::string>> port_names(std::string_view text) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    const std::string_view part = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (part.empty()) return std::nullopt;
    // The hyphen of a range stands between a digit and what has digits at its end, and no name goes on behind that.
    const std::size_t hyphen = part.rfind('-');
    const bool junos = part.find('-') < part.find('/') && part.find('/') != std::string_view::npos;  // "et-0/0/1"
    if (hyphen == std::string_view::npos || hyphen == 0 || (junos && hyphen == part.find('-')) ||
        part[hyphen - 1] < '0' || part[hyphen - 1] > '9') {
      names.emplace_back(part);
    } else if (!add_range(part.substr(0, hyphen), part.substr(hyphen + 1), names)) {
      return std::nullopt;
    }
    if (names.size() > kMaxPorts) return std::nullopt;
  }
  if (names.empty()) return std::nullopt;
  return names;
}

std::optional<BitsPerSecond> port_speed(std::string_view text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto value = number(text.substr(0, digits));
  if (!value || *value == 0 || *value > 10'000'000) return std::nullopt;
  const char unit = digits < text.size() ? text[digits] : 'm';
  const std::uint64_t factor = unit == 'g' || unit == 'G' ? 1'000'000'000 : unit == 'm' || unit == 'M' ? 1'000'000 : 0;
  if (factor == 0 || *value * factor > 10'000'000'000'000ull) return std::nullopt;
  return BitsPerSecond(*value * factor);
}

Device new_device(const std::string& name, const std::string& place, const char* language) {
  Device device;
  device.name = name;
  device.place = place;
  device.language = language;
  return device;
}

std::string Context::place(const Line& line, std::string_view section) const {
  return fmt::format("{}:{}: {}{}{}", path_, line.number, section, section.empty() ? "" : " | ", shortened(line.text));
}

void Context::add(std::string_view rule, findings::Severity severity, const std::string& place,
                  const std::string& message, const std::string& fix) {
  report_.findings.push_back({std::string(rule), severity, device_.name, place, message, fix});
}

void Context::unparsed(const Line& line) {
  report_.unparsed.push_back({device_.name, fmt::format("{}:{}", path_, line.number), shortened(line.text)});
}

Map* Context::new_map(const std::string& place, std::size_t size) {
  device_.maps.push_back(std::make_unique<Map>());
  device_.maps.back()->place = place;
  device_.maps.back()->size = size;
  return device_.maps.back().get();
}

Map* Context::new_identity(const std::string& place) {
  Map* const map = new_map(place, kPriorities);
  for (std::size_t i = 0; i < kPriorities; ++i) map->to[i] = static_cast<std::uint8_t>(i);
  map->has_preset = true;
  return map;
}

Ecn* Context::new_ecn(const std::string& place) {
  device_.ecns.push_back(std::make_unique<Ecn>());
  device_.ecns.back()->place = place;
  return device_.ecns.back().get();
}

void Context::map(Map& map, std::size_t from, std::uint8_t to, const std::string& place, std::string_view what) {
  // Either line may be the wrong one.
  const auto twice = [&](const std::string& where, unsigned here, unsigned there) {
    error("L1", where, fmt::format("{} {} goes to {} here and to {} in another line", what, from, here, there),
          "map it once");
  };
  if (map.said[from] && map.to[from] != to) {
    twice(place, to, *map.to[from]);
    if (map.places[from] != place) twice(map.places[from], *map.to[from], to);
  }
  map.to[from] = to;
  map.said[from] = true;
  map.places[from] = place;
}

bool is_about_qos(const Line& line) {
  constexpr std::string_view kParts[] = {
      "qos", "priority-flow-control", "dscp", "tx-queue",      "queuing",  "traffic-class", "ecn",    "random-detect",
      "pfc", "class-of-service",      "wred", "shared-buffer", "lossless", "no-drop",       "shaper", "watchdog"};
  if (line[0] == "description" || line[0] == "remark") return false;
  return std::any_of(line.words.begin(), line.words.end(), [&](std::string_view word) {
    return std::any_of(std::begin(kParts), std::end(kParts),
                       [&](std::string_view part) { return word.find(part) != std::string_view::npos; });
  });
}

}  // namespace tensorlane::lint
