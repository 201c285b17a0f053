// What control is told: the rules of jobs, and how a tensor's plan is made.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include "common/base/units.h"
#include "daemon/config/config.h"
#include "daemon/control/control.h"
#include "daemon/planning/plan_tensor.h"

namespace tensorlane::wiring {

// How long a batch is at most; 0: there are none.
Bytes batch_limit(const config::DaemonConfig& config, const planning::PatternChoices& patterns);
// `config` and `patterns`, which chooses for each new tensor, outlive control, whose thread calls `more_status`: what
// its status says beside jobs.
control::ControlConfig control_config(const config::DaemonConfig& config, planning::Choices& choices,
                                      std::function<nlohmann::json()> more_status, ports::Answerers answerers);

}  // namespace tensorlane::wiring
