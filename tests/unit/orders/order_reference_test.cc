// The orders on random graphs, against references that follow the papers' text literally and cannot scale.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <iostream>
#include <numeric>
#include <set>

#include "graphs.h"
#include "simulator/orders/activation_order.h"
#include "simulator/orders/efficiency.h"
#include "simulator/orders/timetable.h"
#include "simulator/orders/transfer_order.h"

namespace tensorlane::orders {
namespace {

using testing::ElementsAre;

constexpr std::int64_t kInfinite = kNoImpending.value;

// "a depth-first post-fix graph traversal on the DAG" (TicTac, section 4.1).
void collect(const Graph& graph, Operation op, std::set<Operation>& dependencies) {
  if (graph.kind(op) == Kind::kRecv) dependencies.insert(op);
  for (const Operation input : graph.inputs(op)) collect(graph, input, dependencies);
}

// Algorithms 1 and 3, line by line, with the comparison of equation 6.
struct LiteralTac {
  struct Of {
    std::int64_t m = 0, p = 0, m_plus = 0;
  };
  std::vector<std::set<Operation>> dependencies;
  std::vector<Of> of;

  void update(const Graph& graph, const std::set<Operation>& outstanding) {
    of.assign(graph.size(), {});
    std::vector<std::vector<Operation>> waits_for(graph.size());
    for (std::uint32_t i = 0; i < graph.size(); ++i) {
      std::set_intersection(dependencies[i].begin(), dependencies[i].end(), outstanding.begin(), outstanding.end(),
                            std::back_inserter(waits_for[i]));
      for (const Operation r : waits_for[i]) of[i].m += graph.time(r).value;
    }
    for (const Operation r : outstanding) of[r.value] = {of[r.value].m, 0, kInfinite};
    for (std::uint32_t i = 0; i < graph.size(); ++i) {
      if (outstanding.count(Operation(i)) > 0) continue;
      const std::vector<Operation>& d = waits_for[i];
      if (d.size() == 1) of[d[0].value].p += graph.time(Operation(i)).value;
      if (d.size() > 1)
        for (const Operation r : d) of[r.value].m_plus = std::min(of[r.value].m_plus, of[i].m);
    }
  }

  bool before(Operation a, Operation b) const {
    const Of &x = of[a.value], &y = of[b.value];
    const std::int64_t first = std::min(y.p, x.m), second = std::min(x.p, y.m);
    return first != second ? first < second : x.m_plus < y.m_plus;
  }

  Priorities run(const Graph& graph) {
    std::set<Operation> outstanding;
    for (std::uint32_t i = 0; i < graph.size(); ++i) {
      collect(graph, Operation(i), dependencies.emplace_back());
      if (graph.kind(Operation(i)) == Kind::kRecv) outstanding.insert(Operation(i));
    }
    Priorities priorities(graph.size(), kNoPriority);
    for (std::uint32_t count = 0; !outstanding.empty(); ++count) {
      update(graph, outstanding);
      Operation best = *outstanding.begin();
      for (const Operation op : outstanding)
        if (before(op, best)) best = op;
      outstanding.erase(best);
      priorities[best.value] = count;
    }
    return priorities;
  }
};

TEST(Tac, IsAlgorithm3OnRandomGraphs) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Graph graph = random_graph(seed, 2 + static_cast<int>(seed % 9), 1 + static_cast<int>(seed % 17));
    const auto tac = tac_order(graph);
    ASSERT_TRUE(tac.ok());
    EXPECT_EQ(*tac, LiteralTac().run(graph)) << "seed " << seed;
  }
}

// More recv operations than bits in a word.
TEST(Tac, IsAlgorithm3WithManyTransfers) {
  const Graph graph = random_graph(7, 150, 260);
  const auto tac = tac_order(graph);
  ASSERT_TRUE(tac.ok());
  EXPECT_EQ(*tac, LiteralTac().run(graph));
}

TEST(Tic, IsAlgorithm2OnRandomGraphs) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Graph graph = random_graph(seed, 5, 12);
    const auto tic = tic_order(graph);
    ASSERT_TRUE(tic.ok());
    std::vector<std::set<Operation>> dependencies(graph.size());
    for (std::uint32_t i = 0; i < graph.size(); ++i) collect(graph, Operation(i), dependencies[i]);
    for (const Operation r : graph.of_kind(Kind::kRecv)) {
      std::size_t least = 6;  // "infinite": more than all five together
      for (const auto& d : dependencies)
        if (d.size() > 1 && d.count(r) > 0) least = std::min(least, d.size());
      EXPECT_EQ((*tic)[r.value], least) << "seed " << seed;
    }
  }
}

struct Makespans {
  double best, worst;
};

