// The promises of the fake driver (fake_driver.h), on which tests of the library build.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "fake_fixture.h"

namespace tensorlane::fake_cuda {
namespace {

TEST_F(FakeDriver, IsWhatTheLibraryLoads) {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
  ASSERT_NE(library, nullptr);
  EXPECT_NE(::dlsym(library, "fake_cuda_reset"), nullptr);
  for (const auto& name : fake_.all_calls()) EXPECT_NE(::dlsym(library, name.c_str()), nullptr) << name;
#define TL_EXPECT_NAMED(member, symbol, parameters) EXPECT_GE(fake_.calls(#symbol), 0) << #symbol;
  TL_CUDA_ENTRY_POINTS(TL_EXPECT_NAMED)
  TL_CUDA_OPTIONAL_ENTRY_POINTS(TL_EXPECT_NAMED)
#undef TL_EXPECT_NAMED
  ::dlclose(library);
}

TEST_F(FakeDriver, CopiesThereAndBackInTheOrderOfTheStream) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    start(seed, 50'000);
    const DeviceMemory memory(4096);
    auto* words = static_cast<std::uint32_t*>(pin());
    std::iota(words, words + 1024, 7u);
    const Stream_ stream = new_stream();
    const Event_ event = new_event();
    EXPECT_EQ(driver_.event_query(event), 0);
    EXPECT_EQ(driver_.copy_in(memory.address(), words, 4096, stream), 0);
    EXPECT_EQ(driver_.fill_bytes(memory.address() + 4000, 0, 96, stream), 0);
    EXPECT_EQ(driver_.copy_out(words + 1024, memory.address(), 4096, stream), 0);
    EXPECT_EQ(driver_.event_record(event, stream), 0);
    EXPECT_EQ(wait(event), 0);
    EXPECT_EQ(std::memcmp(words, words + 1024, 4000), 0);
    for (std::size_t place = 1000; place < 1024; ++place) EXPECT_EQ(words[1024 + place], 0u);
    const auto copies = fake_.all_copies();
    ASSERT_EQ(copies.size(), 3u);
    EXPECT_EQ(copies[0].direction, kFakeCudaIn);
    EXPECT_EQ(copies[1].direction, kFakeCudaFill);
    EXPECT_EQ(copies[2].direction, kFakeCudaOut);
    EXPECT_EQ(copies[2].host_address, address_of(words + 1024));
    for (std::size_t place = 1; place < 3; ++place) EXPECT_LT(copies[place - 1].ended, copies[place].began);
    EXPECT_EQ(driver_.event_destroy(event), 0);
    EXPECT_EQ(driver_.stream_destroy(stream), 0);
    EXPECT_EQ(driver_.host_unregister(words), 0);
    expect_clean();
  }
}

TEST_F(FakeDriver, SchedulesDifferBySeed) {
  std::vector<std::vector<void*>> orders;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    start(seed, 3'000'000);
    const DeviceMemory memory(64);
    const Stream_ streams[] = {new_stream(), new_stream(), new_stream()};
    for (int place = 0; place < 3; ++place) driver_.fill_bytes(memory.address() + 4 * place, 1, 4, streams[place]);
    for (const Stream_ stream : streams) fake_.stream_synchronize(stream);
    auto copies = fake_.all_copies();
    std::sort(copies.begin(), copies.end(), [](const auto& a, const auto& b) { return a.began < b.began; });
    orders.emplace_back();
    for (const auto& copy : copies) {
      const auto* found = std::find(std::begin(streams), std::end(streams), copy.stream);
      orders.back().push_back(reinterpret_cast<void*>(found - streams));
    }
  }
  EXPECT_NE(std::count(orders.begin(), orders.end(), orders[0]), 12);
}

