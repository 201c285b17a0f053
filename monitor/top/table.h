// Tables that fit a terminal of any width: columns go by importance, and no line is wider than it may be. Pure.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/json/json.h"

namespace tensorlane::top {

// What a figure is and how it is written, in at most kFigureColumns columns.
enum class Unit { kText, kNumber, kCount, kBitsPerSecond, kBytes, kSeconds, kShare, kPerSecond };
inline constexpr std::size_t kFigureColumns = 7;

enum class Tone { kPlain, kTitle, kHead, kSelected, kDim, kWarn, kBad };

struct Span {
  std::string text;
  Tone tone = Tone::kPlain;
};
using Line = std::vector<Span>;

// Nothing, where it is not known.
using Cell = std::variant<std::monostate, double, std::string>;

struct Column {
  std::string key;  // in JSON
  std::string title;
  Unit unit = Unit::kText;
  int importance = 0;  // of columns that do not fit the ones with the least go; the first column stays
  std::string about;
  double warn = std::numeric_limits<double>::infinity();  // figures from here on are marked
  std::size_t least = 8;                                  // columns of a text without which it is not worth showing
};

struct Row {
  std::string key;  // tells it from the other rows, and stays
  std::vector<Cell> cells;
  std::string note = {};  // why there are no figures: stands in their place
};

struct Table {
  std::vector<Column> columns;
  std::vector<Row> rows;

  // The index of a column, or columns.size().
  std::size_t column(std::string_view key) const;
};

struct Sorting {
  std::string column;  // key
  bool descending = true;
};

// Rows with a note first, then by a column, then by their keys: equal tables have equal orders.
void sort_rows(Table* table, const Sorting& sorting);

// What terminals show of a text: without what steers them, in characters of one or two columns. Without `utf8` in
// ASCII.
std::string clean(std::string_view text, bool utf8);
// How many columns a clean text takes.
std::size_t columns_of(std::string_view clean_text);
// A clean text in exactly `columns` columns: filled up, or cut with a mark.
std::string fit(std::string_view clean_text, std::size_t columns, bool right = false);

std::string figure(const Cell& cell, Unit unit);

// Which columns are shown in `width` columns, and how wide each of them is, in the order of the table.
struct Layout {
  struct Shown {
    std::size_t column, width;
  };
  std::vector<Shown> columns;
  std::size_t width = 0;
};
// Columns that no row fills are left out. The one that rows are sorted by stays longer than the others.
Layout lay_out(const Table& table, std::size_t width, bool utf8, const Sorting& sorting);

Line head_line(const Table& table, const Layout& layout, bool utf8, const Sorting& sorting);
Line row_line(const Table& table, const Row& row, const Layout& layout, bool utf8, bool selected);

// Rows as objects, figures as they are: null where not known.
nlohmann::json to_json(const Table& table);

}  // namespace tensorlane::top
