#include "common/fabric/pattern.h"

#include <charconv>
#include <cstdint>

#include <fmt/format.h>

namespace tensorlane::fabric {

namespace {

constexpr std::string_view kExpectedRange = "expected ranges such as '[0-31]', '[0-252:4]' or '[0-3*2]'";

// A text and the range that follows it.
struct Piece {
  std::string_view before;
  std::uint64_t first = 0, last = 0, step = 1, repeat = 1;
  std::size_t width = 0;  // digits that every number has at least

  std::uint64_t count() const { return ((last - first) / step + 1) * repeat; }
};

Status no_pattern(std::string_view pattern, std::string fix) {
  return Status(Code::kInvalidArgument, fmt::format("'{}' is no pattern", pattern), {}, std::move(fix));
}

// Takes a number of at most six digits from the front.
bool take_number(std::string_view& text, std::uint64_t& number) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto digits = static_cast<std::size_t>(stop - text.data());
  if (error != std::errc() || digits > 6) return false;
  text.remove_prefix(digits);
  return true;
}

bool take_mark(std::string_view& text, char mark) {
  if (!text.starts_with(mark)) return false;
  text.remove_prefix(1);
  return true;
}

// "FIRST-LAST", "FIRST-LAST:STEP", "FIRST-LAST*REPEAT" and both of these.
bool read_range(std::string_view text, Piece& piece) {
  const std::size_t width = std::min(text.find('-'), text.size());
  if (text.starts_with('0')) piece.width = width;
  if (!take_number(text, piece.first) || !take_mark(text, '-') || !take_number(text, piece.last)) return false;
  if (take_mark(text, ':') && !take_number(text, piece.step)) return false;
  if (take_mark(text, '*') && !take_number(text, piece.repeat)) return false;
  return text.empty() && piece.first <= piece.last && piece.step > 0 && piece.repeat > 0;
}

}  // namespace

Result<std::vector<std::string>> expand(std::string_view pattern, std::size_t limit) {
  std::vector<Piece> pieces;
  std::string_view rest = pattern;
  std::uint64_t count = 1;
  for (std::size_t open = rest.find('['); open != rest.npos; open = rest.find('[')) {
    const std::size_t close = rest.find(']', open);
    Piece piece{.before = rest.substr(0, open)};
    if (close == rest.npos || !read_range(rest.substr(open + 1, close - open - 1), piece))
      return no_pattern(pattern, std::string(kExpectedRange));
    // Both are below 2^40 here.
    if (count = count * piece.count(); count > limit)
      return no_pattern(pattern, fmt::format("expected a pattern that stands for at most {} names", limit));
    pieces.push_back(piece);
    rest.remove_prefix(close + 1);
  }
  std::vector<std::string> texts;
  texts.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    std::string text;
    std::uint64_t block = count, place = i;
    for (const Piece& piece : pieces) {
      block /= piece.count();
      text += piece.before;
      text += fmt::format("{:0{}}", piece.first + place / block / piece.repeat * piece.step, piece.width);
      place %= block;
    }
    texts.push_back(text += rest);
  }
  return texts;
}

}  // namespace tensorlane::fabric
