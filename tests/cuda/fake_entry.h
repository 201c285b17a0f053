// What the entry points and controls of the fake driver have in common.
#pragma once

#include <memory>

#include "fake_state.h"

namespace tensorlane::fake_cuda {

inline void* pointer_to(DevicePointer address) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

// A call of an entry point. It holds the state's lock as long as it lives. The functions that return a bool record why
// the call may not go on, which error() returns.
class Entry {
 public:
  // Counts the call. Its error is the one that a test wants, or that the driver is not initialised.
  explicit Entry(Call call, bool needs_initialization = true);

  bool ok() const { return error_ == 0; }
  int error() const { return error_; }
  // Returns `error`, which the call is to return.
  int fail(int error) { return error_ = error; }
  // The same, and a violation.
  template <typename... Parts>
  int violate(int error, const Parts&... parts) {
    state_.journal.violate(name_of(call_), ": ", parts...);
    return fail(error);
  }

  // A context that the program retains is current.
  bool in_context();
  // And its device has no sticky error.
  bool in_working_context();
  bool device_exists(int device);
  // No capture forbids calls like this one to the thread.
  bool is_safe();
  // `outcome`, or the sticky error of `device` instead.
  int result(int device, int outcome = 0);

  // Null, and a violation: there is none of that handle, or it is of another device than the current one.
  std::shared_ptr<Stream> stream(void* handle);
  // Null, and a violation: there is none. Of any device.
  std::shared_ptr<Event> event(void* handle);
  // Null, and a violation: there is none. Of any device.
  std::shared_ptr<Module> module(void* handle);
  // Null, and a violation: there is none of that handle, or it is of another device than the current one.
  std::shared_ptr<Function> function(void* handle);
  // The range that begins at `memory`. Null, and a violation: there is none of this kind, which is `missing`.
  std::shared_ptr<Range> range(MemoryKind kind, void* memory, int missing);
  // Puts the operation on the stream, unless that is capturing. Returns the error of the call.
  int put(void* stream, std::unique_ptr<Operation> operation);

  State& state() { return state_; }
  Lock& lock() { return lock_; }
  int device() const { return device_; }  // of the current context

 private:
  bool find_memory(Operation& operation);
  bool find_on_device(Operation& operation, const void* memory);
  bool find_on_host(Operation& operation, const void* memory);
  void find_operands(Operation& operation);
  std::shared_ptr<Range> device_range(const void* memory, std::size_t bytes);
  // A violation that the device notices when it comes to the operation.
  template <typename... Parts>
  void fault(Operation& operation, int error, const Parts&... parts) {
    violate(0, parts...);
    operation.fails_with = error;
  }
  void note(const Stream& stream, void* handle, Operation& operation);

  State& state_;
  Call call_;
  Lock lock_;
  int error_ = 0;
  int device_ = -1;
};

}  // namespace tensorlane::fake_cuda
