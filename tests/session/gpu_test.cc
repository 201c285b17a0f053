// GPU memory through the real client library: order of streams, urgency, results. The fake daemon's allreduce gives
// twice the sum.
#include "gpu_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(Gpu, AWaitBeforeItsStreamHasComeReachesTheDaemonLater) {
  const Gpu gpu;
  FakeDaemon daemon;
  daemon.set_mode(Mode::kHold);
  ClientContext context(daemon.socket());
  const Stream stream;
  const DeviceMemory memory(4096);
  tl_tensor_t* tensor = registered_on_gpu(context, "x", memory);
  Gpu::driver().hold_stream(stream);
  stream.fill(memory, 1);
  tl_request_t* request = nullptr;
  ASSERT_EQ(tl_post_on(&tensor, 1, stream, &request), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_wait(request, 0.02), TL_ERROR_TIMED_OUT);
  EXPECT_EQ(daemon.boosts(), 0U);
  Gpu::driver().resume_stream(stream);
  EXPECT_TRUE(eventually([&] { return daemon.boosts() == 1; }));
  daemon.set_mode(Mode::kRun);
  EXPECT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
}

// What the GPU's side of an operation was used for before does not matter to the next.
TEST(Gpu, AWaitMakesItsOwnOperationUrgentAndNoLaterOne) {
  const Gpu gpu(3, std::chrono::microseconds(1));
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const Stream stream, late;
  const DeviceMemory bulk(8 << 20), low(1 << 20);
  tl_tensor_t* tensors[2] = {registered_on_gpu(context, "bulk", bulk, 0.5F), registered_on_gpu(context, "low", low, 0)};
  tl_request_t* requests[2] = {};
  const auto is_done = [&](int i) { return eventually([&] { return tl_test(requests[i]) == TL_OK; }); };
  Gpu::driver().hold_stream(late);
  late.run([] {});
  ASSERT_EQ(tl_post_on(&tensors[0], 1, late, &requests[0]), TL_OK) << tl_last_error();
  ASSERT_EQ(tl_post_on(&tensors[1], 1, stream, &requests[1]), TL_OK) << tl_last_error();
  ASSERT_EQ(tl_wait(requests[1], 10), TL_OK) << tl_last_error();
  Gpu::driver().resume_stream(late);
  ASSERT_TRUE(is_done(0));
  const std::size_t before = Gpu::driver().all_copies().size();
  Gpu::driver().hold_all_streams();
  Gpu::driver().resume_stream(stream);
  ASSERT_EQ(tl_post_on(&tensors[0], 1, stream, &requests[0]), TL_OK) << tl_last_error();
  ASSERT_TRUE(eventually([&] { return Gpu::driver().all_copies().size() == before + 2; }));
  ASSERT_EQ(tl_post_on(&tensors[1], 1, stream, &requests[1]), TL_OK) << tl_last_error();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  Gpu::driver().resume_all_streams();
  ASSERT_TRUE(is_done(0));
  ASSERT_TRUE(is_done(1));
  for (std::size_t i = 0; i < 8; ++i) EXPECT_NE(Gpu::driver().all_copies()[before + i].device_address, low.address());
}

TEST(Gpu, TheUrgencyOfAnArrayCallOrdersItsCopies) {
  const Gpu gpu(3, std::chrono::microseconds(1));
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const Stream stream;
  const DeviceMemory bulk(6 << 20), urgent(1 << 20);
  tl_request_t* requests[2] = {};
  const auto call = [&](const char* name, const DeviceMemory& memory, float urgency, tl_request_t** request) {
    tl_options_t options = on_gpu(stream);
    options.urgency = urgency;
    return tl_allreduce(context, name, memory.data(), memory.data(), memory.floats().size(), TL_FLOAT32, TL_SUM,
                        &options, request);
  };
  Gpu::driver().hold_all_streams();
  Gpu::driver().resume_stream(stream);
  ASSERT_EQ(call("bulk", bulk, 0.1F, &requests[0]), TL_OK) << tl_last_error();
  ASSERT_TRUE(eventually([&] { return Gpu::driver().all_copies().size() == 2; }));
  ASSERT_EQ(call("urgent", urgent, 0.9F, &requests[1]), TL_OK) << tl_last_error();
  stream.synchronize();  // its event has come; the stager, which turns now and then, sees it before the next copy ends
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  Gpu::driver().resume_all_streams();
  for (tl_request_t* request : requests) EXPECT_TRUE(eventually([&] { return tl_test(request) == TL_OK; }));
  EXPECT_EQ(Gpu::driver().all_copies()[2].device_address, urgent.address());
}

