// Operations whose parts go from one rank to one other, and the reduce to one: every block where it belongs, on hosts
// with one rank and with several, and nothing else written.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cluster.h"
#include "common/protocol/exchange.h"

namespace tensorlane::engine::testing {
namespace {

using protocol::Exchange;
using protocol::HostExchange;
using protocol::RankPlaces;

constexpr std::int32_t kUntouched = -77;

// Element `e` of the block that goes from rank to rank in an operation.
std::int32_t value(std::uint32_t from, std::uint32_t to, Sequence sequence, std::uint64_t e) {
  return static_cast<std::int32_t>(from * 1'000'003 + to * 10'007 + sequence.value * 101 + e);
}

std::span<std::int32_t> numbers(Cluster& c, std::size_t host, TensorId id) {
  const std::span<std::byte> bytes = c.buffer(host, id);
  return {reinterpret_cast<std::int32_t*>(bytes.data()), bytes.size() / sizeof(std::int32_t)};
}

// What the engine's buffer of the host holds before (`done` false) and after an operation.
std::vector<std::int32_t> contents(const Plan& plan, const PlanTensor& t, HostIndex host, Sequence sequence,
                                   bool done) {
  const auto world = static_cast<std::uint32_t>(plan.rank_hosts.size());
  const Exchange exchange = protocol::exchange_of(t, world);
  const RankPlaces places(plan.rank_hosts);
  const HostExchange self(exchange, places, host);
  std::vector<std::int32_t> all(self.buffer(), kUntouched);
  for (std::uint32_t from = 0; from < world; ++from) {
    for (std::uint32_t to = 0; to < world; ++to) {
      if (!exchange.sends(from, to) || self.has(from) == self.has(to)) continue;
      if (self.has(to) && !done) continue;
      const std::uint64_t place = self.has(to) ? self.lands_at(from, to) : self.sent_from(from, to);
      for (std::uint64_t e = 0; e < exchange.block(); ++e) all[place + e] = value(from, to, sequence, e);
    }
  }
  return all;
}

struct Layout {
  Operation operation;
  std::vector<std::uint16_t> rank_hosts;
};

class Exchanges : public ::testing::TestWithParam<Layout> {};

TEST_P(Exchanges, BringsEveryBlockToItsPlaceAndTouchesNothingElse) {
  const Layout& layout = GetParam();
  Plan plan;
  for (const std::uint16_t host : layout.rank_hosts) plan.rank_hosts.emplace_back(host);
  const auto world = static_cast<std::uint32_t>(plan.rank_hosts.size());
  for (const std::uint64_t block : {1u, 16u, 65u, 1000u}) {
    PlanTensor t = allreduce(Pattern::kRing, Dtype::kInt32, block * Exchange::unit(layout.operation, world), 64);
    t.operation = layout.operation;
    t.root_rank = Rank(static_cast<std::uint32_t>(block % world));
    t.root = plan.rank_hosts[t.root_rank.value];
    t.pattern = static_cast<Pattern>(block % 4);
    add(&plan, t);
  }
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    ClusterOptions o;
    o.hosts = static_cast<std::uint16_t>(*std::ranges::max_element(layout.rank_hosts) + 1);
    o.seed = seed;
    o.world_size = world;
    Cluster c(o, plan);
    c.fill = [&](std::size_t h, TensorId id, Sequence s) {
      std::ranges::copy(contents(plan, plan.tensors[id.value], HostIndex(static_cast<std::uint16_t>(h)), s, false),
                        numbers(c, h, id).begin());
    };
    c.check = [&](std::size_t h, TensorId id, Sequence s) {
      const auto right = contents(plan, plan.tensors[id.value], HostIndex(static_cast<std::uint16_t>(h)), s, true);
      ASSERT_TRUE(std::ranges::equal(numbers(c, h, id), right)) << "host " << h << ", tensor " << id.value;
    };
    c.submit_all(3);
    ASSERT_TRUE(c.run());
    for (std::size_t h = 0; h < o.hosts; ++h) {
      for (const std::string& error : c.host(h).errors) ADD_FAILURE() << "host " << h << ": " << error;
      EXPECT_EQ(c.host(h).engine->counters().queued_slices, 0u);
    }
    ASSERT_TRUE(c.all_done());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Clusters, Exchanges,
    ::testing::Values(Layout{Operation::kGather, {0, 1}}, Layout{Operation::kGather, {0, 1, 0, 1, 2}},
                      Layout{Operation::kGather, {2, 1, 1, 0, 0, 0}}, Layout{Operation::kScatter, {0, 1}},
                      Layout{Operation::kScatter, {0, 1, 0, 1, 2}}, Layout{Operation::kScatter, {2, 1, 1, 0, 0, 0}},
                      Layout{Operation::kAlltoall, {0}}, Layout{Operation::kAlltoall, {0, 1}},
                      Layout{Operation::kAlltoall, {0, 1, 2, 3}}, Layout{Operation::kAlltoall, {0, 1, 0, 1, 2}},
                      Layout{Operation::kAlltoall, {2, 1, 1, 0, 0, 0}}),
    [](const auto& info) {
      std::string name = operation_name(info.param.operation);
      for (const std::uint16_t host : info.param.rank_hosts) name.append("_").append(std::to_string(host));
      return name;
    });

// A plan that no host could carry out is refused by name.
TEST(ExchangePlans, AreCheckedBeforeAnythingIsBuilt) {
  const auto refused = [](PlanTensor t) {
    Plan plan;
    plan.rank_hosts = {HostIndex(0), HostIndex(1)};
    add(&plan, t);
    EngineConfig config;
    config.hosts = 2;
    config.world_size = 2;
    Engine engine(config, {0, 0, 0, Engine::staging_bytes(config).value});
    return engine.apply_plan(plan).to_string();
  };
  PlanTensor t = allreduce(Pattern::kRing, Dtype::kInt32, 6, 64);
  t.operation = Operation::kAlltoall;
  EXPECT_NE(refused(t).find("6 elements in 4 blocks"), std::string::npos) << refused(t);
  t.operation = Operation::kGather;
  t.root_rank = Rank(1);
  EXPECT_NE(refused(t).find("root rank 1 on host 0"), std::string::npos) << refused(t);
}

// The root's host alone gets the sum, and every other host's bytes cross once.
TEST(Reduce, BringsTheSumToTheRootAlone) {
  for (const Pattern pattern : {Pattern::kRing, Pattern::kParameterServer, Pattern::kHalvingDoubling, Pattern::kTree}) {
    for (const std::uint16_t hosts : {1, 2, 3, 5}) {
      ClusterOptions o;
      o.hosts = hosts;
      Plan plan;
      for (std::uint16_t root = 0; root < hosts; ++root) {
        PlanTensor t = allreduce(pattern, Dtype::kInt32, 1000, 64);
        t.operation = Operation::kReduce;
        t.root = HostIndex(root);
        t.root_rank = Rank(root);
        add(&plan, t);
      }
      Cluster c(o, plan);
      c.fill = [&](std::size_t h, TensorId id, Sequence s) {
        for (std::uint64_t e = 0; e < 1000; ++e)
          numbers(c, h, id)[e] = value(static_cast<std::uint32_t>(h), id.value, s, e);
      };
      c.check = [&](std::size_t h, TensorId id, Sequence s) {
        if (h != plan.tensors[id.value].root.value) return;
        for (std::uint64_t e = 0; e < 1000; ++e) {
          std::int32_t sum = 0;
          for (std::uint32_t from = 0; from < hosts; ++from) sum += value(from, id.value, s, e);
          ASSERT_EQ(numbers(c, h, id)[e], sum) << "element " << e;
        }
      };
      c.submit_all(2);
      ASSERT_TRUE(c.run());
      ASSERT_TRUE(c.all_done());
      std::uint64_t sent = 0;
      for (std::size_t h = 0; h < hosts; ++h) sent += c.bytes_sent(h);
      EXPECT_EQ(sent, 2u * hosts * (hosts - 1u) * 4000u);
    }
  }
}

}  // namespace
}  // namespace tensorlane::engine::testing
