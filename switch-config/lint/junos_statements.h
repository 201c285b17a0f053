// Inside the Junos parser: a configuration, in whichever form, as `set` commands.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "switch-config/lint/text.h"

namespace tensorlane::lint::junos {

struct Statements {
  std::vector<Line> lines;        // words without "set"
  std::deque<std::string> texts;  // of those that were written with braces; lines point into them
};

// InvalidArgument, where = "PATH" or "PATH:LINE", for bytes that are no text and for braces that do not fit.
Result<Statements> statements_of(std::string_view text, const std::string& path);

}  // namespace tensorlane::lint::junos
