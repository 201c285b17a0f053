#include "monitor/top/table.h"

#include <fmt/format.h>
#include <langinfo.h>
#include <locale.h>
#include <wchar.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "common/base/text.h"

namespace tensorlane::top {
namespace {

constexpr std::size_t kMostText = 48;
constexpr std::size_t kGap = 1;

// Columns of one printable character: 0 of one that joins others.
int width_of(std::string_view character) {
  if (character.size() == 1) return 1;
  // Not the program's own locale, so that a test and a terminal see the same.
  static const locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  if (utf8 == nullptr) return 0;
  const locale_t old = uselocale(utf8);
  wchar_t wide = 0;
  mbstate_t state{};
  const std::size_t used = mbrtowc(&wide, character.data(), character.size(), &state);
  const int width = used == character.size() ? wcwidth(wide) : 0;
  uselocale(old);
  return std::max(width, 0);
}

// A number with the prefix of its size, in three figures: "1.23G".
std::string scaled(double value) {
  constexpr std::array kPrefixes{"", "k", "M", "G", "T", "P", "E"};
  std::size_t prefix = 0;
  while (std::abs(value) >= 999.5 && prefix + 1 < kPrefixes.size()) {
    value /= 1000;
    ++prefix;
  }
  if (std::abs(value) >= 9999) return ">10000E";
  if (prefix == 0 && value == std::floor(value)) return fmt::format("{:.0f}", value);
  const int digits = std::abs(value) < 9.995 ? 2 : std::abs(value) < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", value, digits, kPrefixes[prefix]);
}

std::string seconds_text(double seconds) {
  const auto text = [](double value, const char* unit) {
    return fmt::format("{:.{}f}{}", value, value < 9.95 ? 1 : 0, unit);
  };
  if (seconds <= 0) return "0";
  if (seconds < 0.9995e-3) return text(seconds * 1e6, "us");
  if (seconds < 0.9995) return text(seconds * 1e3, "ms");
  if (seconds < 600) return text(seconds, "s");
  if (seconds < 36000) return fmt::format("{:.0f}min", seconds / 60);
  if (seconds < 100 * 86400) return fmt::format("{:.0f}h", seconds / 3600);
  return seconds < 1e24 ? scaled(seconds / 86400) + "d" : ">10000E";
}

bool fills(const Table& table, std::size_t column) {
  return std::ranges::any_of(table.rows, [column](const Row& row) {
    const Cell& cell = row.cells[column];
    const std::string* text = std::get_if<std::string>(&cell);
    return text != nullptr ? !text->empty() : cell.index() != 0;
  });
}

std::string title_of(const Column& column, bool utf8, const Sorting& sorting) {
  if (column.key != sorting.column) return column.title;
  const char* mark = utf8 ? (sorting.descending ? "▼" : "▲") : sorting.descending ? "v" : "^";
  return mark + column.title;
}

// The order of two cells: what is not known comes last, however it is sorted.
int compare(const Cell& a, const Cell& b, bool descending) {
  const auto unknown = [](const Cell& cell) {
    const double* number = std::get_if<double>(&cell);
    return cell.index() == 0 || (number != nullptr && std::isnan(*number));
  };
  if (unknown(a) || unknown(b)) return static_cast<int>(unknown(a)) - static_cast<int>(unknown(b));
  const int order = a < b ? -1 : b < a ? 1 : 0;
  return descending ? -order : order;
}

}  // namespace

std::size_t Table::column(std::string_view key) const {
  return static_cast<std::size_t>(std::ranges::find(columns, key, &Column::key) - columns.begin());
}

void sort_rows(Table* table, const Sorting& sorting) {
  const std::size_t column = table->column(sorting.column);
  std::ranges::sort(table->rows, [&](const Row& a, const Row& b) {
    if (a.note.empty() != b.note.empty()) return !a.note.empty();
    const int order =
        column < table->columns.size() ? compare(a.cells[column], b.cells[column], sorting.descending) : 0;
    return order != 0 ? order < 0 : a.key < b.key;
  });
}

std::string clean(std::string_view text, bool utf8) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = printable_character(text.substr(at));
    const std::string_view character = text.substr(at, std::max<std::size_t>(size, 1));
    const bool shown = size == 1 || (size > 1 && utf8 && width_of(character) > 0);
    out += shown ? character : "?";
    at += character.size();
  }
  return out;
}

std::size_t columns_of(std::string_view clean_text) {
  std::size_t columns = 0;
  for (std::size_t at = 0; at < clean_text.size();) {
    const std::size_t size = std::max<std::size_t>(printable_character(clean_text.substr(at)), 1);
    columns += static_cast<std::size_t>(width_of(clean_text.substr(at, size)));
    at += size;
  }
  return columns;
}

std::string fit(std::string_view clean_text, std::size_t columns, bool right) {
  const std::size_t have = columns_of(clean_text);
  if (have <= columns) {
    const std::string filling(columns - have, ' ');
    return right ? filling + std::string(clean_text) : std::string(clean_text) + filling;
  }
  if (columns == 0) return {};
  std::string out;
  std::size_t used = 0;
  for (std::size_t at = 0; at < clean_text.size();) {
    const std::size_t size = std::max<std::size_t>(printable_character(clean_text.substr(at)), 1);
    const auto width = static_cast<std::size_t>(width_of(clean_text.substr(at, size)));
    if (used + width > columns - 1) break;
    out += clean_text.substr(at, size);
    used += width;
    at += size;
  }
  return out + "~" + std::string(columns - 1 - used, ' ');
}

