// The analysis of `tensorlane verify` on recorded probes: no fault is missed, and nothing is blamed for one that is
// elsewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/json/json.h"
#include "monitor/verify/render.h"
#include "monitor/verify/verdict.h"
#include "recorded.h"

namespace tensorlane::verify {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A node of a place may be one of several: "spine0 or spine1 (198.19.0.4)".
bool may_be(const std::string& node, const std::string& name) {
  return node == name || (" " + node + " ").find(" " + name + " ") != std::string::npos;
}

// Whether a finding's place holds the fault. What nobody saw exactly is a gap, which must hold it as well.
bool holds(const Place& place, const Fault& fault, const Topology& topology) {
  const bool in = fault.kind == Fault::Kind::kIn;
  const std::string& from = in ? fault.peer : fault.node;
  const std::string& to = in ? fault.node : fault.peer;
  switch (place.kind) {
    case Place::Kind::kSender:
      return fault.kind == Fault::Kind::kSender && place.node == fault.node;
    case Place::Kind::kLeg:
    case Place::Kind::kWay:
      if (fault.kind == Fault::Kind::kSender) return place.node == fault.node;
      if (fault.kind == Fault::Kind::kNode) return may_be(place.node, fault.node) || may_be(place.peer, fault.node);
      return may_be(place.node, from) && may_be(place.peer, to);
    case Place::Kind::kEntry:
      if (fault.kind == Fault::Kind::kNode) return may_be(place.node, fault.node);
      return may_be(place.node, to) && may_be(place.peer, from);
    case Place::Kind::kNode:
      return fault.kind == Fault::Kind::kNode ? may_be(place.node, fault.node)
                                              : may_be(place.node, from) || may_be(place.node, to);
    case Place::Kind::kReceiver:
      return place.node == fault.peer;
    case Place::Kind::kGap:
      break;
  }
  // Between what a gap names there is a way with the fault on it.
  if (fault.kind == Fault::Kind::kSender) return place.node == fault.node;
  return !topology.empty();
}

bool holds(const Finding& finding, const Fault& fault, const Topology& topology) {
  return holds(finding.place, fault, topology) ||
         std::ranges::any_of(finding.alternatives, [&](const Place& place) { return holds(place, fault, topology); });
}

struct Score {
  std::size_t missed = 0, false_alarms = 0, vague = 0;
};

Score score(const Recorded& recorded) {
  const Topology topology(recorded.fabric);
  const Report report = analyse(recorded.seen, topology);
  Score score;
  const bool shows = std::ranges::any_of(recorded.seen.flows, [&](const FlowFact& flow) {
    return !flow.arrived() || flow.dscp != recorded.seen.classes[flow.cls].dscp;
  });
  for (const Fault& fault : recorded.faults) {
    const bool found =
        std::ranges::any_of(report.findings, [&](const Finding& finding) { return holds(finding, fault, topology); });
    if (!found && shows) ++score.missed;
  }
  for (const Finding& finding : report.findings) {
    const bool true_one =
        std::ranges::any_of(recorded.faults, [&](const Fault& fault) { return holds(finding, fault, topology); });
    if (!true_one) ++score.false_alarms;
    if (finding.place.kind == Place::Kind::kGap) ++score.vague;
  }
  if (score.missed + score.false_alarms > 0) ADD_FAILURE() << recorded.about << "\n" << to_text(report, false);
  EXPECT_EQ(report.exit_status != 0, shows) << recorded.about;
  return score;
}

TEST(Verify, FindsEveryFaultAndInventsNone) {
  Score all;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    const Score one = score(record(seed, 1));
    all.missed += one.missed;
    all.false_alarms += one.false_alarms;
    all.vague += one.vague;
  }
  EXPECT_EQ(all.missed, 0);
  EXPECT_EQ(all.false_alarms, 0);
  RecordProperty("vague", static_cast<int>(all.vague));
}

TEST(Verify, PassesCleanNetworks) {
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    const Recorded recorded = record(seed, 0);
    const Report report = analyse(recorded.seen, Topology(recorded.fabric));
    EXPECT_THAT(report.findings, IsEmpty()) << recorded.about;
    EXPECT_EQ(report.exit_status, 0) << recorded.about << "\n" << to_text(report, false);
  }
}

