#include "fake_entry.h"

namespace tensorlane::fake_cuda {

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
    note_copy(*on, handle, *operation);
  }
  state_.put(on, std::move(operation));
  return 0;
}

// Finds the ranges of a copy or fill, and checks that it stays inside of them.
bool Entry::find_memory(Operation& operation) {
  const bool out = operation.direction == kFakeCudaOut;
  const void* device = out ? operation.from : operation.to;
  const auto device_address = reinterpret_cast<std::uintptr_t>(device);
  operation.device_range = state_.memory.at(device_address);
  const Range* range = operation.device_range.get();
  if (range == nullptr || !range->on_device() || operation.bytes > range->start + range->bytes - device_address) {
    violate(kInvalidValue, operation.bytes, " bytes at ", device, " are not wholly in an allocation of device memory");
    return false;
  }
  if (operation.direction == kFakeCudaFill) return true;
  const void* host = out ? operation.to : operation.from;
  const auto host_address = reinterpret_cast<std::uintptr_t>(host);
  operation.host_range = state_.memory.at(host_address);
  range = operation.host_range.get();
  if (range != nullptr && !range->on_device() && operation.bytes <= range->start + range->bytes - host_address) {
    if (!range->portable && range->device != operation.device_range->device)
      violate(0, operation.bytes, " bytes at ", host, " are pinned for another device only");
    return ok();
  }
  const bool touched = state_.memory.overlaps(host_address, operation.bytes);
  violate(touched ? kInvalidValue : 0, operation.bytes, " bytes at ", host, " are not wholly in a pinned range",
          touched ? ", but in part, or in device memory" : "");
  return ok();
}

void Entry::note_copy(const Stream& stream, void* handle, Operation& operation) {
  operation.fails_with = state_.journal.count_put(call_);
  const bool out = operation.direction == kFakeCudaOut, fill = operation.direction == kFakeCudaFill;
  const void* device = out ? operation.from : operation.to;
  const void* host = fill ? nullptr : out ? operation.to : operation.from;
  FakeCudaCopy copy{};
  copy.direction = operation.direction;
  copy.device = stream.device;
  copy.stream = handle;
  copy.device_address = reinterpret_cast<std::uintptr_t>(device);
  copy.host_address = reinterpret_cast<std::uintptr_t>(host);
  copy.bytes = operation.bytes;
  operation.place = state_.journal.put(copy);
}

}  // namespace tensorlane::fake_cuda
