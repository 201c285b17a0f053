// Where DPDK writes its messages to: the daemon's log.
#pragma once

#include <cstdio>
#include <string>

namespace tensorlane::dpdk {

// A stream for rte_openlog_stream(), which is never closed. Its lines go to the log, at DPDK's level. Null: errno says
// why.
std::FILE* log_stream();
// A stream that forgets what is written to it, never closed; null as above.
std::FILE* null_stream();

// DPDK's last lines that were errors or warnings since forget_complaints(), in one line; may be empty. Any thread.
std::string complaints();
void forget_complaints();

}  // namespace tensorlane::dpdk
