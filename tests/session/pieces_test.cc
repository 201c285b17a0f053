// What of a transfer's side is copied next.
#include "client-lib/src/cuda/pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

namespace tensorlane::client::cuda {
namespace {

using protocol::PartRun;
using ::testing::ElementsAre;

std::pair<std::uint64_t, std::uint64_t> next(Pieces& pieces, std::uint64_t most, std::uint64_t* ends = nullptr) {
  const Pieces::Slice slice = pieces.next(most);
  pieces.copied(slice);
  if (ends != nullptr) *ends = slice.ends;
  return {slice.offset, slice.bytes};
}

TEST(Pieces, OnePartIsCutIntoSlices) {
  Pieces pieces;
  pieces.reset({}, 100, 250);
  EXPECT_TRUE(pieces.empty());
  pieces.add(1);
  std::uint64_t ends = 0;
  EXPECT_EQ(next(pieces, 100, &ends), std::pair(0UL, 100UL));
  EXPECT_EQ(ends, 0u);
  EXPECT_EQ(next(pieces, 100, &ends), std::pair(100UL, 100UL));
  EXPECT_FALSE(pieces.empty());
  EXPECT_EQ(next(pieces, 100, &ends), std::pair(200UL, 50UL));
  EXPECT_EQ(ends, 1u);
  EXPECT_TRUE(pieces.empty());
  EXPECT_TRUE(pieces.all_copied());
}

TEST(Pieces, NothingIsAllCopied) {
  Pieces pieces;
  pieces.reset({64, 4, 1}, 64, 0);
  pieces.add(pieces.all());
  EXPECT_TRUE(pieces.empty());
  EXPECT_TRUE(pieces.all_copied());
}

// Hosts own shares of a tensor: a part of each is copied before the second of any.
TEST(Pieces, SharesTakeTurns) {
  Pieces pieces;
  pieces.reset({64, 6, 3}, 0, 6 * 64);
  pieces.add(pieces.all());
  std::vector<std::uint64_t> offsets;
  while (!pieces.empty()) offsets.push_back(next(pieces, 64).first / 64);
  EXPECT_THAT(offsets, ElementsAre(0, 2, 4, 1, 3, 5));
}

TEST(Pieces, SmallPartsThatFollowOneAnotherGoTogether) {
  Pieces pieces;
  pieces.reset({64, 6, 1}, 0, 6 * 64 - 10);
  pieces.add(0b111011);
  std::uint64_t ends = 0;
  EXPECT_EQ(next(pieces, 1000, &ends), std::pair(0UL, 128UL));
  EXPECT_EQ(ends, 0b11u);
  EXPECT_EQ(next(pieces, 1000, &ends), std::pair(192UL, 182UL));
  EXPECT_EQ(ends, 0b111000u);
  EXPECT_TRUE(pieces.empty());
  EXPECT_FALSE(pieces.all_copied());
  pieces.add(0b111111);
  EXPECT_EQ(next(pieces, 1000, &ends), std::pair(128UL, 64UL));
  EXPECT_EQ(ends, 0b100u);
  EXPECT_TRUE(pieces.all_copied());
}

// Every byte of any range comes once, however parts become available and slices are cut, and parts end with their last.
TEST(Pieces, EveryByteOnce) {
  std::mt19937 random(5);
  for (int turn = 0; turn < 2000; ++turn) {
    const std::uint64_t buffer = 1 + random() % 5000, begin = random() % buffer,
                        bytes = random() % (buffer - begin + 1);
    const Pieces::Layout layout{protocol::part_bytes(buffer), protocol::part_count(buffer),
                                static_cast<std::uint32_t>(1 + random() % 70)};
    Pieces pieces;
    pieces.reset(layout, begin, bytes);
    std::vector<int> seen(buffer);
    std::uint64_t available = 0, ended = 0;
    while (available != pieces.all() || !pieces.empty()) {
      if (pieces.empty() || random() % 2 == 0) {
        available |= PartRun{static_cast<std::uint32_t>(random() % layout.count), 1}.mask();
        pieces.add(available);
        continue;
      }
      const Pieces::Slice slice = pieces.next(1 + random() % 200);
      pieces.copied(slice);
      ASSERT_GT(slice.bytes, 0u);
      ASSERT_EQ(ended & slice.ends, 0u);
      ended |= slice.ends;
      for (std::uint64_t i = begin + slice.offset; i < begin + slice.offset + slice.bytes; ++i) {
        ++seen.at(i);
        ASSERT_NE(available >> (i / layout.part_bytes) & 1, 0u);
      }
      for (std::uint64_t i = begin; i < begin + bytes; ++i)
        ASSERT_EQ((ended >> (i / layout.part_bytes) & 1) != 0 && seen[i] == 0, false) << "a part ended too early";
    }
    EXPECT_TRUE(pieces.all_copied());
    for (std::uint64_t i = 0; i < buffer; ++i) ASSERT_EQ(seen[i], i >= begin && i < begin + bytes ? 1 : 0);
  }
}

}  // namespace
}  // namespace tensorlane::client::cuda
