#include "hidden_lock.h"

#include <cstdlib>
#include <cstring>

// Of the thread sanitizer's runtime; null where the program is built without it.
extern "C" {
__attribute__((weak)) void AnnotateIgnoreSyncBegin(const char* file, int line);
__attribute__((weak)) void AnnotateIgnoreSyncEnd(const char* file, int line);
__attribute__((weak)) void AnnotateIgnoreReadsBegin(const char* file, int line);
__attribute__((weak)) void AnnotateIgnoreReadsEnd(const char* file, int line);
__attribute__((weak)) void AnnotateIgnoreWritesBegin(const char* file, int line);
__attribute__((weak)) void AnnotateIgnoreWritesEnd(const char* file, int line);
}

namespace tensorlane::fake_cuda {

// Never changes in a process, so that begins and ends match.
static bool hides() {
  static const bool value = [] {
    const char* settings = std::getenv("TENSORLANE_FAKE_CUDA");
    const bool shown = settings != nullptr && std::strstr(settings, "watch_self=1") != nullptr;
    return AnnotateIgnoreSyncBegin != nullptr && !shown;
  }();
  return value;
}

Hidden::Hidden() {
  if (!hides()) return;
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
}

Hidden::~Hidden() {
  if (!hides()) return;
  AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}

}  // namespace tensorlane::fake_cuda
