// A GPU, a stream and buffers on it for tests of the client library, by the fake driver.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "context_guard.h"
#include "tests/cuda/fake_cuda.h"

namespace tensorlane::test {

using fake_cuda::DeviceMemory;
using fake_cuda::FakeCuda;

// A driver made anew. At its end the library has done nothing that a driver forbids, and, unless the GPU is broken (so
// that calls need no context any more), has left nothing but its words (cuda/words.h), which stay for good.
class Gpu {
 public:
  explicit Gpu(std::uint64_t seed = 1, std::chrono::nanoseconds delay = std::chrono::microseconds(20),
               int devices = 1) {
    driver().reset(seed, static_cast<std::uint64_t>(delay.count()), devices);
  }
  ~Gpu() {
    for (const std::string& violation : driver().all_violations()) {
      // The library asks whether the driver still knows its words, which the driver of the test before has registered.
      const bool known = violation.starts_with("cuMemHostGetDevicePointer_v2") ||
                         (!misused_.empty() && violation.starts_with(misused_));
      if (!known) ADD_FAILURE() << violation;
    }
    if (!broken_) expect_nothing_left();
    driver().reset(0, 0, 1);  // no thread outlives the test
  }
  static const FakeCuda& driver() { return FakeCuda::get(); }
  // Waits for the streams of all copies that were put. What these have read may then be written, and what they have
  // written be read; that the log says that they are over is not enough for the thread sanitizer.
  static void synchronize_copies() {
    std::set<void*> streams;
    for (const FakeCudaCopy& copy : driver().all_copies()) streams.insert(copy.stream);
    for (void* stream : streams) driver().stream_synchronize(stream);
  }
  void is_broken() { broken_ = true; }
  // Memory of a job that has not given it back stays for later ones, and with it the GPU's context.
  void keeps_memory() { keeps_memory_ = true; }
  // The test itself has the library call this one as a driver forbids.
  void is_misused(std::string call) { misused_ = std::move(call); }

 private:
  void expect_nothing_left() const {
    EXPECT_LE(driver().alive("registered_ranges"), 2);  // pages of words
    EXPECT_EQ(driver().alive("streams"), 0);
    EXPECT_EQ(driver().alive("events"), 0);
    EXPECT_LE(driver().alive("retained_contexts"), keeps_memory_ ? 1 : 0);
    EXPECT_EQ(driver().alive("driver_allocations") > 0, keeps_memory_);
    EXPECT_EQ(driver().alive("imports"), 0);
    EXPECT_EQ(driver().alive("modules"), 0);
    EXPECT_EQ(driver().alive("pushed_contexts"), 0);
  }

  bool broken_ = false, keeps_memory_ = false;
  std::string misused_;
};

// A stream of the program.
class Stream {
 public:
  explicit Stream(int device = 0) : handle_(Gpu::driver().stream_create(device)) {}
  ~Stream() {
    Gpu::driver().resume_stream(handle_);
    synchronize();
    Gpu::driver().stream_destroy(handle_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator void*() const { return handle_; }  // NOLINT: implicit by design

  // A kernel.
  void run(std::function<void()> kernel) const {
    auto* held = new std::function<void()>(std::move(kernel));
    const auto call = [](void* argument) {
      auto* function = static_cast<std::function<void()>*>(argument);
      (*function)();
      delete function;
    };
    if (Gpu::driver().launch(handle_, call, held) != 0) delete held;
  }
  void fill(const DeviceMemory& memory, float value) const {
    const std::span<float> floats = memory.floats();
    run([floats, value] { std::fill(floats.begin(), floats.end(), value); });
  }
  void synchronize() const { (void)Gpu::driver().stream_synchronize(handle_); }
  // What the memory holds when the stream has come so far.
  std::vector<float> read(const DeviceMemory& memory) const {
    std::vector<float> result;
    run([&] { result.assign(memory.floats().begin(), memory.floats().end()); });
    synchronize();
    return result;
  }

 private:
  void* handle_;
};

inline tl_options_t on_gpu(void* stream, bool queued = false) {
  tl_options_t options = TL_OPTIONS_INIT;
  options.memory = TL_MEMORY_CUDA;
  options.stream = stream;
  options.queued = queued ? 1 : 0;
  return options;
}

inline tl_status_t gpu_allreduce(tl_context_t* context, const char* name, const DeviceMemory& memory, void* stream,
                                 tl_request_t** request, bool queued = false) {
  const tl_options_t options = on_gpu(stream, queued);
  return tl_allreduce(context, name, memory.data(), memory.data(), memory.floats().size(), TL_FLOAT32, TL_SUM, &options,
                      request);
}

// An allreduce of float32 in a group of its own.
inline tl_tensor_t* registered_on_gpu(tl_context_t* context, const char* name, const DeviceMemory& memory,
                                      float urgency = -1) {
  tl_tensor_desc_t desc = tensor_desc(name, memory.data(), memory.floats().size());
  desc.memory = TL_MEMORY_CUDA;
  desc.urgency = urgency;
  tl_tensor_t* tensor = nullptr;
  EXPECT_EQ(tl_register(context, name, &desc, 1, &tensor), TL_OK) << tl_last_error();
  return tensor;
}

inline bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 10000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

inline bool all_are(const std::vector<float>& values, float value) {
  return std::all_of(values.begin(), values.end(), [&](float each) { return each == value; });
}

}  // namespace tensorlane::test
