#include "monitor/verify/render.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "common/json/json.h"
#include "monitor/verify/advice.h"

namespace tensorlane::verify {
namespace {

using nlohmann::json;

std::string rail_text(std::size_t rail) {
  return rail == 0 ? "" : fmt::format(" rail {}", rail);
}

std::string name_of(const ClassVerdict& verdict) {
  return fmt::format("{} to {}{} {} {}", verdict.from, verdict.to, rail_text(verdict.rail), family_name(verdict.ipv6),
                     verdict.cls);
}

std::string name_of(const Overtaking& verdict) {
  const LoadFact& fact = verdict.fact;
  return fact.node.empty() ? std::string("port not known") : fmt::format("{} towards {}", fact.node, fact.peer);
}

std::string coverage_text(const Coverage& coverage) {
  const std::string pair =
      fmt::format("{} to {}{} {}", coverage.from, coverage.to, rail_text(coverage.rail), family_name(coverage.ipv6));
  if (coverage.ports == 0 && coverage.changes)
    return fmt::format("{}: no way was seen: the same flow takes different ones", pair);
  if (coverage.ports == 0) return fmt::format("{}: no way was seen: hops did not answer", pair);
  if (coverage.known)
    return fmt::format("{}: {} of {} equal-cost ways, by {} source ports", pair, coverage.seen, *coverage.known,
                       coverage.ports);
  return fmt::format("{}: {} ways by {} source ports, about {:.0f}% of the traffic's ways", pair, coverage.seen,
                     coverage.ports, 100 * coverage.share);
}

json place_json(const Place& place) {
  constexpr const char* kKinds[] = {"sender", "leg", "way", "entry", "node", "receiver", "gap"};
  json object{{"kind", kKinds[static_cast<std::size_t>(place.kind)]}, {"node", place.node}};
  if (!place.peer.empty()) object["peer"] = place.peer;
  if (!place.address.empty()) object["address"] = place.address;
  if (!place.pair.empty()) object["pair"] = place.pair;
  return object;
}

json estimate_json(const Estimate& estimate) {
  return {{"value", estimate.value}, {"low", estimate.low}, {"high", estimate.high}};
}

json finding_json(const Finding& finding) {
  json changes = json::array();
  for (const Change& change : finding.changes)
    changes.push_back({{"family", change.ipv6 ? 6 : 4},
                       {"from", change.from},
                       {"to", change.to == kLost ? json(nullptr) : json(change.to)}});
  json alternatives = json::array();
  for (const Place& other : finding.alternatives) alternatives.push_back(place_json(other));
  return {{"alternatives", std::move(alternatives)},
          {"where", finding.where},
          {"place", place_json(finding.place)},
          {"what", finding.what},
          {"cause", finding.cause},
          {"device", finding.device},
          {"command", finding.command},
          {"classes", finding.classes},
          {"changes", std::move(changes)},
          {"flows", finding.flows}};
}

json overtaking_json(const Overtaking& verdict) {
  const LoadFact& fact = verdict.fact;
  return {{"outcome", outcome_name(verdict.outcome)},
          {"text", verdict.text},
          {"node", fact.node},
          {"peer", fact.peer},
          {"high_class", fact.left_out ? json(nullptr) : json(verdict.high)},
          {"low_class", fact.left_out ? json(nullptr) : json(verdict.low)},
          {"family", fact.ipv6 ? 6 : 4},
          {"share", estimate_json(fact.share)},
          {"delay_alone_us", estimate_json(fact.delay_alone_us)},
          {"delay_low_us", estimate_json(fact.delay_low_us)},
          {"delay_us", estimate_json(fact.delay_beside_us)}};
}

std::string xml_text(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += static_cast<unsigned char>(c) < ' ' ? '?' : c;
    }
  }
  return safe;
}

struct Cases {
  std::string text;
  std::size_t count = 0, failed = 0, skipped = 0;

  void add(const std::string& suite, const std::string& name, Outcome outcome, const std::string& about) {
    ++count;
    text += fmt::format("  <testcase classname=\"{}\" name=\"{}\"", xml_text(suite), xml_text(name));
    if (outcome == Outcome::kPassed) {
      text += "/>\n";
      return;
    }
    const bool is_failed = outcome == Outcome::kFailed;
    ++(is_failed ? failed : skipped);
    text += fmt::format("><{} message=\"{}\"/></testcase>\n", is_failed ? "failure" : "skipped", xml_text(about));
  }
};

std::string counted(const Report& report) {
  std::map<Outcome, std::size_t> counts;
  for (const ClassVerdict& verdict : report.classes) ++counts[verdict.dscp];
  return fmt::format("{} passed, {} failed, {} untested", counts[Outcome::kPassed], counts[Outcome::kFailed],
                     counts[Outcome::kUntested]);
}

}  // namespace

