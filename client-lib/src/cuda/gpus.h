// What one context has of GPUs: devices, pinned memory, and the thread that copies. Nothing of it exists until the
// first transfer on GPU memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "client-lib/src/cuda/device.h"
#include "client-lib/src/cuda/shared_memory.h"
#include "client-lib/src/cuda/stager.h"
#include "common/base/status.h"

namespace tensorlane::client::cuda {

// Any thread.
class Gpus {
 public:
  explicit Gpus(Stager::Listener& listener) : listener_(listener) {}
  // Ends what is under way (Stager), then unpins. The pinned memory is still mapped.
  ~Gpus();
  // Ends what is under way. The last call but for the destructor.
  void stop() { stager_.reset(); }
  Gpus(const Gpus&) = delete;
  Gpus& operator=(const Gpus&) = delete;

  // The GPU that has [memory, memory + bytes), opened. `what` names the buffer in errors. Errors: InvalidArgument (no
  // GPU has it), Unavailable, ResourceExhausted.
  Result<Device*> device_of(const void* memory, std::uint64_t bytes, const std::string& what);
  // Pins the whole pages of `memory` for all GPUs, once. Errors: ResourceExhausted, what the driver says.
  Status pin(std::span<std::byte> memory, Device& device);
  // Memory on the GPU of this number in the process, which stays until release(). Errors: as device_of(), and
  // SharedMemory::allocate().
  Result<SharedMemory*> allocate(int ordinal, std::uint64_t bytes, SharedMemory::Owner owner);
  // The memory of allocate() that holds all of this; null: none does.
  SharedMemory* memory_of(const void* first, std::uint64_t bytes) const;
  // Of the memory of allocate() that begins there; 0: there is none.
  std::uint64_t bytes_at(DevicePointer pointer) const;
  // SharedMemory::give_back() of the memory that begins there. Errors: that's, NotFound (there is none).
  Status release(DevicePointer pointer);
  // Stager::is_stuck(); waits for no lock.
  bool is_stuck(Time time) const {
    const Stager* stager = running_.load();
    return stager != nullptr && stager->is_stuck(time);
  }
  // Only after device_of() has given a device.
  Stager& stager() { return *stager_; }
  // JSON. `groups`: what the list of groups of tensors in memory that was allocated here holds.
  std::string status(const std::string& groups) const;

 private:
  Result<Device*> open_locked(int ordinal);

  Stager::Listener& listener_;
  mutable std::mutex mutex_;
  const Driver* driver_ = nullptr;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::span<std::byte>> pinned_;
  std::vector<std::unique_ptr<SharedMemory>> memories_;
  std::unique_ptr<Stager> stager_;  // made with the first device, and not changed any more
  std::atomic<const Stager*> running_{nullptr};
};

}  // namespace tensorlane::client::cuda
