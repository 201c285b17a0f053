// Registered tensors: posting, waiting, testing, callbacks, failure of the job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "context_guard.h"
#include "fake_daemon.h"

namespace tensorlane::test {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

TEST(Operations, WorksInPlaceWithoutACopy) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  float* x = context.floats(1000);
  for (int i = 0; i < 1000; ++i) x[i] = static_cast<float>(i);
  tl_tensor_t* tensor = registered(context, "x", x, 1000);
  EXPECT_EQ(tl_tensor_buffer(tensor), x);
  for (int round = 1; round <= 3; ++round) {
    tl_request_t* request = nullptr;
    ASSERT_EQ(tl_post(tensor, &request), TL_OK) << tl_last_error();
    ASSERT_EQ(tl_wait(request, 5), TL_OK) << tl_last_error();
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(x[i], static_cast<float>(i << round));
  }
  EXPECT_EQ(context.leave(), TL_OK) << tl_last_error();
  EXPECT_THAT(daemon.leaves(1), testing::ElementsAre(Status()));
}

TEST(Operations, SumsOverRanksAndKeepsJobsApart) {
  FakeDaemon daemon;
  constexpr int kRanks = 3, kJobs = 2;
  std::vector<std::thread> threads;
  for (int job = 0; job < kJobs; ++job) {
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, job, rank] {
        ClientContext context(daemon.socket(), numbered("job", job), rank, kRanks);
        ASSERT_EQ(context.status(), TL_OK) << context.error();
        EXPECT_EQ(tl_rank(context), rank);
        EXPECT_EQ(tl_size(context), kRanks);
        float* x = context.floats(64);
        tl_tensor_t* tensor = registered(context, "x", x, 64);
        for (int round = 0; round < 200; ++round) {
          for (int i = 0; i < 64; ++i) x[i] = static_cast<float>(job * 1000 + rank + round);
          tl_request_t* request = nullptr;
          ASSERT_EQ(tl_post(tensor, &request), TL_OK) << tl_last_error();
          ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
          for (int i = 0; i < 64; ++i) ASSERT_EQ(x[i], static_cast<float>(2 * (3 * (job * 1000 + round) + 3)));
        }
        EXPECT_EQ(tl_barrier(context, 10), TL_OK) << tl_last_error();
        EXPECT_EQ(tl_barrier(context, 10), TL_OK) << tl_last_error();
        EXPECT_EQ(context.leave(), TL_OK) << tl_last_error();
      });
    }
  }
  for (std::thread& t : threads) t.join();
}

TEST(Operations, CompletesInAnyOrder) {
  FakeDaemon daemon;
  daemon.set_mode(Mode::kReverse);
  ClientContext context(daemon.socket());
  constexpr int kTensors = 300;  // more than one packet of a registration holds
  std::vector<tl_tensor_desc_t> descs;
  std::vector<std::string> names;
  for (int i = 0; i < kTensors; ++i) names.push_back(numbered("t", static_cast<int>(i)));
  for (const std::string& name : names) descs.push_back(tensor_desc(name.c_str(), nullptr, 16));
  std::vector<tl_tensor_t*> tensors(kTensors);
  ASSERT_EQ(tl_register(context, "all", descs.data(), descs.size(), tensors.data()), TL_OK) << tl_last_error();
  std::vector<tl_request_t*> requests(kTensors);
  for (int i = 0; i < kTensors; ++i) {
    static_cast<float*>(tl_tensor_buffer(tensors[i]))[0] = static_cast<float>(i);
    ASSERT_EQ(tl_post(tensors[i], &requests[i]), TL_OK) << tl_last_error();
  }
  ASSERT_TRUE(daemon.wait_submitted(kTensors));
  EXPECT_EQ(tl_test(requests[0]), TL_IN_PROGRESS);
  EXPECT_EQ(tl_wait(requests[0], 0.02), TL_ERROR_TIMED_OUT);
  EXPECT_THAT(tl_last_error(), HasSubstr("tensor 't0' is not done"));
  daemon.flush();
  for (int i = 0; i < kTensors; ++i) {
    ASSERT_EQ(tl_wait(requests[i], 5), TL_OK) << tl_last_error();
    EXPECT_EQ(static_cast<float*>(tl_tensor_buffer(tensors[i]))[0], static_cast<float>(2 * i));
  }
}

