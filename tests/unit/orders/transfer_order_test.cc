// TicTac: the properties of section 4.1, TIC, TAC and the metrics of section 3.2, on the paper's own figures.
#include "simulator/orders/transfer_order.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "graphs.h"
#include "simulator/orders/efficiency.h"
#include "simulator/orders/timetable.h"

namespace tensorlane::orders {
namespace {

using testing::ElementsAre;

std::vector<Duration> own_times(const Graph& graph) {
  std::vector<Duration> times(graph.size());
  for (const Operation op : graph.topological()) times[op.value] = graph.time(op);
  return times;
}

Properties properties_of(const Graph& graph) {
  auto properties = Properties::build(graph, own_times(graph));
  EXPECT_TRUE(properties.ok()) << properties.status().to_string();
  return *std::move(properties);
}

std::uint32_t position(const Graph& graph, const Properties& properties, const std::string& recv) {
  const auto recvs = properties.recvs();
  return static_cast<std::uint32_t>(std::find(recvs.begin(), recvs.end(), find(graph, recv)) - recvs.begin());
}

std::vector<std::string> tac_names(const Graph& graph) {
  const auto priorities = tac_order(graph);
  EXPECT_TRUE(priorities.ok()) << priorities.status().to_string();
  return names(graph, sequence_of(*priorities));
}

// The makespan when the recv operations come in this order.
Duration makespan(const Graph& graph, const std::vector<std::string>& order) {
  Priorities priorities(graph.size(), kNoPriority);
  for (std::uint32_t i = 0; i < order.size(); ++i) priorities[find(graph, order[i]).value] = i;
  return timetable(graph, priorities).makespan;
}

// Section 4.1 says of figure 1a what each property is.
TEST(TicTac, Figure1aHasThePropertiesOfSection41) {
  const Graph graph = figure_1a(2, 3, 4, 1);
  const Properties p = properties_of(graph);
  EXPECT_EQ(p.communication_time(find(graph, "op1")), Duration(2));      // Time(recv1)
  EXPECT_EQ(p.communication_time(find(graph, "op2")), Duration(2 + 3));  // Time(recv1) + Time(recv2)
  const std::uint32_t recv1 = position(graph, p, "recv1"), recv2 = position(graph, p, "recv2");
  EXPECT_EQ(p.communication_time(find(graph, "recv1")), Duration(2));
  EXPECT_EQ(p.direct_load(recv1), Duration(4));  // Time(op1)
  EXPECT_EQ(p.direct_load(recv2), Duration(0));  // no op can run with recv2 only
  EXPECT_EQ(p.impending_load(recv1), Duration(2 + 3));
  EXPECT_EQ(p.impending_load(recv2), Duration(2 + 3));
}

TEST(TicTac, PropertiesFollowWhatCompletes) {
  const Graph graph = figure_1a(2, 3, 4, 1);
  Properties p = properties_of(graph);
  const std::uint32_t recv1 = position(graph, p, "recv1"), recv2 = position(graph, p, "recv2");
  p.complete(recv1);
  EXPECT_FALSE(p.outstanding(recv1));
  EXPECT_EQ(p.communication_time(find(graph, "op1")), Duration(0));
  EXPECT_EQ(p.communication_time(find(graph, "op2")), Duration(3));
  EXPECT_EQ(p.direct_load(recv2), Duration(1));  // op2 waits for recv2 only now
  EXPECT_EQ(p.impending_load(recv2), kNoImpending);
}

TEST(TicTac, Figure1aTakesRecv1First) {
  const Graph graph = figure_1a();
  EXPECT_THAT(tac_names(graph), ElementsAre("recv1", "recv2"));
  EXPECT_LT(makespan(graph, {"recv1", "recv2"}), makespan(graph, {"recv2", "recv1"}));
  // Without times there is nothing that tells the two apart.
  const auto tic = tic_order(graph);
  ASSERT_TRUE(tic.ok());
  EXPECT_EQ((*tic)[find(graph, "recv1").value], 2u);
  EXPECT_EQ((*tic)[find(graph, "recv2").value], 2u);
  EXPECT_EQ((*tic)[find(graph, "op1").value], kNoPriority);
}

// Figure 4a, for many times: the formula that the paper derives for the makespan of both orders is what the timetable
// says, and TAC takes the better one. Algorithm 3 as printed (A < B) would take the worse one.
TEST(TicTac, Figure4aCase1) {
  for (std::int64_t a = 1; a <= 4; ++a) {
    for (std::int64_t b = 1; b <= 4; ++b) {
      for (std::int64_t op1 = 0; op1 <= 5; ++op1) {
        for (std::int64_t op2 = 0; op2 <= 5; ++op2) {
          const Graph graph = figure_4a(a, b, op1, op2);
          const std::int64_t a_first = a + std::max(op1, b) + op2 + 1, b_first = b + std::max(op2, a) + op1 + 1;
          EXPECT_EQ(makespan(graph, {"recvA", "recvB"}), Duration(a_first));
          EXPECT_EQ(makespan(graph, {"recvB", "recvA"}), Duration(b_first));
          EXPECT_EQ(makespan(graph, tac_names(graph)), Duration(std::min(a_first, b_first)));
          const Properties p = properties_of(graph);
          EXPECT_EQ(tac_before(p, 0, 1), a_first < b_first);
          EXPECT_EQ(tac_before(p, 1, 0), b_first < a_first);
        }
      }
    }
  }
}

// Figure 4b: all P are 0, and M+ of A and B is less than that of C, and that less than that of D.
TEST(TicTac, Figure4bCase2) {
  const Graph graph = figure_4b();
  const Properties p = properties_of(graph);
  const auto impending = [&](const char* recv) { return p.impending_load(position(graph, p, recv)); };
  for (const char* recv : {"recvA", "recvB", "recvC", "recvD"})
    EXPECT_EQ(p.direct_load(position(graph, p, recv)), Duration(0));
  EXPECT_EQ(impending("recvA"), Duration(3 + 4));
  EXPECT_EQ(impending("recvB"), Duration(3 + 4));
  EXPECT_EQ(impending("recvC"), Duration(3 + 4 + 2));
  EXPECT_EQ(impending("recvD"), Duration(3 + 4 + 2 + 1));
  const std::vector<std::string> order = tac_names(graph);
  EXPECT_THAT((std::vector<std::string>{order[2], order[3]}), ElementsAre("recvC", "recvD"));
}

TEST(TicTac, Figure4bByTic) {
  const Graph graph = figure_4b();
  const auto tic = tic_order(graph);
  ASSERT_TRUE(tic.ok());
  const auto number = [&](const char* recv) { return (*tic)[find(graph, recv).value]; };
  EXPECT_EQ(number("recvA"), 2u);
  EXPECT_EQ(number("recvB"), 2u);
  EXPECT_EQ(number("recvC"), 3u);
  EXPECT_EQ(number("recvD"), 4u);
}

TEST(TicTac, ATransferThatNothingWaitsForComesLast) {
  const Graph graph = build({recv("lone", 1), recv("a", 1), recv("b", 1), compute("op", 1, {"a", "b"})});
  const auto tic = tic_order(graph);
  ASSERT_TRUE(tic.ok());
  EXPECT_EQ((*tic)[find(graph, "lone").value], 4u);
  EXPECT_THAT(tac_names(graph), ElementsAre("a", "b", "lone"));
}

TEST(LayerOrder, IsTheOrderOfTheFirstReaders) {
  const Graph graph = build({recv("unread", 1), recv("w2", 1), recv("w1", 1), recv("b1", 1),
                             compute("l2", 1, {"l1", "w2", "w1"}), compute("l1", 1, {"w1", "b1"})});
  const auto order = layer_transfer_order(graph);
  ASSERT_TRUE(order.ok());
  EXPECT_THAT(names(graph, sequence_of(*order)), ElementsAre("w1", "b1", "w2", "unread"));
}

TEST(Orders, RefuseGraphsWithNothingToOrder) {
  const Graph nothing = build({compute("a", 1, {})});
  for (const auto& order : {tic_order(nothing), tac_order(nothing), layer_transfer_order(nothing)}) {
    ASSERT_FALSE(order.ok());
    EXPECT_EQ(order.status().code(), Code::kInvalidArgument);
  }
  const Graph chained =
      build({recv("a", 1), compute("op", 1, {"a"}), {"again", Kind::kRecv, "network", Duration(1), Bytes(0), {"op"}}});
  EXPECT_THAT(tac_order(chained).status().to_string(), testing::HasSubstr("'again'"));
}

// Equations 1 to 4, by hand on figure 1a: network 2 + 3, computation 4 + 1.
TEST(Efficiency, Figure1a) {
  const Graph graph = figure_1a(2, 3, 4, 1);
  const MakespanBounds bounds = makespan_bounds(graph);
  EXPECT_EQ(bounds.upper, Duration(10));
  EXPECT_EQ(bounds.lower, Duration(5));
  EXPECT_DOUBLE_EQ(speedup(bounds), 1.0);
  EXPECT_EQ(makespan(graph, {"recv1", "recv2"}), Duration(7));   // op1 runs while recv2 arrives
  EXPECT_EQ(makespan(graph, {"recv2", "recv1"}), Duration(10));  // nothing overlaps
  EXPECT_DOUBLE_EQ(schedule_efficiency(bounds, Duration(7)), 0.6);
  EXPECT_DOUBLE_EQ(schedule_efficiency(bounds, Duration(10)), 0.0);
  EXPECT_DOUBLE_EQ(schedule_efficiency(bounds, Duration(5)), 1.0);
}

TEST(Efficiency, WithoutAnythingToGain) {
  const Graph one = build({compute("a", 5, {}), compute("b", 5, {"a"})});
  EXPECT_DOUBLE_EQ(schedule_efficiency(makespan_bounds(one), Duration(10)), 1.0);
  EXPECT_DOUBLE_EQ(speedup(makespan_bounds(one)), 0.0);
  EXPECT_DOUBLE_EQ(speedup(makespan_bounds(build({compute("a", 0, {})}))), 0.0);
}

TEST(Timetable, AResourceDoesOneThingAtATimeAndIsNeverIdleWithoutNeed) {
  const Graph graph = build({recv("a", 2), recv("b", 2), compute("x", 5, {"a"}), compute("y", 1, {"b"}),
                             compute("z", 1, {}), send("g", 3, {"x"})});
  const Timetable t = timetable(graph, Priorities(graph.size(), kNoPriority));
  const auto start = [&](const char* op) { return t.start[find(graph, op).value]; };
  EXPECT_EQ(start("a"), Duration(0));
  EXPECT_EQ(start("b"), Duration(2));
  EXPECT_EQ(start("z"), Duration(0));
  EXPECT_EQ(start("x"), Duration(2));
  EXPECT_EQ(start("y"), Duration(7));
  EXPECT_EQ(start("g"), Duration(7));
  EXPECT_EQ(t.makespan, Duration(10));
}

TEST(Timetable, WhatHasNoNumberCompetesWithTheLowest) {
  const Graph graph = build({recv("late", 1), recv("free", 1), recv("first", 1)});
  Priorities priorities{7, kNoPriority, 3};
  const Timetable t = timetable(graph, priorities);
  EXPECT_EQ(t.start[1], Duration(0));  // stands before "first" in the graph
  EXPECT_EQ(t.start[2], Duration(1));
  EXPECT_EQ(t.start[0], Duration(2));
}

}  // namespace
}  // namespace tensorlane::orders
