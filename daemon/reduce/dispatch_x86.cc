#include <cpuid.h>

#include "daemon/reduce/dispatch.h"

namespace tensorlane::reduce {
namespace {

// Clang 14 does not know "f16c" in __builtin_cpu_supports().
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace

std::vector<NamedKernel> runnable_kernels() {
  std::vector<NamedKernel> kernels = {{"baseline", reduce_baseline}};
  if (!__builtin_cpu_supports("avx2") || !has_f16c()) return kernels;
  kernels.push_back({"avx2", reduce_avx2});
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx512) kernels.push_back({"avx512", reduce_avx512});
  return kernels;
}

}  // namespace tensorlane::reduce
