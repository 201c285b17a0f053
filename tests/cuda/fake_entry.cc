#include "fake_entry.h"

#include <algorithm>
#include <vector>

namespace tensorlane::fake_cuda {
namespace {

constexpr std::uintptr_t kAlignment = 16;  // of what a kernel is given

struct Piece {
  const void* memory;
  std::size_t bytes;
};
bool overlap(const Piece& one, const Piece& other) {
  const auto first = reinterpret_cast<std::uintptr_t>(one.memory),
             second = reinterpret_cast<std::uintptr_t>(other.memory);
  return first < second ? second - first < one.bytes : first - second < other.bytes;
}

}  // namespace

Entry::Entry(Call call, bool needs_initialization)
    : state_(fake_cuda::state()), call_(call), lock_(state_.mutex), device_(state_.current_device()) {
  error_ = state_.journal.count_call(call);
  if (error_ == 0 && needs_initialization && !state_.initialized) violate(kNotInitialized, "before cuInit");
}

bool Entry::in_context() {
  if (!ok()) return false;
  if (device_ < 0) {
    violate(kInvalidContext, "the thread has no current context");
  } else if (state_.devices[device_].references == 0) {
    violate(kContextIsDestroyed, "the program has released the context of device ", device_, ", which is current");
  }
  return ok();
}

bool Entry::in_working_context() {
  if (in_context()) fail(state_.devices[device_].error);
  return ok();
}

bool Entry::device_exists(int device) {
  if (!ok()) return false;
  if (device < 0 || device >= static_cast<int>(state_.devices.size())) {
    violate(kInvalidDevice, "there is no device ", device);
  }
  return ok();
}

bool Entry::is_safe() {
  if (ok() && state_.global_captures > 0 && state_.thread().capture_mode == 0) {
    violate(kCaptureUnsupported, "while a stream captures in the global mode");
  }
  return ok();
}

int Entry::result(int device, int outcome) {
  const int sticky = state_.devices[device].error;
  return fail(sticky != 0 ? sticky : outcome);
}

std::shared_ptr<Stream> Entry::stream(void* handle) {
  auto stream = state_.find_stream(handle, device_);
  if (stream == nullptr) {
    violate(kInvalidHandle, "the stream ", handle, " is ", state_.describe(handle));
  } else if (device_ >= 0 && stream->device != device_) {
    violate(kInvalidHandle, "the stream is of device ", stream->device, ", the current context of device ", device_);
    return nullptr;
  }
  return stream;
}

std::shared_ptr<Event> Entry::event(void* handle) {
  const auto found = state_.events.find(handle);
  if (found != state_.events.end()) return found->second;
  violate(kInvalidHandle, "the event ", handle, " is ", state_.describe(handle));
  return nullptr;
}

std::shared_ptr<Module> Entry::module(void* handle) {
  const auto found = state_.modules.find(handle);
  if (found != state_.modules.end()) return found->second;
  violate(kInvalidHandle, "the module ", handle, " is ", state_.describe(handle));
  return nullptr;
}

std::shared_ptr<Function> Entry::function(void* handle) {
  const auto found = state_.functions.find(handle);
  if (found == state_.functions.end()) {
    violate(kInvalidHandle, "the function ", handle, " is ", state_.describe(handle));
    return nullptr;
  }
  const int device = found->second->module->device;
  if (device == device_) return found->second;
  violate(kInvalidHandle, "the function is of device ", device, ", the current context of device ", device_);
  return nullptr;
}

std::shared_ptr<Range> Entry::range(MemoryKind kind, void* memory, int missing) {
  auto range = state_.memory.starting_at(memory);
  if (range != nullptr && range->kind == kind) return range;
  violate(missing, "no range that the call is for begins at ", memory);
  return nullptr;
}

int Entry::put(void* handle, std::unique_ptr<Operation> operation) {
  const auto on = stream(handle);
  if (on == nullptr) return error();
  if (on->capturing) return violate(kCaptureUnsupported, "on the stream ", handle, ", which is capturing");
  if (operation->is_logged()) {
    if (operation->bytes == 0) return 0;
    if (!find_memory(*operation)) return error();
    note(*on, handle, *operation);
  }
  state_.put(on, std::move(operation));
  return 0;
}

// Null: the bytes are not wholly in an allocation of device memory.
std::shared_ptr<Range> Entry::device_range(const void* memory, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  auto range = state_.memory.at(address);
  const bool holds = range != nullptr && range->on_device() && bytes <= range->start + range->bytes - address;
  return holds ? range : nullptr;
}

// Finds the ranges of what is logged, and checks that it stays inside of them. False: the call may not go on.
bool Entry::find_memory(Operation& operation) {
  switch (operation.direction) {
    case kFakeCudaOut:
      return find_on_device(operation, operation.from) && find_on_host(operation, operation.to);
    case kFakeCudaIn:
      return find_on_device(operation, operation.to) && find_on_host(operation, operation.from);
    case kFakeCudaFill:
      return find_on_device(operation, operation.to);
    case kFakeCudaWithin:
      if (!find_on_device(operation, operation.to) || !find_on_device(operation, operation.from)) return false;
      if (overlap({operation.to, operation.bytes}, {operation.from, operation.bytes}))
        violate(0, operation.bytes, " bytes at ", operation.from, " overlap those at ", operation.to);
      return true;
    default:
      find_operands(operation);
      return true;
  }
}

bool Entry::find_on_device(Operation& operation, const void* memory) {
  const auto range = device_range(memory, operation.bytes);
  if (range == nullptr) {
    violate(kInvalidValue, operation.bytes, " bytes at ", memory, " are not wholly in an allocation of device memory");
    return false;
  }
  operation.use(range);
  return true;
}

// After the range of the device's memory was found.
bool Entry::find_on_host(Operation& operation, const void* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  const int device = operation.ranges.front()->device;
  const auto range = state_.memory.at(address);
  operation.use(range);
  if (range != nullptr && !range->on_device() && operation.bytes <= range->start + range->bytes - address) {
    if (!range->portable && range->device != device)
      violate(0, operation.bytes, " bytes at ", memory, " are pinned for another device only");
    return ok();
  }
  const bool touched = state_.memory.overlaps(address, operation.bytes);
  violate(touched ? kInvalidValue : 0, operation.bytes, " bytes at ", memory, " are not wholly in a pinned range",
          touched ? ", but in part, or in device memory" : "");
  return ok();
}

// Of a kernel. The driver does not look at its parameters: what is wrong with them shows when it runs.
void Entry::find_operands(Operation& operation) {
  const Launch& launch = *operation.launch;
  if (launch.count == 0 || launch.count > client::cuda::kMaxSources)
    return fault(operation, kIllegalAddress, "a kernel with ", launch.count, " sources");
  const Piece result{operation.to, operation.bytes};
  std::vector<Piece> operands{result};
  for (std::uint32_t source = 0; source < launch.count; ++source)
    operands.push_back({pointer_to(launch.sources.at[source]), launch.source_bytes});
  for (const auto& [memory, bytes] : operands) {
    const auto range = device_range(memory, bytes);
    operation.use(range);
    const bool in_place = memory == result.memory && bytes == result.bytes;
    if (range == nullptr) {
      fault(operation, kIllegalAddress, bytes, " bytes at ", memory,
            " are not wholly in an allocation of device memory");
    } else if (reinterpret_cast<std::uintptr_t>(memory) % kAlignment != 0) {
      fault(operation, kMisalignedAddress, "the address ", memory, " is not a multiple of ", kAlignment);
    } else if (!in_place && overlap({memory, bytes}, result)) {
      fault(operation, kIllegalAddress, "the source at ", memory, " overlaps the result at ", result.memory);
    }
  }
}

void Entry::note(const Stream& stream, void* handle, Operation& operation) {
  if (const int planned = state_.journal.count_put(call_); planned != 0) operation.fails_with = planned;
  const auto to = reinterpret_cast<std::uintptr_t>(operation.to);
  const auto from = reinterpret_cast<std::uintptr_t>(operation.from);
  const int direction = operation.direction;
  FakeCudaCopy copy{};
  copy.direction = direction;
  copy.device = stream.device;
  copy.stream = handle;
  copy.device_address = direction == kFakeCudaOut ? from : to;
  copy.host_address = direction == kFakeCudaOut ? to : direction == kFakeCudaIn ? from : 0;
  copy.source_address = direction == kFakeCudaWithin ? from : 0;
  copy.bytes = operation.bytes;
  operation.place = state_.journal.put(copy);
}

}  // namespace tensorlane::fake_cuda
