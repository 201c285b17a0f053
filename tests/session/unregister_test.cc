// Groups that are unregistered, as the client library and the session module see it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "context_guard.h"
#include "fake_daemon.h"
#include "raw_client.h"

namespace tensorlane::test {
namespace {

using testing::HasSubstr;

// 16 MiB 200 times over, in arenas of 64 MiB, with a quota of three tensors.
TEST(Unregister, GivesMemoryNamesAndQuotaBack) {
  session::SessionConfig config;
  config.max_tensors = 3;
  config.arena_per_session = mib(64);
  FakeDaemon daemon(config);
  ClientContext context(daemon.socket());
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  for (std::uint64_t turn = 0; turn < 200; ++turn) {
    const std::uint64_t count = (4 << 20) - turn;
    tl_tensor_desc_t descs[2] = {tensor_desc("x", nullptr, count), tensor_desc("y", nullptr, turn + 1)};
    tl_tensor_t* tensors[2] = {};
    ASSERT_EQ(tl_register(context, "g", descs, 2, tensors), TL_OK) << turn << ": " << tl_last_error();
    auto* x = static_cast<float*>(tl_tensor_buffer(tensors[0]));
    ASSERT_EQ(x[count - 1], 0);
    x[count - 1] = 3;
    if (turn % 40 == 0) {
      tl_request_t* requests[2] = {};
      ASSERT_EQ(tl_post_many(tensors, 2, requests), TL_OK) << tl_last_error();
      ASSERT_EQ(tl_wait_many(requests, 2, 30), TL_OK) << tl_last_error();
      ASSERT_EQ(x[count - 1], 6);
    }
    ASSERT_EQ(tl_unregister(context, "g"), TL_OK) << tl_last_error();
  }
  EXPECT_EQ(daemon.server().in_use(session::kTensors).size(), 0u);
  EXPECT_EQ(context.leave(), TL_OK) << tl_last_error();
}

TEST(Unregister, WhatIsUnderWayIsAnErrorThatChangesNothing) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  daemon.set_mode(Mode::kHold);
  tl_tensor_t* tensor = registered(context, "x", context.floats(64), 64);
  tl_request_t* request = nullptr;
  ASSERT_EQ(tl_post(tensor, &request), TL_OK);
  EXPECT_EQ(tl_unregister(context, "x"), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(tl_last_error(),
               "group 'x' cannot be unregistered: an operation on tensor 'x' is under way: wait for its request first, "
               "on every rank");
  daemon.set_mode(Mode::kRun);
  ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
  ASSERT_EQ(tl_post(tensor, &request), TL_OK) << tl_last_error();
  ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_unregister(context, "x"), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_tensor_buffer(tensor), nullptr) << "the library refuses the handle by name";
  EXPECT_EQ(tl_post(tensor, &request), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(tl_last_error(), "tensor 'x' cannot be used: it was unregistered: register it again");
  EXPECT_EQ(tl_unregister(context, "x"), TL_ERROR_NOT_FOUND);
}

TEST(Unregister, MemoryOfTheProgramMayBeFreedAfterwards) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  float* x = context.floats(64);
  registered(context, "x", x, 64);
  EXPECT_EQ(tl_free(context, x), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("unregister it first"));
  ASSERT_EQ(tl_unregister(context, "x"), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_free(context, x), TL_OK) << tl_last_error();
}

TEST(Unregister, AnArrayCallsNameCanHaveAnotherShape) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  for (const std::uint64_t count : {100u, 7u, 1000u}) {
    std::vector<float> in(count, 1), out(count);
    tl_request_t* request = nullptr;
    ASSERT_EQ(tl_allreduce(context, "a", in.data(), out.data(), count, TL_FLOAT32, TL_SUM, nullptr, &request), TL_OK)
        << tl_last_error();
    ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
    EXPECT_EQ(out, std::vector<float>(count, 2));
    ASSERT_EQ(tl_unregister(context, "allreduce.a"), TL_OK) << tl_last_error();
  }
}

