// Inside the SONiC parser: which tables and fields CONFIG_DB has, and what may stand in them (sonic-yang-models, and
// orchagent where it is stricter).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tensorlane::lint::sonic {

enum class Kind {
  kText,        // anything
  kNumber,      // lowest..highest
  kWord,        // one of words, which are separated by blanks
  kPriorities,  // "3,5", possibly empty
  kReference,   // the name of a row of the table `words`
  kReferences,  // several, separated by commas
  kLength,      // "40m"
  kForbidden,   // makes the device refuse the row
};

struct Field {
  std::string_view table, name;  // name "*": any field of the table
  Kind kind = Kind::kText;
  std::int64_t lowest = 0, highest = 0;
  std::string_view words;
  std::string_view rule = "L9";
};

// The tables whose rows map numbers to numbers.
struct MapTable {
  std::string_view table;
  std::size_t keys;       // 0..keys-1
  std::uint64_t highest;  // value
};

const MapTable* find_map_table(std::string_view table);
// Null for a field that is unknown.
const Field* find_field(std::string_view table, std::string_view field);
// Whether find_field knows any field of the table.
bool is_known_table(std::string_view table);
// Whether a table that is unknown is about QoS, by its name.
bool is_about_qos(std::string_view table);

std::optional<std::int64_t> number(std::string_view text);
// "40m" -> 40
std::optional<double> length(std::string_view text);
// "3,5" -> 0b101000
std::optional<std::uint8_t> priorities(std::string_view text);
std::vector<std::string_view> split(std::string_view text, char separator);

// What is wrong with a value; empty: nothing. References are checked by the reader, which knows the rows.
std::string complaint(const Field& field, std::string_view value);
// What may stand there: "a number from 0 to 100".
std::string expectation(const Field& field);

}  // namespace tensorlane::lint::sonic
