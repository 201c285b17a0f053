#include "client-lib/src/cuda/kernels/on_host.h"

#include <cstring>

#include "client-lib/src/cuda/kernels/combine.h"

namespace tensorlane::client::cuda {
namespace {

template <typename Element, typename Operation>
void combine_elements(void* out, const KernelSources& sources, std::uint32_t count, std::uint64_t elements) {
  using Stored = typename Element::Stored;
  using Accumulator = typename Element::Accumulator;
  for (std::uint64_t i = 0; i < elements; ++i) {
    Stored values[kMaxSources] = {};
    for (std::uint32_t k = 0; k < count; ++k)
      std::memcpy(&values[k], reinterpret_cast<const char*>(sources.at[k]) + i * sizeof(Stored), sizeof(Stored));
    const Accumulator result = combine<Element, Operation>(values, count);
    std::memcpy(static_cast<char*>(out) + i * sizeof(Accumulator), &result, sizeof(Accumulator));
  }
}

template <typename Element>
void finish_elements(void* out, const void* in, std::uint64_t elements, double divisor) {
  using Stored = typename Element::Stored;
  using Accumulator = typename Element::Accumulator;
  for (std::uint64_t i = 0; i < elements; ++i) {
    Accumulator all;
    std::memcpy(&all, static_cast<const char*>(in) + i * sizeof(Accumulator), sizeof(Accumulator));
    const Stored result = finish<Element>(all, static_cast<Accumulator>(divisor));
    std::memcpy(static_cast<char*>(out) + i * sizeof(Stored), &result, sizeof(Stored));
  }
}

template <typename Function>
struct Named {
  std::string_view name;
  Function run;
};
constexpr Named<decltype(&combine_elements<Float16, Sum>)> kCombining[] = {
#define TL_KERNEL(operation, Operation, dtype, ...) \
  {"tl_" #operation "_" #dtype, combine_elements<__VA_ARGS__, Operation>},
    TL_COMBINING_KERNELS(TL_KERNEL)
#undef TL_KERNEL
};
constexpr Named<decltype(&finish_elements<Float16>)> kFinishing[] = {
#define TL_KERNEL(dtype, ...) {"tl_finish_" #dtype, finish_elements<__VA_ARGS__>},
    TL_FINISHING_KERNELS(TL_KERNEL)
#undef TL_KERNEL
};

// Runs the kernel of this name. False: there is none.
template <typename Kernels, typename... Parameters>
bool run(const Kernels& kernels, std::string_view name, const Parameters&... parameters) {
  for (const auto& known : kernels) {
    if (known.name != name) continue;
    known.run(parameters...);
    return true;
  }
  return false;
}

}  // namespace

bool combine_on_host(std::string_view kernel, void* out, const KernelSources& sources, std::uint32_t count,
                     std::uint64_t elements) {
  return run(kCombining, kernel, out, sources, count, elements);
}

bool finish_on_host(std::string_view kernel, void* out, const void* in, std::uint64_t elements, double divisor) {
  return run(kFinishing, kernel, out, in, elements, divisor);
}

}  // namespace tensorlane::client::cuda