TEST(Unregister, AKeysPullGoesBeforeItsPush) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  std::vector<float> value(10, 1);
  tl_request_t* request = nullptr;
  ASSERT_EQ(tl_push(context, "k", value.data(), 10, TL_FLOAT32, TL_SUM, nullptr, &request), TL_OK) << tl_last_error();
  ASSERT_EQ(tl_wait(request, 10), TL_OK);
  ASSERT_EQ(tl_pull(context, "k", value.data(), 10, TL_FLOAT32, nullptr, &request), TL_OK) << tl_last_error();
  ASSERT_EQ(tl_wait(request, 10), TL_OK);
  EXPECT_EQ(tl_unregister(context, "push.k"), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("unregister pull.k first"));
  EXPECT_EQ(tl_unregister(context, "pull.k"), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_unregister(context, "push.k"), TL_OK) << tl_last_error();
}

TEST(Unregister, GoesOnWaitingAfterADaemonThatSaysNothing) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket(), "job", 0, 1, 0.5);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  tl_tensor_t* tensor = registered(context, FakeDaemon::kKept, context.floats(64), 64);
  EXPECT_EQ(tl_unregister(context, FakeDaemon::kKept), TL_ERROR_TIMED_OUT);
  tl_request_t* request = nullptr;
  EXPECT_EQ(tl_post(tensor, &request), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(
      tl_last_error(),
      "tensor 'kept' cannot be used: it is being unregistered: wait for tl_unregister, or call that again when "
      "it has timed out");
  EXPECT_EQ(tl_unregister(context, FakeDaemon::kKept), TL_OK) << tl_last_error();
}

// As a program does that has given up waiting and comes to its end.
TEST(Unregister, FinalizeEndsACallThatStillWaits) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket(), "job", 0, 1, 60);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  registered(context, FakeDaemon::kKept, context.floats(64), 64);
  std::string why;
  std::thread other([&] {
    EXPECT_NE(tl_unregister(context, FakeDaemon::kKept), TL_OK);
    why = tl_last_error();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EQ(context.leave(), TL_OK) << tl_last_error();
  other.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(30));
  EXPECT_THAT(why, HasSubstr("another thread has called tl_finalize"));
}

TEST(Unregister, AGroupThatHasGoneWhileNobodyWaitedHasGone) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket(), "job", 0, 1, 0.5);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  registered(context, FakeDaemon::kUnheard, context.floats(64), 64);
  EXPECT_EQ(tl_unregister(context, FakeDaemon::kUnheard), TL_ERROR_TIMED_OUT);
  EXPECT_EQ(tl_unregister(context, FakeDaemon::kUnheard), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_unregister(context, FakeDaemon::kUnheard), TL_ERROR_NOT_FOUND);
}

// The pull would read memory that is about to be given back.
TEST(Unregister, AKeyThatIsOnItsWayOutCannotBePulled) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket(), "job", 0, 1, 0.5);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  std::vector<float> value(10, 1);
  tl_request_t* request = nullptr;
  ASSERT_EQ(tl_push(context, "kept", value.data(), 10, TL_FLOAT32, TL_SUM, nullptr, &request), TL_OK);
  ASSERT_EQ(tl_wait(request, 10), TL_OK);
  EXPECT_EQ(tl_unregister(context, "push.kept"), TL_ERROR_TIMED_OUT);
  EXPECT_EQ(tl_pull(context, "kept", value.data(), 10, TL_FLOAT32, nullptr, &request), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(tl_last_error(),
               "array call 'pull.kept' finds no value: the key is being unregistered: wait for tl_unregister, or call "
               "that again when it has timed out");
  EXPECT_EQ(tl_unregister(context, "push.kept"), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_pull(context, "kept", value.data(), 10, TL_FLOAT32, nullptr, &request), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tl_last_error(), HasSubstr("the key was never pushed"));
}

TEST(Unregister, AKeyWhosePullWasRefusedCanBeUnregistered) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  std::vector<float> value(10, 1);
  tl_request_t* request = nullptr;
  ASSERT_EQ(tl_push(context, "unlike", value.data(), 10, TL_FLOAT32, TL_SUM, nullptr, &request), TL_OK);
  ASSERT_EQ(tl_wait(request, 10), TL_OK);
  ASSERT_EQ(tl_pull(context, "unlike", value.data(), 10, TL_FLOAT32, nullptr, &request), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_wait(request, 10), TL_ERROR_MISMATCH);
  EXPECT_EQ(tl_unregister(context, "push.unlike"), TL_OK) << tl_last_error();
}

