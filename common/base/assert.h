// TL_ASSERT: an invariant of ours, checked in every build. Never for input: input gets a Status.
#pragma once

namespace tensorlane {

// Prints where and what to standard error, then aborts.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace tensorlane

#define TL_ASSERT(condition)                                   \
  (__builtin_expect(static_cast<bool>(condition), 1) ? void(0) \
                                                     : ::tensorlane::assertion_failed(#condition, __FILE__, __LINE__))
