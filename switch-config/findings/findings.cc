#include "switch-config/findings/findings.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "common/base/text.h"
#include "common/json/json.h"

namespace tensorlane::findings {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::pair<std::string_view, std::string_view>, 23> kRules{{
    {"L1", "Every DSCP and PCP is mapped, and the same way on every device"},
    {"L2", "A lossless class has one number: traffic class, queue, priority group and PFC priority"},
    {"L3", "PFC is on for exactly the lossless classes, and the same at both ends of a link"},
    {"L4", "Queues are served in the order of their classes"},
    {"L5", "ECN marks lossless classes, and before PFC stops them"},
    {"L6", "Every lossless priority group has the headroom that its link needs"},
    {"L7", "MTUs agree along the way"},
    {"L8", "Every lossless port has a watchdog whose times fit each other"},
    {"L9", "The configuration reads as the device expects it"},
    {"L10", "NICs mark, trust and map as the fabric does"},
    {"L11", "Buffers do not wait for each other in a circle"},
    {"L12", "There are no more lossless classes than the platform has buffers for"},
    {"L13", "Congestion notifications share no code point with routing protocols unasked"},
    {"L14", "One policy configures the device, not two"},
    {"N1", "Nothing beats the class that a communicator of NCCL asks for"},
    {"N2", "Service levels fit into 4 bits and are those of the fabric"},
    {"N3", "Communicators of NCCL do not share what their parent has"},
    {"N4", "The network below NCCL carries classes"},
    {"N5", "NCCL's other messages have classes of the fabric"},
    {"N6", "Other libraries on the same fabric have its classes"},
    {"N7", "NCCL reads its files and variables as they are meant"},
    {"N8", "The NCCL that runs can do it"},
    {"P1", "A port that the daemon drives itself has its device, its memory and the rights to both"},
}};

// Text from configurations of others may hold any bytes.
std::string dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

auto key(const Finding& f) {
  return std::tie(f.severity, f.device, f.place, f.rule, f.message);
}

// What a finding says, without the port that it is about: the words with a digit that stand in its place.
std::string said(const Finding& f) {
  std::string text;
  for (std::string_view rest = f.message; !rest.empty();) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    const std::string_view word = rest.substr(0, end), name = word.substr(0, word.find_last_not_of(",:") + 1);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const bool is_name = name.size() > 1 && std::isalpha(static_cast<unsigned char>(name.front())) != 0 &&
                         name.find_first_of("0123456789") != std::string_view::npos &&
                         f.place.find(name) != std::string::npos;
    text += fmt::format("{} ", is_name ? "#" : word);
  }
  return text;
}

// "leaf0 ", where a line names its device.
std::string of(const std::string& device) {
  return device.empty() ? "" : device + " ";
}

// Places of findings that say the same of one device.
struct Group {
  const Finding* first;
  std::size_t places = 1;
};

std::vector<Group> grouped(const std::vector<Finding>& findings) {
  std::vector<Group> groups;
  std::map<std::tuple<Severity, std::string, std::string, std::string, std::string>, std::size_t> known;
  for (const Finding& f : findings) {
    const auto [found, is_new] = known.emplace(std::tuple(f.severity, f.rule, f.device, said(f), f.fix), groups.size());
    if (is_new)
      groups.push_back({&f});
    else
      ++groups[found->second].places;
  }
  return groups;
}

std::string and_more(std::size_t places) {
  return places == 1 ? "" : fmt::format(" and {} more {}", places - 1, places == 2 ? "place" : "places");
}

}  // namespace

const char* severity_name(Severity severity) {
  switch (severity) {
    case Severity::kError:
      return "error";
    case Severity::kWarning:
      return "warning";
    case Severity::kNote:
      return "note";
  }
  return "";
}

std::string rule_text(const std::string& rule) {
  for (const auto& [id, text] : kRules)
    if (id == rule) return std::string(text);
  return {};
}

