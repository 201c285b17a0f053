// GPU memory through the real client library: order of streams, urgency, results. The fake daemon's allreduce gives
// twice the sum.
#include "gpu_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "fake_daemon.h"

namespace tensorlane::test {
namespace {

using testing::HasSubstr;

TEST(Gpu, AnOperationReadsWhatTheStreamHasWrittenAndTheStreamFindsItsResult) {
  const Gpu gpu(1, std::chrono::microseconds(300));
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const Stream stream;
  const DeviceMemory memory(3 << 20);
  for (int round = 1; round < 4; ++round) {
    stream.fill(memory, static_cast<float>(round));
    tl_request_t* request = nullptr;
    ASSERT_EQ(gpu_allreduce(context, "x", memory, stream, &request), TL_OK) << tl_last_error();
    ASSERT_EQ(tl_stream_wait(&request, 1, stream), TL_OK) << tl_last_error();
    EXPECT_EQ(request, nullptr);
    EXPECT_TRUE(all_are(stream.read(memory), static_cast<float>(2 * round)));
  }
}

TEST(Gpu, TheProgramWaitsForTheResultItself) {
  const Gpu gpu;
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const Stream stream;
  const DeviceMemory memory(1000 * sizeof(float));
  stream.fill(memory, 3);
  tl_request_t* request = nullptr;
  ASSERT_EQ(gpu_allreduce(context, "x", memory, stream, &request), TL_OK) << tl_last_error();
  ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
  EXPECT_TRUE(all_are({memory.floats().begin(), memory.floats().end()}, 6));
  ASSERT_EQ(gpu_allreduce(context, "x", memory, stream, &request), TL_OK) << tl_last_error();
  EXPECT_TRUE(eventually([&] { return tl_test(request) == TL_OK; }));
  EXPECT_EQ(memory.floats()[999], 12);
}

TEST(Gpu, AStreamWaitsInPlaceOfTheProgram) {
  const Gpu gpu;
  FakeDaemon daemon;
  daemon.set_mode(Mode::kHold);
  ClientContext context(daemon.socket());
  const Stream stream;
  const DeviceMemory memory(4096);
  stream.fill(memory, 1);
  tl_request_t* request = nullptr;
  ASSERT_EQ(gpu_allreduce(context, "x", memory, stream, &request), TL_OK) << tl_last_error();
  ASSERT_EQ(tl_stream_wait(&request, 1, stream), TL_OK) << tl_last_error();
  std::atomic<bool> passed{false};
  stream.run([&] { passed = true; });
  ASSERT_TRUE(daemon.wait_submitted(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(passed);
  daemon.set_mode(Mode::kRun);
  EXPECT_TRUE(eventually([&] { return passed.load(); }));
  EXPECT_TRUE(all_are(stream.read(memory), 2));
}

TEST(Gpu, NothingIsReadBeforeItsStreamHasComeSoFar) {
  const Gpu gpu;
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const Stream late, early;
  const DeviceMemory first(4096), second(4096);
  Gpu::driver().hold_stream(late);
  late.fill(first, 1);
  early.fill(second, 5);
  tl_request_t* requests[2] = {};
  ASSERT_EQ(gpu_allreduce(context, "first", first, late, &requests[0]), TL_OK) << tl_last_error();
  ASSERT_EQ(gpu_allreduce(context, "second", second, early, &requests[1]), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_wait(requests[1], 10), TL_OK) << tl_last_error();  // another stream's does not hold it up
  EXPECT_EQ(second.floats()[0], 10);
  EXPECT_EQ(tl_test(requests[0]), TL_IN_PROGRESS);
  EXPECT_EQ(tl_wait(requests[0], 0.02), TL_ERROR_TIMED_OUT);
  Gpu::driver().resume_stream(late);
  EXPECT_EQ(tl_wait(requests[0], 10), TL_OK) << tl_last_error();
  EXPECT_EQ(first.floats()[0], 2);
}

TEST(Gpu, TheProgramIsManyRoundsAheadOfTheGpu) {
  const Gpu gpu;
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const Stream stream;
  const DeviceMemory memory(100'000);
  tl_tensor_t* tensor = registered_on_gpu(context, "x", memory);
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tl_tensor_buffer(tensor), memory.data());
  stream.fill(memory, 0);
  float expected = 0;
  Gpu::driver().hold_stream(stream);
  for (int round = 0; round < 8; ++round) {
    stream.run([&] {
      for (float& x : memory.floats()) x += 1;
    });
    tl_request_t* request = nullptr;
    ASSERT_EQ(tl_post_on(&tensor, 1, stream, &request), TL_OK) << tl_last_error();
    ASSERT_EQ(tl_stream_wait(&request, 1, stream), TL_OK) << tl_last_error();
    expected = 2 * (expected + 1);
  }
  Gpu::driver().resume_stream(stream);
  EXPECT_TRUE(all_are(stream.read(memory), expected));
  ASSERT_EQ(tl_unregister(context, "x"), TL_OK) << tl_last_error();
}

// An operation that waits for its tensor begins after later ones of its stream, which cannot be ready before it.
TEST(Gpu, AnOperationBehindAnotherOfItsTensorIsNotBehindThoseOfItsStream) {
  const Gpu gpu;
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const DeviceMemory a(4096), b(4096);
  const Stream stream;
  tl_tensor_t* tensors[2] = {registered_on_gpu(context, "a", a), registered_on_gpu(context, "b", b)};
  stream.fill(a, 1);
  stream.fill(b, 1);
  Gpu::driver().hold_stream(stream);
  for (const int i : {0, 0, 1, 0}) {
    tl_request_t* request = nullptr;
    ASSERT_EQ(tl_post_on(&tensors[i], 1, stream, &request), TL_OK) << tl_last_error();
    ASSERT_EQ(tl_stream_wait(&request, 1, stream), TL_OK) << tl_last_error();
  }
  std::atomic<bool> passed{false};
  stream.run([&] { passed = true; });
  Gpu::driver().resume_stream(stream);
  ASSERT_TRUE(eventually([&] { return passed.load(); }));
  EXPECT_TRUE(all_are(stream.read(a), 8));
  EXPECT_TRUE(all_are(stream.read(b), 2));
}

TEST(Gpu, WithoutAStreamThatWaitsOneOperationAtATimeIsPossible) {
  const Gpu gpu;
  FakeDaemon daemon;
  daemon.set_mode(Mode::kHold);
  ClientContext context(daemon.socket());
  const Stream stream;
  const DeviceMemory memory(4096);
  tl_tensor_t* tensor = registered_on_gpu(context, "x", memory);
  tl_request_t *first = nullptr, *second = nullptr;
  ASSERT_EQ(tl_post_on(&tensor, 1, stream, &first), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_post_on(&tensor, 1, stream, &second), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("an operation on tensor 'x' is under way"));
  daemon.set_mode(Mode::kRun);
  EXPECT_EQ(tl_wait(first, 10), TL_OK) << tl_last_error();
}

// Two copies of a direction are on the GPU at most, and which comes next is decided when one of them ends.
TEST(Gpu, TheMostUrgentSliceIsCopiedNext) {
  const Gpu gpu(3, std::chrono::microseconds(1));
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const Stream stream;
  const DeviceMemory bulk(6 << 20), urgent(2 << 20);
  tl_tensor_t* tensors[2] = {registered_on_gpu(context, "bulk", bulk, 0.1F),
                             registered_on_gpu(context, "urgent", urgent, 1)};
  tl_request_t* requests[2] = {};
  Gpu::driver().hold_all_streams();
  Gpu::driver().resume_stream(stream);
  ASSERT_EQ(tl_post_on(tensors, 1, stream, &requests[0]), TL_OK) << tl_last_error();
  const auto copies = [] { return Gpu::driver().all_copies().size(); };
  ASSERT_TRUE(eventually([&] { return copies() == 2; }));
  ASSERT_EQ(tl_post_on(tensors + 1, 1, stream, &requests[1]), TL_OK) << tl_last_error();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(copies(), 2U);
  Gpu::driver().resume_all_streams();
  for (tl_request_t* request : requests)  // without a wait, which makes urgent
    EXPECT_TRUE(eventually([&] { return tl_test(request) == TL_OK; }));
  std::vector<char> out;
  for (const FakeCudaCopy& copy : Gpu::driver().all_copies()) {
    if (copy.direction != kFakeCudaOut) continue;
    const std::uintptr_t start = urgent.address();
    out.push_back(copy.device_address >= start && copy.device_address < start + urgent.size() ? 'u' : 'b');
  }
  EXPECT_EQ(std::string(out.begin(), out.end()), "bbuubbbb");
  EXPECT_EQ(Gpu::driver().most_in_flight(kFakeCudaOut), 2U);
  EXPECT_EQ(Gpu::driver().most_in_flight(kFakeCudaIn), 2U);
}

TEST(Gpu, AWaitMakesACopyUrgent) {
  const Gpu gpu(3, std::chrono::microseconds(1));
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const Stream stream;
  const DeviceMemory first(8 << 20), second(1 << 20);
  tl_tensor_t* tensors[2] = {registered_on_gpu(context, "first", first, 0.5F),
                             registered_on_gpu(context, "second", second, 0.1F)};
  tl_request_t* requests[2] = {};
  Gpu::driver().hold_all_streams();
  Gpu::driver().resume_stream(stream);
  ASSERT_EQ(tl_post_on(tensors, 2, stream, requests), TL_OK) << tl_last_error();
  ASSERT_TRUE(eventually([&] { return Gpu::driver().all_copies().size() == 2; }));
  EXPECT_EQ(tl_wait(requests[1], 0.01), TL_ERROR_TIMED_OUT);
  Gpu::driver().resume_all_streams();
  EXPECT_TRUE(eventually([&] { return tl_test(requests[0]) == TL_OK; }));
  EXPECT_EQ(tl_wait(requests[1], 10), TL_OK) << tl_last_error();
  EXPECT_EQ(Gpu::driver().all_copies()[2].device_address, second.address());
}

// What is in the root's memory already need not be copied there, and stays when the operation fails.
TEST(Gpu, TheRootOfABroadcastGetsNothingBack) {
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

// The copies that a waiting stream waits for may not queue up behind it on the GPU.
TEST(Gpu, StreamsThatWaitDoNotBlockCopiesWhereHardwareQueuesAreFew) {
  const Gpu gpu;
  Gpu::driver().share_channels(1);
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const Stream stream, other;
  const DeviceMemory memory(2 << 20);
  stream.fill(memory, 4);
  tl_request_t* request = nullptr;
  ASSERT_EQ(gpu_allreduce(context, "x", memory, stream, &request), TL_OK) << tl_last_error();
  ASSERT_EQ(tl_stream_wait(&request, 1, other), TL_OK) << tl_last_error();
  EXPECT_TRUE(all_are(other.read(memory), 8));
}

TEST(Gpu, WhereStreamsShallNotWaitTheProgramDoes) {
  const Gpu gpu;
  FakeDaemon daemon;
  setenv("TENSORLANE_STREAM_WAIT", "0", 1);
  ClientContext context(daemon.socket());
  const Stream stream;
  const DeviceMemory memory(4096);
  stream.fill(memory, 1);
  tl_request_t* request = nullptr;
  ASSERT_EQ(gpu_allreduce(context, "x", memory, stream, &request), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_stream_wait(&request, 1, stream), TL_OK) << tl_last_error();
  unsetenv("TENSORLANE_STREAM_WAIT");
  EXPECT_EQ(request, nullptr);
  EXPECT_EQ(memory.floats()[0], 2);
  const char* status = nullptr;
  ASSERT_EQ(tl_gpu_status(context, &status), TL_OK);
  EXPECT_THAT(status, HasSubstr(R"("stream_wait":false,"no_stream_wait_because":"TENSORLANE_STREAM_WAIT is 0")"));
}

TEST(Gpu, EveryOperationCopiesWhatItNeedsAndNoMore) {
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

TEST(Gpu, AKeyIsPushedAndPulled) {
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

TEST(Gpu, RegisteredTensorsOfEveryKind) {
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

TEST(Gpu, QueuedCallsOfOneNameTakeTurns) {
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

TEST(Gpu, CallbacksRun) {
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

TEST(Gpu, ManyTensorsThreadsAndStreams) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const Gpu gpu(seed, std::chrono::microseconds(100));
    FakeDaemon daemon;
    ClientContext context(daemon.socket());
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&, thread] {
        std::mt19937_64 random(seed * 10 + static_cast<std::uint64_t>(thread));
        const Stream streams[2];
        for (int i = 0; i < 30; ++i) {
          const Stream& stream = streams[random() % 2];
          const DeviceMemory memory(4 + random() % (random() % 4 == 0 ? 3 << 20 : 5000) / 4 * 4);
          const std::string name = "t" + std::to_string(thread) + "." + std::to_string(i);
          tl_tensor_t* tensor =
              registered_on_gpu(context, name.c_str(), memory, static_cast<float>(random() % 10) / 10);
          ASSERT_NE(tensor, nullptr);
          float expected = 0;
          stream.fill(memory, 0);
          for (std::uint64_t round = random() % 3 + 1; round > 0; --round) {
            stream.run([&] {
              for (float& x : memory.floats()) x += 1;
            });
            expected = 2 * (expected + 1);
            tl_request_t* request = nullptr;
            ASSERT_EQ(tl_post_on(&tensor, 1, stream, &request), TL_OK) << tl_last_error();
            if (random() % 3 == 0) {
              ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
            } else {
              ASSERT_EQ(tl_stream_wait(&request, 1, stream), TL_OK) << tl_last_error();
            }
          }
          ASSERT_TRUE(all_are(stream.read(memory), expected)) << name;
          ASSERT_TRUE(eventually([&] { return tl_unregister(context, name.c_str()) == TL_OK; })) << tl_last_error();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace tensorlane::test
