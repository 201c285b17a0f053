// Tags: which are asked for, which are in force, and which arrive.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "monitor/answers/read.h"
#include "monitor/report/figures.h"

namespace tensorlane::report {

using nlohmann::json;

namespace {

std::optional<int> tag_of(const json& object, const char* key) {
  const auto value = answers::number(object, key);
  return value && *value >= 0 && *value <= 255 ? std::optional(static_cast<int>(*value)) : std::nullopt;
}

std::string shown(const std::optional<int>& tag) {
  return tag ? std::to_string(*tag) : "unknown";
}

struct Asked {
  std::optional<int> dscp, pcp;
};

std::map<std::string, Asked> asked_by(const json& status) {
  std::map<std::string, Asked> asked;
  answers::each(answers::member(status, "fabric"), "classes", [&](const json& cls) {
    asked[answers::text(cls, "name")] = {tag_of(cls, "dscp"), tag_of(cls, "pcp")};
  });
  return asked;
}

void count(VerifyCell* cell, const std::string& outcome) {
  ++(outcome == "passed" ? cell->passed : outcome == "failed" ? cell->failed : cell->untested);
}

}  // namespace

void add_tags(const std::map<std::string, json>& statuses, std::uint64_t job, Figures* figures) {
  for (const auto& [host, status] : statuses) {
    const std::map<std::string, Asked> asked = asked_by(status);
    answers::each(answers::member(status, "lane"), "flows", [&, name = host](const json& flow) {
      const json& id = answers::member(flow, "job_id");
      if (!id.is_number_unsigned() || id.get<std::uint64_t>() != job) return;
      TagFigures tag{answers::text(flow, "class"), answers::text(flow, "transport")};
      if (const auto found = asked.find(tag.cls); found != asked.end()) {
        tag.asked_dscp = found->second.dscp;
        tag.asked_pcp = found->second.pcp;
      }
      tag.dscp = tag_of(flow, "dscp");
      tag.pcp = tag_of(flow, "pcp");
      const auto key = [](const TagFigures& t) {
        return std::tie(t.cls, t.transport, t.asked_dscp, t.asked_pcp, t.dscp, t.pcp);
      };
      auto same = std::ranges::find_if(figures->tags, [&](const TagFigures& t) { return key(t) == key(tag); });
      // Daemons that lie make a table long, and no longer than this.
      if (same == figures->tags.end() && figures->tags.size() < kMostTexts)
        same = figures->tags.insert(figures->tags.end(), tag);
      if (same != figures->tags.end()) ++same->flows;
      if (!tag.wrong()) return;
      if (figures->wrong_flows.size() >= kMostFlows) {
        ++figures->other_wrong_flows;
        return;
      }
      figures->wrong_flows.push_back(
          fmt::format("{} to {}, class {}, rail {:.0f}: DSCP {} instead of {}", name, answers::text(flow, "peer"),
                      tag.cls, answers::number(flow, "rail").value_or(0), shown(tag.dscp), shown(tag.asked_dscp)));
    });
  }
  std::ranges::stable_sort(figures->tags, [](const TagFigures& a, const TagFigures& b) {
    return std::tuple(a.wrong(), a.asked_dscp) > std::tuple(b.wrong(), b.asked_dscp);
  });
}

Result<VerifyFigures> read_verify(const json& printed) {
  const json& marks = answers::member(printed, "marks");
  if (!marks.is_array()) {
    return Status(Code::kInvalidArgument, "there are no verdicts in it", "--verify",
                  "name a file of `tensorlane verify --json`");
  }
  VerifyFigures figures;
  std::map<std::pair<std::string, std::string>, VerifyCell> pairs;
  std::map<std::string, std::size_t> failures;
  answers::each(printed, "marks", [&](const json& mark) {
    const std::string from = answers::text(mark, "from"), to = answers::text(mark, "to");
    if (from.empty() || to.empty()) return;
    const std::string outcome = answers::text(mark, "dscp");
    count(&pairs[{from, to}], outcome);
    count(&figures.all, outcome);
    for (const std::string& host : {from, to}) failures[host] += outcome == "failed";
  });
  for (const auto& [host, unused] : failures) figures.hosts.push_back(host);
  if (figures.hosts.size() > kMostHosts) {
    std::ranges::stable_sort(figures.hosts, std::greater(), [&](const std::string& host) { return failures[host]; });
    figures.other_hosts = figures.hosts.size() - kMostHosts;
    figures.hosts.resize(kMostHosts);
  }
  for (std::size_t from = 0; from < figures.hosts.size(); ++from) {
    for (std::size_t to = 0; to < figures.hosts.size(); ++to) {
      const auto cell = pairs.find({figures.hosts[from], figures.hosts[to]});
      if (cell != pairs.end()) figures.cells[{from, to}] = cell->second;
    }
  }
  answers::each(printed, "findings", [&](const json& finding) {
    if (figures.findings.size() >= kMostTexts) {
      ++figures.other_findings;
      return;
    }
    figures.findings.push_back(fmt::format("{}: {}. Likely: {}", answers::text(finding, "where"),
                                           answers::text(finding, "what"), answers::text(finding, "cause")));
  });
  return figures;
}

}  // namespace tensorlane::report
