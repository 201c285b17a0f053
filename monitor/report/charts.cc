#include "monitor/report/charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "monitor/report/html.h"

namespace tensorlane::report {
namespace {

// Units of the drawings, which the page stretches.
constexpr double kWidth = 1000, kHeight = 200;
constexpr int kSteps = 5;

// The least of some round numbers times a power of ten that is at least `value`.
double round_up(double value) {
  if (value <= 0) return 1;
  const double ten = std::pow(10, std::floor(std::log10(value)));
  for (const double step : {1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0}) {
    if (value <= step * ten * (1 + 1e-9)) return step * ten;
  }
  return 10 * ten;
}

std::string rank_name(const RankFigures& rank) {
  return fmt::format("rank {}, {}", rank.rank, rank.host);
}

}  // namespace

std::string iteration_chart(const std::vector<TimePoint>& times) {
  double most = 0;
  for (const TimePoint& point : times) most = std::max(most, point.iteration);
  const double scale = round_up(most), begin = times.front().from, end = times.back().to;
  const auto x = [&](double at) { return kWidth * (at - begin) / (end - begin); };
  const auto y = [&](double value) { return kHeight * (1 - value / scale); };
  std::string line;
  for (const TimePoint& point : times) {
    const double h = y(point.iteration);
    line += fmt::format("{}{:.1f},{:.1f} L{:.1f},{:.1f} ", line.empty() ? "M" : "L", x(point.from), h, x(point.to), h);
  }
  std::string marks;
  for (const double at : {0.25, 0.5, 0.75})
    marks += fmt::format("<path class=\"grid\" d=\"M0,{0} L{1},{0}\"/>", kHeight * at, kWidth);
  return fmt::format(
      "<div class=\"plot\"><div class=\"y\"><span>{}</span><span>{}</span><span>0</span></div>\n"
      "<svg viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"time of an iteration over the "
      "watched time: from {} to {}\"><title>time of an iteration</title>{}<path class=\"line\" d=\"{}\"/></svg>\n"
      "<div class=\"x\"><span>{:.0f} s</span><span>{:.0f} s</span></div></div>\n",
      seconds_text(scale), seconds_text(scale / 2), kWidth, kHeight,
      seconds_text(std::ranges::min(times, {}, &TimePoint::iteration).iteration), seconds_text(most), marks, line,
      begin, end);
}

std::string bar_chart(const std::string& title, const std::vector<Bar>& bars) {
  double most = 0;
  for (const Bar& bar : bars) most = std::max(most, bar.seconds);
  std::string html = fmt::format("<div class=\"bars\"><h3>{}</h3>\n", escaped(title));
  for (const Bar& bar : bars) {
    const double width = most > 0 ? 100 * bar.seconds / most : 0;
    html += fmt::format(
        "<div class=\"bar\"><span class=\"label\">{0}</span><svg viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" "
        "role=\"img\" aria-label=\"{0}: {1}\"><title>{0}: {1}</title><rect class=\"back\" width=\"100\" "
        "height=\"10\"/><rect class=\"fill\" width=\"{2:.2f}\" height=\"10\"/></svg><span "
        "class=\"value\">{1}</span></div>\n",
        escaped(bar.label), seconds_text(bar.seconds), width);
  }
  return html + "</div>\n";
}

std::string lag_matrix(const Figures& figures) {
  double most = 0;
  for (const RankFigures& rank : figures.ranks) {
    for (const auto& lag : rank.lags) most = std::max(most, lag.value_or(0));
  }
  const double scale = round_up(most);
  const std::size_t columns = figures.times.size();
  std::string html = "<div class=\"matrix\">\n";
  for (const RankFigures& rank : figures.ranks) {
    std::string cells;
    for (std::size_t c = 0; c < rank.lags.size(); ++c) {
      if (!rank.lags[c]) continue;
      const int step = std::min(static_cast<int>(kSteps * *rank.lags[c] / scale), kSteps - 1);
      cells += fmt::format(
          "<rect class=\"s{}\" x=\"{}\" width=\"1\" height=\"1\"><title>{}, {:.0f} to {:.0f} s: {}</title></rect>",
          step, c, escaped(rank_name(rank)), figures.times[c].from, figures.times[c].to, seconds_text(*rank.lags[c]));
    }
    html += fmt::format(
        "<div class=\"bar\"><span class=\"label\">{0}</span><svg viewBox=\"0 0 {1} 1\" preserveAspectRatio=\"none\" "
        "role=\"img\" aria-label=\"{0}: {2} later in the mean\">{3}</svg><span class=\"value\">{2}</span></div>\n",
        escaped(rank_name(rank)), columns, seconds_text(rank.lag), cells);
  }
  html += "<p class=\"legend\">";
  for (int step = 0; step < kSteps; ++step) {
    html += fmt::format(
        "<span><svg viewBox=\"0 0 1 1\" aria-hidden=\"true\"><rect class=\"s{}\" width=\"1\" height=\"1\"/></svg> from "
        "{}</span> ",
        step, seconds_text(scale * step / kSteps));
  }
  return html + "</p></div>\n";
}

std::string verify_matrix(const VerifyFigures& verify) {
  std::string html =
      "<p class=\"soft\">Do marks arrive as sent? Rows send, columns receive: ✓ all, ✗ how many do not, ? not "
      "tested</p>\n"
      "<div class=\"wide\" role=\"region\" aria-label=\"verify matrix\" tabindex=\"0\"><table class=\"verify\" "
      "aria-label=\"verify matrix\">\n<thead><tr><th scope=\"col\">from</th>";
  for (std::size_t to = 0; to < verify.hosts.size(); ++to)
    html += fmt::format("<th scope=\"col\"><abbr title=\"{}\">{}</abbr></th>", escaped(verify.hosts[to]), to + 1);
  html += "</tr></thead>\n<tbody>\n";
  for (std::size_t from = 0; from < verify.hosts.size(); ++from) {
    html += fmt::format("<tr><th scope=\"row\">{} {}</th>", from + 1, escaped(verify.hosts[from]));
    for (std::size_t to = 0; to < verify.hosts.size(); ++to) {
      const auto found = verify.cells.find({from, to});
      if (found == verify.cells.end()) {
        html += "<td></td>";
        continue;
      }
      const VerifyCell& cell = found->second;
      const char* cls = cell.failed > 0 ? "bad" : cell.passed > 0 && cell.untested == 0 ? "good" : "open";
      const std::string text = cell.failed > 0 ? fmt::format("✗{}", cell.failed) : cls[0] == 'g' ? "✓" : "?";
      html += fmt::format("<td class=\"{}\" title=\"{} to {}: {} passed, {} failed, {} untested\">{}</td>", cls,
                          escaped(verify.hosts[from]), escaped(verify.hosts[to]), cell.passed, cell.failed,
                          cell.untested, text);
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

}  // namespace tensorlane::report
