// What fabric.yaml says for the switch tool: patterns, switches, ports, service and routes, and their mistakes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "common/fabric/fabric.h"
#include "common/fabric/pattern.h"

namespace tensorlane::fabric {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Pattern, StandsForManyNames) {
  const auto texts = [](const char* pattern) { return expand(pattern, 100).value(); };
  EXPECT_THAT(texts("leaf"), ElementsAre("leaf"));
  EXPECT_THAT(texts("h[0-2]"), ElementsAre("h0", "h1", "h2"));
  EXPECT_THAT(texts("h[08-10]x"), ElementsAre("h08x", "h09x", "h10x"));
  EXPECT_THAT(texts("Ethernet[0-9:4]"), ElementsAre("Ethernet0", "Ethernet4", "Ethernet8"));
  EXPECT_THAT(texts("leaf[0-1*2]"), ElementsAre("leaf0", "leaf0", "leaf1", "leaf1"));
  EXPECT_THAT(texts("[0-1]/[1-2]"), ElementsAre("0/1", "0/2", "1/1", "1/2"));
  EXPECT_THAT(texts("[0-2:2*2]-[5-6]"), ElementsAre("0-5", "0-6", "0-5", "0-6", "2-5", "2-6", "2-5", "2-6"));
}

TEST(Pattern, RefusesWhatIsNone) {
  for (const char* pattern : {"h[", "h[]", "h[1]", "h[2-1]", "h[0-1:0]", "h[0-1*0]", "h[a-b]", "h[0-1,3]", "h[0-1:2:3]",
                              "h[-1-2]", "h[0-9999999]"})
    EXPECT_FALSE(expand(pattern, 100).ok()) << pattern;
  EXPECT_TRUE(expand("h[0-99]", 100).ok());
  EXPECT_FALSE(expand("h[0-100]", 100).ok());
  EXPECT_FALSE(expand("[0-999999*999999][0-999999*999999]", 100).ok());
}

constexpr const char* kClos = R"(
hosts:
  - {name: "h[0-3]", addresses: {tcp: "10.0.[0-1].[1-2]"}, rdma_devices: [mlx5_0], retry_budget: 3 s}
switches:
  - name: "leaf[0-1]"
    nos: sonic
    release: "202405"
    platform: {name: SN5600, asic: spectrum4, buffer: 160 MiB, port_headroom: 1 MiB, queues: 8, lossless: 2, evidence: "datasheet, page 3"}
    role: leaf
    ports: [{name: "Ethernet[0-24:8]", speed: 800G, lanes: 8}, {name: Ethernet512}]
  - {name: "spine[0-1]", nos: eos, role: spine, platform: Tomahawk3}
links:
  - {from: "h[0-3]", from_port: eth0, to: "leaf[0-1*2]", to_port: "Ethernet[0-8:8]", speed: 800G, cable: 3 m, mtu: 9216}
  - {from: "leaf[0-1*2]", from_port: "Ethernet[16-24:8]", to: "spine[0-1]", to_port: "Ethernet[1-2*2]/1", speed: 800G, cable: 40 m}
qos:
  classes:
    urgent: {strict: true, shaper: 30 %, ecn: {kmin: 100 KiB, kmax: 1 MiB, pmax: 5 %}}
    bulk: {weight: 60 %}
    cnp: {dscp: 40, pcp: 4, shaper: 5 %}
  headroom: {formula: older, port_mtu: 9216, lossless_mtu: 1024, small_packets: 100 %, shared_headroom: true, lookup: a/b.ini, accept_estimate: true}
  watchdog: {poll: 50 ms, detection: 300 ms, restoration: 400 ms, action: forward}
  head_of_line_lifetime: 1.5 s
  retry_budget: 2500 us
routing:
  routes: [[h0, leaf0, spine1, leaf1, h3]]
  flooding: [[leaf0, leaf1]]
)";

Fabric clos() {
  Result<Fabric> fabric = parse(kClos, "fabric.yaml", Keys::kOptional);
  EXPECT_TRUE(fabric.ok()) << fabric.status().to_string();
  return fabric.ok() ? *std::move(fabric) : Fabric();
}

