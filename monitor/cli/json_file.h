#pragma once

#include <string>

#include "common/base/status.h"
#include "common/json/json.h"

namespace tensorlane::cli {

// What somebody hands to a command as a file of JSON. `fix`: which file to name. Errors: kInvalidArgument, with why it
// cannot be read or that it is no JSON.
Result<nlohmann::json> read_json_file(const std::string& path, const char* fix);

}  // namespace tensorlane::cli