// All of them or none, with the results and the errors of single calls.
TEST(Operations, ManyWithOneCall) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  constexpr std::size_t kTensors = 20;
  std::vector<tl_tensor_t*> tensors;
  for (std::size_t i = 0; i < kTensors; ++i)
    tensors.push_back(registered(context, numbered("t", static_cast<int>(i)).c_str(), nullptr, 16));
  std::vector<tl_request_t*> requests(kTensors);
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < kTensors; ++i)
      static_cast<float*>(tl_tensor_buffer(tensors[i]))[3] = static_cast<float>(i + 1);
    ASSERT_EQ(tl_post_many(tensors.data(), kTensors, requests.data()), TL_OK) << tl_last_error();
    ASSERT_EQ(tl_wait_many(requests.data(), kTensors, 5), TL_OK) << tl_last_error();
    EXPECT_THAT(requests, testing::Each(nullptr));
    for (std::size_t i = 0; i < kTensors; ++i)
      EXPECT_EQ(static_cast<float*>(tl_tensor_buffer(tensors[i]))[3], static_cast<float>(2 * (i + 1)));
  }
  EXPECT_EQ(daemon.operations(), 3 * kTensors);
  EXPECT_EQ(tl_wait_many(requests.data(), kTensors, 5), TL_OK) << "there is nothing to wait for";

  daemon.set_mode(Mode::kHold);
  tl_request_t* alone = nullptr;
  ASSERT_EQ(tl_post(tensors[7], &alone), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_post_many(tensors.data(), kTensors, requests.data()), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("an operation on tensor 't7' is under way"));
  std::swap(tensors[7], tensors.back());
  ASSERT_EQ(tl_post_many(tensors.data(), kTensors - 1, requests.data()), TL_OK) << "none of the others was started";
  requests.back() = alone;
  EXPECT_EQ(tl_wait_many(requests.data(), kTensors, 0.02), TL_ERROR_TIMED_OUT);
  EXPECT_NE(requests.front(), nullptr);
  daemon.set_mode(Mode::kRun);
  EXPECT_EQ(tl_wait_many(requests.data(), kTensors, 5), TL_OK) << tl_last_error();
  tensors[1] = tensors[0];
  for (std::uint32_t i = 0; i <= protocol::kMaxOutstanding; ++i)
    ASSERT_EQ(tl_post_many(tensors.data(), 2, requests.data()), TL_ERROR_INVALID_ARGUMENT) << "it comes twice";
  ASSERT_EQ(tl_post_many(tensors.data() + 1, 1, requests.data()), TL_OK) << "none is under way: " << tl_last_error();
  ASSERT_EQ(tl_wait_many(requests.data(), 1, 5), TL_OK) << tl_last_error();
  tensors[1] = nullptr;
  EXPECT_EQ(tl_post_many(tensors.data(), 2, requests.data()), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(tl_post_many(tensors.data(), 0, requests.data()), TL_OK);
}