TEST(Network, PatternsOfALinkStandBesideEachOther) {
  const Fabric fabric = clos();
  ASSERT_EQ(fabric.hosts.size(), 4u);
  EXPECT_EQ(fabric.hosts[2].tcp_address(), "10.0.1.1");
  std::vector<std::string> links;
  for (const Link& link : fabric.links)
    links.push_back(link.from + " " + link.from_port + " " + link.to + " " + link.to_port);
  EXPECT_THAT(links, ElementsAre("h0 eth0 leaf0 Ethernet0", "h1 eth0 leaf0 Ethernet8", "h2 eth0 leaf1 Ethernet0",
                                 "h3 eth0 leaf1 Ethernet8", "leaf0 Ethernet16 spine0 Ethernet1/1",
                                 "leaf0 Ethernet24 spine1 Ethernet1/1", "leaf1 Ethernet16 spine0 Ethernet2/1",
                                 "leaf1 Ethernet24 spine1 Ethernet2/1"));
}

TEST(Network, ReadsSwitches) {
  const Fabric fabric = clos();
  ASSERT_EQ(fabric.switches.size(), 4u);
  const Switch& leaf = *fabric.find_switch("leaf1");
  EXPECT_EQ(leaf.nos, Nos::kSonic);
  EXPECT_EQ(leaf.release, "202405");
  EXPECT_EQ(leaf.role, Role::kLeaf);
  EXPECT_EQ(leaf.platform.buffer, mib(160));
  EXPECT_EQ(leaf.platform.port_headroom, mib(1));
  EXPECT_EQ(leaf.platform.lossless, 2);
  ASSERT_EQ(leaf.ports.size(), 5u);
  EXPECT_EQ(leaf.ports[3].name, "Ethernet24");
  EXPECT_EQ(leaf.ports[3].speed, BitsPerSecond(800'000'000'000));
  EXPECT_EQ(leaf.ports[3].lanes, 8);
  EXPECT_EQ(leaf.ports[4].speed, std::nullopt);
  EXPECT_EQ(fabric.find_switch("spine0")->platform.name, "Tomahawk3");
  EXPECT_EQ(fabric.find_switch("h0"), nullptr);
}

TEST(Network, ReadsServiceAndRoutes) {
  const Fabric fabric = clos();
  const Qos& qos = fabric.qos;
  EXPECT_EQ(qos.services.at("urgent").strict, true);
  EXPECT_EQ(qos.services.at("urgent").shaper_percent, 30);
  EXPECT_EQ(qos.services.at("urgent").ecn, (EcnThresholds{kib(100), mib(1), 5}));
  EXPECT_EQ(qos.services.at("bulk").weight_percent, 60);
  EXPECT_EQ(qos.cnp_dscp, 40);
  EXPECT_EQ(qos.cnp_pcp, 4);
  EXPECT_EQ(qos.headroom.formula, HeadroomOptions::Formula::kOlder);
  EXPECT_EQ(qos.headroom.small_packets_percent, 100);
  EXPECT_TRUE(qos.headroom.accept_estimate);
  EXPECT_EQ(qos.watchdog.detection, milliseconds(300));
  EXPECT_EQ(qos.head_of_line_lifetime, milliseconds(1500));
  EXPECT_EQ(fabric.hosts[0].retry_budget, seconds(3));
  ASSERT_EQ(fabric.routing.routes.size(), 1u);
  EXPECT_EQ(fabric.routing.routes[0].hops.size(), 5u);
  EXPECT_TRUE(fabric.routing.up_down);
}

TEST(Network, WritesWhatItReads) {
  const Fabric fabric = clos();
  const std::string written = to_yaml(fabric);
  const Result<Fabric> again = parse(written, "fabric.yaml", Keys::kOptional);
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(to_yaml(*again), written);
  const Switch &a = *fabric.find_switch("leaf0"), &b = *again->find_switch("leaf0");
  EXPECT_EQ(std::tie(a.nos, a.release, a.role, a.platform.name, a.platform.asic, a.platform.buffer, a.platform.queues),
            std::tie(b.nos, b.release, b.role, b.platform.name, b.platform.asic, b.platform.buffer, b.platform.queues));
  EXPECT_EQ(a.platform.port_headroom, b.platform.port_headroom);
  EXPECT_EQ(std::tie(a.platform.lossless, a.platform.evidence, a.ports[3].lanes, a.ports[3].speed, a.ports[4].name),
            std::tie(b.platform.lossless, b.platform.evidence, b.ports[3].lanes, b.ports[3].speed, b.ports[4].name));
  ASSERT_EQ(again->links.size(), fabric.links.size());
  EXPECT_EQ(again->links[5].to_port, fabric.links[5].to_port);
  EXPECT_EQ(again->hosts[3].rdma_devices, fabric.hosts[3].rdma_devices);
  EXPECT_EQ(again->hosts[3].retry_budget, fabric.hosts[3].retry_budget);
  const Qos &p = fabric.qos, &q = again->qos;
  EXPECT_EQ(std::tie(p.cnp_dscp, p.cnp_pcp, p.headroom.formula, p.headroom.port_mtu, p.headroom.lossless_mtu),
            std::tie(q.cnp_dscp, q.cnp_pcp, q.headroom.formula, q.headroom.port_mtu, q.headroom.lossless_mtu));
  EXPECT_EQ(std::tie(p.headroom.shared_headroom, p.headroom.lookup, p.headroom.accept_estimate, p.watchdog.poll,
                     p.watchdog.action, p.retry_budget),
            std::tie(q.headroom.shared_headroom, q.headroom.lookup, q.headroom.accept_estimate, q.watchdog.poll,
                     q.watchdog.action, q.retry_budget));
  EXPECT_EQ(p.services.at("urgent").ecn, q.services.at("urgent").ecn);
  EXPECT_EQ(p.services.at("cnp").shaper_percent, q.services.at("cnp").shaper_percent);
  EXPECT_EQ(fabric.routing.routes[0].hops, again->routing.routes[0].hops);
  EXPECT_EQ(fabric.routing.flooding[0].hops, again->routing.flooding[0].hops);
}

TEST(Network, TenThousandPortsAreAPage) {
  const std::string page = R"(
hosts: [{name: "h[0-4999]", addresses: {tcp: "10.[0-24].[0-199].1"}}]
switches:
  - {name: "leaf[0-99]", nos: sonic, role: leaf, platform: SN5600, ports: [{name: "Ethernet[0-74]", speed: 400G}]}
  - {name: "spine[0-24]", nos: sonic, role: spine, platform: SN5600}
links:
  - {from: "h[0-4999]", from_port: eth0, to: "leaf[0-99*50]", to_port: "Ethernet[0-49]", speed: 400G, cable: 3 m}
  - {from: "leaf[0-99*25]", from_port: "Ethernet[50-74]", to: "spine[0-24]", to_port: "Ethernet[0-99*25]", speed: 400G, cable: 40 m}
)";
  const Result<Fabric> fabric = parse(page, "fabric.yaml", Keys::kOptional);
  ASSERT_TRUE(fabric.ok()) << fabric.status().to_string();
  EXPECT_EQ(fabric->links.size(), 7500u);
}

TEST(Network, SwitchesHaveAddresses) {
  const auto with = [](const std::string& name, const std::string& addresses) {
    return parse("hosts: [{name: h, addresses: {tcp: 10.0.0.1}}]\nswitches: [{name: " + name +
                     ", addresses: " + addresses + "}]\nlinks: [{from: h, to: s0, speed: 1G}]\n",
                 "fabric.yaml", Keys::kOptional);
  };
  const auto fabric = with("s0", "[10.0.0.254, 'FD00:0::fe']");
  ASSERT_TRUE(fabric.ok()) << fabric.status().to_string();
  EXPECT_THAT(fabric->switches[0].addresses, ElementsAre("10.0.0.254", "fd00::fe"));
  EXPECT_EQ(parse(to_yaml(*fabric), "fabric.yaml", Keys::kOptional)->switches[0].addresses,
            fabric->switches[0].addresses);
  EXPECT_THAT(with("s0", "[10.0.0]").status().to_string(), HasSubstr("fabric.yaml:2: expected numeric addresses"));
  EXPECT_THAT(with("'s[0-1]'", "[10.0.0.1]").status().to_string(), HasSubstr("expected the addresses of one switch"));
}

struct Mistake {
  const char* name;
  const char* text;
  const char* error;
};

class NetworkError : public ::testing::TestWithParam<Mistake> {};

constexpr const char* kFew =
    "hosts: [{name: h, addresses: {tcp: 10.0.0.1}}, {name: g, addresses: {tcp: 10.0.0.2}}]\n"
    "switches: [{name: s, ports: [{name: e0, speed: 100G, lanes: 4}, {name: e1}]}, {name: t}]\n";

TEST_P(NetworkError, SaysWhatWhereAndWhatWasExpected) {
  const auto fabric = parse(kFew + std::string(GetParam().text), "fabric.yaml", Keys::kOptional);
  ASSERT_FALSE(fabric.ok());
  EXPECT_EQ(fabric.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(fabric.status().to_string(), HasSubstr(GetParam().error));
}

std::string case_name(const ::testing::TestParamInfo<Mistake>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(
    Links, NetworkError,
    ::testing::Values(
        Mistake{"CableWithoutUnit", "links: [{from: h, to: s, speed: 100G, cable: 40}]",
                "'cable' of a link is '40': fabric.yaml:3: expected a length such as '3 m' or '0.5 m'"},
        Mistake{"PortInTwoLinks",
                "links:\n - {from: h, to: s, to_port: e0, speed: 100G}\n - {from: g, to: s, to_port: e0, speed: 100G}",
                "port 'e0' of 's' is in two links: fabric.yaml:5: the other one is on line 4"},
        Mistake{
            "PortNotListed", "links: [{from: h, to: s, to_port: swp1, speed: 100G}]",
            "a link at port 'swp1' of switch 's', which is not listed: fabric.yaml:3: expected one of the switch's"},
        Mistake{
            "OtherSpeed", "links: [{from: h, to: s, to_port: e0, speed: 50G}]",
            "a link of 50 Gbit/s at port 'e0' of switch 's': fabric.yaml:3: line 2 says that the port has 100 Gbit/s"},
        Mistake{
            "UnevenPatterns", "links: [{from: h, to: t, to_port: 'e[0-2]', from_port: 'f[0-1]', speed: 50G}]",
            "'from_port' of a link is 'f[0-1]': fabric.yaml:3: expected a pattern whose 2 names divide the 3 links"},
        Mistake{"PortWithACommand", "links: [{from: h, to: t, to_port: 'e0; reboot', speed: 50G}]",
                "'to_port' of a link is 'e0; reboot': fabric.yaml:3: expected at most 63 letters, digits, '.', '_', "
                "'/' or '-'"},
        Mistake{"PortWithAControlCharacter", "links: [{from: h, to: t, to_port: \"e0\\n\", speed: 50G}]",
                "expected at most 63 letters, digits, '.', '_', '/' or '-'"},
        Mistake{"BadPattern", "links: [{from: h, to: t, to_port: 'e[1]', speed: 50G}]",
                "'to_port' of a link is 'e[1]': fabric.yaml:3: expected ranges such as"},
        Mistake{"PatternBomb", "links: [{from: h, to: t, to_port: 'e[0-999999][0-999999]', speed: 50G}]",
                "expected a pattern that stands for at most 65535 names"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    QosAndRouting, NetworkError,
    ::testing::Values(
        Mistake{"UnknownClass", "qos: {classes: {urgnet: {strict: true}}}",
                "unknown class 'urgnet' in 'qos': fabric.yaml:3: did you mean 'urgent'? expected one of bulk, cnp, "
                "control, default, urgent"},
        Mistake{"DoubledClass", "qos: {classes: {bulk: {}, bulk: {}}}", "doubled class 'bulk' in 'qos': fabric.yaml:3"},
        Mistake{"MarksOfAClass", "qos: {classes: {bulk: {dscp: 3}}}",
                "unknown key 'dscp' in the service of 'bulk': fabric.yaml:3: expected one of strict, shaper"},
        Mistake{"PercentWithoutUnit", "qos: {classes: {bulk: {weight: 3}}}",
                "'weight' of the service of 'bulk' is '3': fabric.yaml:3: expected a share from '1 %' to '100 %'"},
        Mistake{"PercentTooHigh", "qos: {classes: {bulk: {weight: 101 %}}}", "expected a share from '1 %' to '100 %'"},
        Mistake{"KminAboveKmax", "qos: {classes: {bulk: {ecn: {kmin: 2 MiB, kmax: 1 MiB}}}}",
                "'kmax' of 'ecn' of the service of 'bulk' is '1 MiB': fabric.yaml:3: expected more than 'kmin', 2 MiB"},
        Mistake{"NoTime", "qos: {watchdog: {poll: 0 s}}", "expected a time longer than nothing"},
        Mistake{"UnknownFormula", "qos: {headroom: {formula: newest}}", "expected one of current, older"},
        Mistake{"LookupWithACommand", "qos: {headroom: {lookup: 'a;b'}}", "expected a path of letters"},
        Mistake{"RouteWithoutALink", "links: [{from: h, to: s, speed: 1G}]\nrouting: {routes: [[h, s, g]]}",
                "a route from 's' to 'g': fabric.yaml:4: no link leads there"},
        Mistake{"RouteThroughAHost", "routing: {routes: [[h, g, h]]}", "a route with the hop 'g': fabric.yaml:3"},
        Mistake{"ShortRoute", "routing: {routes: [[h, g]]}", "expected a list of at least 3 names"},
        Mistake{"UnknownFlooding", "routing: {flooding: [[x]]}",
                "'x' in 'flooding': fabric.yaml:3: expected switches"}),
    case_name);

// One switch, on a line of its own.
std::string switch_error(const std::string& entry) {
  const auto fabric = parse("hosts: [{name: h, addresses: {tcp: 10.0.0.1}}]\nswitches:\n  - " + entry, "f.yaml");
  EXPECT_FALSE(fabric.ok());
  return fabric.ok() ? "" : fabric.status().to_string();
}

TEST(Switches, SayWhatIsWrong) {
  EXPECT_EQ(switch_error("{name: s, nos: sonik}"),
            "'nos' of switch 's' is 'sonik': f.yaml:3: did you mean 'sonic'? expected one of sonic, cumulus, eos, "
            "nxos, junos, onyx, openconfig, linux");
  EXPECT_EQ(switch_error("{name: s, role: tor}"),
            "'role' of switch 's' is 'tor': f.yaml:3: did you mean 'core'? expected one of leaf, spine, core");
  EXPECT_THAT(switch_error("{name: s, ports: [{name: e0, speed: 400G, lanes: 1}]}"),
              HasSubstr("'lanes' of a port is '1': f.yaml:3: expected lanes of 1, 2.5, 5, 10, 25, 50, 100 or 200 "
                        "Gbit/s that make 400 Gbit/s"));
  EXPECT_THAT(switch_error("{name: s, ports: [{name: e0, lanes: 3}]}"), HasSubstr("expected 1, 2, 4 or 8"));
  EXPECT_THAT(switch_error("{name: s, ports: [{name: e0}, {name: 'e[0-1]'}]}"),
              HasSubstr("doubled port 'e0' of switch 's': f.yaml:3: the other one is on line 3"));
  EXPECT_THAT(switch_error("{name: 's[0-999]', ports: [{name: 'e[0-999]'}]}"), HasSubstr("more than 65535 ports"));
  EXPECT_THAT(switch_error("{name: s, platform: {buffer: 16}, release: 'a b'}"), HasSubstr("'release' of switch 's'"));
  EXPECT_THAT(switch_error("{name: s, platform: {evidence: \"a\\nb\"}}"), HasSubstr("a line of at most 200 plain"));
  EXPECT_THAT(switch_error("{name: s, platform: {lossless: 9}}"), HasSubstr("a whole number from 0 to 8"));
}

TEST(Hosts, HaveAsManyAddressesAsNames) {
  const auto error = [](const std::string& entry) {
    return parse("hosts:\n  - " + entry, "f.yaml", Keys::kOptional).status().to_string();
  };
  EXPECT_EQ(error("{name: 'h[0-2]', addresses: {tcp: '10.0.0.[1-2]'}}"),
            "2 tcp addresses for 3 hosts: f.yaml:2: expected patterns that stand for as many addresses as names");
  EXPECT_EQ(error("{name: 'h[0-2]', addresses: {tcp: '10.0.0.[1-3]', local: m}}"), "ok");
  EXPECT_THAT(error("{name: h, addresses: {tcp: 10.0.0.1}, rdma_devices: [a, b]}"),
              HasSubstr("one for each of 1 rails"));
  EXPECT_THAT(error("{name: h, addresses: {tcp: 10.0.0.1}, rdma_devices: ['a b']}"), HasSubstr("a list of names"));
}

// Aliases stand for shared nodes, and nothing in the file nests: what is read grows with the text, not with its
// meaning.
TEST(Network, AYamlBombIsRefusedQuickly) {
  std::string bomb = "hosts: [{name: h, addresses: {tcp: 10.0.0.1}}]\nlinks: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 30; ++i) bomb += fmt::format("k{0}: &a{0} [*a{1}, *a{1}, *a{1}]\n", i, i - 1);
  EXPECT_FALSE(parse(bomb, "f.yaml").ok());
  const std::string deep = "hosts: " + std::string(100'000, '[');
  EXPECT_FALSE(parse(deep, "f.yaml").ok());
}

}  // namespace
}  // namespace tensorlane::fabric
