// GPU memory when things go wrong: wrong buffers, graphs under capture, a driver that fails, daemons and jobs that end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "fake_daemon.h"
#include "gpu_program.h"

namespace tensorlane::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr int kCudaErrorUnknown = 999, kCudaErrorIllegalAddress = 700, kCudaErrorOutOfMemory = 2;

bool all_nan(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isnan(value); });
}

TEST(GpuFaults, BuffersThatAreNotAGpusAreRefused) {
  const Gpu gpu(1, std::chrono::nanoseconds(0), 2);
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const Stream stream;
  std::vector<float> host(64);
  const DeviceMemory small(64), there(64 * 4), elsewhere(64 * 4, 1);
  const tl_options_t options = on_gpu(stream);
  tl_request_t* request = nullptr;
  const auto allreduce = [&](const char* name, const void* in, void* out) {
    return tl_allreduce(context, name, in, out, 64, TL_FLOAT32, TL_SUM, &options, &request);
  };
  EXPECT_EQ(allreduce("host", host.data(), host.data()), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("the buffer of 'allreduce.host' is not in the memory of a GPU"));
  EXPECT_EQ(allreduce("small", small.data(), small.data()), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("256 bytes were asked for, and its allocation has 64"));
  EXPECT_EQ(allreduce("two", there.data(), elsewhere.data()), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("are on two GPUs: GPU 0 and GPU 1"));
  tl_tensor_desc_t desc = tensor_desc("x", nullptr, 16);
  desc.memory = TL_MEMORY_CUDA;
  tl_tensor_t* tensor = nullptr;
  EXPECT_EQ(tl_register(context, "x", &desc, 1, &tensor), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("it is of GPU memory and has no buffer"));
  desc.buffer = there.data();
  desc.operation = TL_PUSH;
  EXPECT_EQ(tl_register(context, "x", &desc, 1, &tensor), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("use tl_push and tl_pull"));
  // The names are free, and of the other kind of memory now; then not any more.
  ASSERT_EQ(tl_allreduce(context, "host", host.data(), host.data(), 64, TL_FLOAT32, TL_SUM, nullptr, &request), TL_OK);
  EXPECT_EQ(tl_wait(request, 10), TL_OK);
  EXPECT_EQ(tl_allreduce(context, "host", there.data(), there.data(), 64, TL_FLOAT32, TL_SUM, &options, &request),
            TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("memory was host memory, is a GPU's"));
  ASSERT_EQ(tl_allreduce(context, "y", host.data(), host.data(), 64, TL_FLOAT32, TL_SUM, nullptr, &request), TL_OK);
  EXPECT_EQ(tl_stream_wait(&request, 1, stream), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("is in host memory"));
  EXPECT_EQ(tl_wait(request, 10), TL_OK);
}

TEST(GpuFaults, AGraphUnderCaptureIsRefusedAndNotBroken) {
  const Gpu gpu;
  FakeDaemon daemon;
  daemon.set_mode(Mode::kHold);
  ClientContext context(daemon.socket());
  const Stream stream, captured;
  const DeviceMemory memory(8192);
  tl_tensor_t* tensor = registered_on_gpu(context, "x", memory);
  tl_request_t *request = nullptr, *other = nullptr;
  ASSERT_EQ(tl_post_on(&tensor, 1, stream, &request), TL_OK) << tl_last_error();
  ASSERT_EQ(Gpu::driver().begin_capture(captured, 1), 0);  // as PyTorch does, while a copy is under way
  EXPECT_EQ(tl_stream_wait(&request, 1, captured), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("a CUDA graph is being captured on this stream: tensor 'x', GPU 0"));
  ASSERT_NE(request, nullptr);
  const tl_options_t options = on_gpu(captured);
  EXPECT_EQ(tl_allreduce(context, "y", memory.data(), memory.data(), 8, TL_FLOAT32, TL_SUM, &options, &other),
            TL_ERROR_INVALID_ARGUMENT);
  daemon.set_mode(Mode::kRun);
  EXPECT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
  ASSERT_EQ(Gpu::driver().end_capture(captured), 0);
  ASSERT_EQ(tl_post_on(&tensor, 1, captured, &request), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_stream_wait(&request, 1, captured), TL_OK) << tl_last_error();
  captured.synchronize();
}

