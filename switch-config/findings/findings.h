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

// Rules that could not be checked, because the configuration does not say what they look at.
struct Unchecked {
  std::string device;
  std::string rules;   // "L7", "L3, L5 and L6"
  std::string reason;  // "no lossless port says its MTU"

  bool operator==(const Unchecked&) const = default;
};

struct Report {
  std::vector<Finding> findings;
  std::vector<Unparsed> unparsed;
  std::vector<Unchecked> unchecked;
};

// What a rule asks for, in one sentence; empty for one that is unknown.
std::string rule_text(const std::string& rule);

// Errors before warnings before notes; then by device, place and rule. The same findings once.
void sort(Report& report);

// 1 with an error or a warning, else 0: notes and what was not checked are for information.
int exit_status(const Report& report);

// {"findings": [{"rule", "severity", "device", "place", "message", "fix"}], "unparsed": [{"device", "place", "text"}],
// "unchecked": [{"device", "rules", "reason"}]}, one finding for each place.
std::string to_json(const Report& report);
// SARIF 2.1.0, as code hosting services read it. What was not understood or not checked is a notification.
std::string to_sarif(const Report& report);
// A line for each finding, one for what was not understood or not checked, and one for the sum. Findings that say the
// same of several places of a device, such as its ports, are one line that names the first place and counts the others.
std::string to_text(const Report& report);

}  // namespace tensorlane::findings
