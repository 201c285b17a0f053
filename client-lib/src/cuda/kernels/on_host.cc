#include "client-lib/src/cuda/kernels/on_host.h"

#include <cstring>

#include "client-lib/src/cuda/kernels/combine.h"

namespace tensorlane::client::cuda {
namespace {

template <typename Element, typename Operation>
void combine_elements(void* out, const KernelSources& sources, std::uint32_t count, std::uint64_t elements,
                      double divisor) {
  using Stored = typename Element::Stored;
  constexpr std::size_t kSize = sizeof(Stored);
  for (std::uint64_t i = 0; i < elements; ++i) {
    Stored values[kMaxSources] = {};
    for (std::uint32_t k = 0; k < count; ++k)
      std::memcpy(&values[k], reinterpret_cast<const char*>(sources.at[k]) + i * kSize, kSize);
    const Stored result = combine<Element, Operation>(values, count, divisor);
    std::memcpy(static_cast<char*>(out) + i * kSize, &result, kSize);
  }
}

struct NamedKernel {
  std::string_view name;
  decltype(&combine_elements<Float16, Sum>) run;
};
constexpr NamedKernel kKernels[] = {
#define TL_KERNEL(operation, Operation, dtype, ...) \
  {"tl_" #operation "_" #dtype, combine_elements<__VA_ARGS__, Operation>},
    TL_KERNELS(TL_KERNEL)
#undef TL_KERNEL
};

}  // namespace

bool combine_on_host(std::string_view kernel, void* out, const KernelSources& sources, std::uint32_t count,
                     std::uint64_t elements, double divisor) {
  for (const NamedKernel& known : kKernels) {
    if (known.name != kernel) continue;
    known.run(out, sources, count, elements, divisor);
    return true;
  }
  return false;
}

}  // namespace tensorlane::client::cuda