TEST(GpuFaults, WithoutPinnedMemoryTheCallSaysSo) {
  const Gpu gpu;
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const Stream stream;
  const DeviceMemory memory(4096);
  tl_request_t* request = nullptr;
  ASSERT_EQ(gpu_allreduce(context, "first", memory, stream, &request), TL_OK)
      << tl_last_error();  // words and a segment
  EXPECT_EQ(tl_wait(request, 10), TL_OK);
  const DeviceMemory large(80 << 20);  // needs another segment
  Gpu::driver().fail("cuMemHostRegister_v2", 1, kCudaErrorOutOfMemory);
  EXPECT_EQ(gpu_allreduce(context, "x", large, stream, &request), TL_ERROR_RESOURCE_EXHAUSTED);
  EXPECT_THAT(tl_last_error(), HasSubstr("raise the limit of locked memory"));
  ASSERT_EQ(gpu_allreduce(context, "x", large, stream, &request), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_wait(request, 20), TL_OK) << tl_last_error();
}

// What a stream waited for has failed: it goes on, with numbers that nobody takes for a result.
TEST(GpuFaults, TheEndOfTheDaemonStopsNoStream) {
  const Gpu gpu;
  auto daemon = std::make_optional<FakeDaemon>();
  daemon->set_mode(Mode::kHold);
  ClientContext context(daemon->socket());
  const Stream stream;
  const DeviceMemory memory(3 << 20), queued(4096);
  tl_tensor_t* tensor = registered_on_gpu(context, "x", memory);
  stream.fill(memory, 1);
  tl_request_t* requests[2] = {};
  for (int i = 0; i < 2; ++i) {  // the second is behind the first
    ASSERT_EQ(tl_post_on(&tensor, 1, stream, &requests[0]), TL_OK) << tl_last_error();
    ASSERT_EQ(tl_stream_wait(requests, 1, stream), TL_OK) << tl_last_error();
  }
  ASSERT_TRUE(daemon->wait_submitted(1));
  daemon.reset();
  EXPECT_TRUE(all_nan(stream.read(memory)));
  EXPECT_THAT(tl_post_on(&tensor, 1, stream, requests), AnyOf(TL_ERROR_UNAVAILABLE, TL_ERROR_ABORTED));
}

TEST(GpuFaults, AnOperationThatFailsBehindAnotherStopsNoStreamEither) {
  const Gpu gpu;
  FakeDaemon daemon;
  daemon.set_mode(Mode::kHold);
  ClientContext context(daemon.socket());
  const Stream stream;
  const DeviceMemory first(4096), behind(4096);
  for (const DeviceMemory* memory : {&first, &behind}) {
    stream.fill(*memory, 1);
    tl_request_t* request = nullptr;
    ASSERT_EQ(gpu_allreduce(context, "x", *memory, stream, &request, true), TL_OK) << tl_last_error();
    ASSERT_EQ(tl_stream_wait(&request, 1, stream), TL_OK) << tl_last_error();
  }
  ASSERT_TRUE(daemon.wait_submitted(1));
  daemon.abort_job("job", Status(Code::kAborted, "it is over", "job 'job'", "start again"));
  EXPECT_TRUE(all_nan(stream.read(first)));
  EXPECT_TRUE(all_nan(stream.read(behind)));
}

