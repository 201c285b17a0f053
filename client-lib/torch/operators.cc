// What Python calls, as operators of torch.ops.tensorlane. They run without the interpreter's lock.
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "client-lib/torch/backend.h"
#include "client-lib/torch/library.h"

namespace tensorlane::torch_backend {
namespace {

// Some releases of torch give a process group's store only to those who derive from it.
template <typename ProcessGroup>
struct Opened : ProcessGroup {
  static c10::intrusive_ptr<c10d::Store> store_of(ProcessGroup& group) {
    if constexpr (requires { group.getStore(); }) {
      return group.getStore();
    } else {
      return group.*(&Opened::store_);
    }
  }
};

// Python cannot be given a Backend by an operator, but a ProcessGroup can carry one there: `carrier` is a new process
// group of the same store, rank and size, of which it takes the backend of CPU tensors and which it forgets then.
void make_backend(const c10::intrusive_ptr<c10d::ProcessGroup>& carrier, int64_t timeout_milliseconds,
                  const std::string& name, std::vector<int64_t> ranks) {
  auto group = Group::make(Opened<c10d::ProcessGroup>::store_of(*carrier), carrier->getRank(), carrier->getSize(),
                           std::chrono::milliseconds(timeout_milliseconds), name, std::move(ranks));
  carrier->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                      c10::make_intrusive<TensorlaneBackend>(std::move(group)));
}

TensorlaneBackend& backend_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  auto* backend = dynamic_cast<TensorlaneBackend*>(group->getBackend(c10::DeviceType::CPU).get());
  TORCH_CHECK(backend != nullptr, "the process group has another backend: tensorlane: give one of its own");
  return *backend;
}

void set_timeout(const c10::intrusive_ptr<c10d::ProcessGroup>& group, int64_t milliseconds) {
  backend_of(group).setTimeout(std::chrono::milliseconds(milliseconds));
}

TORCH_LIBRARY(tensorlane, library) {
  library.def("load_library(str path) -> ()", [](const std::string& path) { load_library(path); });
  library.def(
      "make_backend(__torch__.torch.classes.c10d.ProcessGroup carrier, int timeout_milliseconds, str name, "
      "int[] ranks) -> ()",
      make_backend);
  library.def("abort(__torch__.torch.classes.c10d.ProcessGroup group) -> ()",
              [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) { backend_of(group).abort(); });
  library.def("failure(__torch__.torch.classes.c10d.ProcessGroup group) -> str",
              [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) { return backend_of(group).failure(); });
  library.def("leave(__torch__.torch.classes.c10d.ProcessGroup group) -> ()",
              [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) { backend_of(group).shutdown(); });
  library.def("set_timeout(__torch__.torch.classes.c10d.ProcessGroup group, int milliseconds) -> ()", set_timeout);
  library.def("leave_all(str why_abort) -> ()", [](const std::string& why_abort) { leave_all(why_abort); });
}

}  // namespace
}  // namespace tensorlane::torch_backend
