// Process sets: contexts of some of a job's ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "context_guard.h"
#include "fake_daemon.h"

namespace tensorlane::test {
namespace {

using testing::HasSubstr;

tl_status_t make(tl_context_t* context, const std::vector<int>& ranks, std::uint32_t number, tl_context_t** set) {
  tl_process_set_config_t config = TL_PROCESS_SET_INIT;
  config.ranks = ranks.data();
  config.count = ranks.size();
  config.number = number;
  return tl_process_set(context, &config, set);
}

tl_status_t start(tl_context_t* context, const char* name, float* x, tl_request_t** request) {
  return tl_allreduce(context, name, x, x, 4, TL_FLOAT32, TL_SUM, nullptr, request);
}

float sum(tl_context_t* context, const char* name, float value) {
  float x[4] = {value, value, value, value};
  tl_request_t* request = nullptr;
  EXPECT_EQ(start(context, name, x, &request), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
  return x[3];
}

// The fake gives twice the sum.

// Runs `program` on each of three ranks.
void run(FakeDaemon& daemon, const std::function<void(tl_context_t*, int)>& program) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      ClientContext context(daemon.socket(), "job", rank, 3);
      ASSERT_EQ(context.status(), TL_OK) << context.error();
      program(context, rank);
      EXPECT_EQ(context.leave(), TL_OK) << tl_last_error();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ProcessSet, WorksWithoutTheOthersAndHasNamesOfItsOwn) {
  FakeDaemon daemon;
  run(daemon, [](tl_context_t* job, int rank) {
    EXPECT_EQ(sum(job, "x", 1.0F), 2 * 3);
    if (rank == 1) return;
    tl_context_t *set = nullptr, *twin = nullptr;
    ASSERT_EQ(make(job, {0, 2}, 1, &set), TL_OK) << tl_last_error();
    ASSERT_EQ(make(job, {0, 2}, 2, &twin), TL_OK) << tl_last_error();
    EXPECT_EQ(tl_rank(set), rank / 2);
    EXPECT_EQ(tl_size(set), 2);
    EXPECT_EQ(tl_local_size(set), 1);
    EXPECT_EQ(sum(set, "x", 10.0F + static_cast<float>(rank)), 2 * 22);
    EXPECT_EQ(sum(twin, "x", 5.0F), 2 * 10);
    EXPECT_EQ(tl_barrier(set, 10), TL_OK) << tl_last_error();
    EXPECT_EQ(tl_finalize(twin), TL_OK) << tl_last_error();
    EXPECT_EQ(sum(set, "x", 1.0F), 2 * 2);
  });
}

TEST(ProcessSet, IsGivenBackWhenNothingIsUnderWay) {
  FakeDaemon daemon;
  std::latch refused(1);
  run(daemon, [&refused](tl_context_t* job, int rank) {
    if (rank == 1) return;
    if (rank == 2) refused.wait();
    for (std::uint32_t number = 1; number <= 50; ++number) {
      tl_context_t* set = nullptr;
      ASSERT_EQ(make(job, {0, 2}, number, &set), TL_OK) << tl_last_error();
      float x[4] = {1, 1, 1, 1}, y[4] = {2, 2, 2, 2};
      tl_request_t *first = nullptr, *second = nullptr;
      ASSERT_EQ(start(set, "x", x, &first), TL_OK) << tl_last_error();
      if (rank == 0 && number == 1) {  // the other has not come to it
        EXPECT_EQ(tl_finalize(set), TL_ERROR_INVALID_ARGUMENT);
        EXPECT_THAT(tl_last_error(),
                    HasSubstr("an operation on 'allreduce.x' of process set 1 (ranks 0, 2) of job 'job' is not over"));
        refused.count_down();
      }
      EXPECT_EQ(sum(set, "later", 3.0F), 2 * 6);
      EXPECT_EQ(tl_wait(first, 10), TL_OK) << tl_last_error();
      EXPECT_EQ(x[0], 2 * 2);
      ASSERT_EQ(start(set, "y", y, &second), TL_OK) << tl_last_error();
      EXPECT_EQ(tl_barrier(set, 10), TL_OK);
      while (tl_test(second) == TL_IN_PROGRESS) std::this_thread::yield();
      EXPECT_EQ(tl_finalize(set), TL_OK) << tl_last_error();
    }
  });
}

TEST(ProcessSet, RegistersGroupsOfItsOwn) {
  FakeDaemon daemon;
  run(daemon, [](tl_context_t* job, int rank) {
    if (rank == 1) return;
    tl_context_t* set = nullptr;
    ASSERT_EQ(make(job, {0, 2}, 1, &set), TL_OK) << tl_last_error();
    std::vector<std::string> names(300);
    std::vector<tl_tensor_desc_t> descs;
    for (std::size_t i = 0; i < names.size(); ++i) {
      names[i] = "t" + std::to_string(i);
      descs.push_back(tensor_desc(names[i].c_str(), nullptr, 4));
    }
    std::vector<tl_tensor_t*> tensors(descs.size());
    ASSERT_EQ(tl_register(set, "g", descs.data(), descs.size(), tensors.data()), TL_OK) << tl_last_error();
    auto* x = static_cast<float*>(tl_tensor_buffer(tensors[299]));
    x[0] = 4;
    tl_request_t* request = nullptr;
    ASSERT_EQ(tl_post(tensors[299], &request), TL_OK) << tl_last_error();
    ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
    EXPECT_EQ(x[0], 2 * 4 * 2);
    EXPECT_EQ(tl_unregister(job, "g"), TL_ERROR_NOT_FOUND);
    EXPECT_EQ(tl_unregister(set, "g"), TL_OK) << tl_last_error();
  });
}

// More groups than answers have room in a socket, and than the daemon has been told of when tl_finalize() returns.
TEST(ProcessSet, OfManyGroupsIsGivenBack) {
  FakeDaemon daemon;
  run(daemon, [&daemon](tl_context_t* job, int rank) {
    if (rank == 1) return;
    tl_context_t* set = nullptr;
    ASSERT_EQ(make(job, {0, 2}, 1, &set), TL_OK) << tl_last_error();
    for (int i = 0; i < 500; ++i) ASSERT_EQ(sum(set, std::to_string(i).c_str(), 1.0F), 2 * 2);
    EXPECT_EQ(tl_finalize(set), TL_OK) << tl_last_error();
    for (std::uint32_t number = 2; number <= 4; ++number) {
      ASSERT_EQ(make(job, {0, 2}, number, &set), TL_OK) << tl_last_error();
      EXPECT_EQ(sum(set, "x", 1.0F), 2 * 2);
    }
    EXPECT_TRUE(daemon.wait_groups("job", 3)) << "those of the sets that are there";
  });
}

TEST(ProcessSet, ThatCannotBeIsRefused) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket(), "job", 0, 1);
  tl_context_t* set = nullptr;
  const auto refused = [&](const std::vector<int>& ranks, std::uint32_t number, const char* text) {
    EXPECT_EQ(make(context, ranks, number, &set), TL_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(tl_last_error(), HasSubstr(text));
    EXPECT_EQ(set, nullptr);
  };
  refused({}, 1, "it has no ranks");
  refused({0, 1}, 1, "the job has no rank 1");
  refused({-1}, 1, "the job has no rank -1");
  refused({0, 0}, 1, "rank 0 is not behind the one before");
  refused({0}, 0, "its number is 0: use 1 to 16777215");
  refused({0}, 1u << 24, "its number is 16777216");
  refused(std::vector<int>(8193), 1, "it has 8193 ranks: the limit is 8192");
  EXPECT_EQ(tl_process_set(context, nullptr, &set), TL_ERROR_INVALID_ARGUMENT);
  ASSERT_EQ(make(context, {0}, 1, &set), TL_OK) << tl_last_error();
  tl_context_t *inner = nullptr, *twin = nullptr;
  EXPECT_EQ(make(context, {0}, 1, &twin), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("process set 1 (ranks 0) of job 'job' has its number"));
  EXPECT_EQ(make(set, {0}, 2, &inner), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("tl_process_set was called with a process set"));
  EXPECT_EQ(sum(set, "x", 3.0F), 2 * 3);
}

}  // namespace
}  // namespace tensorlane::test