TEST(GpuFaults, TheEndOfTheJobFailsWhatIsUnderWay) {
  const Gpu gpu;
  FakeDaemon daemon;
  daemon.set_mode(Mode::kHold);
  ClientContext context(daemon.socket());
  const Stream stream, stuck;
  const DeviceMemory waited(4096), detached(4096), unread(4096);
  tl_request_t* requests[3] = {};
  ASSERT_EQ(gpu_allreduce(context, "waited", waited, stream, &requests[0]), TL_OK) << tl_last_error();
  ASSERT_EQ(gpu_allreduce(context, "detached", detached, stream, &requests[1]), TL_OK) << tl_last_error();
  ASSERT_EQ(tl_stream_wait(&requests[1], 1, stream), TL_OK) << tl_last_error();
  ASSERT_TRUE(daemon.wait_submitted(2));
  Gpu::driver().hold_stream(stuck);
  stuck.run([] {});
  ASSERT_EQ(gpu_allreduce(context, "unread", unread, stuck, &requests[2]), TL_OK) << tl_last_error();
  daemon.abort_job("job", Status(Code::kAborted, "it is over", "job 'job'", "start again"));
  EXPECT_EQ(tl_wait(requests[0], 10), TL_ERROR_ABORTED);
  EXPECT_THAT(tl_last_error(), HasSubstr("it is over"));
  EXPECT_EQ(tl_wait(requests[2], 10), TL_ERROR_ABORTED);  // though its stream never came so far
  EXPECT_TRUE(all_nan(stream.read(detached)));
  EXPECT_FALSE(all_nan(stream.read(waited)));
}

// A call that begins several operations finds that the job has failed when it has begun some of them.
TEST(GpuFaults, TheJobFailsWhileOperationsAreBegun) {
  for (int round = 0; round < 30; ++round) {
    const Gpu gpu(static_cast<std::uint64_t>(round), std::chrono::microseconds(1));
    FakeDaemon daemon;
    daemon.set_mode(Mode::kHold);
    ClientContext context(daemon.socket());
    const DeviceMemory memory(4096);
    const Stream stream;
    tl_tensor_t* tensors[2] = {registered_on_gpu(context, "x", memory), registered(context, "y", nullptr, 16)};
    tl_request_t *busy = nullptr, *requests[2] = {};
    ASSERT_EQ(tl_post(tensors[1], &busy), TL_OK) << tl_last_error();
    ASSERT_TRUE(daemon.wait_submitted(1));
    std::thread ends([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(20 * round));
      daemon.fail_rings("job", Status(Code::kAborted, "it is over", "job 'job'", "start again"));
    });
    // "y" is under way, so that the call looks for what has come, after it has begun "x".
    while (tl_post_on(tensors, 2, stream, requests) == TL_ERROR_INVALID_ARGUMENT) EXPECT_EQ(requests[0], nullptr);
    EXPECT_THAT(tl_last_error(), HasSubstr("it is over"));
    ends.join();
    EXPECT_EQ(tl_wait(busy, 10), TL_ERROR_ABORTED);
    EXPECT_NE(context.leave(), TL_ERROR_TIMED_OUT);
  }
}

