// Tensors of a process set: what its hosts compute is, bit by bit, what a job of these hosts alone computes; others
// have no part in it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "cluster.h"
#include "one_engine.h"

namespace tensorlane::engine::testing {
namespace {

constexpr std::array kOperations = {Operation::kAllreduce,     Operation::kBroadcast, Operation::kAllgather,
                                    Operation::kReduceScatter, Operation::kReduce,    Operation::kGather,
                                    Operation::kScatter,       Operation::kAlltoall};

// Hosts 1, 3 and 4 of five, with a rank each, but for host 3, which has two.
protocol::SharedWorld some_hosts() {
  const std::array hosts = {HostIndex(1), HostIndex(3), HostIndex(3), HostIndex(4)};
  return std::make_shared<const protocol::World>(std::vector<std::uint32_t>{1, 3, 4, 5}, hosts);
}

std::vector<PlanTensor> tensors(Pattern pattern, Dtype dtype, const protocol::SharedWorld& world) {
  std::vector<PlanTensor> all;
  for (const Operation operation : kOperations) {
    PlanTensor t = allreduce(pattern, dtype, 8 * 1000, 128);
    t.id = TensorId(static_cast<std::uint32_t>(all.size()));
    t.operation = operation;
    t.root = HostIndex(1);  // of the set
    t.root_rank = Rank(2);
    t.row = operation == Operation::kReduceScatter ? 10 : 1;
    t.fp32_contributions = dtype == Dtype::kFloat16;  // host 3 has two ranks
    t.world = world;
    all.push_back(t);
  }
  return all;
}

Plan plan_with(const std::vector<PlanTensor>& tensors, std::vector<HostIndex> rank_hosts) {
  Plan plan;
  plan.rank_hosts = std::move(rank_hosts);
  for (const PlanTensor& t : tensors) plan.tensors.push_back(t);
  return plan;
}

// Numbers, and not what happens to be a NaN: small integers in any of the types.
void fill_by(std::span<std::byte> buffer, Dtype dtype, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t at = 0; at + dtype_size(dtype) <= buffer.size(); at += dtype_size(dtype)) {
    if (dtype == Dtype::kFloat32) {
      const auto value = static_cast<float>(random() % 1000) / 7;
      std::memcpy(buffer.data() + at, &value, sizeof value);
    } else {  // float16: 1 to 2
      const auto bits = static_cast<std::uint16_t>(0x3c00 + random() % 0x3ff);
      std::memcpy(buffer.data() + at, &bits, sizeof bits);
    }
  }
}

struct SomeHosts {
  SomeHosts(std::uint16_t hosts, std::uint32_t world_size, const Plan& plan, std::vector<std::size_t> members,
            std::uint64_t seed)
      : cluster(ClusterOptions{.hosts = hosts, .world_size = world_size, .seed = seed}, plan), places(members) {
    cluster.fill = [this](std::size_t h, TensorId id, Sequence sequence) {
      const auto place = static_cast<std::uint64_t>(std::ranges::find(places, h) - places.begin());
      const Dtype dtype = cluster.plan().tensors[id.value].dtype;
      const std::uint64_t mark =
          (place * 100 + id.value) * 100 + sequence.value - cluster.plan().tensors[id.value].base;
      fill_by(cluster.buffer(h, id), dtype, mark);
      if (auto wide = cluster.fp32_scratch(h, id); !wide.empty()) fill_by(wide, Dtype::kFloat32, mark + 1);
    };
  }
  void go(int times) {
    cluster.submit_all(times);
    ASSERT_TRUE(cluster.run());
    for (std::uint16_t h = 0; h < cluster.hosts(); ++h)
      ASSERT_THAT(cluster.host(h).errors, ::testing::IsEmpty()) << "host " << h;
    ASSERT_TRUE(cluster.all_done());
  }
  std::vector<std::byte> result(std::size_t place, TensorId id) {
    const auto bytes = cluster.buffer(places[place], id);
    return {bytes.begin(), bytes.end()};
  }
  Cluster cluster;
  std::vector<std::size_t> places;
};

class Worlds : public ::testing::TestWithParam<std::tuple<Pattern, Dtype>> {};

TEST_P(Worlds, ComputeWhatAJobOfTheirHostsDoes) {
  const auto [pattern, dtype] = GetParam();
  const HostIndex a(0), b(1), c(2), d(3), e(4);
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    SomeHosts alone(3, 4, plan_with(tensors(pattern, dtype, nullptr), {a, b, b, c}), {0, 1, 2}, seed);
    SomeHosts among(5, 7, plan_with(tensors(pattern, dtype, some_hosts()), {a, b, c, d, d, e, e}), {1, 3, 4},
                    seed + 10);
    alone.go(2);
    among.go(2);
    for (std::uint32_t id = 0; id < kOperations.size(); ++id) {
      // Of a reduce only the root's buffer says something, and of a reduce-scatter a host's own blocks.
      for (std::size_t place = 0; place < 3; ++place) {
        if (kOperations[id] == Operation::kReduce && place != 1) continue;
        if (kOperations[id] == Operation::kReduceScatter) continue;
        EXPECT_EQ(alone.result(place, TensorId(id)), among.result(place, TensorId(id)))
            << operation_name(kOperations[id]) << " at place " << place;
      }
    }
    const TensorId scattered(3);
    const std::size_t row = 2000 * dtype_size(dtype);  // what each of four ranks gets
    for (const auto& [place, first, count] : {std::array<std::size_t, 3>{0, 0, 1}, {1, 1, 2}, {2, 3, 1}}) {
      const std::size_t mine = alone.result(place, scattered).size();
      ASSERT_EQ(mine, 4 * row);
      const std::vector<std::byte> one = alone.result(place, scattered), other = among.result(place, scattered);
      EXPECT_TRUE(std::ranges::equal(std::span(one).subspan(first * row, count * row),
                                     std::span(other).subspan(first * row, count * row)))
          << "reduce-scatter at place " << place;
    }
    for (const std::size_t host : {0, 2}) {
      EXPECT_EQ(among.cluster.bytes_sent(host), 0u) << "host " << host;
      EXPECT_THAT(among.cluster.host(host).engine->neighbours(), ::testing::IsEmpty());
      EXPECT_EQ(buffer_bytes(among.cluster.plan(), among.cluster.plan().tensors[0], HostIndex(0)), 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns, Worlds,
                         ::testing::Combine(::testing::Values(Pattern::kRing, Pattern::kParameterServer,
                                                              Pattern::kTree),
                                            ::testing::Values(Dtype::kFloat32, Dtype::kFloat16)));

// Places in the plan change hands between sets: hosts that had no part in what was there go on from where others are.
TEST(World, PlacesOfASetServeOthers) {
  const HostIndex a(0), b(1), c(2);
  const std::array two = {b, c};
  const auto some = std::make_shared<const protocol::World>(std::vector<std::uint32_t>{1, 2}, two);
  PlanTensor t = allreduce(Pattern::kRing, Dtype::kFloat32, 1000, 100);
  t.world = some;
  SomeHosts run(3, 3, plan_with({t}, {a, b, c}), {0, 1, 2}, 1);
  for (int turn = 0; turn < 6; ++turn) {
    run.go(3);
    ASSERT_TRUE(run.cluster.vacate({0, 1}).ok());
    t.world = turn % 2 == 0 ? nullptr : some;
    ASSERT_TRUE(run.cluster.place({0, 1}, {t}).ok());
  }
  run.go(1);
  EXPECT_EQ(run.cluster.host(0).done[0], run.cluster.host(1).done[0] - 1);  // it has no part in the last one
}

TEST(World, OperationsDoNotGoBackBehindThoseBefore) {
  Plan plan = plan_with({allreduce(Pattern::kRing, Dtype::kFloat32, 1000, 100)}, {});
  Cluster c(ClusterOptions{.hosts = 2}, plan);
  c.submit_all(3);
  ASSERT_TRUE(c.run());
  ASSERT_TRUE(c.vacate({0, 1}).ok());
  plan.tensors[0].base = 2;
  EXPECT_EQ(c.host(0).engine->extend_plan(plan, {0, 1}).what(),
            "operations go on from 2, after 3 of the tensor before");
  plan.tensors[0].base = 3;
  EXPECT_TRUE(c.host(0).engine->extend_plan(plan, {0, 1}).ok());
}

// A barrier's, too, of which nothing else is compared.
TEST(World, APlanThatGivesATensorToOthersIsRefused) {
  const std::array hosts = {HostIndex(0), HostIndex(1)};
  for (const Operation operation : {Operation::kAllreduce, Operation::kBarrier}) {
    PlanTensor t = allreduce(Pattern::kRing, Dtype::kFloat32, 1000, 100);
    t.operation = operation;
    t.world = std::make_shared<const protocol::World>(std::vector<std::uint32_t>{0, 1}, hosts);
    EngineConfig config;
    config.hosts = config.world_size = 3;
    Engine engine(config, Descriptor{0, 0, 0, Engine::staging_bytes(config).value});
    Plan plan = plan_with({t}, {HostIndex(0), HostIndex(1), HostIndex(2)});
    ASSERT_TRUE(engine.apply_plan(plan).ok());
    ++plan.version;
    ASSERT_TRUE(engine.apply_plan(plan).ok());
    ++plan.version;
    plan.tensors[0].world = nullptr;
    EXPECT_EQ(engine.apply_plan(plan).what(), "it differs from the plan before");
  }
}

TEST(World, OfRanksThatTheJobDoesNotHaveIsRefused) {
  PlanTensor t = allreduce(Pattern::kRing, Dtype::kFloat32, 1000, 100);
  const std::array hosts = {HostIndex(0), HostIndex(2)};
  t.world = std::make_shared<const protocol::World>(std::vector<std::uint32_t>{0, 2}, hosts);
  EngineConfig config;
  config.hosts = config.world_size = 2;
  Engine engine(config, Descriptor{0, 0, 0, Engine::staging_bytes(config).value});
  EXPECT_EQ(engine.apply_plan(plan_with({t}, {HostIndex(0), HostIndex(1)})).what(),
            "rank 2 and host 2 of a job with 2 and 2");
}

}  // namespace
}  // namespace tensorlane::engine::testing
