// Which rail carries which slices, and what an engine does with those that are not its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "daemon/engine/pattern/rails.h"
#include "daemon/engine/pattern/shards.h"
#include "one_engine.h"

namespace tensorlane::engine::testing {
namespace {

EngineConfig on_rail(std::uint8_t rail, std::uint8_t rails) {
  EngineConfig config = no_credit();
  config.rails = rails;
  config.rail = RailIndex(rail);
  return config;
}

// Two tensors of two slices, and one of a single slice.
Plan three_tensors(std::uint8_t rails) {
  Plan plan = two_tensors();
  add(&plan, allreduce(kServer, Dtype::kFloat32, 16, 32));
  plan.rails = rails;
  return plan;
}

TEST(RailSlices, EverySliceIsOnOneRailAndNumberedAsInThePlan) {
  for (std::uint8_t rails = 1; rails <= kMaxRails; ++rails) {
    for (std::uint32_t tensor = 0; tensor < 20; ++tensor) {
      std::vector<std::uint32_t> next(rails);
      for (std::uint32_t slice = 0; slice < 50; ++slice) {
        int carriers = 0;
        for (std::uint8_t r = 0; r < rails; ++r) {
          const RailSlices own = rail_slices(TensorId(tensor), 3, RailIndex(r), rails);
          if (!own.has(slice)) continue;
          ++carriers;
          EXPECT_EQ(own.index(slice), next[r]);
          EXPECT_EQ(own.slice(next[r]++), slice);
        }
        ASSERT_EQ(carriers, 1);
      }
      EXPECT_LE(*std::ranges::max_element(next) - *std::ranges::min_element(next), 1u);
    }
  }
}

// Of small tensors every host owns as many on one rail as on the other.
TEST(RailSlices, TensorsOfOneSliceSpreadOverRailsAndOwners) {
  for (const std::uint16_t hosts : {2, 3, 4, 5}) {
    std::map<std::pair<std::uint16_t, std::uint8_t>, int> count;
    const std::uint32_t tensors = 2u * hosts * hosts * 10;
    for (std::uint32_t t = 0; t < tensors; ++t) {
      PlanTensor tensor = allreduce(kServer, Dtype::kFloat32, 16, 32);
      tensor.id = TensorId(t);
      const HostIndex owner = shards(tensor, hosts, {}).front().owner;
      const bool second = rail_slices(tensor.id, hosts, RailIndex(1), 2).has(0);
      ++count[{owner.value, second ? 1 : 0}];
    }
    ASSERT_EQ(count.size(), 2u * hosts);
    for (const auto& [where, n] : count) EXPECT_EQ(n, static_cast<int>(tensors / (2u * hosts)));
  }
}

TEST(Rails, AnEngineAnnouncesAndSendsItsOwnSlicesOnly) {
  for (std::uint8_t rail : {0, 1}) {
    OneEngine e(three_tensors(2), on_rail(rail, 2));
    e.ready(1);  // host 1 owns it
    EXPECT_EQ(e.frame(header(FrameType::kGrant, 1, 1, rail, 7)), "");
    const std::vector<Send> sends = e.pick(ClassId(0));
    ASSERT_EQ(sends.size(), 1u);
    EXPECT_EQ(sends[0].header.slice, rail);
    EXPECT_EQ(sends[0].payload.offset, rail * 32u * sizeof(float));
  }
}

TEST(Rails, ASliceOfAnotherRailIsAFault) {
  OneEngine e(three_tensors(2), on_rail(1, 2));
  e.ready(1);
  EXPECT_EQ(e.frame(header(FrameType::kGrant, 1, 1, 0, 7)), "slice of another rail");
  EXPECT_EQ(e.frame(header(FrameType::kGrant, 1, 1, 3, 7)), "slice that the tensor does not have");
  EXPECT_EQ(e.frame(header(FrameType::kRts, 1, 1, 2)), "slice of another rail");
}

TEST(Rails, AnOperationWithoutASliceHereIsCompleteAtOnce) {
  for (std::uint8_t rail : {0, 1}) {
    OneEngine e(three_tensors(2), on_rail(rail, 2));  // host 1 owns the tensor
    for (std::uint64_t sequence = 1; sequence <= 2; ++sequence) {
      const std::vector<Action> actions = e.ready(2, sequence);
      if (rail == 1) {  // has its only slice: tensors start on the next rail after every two of two hosts
        EXPECT_TRUE(actions.empty());
        break;
      }
      ASSERT_EQ(actions.size(), 1u);
      EXPECT_TRUE(actions[0].complete.ok);
    }
    EXPECT_EQ(e.frame(header(FrameType::kGrant, 2, 1, 0, 9)),
              rail == 1 ? "" : "sequence that is neither the current nor the next one");
    EXPECT_EQ(e->has_sends(Time(1), kControlClass), rail == 1);
  }
}

TEST(Rails, AnotherNumberInThePlanIsRefused) {
  EngineConfig config = on_rail(0, 2);
  config.hosts = 2;
  Engine engine(config, Descriptor{0, 0, 0, Engine::staging_bytes(config).value});
  const Status status = engine.apply_plan(three_tensors(3));
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.what(), "plan 0 is for 3 rails, the job has 2");
  EXPECT_NE(three_tensors(3).hash(), three_tensors(2).hash());
}

}  // namespace
}  // namespace tensorlane::engine::testing
