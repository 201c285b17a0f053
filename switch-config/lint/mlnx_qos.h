// What `mlnx_qos -i INTERFACE` printed on a host, as the linter sees it.
#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"
#include "switch-config/findings/findings.h"
#include "switch-config/lint/observed.h"

namespace tensorlane::lint {

// Whether a text is such output.
bool is_mlnx_qos(std::string_view text);

// A device of one port, both called `name`. What is wrong with a host whatever the fabric does (rules L9 and L10:
// trust, DCBX, bandwidths) goes to `report` right away, and so does every line that is not understood. InvalidArgument,
// where = `path`, for a text without a line that is.
Result<Device> parse_mlnx_qos(std::string_view text, const std::string& path, const std::string& name,
                              findings::Report& report);

}  // namespace tensorlane::lint
