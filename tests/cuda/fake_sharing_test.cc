// Memory that the fake driver allocates, and shares with other processes.
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "fake_fixture.h"

extern char** environ;

namespace tensorlane::fake_cuda {
namespace {

constexpr unsigned kPeerAccess = client::cuda::kIpcLazyPeerAccess;
constexpr const char* kHandleVariable = "FAKE_DRIVER_TEST_HANDLE";
constexpr std::size_t kBytes = 5000;

// Runs the test that calls it in another process, which finds the handle in given_handle(). Returns its exit status.
int run_in_another_process(const IpcHandle& handle) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  std::string program = "/proc/self/exe";
  std::string filter = std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name();
  std::string variable = std::string(kHandleVariable) + "=";
  for (const char byte : handle.bytes)
    variable += {static_cast<char>('a' + (byte >> 4 & 15)), static_cast<char>('a' + (byte & 15))};
  std::vector<char*> environment{variable.data()};
  for (char** each = environ; *each != nullptr; ++each) {
    if (std::strncmp(*each, "GTEST_", 6) != 0) environment.push_back(*each);
  }
  environment.push_back(nullptr);
  std::string quiet = "--gtest_brief=1";
  char* const arguments[] = {program.data(), filter.data(), quiet.data(), nullptr};
  pid_t child = 0;
  EXPECT_EQ(::posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environment.data()), 0);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Nothing: this is the process that runs all tests.
std::optional<IpcHandle> given_handle() {
  const char* text = std::getenv(kHandleVariable);
  if (text == nullptr) return std::nullopt;
  IpcHandle handle{};
  for (char& byte : handle.bytes) {
    byte = static_cast<char>((text[0] - 'a') << 4 | (text[1] - 'a'));
    text += 2;
  }
  return handle;
}

std::ptrdiff_t open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

class FakeSharing : public FakeDriver {
 protected:
  IpcHandle handle_of(DevicePointer memory) {
    IpcHandle handle{};
    EXPECT_EQ(driver_.ipc_export(&handle, memory), 0);
    return handle;
  }

  DevicePointer import(const IpcHandle& handle) {
    DevicePointer memory = 0;
    EXPECT_EQ(driver_.ipc_open(&memory, handle, kPeerAccess), 0);
    return memory;
  }

