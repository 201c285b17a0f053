// The client library, changed on the ranks that ask for it. A program loads it in place of the library, which it needs:
// what it does not define is found there.
#include <dlfcn.h>

#include <atomic>
#include <string>

#include "tensorlane/tensorlane.h"

namespace {

std::atomic<int> refused_calls{0}, refused_callbacks{0};
std::atomic<bool> holds_aborts{false};
thread_local std::string refusal;  // what this thread has been told last, where that was said here

template <typename Function>
Function* the_library(Function*, const char* name) {
  refusal.clear();
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

bool takes_one(std::atomic<int>& left) {
  int count = left;
  while (count > 0 && !left.compare_exchange_weak(count, count - 1)) {
  }
  return count > 0;
}

}  // namespace

extern "C" {

// The next so many calls of tl_allreduce() fail.
TL_API void altered_refuse_calls(int calls) {
  refused_calls = calls;
}
// The next so many calls of tl_set_callback() find no thread for it.
TL_API void altered_refuse_callbacks(int calls) {
  refused_callbacks = calls;
}
// Whether tl_abort() does nothing.
TL_API void altered_hold_aborts(int hold) {
  holds_aborts = hold != 0;
}

TL_API const char* tl_last_error(void) {
  if (!refusal.empty()) return refusal.c_str();
  return the_library(&tl_last_error, "tl_last_error")();
}

TL_API tl_status_t tl_allreduce(tl_context_t* context, const char* name, const void* in, void* out, uint64_t count,
                                tl_dtype_t dtype, tl_op_t op, const tl_options_t* options, tl_request_t** request) {
  if (!takes_one(refused_calls))
    return the_library(&tl_allreduce, "tl_allreduce")(context, name, in, out, count, dtype, op, options, request);
  refusal = std::string("this rank does not do it: ") + name + ": do without";
  return TL_ERROR_INVALID_ARGUMENT;
}

TL_API tl_status_t tl_set_callback(tl_request_t* request, tl_callback_t callback, void* argument) {
  if (!takes_one(refused_callbacks))
    return the_library(&tl_set_callback, "tl_set_callback")(request, callback, argument);
  refusal = "there is no thread for it: a callback: do without";
  return TL_ERROR_RESOURCE_EXHAUSTED;
}

// What was refused before is not what this has to say.
TL_API tl_status_t tl_wait(tl_request_t* request, double timeout_seconds) {
  return the_library(&tl_wait, "tl_wait")(request, timeout_seconds);
}

TL_API tl_status_t tl_abort(tl_context_t* context, const char* why) {
  if (holds_aborts) return TL_OK;
  return the_library(&tl_abort, "tl_abort")(context, why);
}

}  // extern "C"
