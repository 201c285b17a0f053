// The daemon's log: lines on standard error.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "daemon/config/config.h"

namespace spdlog {
class formatter;
}

namespace tensorlane::wiring {

// Makes the process's default logger. Where standard error is the journal's (systemd says so by JOURNAL_STREAM), lines
// begin with their priority, as sd-daemon(3) has it, and have no time, because the journal has one of its own.
void start_log(const config::DaemonConfig& config);
// Any thread.
void set_log_level(config::DaemonConfig::LogLevel level);

// Whether `descriptor` is what JOURNAL_STREAM ("DEVICE:INODE"; null: it is not set) names.
bool is_journal(int descriptor, const char* journal_stream);
// How lines look: "<4>h0: text" in the journal, "2026-11-22 14:00:00.000 warning h0: text" elsewhere.
std::unique_ptr<spdlog::formatter> line_format(const std::string& host, bool journal);

}  // namespace tensorlane::wiring
