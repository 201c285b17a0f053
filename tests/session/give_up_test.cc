// After a client's error its buffers are the program's again, whatever the daemon still does to them (law 18).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "context_guard.h"
#include "fake_daemon.h"

namespace tensorlane::test {
namespace {

using testing::Each;
using testing::HasSubstr;

constexpr std::size_t kPageFloats = 4096 / sizeof(float);
const Status kCause(Code::kAborted, "somebody pulled the plug", "job 'job'", "start again");

// `small` shares its page with `neighbour`; `large` begins and ends inside of pages; `idle` has pages of its own.
struct Buffers {
  explicit Buffers(const ClientContext& context)
      : neighbour(context.floats(16)),
        small(context.floats(16)),
        between(context.floats(kPageFloats)),
        large(context.floats(5 * kPageFloats)),
        after(context.floats(3 * kPageFloats)),
        idle(context.floats(kPageFloats)) {}
  float *neighbour, *small, *between, *large, *after, *idle;
};

TEST(GiveUp, ADaemonThatGoesOnDoesNotWriteIntoThem) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const Buffers b(context);
  tl_tensor_t* tensors[2] = {registered(context, "small", b.small, 16),
                             registered(context, "large", b.large, 5 * kPageFloats)};
  registered(context, "idle", b.idle, kPageFloats);
  std::fill_n(b.large, 5 * kPageFloats, 3.0F);
  daemon.set_mode(Mode::kHold);
  tl_request_t* requests[2] = {};
  ASSERT_EQ(tl_post_many(tensors, 2, requests), TL_OK) << tl_last_error();
  ASSERT_TRUE(daemon.wait_submitted(2));

  // Somebody works beside them, on the same page, all the while.
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> counted{0};
  std::thread other([&] {
    volatile float* word = b.neighbour;
    while (!stop) {
      const float next = word[3] + 1;
      word[3] = next < 1e6F ? next : 0;
      if (++counted % 1024 == 0) std::this_thread::yield();
      if (word[3] != (next < 1e6F ? next : 0)) ADD_FAILURE() << "a write was lost";
    }
  });
  while (counted < 5000) std::this_thread::yield();
  daemon.fail_rings("job", kCause);
  EXPECT_EQ(tl_wait(requests[0], 10), TL_ERROR_ABORTED);
  EXPECT_THAT(tl_last_error(), HasSubstr("somebody pulled the plug: job 'job': start again"));
  EXPECT_EQ(tl_wait(requests[1], 10), TL_ERROR_ABORTED);
  stop = true;
  other.join();

  EXPECT_EQ(b.large[4711], 3) << "what was there before is there";
  std::fill_n(b.small, 16, -7.0F);
  std::fill_n(b.large, 5 * kPageFloats, -7.0F);
  daemon.write_to_buffers("job", 0);
  EXPECT_THAT(std::vector<float>(b.small, b.small + 16), Each(-7.0F));
  EXPECT_THAT(std::vector<float>(b.large, b.large + 5 * kPageFloats), Each(-7.0F));
  daemon.write_to_buffers("job", 0x41);
  EXPECT_GT(b.idle[0], 12) << "no operation was under way there: it costs no memory";
}

// A short one that begins on the page of a long one, and one of another segment.
TEST(GiveUp, AllPagesWhereverBuffersBegin) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  constexpr std::size_t kManyFloats = 100 << 18;  // 100 MiB: a segment of its own
  constexpr std::size_t kCounts[] = {16, 5 * kPageFloats, kManyFloats};
  float* buffers[] = {context.floats(kCounts[0]), context.floats(kCounts[1]), context.floats(kCounts[2])};
  ASSERT_LT((buffers[1] - buffers[0]), static_cast<std::ptrdiff_t>(kPageFloats)) << "they begin on one page";
  tl_tensor_t* tensors[3] = {};
  tl_request_t* requests[3] = {};
  for (const std::size_t i : {1, 0, 2}) {  // the long one first
    tensors[i] = registered(context, numbered("t", static_cast<int>(i)).c_str(), buffers[i], kCounts[i]);
    std::fill_n(buffers[i], kCounts[i], static_cast<float>(i + 3));
  }
  daemon.set_mode(Mode::kHold);
  ASSERT_EQ(tl_post_many(tensors, 3, requests), TL_OK) << tl_last_error();
  ASSERT_TRUE(daemon.wait_submitted(3));
  daemon.fail_rings("job", kCause);
  EXPECT_EQ(tl_wait_many(requests, 3, 10), TL_ERROR_ABORTED);
  EXPECT_THAT(tl_last_error(), testing::Not(HasSubstr("do not use")));
  daemon.write_to_buffers("job", 0x41);
  for (const std::size_t i : {0, 1, 2}) {
    EXPECT_EQ(std::count(buffers[i], buffers[i] + kCounts[i], static_cast<float>(i + 3)),
              static_cast<std::ptrdiff_t>(kCounts[i]))
        << "what was there before is there, in buffer " << i;
  }
}

