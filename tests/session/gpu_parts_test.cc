// Large operations on GPU memory between hosts go in parts: the daemon hears of a part when it is copied, and what it
// has of the result is copied to the GPU while the rest is on its way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "fake_daemon.h"
#include "gpu_program.h"

namespace tensorlane::test {
namespace {

using protocol::PartRun;

constexpr std::size_t kBytes = 8 << 20;
constexpr std::uint64_t kPart = protocol::part_bytes(kBytes);  // 64 of them, of 128 KiB

class GpuParts : public ::testing::Test {
 protected:
  GpuParts() {
    daemon.set_hosts(2);
    daemon.set_mode(Mode::kHold);
  }
  tl_request_t* begin(const ClientContext& context, const DeviceMemory& memory) {
    tl_request_t* request = nullptr;
    EXPECT_EQ(gpu_allreduce(context, "x", memory, stream, &request), TL_OK) << tl_last_error();
    return request;
  }
  std::uint64_t told() { return daemon.parts_of("job", "allreduce.x", 0); }
  // A first operation, which registers the tensor.
  void warm_up(const ClientContext& context, const DeviceMemory& memory) {
    daemon.set_mode(Mode::kRun);
    stream.fill(memory, 1);
    ASSERT_EQ(tl_wait(begin(context, memory), 10), TL_OK) << tl_last_error();
    daemon.set_mode(Mode::kHold);
  }
  // The library's streams, but for the program's.
  void hold_copies() {
    Gpu::driver().hold_all_streams();
    Gpu::driver().resume_stream(stream);
  }
  static bool all_are(std::span<const float> floats, float value) {
    return std::ranges::all_of(floats, [value](float f) { return f == value; });
  }
  static std::span<const float> part_of(const DeviceMemory& memory, const PartRun& run) {
    return std::span<const float>(memory.floats()).subspan(run.first * kPart / 4, run.count * kPart / 4);
  }

