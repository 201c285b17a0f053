// Memory that takes long to be made and to be given back.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "daemon/memory/arena.h"
#include "daemon/session/server.h"
#include "open_daemon.h"
#include "raw_client.h"

namespace tensorlane::test {
namespace {

using namespace std::chrono_literals;
using protocol::MessageType;

constexpr std::uint64_t kLarge = std::uint64_t{16} << 20;

// A real pool whose large segments are made once they may be, and go as slowly as a terabyte would.
class SlowPool final : public ports::SharedMemoryPool {
 public:
  Result<std::shared_ptr<ports::SharedMemory>> make(const Owner& owner, std::uint64_t bytes) override {
    TL_ASSIGN_OR_RETURN(std::shared_ptr<ports::SharedMemory> made, pool_.make(owner, bytes));
    if (bytes < kLarge) return made;
    ++asked;
    while (!go_on) std::this_thread::sleep_for(1ms);
    return std::shared_ptr<ports::SharedMemory>(made.get(), [this, made](ports::SharedMemory*) mutable {
      std::this_thread::sleep_for(4s);
      made.reset();
      gone = true;
    });
  }

  std::atomic<int> asked{0};
  std::atomic<bool> go_on{false}, gone{false};

 private:
  memory::ArenaPool pool_{memory::MemoryLimits{mib(2048), mib(64)}};
};

TEST(SlowMemory, ALongJobOfOneUserDoesNotKeepAnotherWaiting) {
  std::atomic<bool> go_on{false};
  std::atomic<int> steps{0};
  std::atomic<int> steps_before{-1};
  {
    session::Worker worker;
    for (int job = 0; job < 3; ++job) {
      worker.push(3001, [&, left = 100]() mutable {
        while (!go_on) std::this_thread::sleep_for(1ms);
        ++steps;
        return --left == 0;
      });
    }
    worker.push(3002, [&] {
      steps_before = steps.load();
      return true;
    });
    go_on = true;
  }
  EXPECT_EQ(steps, 300);
  EXPECT_EQ(steps_before, 1);
}

TEST(SlowMemory, AnArenaWhoseAskerIsGoneDelaysNobody) {
  SlowPool pool;
  OpenDaemon daemon(pool);
  {
    RawClient asker(daemon.socket);
    ASSERT_TRUE(asker.join("large"));
    protocol::ArenaBody body;
    body.bytes = kLarge;
    ASSERT_TRUE(asker.send(MessageType::kArena, 2, bytes_of(body)));
    while (pool.asked == 0) std::this_thread::sleep_for(1ms);
  }
  RawClient before(daemon.socket);
  ASSERT_TRUE(before.join("before")) << "and by then the server knows that the asker is gone";
  pool.go_on = true;
  while (!pool.gone) {
    const auto begun = std::chrono::steady_clock::now();
    RawClient other(daemon.socket);
    ASSERT_TRUE(other.join("other"));
    ASSERT_LT(std::chrono::steady_clock::now() - begun, 2s);
    std::this_thread::sleep_for(50ms);
  }
  daemon.server.stop();
}

}  // namespace
}  // namespace tensorlane::test