TEST(Operations, OneAtATimePerTensor) {
  FakeDaemon daemon;
  daemon.set_mode(Mode::kHold);
  ClientContext context(daemon.socket());
  tl_tensor_t* tensor = registered(context, "x", nullptr, 16);
  tl_request_t *first = nullptr, *second = nullptr;
  ASSERT_EQ(tl_post(tensor, &first), TL_OK);
  EXPECT_EQ(tl_post(tensor, &second), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(tl_last_error(),
               "an operation on tensor 'x' is under way: one at a time is possible: wait for its request first");
  ASSERT_TRUE(daemon.wait_submitted(1));
  daemon.set_mode(Mode::kRun);
  EXPECT_EQ(tl_wait(first, 5), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_post(tensor, &second), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_wait(second, 5), TL_OK) << tl_last_error();
}

TEST(Operations, TheTimeOutOfManyIsThatOfTheCall) {
  FakeDaemon daemon;
  daemon.set_mode(Mode::kHold);
  ClientContext context(daemon.socket());
  std::vector<tl_tensor_t*> tensors;
  for (int i = 0; i < 20; ++i) tensors.push_back(registered(context, numbered("t", i).c_str(), nullptr, 16));
  std::vector<tl_request_t*> requests(tensors.size());
  ASSERT_EQ(tl_post_many(tensors.data(), tensors.size(), requests.data()), TL_OK) << tl_last_error();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(tl_wait_many(requests.data(), requests.size(), 0.3), TL_ERROR_TIMED_OUT);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 3s) << "20 times as much would be 6 s";
  daemon.set_mode(Mode::kRun);
  EXPECT_EQ(tl_wait_many(requests.data(), requests.size(), 10), TL_OK) << tl_last_error();
}

// The program does not need to have waited for the first, only the first must be done.
TEST(Operations, OneThatIsDoneMakesRoomForTheNext) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  tl_tensor_t* tensor = registered(context, "x", nullptr, 16);
  tl_request_t *first = nullptr, *second = nullptr;
  ASSERT_EQ(tl_post(tensor, &first), TL_OK);
  const auto end = std::chrono::steady_clock::now() + 3s;
  tl_status_t status = TL_ERROR_INVALID_ARGUMENT;
  while (status != TL_OK && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(1ms);
    status = tl_post(tensor, &second);
  }
  ASSERT_EQ(status, TL_OK) << tl_last_error();
  EXPECT_EQ(tl_wait(second, 5), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_wait(first, 5), TL_OK) << tl_last_error();
}

TEST(Operations, AWaitThatBlocksBoosts) {
  FakeDaemon daemon;
  daemon.set_mode(Mode::kHold);
  ClientContext context(daemon.socket());
  tl_tensor_t* tensor = registered(context, "x", nullptr, 16);
  tl_request_t* request = nullptr;
  ASSERT_EQ(tl_post(tensor, &request), TL_OK);
  ASSERT_TRUE(daemon.wait_submitted(1));
  EXPECT_EQ(daemon.boosts(), 0u);
  EXPECT_EQ(tl_wait(request, 0.25), TL_ERROR_TIMED_OUT);
  EXPECT_EQ(tl_wait(request, 0.05), TL_ERROR_TIMED_OUT);
  daemon.set_mode(Mode::kRun);
  EXPECT_EQ(tl_wait(request, 5), TL_OK) << tl_last_error();
  EXPECT_EQ(daemon.boosts(), 1u);  // once
}

struct CallbackCount {
  std::atomic<int> ok{0}, failed{0};
  static void count(tl_status_t status, void* self) {
    auto& counts = *static_cast<CallbackCount*>(self);
    ++(status == TL_OK ? counts.ok : counts.failed);
  }
};

TEST(Operations, CallbacksRunOnce) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  std::array<tl_tensor_t*, 20> tensors{};
  for (std::size_t i = 0; i < tensors.size(); ++i)
    tensors[i] = registered(context, (numbered("t", static_cast<int>(i))).c_str(), nullptr, 16);
  CallbackCount counts;
  for (int round = 0; round < 50; ++round) {
    for (tl_tensor_t* tensor : tensors) {
      tl_request_t* request = nullptr;
      ASSERT_EQ(tl_post(tensor, &request), TL_OK) << tl_last_error();
      if (round % 2 == 0) std::this_thread::yield();  // sometimes done before, sometimes after
      ASSERT_EQ(tl_set_callback(request, CallbackCount::count, &counts), TL_OK) << tl_last_error();
      if (tensor == tensors[0]) {
        // It is not the caller's any more, unless it has been freed, which is an error, too.
        EXPECT_EQ(tl_wait(request, 0), TL_ERROR_INVALID_ARGUMENT);
      }
    }
    const auto until = std::chrono::steady_clock::now() + 5s;
    while (counts.ok < (round + 1) * 20 && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(100us);
    ASSERT_EQ(counts.ok, (round + 1) * 20);
  }
  EXPECT_EQ(context.leave(), TL_OK) << tl_last_error();
  EXPECT_EQ(counts.ok, 1000);
  EXPECT_EQ(counts.failed, 0);
}

