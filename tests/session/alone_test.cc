// A job of one rank where there is no daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <numeric>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "context_guard.h"
#include "tensorlane/tensorlane.h"

namespace tensorlane::test {
namespace {

using testing::HasSubstr;

constexpr const char* kNobody = "/tmp/tensorlane-nobody.sock";

std::vector<float> counted(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

TEST(Alone, ArrayCallsGiveWhatTheyGot) {
  ClientContext context(kNobody);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  EXPECT_EQ(tl_host(context), nullptr);
  EXPECT_EQ(tl_size(context), 1);
  const std::vector<float> in = counted(1000);
  const auto done = [&](auto call) {
    std::vector<float> out(in.size());
    tl_request_t* request = nullptr;
    ASSERT_EQ(call(out.data(), &request), TL_OK) << tl_last_error();
    ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
    EXPECT_EQ(out, in);
  };
  for (int round = 0; round < 3; ++round) {
    for (const tl_op_t op : {TL_SUM, TL_AVERAGE, TL_MIN, TL_MAX, TL_PRODUCT}) {
      done([&](float* out, tl_request_t** request) {
        return tl_allreduce(context, numbered("x", op).c_str(), in.data(), out, 1000, TL_FLOAT32, op, nullptr, request);
      });
    }
    done([&](float* out, tl_request_t** request) {
      std::copy(in.begin(), in.end(), out);
      return tl_broadcast(context, "x", out, 1000, TL_FLOAT32, 0, nullptr, request);
    });
    done([&](float* out, tl_request_t** request) {
      return tl_allgather(context, "x", in.data(), out, 1000, TL_FLOAT32, nullptr, request);
    });
    done([&](float* out, tl_request_t** request) {
      return tl_reducescatter(context, "x", in.data(), out, 100, 10, TL_FLOAT32, TL_SUM, nullptr, request);
    });
    done([&](float* out, tl_request_t** request) {
      return tl_reduce(context, "x", in.data(), out, 1000, TL_FLOAT32, TL_SUM, 0, nullptr, request);
    });
    done([&](float* out, tl_request_t** request) {
      return tl_gather(context, "x", in.data(), out, 1000, TL_FLOAT32, 0, nullptr, request);
    });
    done([&](float* out, tl_request_t** request) {
      return tl_scatter(context, "x", in.data(), out, 1000, TL_FLOAT32, 0, nullptr, request);
    });
    done([&](float* out, tl_request_t** request) {
      return tl_alltoall(context, "x", in.data(), out, 1000, TL_FLOAT32, nullptr, request);
    });
    std::vector<float> nothing;
    tl_request_t* request = nullptr;
    ASSERT_EQ(tl_push(context, "k", in.data(), 1000, TL_FLOAT32, TL_SUM, nullptr, &request), TL_OK) << tl_last_error();
    ASSERT_EQ(tl_wait(request, 10), TL_OK);
    done([&](float* out, tl_request_t** pulled) {
      return tl_pull(context, "k", out, 1000, TL_FLOAT32, nullptr, pulled);
    });
  }
  EXPECT_EQ(tl_barrier(context, 10), TL_OK) << tl_last_error();
  EXPECT_EQ(context.leave(), TL_OK) << tl_last_error();
}

TEST(Alone, PartsOfOneRankAreItsOwn) {
  ClientContext context(kNobody);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  const std::vector<float> in = counted(1000);
  std::vector<float> out(in.size());
  const std::uint64_t count = in.size(), other = count - 1, impossible = std::uint64_t{1} << 60;
  const auto call = [&](const void* from, const std::uint64_t* sends, const std::uint64_t* expects,
                        tl_request_t** requests) {
    return tl_alltoallv(context, 7, from, sends, out.data(), expects, TL_FLOAT32, nullptr, requests);
  };
  std::array<tl_request_t*, 2> requests = {reinterpret_cast<tl_request_t*>(1), reinterpret_cast<tl_request_t*>(1)};
  ASSERT_EQ(call(in.data(), &count, &count, requests.data()), TL_OK) << tl_last_error();
  EXPECT_EQ(requests, (std::array<tl_request_t*, 2>{}));
  EXPECT_EQ(tl_wait_many(requests.data(), requests.size(), 10), TL_OK);
  EXPECT_EQ(out, in);
  EXPECT_EQ(call(in.data(), &other, &count, requests.data()), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(tl_last_error(),
               "tl_alltoallv was called with two counts of a rank for itself: rank 0 sends itself 999 elements, and "
               "expects 1000: make them the same");
  EXPECT_EQ(call(in.data(), &impossible, &impossible, requests.data()), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("tl_alltoallv was called with an impossible count"));
  EXPECT_EQ(call(nullptr, &count, &count, requests.data()), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("tl_alltoallv was called without an input"));
  EXPECT_EQ(tl_alltoallv(context, 7, in.data(), &count, nullptr, &count, TL_FLOAT32, nullptr, requests.data()),
            TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("tl_alltoallv was called without an output"));
  tl_options_t on_gpu = TL_OPTIONS_INIT;
  on_gpu.memory = TL_MEMORY_CUDA;
  EXPECT_EQ(tl_alltoallv(context, 7, in.data(), &count, out.data(), &count, TL_FLOAT32, &on_gpu, requests.data()),
            TL_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(call(in.data(), nullptr, &count, requests.data()), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(call(in.data(), &count, &count, nullptr), TL_ERROR_INVALID_ARGUMENT);
}

TEST(Alone, TensorsAreRegisteredAsWithADaemon) {
  ClientContext context(kNobody);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  // More than one packet has room for.
  std::vector<std::string> names;
  for (int i = 0; i < 300; ++i) names.push_back(numbered("t", i));
  std::vector<tl_tensor_desc_t> descs;
  for (const std::string& name : names) descs.push_back(tensor_desc(name.c_str(), nullptr, 64));
  std::vector<tl_tensor_t*> tensors(descs.size());
  std::vector<tl_request_t*> requests(descs.size());
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(tl_register(context, "all", descs.data(), descs.size(), tensors.data()), TL_OK) << tl_last_error();
    EXPECT_EQ(std::set<void*>(tensors.begin(), tensors.end()).size(), tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i)
      static_cast<float*>(tl_tensor_buffer(tensors[i]))[63] = static_cast<float>(i);
    ASSERT_EQ(tl_post_many(tensors.data(), tensors.size(), requests.data()), TL_OK) << tl_last_error();
    ASSERT_EQ(tl_wait_many(requests.data(), requests.size(), 10), TL_OK) << tl_last_error();
    for (std::size_t i = 0; i < tensors.size(); ++i)
      ASSERT_EQ(static_cast<float*>(tl_tensor_buffer(tensors[i]))[63], static_cast<float>(i));
    tl_tensor_t* again = nullptr;
    EXPECT_EQ(tl_register(context, "all", descs.data(), 1, &again), TL_ERROR_ALREADY_EXISTS);
    EXPECT_STREQ(tl_last_error(), "the group is registered already: group 'all': use another group name");
    EXPECT_EQ(tl_register(context, "other", &descs[7], 1, &again), TL_ERROR_ALREADY_EXISTS);
    EXPECT_STREQ(tl_last_error(),
                 "tensor 't7' is registered already: group 'other': give every tensor of a job a name of its own");
    ASSERT_EQ(tl_unregister(context, "all"), TL_OK) << tl_last_error();
    EXPECT_EQ(tl_unregister(context, "all"), TL_ERROR_NOT_FOUND);
  }
}

TEST(Alone, ThreadsAndCallbacks) {
  ClientContext context(kNobody);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  constexpr int kThreads = 4, kRounds = 2000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::atomic<int> called{0};
      float* x = context.floats(16);
      tl_tensor_t* tensor = registered(context, numbered("t", t).c_str(), x, 16);
      for (int i = 0; i < kRounds; ++i) {
        x[0] = static_cast<float>(i);
        tl_request_t* request = nullptr;
        ASSERT_EQ(tl_post(tensor, &request), TL_OK) << tl_last_error();
        if (i % 2 == 0) {
          ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
        } else {
          const auto count = [](tl_status_t status, void* counter) {
            if (status == TL_OK) ++*static_cast<std::atomic<int>*>(counter);
          };
          ASSERT_EQ(tl_set_callback(request, count, &called), TL_OK) << tl_last_error();
          while (called <= i / 2) std::this_thread::yield();
        }
        ASSERT_EQ(x[0], static_cast<float>(i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Alone, TheStatusSaysWhy) {
  ClientContext context(kNobody);
  const char* json = nullptr;
  ASSERT_EQ(tl_daemon_status(context, &json), TL_OK) << tl_last_error();
  EXPECT_STREQ(json,
               "{\"alone\": \"connect to /tmp/tensorlane-nobody.sock: No such file or directory\", \"jobs\": []}");
}

TEST(Alone, TheStatusIsJsonWhateverTheSocketIsCalled) {
  ClientContext context("/tmp/tensorlane-\"no\\body\".sock");
  const char* json = nullptr;
  ASSERT_EQ(tl_daemon_status(context, &json), TL_OK) << tl_last_error();
  EXPECT_THAT(json, HasSubstr(R"(connect to /tmp/tensorlane-\"no\\body\".sock: )"));
}

TEST(Alone, NoMemory) {
  ClientContext context(kNobody);
  void* memory = nullptr;
  EXPECT_EQ(tl_alloc(context, std::size_t{1} << 45, &memory), TL_ERROR_RESOURCE_EXHAUSTED);
  EXPECT_THAT(tl_last_error(), HasSubstr("this host is short of memory: 35184372088832 bytes asked for, "));
  EXPECT_EQ(tl_alloc(context, 1 << 20, &memory), TL_OK) << tl_last_error();
}

// The library's own thread has no daemon to watch, however short the time is after which one would be missed.
TEST(Alone, ARankThatRestsIsNotEnded) {
  ClientContext context(kNobody);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  std::this_thread::sleep_for(std::chrono::milliseconds(1800));
  EXPECT_EQ(tl_barrier(context, 10), TL_OK) << tl_last_error();
}

// Other calls would wait as long as the call that begins it. The kernel may let the copy run first, but not every time.
TEST(Alone, ALargeExchangeIsNotCopiedByWhoBeginsIt) {
  using Clock = std::chrono::steady_clock;
  ClientContext context(kNobody);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  constexpr std::uint64_t kCount = 16 << 20;
  tl_tensor_desc_t desc = tensor_desc("exchange", nullptr, kCount);
  desc.operation = TL_ALLTOALL;
  tl_tensor_t* tensor = nullptr;
  ASSERT_EQ(tl_register(context, "exchange", &desc, 1, &tensor), TL_OK) << tl_last_error();
  auto* memory = static_cast<float*>(tl_tensor_buffer(tensor));
  Clock::duration begun = Clock::duration::max(), whole = begun;
  for (int round = 0; round < 10; ++round) {
    std::fill_n(memory, kCount / 2, static_cast<float>(round + 1));
    const Clock::time_point start = Clock::now();
    tl_request_t* request = nullptr;
    ASSERT_EQ(tl_post(tensor, &request), TL_OK) << tl_last_error();
    const Clock::time_point posted = Clock::now();
    ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
    begun = std::min(begun, posted - start);
    whole = std::min(whole, Clock::now() - start);
    ASSERT_EQ(memory[kCount / 2], static_cast<float>(round + 1));
    ASSERT_EQ(memory[kCount - 1], static_cast<float>(round + 1));
  }
  EXPECT_LT(begun, whole / 2);
}

TEST(Alone, MessagesMeetByTagInTheOrderOfTheirCalls) {
  ClientContext context(kNobody);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  std::vector<tl_request_t*> requests;
  for (const auto& [tag, value] : {std::pair(1, 10), std::pair(2, 20), std::pair(1, 11)}) {
    ASSERT_EQ(tl_send(context, 0, tag, &value, 1, TL_INT32, nullptr, &requests.emplace_back()), TL_OK);
  }
  std::array<int, 3> got{};
  int source = -1;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::uint64_t tag = i == 0 ? 2 : 1;
    ASSERT_EQ(tl_recv(context, TL_ANY_SOURCE, tag, &got[i], 1, TL_INT32, &source, nullptr, &requests.emplace_back()),
              TL_OK)
        << tl_last_error();
  }
  for (tl_request_t* request : requests) ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
  EXPECT_EQ(got, (std::array{20, 10, 11}));
  EXPECT_EQ(source, 0);
}

// Ids are used again, by other operations.
TEST(Alone, WhatWasAnExchangeIsNone) {
  ClientContext context(kNobody);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  constexpr std::uint64_t kCount = 64;
  tl_tensor_desc_t desc = tensor_desc("exchange", nullptr, kCount);
  desc.operation = TL_ALLTOALL;
  tl_tensor_t* tensor = nullptr;
  ASSERT_EQ(tl_register(context, "exchange", &desc, 1, &tensor), TL_OK) << tl_last_error();
  auto* memory = static_cast<float*>(tl_tensor_buffer(tensor));
  ASSERT_EQ(tl_unregister(context, "exchange"), TL_OK) << tl_last_error();
  // Most likely in the same memory; what was exchanged there would be now, too.
  float* x = context.floats(kCount);
  if (x != memory) GTEST_SKIP() << "the memory is not used again";
  std::iota(x, x + kCount, 1.0F);
  tl_request_t* request = nullptr;
  ASSERT_EQ(tl_post(registered(context, "sum", x, kCount), &request), TL_OK) << tl_last_error();
  ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
  EXPECT_EQ(std::vector<float>(x, x + kCount), counted(kCount));
}

// In a process of a user who may not have more threads than that has; root may have any number.
TEST(Alone, AThreadThatCannotBeStarted) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none{1, 1};
    int wrong = setuid(65534);
    const auto is_named = [](tl_status_t status) {
      return status == TL_ERROR_RESOURCE_EXHAUSTED &&
             std::string(tl_last_error()) ==
                 "cannot start a thread: Resource temporarily unavailable: raise the limit of processes of this user "
                 "(ulimit -u) or of tasks of its service or container (TasksMax, pids.max)";
    };
    ClientContext context(kNobody);
    float x = 1;
    tl_request_t *first = nullptr, *second = nullptr;
    tl_options_t queued = TL_OPTIONS_INIT;
    queued.queued = 1;
    setrlimit(RLIMIT_NPROC, &none);
    tl_context_t* none_made = nullptr;
    tl_config_t config = TL_CONFIG_INIT;
    config.socket = kNobody;
    config.rank = config.local_rank = 0;
    config.world_size = config.local_world_size = 1;
    wrong |= is_named(tl_init(&config, &none_made)) ? 0 : 2;
    tl_allreduce(context, "x", &x, &x, 1, TL_FLOAT32, TL_SUM, &queued, &first);
    wrong |= is_named(tl_allreduce(context, "x", &x, &x, 1, TL_FLOAT32, TL_SUM, &queued, &second)) ? 0 : 4;
    wrong |= is_named(tl_set_callback(
                 first, [](tl_status_t, void*) {}, nullptr))
                 ? 0
                 : 8;
    wrong |= tl_wait(first, 10) == TL_OK ? 0 : 16;
    wrong |= context.leave() == TL_OK ? 0 : 32;
    _exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "exit status " << WEXITSTATUS(status);
}

TEST(Alone, SeveralContextsLeaveNothingBehind) {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  const auto before = descriptors();
  for (int round = 0; round < 20; ++round) {
    ClientContext first(kNobody, "first"), second(kNobody, "second");
    first.floats(100);
    ASSERT_EQ(tl_barrier(second, 10), TL_OK) << tl_last_error();
  }
  EXPECT_EQ(descriptors(), before);
}

TEST(Alone, OneOfTwoRanksIsNot) {
  ClientContext context(kNobody, "job", 0, 2);
  EXPECT_EQ(context.status(), TL_ERROR_UNAVAILABLE);
}

// A rank may send to itself, in whichever order.
TEST(Alone, MessagesToOneself) {
  ClientContext context(kNobody);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  const auto send = [&](std::uint64_t tag, const std::vector<float>& values) {
    tl_request_t* request = nullptr;
    EXPECT_EQ(tl_send(context, 0, tag, values.data(), values.size(), TL_FLOAT32, nullptr, &request), TL_OK);
    return request;
  };
  const auto receive = [&](int source, std::uint64_t tag, std::vector<float>& values, int* from) {
    tl_request_t* request = nullptr;
    EXPECT_EQ(tl_recv(context, source, tag, values.data(), values.size(), TL_FLOAT32, from, nullptr, &request), TL_OK);
    return request;
  };
  const std::vector<float> values = counted(1000);
  std::vector<float> first(1000), second(1000), of_other_tag(1000), nothing;
  int from = -7, from_any = -7;
  tl_request_t* early = receive(TL_ANY_SOURCE, 1, first, &from_any);
  EXPECT_EQ(tl_test(early), TL_IN_PROGRESS);
  tl_request_t* other = send(2, std::vector<float>(1000, 3));
  EXPECT_EQ(tl_wait(early, 0.01), TL_ERROR_TIMED_OUT);
  EXPECT_THAT(tl_last_error(), HasSubstr("the message from any rank with tag 1 is not done"));
  tl_request_t* sent = send(1, values);
  EXPECT_EQ(tl_wait(early, 5), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_wait(sent, 5), TL_OK) << tl_last_error();
  EXPECT_EQ(first, values);
  EXPECT_EQ(from_any, 0);
  tl_request_t* again[] = {send(1, std::vector<float>(1000, 1)), send(1, std::vector<float>(1000, 2)),
                           send(9, nothing)};
  EXPECT_EQ(tl_wait(receive(0, 1, first, &from), 5), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_wait(receive(0, 1, second, nullptr), 5), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_wait(receive(0, 2, of_other_tag, nullptr), 5), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_wait(receive(0, 9, nothing, nullptr), 5), TL_OK) << tl_last_error();
  EXPECT_EQ(std::tuple(first[999], second[999], of_other_tag[999], from), std::tuple(1.0F, 2.0F, 3.0F, 0));
  for (tl_request_t* request : again) EXPECT_EQ(tl_wait(request, 5), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_wait(other, 5), TL_OK) << tl_last_error();
  EXPECT_EQ(context.leave(), TL_OK) << tl_last_error();
}

TEST(Alone, MessagesWhoseEndsDisagreeFailBoth) {
  ClientContext context(kNobody);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  std::vector<float> values(10);
  tl_request_t *sent = nullptr, *got = nullptr;
  ASSERT_EQ(tl_send(context, 0, 4, values.data(), 10, TL_FLOAT32, nullptr, &sent), TL_OK) << tl_last_error();
  ASSERT_EQ(tl_recv(context, 0, 4, values.data(), 5, TL_INT64, nullptr, nullptr, &got), TL_OK) << tl_last_error();
  for (tl_request_t* request : {sent, got}) {
    EXPECT_EQ(tl_wait(request, 5), TL_ERROR_MISMATCH);
    EXPECT_THAT(tl_last_error(),
                HasSubstr("rank 0 sends 10 elements of float32, rank 0 receives 5 elements of int64: tag 4 of job"));
  }
  EXPECT_EQ(context.leave(), TL_OK) << tl_last_error();
}

// What cannot be is refused, and takes no place; so is one message too many.
TEST(Alone, MessagesThatCannotBeAreRefused) {
  ClientContext context(kNobody);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  float x = 1;
  tl_request_t* request = nullptr;
  const auto refused = [&](tl_status_t status, const char* text) {
    EXPECT_EQ(status, TL_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(tl_last_error(), HasSubstr(text));
  };
  tl_options_t urgent = TL_OPTIONS_INIT, on_gpu = TL_OPTIONS_INIT;
  urgent.urgency = 2;
  on_gpu.memory = TL_MEMORY_CUDA;
  refused(tl_send(nullptr, 0, 0, &x, 1, TL_FLOAT32, nullptr, &request), "a context");
  refused(tl_send(context, 0, 0, nullptr, 1, TL_FLOAT32, nullptr, &request), "a buffer");
  refused(tl_send(context, 0, 0, &x, 1, TL_FLOAT32, nullptr, nullptr), "a place for the request");
  refused(tl_send(context, 1, 0, &x, 1, TL_FLOAT32, nullptr, &request), "an impossible rank");
  refused(tl_send(context, TL_ANY_SOURCE, 0, &x, 1, TL_FLOAT32, nullptr, &request), "an impossible rank");
  refused(tl_recv(context, -2, 0, &x, 1, TL_FLOAT32, nullptr, nullptr, &request), "an impossible rank");
  refused(tl_send(context, 0, 0, &x, (1ULL << 32) + 1, TL_FLOAT32, nullptr, &request), "an impossible count");
  refused(tl_send(context, 0, 0, &x, 1, static_cast<tl_dtype_t>(8), nullptr, &request), "an impossible dtype");
  refused(tl_send(context, 0, 0, &x, 1, TL_FLOAT32, &urgent, &request), "an impossible urgency");
  refused(tl_recv(context, 0, 0, &x, 1, TL_FLOAT32, nullptr, &on_gpu, &request), "an impossible memory");
  std::vector<tl_request_t*> sent(1024);
  for (tl_request_t*& each : sent)
    ASSERT_EQ(tl_send(context, 0, 7, &x, 1, TL_FLOAT32, nullptr, &each), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_send(context, 0, 7, &x, 1, TL_FLOAT32, nullptr, &request), TL_ERROR_RESOURCE_EXHAUSTED);
  EXPECT_THAT(tl_last_error(), HasSubstr("too many messages of this rank are under way: the limit is 1024"));
  ASSERT_EQ(tl_abort(context, "they are not received"), TL_OK);
  for (tl_request_t* each : sent) EXPECT_EQ(tl_wait(each, 5), TL_ERROR_ABORTED);
}

}  // namespace
}  // namespace tensorlane::test
