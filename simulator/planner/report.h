// A plan's report: for programs, for people, and as a picture.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/json/json.h"
#include "simulator/planner/planner.h"

namespace tensorlane::simulator {

// "ps", "ring", "halving-doubling", "tree", "whole-server"; "auto" for none.
std::string pattern_text(std::optional<protocol::Pattern> pattern);

// " 0.875 0.500": a blank before each.
std::string numbers_text(const std::vector<double>& values);

// A request and what came of it. Several that are reported together differ in nothing but the number of jobs.
struct Planned {
  PlanRequest request;
  Report report;
};

// {"assumptions", "policies", "recommended", "tried", "shared"}; times in seconds, efficiencies as shares of 1. `about`
// is merged into the assumptions: what the request was. `shared` has {"jobs", "policies", "recommended", "tried"} of
// every plan but the first. At least one plan, as below.
nlohmann::json to_json(std::span<const Planned> plans, const nlohmann::json& about);

// Tables and what follows from them, for a terminal.
std::string to_text(std::span<const Planned> plans, const nlohmann::json& about);

// Bars of iteration time by policy, with the compute time marked: an SVG document.
std::string to_svg(std::span<const Planned> plans, const std::string& title);

}  // namespace tensorlane::simulator
