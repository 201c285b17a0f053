#include "common/fabric/urgencies.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>

#include "common/fabric/sections.h"

namespace tensorlane::fabric {

namespace {

constexpr std::array<std::string_view, 6> kRuleKeys{"job", "tensor", "operation", "at_least", "at_most", "urgency"};

Result<std::vector<UrgencyRule>> read_rule(const std::string& path, const YAML::Node& node) {
  TL_ASSIGN_OR_RETURN(const Mapping map, Mapping::open(path, node, "a rule of 'urgencies'", kRuleKeys));
  UrgencyRule rule;
  rule.line = map.line();
  for (const auto& [key, pattern] : {std::pair("job", &rule.job), std::pair("tensor", &rule.tensor)}) {
    if (!map.has(key)) continue;
    TL_ASSIGN_OR_RETURN(*pattern, map.text(key));
    if (!is_plain(*pattern)) return map.wrong(key, "expected printable characters of ASCII but '\"' and '\\'");
  }
  if (map.has("operation")) {
    TL_ASSIGN_OR_RETURN(const std::size_t operation, map.one_of("operation", operation_names()));
    rule.operation = static_cast<Operation>(operation);
  }
  if (map.has("at_least")) {
    TL_ASSIGN_OR_RETURN(rule.at_least, map.bytes("at_least"));
  }
  if (map.has("at_most")) {
    TL_ASSIGN_OR_RETURN(rule.at_most, map.bytes("at_most"));
    if (*rule.at_most < rule.at_least)
      return map.wrong("at_most", fmt::format("expected at least 'at_least', {}", format_bytes(rule.at_least)));
  }
  TL_ASSIGN_OR_RETURN(const double urgency, map.fraction("urgency"));
  rule.urgency = static_cast<float>(urgency);
  return std::vector{rule};
}

}  // namespace

bool is_plain(const std::string& text) {
  return std::ranges::all_of(
      text, [](char c) { return std::isprint(static_cast<unsigned char>(c)) != 0 && c != '"' && c != '\\'; });
}

std::vector<std::string_view> operation_names() {
  std::vector<std::string_view> names;
  for (unsigned i = 0; i <= static_cast<unsigned>(kLastOperation); ++i)
    names.emplace_back(operation_name(static_cast<Operation>(i)));
  return names;
}

const std::vector<UrgencyRule>& default_urgencies() {
  static const std::vector<UrgencyRule> kRules = [] {
    UrgencyRule gathers, scatters;
    gathers.operation = Operation::kAllgather;
    gathers.urgency = 0.9F;
    scatters.operation = Operation::kReduceScatter;
    scatters.urgency = 0.1F;
    return std::vector{gathers, scatters};
  }();
  return kRules;
}

bool UrgencyRule::fits(const std::string& of_job, const std::string& of_tensor, Operation of, Bytes bytes) const {
  return (!operation || *operation == of) && bytes >= at_least && (!at_most || bytes <= *at_most) &&
         fnmatch(job.c_str(), of_job.c_str(), 0) == 0 && fnmatch(tensor.c_str(), of_tensor.c_str(), 0) == 0;
}

const UrgencyRule* Urgencies::find(const std::string& job, const std::string& tensor, Operation operation,
                                   Bytes bytes) const {
  const std::vector<UrgencyRule>& asked = line == 0 ? default_urgencies() : rules;
  const auto rule = std::ranges::find_if(
      asked, [&](const UrgencyRule& candidate) { return candidate.fits(job, tensor, operation, bytes); });
  return rule == asked.end() ? nullptr : &*rule;
}

Result<Urgencies> read_urgencies(const Mapping& file) {
  Urgencies urgencies;
  if (!file.has("urgencies")) return urgencies;
  TL_ASSIGN_OR_RETURN(urgencies.rules, read_list(file, "urgencies", read_rule));
  urgencies.line = line_of(file.get("urgencies"));
  return urgencies;
}

}  // namespace tensorlane::fabric
