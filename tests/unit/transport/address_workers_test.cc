// The threads that wait for the network's answer about addresses: whose turn it is, what is tried again, and that the
// owner waits for none of it.
#include "daemon/transport/rdma/address_workers.h"

#include <poll.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <new>
#include <set>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorlane::rdma {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

GidBytes peer(std::uint8_t n) {
  return {n};
}

Status nobody() {
  return {Code::kInProgress, "nobody answers"};
}

class FakeTask final : public AddressWorkers::Task {
 public:
  FakeTask(std::function<Result<bool>()> step, std::atomic<int>& alive) : step_(std::move(step)), alive_(alive) {
    ++alive_;
  }
  ~FakeTask() override {
    EXPECT_EQ(std::this_thread::get_id(), made_on_) << "destroyed on a worker's thread";
    --alive_;
  }
  FakeTask(const FakeTask&) = delete;
  FakeTask& operator=(const FakeTask&) = delete;
  Result<bool> step() override { return step_(); }

 private:
  const std::function<Result<bool>()> step_;
  std::atomic<int>& alive_;
  const std::thread::id made_on_ = std::this_thread::get_id();
};

class Workers : public ::testing::Test {
 protected:
  AddressWorkers::Task* add(std::uint8_t to, std::function<Result<bool>()> step) {
    return *workers->add(peer(to), std::make_unique<FakeTask>(std::move(step), alive));
  }
  // Serves until `done`; false after ten seconds.
  bool serve_until(const std::function<bool()>& done) {
    const auto end = Clock::now() + 10s;
    while (!done()) {
      if (Clock::now() > end) return false;
      pollfd readable{workers->fd(), POLLIN, 0};
      ::poll(&readable, 1, 5);
      while (const AddressWorkers::Task* task = workers->serve()) served.insert(task);
    }
    return true;
  }

  std::atomic<int> alive{0};
  std::unique_ptr<AddressWorkers> workers = AddressWorkers::open("a test").value();
  std::set<const AddressWorkers::Task*> served;
};

TEST_F(Workers, TellTheOwnerWhenAllIsDone) {
  std::atomic<int> steps{0};
  AddressWorkers::Task* task = add(1, [&] { return ++steps == 3; });
  ASSERT_TRUE(serve_until([&] { return served.contains(task); }));
  EXPECT_TRUE(*workers->done(task));
  EXPECT_EQ(workers->take(task).get(), task);
  EXPECT_EQ(steps, 3);
  EXPECT_EQ(workers->tasks(), 0u);
}

TEST_F(Workers, TryAgainForAsLongAsNobodyAnswersAndSayWhyItTakesSoLong) {
  std::atomic<int> silent{5};
  const auto begin = Clock::now();
  AddressWorkers::Task* task = add(1, [&]() -> Result<bool> {
    if (silent > 0) return silent = silent - 1, nobody();
    return true;
  });
  ASSERT_TRUE(serve_until([&] { return !workers->delay(task).ok() || *workers->done(task); }));
  EXPECT_EQ(workers->delay(task), nobody());
  ASSERT_TRUE(serve_until([&] { return served.contains(task); }));
  EXPECT_GE(Clock::now() - begin, 5 * std::chrono::nanoseconds(AddressWorkers::kPause.value));
  EXPECT_TRUE(*workers->done(task));
  EXPECT_TRUE(workers->delay(task).ok());
  workers->give_up(task);
  EXPECT_EQ(alive, 0);
}

TEST_F(Workers, ReportALastingErrorAtOnce) {
  std::atomic<int> steps{0};
  AddressWorkers::Task* task =
      add(1, [&]() -> Result<bool> { return ++steps, Status(Code::kUnavailable, "no route"); });
  ASSERT_TRUE(serve_until([&] { return served.contains(task); }));
  EXPECT_EQ(workers->done(task).status().what(), "no route");
  EXPECT_TRUE(workers->delay(task).ok());
  EXPECT_EQ(steps, 1);
  workers->give_up(task);
}