std::string to_text(const Report& report, bool all) {
  std::string text;
  for (const Finding& finding : report.findings) {
    text += fmt::format("FAILED at {}\n", finding.where);
    for (const std::string& other : finding.or_where) text += fmt::format("  or at {}\n", other);
    text += fmt::format("  {}\n  likely: {}\n", finding.what, finding.cause);
    if (!finding.command.empty()) text += fmt::format("  look, on {}: {}\n", finding.device, finding.command);
  }
  std::vector<std::pair<std::string, std::string>> hosts;
  for (const HostVerdict& host : report.hosts)
    if (host.outcome != Outcome::kPassed || all)
      hosts.emplace_back(host.name, outcome_name(host.outcome) + (host.text.empty() ? "" : ": " + host.text));
  for (const auto& [names, verdict] : by_text(hosts))
    text += fmt::format("host{} {}: {}\n", names.find(", ") == names.npos ? "" : "s", names, verdict);
  text += fmt::format("marks, for each direction, family and class: {}\n", counted(report));
  for (const ClassVerdict& verdict : report.classes)
    if (verdict.dscp != Outcome::kPassed || verdict.pcp == Outcome::kFailed || all)
      text += fmt::format("  {}: {}{}{}\n", name_of(verdict), outcome_name(verdict.dscp),
                          verdict.text.empty() ? "" : ": ", verdict.text);
  for (const Overtaking& verdict : report.overtaking)
    text += fmt::format("{}: {}: {}\n", name_of(verdict), outcome_name(verdict.outcome), verdict.text);
  for (const LosslessVerdict& verdict : report.lossless)
    if (all || verdict.outcome == Outcome::kFailed)
      text += fmt::format("class {} lossless: {}: {}\n", verdict.cls, outcome_name(verdict.outcome), verdict.text);
  for (const Coverage& coverage : report.coverage)
    if (all || (coverage.ports > 0 && coverage.share < 1)) text += fmt::format("{}\n", coverage_text(coverage));
  for (const std::string& note : report.notes) text += fmt::format("note: {}\n", note);
  text += fmt::format("{} in {:.1f} s\n", report.exit_status == 0 ? "passed" : "NOT passed", report.seconds);
  return text;
}

std::string to_json(const Report& report) {
  json hosts = json::array(), classes = json::array(), findings = json::array(), coverage = json::array(),
       overtaking = json::array(), lossless = json::array();
  for (const HostVerdict& host : report.hosts)
    hosts.push_back({{"name", host.name}, {"outcome", outcome_name(host.outcome)}, {"text", host.text}});
  for (const ClassVerdict& v : report.classes)
    classes.push_back({{"from", v.from},
                       {"to", v.to},
                       {"rail", v.rail},
                       {"family", v.ipv6 ? 6 : 4},
                       {"class", v.cls},
                       {"dscp", outcome_name(v.dscp)},
                       {"pcp", outcome_name(v.pcp)},
                       {"text", v.text}});
  for (const Finding& finding : report.findings) findings.push_back(finding_json(finding));
  for (const Coverage& c : report.coverage)
    coverage.push_back({{"from", c.from},
                        {"to", c.to},
                        {"rail", c.rail},
                        {"family", c.ipv6 ? 6 : 4},
                        {"source_ports", c.ports},
                        {"seen", c.seen},
                        {"known", c.known ? json(*c.known) : json(nullptr)},
                        {"share", c.share}});
  for (const Overtaking& verdict : report.overtaking) overtaking.push_back(overtaking_json(verdict));
  for (const LosslessVerdict& v : report.lossless)
    lossless.push_back({{"class", v.cls}, {"outcome", outcome_name(v.outcome)}, {"text", v.text}});
  const json object{{"passed", report.exit_status == 0}, {"seconds", report.seconds},
                    {"probe_bytes", report.probe_bytes}, {"findings", std::move(findings)},
                    {"hosts", std::move(hosts)},         {"marks", std::move(classes)},
                    {"paths", std::move(coverage)},      {"overtaking", std::move(overtaking)},
                    {"lossless", std::move(lossless)},   {"notes", report.notes}};
  return object.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

std::string to_junit(const Report& report) {
  Cases cases;
  for (const HostVerdict& host : report.hosts) cases.add("tags", host.name, host.outcome, host.text);
  for (const ClassVerdict& verdict : report.classes) {
    cases.add("dscp", name_of(verdict), verdict.dscp, verdict.text);
    cases.add("pcp", name_of(verdict), verdict.pcp,
              verdict.pcp == Outcome::kUntested ? "no NIC showed a tag" : verdict.text);
  }
  for (const Overtaking& verdict : report.overtaking)
    cases.add("overtaking", name_of(verdict) + ": " + verdict.text.substr(0, verdict.text.find(':')), verdict.outcome,
              verdict.text);
  for (const LosslessVerdict& verdict : report.lossless)
    cases.add("lossless", verdict.cls, verdict.outcome, verdict.text);
  for (const Finding& finding : report.findings)
    cases.add("findings", finding.where, Outcome::kFailed, finding.what + ". Likely: " + finding.cause);
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"tensorlane verify\" tests=\"{}\" failures=\"{}\" "
      "skipped=\"{}\" time=\"{:.1f}\">\n{}</testsuite>\n",
      cases.count, cases.failed, cases.skipped, report.seconds, cases.text);
}

}  // namespace tensorlane::verify
