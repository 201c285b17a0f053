// Memory on a GPU that the library has allocated, and that the other ranks of the host may map: by CUDA IPC, or as it
// is, where they are threads of this process. Ranks only ever read each other's memory.
//
// NVIDIA's driver forbids to free memory while another process has it mapped. Memory that others have been told of is
// therefore freed only when all of them have said that they have closed it; else, as after a job that has failed, it
// is kept for the next allocation of this process. What is there when its context ends stays the program's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
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

// Any thread; give_back() and the destructor when no other call is under way.
class SharedMemory {
 public:
  enum class Owner : std::uint8_t { kProgram, kLibrary };
  // Of `bytes` rounded up to whole units of 2 MiB: the driver shares memory in such units, and nothing else of the
  // process shall lie in them. Its bytes are anything. Errors: ResourceExhausted, Unavailable (a driver without IPC).
  static Result<std::unique_ptr<SharedMemory>> allocate(Device& device, std::uint64_t bytes, Owner owner);
  // The program's memory stays where it is, until give_back_later().
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
  // Others are told where it is: one count for each time, taken back when they have said that they have closed it.
  void lend() { ++lent_; }
  void end_loan() { --lent_; }
  // The program does not use it any more: freed, or kept where others may have it mapped. Errors: Unavailable, with
  // what the driver says; it is lost then.
  Status give_back();
  // As give_back(), of memory whose object is gone. False: there is none at this address. Makes no call of the driver.
  static bool give_back_later(DevicePointer pointer);
  // Bytes of such memory; 0: there is none.
  static std::uint64_t bytes_left_at(DevicePointer pointer);

 private:
  SharedMemory(Device& device, DevicePointer pointer, std::uint64_t bytes, Owner owner)
      : device_(device), owner_(owner), pointer_(pointer), bytes_(bytes) {}

  Device& device_;
  const Owner owner_;
  DevicePointer pointer_ = 0;  // 0: it was given back
  std::uint64_t bytes_ = 0;
  std::atomic<int> lent_{0};
};

// Memory of other ranks, as long as it is mapped here.
class Mappings {
 public:
  Mappings() = default;
  Mappings(Mappings&&) = default;
  Mappings& operator=(Mappings&&) = default;
  ~Mappings() { (void)close(); }
  Mappings(const Mappings&) = delete;
  Mappings& operator=(const Mappings&) = delete;

  // Where this is for `device`. Errors: Unavailable (another container or user, GPUs that cannot reach each other).
  Result<DevicePointer> open(const Device& device, const MemoryAddress& other);
  // Nothing is read of them any more. Errors: Unavailable, with what the driver says; they count as closed then.
  Status close();

 private:
  struct Mapping {
    const Device* device = nullptr;
    DevicePointer pointer = 0;
  };
  std::vector<Mapping> mappings_;
};

}  // namespace tensorlane::client::cuda