// However many peers are silent, however long each call of them takes, and however often they are dialled.
TEST_F(Workers, KeepATurnForPeersThatAnswer) {
  constexpr std::size_t kSilent = 2 * AddressWorkers::kThreads;
  std::atomic<std::size_t> calls{0};
  const auto silent = [&calls] {
    std::this_thread::sleep_for(500ms);
    return ++calls, nobody();
  };
  for (int round = 0; round < 3; ++round) {
    std::vector<AddressWorkers::Task*> dead;
    for (std::size_t n = 1; n <= kSilent; ++n) dead.push_back(add(static_cast<std::uint8_t>(n), silent));
    // Each has been asked for at least once: from then on they are known to be silent.
    ASSERT_TRUE(serve_until([&] { return calls >= 2 * kSilent; }));
    const auto begin = Clock::now();
    AddressWorkers::Task* task = add(200, [] { return true; });
    ASSERT_TRUE(serve_until([&] { return served.contains(task); }));
    EXPECT_LT(Clock::now() - begin, 350ms) << round;
    served.clear();
    workers->take(task);
    for (AddressWorkers::Task* given_up : dead) workers->give_up(given_up);
  }
  ASSERT_TRUE(serve_until([&] { return alive == 0; }));
}

// A rack is switched off that no one has dialled before: who has answered does not wait for that to be found out.
TEST_F(Workers, KeepAThreadForWhoHasAnswered) {
  const auto answers = [this] {
    AddressWorkers::Task* task = add(200, [] { return true; });
    const auto begin = Clock::now();
    EXPECT_TRUE(serve_until([&] { return served.contains(task); }));
    served.clear();
    workers->take(task);
    return Clock::now() - begin;
  };
  answers();
  std::atomic<std::size_t> begun{0};
  const auto silent = [&begun] {
    ++begun;
    std::this_thread::sleep_for(1s);
    return nobody();
  };
  for (std::size_t n = 1; n <= 3 * AddressWorkers::kThreads; ++n) add(static_cast<std::uint8_t>(n), silent);
  ASSERT_TRUE(serve_until([&] { return begun >= AddressWorkers::kThreads - 1; }));
  EXPECT_LT(answers(), 500ms);
  workers.reset();
}

// One that was silent once comes again and again, each time for less than the others need for a round.
TEST_F(Workers, KeepThePlaceOfAPeerThatComesAgain) {
  const auto silent = [] {
    std::this_thread::sleep_for(100ms);
    return nobody();
  };
  std::atomic<bool> once{false}, again{false};
  AddressWorkers::Task* first = add(200, [&] { return once = true, nobody(); });
  ASSERT_TRUE(serve_until([&] { return !workers->delay(first).ok(); }));
  workers->give_up(first);
  for (std::size_t n = 1; n <= 8 * AddressWorkers::kThreads; ++n) add(static_cast<std::uint8_t>(n), silent);
  for (int attempt = 0; attempt < 20 && !again; ++attempt) {
    AddressWorkers::Task* task = add(200, [&] { return again = true; });
    const auto end = Clock::now() + 400ms;
    ASSERT_TRUE(serve_until([&] { return again || Clock::now() > end; }));
    workers->give_up(task);
  }
  EXPECT_TRUE(again) << "it never had a turn";
}

TEST_F(Workers, StartAThreadForASilentPeerToo) {
  for (const std::uint8_t n : {1, 2}) {
    AddressWorkers::Task* task = add(n, [] { return nobody(); });
    ASSERT_TRUE(serve_until([&] { return !workers->delay(task).ok(); }));
    workers->give_up(task);
  }
  std::this_thread::sleep_for(2 * std::chrono::nanoseconds(AddressWorkers::kPause.value));
  std::atomic<int> in_call{0};
  std::atomic<bool> go_on{false};
  for (const std::uint8_t n : {1, 2}) {
    add(n, [&]() -> Result<bool> {
      ++in_call;
      while (!go_on) std::this_thread::sleep_for(1ms);
      return true;
    });
  }
  EXPECT_TRUE(serve_until([&] { return in_call == 2; })) << "one waits for the other's call";
  go_on = true;
  workers.reset();
}