TEST(Operations, AMillionSmallOnesFromManyThreads) {
  constexpr int kPerThread = OPERATIONS_PER_THREAD;  // 250'000; fewer under a sanitizer
  constexpr int kThreads = 4, kWindow = 50;
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  std::vector<std::thread> threads;
  const auto start = std::chrono::steady_clock::now();
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<tl_tensor_t*> tensors;
      for (int i = 0; i < kWindow; ++i)
        tensors.push_back(registered(context, (numbered(numbered("t", t) + ".", i)).c_str(), nullptr, 1));
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<tl_request_t*> requests(kWindow);
      for (int done = 0; done < kPerThread; done += kWindow) {
        for (int i = 0; i < kWindow; ++i) {
          static_cast<float*>(tl_tensor_buffer(tensors[i]))[0] = static_cast<float>(i);
          ASSERT_EQ(tl_post(tensors[i], &requests[i]), TL_OK) << tl_last_error();
        }
        std::shuffle(requests.begin(), requests.end(), random);
        for (tl_request_t* request : requests) ASSERT_EQ(tl_wait(request, 20), TL_OK) << tl_last_error();
        for (int i = 0; i < kWindow; ++i)
          ASSERT_EQ(static_cast<float*>(tl_tensor_buffer(tensors[i]))[0], static_cast<float>(2 * i));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_EQ(daemon.operations(), static_cast<std::uint64_t>(kThreads) * kPerThread);
  std::printf("%.0f operations a second\n", kThreads * kPerThread / seconds);
}

// The lane of the fixture sleeps up to 3 s, a waiting client up to 100 ms: a lost wake-up on either side shows in the
// time.
TEST(Operations, NoWakeUpIsLost) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  tl_tensor_t* tensor = registered(context, "x", nullptr, 1);
  std::mt19937 random(7);
  int slow = 0;
  for (int i = 0; i < 3000; ++i) {
    // Long enough that both sides have gone to sleep, or are about to.
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
    const auto start = std::chrono::steady_clock::now();
    tl_request_t* request = nullptr;
    ASSERT_EQ(tl_post(tensor, &request), TL_OK) << tl_last_error();
    ASSERT_EQ(tl_wait(request, 20), TL_OK) << tl_last_error();
    if (std::chrono::steady_clock::now() - start > 90ms) ++slow;
  }
  EXPECT_LE(slow, 2);  // a busy machine
}

TEST(Operations, TheJobsErrorReachesEveryOperation) {
  FakeDaemon daemon;
  daemon.set_mode(Mode::kHold);
  ClientContext context(daemon.socket(), "x");
  tl_tensor_t* a = registered(context, "a", nullptr, 16);
  tl_tensor_t* b = registered(context, "b", nullptr, 16);
  tl_request_t *first = nullptr, *second = nullptr;
  ASSERT_EQ(tl_post(a, &first), TL_OK);
  ASSERT_EQ(tl_post(b, &second), TL_OK);
  CallbackCount counts;
  ASSERT_EQ(tl_set_callback(second, CallbackCount::count, &counts), TL_OK);
  ASSERT_TRUE(daemon.wait_submitted(2));
  std::thread aborter([&] {
    std::this_thread::sleep_for(50ms);
    daemon.abort_job("x", Status(Code::kAborted, "job 'x' was aborted", "host h2 has not been heard for 1.0 s",
                                 "resume from a checkpoint"));
  });
  const char* text = "job 'x' was aborted: host h2 has not been heard for 1.0 s: resume from a checkpoint";
  EXPECT_EQ(tl_wait(first, 5), TL_ERROR_ABORTED);
  EXPECT_STREQ(tl_last_error(), text);
  aborter.join();
  tl_request_t* third = nullptr;
  EXPECT_EQ(tl_post(a, &third), TL_ERROR_ABORTED);
  EXPECT_STREQ(tl_last_error(), text);
  const tl_tensor_desc_t desc = tensor_desc("late", nullptr, 16);
  tl_tensor_t* late = nullptr;
  EXPECT_EQ(tl_register(context, "late", &desc, 1, &late), TL_ERROR_ABORTED);
  EXPECT_STREQ(tl_last_error(), text);
  EXPECT_EQ(context.leave(), TL_ERROR_ABORTED);
  EXPECT_EQ(counts.failed, 1);
  EXPECT_EQ(counts.ok, 0);
  EXPECT_THAT(daemon.leaves(1), testing::ElementsAre(Status()));  // the job had failed before
}

