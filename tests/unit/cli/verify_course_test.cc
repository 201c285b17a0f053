// The course of `tensorlane verify` beside hosts that are made up: what each is asked, and what is made of its answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "monitor/cli/verify_load.h"
#include "monitor/cli/verify_meetings.h"
#include "monitor/cli/verify_run.h"
#include "monitor/verify/render.h"
#include "monitor/verify/verdict.h"

namespace tensorlane::cli {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Host i has the addresses 10.0.0.i and fd00::i on one interface, and 10.0.1.i on another one, where flows have source
// ports from 41000 on and else from 40000 on. The last one is alone at the right leaf, the others
// are at the left one, and between the leaves are two spines. Flows arrive as they were sent unless a test says
// something else.
class MadeUpHosts final : public ProbeHands {
 public:
  explicit MadeUpHosts(std::size_t hosts) : asked(hosts), hosts_(hosts) {}

  std::size_t size() const override { return hosts_; }
  std::vector<Result<ProbeLines>> ask(const std::vector<ProbeLines>& commands, Duration) override {
    std::vector<Result<ProbeLines>> answers;
    for (std::size_t host = 0; host < hosts_; ++host) {
      ProbeLines lines;
      if (!refuses.ok() && (!only_refuses || *only_refuses == host)) {
        answers.emplace_back(refuses);
        continue;
      }
      const auto is_its_end = [this](const json& command) { return command["do"] == ends_before; };
      if (host + 1 == hosts_ && (gone_ |= std::ranges::any_of(commands[host], is_its_end))) {
        answers.emplace_back(Status(Code::kUnavailable, "the program has ended"));
        continue;
      }
      for (const json& command : commands[host]) {
        asked[host].push_back(command);
        answer(host, command, lines);
        lines.push_back({{"kind", "done"}, {"do", command["do"]}});
      }
      answers.emplace_back(std::move(lines));
    }
    return answers;
  }

  // What hosts were asked, in the order of time.
  std::vector<ProbeLines> asked;
  // Flows of the commands of one kind to a host, of the last time.
  json flows(std::size_t host, const char* kind) const {
    json last = json::array();
    for (const json& command : asked[host])
      if (command["do"] == kind) last = command[command["do"] == "load" ? "bursts" : "flows"];
    return last;
  }

  // The DSCP with which a flow of a host arrives; `again`: it was sent before.
  std::function<int(std::size_t, const json&, bool again)> arrives = [](std::size_t, const json& flow, bool) {
    return flow["dscp"].get<int>();
  };
  std::function<json(const json& burst)> loads;
  std::string ends_before;  // a kind of command, at which the last host's program ends
  Status refuses;           // what all hosts answer, where it is an error
  std::optional<std::size_t> only_refuses;
  json says_of_itself;     // each host's daemon, before its probe
  std::vector<json> lies;  // that the last host adds to its arrivals

  // Of its rail.
  static std::size_t first_port(const json& flow) {
    return flow["address"].get<std::string>().starts_with("10.0.1.") ? 41000 : 40000;
  }

 private:
  void answer(std::size_t host, const json& command, ProbeLines& lines) {
    const std::string kind = command["do"];
    if (kind == "describe") {
      if (!says_of_itself.is_null()) lines.push_back(says_of_itself);
      const std::string number = std::to_string(host + 1);
      json addresses = json::array({{{"interface", "eth0"}, {"address", "10.0.0." + number}, {"family", 4}},
                                    {{"interface", "eth0"}, {"address", "fd00::" + number}, {"family", 6}}});
      lines.push_back({{"kind", "host"}, {"version", 1}, {"addresses", std::move(addresses)}});
    } else if (kind == "probe") {
      for (const json& flow : command["flows"])
        for (std::size_t i = 0; i < flow.value("count", std::size_t{1}); ++i) lines.push_back(arrival(host, flow, i));
      if (host + 1 == hosts_) lines.insert(lines.end(), lies.begin(), lies.end());
    } else if (kind == "sweep") {
      for (const json& flow : command["flows"])
        for (int distance = 1; distance <= flow["hops"].get<int>(); ++distance)
          lines.push_back({{"kind", "hop"},
                           {"id", flow["id"]},
                           {"distance", distance},
                           {"address", way(host, flow).at(static_cast<std::size_t>(distance) - 1)},
                           {"dscp", flow["dscp"]}});
    } else if (kind == "load") {
      for (const json& burst : command["bursts"]) lines.push_back(loads(burst));
    }
  }