// Three hosts at one switch, nothing seen yet.
struct OneSwitch {
  fabric::Fabric fabric = fabric::parse(R"(
hosts:
  - {name: a, addresses: {tcp: 10.0.0.1}}
  - {name: b, addresses: {tcp: 10.0.0.2}}
  - {name: c, addresses: {tcp: 10.0.0.3}}
switches: [{name: s, nos: eos}]
links:
  - {from: a, to: s, to_port: Ethernet1, speed: 100G}
  - {from: b, to: s, to_port: Ethernet2, speed: 100G}
  - {from: c, to: s, to_port: Ethernet3, speed: 100G}
)",
                                        "fabric.yaml", fabric::Keys::kOptional)
                              .value();
  Topology topology{fabric};
  Observations seen{.classes = {{"urgent", 43, 5, true}, {"bulk", 27, 3, true}},
                    .hosts = {{"a", {}}, {"b", {}}, {"c", {}}}};

  FlowFact& add(std::size_t from, std::size_t to, std::size_t cls, int dscp) {
    FlowFact flow;
    flow.from = from, flow.to = to, flow.cls = cls, flow.outcome = "arrived";
    flow.own_dscp = seen.classes[cls].dscp;
    flow.dscp = dscp, flow.hop_count = 1;
    return seen.flows.emplace_back(flow);
  }
  // Milliseconds of messages beside a burst: in the high class, and in the low one.
  LoadFact& add_load(double share, double delay, double low_delay) {
    LoadFact load;
    load.high = 0, load.low = 1, load.high_from = 0, load.low_from = 1, load.to = 2;
    load.node = "s", load.peer = "c";
    load.high_alone = load.low_alone = 1e9;
    load.share = {share, share - 0.05, share + 0.05};
    load.delay_alone_us = {100, 90, 110};
    load.delay_beside_us = {1000 * delay, 800 * delay, 1200 * delay};
    load.delay_low_us = {1000 * low_delay, 800 * low_delay, 1200 * low_delay};
    seen.asked_for_load = true;
    return seen.loads.emplace_back(load);
  }
  Report report() const { return analyse(seen, topology); }
  std::size_t not_sent() const {
    return static_cast<std::size_t>(std::ranges::count(seen.flows, "not_sent", &FlowFact::outcome));
  }
};

void add_all(OneSwitch& net) {
  for (std::size_t from = 0; from < 3; ++from)
    for (std::size_t to = 0; to < 3; ++to)
      for (std::size_t cls = 0; cls < 2 && from != to; ++cls) net.add(from, to, cls, net.seen.classes[cls].dscp);
}

TEST(Topology, EachRailHasWaysOfItsOwn) {
  const Topology topology(fabric::parse(R"(
hosts:
  - {name: a, addresses: {tcp: [10.0.0.1, 10.0.1.1]}}
  - {name: b, addresses: {tcp: [10.0.0.2, 10.0.1.2]}}
switches: [{name: s0}, {name: s1}]
links:
  - {from: a, to: s0, speed: 100G}
  - {from: a, to: s1, speed: 100G}
  - {from: b, to: s0, speed: 100G}
  - {from: b, to: s1, speed: 100G}
)",
                                        "fabric.yaml", fabric::Keys::kOptional)
                              .value());
  for (const std::size_t rail : {0, 1}) {
    const std::vector<Way> ways = topology.ways("a", "b", rail);
    ASSERT_THAT(ways, SizeIs(1));
    EXPECT_THAT(topology.switches_on(ways[0]), ::testing::ElementsAre("s" + std::to_string(rail)));
  }
  EXPECT_THAT(topology.ways("a", "b", 2), IsEmpty());
}