Makespans exhaustive(const Graph& graph, const std::vector<Operation>& recvs) {
  std::vector<std::uint32_t> order(recvs.size());
  std::iota(order.begin(), order.end(), 0);
  Makespans m{1e300, 0};
  do {
    Priorities priorities(graph.size(), kNoPriority);
    for (std::size_t i = 0; i < recvs.size(); ++i) priorities[recvs[i].value] = order[i];
    const double makespan = to_seconds(timetable(graph, priorities).makespan);
    m = {std::min(m.best, makespan), std::max(m.worst, makespan)};
  } while (std::next_permutation(order.begin(), order.end()));
  return m;
}

// The heuristic is "an approximate induction, which may not be correct in general" (section 4.3): how far from the best
// of all orders it ends is reported, and must not get worse.
TEST(Tac, IsNearTheBestOfAllOrders) {
  double sum_tac = 0, sum_worst = 0, sum_tic = 0, most = 1;
  int optimal = 0;
  constexpr int kGraphs = 200;
  for (std::uint64_t seed = 0; seed < kGraphs; ++seed) {
    const Graph graph = random_graph(1000 + seed, 5, 10);
    const Makespans m = exhaustive(graph, graph.of_kind(Kind::kRecv));
    const double tac = to_seconds(timetable(graph, *tac_order(graph)).makespan) / m.best;
    EXPECT_GE(tac, 1 - 1e-12);
    sum_tac += tac;
    sum_tic += to_seconds(timetable(graph, *tic_order(graph)).makespan) / m.best;
    sum_worst += m.worst / m.best;
    most = std::max(most, tac);
    optimal += tac < 1 + 1e-9 ? 1 : 0;
  }
  std::cout << "makespan over the best of all orders, mean of " << kGraphs << " graphs: TAC " << sum_tac / kGraphs
            << " (at most " << most << ", the best in " << optimal << "), TIC " << sum_tic / kGraphs << ", worst order "
            << sum_worst / kGraphs << "\n";
  EXPECT_LT(sum_tac / kGraphs, 1.02);
  EXPECT_LT(most, 1.25);
  EXPECT_GT(optimal, kGraphs * 3 / 4);
  EXPECT_LT(sum_tac, sum_tic);
  EXPECT_LT(sum_tic, sum_worst);
}

TEST(Timetable, StaysBetweenTheBounds) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Graph graph = random_graph(seed, 6, 20);
    const MakespanBounds bounds = makespan_bounds(graph);
    const Timetable t = timetable(graph, *tac_order(graph));
    EXPECT_LE(bounds.lower, t.makespan);
    EXPECT_LE(t.makespan, bounds.upper);
    for (const Operation op : graph.topological())
      for (const Operation input : graph.inputs(op)) EXPECT_LE(t.end[input.value], t.start[op.value]);
  }
}

TEST(Orders, AreTheSameEveryTime) {
  const Graph graph = random_graph(3, 40, 200);
  for (const auto& order : {tic_order, tac_order, layer_transfer_order}) {
    const auto first = order(graph);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(*order(graph), *first);
  }
}

TEST(Orders, ManyOperationsTakeLittleTime) {
  // A chain of 20,000 layers of 5 operations, of which every fiftieth layer has a parameter.
  std::vector<Description> operations;
  std::string before;
  for (int i = 0; i < 100'000; ++i) {
    const std::string name = fmt::format("c{}", i);
    Description op = compute(name, 10, {});
    if (i > 0) op.inputs.push_back(before);
    if (i % 250 == 0) {
      operations.push_back(recv(fmt::format("r{}", i), 1000));
      op.inputs.push_back(operations.back().name);
    }
    before = name;
    operations.push_back(std::move(op));
  }
  const Graph graph = build(std::move(operations));
  const auto tac = tac_order(graph);
  ASSERT_TRUE(tac.ok());
  EXPECT_EQ(*tac, *layer_transfer_order(graph));  // a chain leaves no choice
}

// ---- Caramel, section 4.1 ----

// A diamond in the backward pass: the gradient of layer 3 costs most, but once it is there the others are cheap.
TEST(Activation, TakesTheCheapestGradientFirst) {
  const Graph graph =
      build({compute("forward", 10, {}), compute("trunk", 4, {"forward"}), compute("left", 5, {"trunk"}),
             compute("right", 3, {"trunk"}), compute("deep", 1, {"left"}), send("L", 1, {"left"}),
             send("R", 1, {"right"}), send("T", 1, {"trunk"}), send("D", 1, {"deep"})});
  const auto order = activation_order(graph);
  ASSERT_TRUE(order.ok());
  EXPECT_THAT(names(graph, sequence_of(*order)), ElementsAre("T", "R", "L", "D"));
  const auto added = enforce_activation(graph, sequence_of(*order));
  // end(T) = trunk before free(R) = right; end(R) = right before free(L) = left; end(L) = left before free(D) = deep.
  EXPECT_THAT(added, ElementsAre(Dependency{find(graph, "trunk"), find(graph, "right")},
                                 Dependency{find(graph, "right"), find(graph, "left")},
                                 Dependency{find(graph, "left"), find(graph, "deep")}));
}

