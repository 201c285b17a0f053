// Commands and their preparation, and whose turn it is, without a lane.
#include "daemon/host/turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "daemon/lane/backlogs.h"
#include "daemon/lane/preparer.h"

namespace tensorlane::lane {
namespace {

using host::next_in_turn;
using host::Served;
using host::take_turns;
using host::Turn;

using ::testing::ElementsAre;

TEST(Turns, MembersGetTheSameWhateverTheirPiecesCost) {
  const std::vector<std::uint64_t> piece{1, 7, 64};
  std::vector<std::uint64_t> account(3), got(3);
  Turn turn;
  for (int call = 0; call < 1000; ++call) {
    take_turns(
        turn, 3, 64, 100, [&](std::size_t i) -> std::uint64_t& { return account[i]; },
        [&](std::size_t i, std::uint64_t credit) {
          const std::uint64_t cost = credit / piece[i] * piece[i];
          got[i] += cost;
          return Served{cost, true, false};
        });
  }
  const auto [least, most] = std::ranges::minmax(got);
  EXPECT_GT(least, 30'000u);
  EXPECT_LE(most - least, 128u) << "a turn and a piece";
}

TEST(Turns, PiecesWhoseCostIsKnownAfterwardsComeOutEven) {
  const std::vector<std::int64_t> piece{1, 7, 640};
  std::vector<std::int64_t> account(3), got(3);
  std::size_t turn = 0;
  const auto serve = [&](std::size_t idle) {
    const std::size_t i = next_in_turn(
        &turn, 3, 64, [&](std::size_t m) -> std::int64_t& { return account[m]; },
        [&](std::size_t m) { return m != idle; });
    account[i] -= piece[i];
    got[i] += piece[i];
    return i;
  };
  for (int call = 0; call < 100'000; ++call) serve(3);
  const auto [least, most] = std::ranges::minmax(got);
  EXPECT_GT(least, 30'000);
  EXPECT_LE(most - least, 2 * 640) << "two pieces";
  for (int call = 0; call < 1000; ++call) EXPECT_NE(serve(2), 2u) << "it has nothing";
  for (std::int64_t left : account) EXPECT_LE(left, 64) << "nothing is saved up";
}

TEST(Turns, EndsWhenNobodyHasAnything) {
  std::vector<std::uint64_t> account(2), left{500, 0};
  Turn turn;
  const Served all = take_turns(
      turn, 2, 64, 10'000, [&](std::size_t i) -> std::uint64_t& { return account[i]; },
      [&](std::size_t i, std::uint64_t credit) {
        const std::uint64_t cost = std::min(left[i], credit);
        left[i] -= cost;
        return Served{cost, left[i] > 0, false};
      });
  EXPECT_EQ(all.cost, 500u);
  EXPECT_FALSE(all.more);
  EXPECT_THAT(account, ElementsAre(0, 0)) << "nothing is saved up";
}

Time fake_now{0};
Time fake_clock() {
  fake_now = fake_now + microseconds(10);
  return fake_now;
}

TEST(Backlogs, JobsTakeTurnsAndOneLongCommandComesInPieces) {
  Backlogs backlogs;
  std::string order;
  int pieces = 0;
  backlogs.add({JobId(1), [&] {
                  order += 'a';
                  return ++pieces == 4;
                }});
  backlogs.add({JobId(1), [&] {
                  order += 'b';
                  return true;
                }});
  for (char c : {'x', 'y'}) {
    backlogs.add({JobId(2), [&order, c] {
                    order += c;
                    return true;
                  }});
  }
  EXPECT_LE(backlogs.run(microseconds(50), fake_clock), 5u);
  EXPECT_TRUE(backlogs.has(JobId(1)));
  EXPECT_FALSE(backlogs.has(JobId(2)));
  while (!backlogs.empty()) backlogs.run(microseconds(50), fake_clock);
  EXPECT_EQ(order, "axayaab");
}

// Commands as a lane would get them.
struct Delivered {
  bool take(const Command& command) {
    std::lock_guard lock(mutex);
    if (refuse > 0) return --refuse, false;
    jobs.push_back(command.job.value);
    changed.notify_all();
    return true;
  }
  std::vector<std::uint64_t> wait(std::size_t count) {
    std::unique_lock lock(mutex);
    changed.wait_until(lock, std::chrono::system_clock::now() + std::chrono::seconds(10),
                       [&] { return jobs.size() >= count; });
    return jobs;
  }
  std::mutex mutex;
  std::condition_variable changed;
  int refuse = 0;
  std::vector<std::uint64_t> jobs;
};

constexpr std::uint32_t kUser = 3001;

Command of(std::uint64_t job) {
  return {JobId(job), [] { return true; }};
}

TEST(Preparer, AShortPreparationDoesNotWaitForALongOne) {
  Delivered delivered;
  std::atomic<bool> go_on{false};
  Preparer preparer([&](const Command& command) { return delivered.take(command); });
  ASSERT_TRUE(preparer.add(
      kUser, [&] { return go_on.load(); }, of(1)));
  ASSERT_TRUE(preparer.add_behind(of(1)));
  ASSERT_FALSE(preparer.add_behind(of(2))) << "it waits for nothing";
  ASSERT_TRUE(preparer.add(
      kUser, [] { return true; }, of(2)));
  preparer.start();
  EXPECT_THAT(delivered.wait(1), ElementsAre(2));
  go_on = true;
  EXPECT_THAT(delivered.wait(3), ElementsAre(2, 1, 1));
}

TEST(Preparer, ManyJobsOfOneUserDoNotKeepAnotherWaiting) {
  constexpr std::uint64_t kMany = 40;
  Delivered delivered;
  Preparer preparer([&](const Command& command) { return delivered.take(command); });
  const auto add = [&](std::uint32_t user, std::uint64_t job) {
    const auto left = std::make_shared<int>(10);
    ASSERT_TRUE(preparer.add(
        user, [left] { return --*left == 0; }, of(job)));
  };
  for (std::uint64_t job = 1; job <= kMany; ++job) add(kUser, job);
  add(kUser + 1, kMany + 1);
  preparer.start();
  const std::vector<std::uint64_t> order = delivered.wait(kMany + 1);
  ASSERT_EQ(order.size(), kMany + 1);
  EXPECT_EQ(order.front(), kMany + 1) << "it takes as many turns as one of the others, which all take turns";
}

TEST(Preparer, ComesAgainToAFullLaneAndForgetsWhatIsCancelled) {
  Delivered delivered;
  delivered.refuse = 3;
  Preparer preparer([&](const Command& command) { return delivered.take(command); });
  ASSERT_TRUE(preparer.add(
      kUser, [] { return false; }, of(1)));
  ASSERT_TRUE(preparer.add(
      kUser, [] { return true; }, of(2)));
  preparer.cancel(JobId(1));
  ASSERT_TRUE(preparer.add(
      kUser, [] { return true; }, of(1)));  // of a new job of that name
  preparer.start();
  EXPECT_THAT(delivered.wait(2), ::testing::UnorderedElementsAre(1, 2));
}

// What is cancelled makes room again: else a daemon would take no jobs any more after so many that failed early.
TEST(Preparer, CountsWhatIsCancelledNoLonger) {
  Delivered delivered;
  Preparer preparer([&](const Command& command) { return delivered.take(command); });
  for (std::size_t i = 0; i < Preparer::kMaxWaiting; ++i)
    ASSERT_TRUE(preparer.add(
        kUser, [] { return false; }, of(1)));
  ASSERT_FALSE(preparer.add(
      kUser, [] { return true; }, of(2)))
      << "as many as may wait";
  preparer.cancel(JobId(1));
  preparer.start();
  bool room = false;
  for (int i = 0; i < 1000 && !room; ++i) {
    room = preparer.add(
        kUser, [] { return true; }, of(2));
    if (!room) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_TRUE(room);
  EXPECT_THAT(delivered.wait(1), ElementsAre(2));
}

// What the watchdog goes by: work in many pieces turns, one that is stuck does not.
TEST(Preparer, TurnsUnlessItIsStuck) {
  std::atomic<bool> stuck{false}, go_on{false};
  Preparer preparer([](const Command&) { return true; });
  preparer.start();
  const auto turns_within = [&](std::chrono::milliseconds time) {
    const std::uint64_t before = preparer.turns();
    std::this_thread::sleep_for(time);
    return preparer.turns() - before;
  };
  EXPECT_GT(turns_within(std::chrono::milliseconds(2000)), 0u) << "it has nothing to do";
  ASSERT_TRUE(preparer.add(
      kUser,
      [&] {
        while (stuck && !go_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return go_on.load();
      },
      of(1)));
  EXPECT_GT(turns_within(std::chrono::milliseconds(200)), 2u);
  stuck = true;
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(turns_within(std::chrono::milliseconds(1500)), 0u);
  go_on = true;
}

TEST(Preparer, LetsGoOfWhatItIsGiven) {
  std::atomic<int> gone{0};
  {
    Preparer preparer([](const Command&) { return true; });
    preparer.start();
    preparer.dispose(std::shared_ptr<void>(static_cast<void*>(&gone), [&](void*) { ++gone; }));
  }
  EXPECT_EQ(gone.load(), 1);
}

}  // namespace
}  // namespace tensorlane::lane
