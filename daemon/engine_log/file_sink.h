// A log as a file.
#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/engine_log/recorder.h"

namespace tensorlane::engine_log {

// FOLDER/JOB-EPOCH-HOST-railN.tllog, new, readable and writable by its owner alone (mode 0600). Characters of the names
// that paths do not like become '_'. What stops the log is a warning in the process's log. Errors: kUnavailable.
Result<std::unique_ptr<Sink>> open_file_sink(const std::string& folder, const std::string& job, Epoch epoch,
                                             const std::string& host, RailIndex rail);

// Whether logs can be written there. Errors: kUnavailable.
Status check_folder(const std::string& folder);

}  // namespace tensorlane::engine_log
