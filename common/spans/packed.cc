#include "common/spans/packed.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <limits>
#include <utility>

#include "common/json/json.h"

namespace tensorlane::spans {
namespace {

constexpr int kVersion = 1;
constexpr std::size_t kColumns = 16;
constexpr std::size_t kNameOverhead = 4;

constexpr std::size_t kMostName = 2048;  // bytes

// JSON has no text that is not UTF-8.
std::string as_utf8(std::string_view name) {
  return nlohmann::json::parse(json_text(name)).get<std::string>();
}

Status corrupt(std::size_t line) {
  return {Code::kCorrupt, "no packed spans", fmt::format("line {}", line),
          "install the same release of command and daemon"};
}

// A line of whole numbers, or false.
bool read_row(std::string_view line, std::array<std::int64_t, kColumns>* row) {
  const char* at = line.data();
  const char* const end = at + line.size();
  for (std::size_t column = 0; column < row->size(); ++column) {
    if (column > 0 && (at == end || *at++ != ' ')) return false;
    const auto [next, error] = std::from_chars(at, end, (*row)[column]);
    if (error != std::errc()) return false;
    at = next;
  }
  return at == end;
}

Result<Unpacked> read_head(std::string_view line) {
  const nlohmann::json head = nlohmann::json::parse(line, nullptr, false);
  try {
    if (head.at("version").get<int>() != kVersion) return corrupt(1);
    Unpacked unpacked;
    unpacked.source = {head.at("host"),  head.at("sort_index"), head.at("classes"),
                       head.at("dscps"), head.at("boot"),       head.at("wall_clock_ahead_ns")};
    unpacked.names = head.at("names").get<std::vector<std::string>>();
    unpacked.left_out = head.at("left_out");
    if (unpacked.source.class_dscps.size() != unpacked.source.class_names.size()) return corrupt(1);
    // Every span of a timeline repeats its names.
    const auto is_long = [](const std::string& name) { return name.size() > kMostName; };
    if (std::ranges::any_of(unpacked.names, is_long) || std::ranges::any_of(unpacked.source.class_names, is_long))
      return corrupt(1);
    return unpacked;
  } catch (const nlohmann::json::exception&) {
    return corrupt(1);
  }
}

template <typename Number>
bool take(std::int64_t value, Number* to) {
  *to = static_cast<Number>(value);
  return value >= 0 && static_cast<std::uint64_t>(value) <= std::numeric_limits<Number>::max();
}

bool read_span(const std::array<std::int64_t, kColumns>& row, const std::vector<std::string>& names, Span* span) {
  std::uint8_t phase = 0;
  std::array<std::uint32_t, 3> name{};
  const bool good = take(row[0], &phase) && phase < kPhases && take(row[1], &span->cls) && take(row[2], &span->rail) &&
                    row[5] >= 0 && take(row[6], &name[0]) && take(row[7], &name[1]) && take(row[8], &name[2]) &&
                    take(row[9], &span->tensor_id) && row[10] >= 0 && take(row[11], &span->slice) &&
                    take(row[12], &span->grant) && take(row[13], &span->offset) && take(row[14], &span->bytes) &&
                    take(row[15], &span->epoch) && (row[3] == 0 || row[3] == 1) &&
                    std::ranges::all_of(name, [&](std::uint32_t n) { return n < names.size(); });
  if (!good) return false;
  span->phase = static_cast<Phase>(phase);
  span->eager = row[3] != 0;
  span->length = row[5];
  span->sequence = static_cast<std::uint64_t>(row[10]);
  span->tensor = names[name[0]];
  span->job = names[name[1]];
  span->peer = names[name[2]];
  return true;
}

}  // namespace

std::size_t Packer::number_of(std::string_view name) {
  const auto [found, fresh] = numbers_.try_emplace(std::string(name), names_.size());
  if (fresh) {
    names_.push_back(as_utf8(name));
    name_bytes_ += name.size() + kNameOverhead;
  }
  return found->second;
}

void Packer::add(const Span& span) {
  fmt::format_to(std::back_inserter(rows_), "{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}\n",
                 static_cast<unsigned>(span.phase), span.cls, span.rail, span.eager ? 1 : 0, span.begin - last_,
                 span.length, number_of(span.tensor), number_of(span.job), number_of(span.peer), span.tensor_id,
                 span.sequence, span.slice, span.grant, span.offset, span.bytes, span.epoch);
  last_ = span.begin;
}

std::string Packer::take(const Source& source, std::uint64_t left_out) {
  const nlohmann::json head = {{"version", kVersion},
                               {"host", source.host},
                               {"sort_index", source.sort_index},
                               {"classes", source.class_names},
                               {"dscps", source.class_dscps},
                               {"boot", source.boot},
                               {"wall_clock_ahead_ns", source.wall_clock_ahead},
                               {"left_out", left_out},
                               {"names", names_}};
  std::string text = head.dump() + '\n' + std::exchange(rows_, {});
  *this = Packer();
  return text;
}

Result<Unpacked> unpack(std::string_view text) {
  std::size_t line = 1, end = std::min(text.find('\n'), text.size());
  TL_ASSIGN_OR_RETURN(Unpacked unpacked, read_head(text.substr(0, end)));
  std::int64_t last = 0;
  for (std::size_t at = end + 1; at < text.size(); at = end + 1) {
    ++line;
    end = std::min(text.find('\n', at), text.size());
    std::array<std::int64_t, kColumns> row{};
    Span span;
    if (!read_row(text.substr(at, end - at), &row) || !read_span(row, unpacked.names, &span)) return corrupt(line);
    span.begin = last += row[4];
    unpacked.spans.push_back(span);
  }
  return unpacked;
}

}  // namespace tensorlane::spans
