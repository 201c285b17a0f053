// Geryon, equations 1 to 6, by hand and against a timetable of the same chain as a graph.
#include "daemon/engine/urgency/chain_model.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "daemon/engine/urgency/timetable.h"
#include "daemon/engine/urgency/transfer_order.h"
#include "graphs.h"

namespace tensorlane::engine {
namespace {

using graph::Graph;
using testing::ElementsAre;

ChainLayer layer(std::int64_t forward, std::int64_t backward, std::int64_t pull, std::int64_t push) {
  return {Duration(forward), Duration(backward), Duration(pull), Duration(push)};
}

// A small convolution before a large dense layer, each equation by hand.
TEST(ChainModel, TheEquationsByHand) {
  const std::vector<ChainLayer> layers{layer(4, 8, 1, 1), layer(2, 4, 6, 6)};
  const std::vector<std::uint32_t> in_order{0, 1}, reverse{1, 0};
  ChainTimes t = chain_times(layers, in_order);
  EXPECT_THAT(t.pulled, ElementsAre(Duration(1), Duration(7)));           // 1
  EXPECT_THAT(t.forward_done, ElementsAre(Duration(5), Duration(9)));     // 2: 1 + 4, max(5, 7) + 2
  EXPECT_THAT(t.backward_done, ElementsAre(Duration(21), Duration(13)));  // 3: 9 + 4 + 8, 9 + 4
  EXPECT_THAT(t.pushed, ElementsAre(Duration(22), Duration(19)));         // 4: max(19, 21) + 1, 13 + 6
  EXPECT_EQ(t.iteration, Duration(22));                                   // 5
  t = chain_times(layers, reverse);
  EXPECT_THAT(t.pulled, ElementsAre(Duration(7), Duration(6)));
  EXPECT_THAT(t.forward_done, ElementsAre(Duration(11), Duration(13)));
  EXPECT_EQ(t.iteration, Duration(26));
  EXPECT_DOUBLE_EQ(chain_potential_speedup(layers), 26.0 / 22);
  EXPECT_EQ(chain_transfer_time(Bytes(1'000'000), BitsPerSecond(8'000'000'000)), milliseconds(1));  // 6
}

// The last layer's push shows that it comes after its gradients: as printed, equation 4 would give 13, not 16.
TEST(ChainModel, GradientsAreComputedBeforeTheyArePushed) {
  const std::vector<ChainLayer> layers{layer(1, 1, 1, 1), layer(1, 3, 1, 8)};
  const std::vector<std::uint32_t> in_order{0, 1};
  const ChainTimes t = chain_times(layers, in_order);
  EXPECT_EQ(t.backward_done[1], Duration(6));
  EXPECT_EQ(t.pushed[1], Duration(14));
  EXPECT_EQ(t.iteration, Duration(15));
}

Graph chain_graph(const std::vector<ChainLayer>& layers) {
  std::vector<graph::Description> operations;
  const std::size_t n = layers.size();
  for (std::size_t l = 0; l < n; ++l) operations.push_back(recv(fmt::format("pull{}", l), layers[l].pull.value));
  for (std::size_t l = 0; l < n; ++l) {
    operations.push_back(compute(fmt::format("f{}", l), layers[l].forward.value, {fmt::format("pull{}", l)}));
    if (l > 0) operations.back().inputs.push_back(fmt::format("f{}", l - 1));
  }
  for (std::size_t l = n; l-- > 0;) {
    operations.push_back(compute(fmt::format("b{}", l), layers[l].backward.value,
                                 {l + 1 == n ? fmt::format("f{}", l) : fmt::format("b{}", l + 1)}));
    operations.push_back(send(fmt::format("push{}", l), layers[l].push.value, {fmt::format("b{}", l)}));
  }
  return build(std::move(operations));
}

TEST(ChainModel, EqualsTheTimetableOfTheSameChain) {
  std::mt19937_64 random(11);
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
  for (int round = 0; round < 100; ++round) {
    std::vector<ChainLayer> layers;
    for (int l = 0; l < 1 + round % 12; ++l) layers.push_back(layer(below(9), below(9), 1 + below(9), 1 + below(9)));
    std::vector<std::uint32_t> order(layers.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const Graph graph = chain_graph(layers);
    Priorities priorities(graph.size(), kNoPriority);
    for (std::uint32_t j = 0; j < order.size(); ++j) priorities[find(graph, fmt::format("pull{}", order[j])).value] = j;
    const Timetable played = timetable(graph, priorities);
    const ChainTimes t = chain_times(layers, order);
    for (std::size_t l = 0; l < layers.size(); ++l) {
      EXPECT_EQ(t.pulled[l], played.end[find(graph, fmt::format("pull{}", l)).value]);
      EXPECT_EQ(t.forward_done[l], played.end[find(graph, fmt::format("f{}", l)).value]);
      EXPECT_EQ(t.backward_done[l], played.end[find(graph, fmt::format("b{}", l)).value]);
      EXPECT_EQ(t.pushed[l], played.end[find(graph, fmt::format("push{}", l)).value]);
    }
    EXPECT_EQ(t.iteration, played.makespan);
  }
}

// What the paper builds on: in a chain no order is better than that of the layers.
TEST(ChainModel, LayerOrderIsTheBestOfAllOrders) {
  std::mt19937_64 random(12);
  for (int round = 0; round < 60; ++round) {
    std::vector<ChainLayer> layers;
    for (int l = 0; l < 5; ++l)
      layers.push_back(layer(static_cast<std::int64_t>(random() % 9), static_cast<std::int64_t>(random() % 9),
                             1 + static_cast<std::int64_t>(random() % 9), 1));
    std::vector<std::uint32_t> order(layers.size());
    std::iota(order.begin(), order.end(), 0);
    const Duration in_order = chain_times(layers, order).iteration;
    do {
      EXPECT_LE(in_order, chain_times(layers, order).iteration);
    } while (std::next_permutation(order.begin(), order.end()));
    EXPECT_GE(chain_potential_speedup(layers), 1);
    const Graph graph = chain_graph(layers);
    for (const auto& algorithm : {layer_transfer_order, tac_order}) {
      const auto priorities = algorithm(graph);
      ASSERT_TRUE(priorities.ok());
      EXPECT_EQ(timetable(graph, *priorities).makespan, in_order);
    }
  }
}

TEST(ChainModel, NothingTakesNoTime) {
  EXPECT_EQ(chain_times({}, {}).iteration, Duration(0));
  EXPECT_DOUBLE_EQ(chain_potential_speedup({}), 1);
}

}  // namespace
}  // namespace tensorlane::engine
