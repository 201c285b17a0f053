#include "daemon/config/shares.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <numeric>

namespace tensorlane::config {
namespace {

Ledger::Rules sessions(std::vector<std::uint32_t> users, std::uint32_t percent, std::uint64_t total) {
  DaemonConfig config;
  config.users = std::move(users);
  config.users_guaranteed = percent;
  Ledger::Rules rules;
  rules.what = "sessions";
  rules.key = "max_sessions";
  rules.total = total;
  return shared(config, std::move(rules));
}

std::uint64_t sum(const Ledger::Rules& rules) {
  return std::accumulate(rules.kept.begin(), rules.kept.end(), std::uint64_t{0},
                         [](std::uint64_t n, const auto& of_user) { return n + of_user.second; });
}

TEST(Shares, AreEvenAndOneUserCannotTakeThoseOfOthers) {
  if (geteuid() != 0) GTEST_SKIP() << "the numbers are those of a daemon of root";
  const Ledger::Rules rules = sessions({3001, 3002}, 50, 256);
  EXPECT_EQ(rules.kept, (std::map<std::uint32_t, std::uint64_t>{{0, 8}, {3001, 60}, {3002, 60}}));
  Ledger ledger(rules);
  EXPECT_TRUE(ledger.check({3001, ""}, 188).ok());
  EXPECT_FALSE(ledger.check({3001, ""}, 189).ok());
}

TEST(Shares, OfRootAmongTheUsersAreThoseOfAnyUser) {
  if (geteuid() != 0) GTEST_SKIP() << "the numbers are those of a daemon of root";
  EXPECT_EQ(sessions({0, 3001}, 50, 256).kept, (std::map<std::uint32_t, std::uint64_t>{{0, 60}, {3001, 60}}));
}

TEST(Shares, NeverExceedWhatThereIs) {
  for (const std::size_t count : {0, 1, 7, 100, 5000}) {
    std::vector<std::uint32_t> users(count);
    std::iota(users.begin(), users.end(), 2000u);
    for (const std::uint32_t percent : {0, 50, 100}) {
      for (const std::uint64_t total : {1, 2, 31, 64, 4096}) {
        const Ledger::Rules rules = sessions(users, percent, total);
        EXPECT_LE(sum(rules), total) << count << " users, " << percent << " %";
        Ledger ledger(rules);
        EXPECT_TRUE(total < 8 || ledger.check({0, ""}, 1).ok()) << count << " users, " << percent << " % of " << total;
        EXPECT_TRUE(count == 0 || total <= 2 * count || ledger.check({2000, ""}, 1).ok()) << count << " of " << total;
        // Root can always look.
        const auto greedy = ledger.take({2000, ""}, 1);
        EXPECT_TRUE(total < 8 || ledger.check({0, ""}, 1).ok());
      }
    }
  }
}

TEST(Shares, OfMoreUsersThanThereIsLeaveNobodyEverything) {
  std::vector<std::uint32_t> users(1000);
  std::iota(users.begin(), users.end(), 2000u);
  Ledger ledger(sessions(users, 50, 256));
  EXPECT_FALSE(ledger.check({2000, ""}, 200).ok());
  EXPECT_TRUE(ledger.check({2000, ""}, 100).ok());
}

}  // namespace
}  // namespace tensorlane::config
