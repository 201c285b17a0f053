// Every mistake that a fabric file can hold, with the exact text of its error.
#include "tests/unit/fabric/mistakes.h"

namespace tensorlane::fabric {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Urgencies, FabricError,
    ::testing::Values(
        Mistake{"NoUrgency", HOST "urgencies:\n  - {operation: allgather}\n",
                "no 'urgency' in a rule of 'urgencies': fabric.yaml:3: add 'urgency: ...'"},
        Mistake{"UrgencyBeyondOne", HOST "urgencies: [{urgency: 1.5}]\n",
                "'urgency' of a rule of 'urgencies' is '1.5': fabric.yaml:2: expected a number from 0 to 1"},
        Mistake{
            "UnknownOperation", HOST "urgencies: [{operation: allreduces, urgency: 1}]\n",
            "'operation' of a rule of 'urgencies' is 'allreduces': fabric.yaml:2: did you mean 'allreduce'? expected "
            "one of allreduce, broadcast, allgather, barrier, push, pull, reducescatter, reduce, gather, scatter, "
            "alltoall"},
        Mistake{"LessThanAtLeast", HOST "urgencies: [{at_least: 1 MiB, at_most: 1 KiB, urgency: 1}]\n",
                "'at_most' of a rule of 'urgencies' is '1 KiB': fabric.yaml:2: expected at least 'at_least', 1 MiB"},
        Mistake{"QuotesInAPattern", HOST "urgencies: [{job: 'a\"b', urgency: 1}]\n",
                "'job' of a rule of 'urgencies' is 'a\"b': fabric.yaml:2: expected printable characters of ASCII but "
                "'\"' and '\\'"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    Syntax, FabricError,
    ::testing::Values(
        Mistake{"Empty", "",
                "empty fabric file: fabric.yaml:1: expected a mapping with classes, data_protection, hosts, switches, "
                "links, qos, routing, urgencies, nccl"},
        Mistake{"NoMapping", "- 1",
                "the fabric file is a list: fabric.yaml:1: expected a mapping with classes, data_protection, hosts, "
                "switches, links, qos, routing, urgencies, nccl"},
        Mistake{"NoYaml", "hosts: [\n",
                "not valid YAML: end of sequence flow not found: fabric.yaml:2: correct the syntax there, or what "
                "was left open before it"},
        Mistake{"UnknownKey", HOST "host: []\n",
                "unknown key 'host' in the fabric file: fabric.yaml:2: did you mean 'hosts'? expected one of classes, "
                "data_protection, hosts, switches, links, qos, routing, urgencies, nccl"},
        Mistake{
            "UnknownKeyLikeNothing", HOST "colour: red\n",
            "unknown key 'colour' in the fabric file: fabric.yaml:2: expected one of classes, data_protection, hosts, "
            "switches, links, qos, routing, urgencies, nccl"},
        Mistake{"UnknownProtection", HOST "data_protection: encypt\n",
                "'data_protection' of the fabric file is 'encypt': fabric.yaml:2: did you mean 'encrypt'? expected one "
                "of none, authenticate, encrypt"},
        Mistake{"DoubledKey", HOST "switches: []\n\nswitches: []\n",
                "doubled key 'switches' in the fabric file: fabric.yaml:4: it is also on line 2; keep one of them"},
        Mistake{"WrongType", "hosts: h0\n", "'hosts' of the fabric file is 'h0': fabric.yaml:1: expected a list"},
        Mistake{"NullValue", HOST "links:\n", "'links' of the fabric file is empty: fabric.yaml:2: expected a list"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    Hosts, FabricError,
    ::testing::Values(
        Mistake{"NoHosts", "classes: greenfield\n",
                "no hosts in the fabric file: fabric.yaml:1: add 'hosts: [{name: NAME, addresses: {tcp: ADDRESS}}]'"},
        Mistake{"EmptyHosts", "classes: greenfield\nhosts: []\n",
                "no hosts in the fabric file: fabric.yaml:2: add 'hosts: [{name: NAME, addresses: {tcp: ADDRESS}}]'"},
        Mistake{"NoName", "hosts: [{addresses: {tcp: a}}]\n", "no 'name' in a host: fabric.yaml:1: add 'name: ...'"},
        Mistake{"BadName", "hosts: [{name: 'a b', addresses: {tcp: a}}]\n",
                "'name' of host 'a b' is 'a b': fabric.yaml:1: expected at most 63 letters, digits, '.', '_' or '-'"},
        Mistake{"NoAddresses", "hosts: [{name: h}]\n",
                "no 'addresses' in host 'h': fabric.yaml:1: add 'addresses: {tcp: ADDRESS}'"},
        Mistake{"NoTcp", "hosts:\n - name: h\n   addresses: {rdma: 10.0.0.1}\n",
                "no 'tcp' in 'addresses' of host 'h': fabric.yaml:3: add 'tcp: ADDRESS'"},
        Mistake{"UnknownTransport", "hosts: [{name: h, addresses: {tpc: 10.0.0.1}}]\n",
                "unknown key 'tpc' in 'addresses' of host 'h': fabric.yaml:1: did you mean 'tcp'? expected one of tcp, "
                "rdma, dpdk, local"},
        Mistake{"AddressIsAMapping", "hosts: [{name: h, addresses: {tcp: {a: 1}}}]\n",
                "'tcp' of 'addresses' of host 'h' is a mapping: fabric.yaml:1: expected text"},
        Mistake{"NoRails", "hosts: [{name: h, addresses: {tcp: []}}]\n",
                "0 tcp addresses: fabric.yaml:1: expected one, or a list of 1 to 8: one for each rail"},
        Mistake{"TooManyRails", "hosts: [{name: h, addresses: {tcp: [a, b, c, d, e, f, g, h, i]}}]\n",
                "9 tcp addresses: fabric.yaml:1: expected one, or a list of 1 to 8: one for each rail"},
        Mistake{"BadRail", "hosts: [{name: h, addresses: {tcp: [10.0.0.1, [10.1.0.1]]}}]\n",
                "tcp address '': fabric.yaml:1: expected an IPv4 or IPv6 address or a name that resolves to one"},
        Mistake{"UnevenRails", "hosts: [{name: h, addresses: {tcp: [10.0.0.1, 10.1.0.1], rdma: 10.0.0.1}}]\n",
                "2 tcp addresses and 1 rdma addresses in host 'h': fabric.yaml:1: expected one of each for every rail"},
        Mistake{
            "RailsOfOneAddress", "hosts: [{name: h, addresses: {tcp: [10.0.0.1, 10.0.0.1]}}]\n",
            "rails 0 and 1 of host 'h' have the same address 10.0.0.1: fabric.yaml:1: expected an address of its own "
            "for each rail"},
        Mistake{"AddressWithASpace", "hosts: [{name: h, addresses: {tcp: 10.0.0.1 10.0.0.2}}]\n",
                "'tcp' of 'addresses' of host 'h' is '10.0.0.1 10.0.0.2': fabric.yaml:1: expected an IPv4 or IPv6 "
                "address or a name that "
                "resolves to one"},
        Mistake{"AddressWithAControlCharacter", "hosts: [{name: h, addresses: {tcp: \"a\\x01b\"}}]\n",
                "'tcp' of 'addresses' of host 'h' is 'a\x01"
                "b': fabric.yaml:1: expected an IPv4 or IPv6 "
                "address or a name that resolves to one"},
        Mistake{"UnknownHostKey", "hosts:\n - name: h\n   addresses: {tcp: a}\n   control-port: 1\n",
                "unknown key 'control-port' in host 'h': fabric.yaml:4: did you mean 'control_port'? expected one of "
                "name, addresses, "
                "control_port, data_port, public_key, rdma_devices, retry_budget"},
        Mistake{"PortZero", "hosts: [{name: h, addresses: {tcp: a}, control_port: 0}]\n",
                "'control_port' of host 'h' is '0': fabric.yaml:1: expected a whole number from 1 to 65535"},
        Mistake{"PortTooHigh", "hosts: [{name: h, addresses: {tcp: a}, data_port: 65534}]\n",
                "'data_port' of host 'h' is 65534: fabric.yaml:1: expected at most 65533: one port for control and one "
                "per class follow "
                "each other"},
        Mistake{"PortsOverlap", "hosts: [{name: h, addresses: {tcp: a}, control_port: 7112}]\n",
                "'control_port' 7112 of host 'h' is one of its data ports: fabric.yaml:1: expected a port outside "
                "7110..7112"},
        Mistake{"ShortKey", "hosts: [{name: h, addresses: {tcp: a}, public_key: abc}]\n",
                "'public_key' of host 'h' is 'abc': fabric.yaml:1: expected 40 characters of Z85, as `tensorlane "
                "make-key` prints them"},
        Mistake{"NoZ85",
                "hosts: [{name: h, addresses: {tcp: a}, public_key: '0123456789012345678901234567890123456~89'}]\n",
                "'public_key' of host 'h' is '0123456789012345678901234567890123456~89': fabric.yaml:1: expected 40 "
                "characters of Z85, as "
                "`tensorlane make-key` prints them"},
        Mistake{"NoKey", "hosts:\n - {name: a, addresses: {tcp: 10.0.0.1}}\n - {name: b, addresses: {tcp: 10.0.0.2}}\n",
                "no 'public_key' in host 'a': fabric.yaml:2: daemons of several hosts need one each; `tensorlane "
                "make-key` makes a pair"},
        Mistake{
            "SameKey",
            "hosts:\n - {name: a, addresses: {tcp: 10.0.0.1}, public_key: 0123456789012345678901234567890123456789}\n"
            " - {name: b, addresses: {tcp: 10.0.0.2}, public_key: 0123456789012345678901234567890123456789}\n",
            "host 'b' has the public key of host 'a': fabric.yaml:3: the other one is on line 2; every daemon needs "
            "its own pair"},
        Mistake{"DoubledHost",
                "hosts:\n - {name: a, addresses: {tcp: 10.0.0.1}}\n - {name: a, addresses: {tcp: 10.0.0.2}}\n",
                "doubled name 'a' of a host: fabric.yaml:3: the other one is on line 2; rename one of them"},
        Mistake{"DoubledAddress",
                "hosts:\n - {name: a, addresses: {tcp: '::1'}}\n - {name: b, addresses: {tcp: '0:0::1'}}\n",
                "host 'b' has address 0:0::1 port 7100 of host 'a': fabric.yaml:3: host 'a' is on line 2; change the "
                "address or the ports "
                "of one of them"},
        Mistake{"DoubledDpdkAddress",
                "hosts:\n - {name: a, addresses: {tcp: 10.0.0.1, dpdk: 10.1.0.1}}\n"
                " - {name: b, addresses: {tcp: 10.0.0.2, dpdk: 10.1.0.1}}\n",
                "host 'b' has the dpdk address 10.1.0.1 of host 'a': fabric.yaml:3: the other one is on line 2; every "
                "port needs an address of its own"},
        Mistake{"OverlappingDataPorts",
                "hosts:\n - {name: a, addresses: {tcp: 10.0.0.1}}\n"
                " - {name: b, addresses: {tcp: 10.0.0.1}, control_port: 7200, data_port: 7108}\n",
                "host 'b' has address 10.0.0.1 port 7110 of host 'a': fabric.yaml:3: host 'a' is on line 2; change the "
                "address or the "
                "ports of one of them"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    SwitchesAndLinks, FabricError,
    ::testing::Values(
        Mistake{"DoubledSwitch", HOST "switches:\n - {name: s}\n - {name: s}\n",
                "doubled name 's' of a switch: fabric.yaml:4: the other one is on line 3; rename one of them"},
        Mistake{"SwitchNamedLikeAHost", HOST "switches: [{name: h}]\n",
                "doubled name 'h' of a switch: fabric.yaml:2: the other one is on line 1; rename one of them"},
        Mistake{"UnknownEnd", HOST "switches: [{name: spine}]\nlinks:\n - {from: h, to: spin, speed: 1G}\n",
                "'to' of a link is 'spin', which is no host or switch: fabric.yaml:4: did you mean 'spine'? expected "
                "the name of a host "
                "or switch in this file"},
        Mistake{"UnknownHost", HOST "switches: [{name: spine}]\nlinks:\n - {from: gone, to: spine, speed: 1G}\n",
                "'from' of a link is 'gone', which is no host or switch: fabric.yaml:4: expected the name of a host or "
                "switch in this "
                "file"},
        Mistake{"ToAHost", HOST "switches: [{name: s}]\nlinks: [{from: s, to: h, speed: 1G}]\n",
                "'to' of a link is the host 'h': fabric.yaml:3: expected a switch; hosts stand in 'from'"},
        Mistake{"ToItself", HOST "switches: [{name: s}]\nlinks: [{from: s, to: s, speed: 1G}]\n",
                "link from 's' to itself: fabric.yaml:3: expected two ends"},
        Mistake{"NoSpeed", HOST "switches: [{name: s}]\nlinks: [{from: h, to: s}]\n",
                "no 'speed' in a link: fabric.yaml:3: add 'speed: ...'"},
        Mistake{"BadRate", HOST "switches: [{name: s}]\nlinks: [{from: h, to: s, speed: 500 MB/s}]\n",
                "'speed' of a link is '500 MB/s': fabric.yaml:3: expected a rate such as '500 Mbit/s', '10 Gbit/s' or "
                "'100G'"},
        Mistake{"BadBuffer", HOST "switches: [{name: s}]\nlinks: [{from: h, to: s, speed: 1G, buffer: 64 KB}]\n",
                "'buffer' of a link is '64 KB': fabric.yaml:3: expected a size such as '1500', '256 KiB' or '4 MiB'"},
        Mistake{"SmallBuffer", HOST "switches: [{name: s}]\nlinks: [{from: h, to: s, speed: 1G, buffer: 1 KiB}]\n",
                "'buffer' of the link from 'h' is 1 KiB: fabric.yaml:3: expected at least one packet of its mtu, 1500 "
                "bytes"},
        Mistake{"BadCable", HOST "switches: [{name: s}]\nlinks: [{from: h, to: s, speed: 1G, cable: 3 ft}]\n",
                "'cable' of a link is '3 ft': fabric.yaml:3: expected a length such as '3 m' or '0.5 m'"},
        Mistake{"BadMtu", HOST "switches: [{name: s}]\nlinks: [{from: h, to: s, speed: 1G, mtu: jumbo}]\n",
                "'mtu' of a link is 'jumbo': fabric.yaml:3: expected a whole number from 576 to 65535"}),
    case_name);

#define CLASSES(data) "classes:\n  data:\n" data HOST
#define CLASS_A "    - {name: a, dscp: 1, pcp: 1}\n"
#define CLASS_B "    - {name: b, dscp: 2, pcp: 2}\n"

INSTANTIATE_TEST_SUITE_P(
    Classes, FabricError,
    ::testing::Values(
        Mistake{"UnknownPreset", "classes: grenfield\n" HOST,
                "unknown classes 'grenfield': fabric.yaml:1: did you mean 'greenfield'? expected greenfield, "
                "brownfield or a mapping with "
                "data, control, thresholds"},
        Mistake{"NoData", "classes: {thresholds: [0.5]}\n" HOST,
                "no 'data' in 'classes': fabric.yaml:1: add 'data: ...'"},
        Mistake{"OneClass", CLASSES(CLASS_A), "1 data classes: fabric.yaml:3: expected 2 to 7"},
        Mistake{"EightClasses", CLASSES(CLASS_A CLASS_A CLASS_A CLASS_A CLASS_A CLASS_A CLASS_A CLASS_A),
                "8 data classes: fabric.yaml:3: expected 2 to 7"},
        Mistake{"UnknownClassKey", CLASSES(CLASS_A "    - {name: urgent, dcsp: 43, pcp: 5}\n"),
                "unknown key 'dcsp' in class 'urgent': fabric.yaml:4: did you mean 'dscp'? expected one of name, dscp, "
                "pcp, service_level, "
                "lossless, rank, window"},
        Mistake{"NoDscp", CLASSES(CLASS_A "    - {name: b, pcp: 2}\n"),
                "no 'dscp' in class 'b': fabric.yaml:4: add 'dscp: ...'"},
        Mistake{"DscpTooHigh", CLASSES(CLASS_A "    - {name: b, dscp: 64, pcp: 2}\n"),
                "'dscp' of class 'b' is '64': fabric.yaml:4: expected a whole number from 0 to 63"},
        Mistake{"DscpIsNoNumber", CLASSES(CLASS_A "    - {name: b, dscp: EF, pcp: 2}\n"),
                "'dscp' of class 'b' is 'EF': fabric.yaml:4: expected a whole number from 0 to 63"},
        Mistake{"PcpTooHigh", CLASSES(CLASS_A "    - {name: b, dscp: 2, pcp: 8}\n"),
                "'pcp' of class 'b' is '8': fabric.yaml:4: expected a whole number from 0 to 7"},
        Mistake{"BadFlag", CLASSES(CLASS_A "    - {name: b, dscp: 2, pcp: 2, lossless: maybe}\n"),
                "'lossless' of class 'b' is 'maybe': fabric.yaml:4: expected true or false"},
        Mistake{"BadWindow", CLASSES(CLASS_A "    - {name: b, dscp: 2, pcp: 2, window: wide}\n"),
                "'window' of class 'b' is 'wide': fabric.yaml:4: expected a size such as '1500', '256 KiB' or '4 MiB'"},
        Mistake{
            "DoubledDscp", CLASSES(CLASS_A "    - {name: b, dscp: 1, pcp: 2}\n"),
            "doubled DSCP 1 in class 'b': fabric.yaml:4: class 'a' on line 3 has it too; every class needs its own"},
        Mistake{"DoubledPcp", CLASSES(CLASS_A "    - {name: b, dscp: 2, pcp: 1}\n"),
                "doubled PCP 1 in class 'b': fabric.yaml:4: class 'a' on line 3 has it too; every class needs its own"},
        Mistake{"DoubledServiceLevel", CLASSES(CLASS_A "    - {name: b, dscp: 2, pcp: 2, service_level: 1}\n"),
                "doubled service level 1 in class 'b': fabric.yaml:4: class 'a' on line 3 has it too; every class "
                "needs its own"},
        Mistake{
            "DoubledRank", CLASSES(CLASS_A "    - {name: b, dscp: 2, pcp: 2, rank: 0}\n"),
            "doubled rank 0 in class 'b': fabric.yaml:4: class 'a' on line 3 has it too; every class needs its own"},
        Mistake{"DoubledName", CLASSES(CLASS_A "    - {name: a, dscp: 2, pcp: 2}\n"),
                "doubled class name 'a': fabric.yaml:4: the other one is on line 3; rename one of them"},
        Mistake{"DscpOfControl", CLASSES(CLASS_A CLASS_B "  control: {dscp: 2, pcp: 6}\n"),
                "doubled DSCP 2 in class 'b': fabric.yaml:4: class 'control' on line 5 has it too; every class needs "
                "its own"},
        Mistake{"RankOfControl", CLASSES(CLASS_A CLASS_B "  control: {dscp: 3, pcp: 6, rank: 0}\n"),
                "unknown key 'rank' in class 'control': fabric.yaml:5: expected one of name, dscp, pcp, service_level, "
                "lossless"},
        Mistake{"TooManyThresholds", CLASSES(CLASS_A CLASS_B "  thresholds: [0.5, 0.2]\n"),
                "2 thresholds for 2 data classes: fabric.yaml:5: expected 1, one fewer than classes"},
        Mistake{"ThresholdBeyondOne", CLASSES(CLASS_A CLASS_B "  thresholds: [1.5]\n"),
                "threshold '1.5': fabric.yaml:5: expected a number from 0 to 1"},
        Mistake{"ThresholdIsNoNumber", CLASSES(CLASS_A CLASS_B "  thresholds: [high]\n"),
                "threshold 'high': fabric.yaml:5: expected a number from 0 to 1"},
        Mistake{"ThresholdsAscend",
                CLASSES(CLASS_A CLASS_B "    - {name: c, dscp: 3, pcp: 3}\n  thresholds:\n  - 0.2\n  - 0.5\n"),
                "threshold 0.5 after 0.2: fabric.yaml:8: expected descending thresholds: the first one belongs to the "
                "most urgent class"},
        Mistake{"ThresholdTwice",
                CLASSES(CLASS_A CLASS_B "    - {name: c, dscp: 3, pcp: 3}\n  thresholds: [0.5, 0.5]\n"),
                "threshold 0.5 after 0.5: fabric.yaml:6: expected descending thresholds: the first one belongs to the "
                "most urgent "
                "class"}),
    case_name);

TEST(FabricFile, ThatCannotBeRead) {
  const auto missing = load("/no/such/fabric.yaml");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(
      missing.status().to_string(),
      "cannot read the fabric file: /no/such/fabric.yaml: No such file or directory; give the path of a fabric.yaml");
  const auto folder = load("/tmp");
  ASSERT_FALSE(folder.ok());
  EXPECT_EQ(folder.status().to_string(),
            "cannot read the fabric file: /tmp: Is a directory; give the path of a fabric.yaml");
}

}  // namespace
}  // namespace tensorlane::fabric
