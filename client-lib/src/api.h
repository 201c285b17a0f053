// What the functions of the C interface share.
#pragma once

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <system_error>

#include "client-lib/src/error.h"
#include "common/base/dtype.h"
#include "common/base/status.h"
#include "tensorlane/tensorlane.h"

namespace tensorlane::client {

// What the call returns; exceptions stay in.
template <typename Function>
tl_status_t guarded(Function&& function) noexcept {
  try {
    return report(function());
  } catch (const std::bad_alloc&) {
    return report(Status(Code::kResourceExhausted, "out of memory", "in this process", "give it more, or use less"));
  } catch (const std::system_error& e) {
    if (e.code() != std::errc::resource_unavailable_try_again)
      return report(Status(Code::kInternal, "an unexpected exception", e.what()));
    return report(
        Status(Code::kResourceExhausted, "cannot start a thread", e.code().message(),
               "raise the limit of processes of this user (ulimit -u) or of tasks of its service or container "
               "(TasksMax, pids.max)"));
  } catch (const std::exception& e) {
    return report(Status(Code::kInternal, "an unexpected exception", e.what()));
  }
}

inline Status null_argument(const char* function, const char* argument) {
  return Status(Code::kInvalidArgument, std::string(function) + " was called without " + argument, "", "pass it");
}

// From the C number; what is out of range stays out of range, for the call to refuse.
inline Dtype dtype_of(const tl_dtype_t& dtype) {
  return static_cast<Dtype>(std::min(raw_number(dtype), 0xffU));
}

// Where a struct of the program is older and shorter than ours, the rest keeps its defaults.
template <typename T>
Status read_struct(const T* given, const char* init, T* into) {
  if (given == nullptr) return {};
  if (given->size < sizeof given->size || given->size > 4096) {
    return Status(Code::kInvalidArgument, "a struct of the wrong size", "its size is " + std::to_string(given->size),
                  std::string("initialise it with ") + init);
  }
  std::memcpy(into, given, std::min(given->size, sizeof *into));
  return {};
}

}  // namespace tensorlane::client
