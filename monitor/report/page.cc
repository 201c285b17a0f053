#include "monitor/report/page.h"

#include <fmt/format.h>

#include <algorithm>

#include "monitor/report/charts.h"
#include "monitor/report/html.h"
#include "monitor/report/style.h"

namespace tensorlane::report {
namespace {

std::string tile(const std::string& value, const std::string& what) {
  return fmt::format("<div><b>{}</b>{}</div>\n", value, escaped(what));
}

std::string more(std::size_t count, const char* what) {
  return count == 0 ? "" : fmt::format("<p class=\"soft\">and {} {} that matter less</p>\n", count, what);
}

std::string list_html(const std::vector<std::string>& texts, std::size_t others, const char* what) {
  std::string html = "<ul>\n";
  for (const std::string& text : texts) html += fmt::format("<li>{}</li>\n", escaped(text));
  return html + "</ul>\n" + (others == 0 ? "" : fmt::format("<p class=\"soft\">and {} more {}</p>\n", others, what));
}

std::string silent_html(const Figures& figures) {
  if (figures.silent.empty()) return {};
  std::vector<std::string> texts;
  for (const auto& [host, why] : figures.silent) {
    if (texts.size() < kMostTexts) texts.push_back(host + ": " + why);
  }
  return fmt::format("<section><h2>Hosts without an answer: {}</h2>\n{}</section>\n", figures.silent.size(),
                     list_html(texts, figures.silent.size() - texts.size(), "hosts"));
}

std::string findings_html(const Figures& figures) {
  std::string html = "<section><h2>What bounds it</h2>\n";
  for (const explain::Finding& f : figures.explanation.findings) {
    html += fmt::format(
        "<div class=\"finding\"><p><b>{}</b> ({}): {}{}</p><p>{}</p><p class=\"soft\">What helps: {}</p></div>\n",
        explain::cause_name(f.cause), explain::confidence_name(f.confidence), escaped(f.where),
        f.seconds > 0 ? fmt::format(": up to {} of an iteration", seconds_html(f.seconds)) : "", escaped(f.evidence),
        escaped(f.help));
  }
  return html + "</section>\n";
}

std::string times_html(const Figures& figures) {
  if (figures.times.empty()) return {};
  HtmlTable table{"Mean time of an iteration", {"from", "to", "iteration"}, {"n", "n", "n"}, {}};
  for (const TimePoint& point : figures.times)
    table.rows.push_back({seconds_html(point.from), seconds_html(point.to), seconds_html(point.iteration)});
  return "<section id=\"times\"><h2>Iteration time</h2>\n<figure>" + iteration_chart(figures.times) + "</figure>\n" +
         folded_html("The figures", table_html(table)) + "</section>\n";
}

std::string classes_html(const Figures& figures) {
  HtmlTable table{"Of all hosts together; waits are means",
                  {"class", "queue wait", "completion", "sent", "received", "demoted"},
                  {"", "n", "n", "n", "n", "n"},
                  {}};
  std::vector<Bar> queues, completions;
  for (const ClassFigures& cls : figures.classes) {
    queues.push_back({cls.name, cls.queue.value_or(0)});
    completions.push_back({cls.name, cls.completion.value_or(0)});
    table.rows.push_back({escaped(cls.name), seconds_html(cls.queue), seconds_html(cls.completion), rate_html(cls.sent),
                          rate_html(cls.received), rate_html(cls.demoted)});
  }
  return "<section id=\"classes\"><h2>Waits by class</h2>\n<figure>" +
         bar_chart("From when bytes may be sent until the network takes them", queues) +
         bar_chart("From an operation's submission by all ranks until it is complete", completions) + "</figure>\n" +
         table_html(table) + "</section>\n";
}

std::string ranks_html(const Figures& figures) {
  HtmlTable table{"How much later than the first rank each submits its operations, in the mean",
                  {"rank", "host", "later by", "at most", "computes"},
                  {"n", "", "n", "n", "n"},
                  {}};
  for (const RankFigures& rank : figures.ranks) {
    std::optional<double> most;
    for (const auto& lag : rank.lags) {
      if (lag) most = std::max(most.value_or(0), *lag);
    }
    table.rows.push_back({number_html(rank.rank), escaped(rank.host), seconds_html(rank.lag), seconds_html(most),
                          seconds_html(rank.computing)});
  }
  return "<section id=\"ranks\"><h2>Stragglers</h2>\n<p class=\"soft\">Each row is a rank, the latest first, and time "
         "goes to the right.</p>\n<figure>" +
         (figures.times.empty() ? std::string() : lag_matrix(figures)) + "</figure>\n" +
         more(figures.other_ranks, "ranks") + table_html(table) + "</section>\n";
}

std::string tags_html(const Figures& figures) {
  if (figures.tags.empty()) return {};
  HtmlTable table{"Flows of the job by the tags that their sockets carry",
                  {"class", "transport", "DSCP asked", "DSCP in force", "PCP asked", "PCP in force", "flows", ""},
                  {"", "", "n", "n", "n", "n", "n", ""},
                  {}};
  for (const TagFigures& tag : figures.tags) {
    const char* verdict = tag.wrong()   ? "<span class=\"bad\">✗ differs</span>"
                          : tag.known() ? "<span class=\"good\">✓ as asked</span>"
                                        : "<span class=\"open\">? not known</span>";
    table.rows.push_back({escaped(tag.cls), escaped(tag.transport), number_html(tag.asked_dscp), number_html(tag.dscp),
                          number_html(tag.asked_pcp), number_html(tag.pcp), number_html(static_cast<double>(tag.flows)),
                          verdict});
  }
  std::string html = "<section id=\"tags\"><h2>DSCP of flows</h2>\n" + table_html(table);
  if (!figures.wrong_flows.empty()) html += list_html(figures.wrong_flows, figures.other_wrong_flows, "flows");
  return html + "</section>\n";
}

std::string verify_html(const VerifyFigures& verify) {
  std::string html = fmt::format(
      "<section id=\"verify\"><h2>What the network does with the marks</h2>\n<p>{} passed, {} failed, {} not tested, "
      "of "
      "all directions, families and classes.</p>\n{}",
      verify.all.passed, verify.all.failed, verify.all.untested, verify_matrix(verify));
  html += more(verify.other_hosts, "hosts");
  if (!verify.findings.empty()) html += list_html(verify.findings, verify.other_findings, "findings");
  return html + "</section>\n";
}

}  // namespace

std::string page_html(const Figures& figures, const std::string& made) {
  const explain::Explanation& all = figures.explanation;
  const std::string title = escaped("Job " + (figures.job.empty() ? "?" : figures.job));
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\"><head><meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{0}</title>\n"
      "<style>{1}</style></head>\n<body>\n<main>\n<h1>{0}</h1>\n"
      "<p class=\"soft\">{2}; watched for {3}</p>\n<div class=\"tiles\">\n",
      title, kStyle, escaped(made), seconds_text(figures.seconds));
  html += tile(seconds_html(all.iteration), "an iteration");
  html += tile(number_html(all.iterations), "iterations seen");
  if (all.exposed) {
    html += tile(seconds_html(all.exposed), "of an iteration even the rank that waits least waits for tensors");
    html += tile(share_html(all.efficiency), "of it is computation");
  } else {
    html += tile("not known", fmt::format("how long an iteration waits for tensors: {}", explain::kStreamsWait));
  }
  html += tile(number_html(static_cast<double>(figures.hosts)), figures.hosts == 1 ? "host" : "hosts");
  html += "</div>\n" + silent_html(figures) + findings_html(figures) + times_html(figures) + classes_html(figures) +
          ranks_html(figures) + tags_html(figures);
  if (figures.verify) html += verify_html(*figures.verify);
  return html + "</main>\n</body></html>\n";
}

}  // namespace tensorlane::report
