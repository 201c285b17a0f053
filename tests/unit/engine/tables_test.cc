// The tables of an engine: what tensors leave behind is there for those that come.
#include "daemon/engine/tables.h"

#include <gtest/gtest.h>

#include <array>

namespace tensorlane::engine {
namespace {

using protocol::Pattern;
using protocol::Plan;
using protocol::PlanTensor;
using protocol::TensorRange;

TEST(Holes, TheLastOneGrowsWithItsTable) {
  Holes holes;
  holes.give({10, 5});
  holes.give({30, 10});
  EXPECT_EQ(holes.take(25, 40), 30U);
  EXPECT_EQ(holes.take(25, 55), 55U);
  EXPECT_EQ(holes.entries(), 5U);
}

std::array<std::size_t, 6> sizes(const PlanTables& t) {
  return {t.slices.size(), t.links.size(),        t.sources.size(),
          t.sends.size(),  t.leaf_sources.size(), t.result_sends.size()};
}

// Tensors of unlike shapes, pairs of which leave in either order, so that the next pair needs both places in one.
TEST(Tables, WhatComesAndGoesWithoutEndTakesNoMoreEntries) {
  EngineConfig config;
  config.hosts = 4;
  config.world_size = 4;
  Plan plan;
  for (std::uint16_t h = 0; h < config.hosts; ++h) plan.rank_hosts.emplace_back(h);
  PlanTables tables;
  const auto place = [&](std::uint32_t id, Pattern pattern, std::uint64_t slices) {
    PlanTensor tensor{.id = TensorId(id), .pattern = pattern, .elements = 400 * slices, .slice_elements = 100};
    plan.place({id, 1}, {tensor});
    ASSERT_TRUE(place_tensor(config, plan, tensor, &tables).ok());
  };
  const auto vacate = [&](std::uint32_t id) {
    vacate_tensor(id, &tables);
    plan.vacate({id, 1});
  };
  std::array<std::size_t, 6> before{};
  for (int turn = 0; turn < 50; ++turn) {
    place(0, Pattern::kRing, 3);
    place(1, Pattern::kRing, 5);
    place(2, Pattern::kTree, 2);
    vacate(turn % 2);
    vacate(1 - turn % 2);
    place(0, Pattern::kRing, 8);
    vacate(0);
    vacate(2);
    if (turn == 0) before = sizes(tables);
    ASSERT_EQ(sizes(tables), before) << "in turn " << turn;
    ASSERT_EQ(tables.messages, 0U);
  }
  EXPECT_EQ(tables.slices.size(), 4U * (3 + 5 + 2)) << "as many as there were at a time";
  EXPECT_EQ(tables.slices.size(), tables.holes.slices.entries());
  EXPECT_EQ(tables.sources.size(), tables.holes.sources.entries());
  EXPECT_EQ(tables.sends.size(), tables.holes.sends.entries());
}

}  // namespace
}  // namespace tensorlane::engine