TEST_F(FakeDriver, AWaitEndsWhenTheWordIsReached) {
  const DeviceMemory memory(64);
  auto* word = static_cast<std::uint32_t*>(pin());
  client::cuda::DevicePointer address = 0;
  ASSERT_EQ(driver_.host_device_pointer(&address, word, 0), 0);
  std::atomic_ref<std::uint32_t>(*word).store(0xffffffff);
  const Stream_ stream = new_stream();
  const Event_ event = new_event();
  ASSERT_EQ(driver_.stream_wait_value(stream, address, 1, 0), 0);
  ASSERT_EQ(driver_.event_record(event, stream), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(driver_.event_query(event), kNotReady);
  std::atomic_ref<std::uint32_t>(*word).store(2, std::memory_order_release);  // later than 1, around the end
  EXPECT_EQ(wait(event), 0);
  EXPECT_EQ(driver_.event_destroy(event), 0);
  EXPECT_EQ(driver_.stream_destroy(stream), 0);
  EXPECT_EQ(driver_.host_unregister(word), 0);
  expect_clean();
}

TEST_F(FakeDriver, AStreamThatWaitsBlocksThoseOfItsChannel) {
  fake_.share_channels(2);
  const DeviceMemory memory(64);
  auto* word = static_cast<std::uint32_t*>(pin());
  const Stream_ streams[] = {new_stream(), new_stream(), new_stream(), new_stream(-1)};
  Event_ events[4];
  ASSERT_EQ(driver_.stream_wait_value(streams[0], address_of(word), 1, 0), 0);
  for (int place = 0; place < 4; ++place) {
    events[place] = new_event();
    ASSERT_EQ(driver_.event_record(events[place], streams[place]), 0);
  }
  EXPECT_EQ(wait(events[1]), 0);
  EXPECT_EQ(wait(events[3]), 0) << "streams of another priority have other channels";
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(driver_.event_query(events[2]), kNotReady);
  std::atomic_ref<std::uint32_t>(*word).store(1, std::memory_order_release);
  EXPECT_EQ(wait(events[2]), 0);
}

TEST_F(FakeDriver, HeldStreamsGoOnByStepsAndWhenResumed) {
  const DeviceMemory memory(64);
  const Stream_ stream = new_stream();
  fake_.hold_stream(stream);
  for (int count = 0; count < 3; ++count) ASSERT_EQ(driver_.fill_bytes(memory.address(), 1, 4, stream), 0);
  EXPECT_EQ(fake_.alive("queued"), 3);
  EXPECT_EQ(fake_.most_in_flight(kFakeCudaFill), 3u);
  fake_.step_stream(stream, 1);
  while (fake_.alive("queued") == 3) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(fake_.alive("queued"), 2);
  EXPECT_EQ(fake_.all_streams().at(0).queued, 2u);
  fake_.resume_stream(stream);
  EXPECT_EQ(fake_.stream_synchronize(stream), 0);
  fake_.hold_all_streams();
  const Stream_ other = new_stream();
  const Event_ event = new_event();
  ASSERT_EQ(driver_.event_record(event, other), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(driver_.event_query(event), kNotReady);
  EXPECT_EQ(driver_.stream_destroy(other), 0) << "what is queued on it still runs";
  fake_.resume_all_streams();
  EXPECT_EQ(wait(event), 0);
}

TEST_F(FakeDriver, KernelsAndTheStreamsOfAFrameworkRunInOrder) {
  DeviceMemory memory(64, 0, true);
  void* stream = fake_.stream_create(0);
  auto* host = static_cast<float*>(pin());
  host[0] = 3;
  for (void* on : {stream, static_cast<void*>(nullptr), reinterpret_cast<void*>(2)}) {
    ASSERT_EQ(driver_.copy_in(memory.address(), host, 4, static_cast<Stream_>(on)), 0);
    ASSERT_EQ(fake_.launch(
                  on, [](void* value) { *static_cast<float*>(value) *= 2; }, memory.data()),
              0);
    EXPECT_EQ(fake_.stream_synchronize(on), 0);
    EXPECT_EQ(memory.floats()[0], 6);
  }
  EXPECT_EQ(fake_.stream_destroy(stream), 0);
  driver_.host_unregister(host);
  expect_clean();
}

TEST_F(FakeDriver, PointersTellOfTheirAllocation) {
  const DeviceMemory memory(1000, 1);
  unsigned type = 0;
  int device = -1;
  std::uint64_t start = 0, size = 0;
  EXPECT_EQ(driver_.pointer_attribute(&type, 2, memory.address() + 999), 0);
  EXPECT_EQ(driver_.pointer_attribute(&device, 9, memory.address() + 999), 0);
  EXPECT_EQ(driver_.pointer_attribute(&start, 11, memory.address() + 999), 0);
  EXPECT_EQ(driver_.pointer_attribute(&size, 12, memory.address() + 999), 0);
  EXPECT_EQ(type, 2u);
  EXPECT_EQ(device, 1);
  EXPECT_EQ(start, memory.address());
  EXPECT_EQ(size, 1000u);
  EXPECT_EQ(driver_.pointer_attribute(&type, 2, memory.address() + 1000), kInvalidValue);
  EXPECT_EQ(driver_.pointer_attribute(&type, 2, address_of(pin())), 0);
  EXPECT_EQ(type, 1u);
  std::vector<float> tensor(16);
  EXPECT_EQ(driver_.pointer_attribute(&type, 2, address_of(tensor.data())), kInvalidValue);
  EXPECT_EQ(fake_.adopt(tensor.data(), 64, 0), 0);
  EXPECT_EQ(driver_.pointer_attribute(&size, 12, address_of(tensor.data() + 3)), 0);
  EXPECT_EQ(size, 64u);
  EXPECT_EQ(fake_.release(tensor.data()), 0);
  EXPECT_EQ(driver_.pointer_attribute(&type, 2, address_of(tensor.data())), kInvalidValue);
  EXPECT_EQ(fake_.violations(), 0u);
}

TEST_F(FakeDriver, CallsWithoutAContextFail) {
  const Event_ event = new_event();
  client::cuda::Context_ context = nullptr;
  ASSERT_EQ(driver_.context_pop(&context), 0);
  Stream_ stream = nullptr;
  EXPECT_EQ(driver_.stream_create(&stream, 1, 0), kInvalidContext);
  EXPECT_EQ(driver_.event_record(event, nullptr), kInvalidContext);
  EXPECT_EQ(driver_.host_register(host_.data(), 64, 1), kInvalidContext);
  EXPECT_EQ(driver_.fill_bytes(0, 0, 1, nullptr), kInvalidContext);
  EXPECT_EQ(driver_.event_query(event), 0);
  EXPECT_EQ(driver_.context_pop(&context), kInvalidContext);
  EXPECT_EQ(fake_.violations(), 5u);
  std::thread([&] { EXPECT_EQ(driver_.event_destroy(event), kInvalidContext); }).join();
  EXPECT_EQ(fake_.leaks(), "1 events, 1 retained_contexts");
  EXPECT_EQ(driver_.context_release(0), 0);
  EXPECT_EQ(driver_.context_push(context), kInvalidContext);
  EXPECT_EQ(driver_.context_release(0), kInvalidContext);
  EXPECT_EQ(fake_.violations(), 8u);
}

TEST_F(FakeDriver, CopiesOutOfBoundsAreViolations) {
  const DeviceMemory memory(100);
  const Stream_ stream = new_stream();
  auto* host = static_cast<std::byte*>(pin());
  EXPECT_EQ(driver_.copy_in(memory.address() + 40, host, 61, stream), kInvalidValue);
  EXPECT_EQ(driver_.copy_out(host + host_.size() - 10, memory.address(), 11, stream), kInvalidValue);
  EXPECT_EQ(driver_.fill_bytes(address_of(host), 0, 4, stream), kInvalidValue);
  EXPECT_EQ(fake_.violations(), 3u);
  std::vector<std::byte> pageable(100);
  EXPECT_EQ(driver_.copy_out(pageable.data(), memory.address(), 100, stream), 0);
  EXPECT_EQ(fake_.stream_synchronize(stream), 0);
  EXPECT_EQ(std::memcmp(pageable.data(), memory.data(), 100), 0);
  EXPECT_EQ(fake_.violations(), 4u);
  EXPECT_EQ(driver_.stream_wait_value(stream, memory.address(), 1, 0), kInvalidValue);
  EXPECT_EQ(fake_.violations(), 5u);
}

TEST_F(FakeDriver, DestroyedHandlesAreViolations) {
  const Stream_ stream = new_stream();
  const Event_ event = new_event();
  EXPECT_EQ(driver_.stream_destroy(stream), 0);
  EXPECT_EQ(driver_.event_destroy(event), 0);
  EXPECT_EQ(driver_.event_query(event), kInvalidHandle);
  expect_violation("destroyed");
  EXPECT_EQ(driver_.event_destroy(event), kInvalidHandle);
  EXPECT_EQ(driver_.stream_destroy(stream), kInvalidHandle);
  EXPECT_EQ(driver_.stream_destroy(nullptr), kInvalidHandle);
  int capturing = 0;
  EXPECT_EQ(driver_.stream_is_capturing(stream, &capturing), kInvalidHandle);
  EXPECT_EQ(fake_.violations(), 5u);
}

TEST_F(FakeDriver, RegistrationsAreChecked) {
  auto* host = static_cast<std::byte*>(pin());
  EXPECT_EQ(driver_.host_register(host + 100, 10, 1), 712);
  EXPECT_EQ(driver_.host_unregister(host + 100), 713);
  EXPECT_EQ(driver_.host_unregister(host), 0);
  EXPECT_EQ(driver_.host_unregister(host), 713);
  EXPECT_EQ(fake_.violations(), 3u);
}

TEST_F(FakeDriver, MemoryThatIsPinnedForOneDeviceOnlyIsNotForAnother) {
  const DeviceMemory memory(64, 1);
  ASSERT_EQ(driver_.host_register(host_.data(), host_.size(), 0), 0);
  const fake_cuda::CurrentContext other(1);
  const Stream_ stream = new_stream();
  EXPECT_EQ(driver_.copy_out(host_.data(), memory.address(), 64, stream), 0);
  EXPECT_EQ(fake_.stream_synchronize(stream), 0);
  expect_violation("are pinned for another device only");
  EXPECT_EQ(driver_.stream_destroy(stream), 0);
}

TEST_F(FakeDriver, MemoryFreedUnderAQueuedCopyIsAViolation) {
  DeviceMemory memory(64);
  const Stream_ stream = new_stream();
  fake_.hold_stream(stream);
  ASSERT_EQ(driver_.fill_bytes(memory.address(), 1, 64, stream), 0);
  memory.free();
  expect_violation("have not ended");
  fake_.resume_stream(stream);
  EXPECT_EQ(fake_.stream_synchronize(stream), kIllegalAddress);
  EXPECT_EQ(fake_.violations(), 2u);
  EXPECT_EQ(fake_.all_copies().at(0).failed, 1);
}

TEST_F(FakeDriver, UnregisteringAWordThatAStreamWaitsForEndsTheWait) {
  const Stream_ stream = new_stream();
  auto* word = static_cast<std::uint32_t*>(pin());
  ASSERT_EQ(driver_.stream_wait_value(stream, address_of(word), 1, 0), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(driver_.host_unregister(word), 0);
  EXPECT_EQ(fake_.stream_synchronize(stream), kIllegalAddress);
  EXPECT_EQ(fake_.violations(), 2u);
}

TEST_F(FakeDriver, ErrorsOfADeviceStay) {
  const DeviceMemory memory(64);
  const Stream_ stream = new_stream();
  const Event_ event = new_event();
  auto* host = pin();
  ASSERT_EQ(fake_.fail_async("cuMemcpyHtoDAsync_v2", 2, kLaunchFailed), 0);
  ASSERT_EQ(driver_.copy_in(memory.address(), host, 64, stream), 0);
  ASSERT_EQ(driver_.copy_in(memory.address(), host, 64, stream), 0);
  ASSERT_EQ(driver_.event_record(event, stream), 0);
  EXPECT_EQ(wait(event), kLaunchFailed);
  EXPECT_EQ(driver_.event_query(event), kLaunchFailed);
  EXPECT_EQ(driver_.copy_in(memory.address(), host, 64, stream), kLaunchFailed);
  EXPECT_EQ(driver_.host_unregister(host), kLaunchFailed);
  EXPECT_EQ(driver_.event_destroy(event), kLaunchFailed);
  EXPECT_EQ(driver_.stream_destroy(stream), kLaunchFailed);
  const auto copies = fake_.all_copies();
  EXPECT_EQ(copies.at(0).failed, 0);
  EXPECT_EQ(copies.at(1).failed, 1);
  client::cuda::Context_ other = nullptr;
  EXPECT_EQ(driver_.context_retain(&other, 1), 0) << "the other device is well";
  while (fake_.alive("queued") > 0) std::this_thread::yield();
  EXPECT_GT(fake_.all_copies().at(1).ended, copies.at(1).began);
  fake_.break_device(1, kLaunchFailed);
  EXPECT_EQ(driver_.context_release(1), kLaunchFailed);
  expect_clean();
}

TEST_F(FakeDriver, CallsFailAsPlanned) {
  Event_ events[3] = {};
  ASSERT_EQ(fake_.fail("cuEventCreate", 2, 2), 0);
  EXPECT_EQ(driver_.event_create(&events[0], 2), 0);
  EXPECT_EQ(driver_.event_create(&events[1], 2), 2);
  EXPECT_EQ(driver_.event_create(&events[2], 2), 0);
  EXPECT_EQ(fake_.calls("cuEventCreate"), 3);
  EXPECT_EQ(fake_.alive("events"), 2);
  EXPECT_EQ(fake_.fail("cuNothing", 1, 2), kInvalidValue);
  EXPECT_EQ(fake_.calls("cuNothing"), -1);
  EXPECT_EQ(fake_.violations(), 0u);
}

TEST_F(FakeDriver, CapturesForbidWhatNvidiaForbids) {
  void* stream = fake_.stream_create(0);
  const Event_ event = new_event();
  int capturing = -1;
  ASSERT_EQ(fake_.begin_capture(stream, 0), 0);
  EXPECT_EQ(driver_.stream_is_capturing(static_cast<Stream_>(stream), &capturing), 0);
  EXPECT_EQ(capturing, 1);
  EXPECT_EQ(driver_.event_query(event), 0);
  EXPECT_EQ(driver_.event_record(event, static_cast<Stream_>(stream)), 900);
  EXPECT_EQ(driver_.event_query(event), 907);
  ASSERT_EQ(fake_.end_capture(stream), 0);
  EXPECT_EQ(driver_.stream_is_capturing(static_cast<Stream_>(stream), &capturing), 0);
  EXPECT_EQ(capturing, 0);
  EXPECT_EQ(driver_.event_record(event, static_cast<Stream_>(stream)), 0);
  EXPECT_EQ(wait(event), 0);
  EXPECT_EQ(fake_.violations(), 2u);
  ASSERT_EQ(fake_.begin_capture(stream, 1), 0);
  EXPECT_EQ(driver_.event_query(event), 900);
  int mode = 2;
  EXPECT_EQ(driver_.capture_mode(&mode), 0);
  EXPECT_EQ(mode, 0);
  EXPECT_EQ(driver_.event_query(event), 0);
  EXPECT_EQ(driver_.capture_mode(&mode), 0);
  EXPECT_EQ(fake_.violations(), 3u);
}

TEST_F(FakeDriver, ManyThreadsCopyAtOnce) {
  constexpr int kThreads = 4, kRounds = 50, kBytes = 256;
  auto* host = static_cast<std::byte*>(pin());
  const DeviceMemory memory(kThreads * kBytes, 0, true);
  const auto work = [&](int mine) {
    const CurrentContext context;
    const Stream_ stream = new_stream();
    const Event_ event = new_event();
    std::byte* from = host + mine * kBytes;
    std::byte* to = host + (kThreads + mine) * kBytes;
    for (int round = 0; round < kRounds; ++round) {
      std::memset(from, round, kBytes);
      EXPECT_EQ(driver_.copy_in(memory.address() + mine * kBytes, from, kBytes, stream), 0);
      EXPECT_EQ(driver_.copy_out(to, memory.address() + mine * kBytes, kBytes, stream), 0);
      EXPECT_EQ(driver_.event_record(event, stream), 0);
      EXPECT_EQ(wait(event), 0);
      EXPECT_EQ(std::memcmp(from, to, kBytes), 0);
    }
    EXPECT_EQ(driver_.event_destroy(event), 0);
    EXPECT_EQ(driver_.stream_destroy(stream), 0);
  };
  std::vector<std::thread> threads;
  for (int mine = 0; mine < kThreads; ++mine) threads.emplace_back(work, mine);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(driver_.host_unregister(host), 0);
  EXPECT_GE(fake_.most_in_flight(kFakeCudaOut), 1u);
  expect_clean();
}

TEST_F(FakeDriver, AResetLeavesNothing) {
  const DeviceMemory memory(64);
  const Stream_ stream = new_stream();
  const Event_ event = new_event();
  auto* word = static_cast<std::uint32_t*>(pin());
  ASSERT_EQ(driver_.stream_wait_value(stream, address_of(word), 1, 0), 0);
  ASSERT_EQ(driver_.event_record(event, stream), 0);
  fake_.stream_create(0);
  EXPECT_EQ(fake_.alive("threads"), 2);
  context_.reset();
  fake_.reset(1, 0, 1);
  EXPECT_EQ(fake_.alive("threads"), 0);
  EXPECT_EQ(fake_.leaks(), "");
  EXPECT_EQ(fake_.violations(), 0u);
  EXPECT_EQ(driver_.event_query(event), kInvalidHandle);
}

}  // namespace
}  // namespace tensorlane::fake_cuda
