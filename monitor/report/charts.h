// Charts of a report, as inline SVG that stretches with the page; their labels are HTML, which does not shrink.
#pragma once

#include <string>
#include <vector>

#include "monitor/report/figures.h"

namespace tensorlane::report {

std::string iteration_chart(const std::vector<TimePoint>& times);

struct Bar {
  std::string label;
  double seconds = 0;
};
// Horizontal bars from zero, all to one scale.
std::string bar_chart(const std::string& title, const std::vector<Bar>& bars);

// A row for each rank, a column for each time; darker is later (in the dark scheme brighter), in five steps.
std::string lag_matrix(const Figures& figures);

// A row for each sender, a column for each receiver.
std::string verify_matrix(const VerifyFigures& verify);

}  // namespace tensorlane::report
