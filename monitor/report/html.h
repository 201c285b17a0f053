// Pieces of an HTML page that is XML, too. Every text that is given is escaped.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tensorlane::report {

// Text of others between tags or in an attribute.
std::string escaped(std::string_view text);

// A figure for people which holds the exact one for programs: <data value="0.0123">12.3 ms</data>. "-" for none.
std::string seconds_html(const std::optional<double>& seconds);
std::string rate_html(const std::optional<double>& bits_per_second);
std::string share_html(const std::optional<double>& share);
std::string number_html(const std::optional<double>& number);
std::string seconds_text(double seconds);

// A table of cells that are HTML already; `classes`: "n" for a column of figures, "" for one of text.
struct HtmlTable {
  std::string caption;
  std::vector<std::string> heads, classes;
  std::vector<std::vector<std::string>> rows;
};
std::string table_html(const HtmlTable& table);

// The same, closed until it is wanted.
std::string folded_html(std::string_view title, const std::string& inner);

}  // namespace tensorlane::report