void sort(Report& report) {
  auto& all = report.findings;
  std::sort(all.begin(), all.end(), [](const Finding& a, const Finding& b) { return key(a) < key(b); });
  all.erase(std::unique(all.begin(), all.end()), all.end());
}

int exit_status(const Report& report) {
  return std::any_of(report.findings.begin(), report.findings.end(),
                     [](const Finding& f) { return f.severity != Severity::kNote; })
             ? 1
             : 0;
}

std::string to_json(const Report& report) {
  Json findings = Json::array(), unparsed = Json::array(), unchecked = Json::array();
  for (const Finding& f : report.findings)
    findings.push_back({{"rule", f.rule},
                        {"severity", severity_name(f.severity)},
                        {"device", f.device},
                        {"place", f.place},
                        {"message", f.message},
                        {"fix", f.fix}});
  for (const Unparsed& u : report.unparsed)
    unparsed.push_back({{"device", u.device}, {"place", u.place}, {"text", u.text}});
  for (const Unchecked& u : report.unchecked)
    unchecked.push_back({{"device", u.device}, {"rules", u.rules}, {"reason", u.reason}});
  return dump(
      {{"findings", std::move(findings)}, {"unparsed", std::move(unparsed)}, {"unchecked", std::move(unchecked)}});
}

std::string to_sarif(const Report& report) {
  Json rules = Json::array(), results = Json::array();
  for (const auto& [id, text] : kRules) rules.push_back({{"id", id}, {"shortDescription", {{"text", text}}}});
  for (const Finding& f : report.findings) {
    Json location = {{"logicalLocations", Json::array({{{"fullyQualifiedName", f.device + "/" + f.place}}})}};
    results.push_back({{"ruleId", f.rule},
                       {"level", severity_name(f.severity)},
                       {"message", {{"text", f.message + ". " + f.fix}}},
                       {"locations", Json::array({std::move(location)})}});
  }
  Json notifications = Json::array();
  const auto notify = [&](const std::string& text) {
    notifications.push_back({{"level", "note"}, {"message", {{"text", text}}}});
  };
  for (const Unparsed& u : report.unparsed)
    notify(fmt::format("not understood: {}{}: {}", of(u.device), u.place, u.text));
  for (const Unchecked& u : report.unchecked)
    notify(fmt::format("not checked: {}{}: {}", of(u.device), u.rules, u.reason));
  Json invocation = {{"executionSuccessful", true}, {"toolExecutionNotifications", std::move(notifications)}};
  Json run = {{"tool", {{"driver", {{"name", "tensorlane-switch"}, {"rules", std::move(rules)}}}}},
              {"invocations", Json::array({std::move(invocation)})},
              {"results", std::move(results)}};
  return dump({{"$schema", "https://json.schemastore.org/sarif-2.1.0.json"},
               {"version", "2.1.0"},
               {"runs", Json::array({std::move(run)})}});
}

std::string to_text(const Report& report) {
  std::string text;
  // Names of others must not steer the terminal.
  const auto line = [&](const std::string& what) { text += printable(what) + "\n"; };
  std::size_t counts[3] = {};
  for (const Finding& f : report.findings) ++counts[static_cast<std::size_t>(f.severity)];
  for (const auto& [f, places] : grouped(report.findings))
    line(fmt::format("{} {} {}{}{}: {}; {}", severity_name(f->severity), f->rule, of(f->device), f->place,
                     and_more(places), f->message, f->fix));
  for (const Unparsed& u : report.unparsed)
    line(fmt::format("not understood: {}{}: {}", of(u.device), u.place, u.text));
  for (const Unchecked& u : report.unchecked)
    line(fmt::format("not checked: {}{}: {}", of(u.device), u.rules, u.reason));
  text += fmt::format("{} errors, {} warnings, {} notes, {} lines not understood", counts[0], counts[1], counts[2],
                      report.unparsed.size());
  if (!report.unchecked.empty()) text += ", some rules not checked";
  return text + "\n";
}

}  // namespace tensorlane::findings
