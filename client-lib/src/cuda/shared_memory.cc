#include "client-lib/src/cuda/shared_memory.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

namespace tensorlane::client::cuda {
namespace {

constexpr std::uint64_t kUnit = 2 << 20;

struct Kept {
  int device = 0;
  DevicePointer pointer = 0;
  std::uint64_t bytes = 0, id = 0;
};

struct KeptMemory {
  std::mutex mutex;
  std::vector<Kept> all;      // for the next allocations
  std::vector<Kept> in_use;   // the program's, whose context has ended
  std::vector<int> contexts;  // devices whose context stays, so that memory does
};

KeptMemory& kept_memory() {
  static KeptMemory* const only = new KeptMemory;  // outlives every static object of the program
  return *only;
}

// The driver's number of an allocation, which no later one has; 0: it knows none.
std::uint64_t id_of(const Driver& driver, DevicePointer pointer) {
  std::uint64_t id = 0;
  return driver.pointer_attribute(&id, kPointerBufferId, pointer) == kSuccess ? id : 0;
}

// Memory that was kept, and is not much larger than what is wanted. What the GPU no longer knows, because the program
// has reset it, is forgotten.
Kept take_kept(const Device& device, std::uint64_t bytes) {
  std::lock_guard lock(kept_memory().mutex);
  std::vector<Kept>& kept = kept_memory().all;
  std::erase_if(kept, [&](const Kept& each) {
    return each.device == device.ordinal() && id_of(device.driver(), each.pointer) != each.id;
  });
  const auto fits = [&](const Kept& each) {
    return each.device == device.ordinal() && each.bytes >= bytes && each.bytes <= 2 * bytes;
  };
  const auto found = std::ranges::find_if(kept, fits);
  if (found == kept.end()) return {};
  const Kept taken = *found;
  kept.erase(found);
  return taken;
}

// Keeps it in one of the lists, and its GPU's context as long as the process, so that the memory stays.
void keep(Device& device, Kept memory, std::vector<Kept> KeptMemory::*list) {
  KeptMemory& kept = kept_memory();
  std::lock_guard lock(kept.mutex);
  if (std::ranges::find(kept.contexts, memory.device) == kept.contexts.end()) {
    if (!device.keep_context()) return;  // nothing can be said of the memory then
    kept.contexts.push_back(memory.device);
  }
  // What was at this address before has gone with a reset of the GPU.
  for (std::vector<Kept>* known : {&kept.all, &kept.in_use}) {
    std::erase_if(*known,
                  [&](const Kept& each) { return each.device == memory.device && each.pointer == memory.pointer; });
  }
  memory.id = id_of(device.driver(), memory.pointer);
  if (memory.id != 0) (kept.*list).push_back(memory);
}

const char* process_mark() {
  static const auto mark = [] {
    std::array<char, sizeof MemoryAddress::process> bytes{};
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t got = getrandom(bytes.data() + at, bytes.size() - at, 0);
      if (got > 0) at += static_cast<std::size_t>(got);
    }
    return bytes;
  }();
  return mark.data();
}

}  // namespace

Result<std::unique_ptr<SharedMemory>> SharedMemory::allocate(Device& device, std::uint64_t bytes, Owner owner) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 48;  // what no GPU has
  const std::uint64_t whole = (std::min(bytes, kMost) + kUnit - 1) / kUnit * kUnit;
  const std::string where = std::to_string(whole) + " bytes, " + device.where();
  const Driver& driver = device.driver();
  if (!driver.shares_memory()) {
    return Status(Code::kUnavailable, "the driver cannot share memory between processes", where,
                  "install NVIDIA's driver (525 or newer), or pass a buffer of your own");
  }
  const Current current(device);
  TL_RETURN_IF_ERROR(current.status());
  if (const Kept kept = take_kept(device, whole); kept.pointer != 0)
    return std::unique_ptr<SharedMemory>(new SharedMemory(device, kept.pointer, kept.bytes, owner));
  DevicePointer pointer = 0;
  const Error_ error = driver.memory_allocate(&pointer, whole);
  if (error != kSuccess) return driver.error(error, "cuMemAlloc", where);
  return std::unique_ptr<SharedMemory>(new SharedMemory(device, pointer, whole, owner));
}

SharedMemory::~SharedMemory() {
  if (pointer_ == 0) return;
  keep(device_, {device_.ordinal(), pointer_, bytes_, 0},
       owner_ == Owner::kProgram ? &KeptMemory::in_use : &KeptMemory::all);
}

Result<MemoryAddress> SharedMemory::address(DevicePointer pointer) const {
  MemoryAddress address;
  std::memcpy(address.process, process_mark(), sizeof address.process);
  address.device = device_.ordinal();
  address.pointer = pointer;
  address.offset = pointer - pointer_;
  const Current current(device_);
  TL_RETURN_IF_ERROR(current.status());
  const Error_ error = device_.driver().ipc_export(&address.handle, pointer_);
  if (error != kSuccess) return device_.driver().error(error, "cuIpcGetMemHandle", device_.where());
  return address;
}

Status SharedMemory::give_back() {
  const DevicePointer pointer = std::exchange(pointer_, 0);
  if (lent_ > 0) {
    keep(device_, {device_.ordinal(), pointer, bytes_, 0}, &KeptMemory::all);
    return {};
  }
  const Current current(device_);
  TL_RETURN_IF_ERROR(current.status());
  const Error_ error = device_.driver().memory_free(pointer);
  return error == kSuccess ? Status() : device_.driver().error(error, "cuMemFree", device_.where());
}

bool SharedMemory::give_back_later(DevicePointer pointer) {
  KeptMemory& kept = kept_memory();
  std::lock_guard lock(kept.mutex);
  const auto found = std::ranges::find(kept.in_use, pointer, &Kept::pointer);
  if (found == kept.in_use.end()) return false;
  kept.all.push_back(*found);
  kept.in_use.erase(found);
  return true;
}

std::uint64_t SharedMemory::bytes_left_at(DevicePointer pointer) {
  KeptMemory& kept = kept_memory();
  std::lock_guard lock(kept.mutex);
  const auto found = std::ranges::find(kept.in_use, pointer, &Kept::pointer);
  return found != kept.in_use.end() ? found->bytes : 0;
}

Result<DevicePointer> Mappings::open(const Device& device, const MemoryAddress& other) {
  if (std::memcmp(other.process, process_mark(), sizeof other.process) == 0) {
    if (other.device == device.ordinal()) return other.pointer;
    return Status(Code::kUnavailable, "two ranks of one process are on two GPUs",
                  device.where() + " and GPU " + std::to_string(other.device), "start a process for each rank");
  }
  const Current current(device);
  TL_RETURN_IF_ERROR(current.status());
  DevicePointer memory = 0;
  const Error_ error = device.driver().ipc_open(&memory, other.handle, kIpcLazyPeerAccess);
  if (error != kSuccess) return device.driver().error(error, "cuIpcOpenMemHandle", device.where());
  mappings_.push_back({&device, memory});
  return memory + other.offset;
}

Status Mappings::close() {
  Status first;
  for (const auto& [device, pointer] : std::exchange(mappings_, {})) {
    const Current current(*device);
    const Error_ error = current.status().ok() ? device->driver().ipc_close(pointer) : kNotSupported;
    if (error != kSuccess && first.ok()) first = device->driver().error(error, "cuIpcCloseMemHandle", device->where());
  }
  return first;
}

}  // namespace tensorlane::client::cuda