// What is lost has no hops of its own to count: as many as others between the hosts have had, of its family.
TEST(Verify, FindsWhereAClassIsLostInANetworkOfOneFamily) {
  const Topology topology(fabric::parse(R"(
hosts:
  - {name: a, addresses: {tcp: "fd00::1"}}
  - {name: b, addresses: {tcp: "fd00::2"}}
switches: [{name: left}, {name: up0}, {name: up1}, {name: right}]
links:
  - {from: a, to: left, speed: 100G}
  - {from: b, to: right, speed: 100G}
  - {from: left, to: up0, speed: 100G}
  - {from: left, to: up1, speed: 100G}
  - {from: up0, to: right, speed: 100G}
  - {from: up1, to: right, speed: 100G}
)",
                                        "fabric.yaml", fabric::Keys::kOptional)
                              .value());
  for (const bool ipv6 : {false, true}) {
    Observations seen{.classes = {{"urgent", 43, 5, true}, {"bulk", 27, 3, true}}, .hosts = {{"a", {}}, {"b", {}}}};
    for (const std::size_t cls : {0, 1})
      for (const std::string spine : {"10.1.0.2", "10.1.0.3"}) {
        const bool lost = cls == 0 && spine == "10.1.0.3";
        FlowFact flow{.from = 0, .to = 1, .ipv6 = ipv6, .cls = cls, .outcome = lost ? "timed_out" : "arrived"};
        const std::optional<int> dscp = seen.classes[cls].dscp;
        flow.hops = {{1, "10.1.0.1", dscp}, {2, spine, dscp}, {3, "", {}}};
        if (!lost) flow.hops[2] = {3, "10.1.0.4", dscp}, flow.dscp = dscp, flow.hop_count = 3;
        seen.flows.push_back(flow);
      }
    const Report report = analyse(seen, topology);
    ASSERT_THAT(report.findings, SizeIs(1)) << to_text(report, true);
    EXPECT_THAT(report.findings[0].where, ::testing::StartsWith("up0 or up1 (10.1.0.3)'s port towards right")) << ipv6;
    EXPECT_THAT(report.findings[0].what, HasSubstr("DSCP 43 (urgent) is lost"));
    // Of a flow that is lost nobody knows the whole way.
    ASSERT_THAT(report.coverage, SizeIs(1));
    EXPECT_EQ(report.coverage[0].seen, 2U);
    EXPECT_EQ(report.coverage[0].ports, 3U);
  }
}

TEST(Report, NamesThePortAndTheCommandOfItsSystem) {
  OneSwitch net;
  add_all(net);
  for (FlowFact& flow : net.seen.flows)
    if (flow.to == 2) flow.dscp = 0;
  const Report report = net.report();
  ASSERT_THAT(report.findings, SizeIs(1));
  EXPECT_EQ(report.findings[0].where, "s's port Ethernet3 towards c, or c's NIC");
  EXPECT_EQ(report.findings[0].command, "show qos interfaces Ethernet3");
  EXPECT_THAT(report.findings[0].cause, HasSubstr("does not trust DSCP"));
  const std::string text = to_text(report, false);
  EXPECT_THAT(text, HasSubstr("look, on s: show qos interfaces Ethernet3"));
  EXPECT_THAT(text, HasSubstr("a to c IPv4 urgent: failed: DSCP 43 arrived as 0 with 1 of 1 source ports"));
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["passed"], false);
  EXPECT_EQ(json["findings"][0]["place"], (nlohmann::json{{"kind", "leg"}, {"node", "s"}, {"peer", "c"}}));
}

TEST(Report, UntestedIsNeverPassed) {
  OneSwitch net;
  add_all(net);
  const Report report = net.report();
  EXPECT_EQ(report.exit_status, 0);
  for (const LosslessVerdict& verdict : report.lossless) EXPECT_EQ(verdict.outcome, Outcome::kUntested);
  for (const ClassVerdict& verdict : report.classes) EXPECT_EQ(verdict.pcp, Outcome::kUntested);
  EXPECT_THAT(to_junit(report), HasSubstr("<skipped message=\"no NIC showed a tag\"/>"));
  EXPECT_THAT(to_text(report, false), HasSubstr("--load does"));

  net.seen.hosts[2].error = "Connection refused";
  std::erase_if(net.seen.flows, [](const FlowFact& flow) { return flow.from == 2 || flow.to == 2; });
  const Report silent = net.report();
  EXPECT_EQ(silent.exit_status, 1);
  EXPECT_EQ(silent.hosts[2].outcome, Outcome::kUntested);
  EXPECT_THAT(to_text(silent, false), HasSubstr("host c: untested: Connection refused"));
  EXPECT_THAT(silent.findings, IsEmpty());
}

TEST(Report, SaysOnceWhatIsTrueOfSeveralHosts) {
  OneSwitch net;
  net.seen.hosts[0].error = net.seen.hosts[2].error = "a job runs on this host: wait";
  net.seen.hosts[1].error = "Connection refused";
  const std::string text = to_text(net.report(), false);
  EXPECT_THAT(text, HasSubstr("hosts a, c: untested: a job runs on this host: wait\nhost b: untested: Connection "));
}

TEST(Report, SaysThatNothingCouldBeProbed) {
  const Report report = OneSwitch().report();
  EXPECT_EQ(report.exit_status, 1);
  EXPECT_THAT(to_text(report, false),
              HasSubstr("nothing was probed: no two of the hosts that answered have an address"));
}