  const Gpu gpu{1, std::chrono::microseconds(200)};
  FakeDaemon daemon;
  const Stream stream;
};

TEST_F(GpuParts, ThePartsAreToldAsTheyAreCopied) {
  ClientContext context(daemon.socket());
  const DeviceMemory memory(kBytes);
  warm_up(context, memory);
  // Two copies are on the GPU, and nothing more is copied: what is told is what those two have brought.
  stream.fill(memory, 3);
  hold_copies();
  tl_request_t* request = begin(context, memory);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(told(), 0U);
  Gpu::driver().resume_all_streams();
  std::uint64_t seen = 0;
  ASSERT_TRUE(eventually([&] { return daemon.operations() == 1 && std::popcount(seen |= told()) >= 40; }));
  EXPECT_TRUE(eventually([&] { return daemon.wait_submitted(2); }));  // the rest
  daemon.set_mode(Mode::kRun);
  EXPECT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
  EXPECT_TRUE(all_are(memory.floats(), 6));
}

// Of the two hosts' halves in turns.
TEST_F(GpuParts, BothHalvesOfATensorAreCopiedAtOnce) {
  ClientContext context(daemon.socket());
  const DeviceMemory memory(kBytes);
  warm_up(context, memory);
  const std::size_t before = Gpu::driver().all_copies().size();
  hold_copies();
  tl_request_t* request = begin(context, memory);
  ASSERT_TRUE(eventually([&] { return Gpu::driver().all_copies().size() == before + 2; }));
  const std::vector<FakeCudaCopy> copies = Gpu::driver().all_copies();
  EXPECT_EQ(copies[before].device_address, memory.address());
  EXPECT_EQ(copies[before + 1].device_address, memory.address() + kBytes / 2);
  Gpu::driver().resume_all_streams();
  ASSERT_TRUE(daemon.wait_submitted(2));
  daemon.set_mode(Mode::kRun);
  EXPECT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
}

TEST_F(GpuParts, WhatIsInPlaceIsCopiedWhileTheRestIsAwaited) {
  ClientContext context(daemon.socket());
  const DeviceMemory memory(kBytes);
  warm_up(context, memory);
  stream.fill(memory, 3);
  tl_request_t* request = begin(context, memory);
  ASSERT_TRUE(daemon.wait_submitted(2));
  daemon.put_in_place("job", "allreduce.x", {8, 16}, 7);
  daemon.put_in_place("job", "allreduce.x", {62, 2}, 9);
  EXPECT_TRUE(eventually([&] { return all_are(part_of(memory, {8, 16}), 7) && all_are(part_of(memory, {62, 2}), 9); }));
  EXPECT_TRUE(all_are(part_of(memory, {0, 8}), 3));
  EXPECT_EQ(tl_test(request), TL_IN_PROGRESS);
  const auto copied_in = [] {
    std::uint64_t bytes = 0;
    for (const FakeCudaCopy& copy : Gpu::driver().all_copies()) bytes += copy.direction == kFakeCudaIn ? copy.bytes : 0;
    return bytes;
  };
  EXPECT_EQ(copied_in(), kBytes + 18 * kPart);
  daemon.set_mode(Mode::kRun);
  EXPECT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
  EXPECT_EQ(copied_in(), 2 * kBytes);  // each part once
  EXPECT_TRUE(all_are(part_of(memory, {0, 8}), 6));
  EXPECT_TRUE(all_are(part_of(memory, {8, 16}), 7));
}

TEST_F(GpuParts, SmallTensorsAndJobsOfOneHostGoWhole) {
  const DeviceMemory memory(kBytes), small(1 << 20);
  {
    ClientContext context(daemon.socket());
    warm_up(context, small);
    tl_request_t* request = begin(context, small);
    ASSERT_TRUE(daemon.wait_submitted(2));
    EXPECT_EQ(told(), 0U);
    daemon.set_mode(Mode::kRun);
    EXPECT_EQ(tl_wait(request, 10), TL_OK);
  }
  daemon.set_hosts(1);
  ClientContext context(daemon.socket(), "alone");
  warm_up(context, memory);
  tl_request_t* request = begin(context, memory);
  ASSERT_TRUE(daemon.wait_submitted(4));
  EXPECT_EQ(daemon.parts_of("alone", "allreduce.x", 0), 0U);
  daemon.set_mode(Mode::kRun);
  EXPECT_EQ(tl_wait(request, 10), TL_OK);
}

// The program stops in the middle of parts: streams go on, and find that the result is none.
TEST_F(GpuParts, AnEndInTheMiddleStopsNoStream) {
  ClientContext context(daemon.socket());
  const DeviceMemory memory(kBytes);
  warm_up(context, memory);
  stream.fill(memory, 3);
  tl_request_t* request = begin(context, memory);
  ASSERT_EQ(tl_stream_wait(&request, 1, stream), TL_OK) << tl_last_error();
  ASSERT_TRUE(eventually([&] { return told() != 0; }));
  daemon.put_in_place("job", "allreduce.x", {0, 4}, 7);
  daemon.abort_job("job", Status(Code::kAborted, "it is over", "job 'job'", "start again"));
  const std::vector<float> result = stream.read(memory);
  EXPECT_TRUE(std::ranges::all_of(result, [](float f) { return f != f; }));
}

TEST_F(GpuParts, ADriverThatFailsInTheMiddleEndsTheRank) {
  for (const char* call : {"cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuEventQuery"}) {
    SCOPED_TRACE(call);
    FakeDaemon other;
    other.set_hosts(2);
    other.set_mode(Mode::kHold);
    ClientContext context(other.socket());
    const DeviceMemory memory(kBytes);
    tl_request_t* request = begin(context, memory);
    ASSERT_TRUE(other.wait_submitted(1));
    Gpu::driver().fail(call, 1, 1);
    other.put_in_place("job", "allreduce.x", {0, 4}, 7);
    if (std::string(call) == "cuMemcpyDtoHAsync_v2") {
      other.set_mode(Mode::kRun);
      (void)tl_wait(request, 10);
      request = begin(context, memory);
    }
    EXPECT_EQ(tl_wait(request, 10), TL_ERROR_UNAVAILABLE) << tl_last_error();
    EXPECT_THAT(tl_last_error(), ::testing::HasSubstr("failed with"));
  }
}

}  // namespace
}  // namespace tensorlane::test
