// The calling thread's last error, for tl_last_error().
#pragma once

#include "common/base/status.h"
#include "tensorlane/tensorlane.h"

namespace tensorlane::client {

// Keeps the text of an error for this thread; the C ABI's number of it. No errors, no exceptions.
tl_status_t report(const Status& status) noexcept;
// Never null.
const char* last_error() noexcept;

}  // namespace tensorlane::client