  json arrival(std::size_t host, const json& flow, std::size_t i) const {
    const bool again = flow.contains("source_port");
    return {{"kind", "arrival"},
            {"id", flow["id"].get<std::size_t>() + i},
            {"outcome", "arrived"},
            {"source_port", again ? flow["source_port"].get<std::size_t>() : first_port(flow) + i},
            {"own_dscp", flow["dscp"]},
            {"dscp", arrives(host, flow, again)},
            {"hop_limit", 64 - way(host, flow).size()}};
  }

  // The switches on it. Flows with an even source port go by the first spine over IPv4, and by the second over IPv6.
  std::vector<std::string> way(std::size_t from, const json& flow) const {
    const std::string to = flow["address"];
    const auto leaf = [&](std::size_t host) { return host + 1 == hosts_ ? "10.1.0.4" : "10.1.0.1"; };
    const std::string first = leaf(from), last = leaf(static_cast<std::size_t>(to.back() - '1'));
    if (first == last) return {first};
    const bool even = flow.value("source_port", 0) % 2 == 0, ipv6 = to.find(':') != std::string::npos;
    return {first, even != ipv6 ? "10.1.0.2" : "10.1.0.3", last};
  }

  const std::size_t hosts_;
  bool gone_ = false;
};

VerifyOptions options_of(std::size_t hosts) {
  VerifyOptions options;
  for (std::size_t i = 0; i < hosts; ++i)
    options.hosts.push_back({std::string(1, static_cast<char>('a' + i)), {"10.0.0." + std::to_string(i + 1)}});
  options.classes = {{"urgent", 43, 5, false, 1}, {"bulk", 27, 3, false, 2}};
  options.ipv6 = false;
  options.source_ports = 4;
  return options;
}

verify::Observations seen_by(const VerifyOptions& options, MadeUpHosts& hosts, const verify::Topology& topology = {}) {
  auto seen = run_verify(options, hosts, topology);
  EXPECT_TRUE(seen.ok()) << seen.status().to_string();
  return seen.ok() ? *std::move(seen) : verify::Observations{};
}

bool is_ipv6(const json& flow) {
  return flow["address"].get<std::string>().find(':') != std::string::npos;
}

TEST(Course, WhatHopsSaidCountsWhereAFlowArrivesEachTimeAlike) {
  for (const bool changes : {false, true}) {
    MadeUpHosts hosts(2);
    hosts.arrives = [&](std::size_t host, const json& flow, bool again) {
      return host == 0 && flow["dscp"] == 43 && !(again && changes) ? 0 : flow["dscp"].get<int>();
    };
    const verify::Observations seen = seen_by(options_of(2), hosts);
    const auto with_hops = [&](std::size_t from) {
      return std::ranges::count_if(
          seen.flows, [&](const verify::FlowFact& flow) { return flow.from == from && flow.hops.size() == 3; });
    };
    EXPECT_GT(with_hops(1), 0) << "from b to a nothing changes";
    const std::string text = verify::to_text(verify::analyse(seen, {}), true);
    if (changes) {
      EXPECT_THAT(seen.changing_ways, ElementsAre(std::pair(0, 1)));
      EXPECT_EQ(with_hops(0), 0);
      EXPECT_THAT(text, HasSubstr("a to b IPv4: no way was seen: the same flow takes different ones"));
      EXPECT_THAT(text, HasSubstr("note: the same flow takes different ways (adaptive routing) from a to b: "));
    } else {
      EXPECT_THAT(seen.changing_ways, IsEmpty());
      EXPECT_GT(with_hops(0), 0);
      EXPECT_THAT(text, ::testing::Not(HasSubstr("different")));
    }
  }
}

// More than can be kept is refused, with what narrows it, before anything is sent.
TEST(Course, TooManyConnectionsAreRefused) {
  VerifyOptions options = options_of(4);  // 6 pairs, 2 directions, 2 classes, 4 source ports
  options.max_flows = 96;
  MadeUpHosts fit(4), many(4);
  EXPECT_THAT(seen_by(options, fit).flows, SizeIs(96));
  options.max_flows = 95;
  const auto seen = run_verify(options, many, {});
  ASSERT_FALSE(seen.ok());
  EXPECT_EQ(seen.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(seen.status().to_string(), HasSubstr("96 connections between 6 pairs of hosts, and 95 are at most"));
  EXPECT_THAT(seen.status().to_string(), HasSubstr("--pairs sample 5 "));
  for (const ProbeLines& asked : many.asked) EXPECT_THAT(asked, SizeIs(1)) << "only what it is";
  options.pairs = Pairs::kSample;
  options.sample = 5;
  EXPECT_THAT(seen_by(options, many).flows, SizeIs(80));
}

TEST(Course, SomeFailuresOfEachClassAreSwept) {
  MadeUpHosts hosts(2);
  hosts.arrives = [](std::size_t, const json&, bool) { return 0; };
  seen_by(options_of(2), hosts);
  for (const std::size_t host : {0, 1}) {
    const json swept = hosts.flows(host, "sweep");
    for (const int dscp : {43, 27})
      EXPECT_EQ(std::ranges::count_if(swept, [&](const json& flow) { return flow["dscp"] == dscp; }), 3) << swept;
  }
}

TEST(Course, AHostSaysNothingOfFlowsOfOthers) {
  MadeUpHosts hosts(2);
  hosts.lies = {{{"kind", "arrival"}, {"id", 0}, {"outcome", "refused"}},
                {{"kind", "arrival"}, {"id", 1 << 30}, {"outcome", "refused"}}};
  for (const verify::FlowFact& flow : seen_by(options_of(2), hosts).flows) EXPECT_TRUE(flow.arrived()) << flow.from;
}

// Of a host that ends in the middle nobody knows what it has sent.
TEST(Course, WhatNoHostHasSpokenOfWasNotSent) {
  MadeUpHosts hosts(2);
  hosts.ends_before = "probe";
  const verify::Observations seen = seen_by(options_of(2), hosts);
  EXPECT_THAT(seen.flows, SizeIs(2 * 2 * 4));
  for (const verify::FlowFact& flow : seen.flows) EXPECT_EQ(flow.outcome, flow.from == 1 ? "not_sent" : "arrived");
  EXPECT_NE(seen.hosts[1].error, "");
}

TEST(Course, WhyAllHostsRefuseIsSaidOnce) {
  MadeUpHosts hosts(3);
  hosts.refuses = Status(Code::kUnavailable, "a job runs on this host", "tensorlane verify", "wait");
  const auto seen = run_verify(options_of(3), hosts, {});
  ASSERT_FALSE(seen.ok());
  EXPECT_EQ(seen.status().where(), "a, b, c: " + hosts.refuses.to_string());
}

// What a daemon says of its rails is kept, and what is no list of names is nothing.
TEST(Course, DaemonsSayWhatTheirFlowsGoOver) {
  MadeUpHosts hosts(2);
  hosts.says_of_itself = {{"kind", "daemon"}, {"transports", {{"dpdk"}, {"dpdk", "tcp", 3}, 7, "tcp"}}};
  const verify::Observations seen = seen_by(options_of(2), hosts);
  for (const verify::HostFacts& host : seen.hosts)
    EXPECT_THAT(host.transports,
                ElementsAre(ElementsAre("dpdk"), ElementsAre("dpdk", "tcp"), IsEmpty(), ElementsAre("tcp")));
}

TEST(Course, ARailHasAnAddressOfEachFamilyWhicheverTheFileNames) {
  for (const bool names_ipv6 : {false, true}) {
    MadeUpHosts hosts(2);
    VerifyOptions options = options_of(2);
    options.ipv6 = true;
    for (std::size_t i = 0; i < 2 && names_ipv6; ++i) options.hosts[i].addresses = {"fd00::" + std::to_string(i + 1)};
    const verify::Observations seen = seen_by(options, hosts);
    EXPECT_THAT(seen.flows, SizeIs(2 * 2 * 2 * 4));
    std::set<std::string> to;
    for (const json& flow : hosts.flows(0, "probe")) to.insert(flow["address"]);
    EXPECT_THAT(to, ElementsAre("10.0.0.2", "fd00::2"));
    for (const json& flow : hosts.flows(0, "probe"))
      EXPECT_EQ(seen.flows[flow["id"].get<std::size_t>()].ipv6, is_ipv6(flow)) << flow;
  }
}

verify::Topology topology_of(const std::string& switches, const std::string& links, int rails = 1) {
  std::string hosts;
  for (int i = 1; i <= 3; ++i) {
    std::string addresses = "10.0.0." + std::to_string(i);
    if (rails == 2) addresses += ", 10.0.1." + std::to_string(i);
    hosts += std::string("  - {name: ") + "?abc"[i] + ", addresses: {tcp: [" + addresses + "]}}\n";
  }
  return verify::Topology(fabric::parse("hosts:\n" + hosts + "switches: [" + switches + "]\nlinks: [" + links + "]\n",
                                        "fabric.yaml", fabric::Keys::kOptional)
                              .value());
}

// Streams of 400 ms at 1 Gbit/s, and messages that take long where they wait behind others in the lower class.
json burst_seen(const json& burst) {
  const bool high = burst["dscp"] == 43;
  json line{{"kind", "burst"}, {"id", burst["id"]}, {"outcome", "arrived"}, {"slot_ms", 5}};
  line["retransmitted"] = high ? 3 : 7;
  if (burst["purpose"] == "echo")
    line["delays_us"] = std::vector<int>(100, !high ? 20000 : burst["start_ms"] == 0 ? 100 : 300);
  else
    line["streams"] = json::array({{{"start_ms", 1000U}, {"bytes", std::vector<std::uint64_t>(80, 625000)}}});
  return line;
}

TEST(Load, FiguresAreThoseOfTheirOwnClass) {
  MadeUpHosts hosts(3);
  hosts.loads = burst_seen;
  VerifyOptions options = options_of(3);
  options.load = true;
  const auto seen = seen_by(options, hosts);
  ASSERT_THAT(seen.loads, SizeIs(3));  // one for each receiver, because no switch is known
  for (const verify::LoadFact& load : seen.loads) {
    EXPECT_EQ(load.error, "");
    EXPECT_EQ(load.high_retransmitted, 3U);
    EXPECT_EQ(load.low_retransmitted, 7U);
    EXPECT_EQ(load.delay_alone_us.value, 100);
    EXPECT_EQ(load.delay_beside_us.value, 300);
    EXPECT_EQ(load.delay_low_us.value, 20000);
    EXPECT_NEAR(load.high_alone, 1e9, 1);
    EXPECT_NEAR(load.low_alone, 1e9, 1);
    EXPECT_NEAR(load.low_beside, 1e9, 1);
    EXPECT_NEAR(load.share.value, 1, 1e-9);
  }
}

// A program lives for 15 minutes after each time that it says what it is, and a session ends that is asked nothing: all
// are asked beside each measurement, whether they send or not.
TEST(Load, NobodysProgramEndsMeanwhile) {
  MadeUpHosts hosts(4);
  hosts.loads = burst_seen;
  VerifyOptions options = options_of(4);
  options.load = true;
  seen_by(options, hosts);
  for (const ProbeLines& asked : hosts.asked) {
    EXPECT_EQ(std::ranges::count(asked, json("describe"), [](const json& command) { return command["do"]; }), 1 + 4);
    std::size_t loads = 0;
    for (const json& command : asked) {
      loads = command["do"] == "load" ? loads + 1 : command["do"] == "describe" ? 0 : loads;
      EXPECT_LE(loads, 2U) << "of one measurement";
    }
  }
}

TEST(Load, EachPortThatIsLeftOutIsUntested) {
  MadeUpHosts hosts(4);
  hosts.loads = burst_seen;
  VerifyOptions options = options_of(4);
  options.load = true;
  options.max_loaded_ports = 1;
  const auto seen = seen_by(options, hosts);
  ASSERT_THAT(seen.loads, SizeIs(4));
  EXPECT_FALSE(seen.loads[0].left_out);
  const verify::Report report = verify::analyse(seen, {});
  EXPECT_EQ(report.exit_status, 1);
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(report.overtaking[i].fact.to, i);
    EXPECT_EQ(report.overtaking[i].outcome, verify::Outcome::kUntested);
    EXPECT_EQ(report.overtaking[i].text, std::string("towards ") + "abcd"[i] +
                                             ": not loaded: 1 ports are at most; name fewer hosts (--hosts, --agent)");
  }
  EXPECT_THAT(verify::to_text(report, false), HasSubstr("not loaded: 1 ports are at most"));
}

// A job that begins on a host keeps bursts of others away from it, too.
TEST(Load, NoBurstGoesToWhoHasStoppedToAnswer) {
  MadeUpHosts hosts(3);
  int bursts = 0;  // to the first host
  hosts.loads = [&](const json& burst) {
    hosts.only_refuses = 0;
    hosts.refuses = Status(Code::kUnavailable, "a job runs on this host");
    bursts += burst["address"] == "10.0.0.1" ? 1 : 0;
    return burst_seen(burst);
  };
  VerifyOptions options = options_of(3);
  options.classes.push_back({"rest", 10, 1, false, 3});
  options.load = true;
  const auto seen = seen_by(options, hosts);
  ASSERT_THAT(seen.loads, SizeIs(3 * 3));
  for (const verify::LoadFact& load : seen.loads) EXPECT_EQ(load.error, "a: a job runs on this host");
  EXPECT_EQ(bursts, 3 + 4) << "of the one measurement in which it has stopped";
}

// Only what has come about and has not passed is measured again, and not more than twice.
TEST(Load, WhatHasNotPassedIsMeasuredAgain) {
  for (const int bad : {0, 1, 2, 10}) {
    MadeUpHosts hosts(3);
    int measured = 0;  // of one receiver
    hosts.loads = [&](const json& burst) {
      json line = burst_seen(burst);
      if (burst["purpose"] != "echo" || burst["dscp"] != 43 || burst["address"] != "10.0.0.1") return line;
      measured += burst["start_ms"] == 0 ? 1 : 0;
      if (measured <= bad && burst["start_ms"] != 0) line["delays_us"] = std::vector<int>(100, 20000);
      return line;
    };
    VerifyOptions options = options_of(3);
    options.load = true;
    const auto seen = seen_by(options, hosts);
    ASSERT_THAT(seen.loads, SizeIs(3));
    EXPECT_EQ(seen.loads[0].to, 0U);
    EXPECT_EQ(measured, std::min(bad + 1, 3));
    EXPECT_EQ(seen.loads[0].delay_beside_us.value, bad < 3 ? 300 : 20000) << bad;
  }
}

TEST(Load, WhoseBurstDidNotComeAboutIsNamed) {
  for (const int dscp : {43, 27}) {
    MadeUpHosts hosts(3);
    int measured = 0;
    hosts.loads = [&](const json& burst) {
      json line = burst_seen(burst);
      if (burst["purpose"] != "sink" || burst["dscp"] != dscp) return line;
      ++measured;
      line["outcome"] = "refused";
      return line;
    };
    VerifyOptions options = options_of(3);
    options.load = true;
    for (const verify::LoadFact& load : seen_by(options, hosts).loads) {
      const std::string& name = options.hosts[dscp == 43 ? load.high_from : load.low_from].name;
      EXPECT_EQ(load.error, "a burst from " + name + " did not come about: refused");
    }
    EXPECT_EQ(measured, 3) << "once for each receiver";
  }
}

// The first 50 ms and what comes after 250 ms are not what a stream gets beside another one.
TEST(Load, OnlyTheMiddleOfAStreamCounts) {
  MadeUpHosts hosts(3);
  hosts.loads = [](const json& burst) {
    json line = burst_seen(burst);
    if (burst["purpose"] == "echo") return line;
    std::vector<std::uint64_t> bytes(80, 1'250'000);
    std::fill_n(bytes.begin(), 10, 0);
    std::fill_n(bytes.begin() + 10, 40, 625'000);
    line["streams"][0]["bytes"] = bytes;
    return line;
  };
  VerifyOptions options = options_of(3);
  options.load = true;
  const auto seen = seen_by(options, hosts);
  ASSERT_THAT(seen.loads, SizeIs(3));
  EXPECT_NEAR(seen.loads[0].high_alone, 1e9, 1);
  EXPECT_NEAR(seen.loads[0].share.low, 1, 1e-9);
  EXPECT_NEAR(seen.loads[0].share.high, 1, 1e-9);
}

TEST(Load, BurstsLeaveFromPortsOfTheirFamilyWhoseWayMeetsTheOther) {
  const auto topology = topology_of(
      "{name: leaf0, addresses: [10.1.0.1]}, {name: spine0, addresses: [10.1.0.2]}, "
      "{name: spine1, addresses: [10.1.0.3]}, {name: leaf1, addresses: [10.1.0.4]}",
      "{from: a, to: leaf0, speed: 100G}, {from: b, to: leaf0, speed: 100G}, {from: c, to: leaf1, speed: 100G}, "
      "{from: leaf0, to: spine0, speed: 100G}, {from: leaf0, to: spine1, speed: 100G}, "
      "{from: spine0, to: leaf1, speed: 100G}, {from: spine1, to: leaf1, speed: 100G}");
  MadeUpHosts hosts(3);
  VerifyOptions options = options_of(3);
  options.load = options.ipv6 = true;
  std::vector<json> bulk;  // the bursts beside which others are measured, one for each measurement
  hosts.loads = [&](const json& burst) {
    if (burst["purpose"] == "sink" && burst["start_ms"] == 0) bulk.push_back(burst);
    return burst_seen(burst);
  };
  const auto seen = seen_by(options, hosts, topology);
  ASSERT_THAT(bulk, SizeIs(seen.loads.size()));
  std::size_t met = 0;
  for (std::size_t i = 0; i < bulk.size(); ++i) {
    const verify::LoadFact& load = seen.loads[i];
    EXPECT_EQ(load.error, "");
    EXPECT_EQ(load.ipv6, is_ipv6(bulk[i]));
    if (load.node != "leaf0" || !load.peer.starts_with("spine")) continue;
    ++met;
    EXPECT_FALSE(bulk[i]["source_ports"].empty());
    for (const json& port : bulk[i]["source_ports"])
      EXPECT_EQ(port.get<int>() % 2 == 0, (load.peer == "spine0") != load.ipv6) << load.peer << ": " << bulk[i];
  }
  EXPECT_EQ(met, 4U);  // each spine, over each family
}

TEST(Load, BurstsLeaveFromPortsOfTheirRail) {
  std::string links =
      "{from: leaf0, to: spine0, speed: 100G}, {from: leaf0, to: spine1, speed: 100G}, "
      "{from: spine0, to: leaf1, speed: 100G}, {from: spine1, to: leaf1, speed: 100G}";
  for (const char* link : {"a, to: leaf0", "b, to: leaf0", "c, to: leaf1"})
    for (int rail = 0; rail < 2; ++rail) links += std::string(", {from: ") + link + ", speed: 100G}";
  const auto topology = topology_of(
      "{name: leaf0, addresses: [10.1.0.1]}, {name: spine0, addresses: [10.1.0.2]}, "
      "{name: spine1, addresses: [10.1.0.3]}, {name: leaf1, addresses: [10.1.0.4]}",
      links, 2);
  MadeUpHosts hosts(3);
  VerifyOptions options = options_of(3);
  options.load = true;
  for (std::size_t i = 0; i < 3; ++i) options.hosts[i].addresses.push_back("10.0.1." + std::to_string(i + 1));
  std::set<std::size_t> rails;
  hosts.loads = [&](const json& burst) {
    const std::size_t first = MadeUpHosts::first_port(burst);
    for (const json& port : burst["source_ports"]) {
      if (port == 0) continue;  // whichever the kernel takes, where there is one way
      rails.insert(first);
      EXPECT_TRUE(port >= first && port < first + 1000) << burst;
    }
    return burst_seen(burst);
  };
  std::set<std::size_t> measured;
  for (const verify::LoadFact& load : seen_by(options, hosts, topology).loads) measured.insert(load.rail);
  EXPECT_THAT(rails, ElementsAre(40000, 41000)) << "both rails have ports that were chosen";
  EXPECT_THAT(measured, ElementsAre(0, 1));
}

TEST(Load, SendersMeetOnlyWhereBothTogetherBringMoreThanThePortCarries) {
  const VerifyOptions options = options_of(3);
  MadeUpHosts hosts(3);
  // To a and to c, the slow b brings a tenth more than the port carries, which is no queue.
  const auto topology = topology_of(
      "{name: s}", "{from: a, to: s, speed: 100G}, {from: b, to: s, speed: 10G}, {from: c, to: s, speed: 100G}");
  VerifyState state{options, hosts, topology, {}, {}, {}};
  state.endpoints.assign(3, std::vector<Endpoints>(1));
  for (const VerifyHost& host : options.hosts) state.seen.hosts.emplace_back().name = host.name;
  const std::vector<Meeting> meetings = find_meetings(state);
  ASSERT_THAT(meetings, SizeIs(1));
  EXPECT_EQ(meetings[0].to, 1U);
}

// Without a topology one for each receiver and rail, of hosts that answer, of however many.
TEST(Load, MeetingsAreOfEachRail) {
  const VerifyOptions options = options_of(4);
  MadeUpHosts hosts(4);
  const verify::Topology unknown;
  VerifyState state{options, hosts, unknown, {}, {}, {}};
  state.endpoints.assign(4, std::vector<Endpoints>(2));
  state.seen.hosts.resize(4);
  EXPECT_THAT(find_meetings(state), SizeIs(4 * 2));
  state.seen.hosts[3].error = "it does not answer";
  for (const Meeting& meeting : find_meetings(state))
    EXPECT_TRUE(meeting.high_from != 3 && meeting.low_from != 3 && meeting.to != 3);
  EXPECT_THAT(find_meetings(state), SizeIs(3 * 2));
  state.endpoints.assign(140, std::vector<Endpoints>(2));
  state.seen.hosts.resize(140);
  EXPECT_THAT(find_meetings(state), SizeIs(139 * 2));
}

}  // namespace
}  // namespace tensorlane::cli