// The daemon gives the name to another thread before the one that unregisters has heard that the old group has gone.
TEST(Unregister, AGroupThatHasItsNameSinceStays) {
  const std::string name = FakeDaemon::kUnsaid;
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  registered(context, name.c_str(), context.floats(64), 64);
  tl_status_t unregistered = TL_OK;
  std::thread other([&] { unregistered = tl_unregister(context, name.c_str()); });
  EXPECT_TRUE(daemon.wait_gone());
  tl_tensor_t* tensor = registered(context, name.c_str(), context.floats(100), 100);
  daemon.say_what_has_gone();
  other.join();
  EXPECT_EQ(unregistered, TL_OK);
  tl_request_t* request = nullptr;
  ASSERT_EQ(tl_post(tensor, &request), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
}

// Whoever uses the name meanwhile begins anew, or hears that it is on its way out.
TEST(Unregister, AnArrayCallBesideItIsTheFirstOneOrRefused) {
  FakeDaemon daemon;
  ClientContext context(daemon.socket());
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 2; ++i) {
    callers.emplace_back([&] {
      std::vector<float> value(1, 1);
      while (!stop) {
        tl_request_t* request = nullptr;
        if (tl_allreduce(context, "a", value.data(), value.data(), 1, TL_FLOAT32, TL_SUM, nullptr, &request) == TL_OK) {
          tl_wait(request, 10);
          std::this_thread::sleep_for(std::chrono::microseconds(100));  // nothing is under way
        } else if (std::strstr(tl_last_error(), "it was unregistered") != nullptr) {
          ++wrong;
        }
      }
    });
  }
  int gone = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (gone < 1000 && std::chrono::steady_clock::now() < deadline)
    gone += tl_unregister(context, "allreduce.a") == TL_OK;
  stop = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_GT(gone, 0);
  EXPECT_EQ(wrong, 0);
}

// A client that lies is told so, and only its own session ends.
TEST(Unregister, WhatAClientInventsIsRefused) {
  constexpr auto kUnregister = protocol::MessageType::kUnregister;
  FakeDaemon daemon({}, {mib(512), mib(64)}, seconds(60));  // raw clients do not say that they live
  ClientContext neighbour(daemon.socket(), "neighbour");
  tl_tensor_t* tensor = registered(neighbour, "g", neighbour.floats(64), 64);
  RawClient client(daemon.socket());
  ASSERT_TRUE(client.join("victim"));
  protocol::UnregisterBody body;
  std::strcpy(body.group, "g");  // another job's
  ASSERT_TRUE(client.send(kUnregister, 1, bytes_of(body)));
  auto answer = client.receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->code, Code::kNotFound);
  std::strcpy(body.group, "\x1b[2J");
  ASSERT_TRUE(client.send(kUnregister, 2, bytes_of(body)));
  answer = client.receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->code, Code::kInvalidArgument);
  EXPECT_EQ(daemon.leaves(0).size(), 0u);
  std::memset(body.group, 'x', sizeof body.group);  // without an end
  ASSERT_TRUE(client.send(kUnregister, 3, bytes_of(body)));
  answer = client.receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->code, Code::kCorrupt);
  EXPECT_TRUE(client.closed());
  RawClient other(daemon.socket());
  ASSERT_TRUE(other.join("other"));
  ASSERT_TRUE(other.send(kUnregister, 1, bytes_of(body.group)));
  answer = other.receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(answer->error, HasSubstr("an unregistration of the wrong length"));
  EXPECT_TRUE(other.closed());
  RawClient early(daemon.socket());
  ASSERT_TRUE(early.send(kUnregister, 1, bytes_of(protocol::UnregisterBody())));
  answer = early.receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->code, Code::kCorrupt);
  tl_request_t* request = nullptr;
  ASSERT_EQ(tl_post(tensor, &request), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
}

}  // namespace
}  // namespace tensorlane::test
