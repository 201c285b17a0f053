#include "switch-config/findings/findings.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace tensorlane::findings {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kRules{{
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
}};

// Text from configurations of others may hold any bytes.
std::string dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

auto key(const Finding& f) {
  return std::tie(f.severity, f.device, f.place, f.rule, f.message);
}

// Names of others must not steer the terminal.
std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f)
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  return out;
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
  Json findings = Json::array(), unparsed = Json::array();
  for (const Finding& f : report.findings)
    findings.push_back({{"rule", f.rule},
                        {"severity", severity_name(f.severity)},
                        {"device", f.device},
                        {"place", f.place},
                        {"message", f.message},
                        {"fix", f.fix}});
  for (const Unparsed& u : report.unparsed)
    unparsed.push_back({{"device", u.device}, {"place", u.place}, {"text", u.text}});
  return dump({{"findings", std::move(findings)}, {"unparsed", std::move(unparsed)}});
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
  Json run = {{"tool", {{"driver", {{"name", "tensorlane-switch"}, {"rules", std::move(rules)}}}}},
              {"results", std::move(results)}};
  return dump({{"$schema", "https://json.schemastore.org/sarif-2.1.0.json"},
               {"version", "2.1.0"},
               {"runs", Json::array({std::move(run)})}});
}

std::string to_text(const Report& report) {
  std::string text;
  std::size_t counts[3] = {};
  for (const Finding& f : report.findings) {
    ++counts[static_cast<std::size_t>(f.severity)];
    text += printable(fmt::format("{} {} {}{}{}: {}; {}", severity_name(f.severity), f.rule, f.device,
                                  f.device.empty() ? "" : " ", f.place, f.message, f.fix)) +
            "\n";
  }
  for (const Unparsed& u : report.unparsed)
    text += printable(fmt::format("not understood: {} {}: {}", u.device, u.place, u.text)) + "\n";
  return text + fmt::format("{} errors, {} warnings, {} notes, {} lines not understood\n", counts[0], counts[1],
                            counts[2], report.unparsed.size());
}

}  // namespace tensorlane::findings
