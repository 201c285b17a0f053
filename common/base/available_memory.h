// How much memory this host can spare.
#pragma once

#include "common/base/units.h"

namespace tensorlane {

// Bytes that processes on this host can still get without swapping: the kernel's MemAvailable, or what the memory
// limits of this process's control group leave, whichever is less. Zero when /proc cannot be read. Any thread.
Bytes available_memory();

}  // namespace tensorlane