// Only that operation fails, and its stream was the one to wait: the next call says why, once.
TEST(GpuFaults, ARefusedOperationIsToldToTheNextCall) {
  const Gpu gpu;
  FakeDaemon daemon;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ClientContext context(daemon.socket(), "job", rank, 2);
      const Stream stream;
      const DeviceMemory memory(rank == 0 ? 256 : 512), fine(64);
      tl_request_t* request = nullptr;
      stream.fill(memory, 1);
      ASSERT_EQ(gpu_allreduce(context, "x", memory, stream, &request), TL_OK) << tl_last_error();
      const tl_status_t waited = tl_stream_wait(&request, 1, stream);
      if (waited == TL_OK) {
        EXPECT_TRUE(all_nan(stream.read(memory)));
        EXPECT_EQ(gpu_allreduce(context, "y", fine, stream, &request), TL_ERROR_MISMATCH);
      } else {
        EXPECT_EQ(waited, TL_ERROR_MISMATCH);  // it was known already
      }
      EXPECT_THAT(tl_last_error(), HasSubstr("ranks disagree"));
      stream.fill(fine, 1);
      ASSERT_EQ(gpu_allreduce(context, "y", fine, stream, &request), TL_OK) << tl_last_error();
      ASSERT_EQ(tl_stream_wait(&request, 1, stream), TL_OK) << tl_last_error();
      EXPECT_TRUE(all_are(stream.read(fine), 4));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A GPU that fails in an operation ends this rank's part, and its daemon hears of it; the other contexts of the process
// do not.
TEST(GpuFaults, AFailureOnTheGpuIsNamedAndEndsTheRank) {
  for (const char* symbol : {"cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"}) {
    Gpu gpu;
    gpu.is_broken();
    FakeDaemon daemon;
    ClientContext context(daemon.socket()), other(daemon.socket(), "other");
    const Stream stream;
    const DeviceMemory memory(3 << 20);
    tl_request_t* request = nullptr;
    Gpu::driver().fail_async(symbol, 2, kCudaErrorIllegalAddress);
    ASSERT_EQ(gpu_allreduce(context, "x", memory, stream, &request), TL_OK) << tl_last_error();
    EXPECT_EQ(tl_wait(request, 10), TL_ERROR_UNAVAILABLE);
    EXPECT_THAT(tl_last_error(), AllOf(HasSubstr("(700)"), HasSubstr("tensor 'allreduce.x', GPU 0")));
    EXPECT_FALSE(daemon.leaves(1)[0].ok());
    float x[4] = {1, 1, 1, 1};
    ASSERT_EQ(tl_allreduce(other, "x", x, x, 4, TL_FLOAT32, TL_SUM, nullptr, &request), TL_OK) << tl_last_error();
    EXPECT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
    EXPECT_EQ(x[0], 2);
  }
}

// The program frees memory that an operation has yet to write: an error that is not sticky, and names the tensor.
TEST(GpuFaults, MemoryThatIsFreedWhileItIsInUseEndsTheRank) {
  Gpu gpu;
  gpu.is_misused("cuMemcpyHtoDAsync_v2");
  FakeDaemon daemon;
  daemon.set_mode(Mode::kHold);
  ClientContext context(daemon.socket()), other(daemon.socket(), "other");
  const Stream stream;
  DeviceMemory memory(4096);
  const DeviceMemory kept(4096);
  tl_request_t* request = nullptr;
  ASSERT_EQ(gpu_allreduce(context, "x", memory, stream, &request), TL_OK) << tl_last_error();
  ASSERT_TRUE(daemon.wait_submitted(1));
  memory.free();
  daemon.set_mode(Mode::kRun);
  EXPECT_EQ(tl_wait(request, 10), TL_ERROR_UNAVAILABLE);
  EXPECT_THAT(tl_last_error(), AllOf(HasSubstr("cuMemcpyHtoDAsync failed"), HasSubstr("tensor 'allreduce.x', GPU 0")));
  stream.fill(kept, 1);
  ASSERT_EQ(gpu_allreduce(other, "x", kept, stream, &request), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
  EXPECT_EQ(kept.floats()[1023], 2);
}

TEST(GpuFaults, AGpuThatIsResetEndsTheRank) {
  Gpu gpu;
  gpu.is_broken();
  FakeDaemon daemon;
  daemon.set_mode(Mode::kHold);
  ClientContext context(daemon.socket());
  const Stream stream;
  const DeviceMemory memory(4096);
  tl_request_t *request = nullptr, *next = nullptr;
  ASSERT_EQ(gpu_allreduce(context, "x", memory, stream, &request), TL_OK) << tl_last_error();
  ASSERT_TRUE(daemon.wait_submitted(1));
  constexpr int kContextIsDestroyed = 709;
  Gpu::driver().break_device(0, kContextIsDestroyed);
  daemon.set_mode(Mode::kRun);  // it is seen when the result comes
  EXPECT_EQ(tl_wait(request, 10), TL_ERROR_UNAVAILABLE);
  EXPECT_THAT(tl_last_error(), AllOf(HasSubstr("(709)"), HasSubstr("tensor 'allreduce.x', GPU 0")));
  EXPECT_EQ(gpu_allreduce(context, "x", memory, stream, &next), TL_ERROR_UNAVAILABLE);
}

TEST(GpuFaults, AContextEndsWithOperationsUnderWay) {
  const Gpu gpu;
  FakeDaemon daemon;
  daemon.set_mode(Mode::kHold);
  const Stream stream, held;
  const DeviceMemory memory(4096), unread(4096);
  {
    ClientContext context(daemon.socket(), "job", 0, 1, 0.3);
    tl_request_t* requests[2] = {};
    ASSERT_EQ(gpu_allreduce(context, "x", memory, stream, &requests[0]), TL_OK) << tl_last_error();
    ASSERT_EQ(tl_stream_wait(requests, 1, stream), TL_OK) << tl_last_error();
    Gpu::driver().hold_stream(held);
    held.run([] {});
    ASSERT_EQ(gpu_allreduce(context, "y", unread, held, &requests[1]), TL_OK) << tl_last_error();
    EXPECT_EQ(context.leave(), TL_ERROR_TIMED_OUT);
  }
  EXPECT_TRUE(all_nan(stream.read(memory)));
}

// Everything that the library asks the driver for, refused once: the call says so by name, or what is under way fails;
// the result is right or none; nothing is left; and the next context works.
struct Outcome {
  bool failed = false;
  std::string error;
};

Outcome run_program(FakeDaemon& daemon, const std::string& job) {
  Outcome outcome;
  ClientContext context(daemon.socket(), job);
  const DeviceMemory x(3 << 20), y(4096);
  const Stream stream;  // ends before them
  const auto failed = [&](tl_status_t status) {
    if (status == TL_OK) return false;
    if (!outcome.failed) outcome = {true, tl_last_error()};
    return true;
  };
  tl_tensor_desc_t desc = tensor_desc("x", x.data(), x.floats().size());
  desc.memory = TL_MEMORY_CUDA;
  tl_tensor_t* tensor = nullptr;
  if (failed(tl_register(context, "x", &desc, 1, &tensor))) return outcome;
  for (int round = 0; round < 2; ++round) {
    tl_request_t* requests[2] = {};
    stream.fill(x, 1);
    stream.fill(y, 1);
    if (failed(tl_post_on(&tensor, 1, stream, &requests[0]))) return outcome;
    const bool begun = !failed(gpu_allreduce(context, "y", y, stream, &requests[1]));
    if (failed(tl_stream_wait(&requests[0], 1, stream)) && requests[0] != nullptr) (void)tl_wait(requests[0], 10);
    if (begun) (void)failed(tl_wait(requests[1], 10));
    const std::vector<float> result = stream.read(x);
    // An operation that fails after its stream was told to wait is told to the call after it.
    if (!outcome.failed && !all_are(result, 2)) {
      EXPECT_TRUE(all_nan(result));
      tl_request_t* next = nullptr;
      EXPECT_TRUE(failed(gpu_allreduce(context, "z", y, stream, &next)));
    }
    if (outcome.failed) return outcome;
    EXPECT_TRUE(all_are({y.floats().begin(), y.floats().end()}, 2));
  }
  (void)failed(tl_unregister(context, "x"));
  (void)failed(context.leave());
  return outcome;
}

TEST(GpuFaults, EveryCallOfTheDriverFailsOnce) {
  FakeDaemon daemon;
  int jobs = 0, failures = 0;
  for (const std::string& symbol : Gpu::driver().all_calls()) {
    const bool gives_back = symbol.find("Destroy") != std::string::npos ||
                            symbol.find("Unregister") != std::string::npos ||
                            symbol.find("Release") != std::string::npos || symbol.find("Pop") != std::string::npos;
    for (int n = 1; n <= 12; ++n) {
      SCOPED_TRACE(symbol + " " + std::to_string(n));
      bool came = false;
      Outcome outcome;
      {
        Gpu gpu(static_cast<std::uint64_t>(n), std::chrono::microseconds(5));
        if (gives_back) gpu.is_broken();  // what was to be given back is left
        Gpu::driver().fail(symbol.c_str(), static_cast<std::uint64_t>(n), kCudaErrorUnknown);
        outcome = run_program(daemon, numbered("job", ++jobs));
        came = Gpu::driver().calls(symbol.c_str()) >= n;
      }
      if (outcome.failed) {
        ++failures;
        EXPECT_THAT(outcome.error, AnyOf(HasSubstr("(999)"), HasSubstr("is not in the memory of a GPU")));
      }
      const Gpu gpu;
      const Outcome again = run_program(daemon, numbered("job", ++jobs));
      EXPECT_FALSE(again.failed) << again.error;
      if (!came || HasFailure()) break;
    }
  }
  EXPECT_GT(failures, 40);
}

}  // namespace
}  // namespace tensorlane::test
