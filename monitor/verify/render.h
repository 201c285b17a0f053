// A report as text, as one JSON object and as JUnit's XML.
#pragma once

#include <string>

#include "monitor/verify/verdict.h"

namespace tensorlane::verify {

// What failed comes first and in full; what passed is counted, or listed with `all`.
std::string to_text(const Report& report, bool all);
std::string to_json(const Report& report);
// One test case for each verdict; what is untested is skipped.
std::string to_junit(const Report& report);

}  // namespace tensorlane::verify
