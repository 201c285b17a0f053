// What a check found: one form for people, programs (JSON) and code hosting (SARIF).
#pragma once

#include <string>
#include <vector>

namespace tensorlane::findings {

enum class Severity { kError, kWarning, kNote };
// "error", "warning" or "note".
const char* severity_name(Severity severity);

struct Finding {
  std::string rule;  // "L3": what `rule_text` knows
  Severity severity = Severity::kError;
  std::string device;   // a switch or host; empty: the fabric as a whole
  std::string place;    // in its configuration: "PORT_QOS_MAP|Ethernet0 pfc_enable"
  std::string message;  // what is wrong and what that does
  std::string fix;      // what to write instead

  bool operator==(const Finding&) const = default;
};

// A line about QoS that a parser did not understand, and therefore no rule looked at.
struct Unparsed {
  std::string device;
  std::string place;  // "config.txt:12"
  std::string text;

  bool operator==(const Unparsed&) const = default;
};

struct Report {
  std::vector<Finding> findings;
  std::vector<Unparsed> unparsed;
};

// What a rule asks for, in one sentence; empty for one that is unknown.
std::string rule_text(const std::string& rule);

// Errors before warnings before notes; then by device, place and rule. The same findings once.
void sort(Report& report);

// 1 with an error or a warning, else 0: notes are for information.
int exit_status(const Report& report);

// {"findings": [{"rule", "severity", "device", "place", "message", "fix"}], "unparsed": [{"device", "place", "text"}]}
std::string to_json(const Report& report);
// SARIF 2.1.0, as code hosting services read it.
std::string to_sarif(const Report& report);
// A line for each finding and one for the sum.
std::string to_text(const Report& report);

}  // namespace tensorlane::findings
