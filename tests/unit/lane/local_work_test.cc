// Blocks of work between the ranks of one host, without a lane: what each of them holds, and what it makes.
#include "daemon/host/local_work.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "daemon/reduce/cpu_reducer.h"

namespace tensorlane::host {
namespace {

// The ranks of a host with a tensor of float32 each: of rank r, element e is r + e % 7.
struct Ranks {
  Ranks(std::size_t ranks, std::uint64_t elements) : memory(ranks, std::vector<float>(elements)), numbers(ranks) {
    for (std::size_t r = 0; r < ranks; ++r) {
      for (std::uint64_t e = 0; e < elements; ++e) memory[r][e] = static_cast<float>(r + e % 7);
      buffers.push_back(std::as_writable_bytes(std::span(memory[r])));
    }
    std::iota(numbers.begin(), numbers.end(), 0U);
  }
  LocalRanks local() const { return {buffers, numbers, static_cast<std::uint32_t>(buffers.size())}; }

  std::vector<std::vector<float>> memory;
  std::vector<Buffer> buffers;
  std::vector<std::uint32_t> numbers;
};

protocol::PlanTensor sum_of(std::uint64_t elements) {
  protocol::PlanTensor tensor;
  tensor.elements = elements;
  tensor.dtype = Dtype::kFloat32;
  return tensor;
}

// As many ranks as a host can have: a sum and a copy to each of the others are one block, and however many they are,
// it touches no more of their memory.
TEST(LocalWork, ABlockHoldsAllRanksOfAHostAndIsNoLongerForThat) {
  const auto reducer = reduce::make_cpu_reducer();
  constexpr std::uint64_t kElements = 3000;
  for (const std::size_t count : {std::size_t{2}, std::size_t{33}, std::size_t{ports::kMaxLocalRanks}}) {
    Ranks ranks(count, kElements);
    LocalTask task;
    task.step = LocalStep::kFinish;
    const protocol::PlanTensor tensor = sum_of(kElements);
    std::uint64_t reduced = 0, copied = 0, blocks = 0;
    while (task.next < kElements) {
      ports::Block block;
      const Moved moved = add_block(task, tensor, ranks.local(), block);
      EXPECT_LE(moved.reduced, kMaxOperation.value) << count << " ranks";
      reduced += moved.reduced;
      copied += moved.copied;
      ASSERT_EQ(task.blocks, ++blocks);
      block.run(*reducer);
    }
    EXPECT_EQ(reduced, count * kElements * sizeof(float));
    EXPECT_EQ(copied, (count - 1) * kElements * sizeof(float));
    for (const std::vector<float>& of_rank : ranks.memory) {
      for (std::uint64_t e = 0; e < kElements; ++e)
        ASSERT_EQ(of_rank[e], static_cast<float>(count * (count - 1) / 2 + count * (e % 7))) << "element " << e;
    }
  }
}

// Float32 sums of 16-bit tensors are as long as what they are made of is in float32.
TEST(LocalWork, ABlockIsBoundedByItsWidestForm) {
  constexpr std::uint64_t kElements = 200'000;
  Ranks ranks(2, kElements / 2);  // as many bytes
  std::vector<float> wide(kElements);
  LocalTask task;
  task.step = LocalStep::kReduce;
  task.wide = std::as_writable_bytes(std::span(wide));
  protocol::PlanTensor tensor = sum_of(kElements);
  tensor.dtype = Dtype::kBfloat16;
  ports::Block block;
  add_block(task, tensor, ranks.local(), block);
  EXPECT_EQ(task.next, kMaxOperation.value / sizeof(float) / 2);
}

// Members of a batch share blocks. One that is full ends between two members, and the next one goes on there.
TEST(LocalWork, ABatchOfMoreMembersThanABlockHoldsIsCutBetweenThem) {
  const auto reducer = reduce::make_cpu_reducer();
  constexpr std::uint64_t kMembers = 1200, kEach = 5, kElements = kMembers * kEach;
  for (const std::size_t count : {1, 2, 3, 64}) {
    Ranks ranks(count, kElements);
    std::vector<engine::BatchGate::Member> members;
    std::vector<std::vector<Buffer>> buffers(kMembers);
    for (std::uint32_t m = 0; m < kMembers; ++m) {
      members.push_back({TensorId(m), m * kEach, kEach});
      // In the clients' memory they lie in another order.
      for (const Buffer& of_rank : ranks.buffers)
        buffers[m].push_back(of_rank.subspan((kMembers - 1 - m) * kEach * sizeof(float), kEach * sizeof(float)));
    }
    const auto buffers_of = [&](TensorId member) { return std::span<const Buffer>(buffers[member.value]); };
    std::vector<float> own(kElements);
    const protocol::PlanTensor batch = sum_of(kElements);
    for (const LocalStep step : {LocalStep::kReduce, LocalStep::kSpread}) {
      LocalTask task;
      task.step = step;
      std::uint64_t moved = 0;
      while (task.next < kElements) {
        ports::Block block;
        const std::uint64_t before = task.next;
        const Moved more =
            add_batch_block(task, batch, std::as_writable_bytes(std::span(own)), members, buffers_of, block);
        ASSERT_GT(task.next, before);
        moved += more.reduced + more.copied;
        block.run(*reducer);
      }
      EXPECT_EQ(moved, count * kElements * sizeof(float));
      EXPECT_EQ(task.member, kMembers);
    }
    for (const std::vector<float>& of_rank : ranks.memory) {
      for (std::uint64_t e = 0; e < kElements; ++e)
        ASSERT_EQ(of_rank[e], static_cast<float>(count * (count - 1) / 2 + count * (e % 7)))
            << count << " ranks, element " << e;
    }
  }
}

}  // namespace
}  // namespace tensorlane::host
