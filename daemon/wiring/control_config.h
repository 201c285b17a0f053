// What control is told: the rules of jobs, and how a tensor's plan is made.
#pragma once

#include <functional>

#include "common/base/units.h"
#include "common/json/json.h"
#include "daemon/config/config.h"
#include "daemon/control/control.h"
#include "daemon/planning/plan_tensor.h"
#include "daemon/telemetry/span_files.h"

namespace tensorlane::wiring {

// How long a batch is at most; 0: there are none.
Bytes batch_limit(const config::DaemonConfig& config, const planning::PatternChoices& patterns);
// `config`, `choices`, which is asked for each new tensor, and `span_files`, which is told of jobs that fail, outlive
// control, whose thread calls `more_status`: what its status says beside jobs.
control::ControlConfig control_config(const config::DaemonConfig& config, planning::Choices& choices,
                                      telemetry::SpanFiles& span_files, std::function<nlohmann::json()> more_status,
                                      ports::Answerers answerers);

}  // namespace tensorlane::wiring
