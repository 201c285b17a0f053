// The ledger: what is kept, what is sent again, and what a peer cannot have.
#include "daemon/transport/ledger/ledger.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <vector>

namespace tensorlane::ledger {
namespace {

TEST(SendLedger, KeepsWhatIsNotDelivered) {
  SendLedger out(3);
  EXPECT_EQ(out.push(), 0u);
  EXPECT_EQ(out.push(), 1u);
  EXPECT_EQ(out.push(), 2u);
  EXPECT_TRUE(out.full());
  out.written();
  out.written();
  EXPECT_EQ(out.next(), 2u);
  EXPECT_TRUE(out.full());
  EXPECT_TRUE(out.acknowledge(1));
  EXPECT_FALSE(out.full());
  EXPECT_EQ(out.slot(out.push()), out.slot(0));
}

TEST(SendLedger, GoesOnAfterWhatTheReceiverHas) {
  SendLedger out(8);
  for (int i = 0; i < 6; ++i) out.push();
  for (int i = 0; i < 5; ++i) out.written();
  EXPECT_TRUE(out.acknowledge(1));
  EXPECT_EQ(out.resume(3), 2u);
  EXPECT_EQ(out.delivered(), 3u);
  EXPECT_EQ(out.next(), 3u);
  EXPECT_EQ(out.pushed(), 6u);
  EXPECT_EQ(out.resume(3), 0u);  // a connection that came to nothing
}

TEST(SendLedger, RefusesWhatCannotBe) {
  SendLedger out(8);
  for (int i = 0; i < 4; ++i) out.push();
  for (int i = 0; i < 3; ++i) out.written();
  EXPECT_TRUE(out.acknowledge(2));
  EXPECT_FALSE(out.acknowledge(1));
  EXPECT_FALSE(out.acknowledge(4));  // not written yet
  EXPECT_FALSE(out.resume(1).has_value());
  EXPECT_FALSE(out.resume(4).has_value());
  EXPECT_EQ(out.delivered(), 2u);
  EXPECT_EQ(out.next(), 3u);
}

// Any interleaving of writing, arriving, telling and losing the connection delivers every frame once, in order.
TEST(Ledgers, DeliverEveryFrameOnce) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    SendLedger out(1 + static_cast<std::uint32_t>(random() % 9));
    ReceiveLedger in;
    std::vector<int> slots(16), delivered;
    std::deque<int> wire;
    std::deque<Number> acks;
    int made = 0;
    while (delivered.size() < 100) {
      switch (random() % 6) {
        case 0:
          if (!out.full() && made < 100) slots[out.slot(out.push())] = made++;
          break;
        case 1:
          if (out.next() == out.pushed()) break;
          wire.push_back(slots[out.slot(out.next())]);
          out.written();
          break;
        case 2:
          if (wire.empty()) break;
          delivered.push_back(wire.front());
          wire.pop_front();
          in.deliver();
          break;
        case 3:
          if (in.unacked() > 0) acks.push_back(in.ack());
          break;
        case 4:
          if (acks.empty()) break;
          ASSERT_TRUE(out.acknowledge(acks.front()));
          acks.pop_front();
          break;
        case 5:
          if (random() % 10 != 0) break;
          wire.clear();
          acks.clear();
          ASSERT_TRUE(out.resume(in.ack()).has_value());
          break;
      }
    }
    for (int i = 0; i < 100; ++i) ASSERT_EQ(delivered[static_cast<std::size_t>(i)], i) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tensorlane::ledger
