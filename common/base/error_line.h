// How a command prints what has failed.
#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"

namespace tensorlane {

// "COMMAND: error: WHAT: WHERE: WHAT TO DO": one line, whatever names of the input hold, of which nothing speaks to the
// terminal. For `tensorlane` it is Status::error_line().
std::string error_line(std::string_view command, const Status& status);

}  // namespace tensorlane
