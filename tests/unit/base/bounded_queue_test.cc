#include "common/base/bounded_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace tensorlane {
namespace {

TEST(Ring, RefusesWhatIsBeyondItsCapacity) {
  Ring<int> ring(2);
  EXPECT_TRUE(ring.empty());
  EXPECT_EQ(ring.space(), 2u);
  EXPECT_TRUE(ring.push(1));
  EXPECT_TRUE(ring.push(2));
  EXPECT_TRUE(ring.full());
  EXPECT_FALSE(ring.push(3));
  EXPECT_EQ(ring.size(), 2u);
  EXPECT_EQ(ring.front(), 1);
}

TEST(Ring, KeepsOrderAcrossItsEnd) {
  Ring<int> ring(3);
  int pushed = 0, popped = 0;
  for (int round = 0; round < 50; ++round) {
    while (ring.push(pushed)) ++pushed;
    for (int i = 0; i < 2; ++i, ++popped) {
      EXPECT_EQ(ring.front(), popped);
      ring.pop();
    }
  }
  EXPECT_EQ(ring.size(), 1u);
  ring.clear();
  EXPECT_TRUE(ring.empty());
  EXPECT_TRUE(ring.push(7));
  EXPECT_EQ(ring.front(), 7);
}

TEST(Ring, OfNothingIsFullAndEmpty) {
  Ring<int> ring(0);
  EXPECT_TRUE(ring.empty());
  EXPECT_FALSE(ring.push(1));
}

TEST(RingDeathTest, FrontAndPopNeedAnItem) {
  Ring<int> ring(1);
  EXPECT_DEATH(ring.pop(), "internal error: !empty\\(\\)");
  EXPECT_DEATH(static_cast<void>(ring.front()), "internal error: !empty\\(\\)");
}

TEST(Mailbox, RefusesWhatIsBeyondItsCapacityAndKeepsOrder) {
  Mailbox<std::unique_ptr<int>> mailbox(2);
  EXPECT_FALSE(mailbox.pop().has_value());
  EXPECT_TRUE(mailbox.push(std::make_unique<int>(1)));
  EXPECT_TRUE(mailbox.push(std::make_unique<int>(2)));
  EXPECT_FALSE(mailbox.push(std::make_unique<int>(3)));
  EXPECT_EQ(**mailbox.pop(), 1);
  EXPECT_EQ(**mailbox.pop(), 2);
  EXPECT_FALSE(mailbox.pop().has_value());
}

TEST(Mailbox, CarriesItemsBetweenThreads) {
  constexpr int kItems = 10000;
  Mailbox<int> mailbox(16);
  std::thread producer([&] {
    for (int i = 0; i < kItems;) {
      if (mailbox.push(i)) {
        ++i;
      } else {
        std::this_thread::yield();
      }
    }
  });
  for (int expected = 0; expected < kItems;) {
    if (const auto item = mailbox.pop()) {
      ASSERT_EQ(*item, expected++);
    } else {
      std::this_thread::yield();
    }
  }
  producer.join();
}

}  // namespace
}  // namespace tensorlane
