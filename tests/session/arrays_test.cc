// Array calls: any memory, by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "context_guard.h"
#include "fake_daemon.h"
#include "tensorlane/tensorlane.hpp"

namespace tensorlane::test {
namespace {

using testing::HasSubstr;

tl_status_t allreduce(tl_context_t* context, const char* name, const float* in, float* out, std::uint64_t count) {
  tl_request_t* request = nullptr;
  const tl_status_t status = tl_allreduce(context, name, in, out, count, TL_FLOAT32, TL_SUM, nullptr, &request);
  return status == TL_OK ? tl_wait(request, 10) : status;
}

TEST(Arrays, AnyMemoryIsCopied) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  std::vector<float> in(100), out(100);
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 100; ++i) in[i] = static_cast<float>(round * 100 + i);
    tl_request_t* request = nullptr;
    ASSERT_EQ(tl_allreduce(context, "x", in.data(), out.data(), 100, TL_FLOAT32, TL_SUM, nullptr, &request), TL_OK)
        << tl_last_error();
    std::vector<float> overwritten(100, -1);
    in.swap(overwritten);  // `in` is free as soon as the call returns
    std::fill(overwritten.begin(), overwritten.end(), -7.0F);
    ASSERT_EQ(tl_wait(request, 5), TL_OK) << tl_last_error();
    for (int i = 0; i < 100; ++i) ASSERT_EQ(out[i], static_cast<float>(2 * (round * 100 + i)));
  }
}

TEST(Arrays, SharedMemoryIsUsedAsItIs) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  float* x = context.floats(100);
  x[3] = 5;
  ASSERT_EQ(allreduce(context, "x", x, x, 100), TL_OK) << tl_last_error();
  EXPECT_EQ(x[3], 10);
  float* other = context.floats(100);
  EXPECT_EQ(allreduce(context, "x", other, other, 100), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("works in place on the shared buffer of its first call"));
  // Freed, it becomes a staging buffer: nobody else may get it, and other memory is copied through it.
  ASSERT_EQ(tl_free(context, x), TL_OK) << tl_last_error();
  EXPECT_NE(context.floats(100), x);
  other[3] = 7;
  ASSERT_EQ(allreduce(context, "x", other, other, 100), TL_OK) << tl_last_error();
  EXPECT_EQ(other[3], 14);
}

