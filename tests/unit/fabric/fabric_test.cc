#include "common/fabric/fabric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "common/fabric/link_speeds.h"

namespace tensorlane::fabric {
namespace {

using ::testing::ElementsAre;

constexpr const char* kKey0 = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
constexpr const char* kKey1 = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";

std::string two_hosts(const std::string& classes) {
  return "classes: " + classes + R"(
hosts:
  - name: h0
    addresses: {tcp: 10.77.0.1, rdma: 10.78.0.1}
    public_key: ")" +
         kKey0 + R"("
  - name: h1
    addresses: {tcp: 10.77.0.2}
    control_port: 8100
    data_port: 8110
    public_key: ")" +
         kKey1 + R"("
switches: [{name: s0}, {name: s1}]
links:
  - {from: h0, to: s0, speed: 500 Mbit/s, cable: 3 m, mtu: 9000, buffer: 512 KiB}
  - {from: h0, to: s1, speed: 400 Mbit/s}
  - {from: h1, to: s0, speed: 10G}
)";
}

Fabric parsed(const std::string& text) {
  Result<Fabric> fabric = parse(text, "fabric.yaml");
  EXPECT_TRUE(fabric.ok()) << fabric.status().to_string();
  return fabric.ok() ? *std::move(fabric) : Fabric();
}

TEST(Fabric, ReadsAFile) {
  const Fabric fabric = parsed(two_hosts("greenfield"));
  ASSERT_EQ(fabric.hosts.size(), 2u);
  const Host& h0 = fabric.hosts[0];
  EXPECT_EQ(h0.name, "h0");
  EXPECT_EQ(h0.addresses,
            (std::map<std::string, std::vector<std::string>>{{"tcp", {"10.77.0.1"}}, {"rdma", {"10.78.0.1"}}}));
  EXPECT_EQ(h0.control_port, 7100);
  EXPECT_EQ(h0.data_port, 7110);
  EXPECT_EQ(h0.public_key, kKey0);
  EXPECT_EQ(h0.line, 3);
  EXPECT_EQ(fabric.hosts[1].control_port, 8100);
  EXPECT_EQ(fabric.hosts[1].data_port, 8110);
  ASSERT_EQ(fabric.links.size(), 3u);
  const Link& link = fabric.links[0];
  EXPECT_EQ(link.from, "h0");
  EXPECT_EQ(link.to, "s0");
  EXPECT_EQ(link.speed, BitsPerSecond(500'000'000));
  EXPECT_EQ(link.cable_metres, 3);
  EXPECT_EQ(link.mtu, 9000u);
  EXPECT_EQ(link.buffer, kib(512));
  EXPECT_EQ(fabric.links[1].mtu, 1500u);
  EXPECT_EQ(fabric.links[1].buffer, std::nullopt);
}

TEST(Fabric, AListOfAddressesIsAListOfRails) {
  const Fabric fabric = parsed(R"(hosts:
  - {name: h, addresses: {tcp: [10.0.0.1, "fd00::1"], rdma: [10.2.0.1, 10.3.0.1]}}
switches: [{name: s}, {name: t}]
links:
  - {from: h, to: s, speed: 1G}
  - {from: h, to: t, speed: 2G}
)");
  const Host& host = fabric.hosts.at(0);
  ASSERT_EQ(host.rails(), 2u);
  EXPECT_EQ(host.tcp_address(RailIndex(1)), "fd00::1");
  EXPECT_EQ(*host.find_address("rdma", RailIndex(1)), "10.3.0.1");
  EXPECT_EQ(host.find_address("rdma", RailIndex(2)), nullptr);
  EXPECT_EQ(host.find_address("dpdk"), nullptr);
  EXPECT_EQ(fabric.find_host_by_name_or_address("fd00::1"), &host);
  EXPECT_EQ(fabric.link_speed(host, RailIndex(0)), BitsPerSecond(1'000'000'000));
  EXPECT_EQ(fabric.link_speed(host, RailIndex(1)), BitsPerSecond(2'000'000'000));
  EXPECT_EQ(fabric.link_speed(host, RailIndex(2)), BitsPerSecond(1'000'000'000)) << "it has no such rail: the slowest";
  const LinkSpeeds speeds(fabric);
  EXPECT_EQ(speeds.find("h", RailIndex(1)), BitsPerSecond(2'000'000'000));
  EXPECT_EQ(speeds.find("h", RailIndex(2)), BitsPerSecond());
  EXPECT_EQ(speeds.find("s", RailIndex(0)), BitsPerSecond()) << "no host";
  const std::string written = to_yaml(fabric);
  EXPECT_EQ(parsed(written).hosts.at(0).addresses, host.addresses);
  EXPECT_EQ(to_yaml(parsed(written)), written);
}

TEST(Fabric, DataIsProtectedAsTheFileSays) {
  EXPECT_EQ(parsed(two_hosts("greenfield")).data_protection, DataProtection::kNone);
  for (const DataProtection level : {DataProtection::kNone, DataProtection::kAuthenticate, DataProtection::kEncrypt}) {
    const Fabric fabric =
        parsed(two_hosts("greenfield") + "data_protection: " + std::string(data_protection_name(level)) + "\n");
    EXPECT_EQ(fabric.data_protection, level);
    EXPECT_EQ(parsed(to_yaml(fabric)).data_protection, level);
  }
}

// The urgency of such an operation; -1 where no rule fits.
float urgency_in(const Fabric& fabric, const std::string& job, const std::string& tensor, Operation operation,
                 std::uint64_t bytes) {
  const UrgencyRule* rule = fabric.urgencies.find(job, tensor, operation, Bytes(bytes));
  return rule == nullptr ? -1 : rule->urgency;
}

TEST(Fabric, TheFirstRuleThatFitsSaysHowUrgentAnOperationIs) {
  const Fabric first = parsed(two_hosts("greenfield") + R"(urgencies:
  - {job: "prod-*", operation: allreduce, at_least: 64, at_most: 4 KiB, urgency: 1}
  - {tensor: "allgather.[ab]?", urgency: 0.25}
  - {operation: allreduce, urgency: 0.125}
)");
  for (const Fabric& fabric : {first, parsed(to_yaml(first))}) {
    EXPECT_EQ(urgency_in(fabric, "prod-1", "x", Operation::kAllreduce, 4096), 1);
    EXPECT_EQ(urgency_in(fabric, "prod-1", "x", Operation::kAllreduce, 4097), 0.125);
    EXPECT_EQ(urgency_in(fabric, "prod-1", "x", Operation::kAllreduce, 64), 1);
    EXPECT_EQ(urgency_in(fabric, "prod-1", "x", Operation::kAllreduce, 63), 0.125);
    EXPECT_EQ(urgency_in(fabric, "test", "x", Operation::kAllreduce, 100), 0.125);
    EXPECT_EQ(urgency_in(fabric, "test", "allgather.a1", Operation::kAllgather, 100), 0.25);
    EXPECT_EQ(urgency_in(fabric, "test", "allgather.c1", Operation::kAllgather, 100), -1);
    EXPECT_EQ(urgency_in(fabric, "test", "x", Operation::kBroadcast, 100), -1);
  }
  EXPECT_EQ(first.urgencies.find("test", "allgather.a1", Operation::kAllgather, Bytes(1))->line,
            first.urgencies.line + 1);
}

TEST(Fabric, WithoutRulesGatheredParametersAreUrgentAndScatteredGradientsBulk) {
  const Fabric fabric = parsed(two_hosts("greenfield"));
  EXPECT_EQ(urgency_in(fabric, "j", "x", Operation::kAllgather, 100), 0.9F);
  EXPECT_EQ(urgency_in(fabric, "j", "x", Operation::kReduceScatter, 100), 0.1F);
  EXPECT_EQ(urgency_in(fabric, "j", "x", Operation::kAllreduce, 100), -1);
  const Fabric none = parsed(two_hosts("greenfield") + "urgencies: []\n");
  EXPECT_EQ(urgency_in(parsed(to_yaml(none)), "j", "x", Operation::kAllgather, 100), -1);
}

TEST(Fabric, PresetsAreTheDocumentedCodePoints) {
  const ClassTable green = parsed(two_hosts("greenfield")).classes;
  ASSERT_EQ(green.data.size(), 2u);
  const auto numbers = [](const TrafficClass& cls) {
    return std::vector<int>{cls.dscp, cls.pcp, cls.service_level, cls.lossless, cls.rank};
  };
  EXPECT_EQ(green.data[0].name, "urgent");
  EXPECT_THAT(numbers(green.data[0]), ElementsAre(43, 5, 5, 1, 0));
  EXPECT_EQ(green.data[1].name, "bulk");
  EXPECT_THAT(numbers(green.data[1]), ElementsAre(27, 3, 3, 1, 1));
  EXPECT_EQ(green.control.name, "control");
  EXPECT_THAT(numbers(green.control), ElementsAre(51, 6, 6, 0, 0));
  EXPECT_THAT(green.thresholds, ElementsAre(0.5));
  const ClassTable brown = parsed(two_hosts("brownfield")).classes;
  EXPECT_THAT(numbers(brown.data[1]), ElementsAre(26, 3, 3, 1, 1));
  EXPECT_THAT(numbers(brown.data[0]), ElementsAre(43, 5, 5, 1, 0));
}

TEST(Fabric, WithoutClassesIsGreenfield) {
  EXPECT_EQ(parsed("hosts: [{name: h, addresses: {tcp: localhost}}]").classes.data[1].dscp, 27);
}

TEST(Fabric, ClassesOfItsOwnAreOrderedByRank) {
  const ClassTable table = parsed(two_hosts(R"(
  data:
    - {name: last, dscp: 8, pcp: 1, rank: 9, lossless: false}
    - {name: first, dscp: 46, pcp: 5, rank: 0, service_level: 12, window: 512 KiB}
    - {name: middle, dscp: 20, pcp: 2, rank: 4}
  control: {dscp: 48, pcp: 7, lossless: true}
  thresholds: [0.9, 0.25])"))
                               .classes;
  ASSERT_EQ(table.data.size(), 3u);
  EXPECT_EQ(table.data[0].name, "first");
  EXPECT_EQ(table.data[0].service_level, 12);
  EXPECT_EQ(table.data[0].window, kib(512));
  EXPECT_TRUE(table.data[0].lossless);
  EXPECT_EQ(table.data[1].name, "middle");
  EXPECT_EQ(table.data[1].service_level, 2);  // its PCP
  EXPECT_EQ(table.data[2].name, "last");
  EXPECT_FALSE(table.data[2].lossless);
  EXPECT_EQ(table.control.dscp, 48);
  EXPECT_TRUE(table.control.lossless);
  EXPECT_THAT(table.thresholds, ElementsAre(0.9, 0.25));
}

// A file with K data classes, PCPs 0 to 6 without control's.
std::string with_classes(int count) {
  std::string data;
  for (int i = 0; i < count; ++i) {
    const int pcp = i == 6 ? 7 : i;
    data += "\n    - {name: c" + std::to_string(i) + ", dscp: " + std::to_string(10 + i) +
            ", pcp: " + std::to_string(pcp) + "}";
  }
  return two_hosts("\n  data:" + data);
}

TEST(Fabric, TwoToSevenDataClasses) {
  for (int count = 2; count <= 7; ++count) {
    const ClassTable table = parsed(with_classes(count)).classes;
    ASSERT_EQ(table.data.size(), static_cast<std::size_t>(count));
    ASSERT_EQ(table.thresholds.size(), static_cast<std::size_t>(count - 1));
    for (int i = 1; i < count; ++i)
      EXPECT_DOUBLE_EQ(table.thresholds[static_cast<std::size_t>(i - 1)], 1.0 - static_cast<double>(i) / count);
  }
}

TEST(Fabric, FindsHostsByNameAndAddress) {
  const Fabric fabric = parsed(two_hosts("greenfield"));
  EXPECT_EQ(fabric.find_host("h1"), &fabric.hosts[1]);
  EXPECT_EQ(fabric.find_host("10.77.0.2"), nullptr);
  EXPECT_EQ(fabric.find_host("s0"), nullptr);
  EXPECT_EQ(fabric.find_host_by_name_or_address("h0"), &fabric.hosts[0]);
  EXPECT_EQ(fabric.find_host_by_name_or_address("10.78.0.1"), &fabric.hosts[0]);
  EXPECT_EQ(fabric.find_host_by_name_or_address("10.77.0.3"), nullptr);
}

TEST(Fabric, LinkSpeedIsTheSlowestOfTheHost) {
  const Fabric fabric = parsed(two_hosts("greenfield"));
  EXPECT_EQ(fabric.link_speed(fabric.hosts[0]), BitsPerSecond(400'000'000));
  EXPECT_EQ(LinkSpeeds(fabric).find(fabric.hosts[0].name, RailIndex(0)), BitsPerSecond(400'000'000));
  EXPECT_EQ(fabric.link_speed(fabric.hosts[1]), BitsPerSecond(10'000'000'000));
  const Fabric loopback = parsed("hosts: [{name: h, addresses: {tcp: 127.0.0.1}}]");
  EXPECT_EQ(loopback.link_speed(loopback.hosts[0]), std::nullopt);
}

TEST(Fabric, WindowIsTwoMillisecondsOfTheLinkWithinBounds) {
  TrafficClass cls;
  EXPECT_EQ(window(cls, BitsPerSecond(100'000'000)), kib(256));
  EXPECT_EQ(window(cls, BitsPerSecond(10'000'000'000)), Bytes(2'500'000));
  EXPECT_EQ(window(cls, BitsPerSecond(100'000'000'000)), mib(4));
  EXPECT_EQ(window(cls, std::nullopt), mib(4));
  cls.window = kib(64);
  EXPECT_EQ(window(cls, BitsPerSecond(10'000'000'000)), kib(64));
}

TEST(Fabric, WritesLengthsWithoutExponents) {
  for (const std::string cable : {"0.0000001", "3.5", "100000000000000000000000"}) {
    const Fabric fabric = parsed(
        "hosts: [{name: h, addresses: {tcp: a}}]\nswitches: [{name: s}]\n"
        "links: [{from: h, to: s, speed: 1G, cable: " +
        cable + " m}]\n");
    EXPECT_EQ(parsed(to_yaml(fabric)).links.at(0).cable_metres, fabric.links.at(0).cable_metres) << cable;
  }
}

TEST(Fabric, WritesWhatItReads) {
  for (const std::string& text : {two_hosts("brownfield"), with_classes(7), two_hosts(R"({data: [
      {name: "007", dscp: 1, pcp: 0, service_level: 15, lossless: false, window: 300000}, {name: "true", dscp: 2, pcp: 1}],
      thresholds: [0.1]})")}) {
    const Fabric fabric = parsed(text);
    const std::string written = to_yaml(fabric);
    const Fabric again = parsed(written);
    EXPECT_EQ(to_yaml(again), written);
    ASSERT_EQ(again.classes.data.size(), fabric.classes.data.size());
    for (std::size_t i = 0; i < fabric.classes.data.size(); ++i) {
      const TrafficClass &a = fabric.classes.data[i], &b = again.classes.data[i];
      EXPECT_EQ(std::tie(a.name, a.dscp, a.pcp, a.service_level, a.lossless, a.rank, a.window),
                std::tie(b.name, b.dscp, b.pcp, b.service_level, b.lossless, b.rank, b.window));
    }
    EXPECT_EQ(again.classes.control.dscp, fabric.classes.control.dscp);
    EXPECT_EQ(again.classes.thresholds, fabric.classes.thresholds);
    ASSERT_EQ(again.hosts.size(), 2u);
    EXPECT_EQ(again.hosts[0].addresses, fabric.hosts[0].addresses);
    EXPECT_EQ(again.hosts[1].public_key, fabric.hosts[1].public_key);
    EXPECT_EQ(again.hosts[1].data_port, fabric.hosts[1].data_port);
    ASSERT_EQ(again.links.size(), 3u);
    EXPECT_EQ(again.links[0].buffer, fabric.links[0].buffer);
    EXPECT_EQ(again.links[2].speed, fabric.links[2].speed);
  }
}

TEST(Fabric, LoadReadsFromDisk) {
  const std::string path = ::testing::TempDir() + "fabric_test.yaml";
  std::ofstream(path) << two_hosts("greenfield");
  const auto fabric = load(path);
  ASSERT_TRUE(fabric.ok()) << fabric.status().to_string();
  EXPECT_EQ(fabric->path, path);
  std::remove(path.c_str());
}

TEST(Fabric, KeysMayBeMissingWhereTheyAreOptional) {
  const std::string text = "hosts: [{name: h0, addresses: {tcp: 10.0.0.1}}, {name: h1, addresses: {tcp: 10.0.0.2}}]";
  EXPECT_FALSE(parse(text, "f").ok());
  EXPECT_TRUE(parse(text, "f", Keys::kOptional).ok());
}

TEST(CheckAddresses, TakesAddressesAndNamesThatResolve) {
  Fabric fabric =
      parsed("hosts: [{name: h, addresses: {tcp: 127.0.0.1, rdma: \"::1\", dpdk: localhost, local: machine7}}]");
  const Status status = check_addresses(fabric, fabric.hosts.front());
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(CheckAddresses, NamesTheHostWhoseAddressDoesNotResolve) {
  // ".invalid" never resolves (RFC 2606); the resolver's own words differ between machines.
  for (const char* address : {"no-such-host.invalid", "10.77.0.256"}) {
    const Fabric fabric = parsed(std::string("\nhosts: [{name: h, addresses: {tcp: ") + address + "}}]");
    const Status status = check_addresses(fabric, fabric.hosts.front());
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.what(),
                ::testing::StartsWith(std::string("the tcp address '") + address + "' of host 'h' does not resolve ("));
    EXPECT_EQ(status.where(), "fabric.yaml:2");
    EXPECT_EQ(status.fix(), "expected an IPv4 or IPv6 address or a name that DNS or /etc/hosts knows");
  }
}

}  // namespace
}  // namespace tensorlane::fabric
