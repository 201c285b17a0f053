// What happened between two reports of one host on a job. Pure.
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/json/json.h"
#include "monitor/explain/report.h"

namespace tensorlane::answers {

// As explain::difference(), under the name by which the host was asked, whatever it calls itself. Errors: those of
// difference(), and kCorrupt where the host names no class: explain() counts on at least one.
inline Result<explain::HostTimes> times_between(const std::string& host, const nlohmann::json& before,
                                                const nlohmann::json& after) {
  TL_ASSIGN_OR_RETURN(explain::HostTimes times, explain::difference(before, after));
  if (times.classes.empty())
    return Status(Code::kCorrupt, "its report has no classes", host, "install the same release on all hosts");
  times.host = host;
  return times;
}

}  // namespace tensorlane::answers
