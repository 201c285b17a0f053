// Each operation on GPU memory, in every form of a call. The fake daemon's allreduce gives twice the sum.
#include "gpu_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "fake_daemon.h"

namespace tensorlane::test {
namespace {

using testing::HasSubstr;

TEST(GpuOperations, EveryOperationCopiesWhatItNeedsAndNoMore) {
  const Gpu gpu;
  FakeDaemon daemon;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ClientContext context(daemon.socket(), "job", rank, 2);
      const Stream stream;
      const tl_options_t options = on_gpu(stream);
      const float mine = static_cast<float>(rank + 1);
      const DeviceMemory x(64 * sizeof(float)), all(128 * sizeof(float)), part(32 * sizeof(float));
      tl_request_t* request = nullptr;
      const auto done = [&](const DeviceMemory& memory) {
        EXPECT_EQ(tl_stream_wait(&request, 1, stream), TL_OK) << tl_last_error();
        return stream.read(memory);
      };
      stream.fill(x, mine);
      ASSERT_EQ(tl_broadcast(context, "b", x.data(), 64, TL_FLOAT32, 1, &options, &request), TL_OK) << tl_last_error();
      EXPECT_TRUE(all_are(done(x), 2));
      stream.fill(x, mine);
      ASSERT_EQ(tl_allgather(context, "g", x.data(), all.data(), 64, TL_FLOAT32, &options, &request), TL_OK)
          << tl_last_error();
      const std::vector<float> gathered = done(all);
      EXPECT_TRUE(all_are({gathered.begin(), gathered.begin() + 64}, 1));
      EXPECT_TRUE(all_are({gathered.begin() + 64, gathered.end()}, 2));
      ASSERT_EQ(tl_reducescatter(context, "r", x.data(), part.data(), 64, 1, TL_FLOAT32, TL_SUM, &options, &request),
                TL_OK)
          << tl_last_error();
      EXPECT_TRUE(all_are(done(part), 3));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GpuOperations, OneRankHasItsTensorOnAGpuAndAnotherOneDoesNot) {
  const Gpu gpu;
  FakeDaemon daemon;
  std::thread host([&] {
    ClientContext context(daemon.socket(), "job", 1, 2);
    float x[64];
    std::fill(std::begin(x), std::end(x), 2.0F);
    tl_request_t* request = nullptr;
    ASSERT_EQ(tl_allreduce(context, "x", x, x, 64, TL_FLOAT32, TL_SUM, nullptr, &request), TL_OK) << tl_last_error();
    EXPECT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
    EXPECT_EQ(x[63], 6);
  });
  ClientContext context(daemon.socket(), "job", 0, 2);
  const Stream stream;
  const DeviceMemory memory(256);
  stream.fill(memory, 1);
  tl_request_t* request = nullptr;
  EXPECT_EQ(gpu_allreduce(context, "x", memory, stream, &request), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
  EXPECT_EQ(memory.floats()[63], 6);
  host.join();
}

TEST(GpuOperations, AKeyIsPushedAndPulled) {
  const Gpu gpu;
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const Stream stream;
  const tl_options_t options = on_gpu(stream);
  const DeviceMemory in(256), out(256);
  stream.fill(in, 7);
  tl_request_t* request = nullptr;
  ASSERT_EQ(tl_push(context, "k", in.data(), 64, TL_FLOAT32, TL_SUM, &options, &request), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_stream_wait(&request, 1, stream), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("wait for a push or a pull by tl_wait"));
  EXPECT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
  ASSERT_EQ(tl_pull(context, "k", out.data(), 64, TL_FLOAT32, &options, &request), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
  EXPECT_TRUE(all_are({out.floats().begin(), out.floats().end()}, 7));
}

TEST(GpuOperations, RegisteredTensorsOfEveryKind) {
  const Gpu gpu;
  FakeDaemon daemon;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ClientContext context(daemon.socket(), "job", rank, 2);
      const Stream stream;
      const DeviceMemory sum(256), root(256), all(256), rows(256);
      const DeviceMemory* memories[] = {&sum, &root, &all, &rows};
      tl_tensor_desc_t descs[4];
      for (int i = 0; i < 4; ++i) {
        static const char* names[] = {"sum", "root", "all", "rows"};
        descs[i] = tensor_desc(names[i], memories[i]->data(), 64);
        descs[i].memory = TL_MEMORY_CUDA;
        stream.fill(*memories[i], static_cast<float>(rank + 1));
      }
      descs[1].operation = TL_BROADCAST;
      descs[2].operation = TL_ALLGATHER;
      descs[3].operation = TL_REDUCESCATTER;
      tl_tensor_t* tensors[4];
      ASSERT_EQ(tl_register(context, "group", descs, 4, tensors), TL_OK) << tl_last_error();
      tl_request_t* requests[4];
      ASSERT_EQ(tl_post_on(tensors, 4, stream, requests), TL_OK) << tl_last_error();
      ASSERT_EQ(tl_stream_wait(requests, 4, stream), TL_OK) << tl_last_error();
      EXPECT_TRUE(all_are(stream.read(sum), 6));
      EXPECT_TRUE(all_are(stream.read(root), 1));
      const std::vector<float> gathered = stream.read(all), scattered = stream.read(rows);
      EXPECT_TRUE(all_are({gathered.begin(), gathered.begin() + 32}, 1));
      EXPECT_TRUE(all_are({gathered.begin() + 32, gathered.end()}, 2));
      EXPECT_TRUE(all_are({scattered.begin() + rank * 32, scattered.begin() + (rank + 1) * 32}, 3));
      EXPECT_EQ(tl_unregister(context, "group"), TL_OK) << tl_last_error();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GpuOperations, QueuedCallsOfOneNameTakeTurns) {
  const Gpu gpu;
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const Stream stream;
  std::vector<DeviceMemory> memories;
  std::vector<tl_request_t*> requests(6);
  for (int i = 0; i < 6; ++i) {
    memories.emplace_back(40'000);
    stream.fill(memories.back(), static_cast<float>(i + 1));
    ASSERT_EQ(gpu_allreduce(context, "x", memories.back(), stream, &requests[i], true), TL_OK) << tl_last_error();
  }
  std::swap(requests[0], requests[5]);  // waiting in another order is allowed
  EXPECT_EQ(tl_wait_many(requests.data(), 6, 10), TL_OK) << tl_last_error();
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(all_are(stream.read(memories[i]), static_cast<float>(2 * (i + 1))));
}

TEST(GpuOperations, CallbacksRun) {
  const Gpu gpu;
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const Stream stream;
  const DeviceMemory memory(4096);
  for (int round = 0; round < 5; ++round) {
    stream.fill(memory, 1);
    tl_request_t* request = nullptr;
    ASSERT_EQ(gpu_allreduce(context, "x", memory, stream, &request), TL_OK) << tl_last_error();
    std::atomic<int> called{-1};
    ASSERT_EQ(
        tl_set_callback(
            request, [](tl_status_t status, void* argument) { *static_cast<std::atomic<int>*>(argument) = status; },
            &called),
        TL_OK)
        << tl_last_error();
    ASSERT_TRUE(eventually([&] { return called == TL_OK; }));
    EXPECT_EQ(memory.floats()[0], 2);
  }
}

// What is in the root's memory already need not be copied there, and stays when the operation fails.
TEST(GpuOperations, TheRootOfABroadcastGetsNothingBack) {
  const Gpu gpu;
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const Stream stream;
  const tl_options_t options = on_gpu(stream);
  const DeviceMemory memory(256);
  stream.fill(memory, 3);
  tl_request_t* request = nullptr;
  ASSERT_EQ(tl_broadcast(context, "b", memory.data(), 64, TL_FLOAT32, 0, &options, &request), TL_OK) << tl_last_error();
  ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
  EXPECT_EQ(Gpu::driver().most_in_flight(kFakeCudaIn), 0U);
  EXPECT_EQ(memory.floats()[0], 3);
}

TEST(GpuOperations, EachGpuCopiesOnStreamsOfItsOwn) {
  const Gpu gpu(1, std::chrono::microseconds(50), 2);
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const Stream streams[2] = {Stream(0), Stream(1)};
  const DeviceMemory memories[2] = {DeviceMemory(3 << 20), DeviceMemory(3 << 20, 1)};
  const char* names[2] = {"x", "y"};
  for (int round = 1; round < 4; ++round) {
    tl_request_t* requests[2] = {};
    for (int i = 0; i < 2; ++i) {
      // Of each name, the calls are on one GPU and on the other one in turns.
      const int at = (i + round) % 2;
      streams[at].fill(memories[at], static_cast<float>(round + i));
      ASSERT_EQ(gpu_allreduce(context, names[i], memories[at], streams[at], &requests[i]), TL_OK) << tl_last_error();
    }
    for (int i = 0; i < 2; ++i) {
      const int at = (i + round) % 2;
      ASSERT_EQ(tl_stream_wait(&requests[i], 1, streams[at]), TL_OK) << tl_last_error();
    }
    for (int i = 0; i < 2; ++i) {
      const int at = (i + round) % 2;
      EXPECT_TRUE(all_are(streams[at].read(memories[at]), static_cast<float>(2 * (round + i))));
    }
    // The next round's calls of a name are other calls: those before are over, not only their words.
    EXPECT_TRUE(eventually([&] {
      const char* status = nullptr;
      return tl_gpu_status(context, &status) == TL_OK &&
             std::string(status).find(R"("operations_under_way":1)") == std::string::npos;
    }));
  }
  const std::vector<FakeCudaStream> all = Gpu::driver().all_streams();
  for (const FakeCudaCopy& copy : Gpu::driver().all_copies()) {
    const DeviceMemory& there = memories[1];
    const bool second = copy.device_address >= there.address() && copy.device_address < there.address() + there.size();
    EXPECT_EQ(copy.device, second ? 1 : 0);
    const auto stream = std::ranges::find(all, copy.stream, &FakeCudaStream::handle);
    ASSERT_NE(stream, all.end());
    EXPECT_EQ(stream->device, copy.device);
  }
}

// A thread's wait is a time; of a stream's wait only that there was one is known.
TEST(GpuOperations, TellsTheDaemonThatStreamsWait) {
  const Gpu gpu;
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const Stream stream;
  const DeviceMemory memory(4096);
  daemon.set_mode(Mode::kHold);
  tl_request_t* request = nullptr;
  ASSERT_EQ(gpu_allreduce(context, "x", memory, stream, &request), TL_OK) << tl_last_error();
  EXPECT_EQ(daemon.times_of("job", 0).stream_waits, 0u);
  ASSERT_EQ(tl_stream_wait(&request, 1, stream), TL_OK) << tl_last_error();
  const ports::ClientTimes waits = daemon.times_of("job", 0);
  EXPECT_EQ(waits.stream_waits, 1u);
  EXPECT_EQ(waits.blocked_ns, 0u);
  EXPECT_EQ(waits.waiter, static_cast<std::uint32_t>(gettid()));
  daemon.set_mode(Mode::kRun);
  stream.synchronize();
  ASSERT_EQ(gpu_allreduce(context, "x", memory, stream, &request), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
  EXPECT_EQ(daemon.times_of("job", 0).stream_waits, 1u) << "it was a thread that waited";
}

// The one that could be begun is taken back, also from behind another one.
TEST(GpuOperations, OfSeveralOneThatCannotBeginLeavesNothingOfTheOthers) {
  const Gpu gpu;
  FakeDaemon daemon;
  daemon.set_mode(Mode::kHold);
  ClientContext context(daemon.socket());
  const Stream stream;
  const DeviceMemory memory(4096), other(4096);
  tl_tensor_t* tensors[2] = {registered_on_gpu(context, "x", memory), registered_on_gpu(context, "y", other)};
  stream.fill(memory, 1);
  tl_request_t *detached = nullptr, *busy = nullptr, *requests[2] = {};
  ASSERT_EQ(tl_post_on(&tensors[0], 1, stream, &detached), TL_OK) << tl_last_error();
  ASSERT_EQ(tl_stream_wait(&detached, 1, stream), TL_OK) << tl_last_error();
  ASSERT_EQ(tl_post_on(&tensors[1], 1, stream, &busy), TL_OK) << tl_last_error();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(tl_post_on(tensors, 2, stream, requests), TL_ERROR_INVALID_ARGUMENT);
  const char* status = nullptr;
  ASSERT_EQ(tl_gpu_status(context, &status), TL_OK);
  EXPECT_THAT(status, HasSubstr(R"("operations_under_way":2)"));
  daemon.set_mode(Mode::kRun);
  EXPECT_EQ(tl_wait(busy, 10), TL_OK) << tl_last_error();
  EXPECT_TRUE(all_are(stream.read(memory), 2));
  EXPECT_TRUE(eventually([&] {
    return tl_gpu_status(context, &status) == TL_OK &&
           std::string(status).find(R"("operations_under_way":0)") != std::string::npos;
  }));
  EXPECT_EQ(daemon.operations(), 2U);
  EXPECT_EQ(context.leave(), TL_OK) << tl_last_error();
}

}  // namespace
}  // namespace tensorlane::test
