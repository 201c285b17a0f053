// A plan's report: for programs, for people, and as a picture.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "simulator/planner/planner.h"

namespace tensorlane::simulator {

// "ps", "ring", "halving-doubling", "tree", "whole-server"; "auto" for none.
std::string pattern_text(std::optional<protocol::Pattern> pattern);

// {"assumptions", "policies", "recommended"}; times in seconds, efficiencies as shares of 1. `about` is merged into the
// assumptions: what the request was.
nlohmann::json to_json(const PlanRequest& request, const Report& report, const nlohmann::json& about);

// A table and what follows from it, for a terminal.
std::string to_text(const PlanRequest& request, const Report& report, const nlohmann::json& about);

// Bars of iteration time by policy, with the compute time marked: an SVG document.
std::string to_svg(const PlanRequest& request, const Report& report, const std::string& title);

}  // namespace tensorlane::simulator
