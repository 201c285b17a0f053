// Large operations on GPU memory between hosts go in parts: the daemon hears of a part when it is copied, and what it
// has of the result is copied to the GPU while the rest is on its way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <mutex>

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
  // Bytes that copies which are over have brought to these parts of a memory.
  static std::uint64_t brought(const DeviceMemory& memory, const PartRun& to) {
    const std::uint64_t begin = memory.address() + to.first * kPart, end = begin + to.count * kPart;
    std::uint64_t bytes = 0;
    for (const FakeCudaCopy& copy : Gpu::driver().all_copies()) {
      if (copy.direction == kFakeCudaIn && copy.ended != 0 && copy.device_address >= begin &&
          copy.device_address < end) {
        bytes += copy.bytes;
      }
    }
    return bytes;
  }
  // Parts of a result are in place, all `value`, and come to these parts of a memory.
  void expect_to_come(const std::string& tensor, const PartRun& run, float value, const DeviceMemory& memory,
                      const PartRun& to) {
    const std::uint64_t before = brought(memory, to);
    daemon.put_in_place("job", tensor, run, value);
    EXPECT_TRUE(eventually([&] { return brought(memory, to) == before + to.count * kPart; }));
    Gpu::synchronize_copies();
    EXPECT_TRUE(all_are(part_of(memory, to), value));
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
  expect_to_come("allreduce.x", {8, 16}, 7, memory, {8, 16});
  expect_to_come("allreduce.x", {62, 2}, 9, memory, {62, 2});
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

// All of the result is on the GPU, but it is the daemon who says that the operation is over.
TEST_F(GpuParts, AllPartsInPlaceAreNotTheEnd) {
  ClientContext context(daemon.socket());
  const DeviceMemory memory(kBytes);
  warm_up(context, memory);
  stream.fill(memory, 3);
  tl_request_t* request = begin(context, memory);
  ASSERT_TRUE(daemon.wait_submitted(2));
  expect_to_come("allreduce.x", {0, 64}, 7, memory, {0, 64});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(tl_test(request), TL_IN_PROGRESS);
  daemon.set_mode(Mode::kRun);
  EXPECT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
}

// Of an operation that has not begun nothing is in place.
TEST_F(GpuParts, WhatIsSaidOfAnotherOperationIsNothing) {
  ClientContext context(daemon.socket());
  const DeviceMemory memory(kBytes);
  warm_up(context, memory);
  Gpu::driver().hold_stream(stream);
  stream.fill(memory, 3);
  tl_request_t* request = begin(context, memory);
  const std::uint64_t before = brought(memory, {0, 64});
  daemon.put_in_place("job", "allreduce.x", {0, 4}, 7);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(brought(memory, {0, 64}), before);
  Gpu::driver().resume_stream(stream);
  daemon.set_mode(Mode::kRun);
  EXPECT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
  EXPECT_TRUE(all_are(memory.floats(), 6));
}

// A wait that came before the first part is told with it (law 9).
TEST_F(GpuParts, AWaitIsToldWithTheFirstPart) {
  ClientContext context(daemon.socket());
  const DeviceMemory memory(kBytes);
  warm_up(context, memory);
  const std::uint64_t before = daemon.boosts();
  hold_copies();
  tl_request_t* request = begin(context, memory);
  std::thread waiting([&] { EXPECT_EQ(tl_wait(request, 30), TL_OK) << tl_last_error(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(daemon.boosts(), before);
  EXPECT_TRUE(eventually([&] {
    for (const FakeCudaStream& each : Gpu::driver().all_streams()) Gpu::driver().step_stream(each.handle, 1);
    return told() != 0;
  }));
  EXPECT_TRUE(eventually([&] { return daemon.boosts() == before + 1; }));
  Gpu::driver().resume_all_streams();
  daemon.set_mode(Mode::kRun);
  waiting.join();
}

// Where the ring is half full, the other parts come with the rest.
TEST(GpuPartsOfSmallRings, PartsLeaveRoomForOperations) {
  const Gpu gpu;
  session::SessionConfig config;
  config.ring_entries = 4;
  FakeDaemon daemon(config);
  daemon.set_hosts(2);
  ClientContext context(daemon.socket());
  const DeviceMemory memory(kBytes);
  const Stream stream;
  tl_request_t* request = nullptr;
  stream.fill(memory, 1);
  for (float value : {1.0F, 2.0F, 4.0F}) {
    std::unique_lock<std::mutex> stopped;
    if (value > 1) stopped = daemon.stop_taking();
    const std::size_t before = Gpu::driver().all_copies().size();
    ASSERT_EQ(gpu_allreduce(context, "x", memory, stream, &request), TL_OK) << tl_last_error();
    EXPECT_TRUE(value == 1 || eventually([&] { return Gpu::driver().all_copies().size() == before + 8; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (stopped.owns_lock()) stopped.unlock();
    ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
    EXPECT_TRUE(std::ranges::all_of(memory.floats(), [=](float f) { return f == 2 * value; }));
  }
}

// Sides that are a range of the buffer: what exists, and what is in place, is told of the buffer's parts.
class GpuPartsOfBlocks : public GpuParts {
 protected:
  GpuPartsOfBlocks() {
    std::thread other([&] { first = std::make_unique<ClientContext>(daemon.socket(), "job", 0, 2, 10, true); });
    second = std::make_unique<ClientContext>(daemon.socket(), "job", 1, 2, 10, true);
    other.join();
  }
  ~GpuPartsOfBlocks() override {
    std::thread other([&] { first.reset(); });
    second.reset();
    other.join();
  }
  const tl_options_t options = on_gpu(stream);
  std::unique_ptr<ClientContext> first, second;
};

TEST_F(GpuPartsOfBlocks, AnAllgatherTellsOfItsOwnBlock) {
  const DeviceMemory mine(kBytes / 2), all(kBytes), other(kBytes / 2), others(kBytes);
  const auto gather = [&](ClientContext& context, const DeviceMemory& in, const DeviceMemory& out) {
    tl_request_t* request = nullptr;
    EXPECT_EQ(tl_allgather(context, "g", in.data(), out.data(), in.floats().size(), TL_FLOAT32, &options, &request),
              TL_OK)
        << tl_last_error();
    return request;
  };
  stream.fill(other, 1);
  for (int turn = 0; turn < 2; ++turn) {
    daemon.set_mode(turn == 0 ? Mode::kRun : Mode::kHold);
    stream.fill(mine, 2);
    tl_request_t* one = gather(*first, other, others);
    tl_request_t* two = gather(*second, mine, all);
    if (turn == 1) {
      ASSERT_TRUE(daemon.wait_submitted(4));
      EXPECT_NE(daemon.parts_of("job", "allgather.g", 1), 0u);
      EXPECT_EQ(daemon.parts_of("job", "allgather.g", 1) & PartRun({0, 32}).mask(), 0u);
      EXPECT_EQ(daemon.parts_of("job", "allgather.g", 0) & PartRun({32, 32}).mask(), 0u);
      expect_to_come("allgather.g", {8, 8}, 7, all, {8, 8});
      daemon.set_mode(Mode::kRun);
    }
    for (tl_request_t* request : {one, two}) ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
    EXPECT_TRUE(all_are(part_of(all, {32, 32}), 2));
  }
}

TEST_F(GpuPartsOfBlocks, AReduceScatterHearsOfItsOwnBlock) {
  const DeviceMemory in(kBytes), block(kBytes / 2), others(kBytes / 2);
  const auto scatter = [&](ClientContext& context, const DeviceMemory& out) {
    tl_request_t* request = nullptr;
    EXPECT_EQ(tl_reducescatter(context, "r", in.data(), out.data(), in.floats().size(), 1, TL_FLOAT32, TL_SUM, &options,
                               &request),
              TL_OK)
        << tl_last_error();
    return request;
  };
  stream.fill(in, 2);
  for (int turn = 0; turn < 2; ++turn) {
    daemon.set_mode(turn == 0 ? Mode::kRun : Mode::kHold);
    stream.fill(block, 5);
    tl_request_t* one = scatter(*first, others);
    tl_request_t* two = scatter(*second, block);
    if (turn == 1) {
      ASSERT_TRUE(daemon.wait_submitted(4));
      expect_to_come("reducescatter.r", {8, 8}, 7, others, {8, 8});
      expect_to_come("reducescatter.r", {40, 8}, 9, block, {8, 8});
      EXPECT_TRUE(all_are(part_of(block, {0, 8}), 5));
      daemon.set_mode(Mode::kRun);
    }
    for (tl_request_t* request : {one, two}) ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
    EXPECT_TRUE(all_are(part_of(block, {0, 8}), 4));
  }
}

// A receiver has nothing to tell of, and begins in parts all the same: so that it hears of the result in parts.
TEST_F(GpuPartsOfBlocks, TheReceiverOfABroadcastBeginsInParts) {
  const DeviceMemory root(kBytes), receiver(kBytes);
  const auto broadcast = [&](ClientContext& context, const DeviceMemory& memory) {
    tl_request_t* request = nullptr;
    EXPECT_EQ(tl_broadcast(context, "b", memory.data(), memory.floats().size(), TL_FLOAT32, 0, &options, &request),
              TL_OK)
        << tl_last_error();
    return request;
  };
  stream.fill(root, 2);
  for (int turn = 0; turn < 2; ++turn) {
    daemon.set_mode(turn == 0 ? Mode::kRun : Mode::kHold);
    tl_request_t* one = broadcast(*first, root);
    tl_request_t* two = broadcast(*second, receiver);
    if (turn == 1) {
      ASSERT_TRUE(daemon.wait_submitted(4));
      EXPECT_EQ(daemon.parts_of("job", "broadcast.b", 1), 1u);
      daemon.set_mode(Mode::kRun);
    }
    for (tl_request_t* request : {one, two}) ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
    EXPECT_TRUE(all_are(receiver.floats(), 2));
  }
}

// As the array calls', the sides of tensors that are registered.
TEST_F(GpuPartsOfBlocks, ARegisteredReduceScatterHearsOfItsOwnBlock) {
  const DeviceMemory one(kBytes), two(kBytes);
  const auto registered = [](ClientContext& context, const DeviceMemory& memory) {
    tl_tensor_desc_t desc = tensor_desc("t", memory.data(), memory.floats().size());
    desc.memory = TL_MEMORY_CUDA;
    desc.operation = TL_REDUCESCATTER;
    desc.row = 1;
    tl_tensor_t* tensor = nullptr;
    EXPECT_EQ(tl_register(context, "t", &desc, 1, &tensor), TL_OK) << tl_last_error();
    return tensor;
  };
  tl_tensor_t* tensors[2] = {};
  std::thread other([&] { tensors[0] = registered(*first, one); });
  tensors[1] = registered(*second, two);
  other.join();
  stream.fill(one, 2);
  stream.fill(two, 2);
  stream.synchronize();
  tl_request_t* requests[2] = {};
  for (int rank = 0; rank < 2; ++rank) ASSERT_EQ(tl_post(tensors[rank], &requests[rank]), TL_OK) << tl_last_error();
  ASSERT_TRUE(daemon.wait_submitted(2));
  expect_to_come("t", {40, 8}, 9, two, {40, 8});
  EXPECT_TRUE(all_are(part_of(two, {0, 40}), 2));
  daemon.set_mode(Mode::kRun);
  for (tl_request_t* request : requests) ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
  EXPECT_TRUE(all_are(part_of(two, {32, 8}), 4));
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