TEST(Arrays, BroadcastAndAllgather) {
  FakeDaemon daemon;
  constexpr int kRanks = 3;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      ClientContext context(daemon.socket(), "job", rank, kRanks);
      for (int round = 0; round < 3; ++round) {
        std::vector<float> b(50, static_cast<float>(rank * 10 + round));
        tl_request_t* request = nullptr;
        ASSERT_EQ(tl_broadcast(context, "b", b.data(), 50, TL_FLOAT32, 1, nullptr, &request), TL_OK) << tl_last_error();
        ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
        EXPECT_EQ(b, std::vector<float>(50, static_cast<float>(10 + round)));
        const std::vector<float> in(20, static_cast<float>(rank + round));
        std::vector<float> out(60, -1);
        ASSERT_EQ(tl_allgather(context, "g", in.data(), out.data(), 20, TL_FLOAT32, nullptr, &request), TL_OK)
            << tl_last_error();
        ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
        for (int i = 0; i < 60; ++i) ASSERT_EQ(out[i], static_cast<float>(i / 20 + round));
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

// Five rows of four elements for three ranks: two, two and one.
TEST(Arrays, ReduceScatter) {
  FakeDaemon daemon;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      ClientContext context(daemon.socket(), "job", rank, 3);
      const std::size_t first = 8 * static_cast<std::size_t>(rank), mine = rank == 2 ? 4 : 8;
      float* shared = nullptr;
      ASSERT_EQ(tl_alloc(context, 20 * sizeof(float), reinterpret_cast<void**>(&shared)), TL_OK);
      for (int round = 0; round < 3; ++round) {
        std::vector<float> in(20), out(mine + 1, 77);
        for (std::size_t i = 0; i < 20; ++i) in[i] = shared[i] = static_cast<float>((rank + 1) * 100 * (round + 1)) + i;
        const std::vector<float> before = in;
        tl_request_t *copied = nullptr, *in_place = nullptr;
        ASSERT_EQ(tl_reducescatter(context, "c", in.data(), out.data(), 5, 4, TL_FLOAT32, TL_SUM, nullptr, &copied),
                  TL_OK)
            << tl_last_error();
        ASSERT_EQ(tl_reducescatter(context, "p", shared, shared + first, 5, 4, TL_FLOAT32, TL_SUM, nullptr, &in_place),
                  TL_OK)
            << tl_last_error();
        ASSERT_EQ(tl_wait(copied, 10), TL_OK) << tl_last_error();
        ASSERT_EQ(tl_wait(in_place, 10), TL_OK) << tl_last_error();
        EXPECT_EQ(in, before);
        EXPECT_EQ(out[mine], 77);
        for (std::size_t i = 0; i < mine; ++i) {
          ASSERT_EQ(out[i], static_cast<float>(600 * (round + 1) + 3 * (first + i)));
          ASSERT_EQ(shared[first + i], out[i]);
        }
        EXPECT_EQ(shared[first == 0 ? 19 : 0], -1);  // in place: nothing was copied
      }
      // One row: the others get none, and need no memory for it.
      const float one[2] = {1, 2};
      float got[2] = {};
      tl_request_t* request = nullptr;
      ASSERT_EQ(
          tl_reducescatter(context, "n", one, rank == 0 ? got : nullptr, 1, 2, TL_FLOAT32, TL_SUM, nullptr, &request),
          TL_OK)
          << tl_last_error();
      ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
      EXPECT_EQ(got[1], rank == 0 ? 6 : 0);
      EXPECT_EQ(tl_reducescatter(context, "n", one, nullptr, 2, 1, TL_FLOAT32, TL_SUM, nullptr, &request),
                TL_ERROR_INVALID_ARGUMENT);
      if (rank > 1) {
        EXPECT_THAT(tl_last_error(), HasSubstr("row was 2, is 1"));
      }
      EXPECT_EQ(tl_reducescatter(context, "r", one, got, 2, 0, TL_FLOAT32, TL_SUM, nullptr, &request),
                TL_ERROR_INVALID_ARGUMENT);
      EXPECT_THAT(tl_last_error(), HasSubstr("2 rows of 0 elements"));
    });
  }
  for (std::thread& t : threads) t.join();
}