TEST(Report, SaysWhyNothingArrived) {
  for (const auto& [outcome, why] :
       {std::pair("silent", "without an answer"), std::pair("hangs", "no answer came"),
        std::pair("rubbish", "no answer to a probe"), std::pair("refused", "nothing listens")}) {
    OneSwitch net;
    add_all(net);
    for (FlowFact& flow : net.seen.flows)
      if (flow.from == 0 && flow.to == 1) flow.outcome = outcome, flow.dscp.reset(), flow.hop_count.reset();
    const Report report = net.report();
    EXPECT_EQ(report.exit_status, 1);
    EXPECT_THAT(report.findings, IsEmpty());
    EXPECT_THAT(to_text(report, false), HasSubstr(why));
  }
}

// What was not sent tells nothing of the network: it is neither lost nor passed, though the rest arrives.
TEST(Report, WhatWasNotSentIsUntested) {
  for (const std::size_t missing : {2, 5}) {
    OneSwitch net;
    add_all(net);
    for (int port = 1; port < 5; ++port) net.add(0, 1, 0, 43);
    for (FlowFact& flow : net.seen.flows)
      if (flow.from == 0 && flow.to == 1 && flow.cls == 0 && missing > net.not_sent()) {
        flow.outcome = "not_sent";
        flow.dscp.reset(), flow.own_dscp.reset(), flow.hop_count.reset();
      }
    const Report report = net.report();
    EXPECT_EQ(report.exit_status, 1);
    EXPECT_THAT(report.findings, IsEmpty());
    EXPECT_THAT(to_text(report, false), HasSubstr("11 passed, 0 failed, 1 untested"));
    EXPECT_EQ(report.classes[0].dscp, Outcome::kUntested);
    EXPECT_THAT(report.classes[0].text,
                ::testing::StartsWith(std::to_string(missing) + " of 5 did not arrive: the time for all probes"));
  }
}

// Beside arrivals, too: lost is what vanished on the way, and the rest that did not arrive is untested.
TEST(Report, OneOfSeveralThatDidNotArriveCounts) {
  for (const auto& [outcome, is_lost] : {std::pair("timed_out", true),
                                         {"unreachable", true},
                                         {"silent", false},
                                         {"hangs", false},
                                         {"rubbish", false},
                                         {"refused", false},
                                         {"local", false}}) {
    OneSwitch net;
    add_all(net);
    for (int port = 1; port < 8; ++port) net.add(0, 1, 0, 43);
    FlowFact& flow = net.seen.flows[0];  // from a to b, urgent
    flow.outcome = outcome, flow.dscp.reset(), flow.hop_count.reset();
    const Report report = net.report();
    EXPECT_EQ(report.exit_status, 1);
    EXPECT_EQ(report.classes[0].dscp, is_lost ? Outcome::kFailed : Outcome::kUntested) << outcome;
    EXPECT_THAT(report.classes[0].text, ::testing::StartsWith("1 of 8 did not arrive: ")) << outcome;
    EXPECT_THAT(report.findings, SizeIs(is_lost ? 1 : 0)) << outcome;
  }
}

TEST(Report, ComparesFramesWhereANicShowsThem) {
  OneSwitch net;
  add_all(net);
  for (FlowFact& flow : net.seen.flows) flow.pcp = flow.to == 1 && flow.cls == 0 ? 0 : net.seen.classes[flow.cls].pcp;
  const Report report = net.report();
  EXPECT_EQ(report.exit_status, 1);
  for (const ClassVerdict& verdict : report.classes)
    EXPECT_EQ(verdict.pcp, verdict.to == "b" && verdict.cls == "urgent" ? Outcome::kFailed : Outcome::kPassed);
}

TEST(Report, FindsADeviceWideTrafficClass) {
  OneSwitch net;
  add_all(net);
  net.seen.hosts[0].overrides = {{"/sys/class/infiniband/mlx5_0/tc/1/traffic_class", 26}};
  for (FlowFact& flow : net.seen.flows)
    if (flow.from == 0) flow.dscp = 26;
  const Report report = net.report();
  ASSERT_THAT(report.findings, SizeIs(1));
  EXPECT_EQ(report.findings[0].place.kind, Place::Kind::kSender);
  EXPECT_THAT(report.findings[0].cause, HasSubstr("device-wide traffic class"));
  EXPECT_THAT(report.hosts[0].text, HasSubstr("mlx5_0"));
}

