// Operations of torch.distributed that take long to begin: between the check that their group is there and the rest.
#include <ATen/record_function.h>
#include <torch/library.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

namespace {

std::unique_ptr<at::ObserverContext> wait_a_second(const at::RecordFunction& function) {
  if (std::strncmp(function.name(), "tensorlane:", 11) == 0) std::this_thread::sleep_for(std::chrono::seconds(1));
  return nullptr;
}

// All that begin from now on. torch constructs what its profiler sees of an operation with the operation.
void begin() {
  at::addGlobalCallback(at::RecordFunctionCallback(wait_a_second).scopes({at::RecordScope::USER_SCOPE}));
}

TORCH_LIBRARY(slow_works, library) {
  library.def("begin() -> ()", begin);
}

}  // namespace