// Copied, and in place: the root's part lies in the whole, and what a rank gets behind what it sends.
TEST(Arrays, ReduceGatherScatterAndAlltoall) {
  FakeDaemon daemon;
  constexpr int kRanks = 3, kRoot = 1;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      ClientContext context(daemon.socket(), "job", rank, kRanks);
      float* shared = nullptr;
      ASSERT_EQ(tl_alloc(context, 64 * sizeof(float), reinterpret_cast<void**>(&shared)), TL_OK);
      const bool root = rank == kRoot;
      tl_request_t* request = nullptr;
      for (int round = 0; round < 3; ++round) {
        // Of rank r, element i is 100 r + i + round.
        const auto of = [&](int r, int i) { return static_cast<float>(100 * r + i + round); };
        std::vector<float> in(12), out(12, -2);
        for (int i = 0; i < 12; ++i) in[i] = of(rank, i);
        const std::vector<float> before = in;
        ASSERT_EQ(tl_reduce(context, "r", in.data(), root ? out.data() : nullptr, 12, TL_FLOAT32, TL_SUM, kRoot,
                            nullptr, &request),
                  TL_OK)
            << tl_last_error();
        ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
        for (int i = 0; i < 12; ++i) ASSERT_EQ(out[i], root ? of(0, i) + of(1, i) + of(2, i) : -2);
        ASSERT_EQ(in, before);

        out.assign(12, -2);
        ASSERT_EQ(
            tl_gather(context, "g", in.data(), root ? out.data() : nullptr, 4, TL_FLOAT32, kRoot, nullptr, &request),
            TL_OK)
            << tl_last_error();
        ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
        for (int i = 0; i < 12; ++i) ASSERT_EQ(out[i], root ? of(i / 4, i % 4) : -2);

        std::copy(in.begin(), in.begin() + 4, shared + (root ? 4 * rank : 0));
        ASSERT_EQ(tl_gather(context, "g shared", shared + (root ? 4 * rank : 0), root ? shared : nullptr, 4, TL_FLOAT32,
                            kRoot, nullptr, &request),
                  TL_OK)
            << tl_last_error();
        ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
        for (int i = 0; i < 12 && root; ++i) ASSERT_EQ(shared[i], of(i / 4, i % 4));

        out.assign(12, -2);
        ASSERT_EQ(
            tl_scatter(context, "s", root ? in.data() : nullptr, out.data(), 4, TL_FLOAT32, kRoot, nullptr, &request),
            TL_OK)
            << tl_last_error();
        ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
        for (int i = 0; i < 12; ++i) ASSERT_EQ(out[i], i < 4 ? of(kRoot, 4 * rank + i) : -2);

        ASSERT_EQ(tl_alltoall(context, "a", in.data(), out.data(), 4, TL_FLOAT32, nullptr, &request), TL_OK)
            << tl_last_error();
        ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
        for (int i = 0; i < 12; ++i) ASSERT_EQ(out[i], of(i / 4, 4 * rank + i % 4));

        std::ranges::copy(in, shared + 16);
        ASSERT_EQ(tl_alltoall(context, "a shared", shared + 16, shared + 28, 4, TL_FLOAT32, nullptr, &request), TL_OK)
            << tl_last_error();
        ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
        for (int i = 0; i < 12; ++i) ASSERT_EQ(shared[28 + i], out[i]);
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

// What cannot be, and what ranks disagree about: both are named.
TEST(Arrays, RefusesRootsThatAreNoneAndBuffersThatAreMissing) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket(), "job", 0, 1);
  float x[4] = {1, 2, 3, 4}, y[4] = {};
  tl_request_t* request = nullptr;
  EXPECT_EQ(tl_reduce(context, "x", x, y, 4, TL_FLOAT32, TL_SUM, 1, nullptr, &request), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("tl_reduce was called with an impossible root: 1: use a rank below"));
  EXPECT_EQ(tl_gather(context, "x", x, nullptr, 4, TL_FLOAT32, 0, nullptr, &request), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("tl_gather was called without a buffer"));
  EXPECT_EQ(tl_scatter(context, "x", nullptr, y, 4, TL_FLOAT32, 0, nullptr, &request), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("tl_scatter was called without an input on the root"));
  EXPECT_EQ(tl_alltoall(context, "x", x, y, 0, TL_FLOAT32, nullptr, &request), TL_ERROR_INVALID_ARGUMENT);
  // A world of one rank.
  ASSERT_EQ(tl_alltoall(context, "x", x, y, 4, TL_FLOAT32, nullptr, &request), TL_OK) << tl_last_error();
  ASSERT_EQ(tl_wait(request, 10), TL_OK);
  EXPECT_TRUE(std::ranges::equal(x, y));
}

