// The fake driver (fake_driver.h) for tests in C++. A test that uses this header links the convenience library, and not
// the driver: the driver is loaded, as the library under test loads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client-lib/src/cuda/driver.h"
#include "fake_driver.h"

namespace tensorlane::fake_cuda {

// X(name of the member): the control function is fake_cuda_ and the name.
#define TL_FAKE_CUDA_CONTROLS(X) \
  X(reset);                      \
  X(share_channels);             \
  X(break_device);               \
  X(malloc);                     \
  X(free);                       \
  X(adopt);                      \
  X(release);                    \
  X(stream_create);              \
  X(stream_destroy);             \
  X(launch);                     \
  X(stream_synchronize);         \
  X(hold_stream);                \
  X(resume_stream);              \
  X(step_stream);                \
  X(hold_all_streams);           \
  X(resume_all_streams);         \
  X(streams);                    \
  X(begin_capture);              \
  X(end_capture);                \
  X(fail);                       \
  X(fail_async);                 \
  X(calls);                      \
  X(call_names);                 \
  X(violations);                 \
  X(violation);                  \
  X(alive);                      \
  X(copies);                     \
  X(most_in_flight)

// The controls and entry points of the loaded driver. Any thread.
class FakeCuda {
 public:
  // Loads the driver from the path in the environment variable FAKE_CUDA_LIBRARY, or from where the build has put it; a
  // later dlopen("libcuda.so.1") of the library under test gets the same one. Ends the process, with a message, when it
  // cannot be loaded or is not the fake one. The driver stays loaded.
  static const FakeCuda& get();

  // The control functions by their names without fake_cuda_: FakeCuda::get().reset(1, 0, 1).
#define TL_FAKE_CUDA_MEMBER(name) decltype(&::fake_cuda_##name) name = nullptr
  TL_FAKE_CUDA_CONTROLS(TL_FAKE_CUDA_MEMBER);
#undef TL_FAKE_CUDA_MEMBER

  // The entry points, for a test that plays the part of the library. cuInit has been called.
  client::cuda::Driver driver;

  std::vector<std::string> all_violations() const;
  std::vector<FakeCudaCopy> all_copies() const;
  std::vector<FakeCudaStream> all_streams() const;
  // The names of all entry points.
  std::vector<std::string> all_calls() const;
  // What the library has left behind: "2 events, 1 host_allocations", or "" when it is nothing. To be compared after
  // the library has been closed. Memory and streams of the test do not count.
  std::string leaks() const;

 private:
  FakeCuda();
};

// Device memory that is freed with the object.
class DeviceMemory {
 public:
  // Ends the process when there is no such device. With `zeroed` it is not left with the pattern of new memory.
  explicit DeviceMemory(std::size_t bytes, int device = 0, bool zeroed = false);
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();

  void* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  client::cuda::DevicePointer address() const { return reinterpret_cast<std::uintptr_t>(data_); }
  // A test may look at the memory while no operation that writes it is queued.
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), bytes_}; }
  // The elements that fit wholly.
  std::span<float> floats() const { return {static_cast<float*>(data_), bytes_ / sizeof(float)}; }
  // Frees it now, which is a violation while operations that use it are queued.
  void free();

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// A device's context, retained and current to the thread that constructs and destroys the object.
class CurrentContext {
 public:
  explicit CurrentContext(int device = 0);
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  ~CurrentContext();

 private:
  int device_;
};

}  // namespace tensorlane::fake_cuda
