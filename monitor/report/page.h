// The page that `tensorlane report` writes: one file that needs no network and no JavaScript.
#pragma once

#include <string>

#include "monitor/report/figures.h"

namespace tensorlane::report {

// `made`: when, for people.
std::string page_html(const Figures& figures, const std::string& made);

}  // namespace tensorlane::report
