// Inside the linter: configurations that are lines of words, and what parsers of all such languages do alike.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "switch-config/findings/findings.h"
#include "switch-config/lint/observed.h"

namespace tensorlane::lint {

// The texts that lines and words point into must live longer.
struct Line {
  int number = 0;          // from 1
  std::size_t indent = 0;  // blanks before it
  std::string_view text;   // without blanks at its ends
  std::vector<std::string_view> words;

  std::size_t size() const { return words.size(); }
  // The word, or an empty one.
  std::string_view operator[](std::size_t i) const { return i < words.size() ? words[i] : std::string_view(); }
  // Whether its first words are those of `text`, separated by single blanks.
  bool starts_with(std::string_view text) const;
};

// A line and those beneath it that are indented further.
struct Block {
  Line line;
  std::vector<Block> children;
};

std::string_view trimmed(std::string_view text);
std::vector<std::string_view> words_of(std::string_view text);

// The lines that are neither empty nor comments, which begin with one of `comments`. InvalidArgument, where =
// "PATH:LINE", for bytes that are no text: control characters, what is not UTF-8, a line of more than 64 KiB.
Result<std::vector<Line>> lines_of(std::string_view text, const std::string& path, std::string_view comments);
// Nested by indentation, 8 deep at most: lines that are deeper count as that deep.
std::vector<Block> blocks_of(std::vector<Line> lines);

std::optional<std::uint64_t> number(std::string_view text);
// "5" to at most `highest`.
std::optional<std::uint8_t> small_number(std::string_view text, std::size_t highest);
// "3,5", "0-7 9" and "[3, 5]" from words `first` to before `last`: numbers up to `highest`. Unset for anything else.
std::optional<std::vector<std::uint8_t>> number_list(const Line& line, std::size_t first, std::size_t last,
                                                     std::size_t highest);
// "0.25": to nanoseconds, of a unit of so many.
std::optional<Duration> duration(std::string_view text, Duration unit);
// Whether a name, of whatever case, is one for congestion notifications.
bool names_notifications(std::string_view name);
// "46", "ef", "af31", "cs6", "default".
std::optional<std::uint8_t> dscp_number(std::string_view word);
// "Ethernet1/1-4,Ethernet2/1", "swp1-32,swp40": every name. Unset for what is no such list or holds more than 65,536.
std::optional<std::vector<std::string>> port_names(std::string_view text);
// "100G", "400gfull", "100000": bits per second; a number without a letter counts in Mbit/s.
std::optional<BitsPerSecond> port_speed(std::string_view text);

// What a parser begins with.
Device new_device(const std::string& name, const std::string& place, const char* language);

// What a parser says to the reader of its findings.
class Context {
 public:
  Context(const std::string& path, Device& device, findings::Report& report)
      : path_(path), device_(device), report_(report) {}

  Device& device() { return device_; }
  const std::string& path() const { return path_; }
  // "PATH:LINE: SECTION | TEXT"
  std::string place(const Line& line, std::string_view section = {}) const;
  void add(std::string_view rule, findings::Severity severity, const std::string& place, const std::string& message,
           const std::string& fix);
  void error(std::string_view rule, const std::string& place, const std::string& message, const std::string& fix) {
    add(rule, findings::Severity::kError, place, message, fix);
  }
  void warning(std::string_view rule, const std::string& place, const std::string& message, const std::string& fix) {
    add(rule, findings::Severity::kWarning, place, message, fix);
  }
  void unparsed(const Line& line);

  Map* new_map(const std::string& place, std::size_t size);
  // Maps every number to itself.
  Map* new_identity(const std::string& place);
  Ecn* new_ecn(const std::string& place);
  // Says that `from` maps to `to`; rule L1 where an earlier line said another thing.
  void map(Map& map, std::size_t from, std::uint8_t to, const std::string& place, std::string_view what);

 private:
  const std::string& path_;
  Device& device_;
  findings::Report& report_;
};

// Whether a line that no parser knows may be about QoS, by its words.
bool is_about_qos(const Line& line);

}  // namespace tensorlane::lint
