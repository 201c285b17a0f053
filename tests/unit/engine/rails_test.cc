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

// ---- neighbours ----

Plan only(const PlanTensor& tensor) {
  Plan plan;
  add(&plan, tensor);
  return plan;
}

std::vector<std::size_t> neighbours_of(const Plan& plan, std::uint16_t hosts, std::uint8_t rail = 0) {
  std::vector<std::vector<HostIndex>> all;
  for (std::uint16_t h = 0; h < hosts; ++h) {
    EngineConfig config = on_rail(rail, plan.rails);
    config.hosts = hosts;
    config.world_size = hosts;
    config.self = HostIndex(h);
    Engine engine(config, Descriptor{0, 0, 0, Engine::staging_bytes(config).value});
    EXPECT_TRUE(engine.neighbours().empty());
    EXPECT_TRUE(engine.apply_plan(plan).ok());
    all.emplace_back(engine.neighbours().begin(), engine.neighbours().end());
  }
  std::vector<std::size_t> counts;
  for (std::uint16_t h = 0; h < hosts; ++h) {
    counts.push_back(all[h].size());
    for (const HostIndex peer : all[h]) {
      EXPECT_NE(peer, HostIndex(h));
      EXPECT_EQ(std::ranges::count(all[peer.value], HostIndex(h)), 1) << h << " needs " << peer.value;
    }
  }
  return counts;
}

// Two hosts need each other, or neither does: flows open from one end. And not more than the routes have.
TEST(Neighbours, AreThoseThatTheRoutesNeed) {
  const auto of = [](Pattern pattern) { return only(allreduce(pattern, Dtype::kFloat32, 64'000, 100)); };
  EXPECT_THAT(neighbours_of(of(Pattern::kRing), 64), ::testing::Each(2));
  EXPECT_THAT(neighbours_of(of(kServer), 64), ::testing::Each(63));
  EXPECT_THAT(neighbours_of(of(Pattern::kHalvingDoubling), 64), ::testing::Each(::testing::Le(12)));
  // One server: the others need nobody else.
  const std::vector<std::size_t> star = neighbours_of(of(Pattern::kWholeServer), 64);
  EXPECT_EQ(star[0], 63u);
  EXPECT_THAT(std::vector(star.begin() + 1, star.end()), ::testing::Each(1));
  // A rail that no slice of a tensor travels on needs nobody; words of negotiation travel on the first one.
  Plan plan = only(allreduce(kServer, Dtype::kFloat32, 2, 32));
  plan.rails = 4;
  plan.ordering = protocol::Ordering::kNegotiated;
  EXPECT_EQ(neighbours_of(plan, 8, 0)[0], 7u);
  std::size_t elsewhere = 0;
  for (std::uint8_t rail = 1; rail < 4; ++rail) elsewhere += neighbours_of(plan, 8, rail)[7];
  EXPECT_LE(elsewhere, 2u);
}

TEST(Neighbours, ComeWithThePlanAndStay) {
  Plan plan = only(allreduce(Pattern::kRing, Dtype::kFloat32, 64'000, 100));
  OneEngine e(plan, no_credit(), 8);
  EXPECT_THAT(e->neighbours(), ::testing::ElementsAre(HostIndex(1), HostIndex(7)));
  add(&plan, allreduce(kServer, Dtype::kFloat32, 64'000, 100));
  ASSERT_TRUE(e->extend_plan(plan, {1, 1}).ok());
  const auto host = [](std::uint16_t h) { return HostIndex(h); };
  EXPECT_THAT(e->neighbours(), ::testing::ElementsAre(host(1), host(7), host(2), host(3), host(4), host(5), host(6)));
  ASSERT_TRUE(e->vacate({1, 1}).ok());
  EXPECT_EQ(e->neighbours().size(), 7u);
}

// Slots are lent as flows come up, and a small contribution waits for a grant where there are none.
TEST(Neighbours, AreLentSlotsFromOneBudget) {
  EngineConfig config;
  config.eager_credits = 4;
  config.eager_slots = 5;
  config.hosts = 4;
  config.world_size = 4;
  const Bytes few = Engine::staging_bytes(config);
  config.eager_slots = 12;
  EXPECT_EQ(Engine::staging_bytes(config).value - few.value, 7 * kib(32).value);
  config.eager_slots = 1000;  // more than all of them may use
  EXPECT_EQ(Engine::staging_bytes(config).value - few.value, 7 * kib(32).value);
  config.eager_slots = 5;
  Engine engine(config, Descriptor{0, 0, 0, few.value});
  ASSERT_TRUE(engine.apply_plan(only(allreduce(kServer, Dtype::kFloat32, 64'000, 100))).ok());
  ActionRing actions{4};
  std::vector<std::uint32_t> lent;
  for (const HostIndex peer : engine.neighbours()) {
    const Event up{.kind = Event::Kind::kPeerUp, .up = {peer}};
    ASSERT_EQ(engine.step(Time(1), {&up, 1}, actions), 1u);
    Send credit;
    ASSERT_EQ(engine.pick(Time(1), {peer, kControlClass}, Bytes(0), std::span(&credit, 1)), 1u);
    EXPECT_EQ(credit.header.type, FrameType::kCredit);
    lent.push_back(credit.header.aux);
  }
  EXPECT_THAT(lent, ::testing::ElementsAre(2, 2, 1));
}

}  // namespace
}  // namespace tensorlane::engine::testing
