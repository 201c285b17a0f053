// config_db.json of SONiC as the linter sees it.
#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"
#include "switch-config/findings/findings.h"
#include "switch-config/lint/observed.h"

namespace tensorlane::lint {

// A fabric of 10,000 ports on one switch would take less.
inline constexpr std::size_t kMaxConfiguration = std::size_t{64} << 20;

// Reads a whole file of at most kMaxConfiguration bytes. NotFound; InvalidArgument for a longer one.
Result<std::string> read_configuration(const std::string& path);

// Reads the QoS of a config_db.json. The device is called what DEVICE_METADATA says, else `name`. What the device would
// not read as it was meant (rule L9, and formats that belong to other rules) goes to `report` right away, and so do
// fields and tables about QoS that are unknown. InvalidArgument, where = `path`, for text that is not a JSON object of
// tables.
Result<Device> parse_sonic(std::string_view text, const std::string& path, const std::string& name,
                           findings::Report& report);

}  // namespace tensorlane::lint