TEST(Gpu, BehindAnOperationThatAStreamWaitsForOneThatTheProgramWaitsForIsTheLast) {
  const Gpu gpu;
  FakeDaemon daemon;
  daemon.set_mode(Mode::kHold);
  ClientContext context(daemon.socket());
  const Stream stream;
  const DeviceMemory memory(4096);
  tl_tensor_t* tensor = registered_on_gpu(context, "x", memory);
  stream.fill(memory, 1);
  tl_request_t *first = nullptr, *second = nullptr, *third = nullptr;
  ASSERT_EQ(tl_post_on(&tensor, 1, stream, &first), TL_OK) << tl_last_error();
  ASSERT_EQ(tl_stream_wait(&first, 1, stream), TL_OK) << tl_last_error();
  ASSERT_EQ(tl_post_on(&tensor, 1, stream, &second), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_post_on(&tensor, 1, stream, &third), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("an operation on tensor 'x' is under way"));
  daemon.set_mode(Mode::kRun);
  EXPECT_EQ(tl_wait(second, 10), TL_OK) << tl_last_error();
  EXPECT_EQ(memory.floats()[0], 4);
}

TEST(Gpu, AStreamWaitsForAResultThatIsOnItsWayToTheGpu) {
  const Gpu gpu;
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const Stream stream;
  const DeviceMemory memory(4096);
  tl_tensor_t* tensor = registered_on_gpu(context, "x", memory);
  stream.fill(memory, 1);
  void* in = nullptr;  // ours from host to GPU
  for (int round = 0; round < 2; ++round) {
    tl_request_t* request = nullptr;
    ASSERT_EQ(tl_post_on(&tensor, 1, stream, &request), TL_OK) << tl_last_error();
    if (round == 0) {
      ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
      in = Gpu::driver().all_copies().back().stream;
      Gpu::driver().hold_stream(in);
      continue;
    }
    ASSERT_TRUE(eventually([] { return Gpu::driver().all_copies().size() == 4; }));
    ASSERT_EQ(tl_stream_wait(&request, 1, stream), TL_OK) << tl_last_error();
    std::atomic<bool> passed{false};
    stream.run([&] { passed = true; });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(passed);
    Gpu::driver().resume_stream(in);
    EXPECT_TRUE(all_are(stream.read(memory), 4));
    EXPECT_TRUE(passed);
  }
}

TEST(Gpu, CallsLeaveTheThreadsCaptureModeAsItWas) {
  const Gpu gpu;
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const Stream stream;
  const DeviceMemory memory(4096);
  constexpr int kThreadLocal = 1;  // of CUDA's modes neither the first nor the library's
  int mode = kThreadLocal;
  ASSERT_EQ(Gpu::driver().driver.capture_mode(&mode), 0);
  const int before = std::exchange(mode, kThreadLocal);
  tl_request_t* request = nullptr;
  ASSERT_EQ(gpu_allreduce(context, "x", memory, stream, &request), TL_OK) << tl_last_error();
  ASSERT_EQ(tl_stream_wait(&request, 1, stream), TL_OK) << tl_last_error();
  mode = before;
  ASSERT_EQ(Gpu::driver().driver.capture_mode(&mode), 0);
  EXPECT_EQ(mode, kThreadLocal);
  stream.synchronize();
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
