#include "client-lib/src/cuda/kernels.h"

namespace tensorlane::client::cuda {

std::string kernel_name(ReduceOp op, Dtype dtype) {
  return std::string("tl_") + reduce_op_name(combining(op)) + "_" + dtype_name(dtype);
}

}  // namespace tensorlane::client::cuda
