// Kernels of the fake driver, and copies within its memory.
#include <cstring>
#include <numeric>
#include <utility>

#include "fake_fixture.h"

namespace tensorlane::fake_cuda {
namespace {

constexpr int kMisalignedAddress = 716, kNotFound = 500, kElements = 100;

class FakeKernels : public FakeDriver {
 protected:
  static float* floats(DevicePointer memory) { return reinterpret_cast<float*>(memory); }

  // Filled with this value.
  DevicePointer floats_of(float value) {
    const DevicePointer memory = allocate(kElements * sizeof(float));
    std::fill_n(floats(memory), kElements, value);
    return memory;
  }
};

TEST_F(FakeKernels, RunInTheOrderOfTheStream) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    start(seed, 50'000);
    constexpr std::size_t kSize = kElements * sizeof(float);
    const DevicePointer memory[] = {allocate(kSize), allocate(kSize), allocate(kSize)};
    const DeviceMemory of_control(kSize, 1, true);
    auto* host = static_cast<float*>(pin());
    const Stream_ stream = new_stream();
    const Event_ event = new_event();
    const Module_ module = load();
    const Function_ sum = function_of(module, "tl_sum_float32"), finishing = function_of(module, "tl_finish_float32");
    std::iota(host, host + kElements, 1.f);
    for (const DevicePointer each : memory) EXPECT_EQ(driver_.copy_in(each, host, kSize, stream), 0);
    EXPECT_EQ(launch(sum, stream, memory[0], {memory[0], memory[1], memory[2], of_control.address()}, kElements), 0);
    EXPECT_EQ(finish(finishing, stream, memory[0], memory[0], kElements, 2), 0);
    EXPECT_EQ(driver_.copy_within(memory[1] + 16, memory[0] + 16, 64, stream), 0);
    EXPECT_EQ(driver_.copy_out(host + kElements, memory[1], kSize, stream), 0);
    EXPECT_EQ(driver_.event_record(event, stream), 0);
    EXPECT_EQ(wait(event), 0);
    for (int place = 0; place < kElements; ++place) {
      const float given = static_cast<float>(place + 1);
      EXPECT_EQ(host[kElements + place], place >= 4 && place < 20 ? given * 3 / 2 : given) << place;
    }
    const auto log = fake_.all_copies();
    ASSERT_EQ(log.size(), 7u);
    for (const std::size_t kernel : {3, 4}) {
      EXPECT_EQ(log[kernel].direction, kFakeCudaKernel);
      EXPECT_EQ(log[kernel].device_address, memory[0]);
      EXPECT_EQ(log[kernel].bytes, kSize);
    }
    EXPECT_EQ(log[5].direction, kFakeCudaWithin);
    EXPECT_EQ(log[5].device_address, memory[1] + 16);
    EXPECT_EQ(log[5].source_address, memory[0] + 16);
    EXPECT_EQ(log[5].host_address, 0u);
    for (std::size_t place = 1; place < log.size(); ++place) EXPECT_LT(log[place - 1].ended, log[place].began);
    EXPECT_GE(fake_.most_in_flight(kFakeCudaKernel), 1u);
    EXPECT_EQ(fake_.most_in_flight(kFakeCudaWithin), 1u);
    EXPECT_EQ(driver_.module_unload(module), 0);
    EXPECT_EQ(driver_.event_destroy(event), 0);
    EXPECT_EQ(driver_.stream_destroy(stream), 0);
    EXPECT_EQ(driver_.host_unregister(host), 0);
    for (const DevicePointer each : memory) EXPECT_EQ(driver_.memory_free(each), 0);
    expect_clean();
  }
}

TEST_F(FakeKernels, HaveTheParametersOfTheCall) {
  DevicePointer out = floats_of(0);
  KernelSources sources{{floats_of(3)}};
  std::uint32_t count = 1;
  std::uint64_t elements = 2;
  void* parameters[] = {&out, &sources, &count, &elements};
  const DevicePointer result = out;
  const Stream_ stream = new_stream();
  const Function_ function = function_of(load(), "tl_sum_float32");
  fake_.hold_stream(stream);
  ASSERT_EQ(driver_.launch(function, 1, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr), 0);
  out = 0;
  sources = {};
  count = 17;
  elements = 1'000'000;
  std::fill_n(parameters, 4, nullptr);
  fake_.resume_stream(stream);
  EXPECT_EQ(fake_.stream_synchronize(stream), 0);
  EXPECT_EQ(floats(result)[1], 3);
  EXPECT_EQ(floats(result)[2], 0);
  EXPECT_EQ(launch(function, stream, result, {result}, 0), 0);
  EXPECT_EQ(fake_.all_copies().size(), 1u) << "a kernel of no elements is nothing";
  EXPECT_EQ(fake_.violations(), 0u);
}

TEST_F(FakeKernels, LaunchesAreChecked) {
  DevicePointer out = floats_of(0);
  KernelSources sources{{out}};
  std::uint32_t count = 1;
  std::uint64_t elements = 2;
  void* parameters[] = {&out, &sources, &count, &elements};
  void* incomplete[] = {&out, &sources, nullptr, &elements};
  void* extra[] = {nullptr};
  const Stream_ stream = new_stream();
  const Function_ function = function_of(load(), "tl_sum_float32");
  const auto try_it = [&](unsigned grid, unsigned block, void** given, void** more) {
    return driver_.launch(function, grid, 1, 1, block, 1, 1, 0, stream, given, more);
  };
  EXPECT_EQ(try_it(0, 256, parameters, nullptr), kInvalidValue);
  EXPECT_EQ(try_it(1, 0, parameters, nullptr), kInvalidValue);
  EXPECT_EQ(try_it(1, 1025, parameters, nullptr), kInvalidValue);
  EXPECT_EQ(try_it(1, 256, nullptr, nullptr), kInvalidValue);
  EXPECT_EQ(try_it(1, 256, incomplete, nullptr), kInvalidValue);
  EXPECT_EQ(try_it(1, 256, parameters, extra), kInvalidValue);
  EXPECT_EQ(fake_.violations(), 6u);
  EXPECT_EQ(driver_.launch(function, 1, 0, 1, 256, 1, 1, 0, stream, parameters, nullptr), kInvalidValue);
  EXPECT_EQ(driver_.launch(function, 1, 1, 1, 256, 8, 1, 0, stream, parameters, nullptr), kInvalidValue);
  EXPECT_EQ(launch(nullptr, stream, out, {out}, 1), kInvalidHandle);
  EXPECT_EQ(launch(function, reinterpret_cast<Stream_>(out), out, {out}, 1), kInvalidHandle);
  EXPECT_EQ(fake_.violations(), 10u);
  {
    const CurrentContext other(1);
    EXPECT_EQ(launch(function, new_stream(), out, {out}, 1), kInvalidHandle);
    EXPECT_EQ(launch(function_of(load(), "tl_sum_float32"), stream, out, {out}, 1), kInvalidHandle);
  }
  std::thread([&] { EXPECT_EQ(launch(function, stream, out, {out}, 1), kInvalidContext); }).join();
  EXPECT_EQ(fake_.violations(), 13u);
  EXPECT_EQ(try_it(65536, 1024, parameters, nullptr), 0);
  EXPECT_EQ(fake_.stream_synchronize(stream), 0);
  EXPECT_EQ(fake_.all_copies().size(), 1u);
}

TEST_F(FakeKernels, WrongAddressesAreViolationsAndBreakTheDevice) {
  struct Case {
    std::uint64_t out, source;  // after the beginnings of two allocations
    std::uint64_t elements;
    std::size_t count;
    int error;
    const char* violation;
  };
  constexpr Case kCases[] = {
      {0, 0, kElements + 1, 1, kIllegalAddress, "404 bytes at"},
      {16, 0, kElements, 1, kIllegalAddress, "400 bytes at"},
      {0, 16, kElements, 1, kIllegalAddress, "400 bytes at"},
      {0, 0, std::uint64_t{1} << 62, 1, kIllegalAddress, "not wholly in an allocation"},
      {4, 0, 1, 1, kMisalignedAddress, "is not a multiple of 16"},
      {0, 8, 1, 1, kMisalignedAddress, "is not a multiple of 16"},
      {0, 0, 1, 0, kIllegalAddress, "a kernel with 0 sources"},
  };
  for (const Case& each : kCases) {
    SCOPED_TRACE(each.violation);
    start(1, 0);
    const DevicePointer out = floats_of(1), source = floats_of(2);
    const Stream_ stream = new_stream();
    const Function_ function = function_of(load(), "tl_sum_float32");
    const std::vector<DevicePointer> sources(each.count, source + each.source);
    EXPECT_EQ(launch(function, stream, out + each.out, sources, each.elements), 0);
    EXPECT_NE(std::string(fake_.violation(0)).find(each.violation), std::string::npos) << fake_.violation(0);
    EXPECT_EQ(fake_.stream_synchronize(stream), each.error);
    EXPECT_EQ(fake_.all_copies().at(0).failed, 1);
    EXPECT_EQ(floats(out)[0], 1);
    EXPECT_EQ(launch(function, stream, out, {source}, 1), each.error) << "it stays";
  }
}

TEST_F(FakeKernels, OperandsAreMemoryOfDevicesAndDoNotOverlap) {
  const Function_ function = function_of(load(), "tl_sum_float32");
  const Stream_ stream = new_stream();
  const DevicePointer out = floats_of(1);
  EXPECT_EQ(launch(function, stream, out, {out + 16}, 8), 0);
  expect_violation("overlaps the result");
  EXPECT_EQ(fake_.stream_synchronize(stream), kIllegalAddress);
  start(1, 0);
  const Stream_ other = new_stream();
  EXPECT_EQ(launch(function_of(load(), "tl_sum_float32"), other, floats_of(1), {address_of(pin())}, 8), 0);
  expect_violation("are not wholly in an allocation of device memory");
  EXPECT_EQ(fake_.stream_synchronize(other), kIllegalAddress);
}

// 16-bit numbers become float32 when they are combined, and 16-bit ones again when they are finished.
TEST_F(FakeKernels, HaveResultsOfAnotherSizeThanTheSources) {
  constexpr std::uint16_t kThree = 0x4200, kHalf = 0x3800;  // as float16
  const DevicePointer wide = allocate(kElements * sizeof(float)), narrow = allocate(kElements * sizeof kThree);
  auto* halves = reinterpret_cast<std::uint16_t*>(narrow);
  std::fill_n(halves, kElements, kThree);
  const Stream_ stream = new_stream();
  const Module_ module = load();
  EXPECT_EQ(launch(function_of(module, "tl_sum_float16"), stream, wide, {narrow, narrow}, kElements), 0);
  EXPECT_EQ(finish(function_of(module, "tl_finish_float16"), stream, narrow, wide, kElements - 1, 12), 0);
  EXPECT_EQ(fake_.stream_synchronize(stream), 0);
  for (int place = 0; place < kElements; ++place) {
    EXPECT_EQ(floats(wide)[place], 6) << place;
    EXPECT_EQ(halves[place], place < kElements - 1 ? kHalf : kThree) << place;
  }
  const auto log = fake_.all_copies();
  ASSERT_EQ(log.size(), 2u);
  EXPECT_EQ(log[0].device_address, wide);
  EXPECT_EQ(log[0].bytes, kElements * sizeof(float));
  EXPECT_EQ(log[1].direction, kFakeCudaKernel);
  EXPECT_EQ(log[1].device_address, narrow);
  EXPECT_EQ(log[1].bytes, (kElements - 1) * sizeof kThree);
  EXPECT_EQ(fake_.violations(), 0u);
}

TEST_F(FakeKernels, OperandsHaveTheSizesOfTheirTypes) {
  constexpr std::uint64_t kBytes = 256;
  struct Case {
    const char* kernel;
    std::uint64_t out, in;  // after the beginning of one allocation, or of another one from kBytes on
    std::uint64_t elements;
    const char* violation;  // null: none
  };
  constexpr Case kCases[] = {
      {"tl_sum_float16", 0, kBytes, 64, nullptr},
      {"tl_sum_float16", 0, kBytes, 65, "260 bytes at"},
      {"tl_sum_float16", 0, kBytes + 128, 64, nullptr},
      {"tl_sum_bfloat16", 0, kBytes + 144, 64, "128 bytes at"},
      {"tl_sum_float16", 0, 0, 8, "overlaps the result"},
      {"tl_sum_float16", 0, 16, 8, "overlaps the result"},
      {"tl_sum_float16", 0, 32, 8, nullptr},
      {"tl_sum_float16", 16, 0, 8, nullptr},
      {"tl_sum_float16", 16, 0, 9, "overlaps the result"},
      {"tl_finish_float16", 0, kBytes, 64, nullptr},
      {"tl_finish_float16", kBytes, 0, 65, "260 bytes at"},
      {"tl_finish_float16", 144, kBytes, 64, "128 bytes at"},
      {"tl_finish_float16", 0, 0, 8, "overlaps the result"},
      {"tl_finish_bfloat16", 16, 0, 8, "overlaps the result"},
      {"tl_finish_float16", 32, 0, 8, nullptr},
      {"tl_finish_float16", 0, 16, 8, nullptr},
      {"tl_finish_float16", 0, 8, 1, "is not a multiple of 16"},
      {"tl_finish_float16", 0, kBytes, std::uint64_t{1} << 62, "are not wholly in an allocation"},
      {"tl_finish_float32", 16, 16, 60, nullptr},
      {"tl_finish_float32", 0, 16, 8, "overlaps the result"},
      {"tl_finish_float64", 128, 128, 16, nullptr},
      {"tl_finish_float64", 128, 128, 17, "136 bytes at"},
  };
  for (const Case& each : kCases) {
    SCOPED_TRACE(std::string(each.kernel) + (each.violation == nullptr ? "" : each.violation));
    start(1, 0);
    const DevicePointer memory[] = {allocate(kBytes), allocate(kBytes)};
    const auto at = [&](std::uint64_t place) { return memory[place / kBytes] + place % kBytes; };
    std::memset(reinterpret_cast<void*>(memory[0]), 0, kBytes);
    std::memset(reinterpret_cast<void*>(memory[1]), 0, kBytes);
    const Stream_ stream = new_stream();
    const Function_ function = function_of(load(), each.kernel);
    const bool finishes = std::strstr(each.kernel, "finish") != nullptr;
    EXPECT_EQ(finishes ? finish(function, stream, at(each.out), at(each.in), each.elements, 3)
                       : launch(function, stream, at(each.out), {at(each.in)}, each.elements),
              0);
    if (each.violation == nullptr) {
      EXPECT_EQ(fake_.violations(), 0u) << testing::PrintToString(fake_.all_violations());
      EXPECT_EQ(fake_.stream_synchronize(stream), 0);
    } else {
      ASSERT_GE(fake_.violations(), 1u);
      EXPECT_NE(std::string(fake_.violation(0)).find(each.violation), std::string::npos) << fake_.violation(0);
      EXPECT_NE(fake_.stream_synchronize(stream), 0);
    }
  }
}

TEST_F(FakeKernels, MemoryFreedUnderAQueuedKernelIsAViolation) {
  const DevicePointer out = floats_of(0), source = floats_of(1);
  const Stream_ stream = new_stream();
  fake_.hold_stream(stream);
  ASSERT_EQ(launch(function_of(load(), "tl_sum_float32"), stream, out, {out, source, source}, kElements), 0);
  EXPECT_EQ(driver_.memory_free(source), 0);
  expect_violation("cuMemFree: 1 operations");
  fake_.resume_stream(stream);
  EXPECT_EQ(fake_.stream_synchronize(stream), kIllegalAddress);
  EXPECT_EQ(fake_.violations(), 2u);
}

TEST_F(FakeKernels, ModulesAreChecked) {
  Module_ module = nullptr;
  Function_ function = nullptr;
  EXPECT_EQ(driver_.module_load(&module, nullptr), kInvalidValue);
  expect_violation("no image");
  module = load();
  EXPECT_EQ(fake_.alive("modules"), 1);
  for (const char* name : {"tl_sum_float31", "tl_finish_int32", "tl_average_float32"})
    EXPECT_EQ(driver_.module_function(&function, module, name), kNotFound) << name;
  EXPECT_EQ(fake_.violations(), 1u);
  function = function_of(module, "tl_sum_float32");
  EXPECT_EQ(function_of(module, "tl_sum_float32"), function);
  EXPECT_NE(function_of(module, "tl_sum_int8"), function);
  EXPECT_NE(function_of(load(), "tl_sum_float32"), function);
  EXPECT_EQ(driver_.module_unload(module), 0);
  EXPECT_EQ(fake_.leaks(), "1 modules, 1 retained_contexts, 1 pushed_contexts");
  EXPECT_EQ(driver_.module_unload(module), kInvalidHandle);
  EXPECT_EQ(driver_.module_function(&function, module, "tl_sum_float32"), kInvalidHandle);
  const DevicePointer memory = floats_of(1);
  EXPECT_EQ(launch(function, new_stream(), memory, {memory}, 1), kInvalidHandle);
  EXPECT_EQ(fake_.violations(), 4u);
}

TEST_F(FakeKernels, AModuleUnloadedUnderAQueuedKernelIsAViolation) {
  const DevicePointer memory = floats_of(1);
  const Stream_ stream = new_stream();
  const Module_ module = load();
  fake_.hold_stream(stream);
  ASSERT_EQ(launch(function_of(module, "tl_sum_float32"), stream, memory, {memory}, 1), 0);
  EXPECT_EQ(driver_.module_unload(module), 0);
  expect_violation("1 launches of the module's functions have not ended");
  fake_.resume_stream(stream);
  EXPECT_EQ(fake_.stream_synchronize(stream), kIllegalAddress);
  EXPECT_EQ(fake_.violations(), 2u);
  EXPECT_NE(std::string(fake_.violation(1)).find("tl_sum_float32 was unloaded"), std::string::npos);
}

TEST_F(FakeKernels, WhatACaptureForbids) {
  const DevicePointer memory = floats_of(1);
  void* stream = fake_.stream_create(0);
  Module_ module = load();
  const Function_ function = function_of(module, "tl_sum_float32");
  ASSERT_EQ(fake_.begin_capture(stream, 1), 0);
  EXPECT_EQ(launch(function, static_cast<Stream_>(stream), memory, {memory}, 1), 900);
  EXPECT_EQ(driver_.module_unload(module), 900);
  EXPECT_EQ(driver_.module_load(&module, "an image"), 900);
  EXPECT_EQ(fake_.violations(), 3u);
}

TEST_F(FakeKernels, CopiesWithinDeviceMemoryAreChecked) {
  const DevicePointer memory = allocate(100);
  const DeviceMemory other(100, 1);
  const Stream_ stream = new_stream();
  EXPECT_EQ(driver_.copy_within(other.address(), memory + 1, 100, stream), kInvalidValue);
  EXPECT_EQ(driver_.copy_within(other.address() + 1, memory, 100, stream), kInvalidValue);
  EXPECT_EQ(driver_.copy_within(memory, address_of(pin()), 100, stream), kInvalidValue);
  EXPECT_EQ(fake_.violations(), 3u);
  EXPECT_EQ(driver_.copy_within(memory, memory + 50, 50, stream), 0);
  EXPECT_EQ(driver_.copy_within(other.address(), memory, 100, stream), 0);
  EXPECT_EQ(fake_.violations(), 3u);
  EXPECT_EQ(driver_.copy_within(memory, memory + 49, 50, stream), 0);
  EXPECT_EQ(fake_.violations(), 4u);
  EXPECT_EQ(fake_.stream_synchronize(stream), 0);
}

TEST_F(FakeKernels, EachCallFailsAsPlanned) {
  const DevicePointer memory = floats_of(1), other = floats_of(2);
  const Stream_ stream = new_stream();
  Module_ module = nullptr;
  Function_ function = nullptr;
  const auto fails = [&](const char* symbol, const auto& call) {
    ASSERT_EQ(fake_.fail(symbol, 1, 999), 0);
    EXPECT_EQ(call(), 999) << symbol;
    EXPECT_EQ(call(), 0) << symbol;
  };
  fails("cuModuleLoadData", [&] { return driver_.module_load(&module, "an image"); });
  fails("cuModuleGetFunction", [&] { return driver_.module_function(&function, module, "tl_sum_float32"); });
  fails("cuLaunchKernel", [&] { return launch(function, stream, memory, {memory, other}, kElements); });
  fails("cuMemcpyDtoDAsync_v2", [&] { return driver_.copy_within(other, memory, 16, stream); });
  EXPECT_EQ(fake_.stream_synchronize(stream), 0);
  fails("cuModuleUnload", [&] { return driver_.module_unload(module); });
  EXPECT_EQ(fake_.all_copies().size(), 2u);
  EXPECT_EQ(floats(other)[0], 3);
  EXPECT_EQ(fake_.violations(), 0u);
}

TEST_F(FakeKernels, FailWhenTheyRun) {
  for (const char* symbol : {"cuLaunchKernel", "cuMemcpyDtoDAsync_v2"}) {
    start(1, 0);
    const DevicePointer memory = floats_of(1), other = floats_of(2);
    const Stream_ stream = new_stream();
    const Module_ module = load();
    const Function_ function = function_of(module, "tl_sum_float32");
    ASSERT_EQ(fake_.fail_async(symbol, 1, kLaunchFailed), 0);
    fake_.hold_stream(stream);
    EXPECT_EQ(launch(function, stream, memory, {memory, other}, kElements), 0);
    EXPECT_EQ(driver_.copy_within(other, memory, 16, stream), 0);
    fake_.resume_stream(stream);
    EXPECT_EQ(fake_.stream_synchronize(stream), kLaunchFailed);
    EXPECT_EQ(floats(other)[0], 2);
    EXPECT_EQ(driver_.copy_within(other, memory, 16, stream), kLaunchFailed);
    EXPECT_EQ(launch(function, stream, memory, {memory}, 1), kLaunchFailed);
    EXPECT_EQ(driver_.module_unload(module), kLaunchFailed) << "and yet it is unloaded";
    EXPECT_EQ(fake_.alive("modules"), 0);
    EXPECT_EQ(fake_.violations(), 0u);
  }
}

TEST_F(FakeKernels, AResetLeavesNothing) {
  const DevicePointer memory = floats_of(1);
  const Stream_ stream = new_stream();
  const Function_ function = function_of(load(), "tl_sum_float32");
  fake_.hold_stream(stream);
  ASSERT_EQ(launch(function, stream, memory, {memory}, 1), 0);
  start(1, 0);
  EXPECT_EQ(fake_.alive("modules"), 0);
  EXPECT_EQ(fake_.alive("driver_allocations"), 0);
  EXPECT_EQ(launch(function, nullptr, memory, {memory}, 1), kInvalidHandle);
  expect_violation("destroyed");
}

}  // namespace
}  // namespace tensorlane::fake_cuda
