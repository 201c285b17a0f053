#include "monitor/report/html.h"

#include <fmt/format.h>

#include <array>

#include "common/base/text.h"

namespace tensorlane::report {
namespace {

std::string data_html(const std::optional<double>& value, const std::string& shown) {
  return value ? fmt::format("<data value=\"{}\">{}</data>", *value, shown) : "-";
}

// Three digits.
std::string digits(double value) {
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string seconds_text(double seconds) {
  if (seconds <= 0) return "0";
  if (seconds < 0.9995e-3) return digits(seconds * 1e6) + " µs";
  if (seconds < 0.9995) return digits(seconds * 1e3) + " ms";
  return digits(seconds) + " s";
}

std::string seconds_html(const std::optional<double>& seconds) {
  return data_html(seconds, seconds_text(seconds.value_or(0)));
}

std::string rate_html(const std::optional<double>& bits_per_second) {
  constexpr std::array kUnits{"bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"};
  double value = bits_per_second.value_or(0);
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return data_html(bits_per_second, fmt::format("{} {}", value == 0 ? "0" : digits(value), kUnits[unit]));
}

std::string share_html(const std::optional<double>& share) {
  return data_html(share, fmt::format("{:.{}f} %", 100 * share.value_or(0), share.value_or(0) < 0.0995 ? 1 : 0));
}

std::string number_html(const std::optional<double>& number) {
  return data_html(number, fmt::format("{:.0f}", number.value_or(0)));
}

std::string table_html(const HtmlTable& table) {
  // The caption stands apart, because it would scroll with the table.
  std::string html = fmt::format(
      "<p class=\"soft\">{0}</p>\n<div class=\"wide\" role=\"region\" aria-label=\"{0}\" tabindex=\"0\"><table "
      "aria-label=\"{0}\">\n<thead><tr>",
      escaped(table.caption));
  const auto cls = [&table](std::size_t c) {
    return table.classes[c].empty() ? std::string() : fmt::format(" class=\"{}\"", table.classes[c]);
  };
  for (std::size_t c = 0; c < table.heads.size(); ++c)
    html += fmt::format("<th scope=\"col\"{}>{}</th>", cls(c), escaped(table.heads[c]));
  html += "</tr></thead>\n<tbody>\n";
  for (const std::vector<std::string>& row : table.rows) {
    html += "<tr>";
    for (std::size_t c = 0; c < row.size(); ++c) html += fmt::format("<td{}>{}</td>", cls(c), row[c]);
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string folded_html(std::string_view title, const std::string& inner) {
  return fmt::format("<details><summary>{}</summary>\n{}</details>\n", escaped(title), inner);
}

}  // namespace tensorlane::report