TEST_F(Workers, OutliveWhatATaskThrows) {
  AddressWorkers::Task* no_memory = add(1, []() -> Result<bool> { throw std::bad_alloc(); });
  AddressWorkers::Task* other = add(2, []() -> Result<bool> { throw 1; });
  ASSERT_TRUE(serve_until([&] { return served.size() == 2; }));
  EXPECT_EQ(workers->done(no_memory).status(), Status(Code::kUnavailable, "out of memory"));
  EXPECT_EQ(workers->done(other).status().code(), Code::kUnavailable);
  AddressWorkers::Task* next = add(1, [] { return true; });
  EXPECT_TRUE(serve_until([&] { return served.contains(next); }));
}

// The answer to one is the answer to all: an address is asked for once at a time.
TEST_F(Workers, AskForOneAddressOnceAtATime) {
  std::atomic<int> at_once{0}, most{0};
  std::atomic<bool> answers{false};
  std::vector<AddressWorkers::Task*> tasks;
  for (int i = 0; i < 10; ++i) {
    tasks.push_back(add(1, [&]() -> Result<bool> {
      most = std::max<int>(most, ++at_once);
      std::this_thread::sleep_for(5ms);
      --at_once;
      if (!answers) return nobody();
      return true;
    }));
  }
  ASSERT_TRUE(serve_until([&] { return !workers->delay(tasks.back()).ok(); }));
  answers = true;
  ASSERT_TRUE(serve_until([&] { return served.size() == tasks.size(); }));
  EXPECT_EQ(most, 1);
}

TEST_F(Workers, GiveUpWithoutWaitingAndKeepWhatIsInACall) {
  std::atomic<bool> in_call{false}, go_on{false};
  AddressWorkers::Task* task = add(1, [&] {
    in_call = true;
    while (!go_on) std::this_thread::sleep_for(1ms);
    return false;  // more to do, which nobody wants any more
  });
  AddressWorkers::Task* behind = add(1, [] { return true; });
  ASSERT_TRUE(serve_until([&] { return in_call.load(); }));
  workers->give_up(behind);
  EXPECT_EQ(alive, 1) << "what is in no call goes at once";
  workers->give_up(task);
  EXPECT_EQ(alive, 1) << "a call is about it";
  go_on = true;
  ASSERT_TRUE(serve_until([&] { return alive == 0; }));
  EXPECT_TRUE(served.empty());
  EXPECT_EQ(workers->tasks(), 0u);
}

TEST_F(Workers, EndWithTheirCalls) {
  std::atomic<bool> in_call{false}, returned{false};
  AddressWorkers::Task* task = add(1, [&] {
    in_call = true;
    std::this_thread::sleep_for(100ms);
    returned = true;
    return nobody();
  });
  add(2, [] { return nobody(); });
  ASSERT_TRUE(serve_until([&] { return in_call.load(); }));
  workers->give_up(task);
  workers.reset();
  EXPECT_TRUE(returned);
  EXPECT_EQ(alive, 0);
}

// Whatever comes together: nothing is lost, served twice or used after it is gone.
TEST_F(Workers, SurviveGivingUpAtAnyMoment) {
  std::vector<AddressWorkers::Task*> tasks;
  std::atomic<unsigned> calls{0};
  for (int round = 0; round < 400; ++round) {
    tasks.push_back(add(static_cast<std::uint8_t>(round % 7), [&]() -> Result<bool> {
      switch (calls++ % 4) {
        case 0:
          return nobody();
        case 1:
          return Status(Code::kUnavailable, "no route");
        default:
          return calls % 3 == 0;
      }
    }));
    if (round % 3 == 0) {
      workers->give_up(tasks[tasks.size() / 2]);
      tasks.erase(tasks.begin() + static_cast<std::ptrdiff_t>(tasks.size() / 2));
    }
    if (round % 5 == 0) {
      while (const AddressWorkers::Task* task = workers->serve()) EXPECT_THAT(tasks, ::testing::Contains(task));
    }
  }
  const auto all_done = [&] {
    return std::ranges::all_of(tasks, [&](const auto* task) {
      const Result<bool> done = workers->done(task);
      return !done.ok() || *done;
    });
  };
  ASSERT_TRUE(serve_until(all_done));
  for (AddressWorkers::Task* task : tasks) workers->give_up(task);
  ASSERT_TRUE(serve_until([&] { return alive == 0; }));
}

}  // namespace
}  // namespace tensorlane::rdma