// A process without privileges may give its sockets no priority above 6.
TEST(Report, SocketsOfThePriorityThatTheKernelAllowsAreRight) {
  for (const auto& [pcp, priority, good] : {std::tuple(5, 5, true), {5, 4, false}, {7, 6, true}, {7, 5, false}}) {
    OneSwitch net;
    net.seen.classes[0].pcp = pcp;
    add_all(net);
    for (FlowFact& flow : net.seen.flows)
      if (flow.from == 0 && flow.cls == 0) flow.own_priority = priority;
    const Report report = net.report();
    EXPECT_EQ(report.hosts[0].outcome, good ? Outcome::kPassed : Outcome::kFailed) << pcp << ", " << priority;
    EXPECT_EQ(report.hosts[1].outcome, Outcome::kPassed);
  }
}

TEST(Report, ComparesTheFileWithWhatDaemonsHaveInForce) {
  OneSwitch net;
  add_all(net);
  const std::vector<ProbedClass> file = net.seen.classes;
  net.seen.asked_daemons = true;
  for (HostFacts& host : net.seen.hosts) host.in_force = file;
  EXPECT_EQ(net.report().exit_status, 0);

  net.seen.hosts[1].in_force.reset();
  EXPECT_EQ(net.report().exit_status, 1);
  EXPECT_EQ(net.report().hosts[1].outcome, Outcome::kUntested);
  EXPECT_THAT(net.report().hosts[1].text, HasSubstr("does not say which classes are in force"));

  const auto judged = [&](const std::vector<ProbedClass>& classes) {
    net.seen.hosts[1].in_force = classes;
    const Report report = net.report();
    EXPECT_EQ(report.exit_status, 1);
    EXPECT_EQ(report.hosts[0].outcome, Outcome::kPassed);
    EXPECT_EQ(report.hosts[1].outcome, Outcome::kFailed);
    return report.hosts[1].text;
  };
  std::vector<ProbedClass> other = file;
  other[0].dscp = 10, other[1].pcp = 7;
  EXPECT_THAT(judged(other), HasSubstr("its daemon gives class urgent DSCP 10, the file 43"));
  EXPECT_THAT(judged(other), HasSubstr("its daemon gives class bulk PCP 7, the file"));
  EXPECT_THAT(judged(other), HasSubstr("restart the daemon"));
  other = file, other[0].lossless = !other[0].lossless;
  EXPECT_THAT(judged(other), HasSubstr("its daemon takes class urgent to be"));
  other = file, other[0].port_offset = 5;
  EXPECT_THAT(judged(other), HasSubstr("its daemon serves class urgent as number 5"));
  EXPECT_THAT(judged({file[0]}), HasSubstr("its daemon knows no class bulk"));
  other = file, other.push_back({"scavenger", 8, 0});
  EXPECT_THAT(judged(other), HasSubstr("its daemon has a class scavenger (DSCP 8) that the file does not have"));
  net.seen.all_classes = false;
  EXPECT_EQ(net.report().exit_status, 0);
}

TEST(Overtaking, IsJudgedByItsIntervalAndOnlyWithAQueue) {
  OneSwitch net;
  add_all(net);
  net.add_load(0.97, 0.3, 10);   // strict
  net.add_load(0.40, 10, 10);    // first in, first out
  net.add_load(0.75, 4.5, 10);   // too uncertain
  net.add_load(0.99, 0.1, 0.1);  // no queue
  net.add_load(0, 0, 0).error = "a burst from a did not come about: refused";
  net.add_load(0.50, 0.3, 10);  // weighted queues: messages pass, and the rate is shared
  const Report report = net.report();
  const Outcome wanted[] = {Outcome::kPassed,   Outcome::kFailed,   Outcome::kUntested,
                            Outcome::kUntested, Outcome::kUntested, Outcome::kFailed};
  ASSERT_THAT(report.overtaking, SizeIs(6));
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(report.overtaking[i].outcome, wanted[i]) << report.overtaking[i].text;
  EXPECT_THAT(report.overtaking[3].text, HasSubstr("no queue formed"));
  ASSERT_THAT(report.findings, SizeIs(1));
  EXPECT_EQ(report.findings[0].where, "s's port Ethernet3 towards c");
  EXPECT_THAT(report.findings[0].classes, ::testing::ElementsAre("urgent")) << "the class that is held up";
  EXPECT_EQ(report.exit_status, 1);
}