// A caller may ask again after TL_ERROR_TIMED_OUT; a job that a time-out has ended does not come back.
TEST(Operations, AJobThatATimeOutHasEndedIsNeverTimedOutForACaller) {
  FakeDaemon daemon;
  daemon.set_mode(Mode::kHold);
  ClientContext context(daemon.socket(), "x");
  tl_tensor_t* a = registered(context, "a", nullptr, 16);
  tl_request_t* request = nullptr;
  ASSERT_EQ(tl_post(a, &request), TL_OK);
  ASSERT_TRUE(daemon.wait_submitted(1));
  daemon.abort_job("x", Status(Code::kTimedOut, "rank 1 has not been heard for 1.5 s"));
  EXPECT_EQ(tl_wait(request, 5), TL_ERROR_ABORTED);
  EXPECT_EQ(tl_post(a, &request), TL_ERROR_ABORTED);
  EXPECT_THAT(tl_last_error(), testing::HasSubstr("rank 1 has not been heard"));
}

TEST(Operations, AFailedRegistrationNamesTheCause) {
  FakeDaemon daemon;
  std::array<std::string, 2> errors;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ClientContext context(daemon.socket(), "job", rank, 2);
      const tl_tensor_desc_t desc = tensor_desc("x", nullptr, rank == 0 ? 16 : 32);
      tl_tensor_t* tensor = nullptr;
      EXPECT_EQ(tl_register(context, "group", &desc, 1, &tensor), TL_ERROR_MISMATCH);
      errors[rank] = tl_last_error();
      EXPECT_EQ(context.leave(), TL_OK) << tl_last_error();
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_THAT(errors[0], HasSubstr("ranks disagree"));
  EXPECT_EQ(errors[0], errors[1]);
}

TEST(Operations, ARegistrationThatTakesTooLongNamesWhomItWaitedFor) {
  FakeDaemon daemon;
  std::thread other([&] {
    ClientContext context(daemon.socket(), "job", 1, 2);
    EXPECT_EQ(context.leave(), TL_OK) << tl_last_error();
  });
  ClientContext context(daemon.socket(), "job", 0, 2, 0.5);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  const tl_tensor_desc_t desc = tensor_desc("x", nullptr, 16);
  tl_tensor_t* tensor = nullptr;
  EXPECT_EQ(tl_register(context, "group", &desc, 1, &tensor), TL_ERROR_TIMED_OUT);
  EXPECT_THAT(tl_last_error(), HasSubstr("rank 1 has not registered"));
  other.join();
  EXPECT_EQ(context.leave(), TL_OK) << tl_last_error();
}

// What was refused counts towards no limit of the session.
TEST(Operations, RegistrationsThatAreRefusedTakeNothing) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  constexpr std::size_t kTogether = 2000;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kTogether; ++i) names.push_back(numbered("t", static_cast<int>(i)));
  std::vector<tl_tensor_desc_t> descs;
  float* memory = context.floats(16);
  for (const std::string& name : names) descs.push_back(tensor_desc(name.c_str(), memory, 16));
  std::vector<tl_tensor_t*> tensors(kTogether);
  for (std::size_t tried = 0; tried <= 65536; tried += kTogether) {
    ASSERT_EQ(tl_register(context, FakeDaemon::kRefused, descs.data(), kTogether, tensors.data()), TL_ERROR_MISMATCH)
        << tl_last_error();
  }
  EXPECT_EQ(tl_register(context, "group", descs.data(), kTogether, tensors.data()), TL_OK) << tl_last_error();
}

