// Queues and wake-ups between threads, in every order of their steps.
#include "common/base/crossing.h"

#include <gtest/gtest.h>

#include <memory>

#include "daemon/reduce/work_queue.h"
#include "interleavings.h"

namespace tensorlane {
namespace {

using testing::Modelled;
using testing::Weak;
using testing::World;

constexpr std::size_t kInterruptions = 3;

// A descriptor that somebody sleeps on: written to, it stays readable until the sleeper has looked.
struct Descriptor {
  bool readable = false;
  void write() {
    World::current().step();
    readable = true;
  }
  void sleep() {
    World::current().wait_until([this] { return readable; });
    readable = false;
  }
};

// What lane/links.cc does: `senders` lanes each send `each` notes to another one, which sleeps when it finds none.
template <template <typename> typename Atomic>
void send_and_sleep(World& world, std::size_t senders, int each, std::size_t capacity) {
  struct Shared {
    std::vector<std::unique_ptr<Crossing<int, Atomic>>> queues;
    BasicBell<Atomic> bell;
    Descriptor wake;
  };
  const auto shared = std::make_shared<Shared>();
  for (std::size_t s = 0; s < senders; ++s) shared->queues.push_back(std::make_unique<Crossing<int, Atomic>>(capacity));
  for (std::size_t s = 0; s < senders; ++s) {
    world.add([shared, s, each] {
      for (int i = 1; i <= each; ++i) {
        int note = i;
        while (!shared->queues[s]->push(std::move(note))) {
        }
        if (shared->bell.ring()) shared->wake.write();
      }
    });
  }
  world.add([&world, shared, senders, each] {
    std::vector<int> last(senders);
    for (int left = static_cast<int>(senders) * each; left > 0;) {
      bool any = false;
      for (std::size_t s = 0; s < senders; ++s) {
        for (int note = 0; shared->queues[s]->pop(&note); --left, any = true) {
          if (note != last[s] + 1) world.fail("a note is lost, torn or comes twice");
          last[s] = note;
        }
      }
      if (any) continue;
      shared->bell.arm();
      bool quiet = true;
      for (const auto& queue : shared->queues) quiet = quiet && queue->empty();
      if (quiet) shared->wake.sleep();
      shared->bell.disarm();
    }
  });
}

TEST(Crossing, NoOrderOfStepsLosesANoteOrAWakeUp) {
  const World::Outcome outcome =
      World::explore([](World& world) { send_and_sleep<Modelled>(world, 1, 2, 2); }, kInterruptions);
  EXPECT_EQ(outcome.failure, "");
  EXPECT_GT(outcome.orders, 1000u);
}

TEST(Crossing, NoOrderOfStepsOfTwoSendersLosesAWakeUp) {
  const World::Outcome outcome = World::explore([](World& world) { send_and_sleep<Modelled>(world, 2, 1, 1); }, 1);
  EXPECT_EQ(outcome.failure, "");
  EXPECT_GT(outcome.orders, 1000u);
}

// The model finds what it is for.
TEST(Crossing, AWeakerStoreLosesAWakeUp) {
  const World::Outcome outcome =
      World::explore([](World& world) { send_and_sleep<Weak>(world, 1, 2, 2); }, kInterruptions);
  EXPECT_EQ(outcome.failure, "deadlock");
}

// A full queue takes nothing, and gives back what it has.
TEST(Crossing, AFullQueueLeavesTheItemWithTheSender) {
  Crossing<std::unique_ptr<int>> queue(1);
  ASSERT_TRUE(queue.push(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.push(std::move(second)));
  ASSERT_NE(second, nullptr);
  std::unique_ptr<int> first;
  ASSERT_TRUE(queue.pop(&first));
  EXPECT_EQ(*first, 1);
  EXPECT_TRUE(queue.empty());
  EXPECT_TRUE(queue.push(std::move(second)));
}

TEST(Crossing, NoOrderOfStepsTearsWhatAFullQueueHas) {
  const auto scenario = [](World& world) {
    const auto queue = std::make_shared<Crossing<int, Modelled>>(1);
    world.add([&world, queue] {
      for (int i = 1; i <= 3; ++i) {
        int item = i;
        while (!queue->push(std::move(item))) world.pause();
      }
    });
    world.add([&world, queue] {
      for (int expected = 1; expected <= 3; ++expected) {
        int item = 0;
        while (!queue->pop(&item)) world.pause();
        if (item != expected) world.fail("an item is torn");
      }
    });
  };
  const World::Outcome outcome = World::explore(scenario, kInterruptions);
  EXPECT_EQ(outcome.failure, "");
  EXPECT_GT(outcome.orders, 1000u);
}

// ---- a worker (reduce/workers.cc) ----

template <template <typename> typename Atomic>
void give_and_work(World& world, int blocks) {
  struct Shared {
    reduce::WorkQueue<int, Atomic> queue;
    BasicBell<Atomic> bell;
    Descriptor wake;
    std::array<int, 4> items{1, 2, 3, 0};
  };
  const auto shared = std::make_shared<Shared>();
  world.add([&world, shared, blocks] {
    int given = 0;
    for (int back = 0; back < blocks;) {
      while (given < blocks && shared->queue.under_way() < reduce::WorkQueue<int>::kDepth)
        shared->queue.give(&shared->items[static_cast<std::size_t>(given++)]);
      bool any = false;
      for (; shared->queue.has_done(); ++back, any = true) {
        if (*shared->queue.take_back() != -(back + 1)) world.fail("a block comes back that is not done, or twice");
      }
      if (any) continue;
      shared->bell.arm();
      if (!shared->queue.has_done()) shared->wake.sleep();
      shared->bell.disarm();
    }
    shared->queue.give(&shared->items[3]);
  });
  world.add([shared] {
    for (;;) {
      while (!shared->queue.has_next()) shared->queue.sleep();
      int* item = shared->queue.next();
      if (*item == 0) return;
      *item = -*item;
      shared->queue.finish();
      if (shared->bell.ring()) shared->wake.write();
    }
  });
}

TEST(WorkQueue, NoOrderOfStepsLosesABlockOrAWakeUp) {
  for (int blocks : {1, 2}) {
    const World::Outcome outcome =
        World::explore([blocks](World& world) { give_and_work<Modelled>(world, blocks); }, kInterruptions);
    EXPECT_EQ(outcome.failure, "") << blocks;
    EXPECT_GT(outcome.orders, 1000u);
  }
}

TEST(WorkQueue, AWeakerStoreLosesAWakeUp) {
  const World::Outcome outcome = World::explore([](World& world) { give_and_work<Weak>(world, 1); }, kInterruptions);
  EXPECT_EQ(outcome.failure, "deadlock");
}

}  // namespace
}  // namespace tensorlane