std::string figure(const Cell& cell, Unit unit) {
  if (const std::string* text = std::get_if<std::string>(&cell)) return *text;
  const double* value = std::get_if<double>(&cell);
  if (value == nullptr) return unit == Unit::kText ? "" : "-";
  switch (unit) {
    case Unit::kSeconds:
      return seconds_text(*value);
    case Unit::kShare:
      return *value > 0 && *value < 0.001 ? "<0.1%"
             : *value > 99                ? ">9900%"
                                          : fmt::format("{:.{}f}%", 100 * *value, *value < 0.0995 ? 1 : 0);
    default:
      return scaled(*value);
  }
}

Layout lay_out(const Table& table, std::size_t width, bool utf8, const Sorting& sorting) {
  struct Wanted {
    std::size_t column, least, natural;
    int importance;
  };
  std::vector<Wanted> wanted;
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    const Column& column = table.columns[c];
    if (c > 0 && !fills(table, c)) continue;
    const std::size_t title = columns_of(title_of(column, utf8, sorting));
    Wanted one{c, std::max(title, kFigureColumns), std::max(title, kFigureColumns), column.importance};
    if (column.unit == Unit::kText) {
      one.natural = title;
      for (const Row& row : table.rows) {
        if (const std::string* text = std::get_if<std::string>(&row.cells[c]))
          one.natural = std::max(one.natural, std::min(columns_of(clean(*text, utf8)), kMostText));
      }
      one.least = std::min(one.natural, std::max(title, column.least));
    }
    if (c == 0) one.importance = std::numeric_limits<int>::max();
    if (c > 0 && column.key == sorting.column) one.importance = std::numeric_limits<int>::max() - 1;
    wanted.push_back(one);
  }
  std::ranges::sort(wanted, [](const Wanted& a, const Wanted& b) {
    return a.importance != b.importance ? a.importance > b.importance : a.column < b.column;
  });
  Layout layout;
  std::size_t used = 0, kept = 0;
  for (const Wanted& one : wanted) {
    const std::size_t least = kept == 0 ? std::min(one.least, width) : one.least + kGap;
    if (used + least > width) break;
    used += least;
    ++kept;
  }
  wanted.resize(kept);
  std::ranges::sort(wanted, {}, &Wanted::column);
  for (const Wanted& one : wanted) {
    const std::size_t least = std::min(one.least, width);
    const std::size_t more = std::min(one.natural - std::min(one.natural, least), width - used);
    used += more;
    layout.columns.push_back({one.column, least + more});
  }
  layout.width = width;
  return layout;
}

Line head_line(const Table& table, const Layout& layout, bool utf8, const Sorting& sorting) {
  std::string text;
  for (const Layout::Shown& shown : layout.columns) {
    const Column& column = table.columns[shown.column];
    if (!text.empty()) text += ' ';
    text += fit(title_of(column, utf8, sorting), shown.width, column.unit != Unit::kText);
  }
  return {{fit(text, layout.width), Tone::kHead}};
}

Line row_line(const Table& table, const Row& row, const Layout& layout, bool utf8, bool selected) {
  const auto tone = [selected](Tone other) { return selected ? Tone::kSelected : other; };
  Line line;
  std::size_t used = 0;
  for (const Layout::Shown& shown : layout.columns) {
    const Column& column = table.columns[shown.column];
    if (used > 0 && !row.note.empty()) break;
    const Cell& cell = row.cells[shown.column];
    const double* value = std::get_if<double>(&cell);
    const Tone own = !row.note.empty()                           ? Tone::kBad
                     : value != nullptr && *value >= column.warn ? Tone::kWarn
                                                                 : Tone::kPlain;
    if (used > 0) line.push_back({" ", tone(Tone::kPlain)});
    const std::string text = clean(figure(cell, column.unit), utf8);
    line.push_back({fit(text, shown.width, column.unit != Unit::kText), tone(own)});
    used += shown.width + (used > 0 ? kGap : 0);
  }
  std::string rest = row.note.empty() ? std::string() : fmt::format(" {}", clean(row.note, utf8));
  line.push_back({fit(rest, layout.width - std::min(used, layout.width)), tone(Tone::kBad)});
  return line;
}

nlohmann::json to_json(const Table& table) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Row& row : table.rows) {
    nlohmann::json object = nlohmann::json::object();
    for (std::size_t c = 0; c < table.columns.size(); ++c) {
      nlohmann::json& value = object[table.columns[c].key];
      if (const double* figure = std::get_if<double>(&row.cells[c])) value = *figure;
      if (const std::string* text = std::get_if<std::string>(&row.cells[c])) value = *text;
    }
    if (!row.note.empty()) object["error"] = row.note;
    rows.push_back(std::move(object));
  }
  return rows;
}

}  // namespace tensorlane::top