// A daemon that completes them as failed has given them back.
TEST(GiveUp, BuffersThatAreGivenBackStayShared) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  float* x = context.floats(kPageFloats);
  tl_tensor_t* tensor = registered(context, "x", x, kPageFloats);
  daemon.set_mode(Mode::kHold);
  tl_request_t* request = nullptr;
  ASSERT_EQ(tl_post(tensor, &request), TL_OK) << tl_last_error();
  ASSERT_TRUE(daemon.wait_submitted(1));
  daemon.abort_job("job", kCause);
  EXPECT_EQ(tl_wait(request, 10), TL_ERROR_ABORTED);
  daemon.write_to_buffers("job", 0x41);
  EXPECT_GT(x[0], 12);
}

// More buffers than it spends mappings on: what lies between them comes along.
TEST(GiveUp, ManyBuffers) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  constexpr std::size_t kTensors = 10000;
  float* memory = context.floats(2 * kTensors * kPageFloats);
  std::vector<std::string> names;
  std::vector<tl_tensor_desc_t> descs;
  for (std::size_t i = 0; i < kTensors; ++i) names.push_back(numbered("t", static_cast<int>(i)));
  for (std::size_t i = 0; i < kTensors; ++i)
    descs.push_back(tensor_desc(names[i].c_str(), memory + 2 * i * kPageFloats, 16));
  std::vector<tl_tensor_t*> tensors(kTensors);
  ASSERT_EQ(tl_register(context, "all", descs.data(), kTensors, tensors.data()), TL_OK) << tl_last_error();
  daemon.set_mode(Mode::kHold);
  std::vector<tl_request_t*> requests(kTensors);
  ASSERT_EQ(tl_post_many(tensors.data(), kTensors, requests.data()), TL_OK) << tl_last_error();
  ASSERT_TRUE(daemon.wait_submitted(kTensors));
  daemon.fail_rings("job", kCause);
  EXPECT_EQ(tl_wait_many(requests.data(), kTensors, 10), TL_ERROR_ABORTED);
  EXPECT_THAT(tl_last_error(), HasSubstr("start again"));
  EXPECT_THAT(tl_last_error(), testing::Not(HasSubstr("do not use")));
  daemon.write_to_buffers("job", 0x41);
  float sum = 0;
  for (std::size_t i = 0; i < kTensors; ++i) sum += memory[2 * i * kPageFloats];
  EXPECT_EQ(sum, 0);
}

TEST(GiveUp, WithoutMemoryTheErrorForbidsThem) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  constexpr std::uint64_t kCount = 64 << 20 >> 2;
  tl_tensor_t* tensor = registered(context, "x", nullptr, kCount);
  daemon.set_mode(Mode::kHold);
  tl_request_t* request = nullptr;
  ASSERT_EQ(tl_post(tensor, &request), TL_OK) << tl_last_error();
  ASSERT_TRUE(daemon.wait_submitted(1));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_DATA, &before), 0);
  std::ifstream status("/proc/self/status");
  rlim_t used = 0;
  for (std::string word; status >> word;) {
    if (word == "VmData:") status >> used;
  }
  const rlimit tight{(used << 10) + (16 << 20), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &tight), 0);
  daemon.fail_rings("job", kCause);
  EXPECT_EQ(tl_wait(request, 10), TL_ERROR_ABORTED);
  const std::string error = tl_last_error();
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &before), 0);
  EXPECT_THAT(error,
              HasSubstr("somebody pulled the plug: job 'job'; the daemon could not be cut off from the buffers"));
  EXPECT_THAT(error, HasSubstr("do not use these buffers again, the daemon may still write to them; start again"));
}

}  // namespace
}  // namespace tensorlane::test