TEST(Operations, RefusesWhatCannotBeRegistered) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  float outside[32] = {};
  const auto error_of = [&](tl_tensor_desc_t desc) {
    tl_tensor_t* tensor = nullptr;
    EXPECT_EQ(tl_register(context, "g", &desc, 1, &tensor), TL_ERROR_INVALID_ARGUMENT);
    return std::string(tl_last_error());
  };
  EXPECT_EQ(error_of(tensor_desc("x", nullptr, 0)),
            "tensor 'x' cannot be registered: it has 0 elements: give it at least one");
  EXPECT_EQ(error_of(tensor_desc("x", nullptr, std::uint64_t{1} << 33)),
            "tensor 'x' cannot be registered: it has 8589934592 elements: split it: the limit is 4294967296");
  EXPECT_THAT(error_of(tensor_desc("x", outside, 32)), HasSubstr("its buffer is not shared memory"));
  EXPECT_THAT(error_of(tensor_desc("x", context.floats(32) + 1, 16)), HasSubstr("not aligned to 64 bytes"));
  EXPECT_THAT(error_of(tensor_desc("a\nb", nullptr, 16)), HasSubstr("control character"));
  EXPECT_THAT(error_of(tensor_desc("a\xc2\x85z", nullptr, 16)), HasSubstr("control character"));
  EXPECT_THAT(error_of(tensor_desc("\xff", nullptr, 16)), HasSubstr("not in UTF-8"));
  EXPECT_THAT(error_of(tensor_desc(std::string(256, 'x').c_str(), nullptr, 16)),
              HasSubstr("256 bytes: the limit is 255"));
  tl_tensor_desc_t desc = tensor_desc("x", nullptr, 16);
  desc.root = 1;
  EXPECT_THAT(error_of(desc), HasSubstr("root is 1"));
  desc = tensor_desc("x", nullptr, 16);
  desc.urgency = 1.5F;
  EXPECT_THAT(error_of(desc), HasSubstr("urgency is 1.5"));
  desc = tensor_desc("x", nullptr, 16);
  desc.pattern = static_cast<tl_pattern_t>(TL_PATTERN_TREE + 1);
  EXPECT_THAT(error_of(desc), HasSubstr("pattern is 5"));
  desc = tensor_desc("x", nullptr, 16);
  desc.reserved = 1;
  EXPECT_THAT(error_of(desc), HasSubstr("reserved is 1: begin with TL_TENSOR_INIT"));
  desc = tensor_desc("x", nullptr, 16);
  desc.dtype = static_cast<tl_dtype_t>(9);
  EXPECT_THAT(error_of(desc), HasSubstr("dtype is 9"));
  desc = tensor_desc("x", nullptr, 16);
  desc.op = static_cast<tl_op_t>(5);
  EXPECT_THAT(error_of(desc), HasSubstr("op is 5"));
  desc = tensor_desc("x", nullptr, 16);
  desc.operation = TL_REDUCESCATTER;
  desc.row = 5;
  EXPECT_THAT(error_of(desc), HasSubstr("row is 5: it divides the count, 16"));
  desc.operation = static_cast<tl_operation_t>(11);
  EXPECT_THAT(error_of(desc), HasSubstr("operation is 11"));
  desc.operation = TL_ALLTOALL;
  desc.count = 15;
  EXPECT_THAT(error_of(desc), HasSubstr("it has 15 elements: use a multiple of 2 for alltoall"));
  desc = tensor_desc("x", nullptr, 16);
  desc.dtype = TL_INT32;
  desc.op = TL_AVERAGE;
  EXPECT_THAT(error_of(desc), HasSubstr("it is an average of int32: use TL_SUM, and divide"));
  desc = tensor_desc("x", nullptr, 16);
  desc.position = 3;
  desc.positions = 3;
  EXPECT_THAT(error_of(desc), HasSubstr("position is 3: use 0..2"));
}

