// Memory on a GPU that the library has allocated, and that the other ranks of the host may map: by CUDA IPC, or as it
// is, where they are threads of this process. Ranks only ever read each other's memory.
//
// NVIDIA's driver forbids to free memory while another process has it mapped. So it is freed only by who knows that
// nobody has (free()); what is left, as at the end of a job, is kept for the next allocation of this process, and never
// freed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client-lib/src/cuda/device.h"
#include "common/base/status.h"

namespace tensorlane::client::cuda {

// How a rank tells another where a tensor of its memory is. Plain bytes.
struct MemoryAddress {
  char process[16] = {};  // random; the same for all of one process
  std::int32_t device = 0;
  std::uint32_t reserved = 0;
  DevicePointer pointer = 0;  // in that process
  std::uint64_t offset = 0;   // in the memory that the handle is of
  IpcHandle handle{};
};

// Any thread; free() and the destructor when no other call is under way.
class SharedMemory {
 public:
  // Of `bytes` rounded up to whole units of 2 MiB: the driver shares memory in such units, and nothing else of the
  // process shall lie in them. Its bytes are anything. Errors: ResourceExhausted, Unavailable (a driver without IPC).
  static Result<std::unique_ptr<SharedMemory>> allocate(Device& device, std::uint64_t bytes);
  // Keeps the memory.
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  Device& device() const { return device_; }
  DevicePointer pointer() const { return pointer_; }
  std::uint64_t bytes() const { return bytes_; }
  bool holds(DevicePointer first, std::uint64_t bytes) const {
    return first >= pointer_ && bytes <= bytes_ && first - pointer_ <= bytes_ - bytes;
  }

  // Of what lies at `pointer` in it. Errors: Unavailable, with what the driver says.
  Result<MemoryAddress> address(DevicePointer pointer) const;
  // Nobody has it mapped any more.
  void free();

 private:
  SharedMemory(Device& device, DevicePointer pointer, std::uint64_t bytes)
      : device_(device), pointer_(pointer), bytes_(bytes) {}

  Device& device_;
  DevicePointer pointer_ = 0;  // 0: it was freed
  std::uint64_t bytes_ = 0;
};

// Memory of other ranks, as long as it is mapped here.
class Mappings {
 public:
  Mappings() = default;
  Mappings(Mappings&&) = default;
  Mappings& operator=(Mappings&&) = default;
  ~Mappings() { close(); }
  Mappings(const Mappings&) = delete;
  Mappings& operator=(const Mappings&) = delete;

  // Where this is for `device`. Errors: Unavailable (another container or user, GPUs that cannot reach each other).
  Result<DevicePointer> open(const Device& device, const MemoryAddress& other);
  // Nothing is read of them any more.
  void close();

 private:
  struct Mapping {
    const Device* device = nullptr;
    DevicePointer pointer = 0;
  };
  std::vector<Mapping> mappings_;
};

}  // namespace tensorlane::client::cuda
