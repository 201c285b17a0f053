// The border to C: the calling thread's last error, and enumerators that a program may have made up.
#pragma once

#include <cstring>

#include "common/base/status.h"
#include "tensorlane/tensorlane.h"

namespace tensorlane::client {

// Keeps the text of an error for this thread; the C ABI's number of it. No errors, no exceptions.
tl_status_t report(const Status& status) noexcept;
// Never null.
const char* last_error() noexcept;

// The number in an enumerator out of C, which may be none of its values: then C++ forbids to read it as what it claims
// to be.
template <typename Enum>
unsigned raw_number(const Enum& value) noexcept {
  unsigned number = 0;
  static_assert(sizeof value == sizeof number);
  std::memcpy(&number, &value, sizeof number);
  return number;
}

}  // namespace tensorlane::client
