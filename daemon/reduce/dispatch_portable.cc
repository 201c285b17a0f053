#include "daemon/reduce/dispatch.h"

namespace tensorlane::reduce {

std::vector<NamedKernel> runnable_kernels() {
  return {{"baseline", reduce_baseline}};
}

}  // namespace tensorlane::reduce
