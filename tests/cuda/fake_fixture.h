// What the tests of the fake driver have in common.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client-lib/src/cuda/kernels/sources.h"
#include "fake_cuda.h"

namespace tensorlane::fake_cuda {
using client::cuda::DevicePointer;
using client::cuda::Event_;
using client::cuda::Function_;
using client::cuda::IpcHandle;
using client::cuda::KernelSources;
using client::cuda::Module_;
using client::cuda::Stream_;

inline constexpr int kInvalidValue = 1, kOutOfMemory = 2, kInvalidContext = 201, kInvalidHandle = 400, kNotReady = 600,
                     kIllegalAddress = 700, kLaunchFailed = 719;

inline std::uint64_t address_of(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

// Plays the part of a library that has one context current.
class FakeDriver : public testing::Test {
 protected:
  FakeDriver() { start(1, 20'000); }
  ~FakeDriver() override { fake_.reset(1, 0, 1); }

  void SetUp() override { host_.assign(1 << 16, std::byte{0}); }

  void start(std::uint64_t seed, std::uint64_t delay_ns, int devices = 2) {
    context_.reset();
    fake_.reset(seed, delay_ns, devices);
    context_.emplace();
  }

  Stream_ new_stream(int priority = 0) {
    Stream_ stream = nullptr;
    EXPECT_EQ(driver_.stream_create(&stream, 1, priority), 0);
    return stream;
  }

  Event_ new_event() {
    Event_ event = nullptr;
    EXPECT_EQ(driver_.event_create(&event, 2), 0);
    return event;
  }

  void* pin() {
    EXPECT_EQ(driver_.host_register(host_.data(), host_.size(), 3), 0);
    return host_.data();
  }

  DevicePointer allocate(std::size_t bytes) {
    DevicePointer pointer = 0;
    EXPECT_EQ(driver_.memory_allocate(&pointer, bytes), 0);
    return pointer;
  }

  Module_ load() {
    Module_ module = nullptr;
    EXPECT_EQ(driver_.module_load(&module, "an image"), 0);
    return module;
  }

  Function_ function_of(Module_ module, const char* name) {
    Function_ function = nullptr;
    EXPECT_EQ(driver_.module_function(&function, module, name), 0);
    return function;
  }

  // One that combines.
  int launch(Function_ function, Stream_ stream, DevicePointer out, const std::vector<DevicePointer>& from,
             std::uint64_t elements) {
    KernelSources sources{};
    std::copy(from.begin(), from.end(), sources.at);
    auto count = static_cast<std::uint32_t>(from.size());
    void* parameters[] = {&out, &sources, &count, &elements};
    return driver_.launch(function, 3, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr);
  }

  int finish(Function_ function, Stream_ stream, DevicePointer out, DevicePointer in, std::uint64_t elements,
             double divisor) {
    void* parameters[] = {&out, &in, &elements, &divisor};
    return driver_.launch(function, 3, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr);
  }

  int wait(Event_ event) {
    for (;;) {
      const int error = driver_.event_query(event);
      if (error != kNotReady) return error;
      std::this_thread::yield();
    }
  }

  // There is one violation, with this in its text.
  void expect_violation(const std::string& part) {
    ASSERT_EQ(fake_.violations(), 1u) << testing::PrintToString(fake_.all_violations());
    EXPECT_NE(std::string(fake_.violation(0)).find(part), std::string::npos) << fake_.violation(0);
  }

  void expect_clean() {
    EXPECT_EQ(fake_.violations(), 0u) << testing::PrintToString(fake_.all_violations());
    context_.reset();
    EXPECT_EQ(fake_.leaks(), "");
  }

  const FakeCuda& fake_ = FakeCuda::get();
  const client::cuda::Driver& driver_ = fake_.driver;
  std::optional<CurrentContext> context_;
  std::vector<std::byte> host_;
};

}  // namespace tensorlane::fake_cuda