Graph with_a_part() {
  return build({compute("a", 1, {}), compute("b", 0, {"a"}), compute("c", 5, {}), send("late", 1, {"b"}),
                send("again", 1, {"a"}), send("other", 1, {"c"})});
}

TEST(Activation, OfEqualTimesFewerOperationsComeFirst) {
  const Graph graph = with_a_part();
  const auto order = activation_order(graph);
  ASSERT_TRUE(order.ok());
  EXPECT_THAT(names(graph, sequence_of(*order)), ElementsAre("again", "late", "other"));
}

// After "late", "again" needs nothing that is not executed: what comes next must still wait for "late".
TEST(Activation, AGradientThatNeedsNothingOfItsOwnKeepsTheEndSetBeforeIt) {
  const Graph graph = with_a_part();
  const std::vector<Operation> order{find(graph, "late"), find(graph, "again"), find(graph, "other")};
  EXPECT_THAT(enforce_activation(graph, order), ElementsAre(Dependency{find(graph, "b"), find(graph, "c")}));
}

TEST(Activation, RefusesAGraphWithoutGradients) {
  const auto order = activation_order(build({compute("a", 1, {})}));
  ASSERT_FALSE(order.ok());
  EXPECT_EQ(order.status().code(), Code::kInvalidArgument);
}

Graph with_gradients(std::uint64_t seed, int computes) {
  std::mt19937_64 random(seed);
  std::vector<Description> operations;
  for (int c = 0; c < computes; ++c) {
    std::vector<std::string> inputs;
    for (int k = 0; k < 2 && c > 0; ++k)
      if (random() % 3 > 0) inputs.push_back(fmt::format("c{}", random() % static_cast<std::uint64_t>(c)));
    operations.push_back(compute(fmt::format("c{}", c), static_cast<std::int64_t>(random() % 4), inputs));
  }
  for (int s = 0; s < computes / 3; ++s)
    operations.push_back(
        send(fmt::format("g{}", s), 1, {fmt::format("c{}", random() % static_cast<std::uint64_t>(computes))}));
  return build(std::move(operations));
}

using Cost = std::pair<Duration, int>;  // time, operations

void mark_needed(const Graph& graph, Operation op, std::vector<bool>& done, Cost& cost) {
  if (done[op.value]) return;
  done[op.value] = true;
  if (graph.kind(op) == Kind::kCompute) {
    cost.first += graph.time(op);
    ++cost.second;
  }
  for (const Operation input : graph.inputs(op)) mark_needed(graph, input, done, cost);
}

TEST(Activation, IsTheGreedyAlgorithmOnRandomGraphs) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Graph graph = with_gradients(seed, 24);
    const auto order = activation_order(graph);
    ASSERT_TRUE(order.ok());
    std::vector<bool> done(graph.size(), false);
    std::set<Operation> left;
    for (const Operation s : graph.of_kind(Kind::kSend)) left.insert(s);
    for (const Operation chosen : sequence_of(*order)) {
      std::optional<std::pair<Cost, Operation>> best;
      for (const Operation s : left) {
        std::vector<bool> copy = done;
        Cost cost;
        mark_needed(graph, s, copy, cost);
        if (!best || std::pair(cost, s) < *best) best = {cost, s};
      }
      ASSERT_EQ(chosen, best->second) << "seed " << seed;
      Cost ignored;
      mark_needed(graph, chosen, done, ignored);
      left.erase(chosen);
    }
  }
}

// The point of stage 2: whatever a worker takes of what is ready, gradients become ready in the one order.
TEST(Activation, EnforcedLeavesOneOrder) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Graph graph = with_gradients(seed, 24);
    const std::vector<Operation> order = sequence_of(*activation_order(graph));
    const auto enforced = graph.with(enforce_activation(graph, order));
    ASSERT_TRUE(enforced.ok()) << enforced.status().to_string();
    std::vector<std::size_t> missing(graph.size());
    std::vector<Operation> ready;
    for (std::uint32_t i = 0; i < graph.size(); ++i) {
      missing[i] = enforced->inputs(Operation(i)).size();
      if (missing[i] == 0) ready.push_back(Operation(i));
    }
    std::mt19937_64 random(seed);
    std::vector<std::size_t> ready_at(graph.size());
    for (std::size_t step = 0; !ready.empty(); ++step) {
      std::swap(ready[random() % ready.size()], ready.back());
      const Operation op = ready.back();
      ready.pop_back();
      for (const Operation output : enforced->outputs(op)) {
        if (--missing[output.value] > 0) continue;
        ready_at[output.value] = step;
        ready.push_back(output);
      }
    }
    for (std::size_t i = 1; i < order.size(); ++i)
      EXPECT_LE(ready_at[order[i - 1].value], ready_at[order[i].value]) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tensorlane::orders
