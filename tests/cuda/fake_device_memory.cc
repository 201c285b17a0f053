// The entry points for memory of a device: allocating it, and sharing it with other processes.
#include "fake_entry.h"
#include "fake_exports.h"

namespace tensorlane::fake_cuda {

constexpr std::size_t kLargestAllocation = std::size_t{1} << 30;
int cuMemAlloc_v2(DevicePointer* pointer, std::size_t bytes) {
  Entry entry(Call::cuMemAlloc_v2);
  if (!entry.in_working_context() || !entry.is_safe()) return entry.error();
  if (pointer == nullptr || bytes == 0) return entry.fail(kInvalidValue);
  if (bytes > kLargestAllocation) return entry.fail(kOutOfMemory);
  const auto range = entry.state().memory.allocate_shared(bytes, entry.device());
  if (range == nullptr) return entry.fail(kOutOfMemory);
  *pointer = range->start;
  return kSuccess;
}

int cuMemFree_v2(DevicePointer pointer) {
  Entry entry(Call::cuMemFree_v2);
  if (!entry.in_context() || !entry.is_safe()) return entry.error();
  const auto range = entry.range(MemoryKind::kDriverAllocated, pointer_to(pointer), kInvalidValue);
  if (range == nullptr) return entry.error();
  entry.state().retire(range, "cuMemFree", entry.lock());
  entry.state().memory.bury_shared(*range);
  return entry.result(range->device);
}

int cuIpcGetMemHandle(IpcHandle* handle, DevicePointer pointer) {
  Entry entry(Call::cuIpcGetMemHandle);
  if (!entry.in_working_context()) return entry.error();
  const auto range = entry.state().memory.at(pointer);
  if (handle == nullptr || range == nullptr || range->kind != MemoryKind::kDriverAllocated)
    return entry.fail(kInvalidValue);
  *handle = Ticket::of(range->file, range->bytes).write();
  return kSuccess;
}

int cuIpcOpenMemHandle_v2(DevicePointer* pointer, IpcHandle handle, unsigned flags) {
  Entry entry(Call::cuIpcOpenMemHandle_v2);
  if (!entry.in_working_context() || !entry.is_safe()) return entry.error();
  const auto ticket = Ticket::read(handle);
  if (pointer == nullptr || flags != client::cuda::kIpcLazyPeerAccess || !ticket) return entry.fail(kInvalidValue);
  if (ticket->is_of_this_process()) return entry.fail(kInvalidContext);
  auto range = entry.state().memory.imported(*ticket);
  if (range != nullptr) {
    ++range->opened;
  } else {
    range = entry.state().memory.import(*ticket, entry.device());
  }
  if (range == nullptr) return entry.fail(kInvalidValue);
  *pointer = range->start;
  return kSuccess;
}

int cuIpcCloseMemHandle(DevicePointer pointer) {
  Entry entry(Call::cuIpcCloseMemHandle);
  if (!entry.in_context() || !entry.is_safe()) return entry.error();
  const auto range = entry.range(MemoryKind::kImported, pointer_to(pointer), kInvalidValue);
  if (range == nullptr) return entry.error();
  if (--range->opened == 0) {
    entry.state().retire(range, "cuIpcCloseMemHandle", entry.lock());
    entry.state().memory.bury_shared(*range);
  }
  return entry.result(range->device);
}

}  // namespace tensorlane::fake_cuda
