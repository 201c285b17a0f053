// Cyclic buffer dependencies: networks that have one, with the cycle, and networks that have none.
#include "switch-config/deadlock/check.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>

namespace tensorlane::deadlock {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// Builds networks by name.
class Builder {
 public:
  Builder& node(const std::string& name, unsigned level) {
    index_[name] = static_cast<NodeIndex>(network_.nodes.size());
    network_.nodes.push_back({name, level});
    return *this;
  }
  Builder& link(const std::string& a, const std::string& b) {
    network_.links.push_back({index_.at(a), index_.at(b), fmt::format("to-{}", b), fmt::format("to-{}", a)});
    return *this;
  }
  std::vector<NodeIndex> nodes(const std::vector<std::string>& names) const {
    std::vector<NodeIndex> all;
    for (const auto& name : names) all.push_back(index_.at(name));
    return all;
  }
  Builder& route(const std::vector<std::string>& names) {
    network_.routes.push_back(nodes(names));
    return *this;
  }
  Builder& flood(const std::vector<std::string>& names) {
    network_.flooding.push_back(nodes(names));
    return *this;
  }
  Builder& routing(Routing routing) {
    network_.routing = routing;
    return *this;
  }
  const Network& build() const { return network_; }

 private:
  Network network_;
  std::map<std::string, NodeIndex> index_;
};

std::string numbered(const char* kind, unsigned i) {
  return fmt::format("{}{}", kind, i);
}

// Every leaf has `hosts` hosts and a link to every spine.
Builder clos(unsigned spines, unsigned leaves, unsigned hosts) {
  Builder b;
  for (unsigned s = 0; s < spines; ++s) b.node(numbered("s", s), 2);
  for (unsigned l = 0; l < leaves; ++l) {
    b.node(numbered("l", l), 1);
    for (unsigned s = 0; s < spines; ++s) b.link(numbered("l", l), numbered("s", s));
    for (unsigned h = l * hosts; h < (l + 1) * hosts; ++h) {
      b.node(numbered("h", h), 0);
      b.link(numbered("h", h), numbered("l", l));
    }
  }
  return b;
}

// A fat tree of k-port switches (Al-Fares et al. 2008), with one host a leaf.
Builder fat_tree(unsigned k) {
  Builder b;
  for (unsigned c = 0; c < k * k / 4; ++c) b.node(numbered("c", c), 3);
  for (unsigned pod = 0; pod < k; ++pod) {
    for (unsigned i = 0; i < k / 2; ++i) {
      const std::string spine = numbered("s", pod * k / 2 + i);
      b.node(spine, 2);
      for (unsigned c = 0; c < k / 2; ++c) b.link(spine, numbered("c", i * k / 2 + c));
    }
    for (unsigned i = 0; i < k / 2; ++i) {
      const unsigned leaf = pod * k / 2 + i;
      b.node(numbered("l", leaf), 1).node(numbered("h", leaf), 0).link(numbered("h", leaf), numbered("l", leaf));
      for (unsigned s = 0; s < k / 2; ++s) b.link(numbered("l", leaf), numbered("s", pod * k / 2 + s));
    }
  }
  return b;
}

// Each hop's buffer is filled by the node whose buffer waits for it, and no hop comes twice.
void expect_closed(const std::vector<Hop>& cycle) {
  ASSERT_GE(cycle.size(), 3u);
  for (std::size_t i = 0; i < cycle.size(); ++i) {
    EXPECT_EQ(cycle[(i + 1) % cycle.size()].from, cycle[i].node);
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(cycle[i], cycle[j]);
  }
}

TEST(Deadlock, AClosWithUpDownRoutingHasNone) {
  const Report report = check(clos(4, 8, 2).build(), false);
  EXPECT_THAT(report.cycles, IsEmpty());
  EXPECT_EQ(report.unreached_pairs, 0u);
  EXPECT_THAT(check(fat_tree(4).build(), false).cycles, IsEmpty());
}

TEST(Deadlock, ARingOfThreeSwitchesHasOneAlongItsLinks) {
  Builder b;
  for (const char* name : {"a", "b", "c"}) b.node(name, 1).node(fmt::format("h{}", name), 0);
  for (const char* name : {"a", "b", "c"}) b.link(fmt::format("h{}", name), name);
  b.link("a", "b").link("b", "c").link("c", "a");
  const Report report = check(b.build(), false);
  ASSERT_THAT(report.cycles, SizeIs(2));  // one way round and the other
  for (const Cycle& cycle : report.cycles) {
    EXPECT_THAT(cycle.hops, SizeIs(3));
    expect_closed(cycle.hops);
  }
  EXPECT_EQ(report.cycles[0].hops[0].port, fmt::format("to-{}", report.cycles[0].hops[0].from));
  // Only ways of one hop, and nothing goes round.
  Builder direct = b;
  direct.routing(Routing::kGiven).route({"ha", "a", "b", "hb"}).route({"hb", "b", "c", "hc"});
  EXPECT_THAT(check(direct.build(), false).cycles, IsEmpty());
  // All three clockwise ways of two hops close the ring.
  Builder clockwise = b;
  clockwise.routing(Routing::kGiven).route({"ha", "a", "b", "c", "hc"}).route({"hb", "b", "c", "a", "ha"});
  EXPECT_THAT(check(clockwise.build(), false).cycles, IsEmpty());
  clockwise.route({"hc", "c", "a", "b", "hb"});
  EXPECT_THAT(check(clockwise.build(), false).cycles, SizeIs(1));
}

TEST(Deadlock, APairOfLeavesWithALinkBetweenThemHasNone) {
  Builder b = clos(2, 2, 1);
  b.link("l0", "l1");
  EXPECT_THAT(check(b.build(), false).cycles, IsEmpty());
}

TEST(Deadlock, ARouteThatGoesUpAgainIsNamedWithTheCycleThatItInvites) {
  Builder b = clos(2, 3, 1);
  b.route({"h0", "l0", "s0", "l1", "s1", "l2", "h2"});
  const Report report = check(b.build(), false);
  ASSERT_THAT(report.bounces, SizeIs(1));
  EXPECT_EQ(report.bounces[0].node, "l1");
  EXPECT_EQ(report.bounces[0].route, "h0 > l0 > s0 > l1 > s1 > l2 > h2");
  expect_closed(report.bounces[0].cycle);
  EXPECT_THAT(report.cycles, IsEmpty());
  // The same at another leaf, in the other direction, closes a cycle indeed.
  b.route({"h2", "l2", "s1", "l0", "s0", "l1", "h1"});
  const Report both = check(b.build(), false);
  ASSERT_THAT(both.cycles, SizeIs(1));
  expect_closed(both.cycles[0].hops);
  EXPECT_THAT(both.bounces, SizeIs(2));
}

TEST(Deadlock, AVlanThatFloodsOverSeveralSpinesHasOne) {
  Builder b = clos(2, 2, 1);
  b.flood({"l0", "l1", "s0", "s1"});
  const Report report = check(b.build(), false);
  ASSERT_FALSE(report.cycles.empty());
  for (const Cycle& cycle : report.cycles) {
    EXPECT_THAT(cycle.hops, SizeIs(4));
    expect_closed(cycle.hops);
  }
  Builder one_spine = clos(2, 2, 1);
  one_spine.flood({"l0", "l1", "s0"});
  EXPECT_THAT(check(one_spine.build(), false).cycles, IsEmpty());
}

TEST(Deadlock, EverySingleFailureOfAClosOf128HostsIsClean) {
  const Report report = check(clos(8, 16, 8).build(), true);
  EXPECT_THAT(report.cycles, IsEmpty());
  EXPECT_EQ(report.failures_tried, 8u * 16 + 128 + 8 + 16);
}

// Two planes: leaves 0 and 1 have spine 0, leaves 1 and 2 spine 1, leaves 0 and 2 spine 2. Without a rule about up and
// down, traffic goes through leaves where it is shortest.
TEST(Deadlock, RoutesThatKnowNoUpAndDownBounce) {
  Builder b;
  for (unsigned i = 0; i < 4; ++i) {
    b.node(numbered("s", i), 2).node(numbered("l", i), 1).node(numbered("h", i), 0);
    b.link(numbered("h", i), numbered("l", i));
  }
  for (unsigned i = 0; i < 4; ++i)
    b.link(numbered("l", i), numbered("s", i)).link(numbered("l", (i + 1) % 4), numbered("s", i));
  b.routing(Routing::kShortest);
  const Report shortest = check(b.build(), false);
  ASSERT_FALSE(shortest.cycles.empty());
  expect_closed(shortest.cycles[0].hops);
  EXPECT_EQ(shortest.unreached_pairs, 0u);
  b.routing(Routing::kUpDown);
  const Report up_down = check(b.build(), false);
  EXPECT_THAT(up_down.cycles, IsEmpty());
  EXPECT_EQ(up_down.unreached_pairs, 4u);  // the leaves across cannot reach each other without a bounce
}

// A ring of six leaves and spines is open as long as one spare spine offers shorter ways.
TEST(Deadlock, AFailureThatMakesRoutesBounceIsNamed) {
  Builder b;
  b.node("spare", 2);
  for (unsigned i = 0; i < 4; ++i) {
    b.node(numbered("s", i), 2).node(numbered("l", i), 1).node(numbered("h", i), 0);
    b.link(numbered("h", i), numbered("l", i)).link(numbered("l", i), "spare");
  }
  for (unsigned i = 0; i < 4; ++i)
    b.link(numbered("l", i), numbered("s", i)).link(numbered("l", (i + 1) % 4), numbered("s", i));
  b.routing(Routing::kShortest);
  EXPECT_THAT(check(b.build(), false).cycles, IsEmpty());
  const Report report = check(b.build(), true);
  ASSERT_FALSE(report.cycles.empty());
  bool spare = false;
  for (const Cycle& cycle : report.cycles) {
    expect_closed(cycle.hops);
    spare |= cycle.failure == "switch spare";
  }
  EXPECT_TRUE(spare);
  b.routing(Routing::kUpDown);
  EXPECT_THAT(check(b.build(), true).cycles, IsEmpty());
}

TEST(Deadlock, RoutesOverAFailedLinkAreNotThere) {
  Builder b = clos(2, 3, 1);
  b.routing(Routing::kGiven).route({"h0", "l0", "s0", "l1", "h1"});
  const Report report = check(b.build(), true);
  EXPECT_THAT(report.cycles, IsEmpty());
  EXPECT_EQ(report.failures_tried, 3u * 2 + 3 + 5);
}

TEST(Deadlock, OfAThousandSwitchesIsFoundInTime) {
  for (const Network& network : {clos(60, 940, 1).build(), fat_tree(28).build()}) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THAT(check(network, false).cycles, IsEmpty());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    RecordProperty("seconds", std::to_string(took.count()));
    EXPECT_LT(took.count(), 60);  // the tool's own bar is 10 s; sanitizers and neighbours are slower
  }
}

}  // namespace
}  // namespace tensorlane::deadlock
