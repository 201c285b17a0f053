#include "common/base/ledger.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace tensorlane {
namespace {

Ledger::Rules rules(std::uint64_t total, std::uint64_t per_user) {
  return {.what = "tensors",
          .key = "max_tensors",
          .user_key = "max_user_tensors",
          .fix = "register fewer",
          .total = total,
          .per_user = per_user};
}

TEST(Ledger, OneUserLeavesTheRestToOthers) {
  Ledger ledger(rules(10, 6));
  const auto first = ledger.take({3001, "a"}, 4);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(ledger.take({3001, "b"}, 3).status().to_string(),
            "tensors over the limit of one user: 3 needed, 4 of max_user_tensors = 6 in use by user 3001: "
            "raise max_user_tensors or register fewer");
  EXPECT_EQ(ledger.take({3001, "b"}, 3).status().code(), Code::kResourceExhausted);
  const auto other = ledger.take({3002, "c"}, 6);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(ledger.in_use(), 10u);
  EXPECT_EQ(ledger.in_use_by(3001), 4u);
  EXPECT_EQ(ledger.take({3003, "d"}, 1).status().to_string(),
            "tensors over the daemon's limit: 1 needed, 10 of max_tensors = 10 in use: "
            "raise max_tensors or register fewer");
}

TEST(Ledger, AdvisesOnlyWhatCanBeDone) {
  Ledger::Rules fixed = rules(10, 10);
  fixed.fixed = true;
  EXPECT_EQ(Ledger(fixed).take({3001, "a"}, 11).status().fix(), "register fewer");
  EXPECT_EQ(Ledger(rules(10, 10)).take({3001, "a"}, 11).status().fix(), "raise max_tensors or register fewer");
}

TEST(Ledger, KeepsForEveryUserWhatIsGuaranteed) {
  Ledger::Rules shared = rules(10, Ledger::kUnlimited);
  shared.kept = {{0, 1}, {3001, 3}, {3002, 3}};
  shared.kept_key = "users_guaranteed";
  Ledger ledger(shared);
  auto greedy = ledger.take({3001, "a"}, 6);  // its own 3, and what is kept for nobody
  ASSERT_TRUE(greedy.ok()) << greedy.status().to_string();
  EXPECT_EQ(ledger.take({3001, "b"}, 1).status().to_string(),
            "tensors over what one user may have now: 1 needed, user 3001 has 6 of max_tensors = 10, 4 are kept for "
            "other users: register fewer, raise max_tensors or lower users_guaranteed");
  EXPECT_FALSE(ledger.check({3003, "nobody's"}, 1).ok()) << "for whom nothing is kept";
  const auto modest = ledger.take({3002, "c"}, 3);
  ASSERT_TRUE(modest.ok()) << "whoever comes later has all that was kept: " << modest.status().to_string();
  EXPECT_FALSE(ledger.check({3002, "c"}, 1).ok());
  EXPECT_TRUE(ledger.check({0, ""}, 1).ok());
  greedy->release();
  EXPECT_TRUE(ledger.check({3002, "c"}, 3).ok());
  EXPECT_FALSE(ledger.check({3002, "c"}, 4).ok());
}

TEST(Ledger, SaysSoWhatNeverFits) {
  const Ledger ledger(rules(10, 6));
  EXPECT_EQ(ledger.check({1, "a"}, 7).where(), "7 needed, max_user_tensors is 6");
  EXPECT_EQ(ledger.check({1, "a"}, ~std::uint64_t{0}).where(), "18446744073709551615 needed, max_tensors is 10");
  EXPECT_TRUE(ledger.check({1, "a"}, 6).ok());
  EXPECT_EQ(ledger.in_use(), 0u);
}

TEST(Ledger, ChargesGoBackWhenTheyGo) {
  auto ledger = std::make_unique<Ledger>(rules(10, 10));
  auto taken = ledger->take({1, "a"}, 5);
  ASSERT_TRUE(taken.ok());
  Ledger::Charge charge = std::move(*taken);
  auto more = ledger->take({1, "b"}, 2);
  ASSERT_TRUE(more.ok());
  ASSERT_EQ(ledger->rows().size(), 2u);
  EXPECT_EQ(ledger->rows()[1].owner.job, "b");
  auto same = ledger->take({1, "a"}, 3);
  ASSERT_TRUE(same.ok());
  charge.add(std::move(*same));
  EXPECT_EQ(charge.amount(), 8u);
  EXPECT_EQ(ledger->in_use(), 10u);
  charge = std::move(*more);  // the first one is given back
  EXPECT_EQ(ledger->in_use(), 2u);
  charge.release();
  charge.release();
  EXPECT_EQ(ledger->in_use(), 0u);
  EXPECT_TRUE(ledger->rows().empty());
  auto last = ledger->take({1, "a"}, 10);
  ASSERT_TRUE(last.ok());
  ledger.reset();  // its charges may outlive it
}

TEST(Ledger, RulesThatChangeCountForWhatComes) {
  Ledger ledger(rules(10, 10));
  const auto held = ledger.take({1, "a"}, 8);
  ASSERT_TRUE(held.ok());
  ledger.change(rules(4, 4));
  EXPECT_EQ(ledger.in_use(), 8u) << "what is charged stays";
  EXPECT_EQ(ledger.take({2, "b"}, 1).status().code(), Code::kResourceExhausted);
  ledger.change(rules(10, 10));
  EXPECT_TRUE(ledger.take({2, "b"}, 2).ok());
}

TEST(Ledger, AmountsAreToldInTheirUnit) {
  Ledger::Rules bytes = rules(8, 8);
  bytes.amount_text = [](std::uint64_t n) { return std::to_string(n) + " MiB"; };
  const Ledger ledger(bytes);
  EXPECT_EQ(ledger.check({1, ""}, 9).where(), "9 MiB needed, max_tensors is 8 MiB");
}

TEST(Ledger, ThreadsTogetherNeverTakeMoreThanThereIs) {
  Ledger ledger(rules(100, 60));
  const auto take_and_give = [&](std::uint32_t user) {
    for (int i = 0; i < 2000; ++i) {
      const auto charge = ledger.take({user, "j"}, 7);
      EXPECT_LE(ledger.in_use_by(user), 60u);
      EXPECT_LE(ledger.in_use(), 100u);
    }
  };
  std::thread first(take_and_give, 1), second(take_and_give, 2);
  take_and_give(1);
  first.join();
  second.join();
  EXPECT_EQ(ledger.in_use(), 0u);
}

}  // namespace
}  // namespace tensorlane
