#include "client-lib/src/cuda/gpus.h"

#include <algorithm>
#include <system_error>

namespace tensorlane::client::cuda {

Gpus::~Gpus() {
  stop();
  memories_.clear();
  if (devices_.empty()) return;
  if (const Current current(*devices_.front()); current.status().ok()) {
    for (const std::span<std::byte> memory : pinned_) (void)driver_->host_unregister(memory.data());
  }
  devices_.clear();
}

Result<Device*> Gpus::device_of(const void* memory, std::uint64_t bytes, const std::string& what) {
  std::lock_guard lock(mutex_);
  if (driver_ == nullptr) {
    TL_ASSIGN_OR_RETURN(driver_, Driver::load());
  }
  TL_ASSIGN_OR_RETURN(const int ordinal,
                      cuda::device_of(*driver_, reinterpret_cast<DevicePointer>(memory), bytes, what));
  return open_locked(ordinal);
}

Result<SharedMemory*> Gpus::allocate(int ordinal, std::uint64_t bytes, SharedMemory::Owner owner) {
  std::lock_guard lock(mutex_);
  if (driver_ == nullptr) {
    TL_ASSIGN_OR_RETURN(driver_, Driver::load());
  }
  TL_ASSIGN_OR_RETURN(Device * device, open_locked(ordinal));
  TL_ASSIGN_OR_RETURN(std::unique_ptr<SharedMemory> memory, SharedMemory::allocate(*device, bytes, owner));
  memories_.push_back(std::move(memory));
  return memories_.back().get();
}

SharedMemory* Gpus::memory_of(const void* first, std::uint64_t bytes) const {
  std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(
      memories_, [&](const auto& memory) { return memory->holds(reinterpret_cast<DevicePointer>(first), bytes); });
  return found != memories_.end() ? found->get() : nullptr;
}

std::uint64_t Gpus::bytes_at(DevicePointer pointer) const {
  std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(memories_, pointer, [](const auto& each) { return each->pointer(); });
  return found != memories_.end() ? (*found)->bytes() : 0;
}

Status Gpus::release(DevicePointer pointer) {
  std::unique_ptr<SharedMemory> memory;
  {
    std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(memories_, [&](const auto& each) { return each->pointer() == pointer; });
    if (found == memories_.end()) return {Code::kNotFound, "this context has no such memory of a GPU", "", ""};
    memory = std::move(*found);
    memories_.erase(found);
  }
  return memory->give_back();
}

Result<Device*> Gpus::open_locked(int ordinal) {
  const auto found =
      std::find_if(devices_.begin(), devices_.end(), [&](const auto& device) { return device->ordinal() == ordinal; });
  if (found != devices_.end()) return found->get();
  TL_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::open(*driver_, ordinal));
  if (stager_ == nullptr) {
    try {
      stager_ = std::make_unique<Stager>(listener_);
      running_ = stager_.get();
    } catch (const std::system_error& error) {
      return Status(Code::kResourceExhausted, "cannot start the thread that copies from GPUs", error.what(),
                    "raise the limit of threads");
    }
  }
  devices_.push_back(std::move(device));
  return devices_.back().get();
}

Status Gpus::pin(std::span<std::byte> memory, Device& device) {
  std::lock_guard lock(mutex_);
  const auto known = [&](std::span<std::byte> each) { return each.data() == memory.data(); };
  if (std::any_of(pinned_.begin(), pinned_.end(), known)) return {};
  const Current current(device);
  TL_RETURN_IF_ERROR(current.status());
  const Error_ error = driver_->host_register(memory.data(), memory.size(), kHostRegisterPortable);
  if (error == kSuccess) {
    pinned_.push_back(memory);
    return {};
  }
  const Status status = driver_->error(error, "cuMemHostRegister",
                                       std::to_string(memory.size()) + " bytes of shared memory for " + device.where());
  return {status.code(), status.what(), status.where(),
          "transfers on GPU memory go through pinned memory: raise the limit of locked memory (ulimit -l, "
          "LimitMEMLOCK), or pass host memory"};
}

std::string Gpus::status(const std::string& groups) const {
  std::lock_guard lock(mutex_);
  std::string devices;
  for (const auto& device : devices_) {
    if (!devices.empty()) devices += ',';
    devices += device->status();
  }
  std::uint64_t pinned = 0, shared = 0;
  for (const auto& memory : memories_) shared += memory->bytes();
  for (const std::span<std::byte> memory : pinned_) pinned += memory.size();
  int version = 0;
  if (driver_ != nullptr) (void)driver_->driver_version(&version);
  return std::string(R"({"driver_version":)") + std::to_string(version) + R"(,"pinned_bytes":)" +
         std::to_string(pinned) + R"(,"allocated_bytes":)" + std::to_string(shared) + R"(,"devices":[)" + devices +
         R"(],"groups":[)" + groups + "]}";
}

}  // namespace tensorlane::client::cuda