  void import_twice(const IpcHandle& handle);
  void close_under_a_fill(const IpcHandle& handle);
  void add(const IpcHandle& handle);
};

TEST_F(FakeSharing, MemoryIsOnTheDeviceThatIsCurrent) {
  const CurrentContext other(1);
  const DevicePointer memory = allocate(kBytes);
  unsigned type = 0;
  int device = -1;
  std::uint64_t start = 0, size = 0;
  EXPECT_EQ(driver_.pointer_attribute(&type, 2, memory + kBytes - 1), 0);
  EXPECT_EQ(driver_.pointer_attribute(&device, 9, memory), 0);
  EXPECT_EQ(driver_.pointer_attribute(&start, 11, memory + 7), 0);
  EXPECT_EQ(driver_.pointer_attribute(&size, 12, memory), 0);
  EXPECT_EQ(type, 2u);
  EXPECT_EQ(device, 1);
  EXPECT_EQ(start, memory);
  EXPECT_EQ(size, kBytes);
  EXPECT_EQ(memory % 256, 0u);
  EXPECT_EQ(fake_.alive("driver_allocations"), 1);
  EXPECT_EQ(fake_.alive("device_allocations"), 0);
  EXPECT_EQ(fake_.leaks(), "1 driver_allocations, 2 retained_contexts, 2 pushed_contexts");
  EXPECT_EQ(driver_.memory_free(memory), 0);
  EXPECT_EQ(driver_.pointer_attribute(&type, 2, memory), kInvalidValue);
  DevicePointer none = 0;
  EXPECT_EQ(driver_.memory_allocate(&none, 0), kInvalidValue);
  EXPECT_EQ(driver_.memory_allocate(&none, std::size_t{1} << 40), kOutOfMemory);
  EXPECT_EQ(fake_.alive("driver_allocations"), 0);
  EXPECT_EQ(fake_.violations(), 0u);
}

TEST_F(FakeSharing, AnAllocationHasANumberThatNoOtherHas) {
  std::uint64_t first = 0, second = 0;
  const DevicePointer memory = allocate(64);
  EXPECT_EQ(driver_.pointer_attribute(&first, client::cuda::kPointerBufferId, memory), 0);
  EXPECT_EQ(driver_.memory_free(memory), 0);
  const DevicePointer other = allocate(64);
  EXPECT_EQ(driver_.pointer_attribute(&second, client::cuda::kPointerBufferId, other + 63), 0);
  EXPECT_NE(first, second);
  EXPECT_EQ(driver_.memory_free(other), 0);
}

TEST_F(FakeSharing, MemoryNeedsAContext) {
  DevicePointer none = 0;
  std::thread([&] { EXPECT_EQ(driver_.memory_allocate(&none, 64), kInvalidContext); }).join();
  expect_violation("no current context");
}

TEST_F(FakeSharing, MemoryIsFreedByWhatAllocatedIt) {
  DeviceMemory of_control(64);
  const DevicePointer memory = allocate(64);
  EXPECT_EQ(driver_.memory_free(of_control.address()), kInvalidValue);
  EXPECT_EQ(driver_.memory_free(memory + 1), kInvalidValue);
  EXPECT_EQ(fake_.free(reinterpret_cast<void*>(memory)), kInvalidValue);
  EXPECT_EQ(driver_.memory_free(memory), 0);
  EXPECT_EQ(driver_.memory_free(memory), kInvalidValue);
  EXPECT_EQ(fake_.violations(), 4u);
}

TEST_F(FakeSharing, MemoryFreedUnderAQueuedCopyIsAViolation) {
  const DevicePointer memory = allocate(64);
  const Stream_ stream = new_stream();
  fake_.hold_stream(stream);
  ASSERT_EQ(driver_.fill_bytes(memory, 1, 64, stream), 0);
  EXPECT_EQ(driver_.memory_free(memory), 0);
  expect_violation("cuMemFree: 1 operations");
  fake_.resume_stream(stream);
  EXPECT_EQ(fake_.stream_synchronize(stream), kIllegalAddress);
  EXPECT_EQ(fake_.violations(), 2u);
}

TEST_F(FakeSharing, WhatACaptureForbids) {
  void* stream = fake_.stream_create(0);
  const DevicePointer memory = allocate(64);
  DevicePointer another = 0;
  ASSERT_EQ(fake_.begin_capture(stream, 1), 0);
  EXPECT_EQ(driver_.memory_allocate(&another, 64), 900);
  EXPECT_EQ(driver_.memory_free(memory), 900);
  EXPECT_EQ(driver_.ipc_open(&another, IpcHandle{}, kPeerAccess), 900);
  EXPECT_EQ(driver_.ipc_close(memory), 900);
  EXPECT_EQ(fake_.violations(), 4u);
}

// What the other process does.
void FakeSharing::import_twice(const IpcHandle& handle) {
  const DevicePointer memory = import(handle);
  ASSERT_NE(memory, 0u);
  EXPECT_EQ(import(handle), memory) << "it counts";
  EXPECT_EQ(fake_.alive("imports"), 1);
  EXPECT_EQ(fake_.leaks(), "1 imports, 1 retained_contexts, 1 pushed_contexts");
  std::uint64_t size = 0;
  int device = -1;
  EXPECT_EQ(driver_.pointer_attribute(&size, 12, memory + 1), 0);
  EXPECT_EQ(driver_.pointer_attribute(&device, 9, memory), 0);
  EXPECT_EQ(size, kBytes);
  EXPECT_EQ(device, 0) << "the one that is current here";
  IpcHandle again{};
  EXPECT_EQ(driver_.ipc_export(&again, memory), kInvalidValue) << "it belongs to another process";
  EXPECT_EQ(driver_.memory_free(memory), kInvalidValue);
  expect_violation("cuMemFree_v2");
  const Stream_ stream = new_stream();
  const auto* host = static_cast<unsigned char*>(pin());
  EXPECT_EQ(driver_.copy_out(host_.data(), memory, kBytes, stream), 0);
  EXPECT_EQ(driver_.fill_bytes(memory + 100, 0x5A, 100, stream), 0);
  EXPECT_EQ(fake_.stream_synchronize(stream), 0);
  EXPECT_TRUE(std::all_of(host, host + kBytes, [](unsigned char byte) { return byte == 3; }));
  EXPECT_EQ(driver_.ipc_close(memory), 0);
  EXPECT_EQ(fake_.alive("imports"), 1);
  EXPECT_EQ(driver_.ipc_close(memory), 0);
  EXPECT_EQ(fake_.alive("imports"), 0);
  EXPECT_EQ(driver_.ipc_close(memory), kInvalidValue);
  EXPECT_EQ(fake_.violations(), 2u);
  EXPECT_EQ(driver_.stream_destroy(stream), 0);
  EXPECT_EQ(driver_.host_unregister(host_.data()), 0);
  context_.reset();
  EXPECT_EQ(fake_.leaks(), "");
}

TEST_F(FakeSharing, AnotherProcessImportsMemory) {
  if (const auto handle = given_handle()) return import_twice(*handle);
  const CurrentContext other(1);
  const DevicePointer memory = allocate(kBytes);
  const Stream_ stream = new_stream();
  EXPECT_EQ(driver_.fill_bytes(memory, 3, kBytes, stream), 0);
  EXPECT_EQ(fake_.stream_synchronize(stream), 0);
  const IpcHandle handle = handle_of(memory), same = handle_of(memory + 4000);
  EXPECT_EQ(std::memcmp(handle.bytes, same.bytes, sizeof(handle.bytes)), 0) << "it is of the whole allocation";
  EXPECT_EQ(run_in_another_process(handle), 0);
  const auto* bytes = reinterpret_cast<const unsigned char*>(memory);
  for (std::size_t place = 0; place < kBytes; ++place)
    ASSERT_EQ(bytes[place], place >= 100 && place < 200 ? 0x5A : 3) << place;
  EXPECT_EQ(driver_.memory_free(memory), 0);
  EXPECT_EQ(driver_.stream_destroy(stream), 0);
  EXPECT_EQ(fake_.violations(), 0u);
}

// What the other process does.
void FakeSharing::close_under_a_fill(const IpcHandle& handle) {
  const DevicePointer memory = import(handle);
  const Stream_ stream = new_stream();
  fake_.hold_stream(stream);
  ASSERT_EQ(driver_.fill_bytes(memory, 1, 64, stream), 0);
  EXPECT_EQ(driver_.ipc_close(memory), 0);
  expect_violation("cuIpcCloseMemHandle: 1 operations");
  fake_.resume_stream(stream);
  EXPECT_EQ(fake_.stream_synchronize(stream), kIllegalAddress);
  EXPECT_EQ(fake_.violations(), 2u);
  fake_.reset(1, 0, 1);
  context_.emplace();
  EXPECT_NE(import(handle), 0u);
  context_.reset();
  fake_.reset(1, 0, 1);
  EXPECT_EQ(fake_.leaks(), "");
}

TEST_F(FakeSharing, AnImportClosedUnderAQueuedCopyIsAViolation) {
  if (const auto handle = given_handle()) return close_under_a_fill(*handle);
  EXPECT_EQ(run_in_another_process(handle_of(allocate(64))), 0);
  EXPECT_EQ(fake_.violations(), 0u);
}

// What the other process does.
void FakeSharing::add(const IpcHandle& handle) {
  const DevicePointer theirs = import(handle), mine = allocate(64);
  const Stream_ stream = new_stream();
  const Function_ function = function_of(load(), "tl_sum_int8");
  EXPECT_EQ(driver_.fill_bytes(mine, 2, 64, stream), 0);
  EXPECT_EQ(launch(function, stream, mine, {theirs, mine}, 64), 0);
  EXPECT_EQ(driver_.copy_within(theirs + 16, mine, 32, stream), 0);
  EXPECT_EQ(fake_.stream_synchronize(stream), 0);
  EXPECT_EQ(driver_.ipc_close(theirs), 0);
  EXPECT_EQ(fake_.violations(), 0u);
}

TEST_F(FakeSharing, KernelsAndCopiesReachMemoryOfAnotherProcess) {
  if (const auto handle = given_handle()) return add(*handle);
  const DevicePointer memory = allocate(64);
  const Stream_ stream = new_stream();
  EXPECT_EQ(driver_.fill_bytes(memory, 5, 64, stream), 0);
  EXPECT_EQ(fake_.stream_synchronize(stream), 0);
  EXPECT_EQ(run_in_another_process(handle_of(memory)), 0);
  const auto* bytes = reinterpret_cast<const unsigned char*>(memory);
  for (int place = 0; place < 64; ++place) EXPECT_EQ(bytes[place], place >= 16 && place < 48 ? 7 : 5) << place;
}

TEST_F(FakeSharing, AHandleOfMemoryThatIsFreedOpensNothing) {
  DevicePointer none = 0;
  if (const auto handle = given_handle()) {
    EXPECT_EQ(driver_.ipc_open(&none, *handle, kPeerAccess), kInvalidValue);
    EXPECT_EQ(fake_.alive("imports"), 0);
    EXPECT_EQ(fake_.violations(), 0u);
    return;
  }
  const DevicePointer memory = allocate(64);
  const IpcHandle handle = handle_of(memory);
  EXPECT_EQ(driver_.memory_free(memory), 0);
  const DevicePointer next = allocate(64);
  EXPECT_EQ(run_in_another_process(handle), 0) << "its file has the number of the first one's";
  EXPECT_EQ(driver_.memory_free(next), 0);
}

TEST_F(FakeSharing, HandlesAreChecked) {
  const DeviceMemory of_control(64);
  const DevicePointer memory = allocate(64);
  IpcHandle handle{};
  DevicePointer none = 0;
  EXPECT_EQ(driver_.ipc_open(&none, handle, kPeerAccess), kInvalidValue);
  EXPECT_EQ(driver_.ipc_export(&handle, of_control.address()), kInvalidValue);
  EXPECT_EQ(driver_.ipc_export(&handle, address_of(pin())), kInvalidValue);
  EXPECT_EQ(driver_.ipc_export(&handle, 64), kInvalidValue);
  EXPECT_EQ(driver_.ipc_export(nullptr, memory), kInvalidValue);
  handle = handle_of(memory);
  EXPECT_EQ(driver_.ipc_open(&none, handle, kPeerAccess), kInvalidContext) << "this process has exported it";
  EXPECT_EQ(driver_.ipc_open(&none, handle, 0), kInvalidValue);
  EXPECT_EQ(driver_.memory_free(memory), 0);
  EXPECT_EQ(fake_.violations(), 0u);
  EXPECT_EQ(driver_.ipc_close(of_control.address()), kInvalidValue);
  expect_violation("cuIpcCloseMemHandle");
}

TEST_F(FakeSharing, AResetFreesTheMemory) {
  const auto before = open_files();
  (void)allocate(64);
  EXPECT_EQ(driver_.memory_free(allocate(64)), 0);
  EXPECT_EQ(open_files(), before + 1);
  context_.reset();
  fake_.reset(1, 0, 1);
  EXPECT_EQ(fake_.alive("driver_allocations"), 0);
  EXPECT_EQ(open_files(), before);
}

TEST_F(FakeSharing, EachCallFailsAsPlanned) {
  const DevicePointer memory = allocate(64);
  const IpcHandle handle = handle_of(memory);
  DevicePointer none = 0;
  IpcHandle other{};
  const auto fails = [&](const char* symbol, const auto& call, int then) {
    ASSERT_EQ(fake_.fail(symbol, 1, 999), 0);
    EXPECT_EQ(call(), 999) << symbol;
    EXPECT_EQ(call(), then) << symbol;
  };
  fails(
      "cuMemAlloc_v2", [&] { return driver_.memory_allocate(&none, 64); }, 0);
  fails(
      "cuIpcGetMemHandle", [&] { return driver_.ipc_export(&other, memory); }, 0);
  fails(
      "cuIpcOpenMemHandle_v2", [&] { return driver_.ipc_open(&none, handle, kPeerAccess); }, kInvalidContext);
  fails(
      "cuIpcCloseMemHandle", [&] { return driver_.ipc_close(0); }, kInvalidValue);
  expect_violation("cuIpcCloseMemHandle");
  fails(
      "cuMemFree_v2", [&] { return driver_.memory_free(memory); }, 0);
  EXPECT_EQ(fake_.alive("driver_allocations"), 1);
  fake_.break_device(0, kLaunchFailed);
  EXPECT_EQ(driver_.memory_allocate(&none, 64), kLaunchFailed);
  EXPECT_EQ(driver_.ipc_export(&other, none), kLaunchFailed);
  EXPECT_EQ(driver_.memory_free(none), kLaunchFailed);
  EXPECT_EQ(fake_.alive("driver_allocations"), 0);
}

}  // namespace
}  // namespace tensorlane::fake_cuda
