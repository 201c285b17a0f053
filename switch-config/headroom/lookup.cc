#include "switch-config/headroom/lookup.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <set>
#include <tuple>

#include <fmt/format.h>

namespace tensorlane::headroom {
namespace {

constexpr std::size_t kMaxFile = 1 << 20;
constexpr std::uint64_t kLeastStatic = 64;  // bytes, a packet
constexpr std::string_view kColumns = "expected: speed cable size xon xoff threshold [xon_offset]";

std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  std::vector<std::string_view> words;
  line = line.substr(0, line.find('#'));
  for (std::size_t at = line.find_first_not_of(kBlanks); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBlanks, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(kBlanks, end);
  }
  return words;
}

template <typename T>
bool parse_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_size(std::string_view text, Bytes& value) {
  return parse_number(text, value.value) && value.value <= (std::uint64_t{1} << 40);
}

// The message about the word that is wrong; empty: none is.
std::string parse_row(const std::vector<std::string_view>& words, LookupRow& row) {
  if (words.size() < 6 || words.size() > 7) return fmt::format("a row of {} columns", words.size());
  std::uint64_t megabits = 0;
  if (!parse_number(words[0], megabits) || megabits == 0 || megabits > 10'000'000)
    return fmt::format("'{}' is not a speed in Mb/s", words[0]);
  row.speed = BitsPerSecond(megabits * 1'000'000);
  std::string_view cable = words[1];
  if (!cable.ends_with('m') || (cable.remove_suffix(1), !parse_number(cable, row.cable_metres)))
    return fmt::format("'{}' is not a length such as 40m", words[1]);
  Bytes* const sizes[] = {&row.headroom.size, &row.headroom.xon, &row.headroom.xoff};
  for (std::size_t i = 0; i < std::size(sizes); ++i)
    if (!parse_size(words[2 + i], *sizes[i])) return fmt::format("'{}' is not a number of bytes", words[2 + i]);
  if (Bytes bytes; parse_size(words[5], bytes) && bytes.value >= kLeastStatic)
    row.static_threshold = bytes;
  else if (!parse_number(words[5], row.threshold) || row.threshold < -8 || row.threshold > 7)
    return fmt::format("'{}' is not a threshold, -8 to 7 or bytes from {} on", words[5], kLeastStatic);
  if (words.size() == 7 && !parse_size(words[6], row.xon_offset))
    return fmt::format("'{}' is not a number of bytes", words[6]);
  return {};
}

auto key(const LookupRow& row) {
  return std::tuple(row.speed.value, row.cable_metres);
}

}  // namespace

Result<std::vector<LookupRow>> parse_lookup(std::string_view text, const std::string& path) {
  std::vector<LookupRow> table;
  std::set<std::tuple<std::uint64_t, unsigned>> seen;
  int number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const auto words = words_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (words.empty()) continue;
    LookupRow row;
    std::string wrong = parse_row(words, row);
    if (wrong.empty() && !seen.insert(key(row)).second)
      wrong = fmt::format("a second row for {} {}", words[0], words[1]);
    if (wrong.empty() && table.size() == kMaxLookupRows) wrong = fmt::format("more than {} rows", kMaxLookupRows);
    if (!wrong.empty())
      return Status(Code::kInvalidArgument, wrong, fmt::format("{}:{}", path, number), std::string(kColumns));
    table.push_back(row);
  }
  if (table.empty()) return Status(Code::kInvalidArgument, "no row", path, std::string(kColumns));
  std::sort(table.begin(), table.end(), [](const auto& a, const auto& b) { return key(a) < key(b); });
  return table;
}

Result<std::vector<LookupRow>> load_lookup(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status(Code::kNotFound, "cannot read the lookup table", path, "name a pg_profile_lookup.ini");
  std::string text(kMaxFile + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxFile)
    return Status(Code::kInvalidArgument, "longer than 1 MiB", path, "name a pg_profile_lookup.ini");
  return parse_lookup(text, path);
}

Result<LookupRow> find_row(const std::vector<LookupRow>& table, BitsPerSecond speed, double cable_metres) {
  std::string speeds;
  const LookupRow* longest = nullptr;
  for (const LookupRow& row : table) {
    if (speeds.empty() || (&row != table.data() && (&row - 1)->speed != row.speed))
      speeds += fmt::format("{}{}G", speeds.empty() ? "" : ", ", static_cast<double>(row.speed.value) / 1e9);
    if (row.speed != speed) continue;
    if (row.cable_metres >= cable_metres) return row;
    longest = &row;
  }
  const double gigabits = static_cast<double>(speed.value) / 1e9;
  if (longest == nullptr)
    return Status(Code::kNotFound, fmt::format("the lookup table has no row for {}G", gigabits), {},
                  "it has " + speeds + "; add a row");
  return Status(Code::kNotFound,
                fmt::format("the lookup table's longest cable at {}G is {}m, which is shorter than {} m", gigabits,
                            longest->cable_metres, cable_metres),
                {}, "add a row for this length");
}

}  // namespace tensorlane::headroom
