// tl_finalize in one thread, other calls in others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "context_guard.h"
#include "daemon/memory/arena.h"
#include "open_daemon.h"

namespace tensorlane::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr const char* kLeft = "another thread has called tl_finalize: job 'job'";

// Large segments are made once they may be.
class HeldPool final : public ports::SharedMemoryPool {
 public:
  Result<std::shared_ptr<ports::SharedMemory>> make(const Owner& owner, std::uint64_t bytes) override {
    if (bytes > 16 << 20) {
      ++asked;
      while (!go_on) std::this_thread::sleep_for(1ms);
    }
    return pool_.make(owner, bytes);
  }
  std::atomic<int> asked{0};
  std::atomic<bool> go_on{false};

 private:
  memory::ArenaPool pool_{memory::MemoryLimits{mib(2048), mib(64)}};
};

void wait_until(const std::function<bool()>& condition) {
  for (int i = 0; i < 20'000 && !condition(); ++i) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(condition());
}

tl_status_t register_one(tl_context_t* context, const char* name) {
  const tl_tensor_desc_t desc = tensor_desc(name, nullptr, 64);
  tl_tensor_t* tensor = nullptr;
  return tl_register(context, name, &desc, 1, &tensor);
}

tl_status_t ask_status(tl_context_t* context) {
  const char* json = nullptr;
  return tl_daemon_status(context, &json);
}

tl_status_t allocate(tl_context_t* context) {
  void* memory = nullptr;
  return tl_alloc(context, 32 << 20, &memory);
}

// Whatever the daemon does about the goodbye, which here it answers late: no thread hears of that.
TEST(Leaving, CallsOfOtherThreadsEndBeforeTheGoodbyeAndNoneBeginsAfterIt) {
  HeldPool pool;
  pool.go_on = true;
  OpenDaemon daemon(pool);
  daemon.control.lets_go = false;
  ClientContext context(daemon.socket, "job", 0, 1, 20);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  tl_context_t* const left = context;
  const auto hears = [](const std::function<tl_status_t()>& call) {
    EXPECT_EQ(call(), TL_ERROR_ABORTED);
    EXPECT_THAT(tl_last_error(), HasSubstr(kLeft));
  };
  const std::vector<std::function<tl_status_t()>> open = {[&] { return register_one(left, "a"); },
                                                          [&] { return register_one(left, "b"); },
                                                          [&] { return ask_status(left); }};
  std::vector<std::thread> callers;
  for (const auto& call : open) callers.emplace_back([&] { hears(call); });
  wait_until([&] { return daemon.control.questions == 3; });
  tl_status_t finalized = TL_ERROR_INTERNAL;
  std::string why;
  std::thread last([&] {
    finalized = context.leave();
    why = tl_last_error();
  });
  wait_until([&] { return daemon.control.goodbyes == 1; });
  for (std::thread& caller : callers) caller.join();
  hears([&] { return register_one(left, "c"); });
  hears([&] { return ask_status(left); });
  hears([&] { return tl_barrier(left, 1); });
  hears([&] { return tl_unregister(left, "a"); });
  hears([&] { return tl_alloc(left, 256 << 20, std::array<void*, 1>().data()); });
  daemon.control.lets_go = true;
  last.join();
  EXPECT_EQ(finalized, TL_OK) << why;
}

// The thread that gets the signal stays in it until there is something to read.
std::atomic<int> stuck{0};
std::array<int, 2> wake{-1, -1};

void stay(int) {
  ++stuck;
  char byte = 0;
  while (read(wake[0], &byte, 1) < 0) {
  }
}

struct AskingCall {
  const char* name;
  tl_status_t (*make)(tl_context_t*);
};

class LeavingSlowly : public testing::TestWithParam<AskingCall> {};

bool sleeps(int thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string number, name, state;
  file >> number >> name >> state;
  return state == "S";
}

// However long another thread needs to come back from its call, the context is there until then. Here it waits for the
// turn of a call before it, and then for us.
TEST_P(LeavingSlowly, FinalizeWaitsForACallThatAsksTheDaemon) {
  if (!SIGNALS_INTERRUPT) GTEST_SKIP() << "the thread sanitizer keeps signals from threads that wait in the kernel";
  ASSERT_EQ(pipe(wake.data()), 0);
  struct sigaction action {
  }, before{};
  action.sa_handler = stay;
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  HeldPool pool;
  OpenDaemon daemon(pool);
  ClientContext context(daemon.socket, "job", 0, 1, 60);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  tl_context_t* const left = context;
  const auto hears = [&](std::atomic<int>& number) {
    number = gettid();
    EXPECT_EQ(GetParam().make(left), TL_ERROR_ABORTED);
    EXPECT_THAT(tl_last_error(), HasSubstr(kLeft));
  };
  std::atomic<int> first_number{0}, second_number{0};
  std::thread first([&] { hears(first_number); });
  wait_until([&] { return pool.asked + daemon.control.questions > 0; });
  std::thread second([&] { hears(second_number); });
  wait_until([&] { return second_number > 0; });
  for (int i = 0; i < 20; ++i) wait_until([&] { return sleeps(second_number); });
  stuck = 0;
  pthread_kill(second.native_handle(), SIGUSR1);
  wait_until([] { return stuck > 0; });
  std::atomic<bool> released{false};
  std::thread releaser([&] {
    std::this_thread::sleep_for(500ms);
    released = true;
    EXPECT_EQ(write(wake[1], "x", 1), 1);
  });
  EXPECT_EQ(context.leave(), TL_OK) << tl_last_error();
  EXPECT_TRUE(released);
  pool.go_on = true;
  for (std::thread* thread : {&releaser, &first, &second}) thread->join();
  sigaction(SIGUSR1, &before, nullptr);
  for (const int end : wake) close(end);
}

INSTANTIATE_TEST_SUITE_P(Calls, LeavingSlowly,
                         testing::Values(AskingCall{"status", ask_status}, AskingCall{"alloc", allocate}),
                         [](const auto& call) { return call.param.name; });

}  // namespace
}  // namespace tensorlane::test