// A push and a pull of one key work on one buffer, so they take turns.
TEST(Arrays, PushAndPull) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  float in[5] = {1, 2, 3, 4, 5}, out[5] = {};
  tl_request_t *push = nullptr, *pull = nullptr;
  EXPECT_EQ(tl_pull(context, "k", out, 5, TL_FLOAT32, nullptr, &pull), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(tl_last_error(), "array call 'pull.k' finds no value: the key was never pushed: push it first");
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(tl_push(context, "k", in, 5, TL_FLOAT32, TL_SUM, nullptr, &push), TL_OK) << tl_last_error();
    in[0] = 77;  // the push has its own copy
    EXPECT_EQ(tl_pull(context, "k", out, 5, TL_FLOAT32, nullptr, &pull), TL_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(tl_last_error(), HasSubstr("is under way"));
    ASSERT_EQ(tl_wait(push, 10), TL_OK) << tl_last_error();
    EXPECT_EQ(tl_pull(context, "k", out, 4, TL_FLOAT32, nullptr, &pull), TL_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(tl_last_error(), HasSubstr("count was 5, is 4"));
    ASSERT_EQ(tl_pull(context, "k", out, 5, TL_FLOAT32, nullptr, &pull), TL_OK) << tl_last_error();
    EXPECT_EQ(tl_push(context, "k", in, 5, TL_FLOAT32, TL_SUM, nullptr, &push), TL_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(tl_last_error(), HasSubstr("is under way"));
    ASSERT_EQ(tl_wait(pull, 10), TL_OK) << tl_last_error();
    in[0] = 1;
    for (int i = 0; i < 5; ++i) EXPECT_EQ(out[i], in[i]);
  }
}

// Where registration blocked, this would never end: it is collective, and the ranks make their first calls in opposite
// orders.
TEST(Arrays, FirstCallsInOppositeOrders) {
  FakeDaemon daemon;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ClientContext context(daemon.socket(), "job", rank, 2);
      std::vector<float> a(10, 1), b(10, 2);
      tl_request_t *first = nullptr, *second = nullptr;
      const char* names[2] = {rank == 0 ? "a" : "b", rank == 0 ? "b" : "a"};
      std::vector<float>& x = rank == 0 ? a : b;
      std::vector<float>& y = rank == 0 ? b : a;
      ASSERT_EQ(tl_allreduce(context, names[0], x.data(), x.data(), 10, TL_FLOAT32, TL_SUM, nullptr, &first), TL_OK);
      ASSERT_EQ(tl_allreduce(context, names[1], y.data(), y.data(), 10, TL_FLOAT32, TL_SUM, nullptr, &second), TL_OK);
      EXPECT_EQ(tl_wait(first, 10), TL_OK) << tl_last_error();
      EXPECT_EQ(tl_wait(second, 10), TL_OK) << tl_last_error();
      EXPECT_EQ(a[0], 4);
      EXPECT_EQ(b[0], 8);
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(Arrays, LaterCallsAgreeWithTheFirst) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  std::vector<float> x(64, 1);
  ASSERT_EQ(allreduce(context, "x", x.data(), x.data(), 32), TL_OK) << tl_last_error();
  EXPECT_EQ(allreduce(context, "x", x.data(), x.data(), 64), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(tl_last_error(),
               "array call 'allreduce.x' differs from the first one of this name: count was 32, is 64: use another "
               "name, or the same values");
  tl_request_t* request = nullptr;
  EXPECT_EQ(tl_allreduce(context, "x", x.data(), x.data(), 32, TL_FLOAT16, TL_SUM, nullptr, &request),
            TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("dtype was float32, is float16"));
  EXPECT_EQ(tl_allreduce(context, "x", x.data(), x.data(), 32, TL_FLOAT32, TL_AVERAGE, nullptr, &request),
            TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("op was sum, is average"));
  EXPECT_EQ(tl_broadcast(context, "x", x.data(), 32, TL_FLOAT32, 0, nullptr, &request), TL_OK)
      << "names belong to operations";
  EXPECT_EQ(tl_wait(request, 5), TL_OK);
}

TEST(Arrays, BadCallsAreRefused) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  float x[16] = {};
  EXPECT_EQ(allreduce(context, "x", x, x, 0), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("it has 0 elements"));
  EXPECT_EQ(allreduce(context, "x", x, x, std::uint64_t{1} << 33), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("8589934592 elements: split it: the limit is 4294967296"));
  EXPECT_EQ(allreduce(context, "", x, x, 16), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(allreduce(context, nullptr, x, x, 16), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(allreduce(context, "x", nullptr, x, 16), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(allreduce(nullptr, "x", x, x, 16), TL_ERROR_INVALID_ARGUMENT);
  tl_request_t* request = nullptr;
  EXPECT_EQ(tl_allgather(context, "x", x, x, std::uint64_t{1} << 63, TL_FLOAT32, nullptr, &request),
            TL_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(tl_broadcast(context, "x", x, 16, TL_FLOAT32, 1, nullptr, &request), TL_ERROR_INVALID_ARGUMENT);
  tl_options_t options = TL_OPTIONS_INIT;
  options.urgency = 2;
  EXPECT_EQ(tl_allreduce(context, "x", x, x, 16, TL_FLOAT32, TL_SUM, &options, &request), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(tl_allreduce(context, "x", x, x, 16, static_cast<tl_dtype_t>(8), TL_SUM, nullptr, &request),
            TL_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(tl_allreduce(context, "x", x, x, 16, TL_FLOAT32, static_cast<tl_op_t>(5), nullptr, &request),
            TL_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(tl_allreduce(context, "x", x, x, 16, TL_INT32, TL_AVERAGE, nullptr, &request), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(tl_last_error(), "the average of int32 is no int32: tl_allreduce of 'x': use TL_SUM, and divide");
  EXPECT_EQ(tl_wait(nullptr, 1), TL_ERROR_INVALID_ARGUMENT);
  // None of them has spoilt the name.
  EXPECT_EQ(allreduce(context, "x", x, x, 16), TL_OK) << tl_last_error();
}

TEST(Arrays, NansPass) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  float x[2] = {std::numeric_limits<float>::quiet_NaN(), 1};
  ASSERT_EQ(allreduce(context, "x", x, x, 2), TL_OK) << tl_last_error();
  EXPECT_TRUE(std::isnan(x[0]));
  EXPECT_EQ(x[1], 2);
}

TEST(Arrays, ARefusedFirstCallFailsItsRequestAndFreesTheName) {
  FakeDaemon daemon;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ClientContext context(daemon.socket(), "job", rank, 2);
      std::vector<float> x(32, 1);
      EXPECT_EQ(allreduce(context, "x", x.data(), x.data(), rank == 0 ? 16 : 32), TL_ERROR_MISMATCH);
      EXPECT_THAT(tl_last_error(), HasSubstr("ranks disagree"));
      EXPECT_EQ(tl_barrier(context, 10), TL_OK);
      EXPECT_EQ(allreduce(context, "x", x.data(), x.data(), 16), TL_OK) << tl_last_error();
      EXPECT_EQ(x[0], 4);
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(Arrays, WaitingForManyTellsTheFirstErrorWhateverComesBehindIt) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  std::vector<float> x(16, 1), y(16, 1);
  tl_request_t* requests[2] = {};
  const auto start = [&](const char* name, std::vector<float>& array, tl_request_t** request) {
    return tl_allreduce(context, name, array.data(), array.data(), 16, TL_FLOAT32, TL_SUM, nullptr, request);
  };
  ASSERT_EQ(start(FakeDaemon::kRefused, x, &requests[0]), TL_OK) << tl_last_error();
  ASSERT_EQ(start("good", y, &requests[1]), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_wait_many(requests, 2, 10), TL_ERROR_MISMATCH);
  EXPECT_THAT(tl_last_error(), HasSubstr("ranks disagree"));
  EXPECT_THAT(requests, testing::Each(nullptr)) << "both are done";
  EXPECT_EQ(y[0], 2);
}

tl_status_t queued(tl_context_t* context, const float* in, float* out, std::uint64_t count, tl_request_t** request) {
  tl_options_t options = TL_OPTIONS_INIT;
  options.queued = 1;
  return tl_allreduce(context, "q", in, out, count, TL_FLOAT32, TL_SUM, &options, request);
}

// Each has the input of its own call, though all go through one buffer, and they may be waited for in any order.
TEST(Arrays, QueuedCallsTakeTurns) {
  FakeDaemon daemon;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ClientContext context(daemon.socket(), "job", rank, 2);
      constexpr int kCalls = 40;
      std::vector<std::vector<float>> out(kCalls, std::vector<float>(100, -1));
      std::vector<tl_request_t*> requests(kCalls);
      for (int round = 0; round < 3; ++round) {
        for (int i = 0; i < kCalls; ++i) {
          std::vector<float> in(100, static_cast<float>(i));
          ASSERT_EQ(queued(context, in.data(), out[i].data(), 100, &requests[i]), TL_OK) << tl_last_error();
        }
        for (int n = 0; n < kCalls; ++n) {
          const int i = rank == 0 ? n : kCalls - 1 - n;
          ASSERT_EQ(tl_wait(requests[i], 10), TL_OK) << tl_last_error();
          ASSERT_EQ(out[i], std::vector<float>(100, static_cast<float>(4 * i)));
        }
      }
      EXPECT_EQ(allreduce(context, "q", out[0].data(), out[0].data(), 100), TL_OK) << "without the option, too";
      EXPECT_EQ(context.leave(), TL_OK) << tl_last_error();
    });
  }
  for (std::thread& t : threads) t.join();
}

// Nobody waits for them, and yet they go on: other ranks may wait.
TEST(Arrays, QueuedCallsGoOnByThemselves) {
  FakeDaemon daemon;
  daemon.set_mode(Mode::kHold);
  ClientContext context(daemon.socket());
  float x[4] = {1, 2, 3, 4}, out[3][4] = {};
  tl_request_t* requests[3] = {};
  ASSERT_EQ(queued(context, x, out[0], 4, &requests[0]), TL_OK) << tl_last_error();
  EXPECT_EQ(allreduce(context, "q", x, x, 4), TL_ERROR_INVALID_ARGUMENT) << "it asks for no queue";
  ASSERT_EQ(queued(context, x, out[1], 4, &requests[1]), TL_OK) << tl_last_error();
  ASSERT_EQ(queued(context, x, out[2], 4, &requests[2]), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_test(requests[1]), TL_IN_PROGRESS);
  EXPECT_EQ(tl_wait(requests[2], 0.01), TL_ERROR_TIMED_OUT);
  daemon.set_mode(Mode::kRun);
  EXPECT_TRUE(daemon.wait_submitted(3));
  for (tl_request_t* request : requests) EXPECT_EQ(tl_wait(request, 5), TL_OK) << tl_last_error();
  EXPECT_EQ(out[2][3], 8);
}

TEST(Arrays, QueuedCallsFailWithTheirJob) {
  FakeDaemon daemon;
  daemon.set_mode(Mode::kHold);
  ClientContext context(daemon.socket());
  float x[4] = {}, out[3][4] = {};
  tl_request_t* requests[3] = {};
  for (int i = 0; i < 3; ++i) ASSERT_EQ(queued(context, x, out[i], 4, &requests[i]), TL_OK) << tl_last_error();
  ASSERT_TRUE(daemon.wait_submitted(1));
  daemon.abort_job("job", Status(Code::kAborted, "it is over", "job 'job'", "start again"));
  for (tl_request_t* request : requests) EXPECT_EQ(tl_wait(request, 5), TL_ERROR_ABORTED);
  EXPECT_EQ(queued(context, x, out[0], 4, &requests[0]), TL_ERROR_ABORTED);
}

// Whether it stands before or behind one that takes longer, or the caller would take his buffer for the result.
TEST(Arrays, WaitingForManyTellsAnErrorAlthoughAnotherIsUnderWay) {
  for (const std::size_t failing : {0, 1}) {
    SCOPED_TRACE(failing);
    FakeDaemon daemon;
    daemon.set_mode(Mode::kHold);
    ClientContext context(daemon.socket());
    float x[16] = {}, y[16] = {};
    tl_request_t* requests[2] = {};
    ASSERT_EQ(tl_allreduce(context, "held", x, x, 16, TL_FLOAT32, TL_SUM, nullptr, &requests[1 - failing]), TL_OK);
    tl_request_t*& refused = requests[failing];
    ASSERT_EQ(tl_allreduce(context, FakeDaemon::kRefused, y, y, 16, TL_FLOAT32, TL_SUM, nullptr, &refused), TL_OK);
    EXPECT_EQ(tl_wait_many(requests, 2, 0.5), TL_ERROR_MISMATCH) << tl_last_error();
    EXPECT_EQ(requests[failing], nullptr);
    EXPECT_EQ(tl_wait_many(requests, 2, 0.01), TL_ERROR_TIMED_OUT);
    daemon.flush();
    EXPECT_EQ(tl_wait_many(requests, 2, 5), TL_OK) << tl_last_error();
    EXPECT_EQ(requests[1 - failing], nullptr);
  }
}

// The entry of a name goes when its registration is refused, while other threads make its next calls.
TEST(Arrays, ANameIsRefusedUnderAnothersHands) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  std::vector<std::thread> threads;
  std::atomic<int> refused{0};
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      for (int call = 0; call < 300; ++call) {
        float x[16] = {}, out[16] = {};
        tl_options_t options = TL_OPTIONS_INIT;
        options.queued = 1;
        tl_request_t* request = nullptr;
        const tl_status_t status =
            tl_allreduce(context, FakeDaemon::kRefused, x, out, 16, TL_FLOAT32, TL_SUM, &options, &request);
        if (status == TL_OK) {
          ASSERT_EQ(tl_wait(request, 10), TL_ERROR_MISMATCH) << tl_last_error();
          ++refused;
        } else {
          ASSERT_EQ(status, TL_ERROR_INVALID_ARGUMENT);
          ASSERT_THAT(tl_last_error(), HasSubstr("another thread makes its first call"));
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_GE(refused, 100);
  float x[16] = {};
  EXPECT_EQ(allreduce(context, "x", x, x, 16), TL_OK) << tl_last_error();
}

TEST(Arrays, ABarrierThatTimedOutGoesOn) {
  FakeDaemon daemon;
  daemon.set_mode(Mode::kHold);
  ClientContext context(daemon.socket());
  EXPECT_EQ(tl_barrier(context, 0.05), TL_ERROR_TIMED_OUT);
  ASSERT_TRUE(daemon.wait_submitted(1));
  daemon.set_mode(Mode::kRun);
  EXPECT_EQ(tl_barrier(context, 5), TL_OK) << tl_last_error();
  EXPECT_EQ(daemon.operations(), 1u);
  EXPECT_EQ(tl_barrier(context, 5), TL_OK) << tl_last_error();
  EXPECT_EQ(daemon.operations(), 2u);
}

TEST(Arrays, TheCppWrapper) {
  FakeDaemon daemon;
  tl_config_t config = TL_CONFIG_INIT;
  config.socket = daemon.socket().c_str();
  Session session(config);
  EXPECT_EQ(session.size(), 1);
  const std::span<float> x = session.allocate<float>(16);
  x[0] = 3;
  session.allreduce("x", x.data(), x.data(), x.size()).wait();
  EXPECT_EQ(x[0], 6);
  const tl_tensor_desc_t desc = tensor_desc("y", nullptr, 8);
  std::vector<Tensor> tensors = session.register_group("group", std::span(&desc, 1));
  static_cast<float*>(tensors[0].buffer())[0] = 4;
  Request request = tensors[0].post();
  request.wait(5);
  EXPECT_TRUE(request.test());
  EXPECT_EQ(static_cast<float*>(tensors[0].buffer())[0], 8);
  const std::int32_t pushed[2] = {5, 6};
  std::int32_t pulled[2] = {};
  session.push("k", pushed, 2, TL_MAX).wait(5);
  session.pull("k", pulled, 2).wait(5);
  EXPECT_EQ(pulled[1], 6);
  session.reducescatter("r", pushed, pulled, 1, 2).wait(5);
  session.barrier(5);
  try {
    session.allreduce("x", x.data(), x.data(), 4);
    ADD_FAILURE() << "the count differs";
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), TL_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(e.what(), HasSubstr("count was 16, is 4"));
  }
  session.finalize();
}

}  // namespace
}  // namespace tensorlane::test
