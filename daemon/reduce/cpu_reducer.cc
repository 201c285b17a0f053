#include "daemon/reduce/cpu_reducer.h"

#include <algorithm>

#include "common/base/assert.h"
#include "daemon/reduce/dispatch.h"

namespace tensorlane::reduce {
namespace {

bool all_of(std::span<const ports::ReduceSource> sources, Dtype dtype) {
  return std::ranges::all_of(sources, [dtype](const ports::ReduceSource& s) { return s.dtype == dtype; });
}

class CpuReducer final : public ports::Reducer {
 public:
  explicit CpuReducer(Kernel kernel) : kernel_(kernel) {}
  void reduce(std::byte* out, Dtype out_dtype, std::span<const ports::ReduceSource> sources, std::size_t elements,
              ReduceOp op, double divisor) override {
    TL_ASSERT(!sources.empty() && sources.size() <= ports::kMaxReduceSources && op != ReduceOp::kAverage);
    TL_ASSERT(!is_integer(out_dtype) || (divisor == 1 && all_of(sources, out_dtype)));
    kernel_(out, out_dtype, sources.data(), sources.size(), elements, op, divisor);
  }

 private:
  const Kernel kernel_;
};

}  // namespace

std::vector<std::string> available_kernels() {
  std::vector<std::string> names;
  for (const NamedKernel& k : runnable_kernels()) names.push_back(k.name);
  return names;
}

std::unique_ptr<ports::Reducer> make_cpu_reducer(const std::string& name) {
  Kernel kernel = nullptr;
  for (const NamedKernel& k : runnable_kernels()) {
    if (k.name == name) kernel = k.kernel;
  }
  TL_ASSERT(kernel != nullptr);
  return std::make_unique<CpuReducer>(kernel);
}

std::unique_ptr<ports::Reducer> make_cpu_reducer() {
  return std::make_unique<CpuReducer>(runnable_kernels().back().kernel);
}

}  // namespace tensorlane::reduce