// Probes take the ports of TCP: what they find there says nothing of data that goes over DPDK.
TEST(Report, OfDataOverDpdkNothingIsTested) {
  const auto with = [](const std::set<std::string>& a, const std::set<std::string>& others, int arrives = 43) {
    OneSwitch net;
    add_all(net);
    net.seen.flows[0].dscp = arrives;  // from a to b, urgent
    net.add_load(0.97, 0.3, 10);       // from a and b to c
    net.seen.hosts[0].transports = {a};
    net.seen.hosts[1].transports = net.seen.hosts[2].transports = {others};
    return net.report();
  };
  const Report only = with({"dpdk"}, {"dpdk"});
  EXPECT_EQ(only.exit_status, 1);
  for (const ClassVerdict& verdict : only.classes) {
    EXPECT_EQ(verdict.dscp, Outcome::kUntested);
    EXPECT_THAT(verdict.text, HasSubstr("its data goes over DPDK"));
    EXPECT_THAT(verdict.text, HasSubstr("set `transport: tcp`"));
  }
  EXPECT_EQ(only.overtaking[0].outcome, Outcome::kUntested);
  EXPECT_THAT(only.overtaking[0].text, HasSubstr("urgent over bulk: its data goes over DPDK"));
  EXPECT_THAT(to_text(only, false), HasSubstr("0 passed, 0 failed, 12 untested"));
  EXPECT_EQ(with({"dpdk"}, {"dpdk"}, 0).classes[0].dscp, Outcome::kFailed) << "what is wrong is wrong";

  // What only one of two has, their data does not take.
  EXPECT_EQ(with({"dpdk", "tcp"}, {"tcp"}).exit_status, 0);
  EXPECT_THAT(with({"dpdk", "tcp"}, {"tcp"}).notes, ::testing::Not(::testing::Contains(HasSubstr("DPDK"))));
  const Report both = with({"dpdk", "tcp"}, {"dpdk", "tcp"});
  EXPECT_EQ(both.exit_status, 0);
  EXPECT_THAT(both.notes, ::testing::Contains(::testing::AllOf(HasSubstr("data between a and b and 2 other pairs"),
                                                               HasSubstr("only the ports of TCP were tested"))));
}

// By their names, as marks do: a number of a class depends on which classes were asked for.
TEST(Overtaking, NamesItsClassesForPrograms) {
  OneSwitch net;
  add_all(net);
  net.add_load(0.97, 0.3, 10);
  const auto said = nlohmann::json::parse(to_json(net.report()))["overtaking"];
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0]["high_class"], "urgent");
  EXPECT_EQ(said[0]["low_class"], "bulk");
}

TEST(Overtaking, ThatWasAskedForAndNotSeenIsNoSuccess) {
  OneSwitch good, no_queue, nothing;
  for (OneSwitch* net : {&good, &no_queue, &nothing}) add_all(*net);
  good.add_load(0.97, 0.3, 10);
  EXPECT_EQ(good.report().exit_status, 0);
  no_queue.add_load(0.97, 0.3, 10);
  no_queue.add_load(0.99, 0.1, 0.1);
  EXPECT_EQ(no_queue.report().exit_status, 1);
  EXPECT_EQ(nothing.report().exit_status, 0);
  nothing.seen.asked_for_load = true;
  EXPECT_EQ(nothing.report().exit_status, 1);
  EXPECT_THAT(nothing.report().notes, ::testing::Contains(HasSubstr("--load needs three hosts")));
}

// An interval that reaches into what is not short enough says nothing, wherever its middle is.
TEST(Overtaking, IsSeenWhereTheWholeIntervalIsShort) {
  OneSwitch net;
  add_all(net);
  net.add_load(0.97, 3.6, 10);  // 2.9 to 4.3 ms, and half the wait is 4.05 to 6.05 ms
  net.add_load(0.97, 3.3, 10);
  const Report report = net.report();
  EXPECT_EQ(report.overtaking[0].outcome, Outcome::kUntested) << report.overtaking[0].text;
  EXPECT_EQ(report.overtaking[1].outcome, Outcome::kPassed) << report.overtaking[1].text;
}

TEST(Lossless, PacketsThatWereSentAgainCountInTheirOwnClass) {
  OneSwitch net;
  add_all(net);
  for (int i = 0; i < 2; ++i) {
    LoadFact& load = net.add_load(0.97, 0.3, 10);
    load.high_retransmitted = 3, load.low_retransmitted = 7;
  }
  const Report report = net.report();
  ASSERT_THAT(report.lossless, SizeIs(2));
  EXPECT_THAT(report.lossless[0].text, ::testing::StartsWith("6 packets were sent again"));
  EXPECT_THAT(report.lossless[1].text, ::testing::StartsWith("14 packets were sent again"));
}

}  // namespace
}  // namespace tensorlane::verify
