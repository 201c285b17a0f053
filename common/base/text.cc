#include "common/base/text.h"

#include <algorithm>
#include <array>

namespace tensorlane {
namespace {

struct Range {
  char32_t first, last;
};

// Control characters, separators of lines, marks of direction and surrogates (Unicode categories Cc, Zl, Zp, Cs and
// "Bidi_Control").
constexpr std::array<Range, 7> kSteering{{{0x00, 0x1f},
                                          {0x7f, 0x9f},
                                          {0x61c, 0x61c},
                                          {0x200e, 0x200f},
                                          {0x2028, 0x202e},
                                          {0x2066, 0x2069},
                                          {0xd800, 0xdfff}}};

bool steers(char32_t character) {
  return std::ranges::any_of(kSteering, [&](const Range& r) { return r.first <= character && character <= r.last; });
}

}  // namespace

std::size_t printable_character(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  const std::size_t size = first < 0x80    ? 1
                           : first < 0xc2  ? 0
                           : first < 0xe0  ? 2
                           : first < 0xf0  ? 3
                           : first <= 0xf4 ? 4
                                           : 0;
  if (size == 0 || size > text.size()) return 0;
  constexpr std::array<unsigned, 5> kBitsOfFirst{0, 0x7f, 0x1f, 0x0f, 0x07};
  char32_t character = first & kBitsOfFirst[size];
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    character = character << 6 | (byte(i) & 0x3fu);
  }
  // The shortest encoding is the only one.
  constexpr std::array<char32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
  if (character < kLeast[size] || character > 0x10ffff || steers(character)) return 0;
  return size;
}

bool is_printable(std::string_view text) {
  while (!text.empty()) {
    const std::size_t size = printable_character(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t size = printable_character(text);
    if (size == 0) {
      out += '?';
    } else {
      out += text.substr(0, size);
    }
    text.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return out;
}

std::string for_shell(std::string_view text) {
  constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._/+-";
  if (!text.empty() && text.find_first_not_of(kPlain) == text.npos) return std::string(text);
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace tensorlane
