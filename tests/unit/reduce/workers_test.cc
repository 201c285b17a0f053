// Blocks of work on threads beside the one that gives them.
#include "daemon/reduce/workers.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "daemon/reduce/cpu_reducer.h"

namespace tensorlane::reduce {
namespace {

std::unique_ptr<Workers> make_workers(ports::Reducer& reducer, std::size_t threads, Duration spin = microseconds(0)) {
  Result<std::unique_ptr<Workers>> made = Workers::create(reducer, threads, spin);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return std::move(*made);
}

// Waits inside a block until the test lets it go on, and says which thread it is.
class HeldReducer final : public ports::Reducer {
 public:
  void reduce(std::byte*, Dtype, std::span<const ports::ReduceSource>, std::size_t elements, ReduceOp,
              double) override {
    begun.fetch_add(1);
    begun.notify_all();
    for (std::size_t at = 0; (at = may_end.load()) <= elements;) may_end.wait(at);
  }
  void wait_begun(std::size_t count) {
    for (std::size_t at = 0; (at = begun.load()) < count;) begun.wait(at);
  }
  // Ends every block of fewer than `elements`.
  void end(std::size_t elements) {
    may_end.store(elements);
    may_end.notify_all();
  }
  std::atomic<std::size_t> begun{0}, may_end{0};
};

TEST(Workers, DoEveryBlockOnceAndGiveItBack) {
  const auto reducer = make_cpu_reducer();
  for (const std::size_t threads : {1u, 2u, 3u}) {
    const auto workers = make_workers(*reducer, threads);
    ASSERT_EQ(workers->capacity(), 2 * threads);
    constexpr std::size_t kBlocks = 500, kElements = 64;
    std::vector<std::vector<float>> outs(kBlocks, std::vector<float>(kElements)), sources(kBlocks);
    std::vector<std::vector<float>> copies(kBlocks, std::vector<float>(kElements));
    std::vector<ports::Block> blocks(kBlocks);
    std::set<const ports::Block*> back;
    const auto take = [&] {
      while (const ports::Block* block = workers->done()) EXPECT_TRUE(back.insert(block).second) << "twice";
    };
    for (std::size_t b = 0; b < kBlocks; ++b) {
      sources[b].resize(kElements);
      std::iota(sources[b].begin(), sources[b].end(), static_cast<float>(b));
      const auto* bytes = reinterpret_cast<const std::byte*>(sources[b].data());
      const auto terms = blocks[b].add_sum(reinterpret_cast<std::byte*>(outs[b].data()), Dtype::kFloat32, 2, kElements,
                                           ReduceOp::kSum, 4);
      terms[0] = terms[1] = {bytes, Dtype::kFloat32};
      // Steps follow one another: what is copied is what was summed.
      blocks[b].add_copy(reinterpret_cast<std::byte*>(copies[b].data()),
                         reinterpret_cast<const std::byte*>(outs[b].data()), kElements * sizeof(float));
      while (b - back.size() >= workers->capacity()) take();
      workers->submit(blocks[b]);
    }
    workers->finish();
    take();
    EXPECT_EQ(back.size(), kBlocks);
    for (std::size_t b = 0; b < kBlocks; ++b) {
      for (std::size_t i = 0; i < kElements; ++i)
        ASSERT_EQ(copies[b][i], static_cast<float>(b + i) / 2) << "block " << b << ", element " << i;
    }
  }
}

TEST(Workers, ABlockThatTakesLongHoldsUpOnlyItsOwnThread) {
  HeldReducer reducer;
  const auto workers = make_workers(reducer, 2);
  ports::Block slow, quick, behind;
  std::array<std::byte, 4> bytes{};
  const auto fill = [&](ports::Block& block, std::size_t elements) {
    block.add_sum(bytes.data(), Dtype::kFloat32, 1, elements, ReduceOp::kSum, 1)[0] = {bytes.data(), Dtype::kFloat32};
  };
  fill(slow, 1000);
  fill(quick, 10);
  fill(behind, 10);
  workers->submit(slow);
  workers->submit(quick);
  reducer.wait_begun(2);  // on two threads at once
  workers->submit(behind);
  reducer.end(100);
  std::set<const ports::Block*> back;
  // The third one may wait behind either.
  while (!back.contains(&quick)) {
    if (const ports::Block* block = workers->done()) back.insert(block);
  }
  EXPECT_FALSE(back.contains(&slow));
  reducer.end(2000);
  workers->finish();
  while (const ports::Block* block = workers->done()) back.insert(block);
  EXPECT_EQ(back.size(), 3u);
}

// Whoever has armed and sleeps is woken by the next block that is done, however close the two come to each other.
TEST(Workers, WakeWhoeverSleeps) {
  const auto reducer = make_cpu_reducer();
  const auto workers = make_workers(*reducer, 2, microseconds(20));
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  ASSERT_EQ(::epoll_ctl(epoll, EPOLL_CTL_ADD, workers->wake_fd(), &event), 0);
  std::array<std::byte, 4096> out{}, source{};
  std::size_t slept = 0;
  for (std::size_t i = 0; i < 20'000; ++i) {
    ports::Block block;
    block.add_copy(out.data(), source.data(), 1 + i % out.size());
    workers->submit(block);
    while (workers->done() == nullptr) {
      if (workers->arm()) {
        ++slept;
        ASSERT_EQ(::epoll_wait(epoll, &event, 1, 10'000), 1) << "asleep for 10 s beside block " << i;
      }
      workers->disarm();
    }
  }
  EXPECT_GT(slept, 0u);
  // Nothing is under way: nobody is woken. Only the thread of the last block may have seen the first wish, as it has
  // told that the block is done before it looks whether somebody sleeps.
  EXPECT_TRUE(workers->arm());
  while (::epoll_wait(epoll, &event, 1, 100) == 1) {
  }
  EXPECT_TRUE(workers->arm());
  EXPECT_EQ(::epoll_wait(epoll, &event, 1, 20), 0);
  ::close(epoll);
}

// Whoever would sleep beside a block that is done already is told so, and need not be woken for it.
TEST(Workers, LetNobodySleepBesideABlockThatIsDone) {
  const auto reducer = make_cpu_reducer();
  const auto workers = make_workers(*reducer, 2);
  std::array<std::byte, 64> out{}, source{};
  for (int i = 0; i < 5; ++i) {
    ports::Block block;
    block.add_copy(out.data(), source.data(), out.size());
    workers->submit(block);
    workers->finish();
    EXPECT_FALSE(workers->arm());
    workers->disarm();
    EXPECT_EQ(workers->done(), &block);
    EXPECT_TRUE(workers->arm()) << "nothing is left";
    workers->disarm();
  }
}

// finish() sleeps while a block takes long, and is woken by its end.
TEST(Workers, WakeWhoeverWaitsForAllOfThem) {
  HeldReducer reducer;
  const auto workers = make_workers(reducer, 2);
  std::array<std::byte, 4> bytes{};
  ports::Block block;
  block.add_sum(bytes.data(), Dtype::kFloat32, 1, 10, ReduceOp::kSum, 1)[0] = {bytes.data(), Dtype::kFloat32};
  workers->submit(block);
  reducer.wait_begun(1);
  std::thread later([&reducer] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    reducer.end(100);
  });
  workers->finish();
  EXPECT_EQ(workers->done(), &block);
  later.join();
}

TEST(Workers, EndWithWorkUnderWay) {
  const auto reducer = make_cpu_reducer();
  std::vector<std::byte> out(1 << 20), source(1 << 20, std::byte{7});
  ports::Block block;
  {
    const auto workers = make_workers(*reducer, 1);
    block.add_copy(out.data(), source.data(), out.size());
    workers->submit(block);
  }
  EXPECT_EQ(out, source) << "it was done before the threads ended";
}

}  // namespace
}  // namespace tensorlane::reduce
