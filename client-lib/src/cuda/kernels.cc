#include "client-lib/src/cuda/kernels.h"

#include <cstdlib>

#include "common/files/careful.h"

namespace tensorlane::client::cuda {

Result<std::string> wanted_kernels() {
  if (const char* path = std::getenv("TENSORLANE_GPU_KERNELS"); path != nullptr && *path != 0)
    return files::read(path, "the file of TENSORLANE_GPU_KERNELS", files::Care::kConfiguration);
  const std::span<const std::byte> built = kernel_image();
  if (!built.empty()) return std::string(reinterpret_cast<const char*>(built.data()), built.size());
  return Status(Code::kUnavailable, "this build has no kernels for GPUs", "it was made without nvcc",
                "build where nvcc is in PATH or CUDA_HOME, or set TENSORLANE_GPU_KERNELS");
}

std::string kernel_name(ReduceOp op, Dtype dtype) {
  return std::string("tl_") + reduce_op_name(combining(op)) + "_" + dtype_name(dtype);
}

std::string finish_kernel_name(Dtype dtype) {
  return std::string("tl_finish_") + dtype_name(dtype);
}

}  // namespace tensorlane::client::cuda
