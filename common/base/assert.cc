#include "common/base/assert.h"

#include <cstdio>
#include <cstdlib>

namespace tensorlane {

void assertion_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "tensorlane: internal error: %s: %s:%d: please report this with the log\n", condition, file,
               line);
  std::abort();
}

}  // namespace tensorlane
