// By how much what helps would help: the planner simulates the job as its hosts describe it, as it is and without a
// cause.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "monitor/explain/explain.h"

namespace tensorlane::remedies {

struct Prediction {
  std::string change;    // what is simulated: "links twice as fast"
  double iteration = 0;  // seconds, with the change: the measured iteration times what the planner says of both
};

struct Predictions {
  // What the planner says of the job as it is: seconds of an iteration. None where there is nothing to simulate: one
  // host, no bytes, or how long the ranks compute is not known.
  std::optional<double> simulated;
  // By finding. None where the planner does not know the cause, or does not reproduce what was measured.
  std::vector<std::optional<Prediction>> findings;
};

// How far the simulated iteration may be from the measured one, or nothing is concluded from it.
inline constexpr double kReproduces = 0.3;

// Of at most 8 hosts, whose tensors of a class are alike. What hosts say may be anything: of figures that no cluster
// has nothing is simulated, and no simulation goes on for more than about a second.
Predictions predict(const std::vector<explain::HostTimes>& hosts, const explain::Explanation& all);

}  // namespace tensorlane::remedies