TEST(Operations, MemoryComesAndGoes) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  float* a = context.floats(1000);
  float* b = context.floats(1000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a) % 64, 0u);
  EXPECT_EQ(tl_is_shared(context, a, 4000), 1);
  EXPECT_EQ(tl_is_shared(context, &daemon, 4), 0);
  for (int i = 0; i < 1000; ++i) a[i] = 1;
  EXPECT_EQ(tl_free(context, a), TL_OK);
  float* c = context.floats(1000);
  EXPECT_EQ(c, a);  // used again
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(c[i], 0);
  registered(context, "b", b, 1000);
  EXPECT_EQ(tl_free(context, b), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("tensor 'b' is registered in it"));
  EXPECT_EQ(tl_free(context, c + 1), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(tl_free(context, nullptr), TL_OK);
  context.floats(100 << 18);  // 100 MiB: a second segment
  EXPECT_EQ(context.leave(), TL_OK);
}

TEST(Operations, SegmentsAreChargedUntilTheSessionGoes) {
  session::SessionConfig config;
  config.descriptors = std::make_shared<Ledger>(Ledger::Rules());
  FakeDaemon daemon(config);
  ClientContext context(daemon.socket());
  const std::uint64_t before = config.descriptors->in_use();
  EXPECT_GT(before, 0u);
  context.floats(100 << 18);
  context.floats(100 << 18);
  EXPECT_EQ(config.descriptors->in_use(), before + 2) << "each of 100 MiB has a segment of its own";
  EXPECT_EQ(context.leave(), TL_OK);
  for (int i = 0; i < 1000 && config.descriptors->in_use() > 0; ++i) usleep(5000);
  EXPECT_EQ(config.descriptors->in_use(), 0u);
}

TEST(Operations, StatusOfTheDaemon) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  const char* json = nullptr;
  ASSERT_EQ(tl_daemon_status(context, &json), TL_OK) << tl_last_error();
  EXPECT_STREQ(json, R"({"fake": true})");
  std::string longer;  // of several packets: every digit tells where it was
  while (longer.size() < 300'000) longer += std::to_string(longer.size()) + ",";
  daemon.set_status(longer);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(tl_daemon_status(context, &json), TL_OK) << tl_last_error();
    EXPECT_EQ(json, longer);
  }
}

TEST(Operations, AForkedChildIsRefused) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  tl_tensor_t* tensor = registered(context, "x", nullptr, 16);
  const pid_t child = fork();
  if (child == 0) {
    tl_request_t* request = nullptr;
    const bool refused = tl_post(tensor, &request) == TL_ERROR_INVALID_ARGUMENT &&
                         std::strstr(tl_last_error(), "forked child") != nullptr &&
                         tl_finalize(context) == TL_ERROR_INVALID_ARGUMENT;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  tl_request_t* request = nullptr;
  ASSERT_EQ(tl_post(tensor, &request), TL_OK);
  EXPECT_EQ(tl_wait(request, 5), TL_OK) << tl_last_error();
}

TEST(Operations, WhoLeavesWithOneUnderWayIsToldOfItsTensor) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket(), "job", 0, 1, 1.0);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  daemon.set_mode(Mode::kHold);
  tl_tensor_t* tensor = registered(context, "x", nullptr, 64);
  tl_request_t* request = nullptr;
  ASSERT_EQ(tl_post(tensor, &request), TL_OK) << tl_last_error();
  EXPECT_EQ(context.leave(), TL_ERROR_TIMED_OUT);
  EXPECT_STREQ(
      tl_last_error(),
      "operations of this rank are still under way: 1 of them, on tensor 'x' the first: wait for every request "
      "before tl_finalize; other ranks may not have started theirs");
}

}  // namespace
}  // namespace tensorlane::test
