#include "daemon/transport/dpdk/ethdev/eal_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/transport/dpdk/ethdev/device_string.h"

namespace tensorlane::dpdk {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using Words = std::vector<std::string>;

const EalContext kSmall{.huge_pages = false, .process = 77, .cpus = {0, 2, 130}, .available_memory = mib(4096)};
const EalContext kHuge{.huge_pages = true, .process = 77, .cpus = {1}, .available_memory = mib(4096)};

std::string refused(const Words& given) {
  const auto arguments = eal_arguments(given, kSmall);
  return arguments.ok() ? "" : arguments.status().to_string();
}

TEST(EalArguments, FillInWhatIsNotSaid) {
  EXPECT_THAT(eal_arguments({}, kSmall).value(),
              ElementsAre("--no-huge", "-m", "256", "--no-shconf", "--no-pci", "--file-prefix=tensorlaned-77",
                          "--no-telemetry", "--lcores=0@(0,2)"));
  EXPECT_THAT(eal_arguments({}, kHuge).value(), ElementsAre("--in-memory", "--no-pci", "--file-prefix=tensorlaned-77",
                                                            "--no-telemetry", "--lcores=0@(1)"));
}

TEST(EalArguments, KeepWhatIsSaid) {
  const Words given{"-m", "512", "-a", "0000:3b:00.0", "--file-prefix", "mine", "--telemetry"};
  const Words all = eal_arguments(given, kSmall).value();
  EXPECT_TRUE(std::equal(given.begin(), given.end(), all.begin()));
  EXPECT_THAT(all, Not(Contains("--no-pci")));
  EXPECT_THAT(all, Not(Contains("256")));
  EXPECT_THAT(all, Not(Contains("--no-telemetry")));
  EXPECT_THAT(all, Contains("--no-huge"));
  EXPECT_THAT(eal_arguments({"--huge-dir=/mnt/huge"}, kHuge).value(), Not(Contains("--in-memory")));
  EXPECT_THAT(eal_arguments({"--in-memory"}, kSmall).value(), Not(Contains("--no-huge")));
  EXPECT_THAT(eal_arguments({"-m512"}, kSmall).value(), Not(Contains("256")));
}

TEST(EalArguments, RefuseWhatEndsOrTakesOverTheProcess) {
  for (const char* const argument : {"--help", "-h", "-v", "--version"})
    EXPECT_THAT(refused({argument}), HasSubstr("ends the process")) << argument;
  for (const char* const argument : {"-l", "-c", "--lcores=0-3", "--lcores", "-l0-3", "--main-lcore", "-s"})
    EXPECT_THAT(refused({argument}), HasSubstr("lanes are the only threads")) << argument;
  EXPECT_THAT(refused({"--log-level", "help"}), HasSubstr("ends the process"));
  EXPECT_THAT(refused({"--log-level=help"}), HasSubstr("ends the process"));
  EXPECT_THAT(refused({"--proc-type=secondary"}), HasSubstr("refused"));
  for (const char* const end : {"", "x"})
    EXPECT_THAT(refused({std::string("--log-level=help\0", 17) + end}), HasSubstr("control character"));
}

TEST(EalArguments, RefuseWhatIsNotKnownOrComplete) {
  // getopt would take the first for --help.
  for (const char* const argument : {"--hel", "--no-hug", "--bogus", "-x", "word", "-", "--", ""})
    EXPECT_THAT(refused({argument}), HasSubstr("no such argument")) << argument;
  EXPECT_THAT(refused({"-m"}), HasSubstr("lacks its value"));
  EXPECT_THAT(refused({"--file-prefix="}), HasSubstr("lacks its value"));
  EXPECT_THAT(refused({"--no-pci=1"}), HasSubstr("takes no value"));
  for (const char* const value : {"0", "-1", "abc", "12x", "99999999999"})
    EXPECT_THAT(refused({"-m", value}), HasSubstr("no number above 0")) << value;
  EXPECT_THAT(refused({"--iova-mode=x"}), HasSubstr("pa or va"));
  EXPECT_THAT(refused({"--file-prefix=../x"}), HasSubstr("no /"));
}

TEST(EalArguments, RefuseMoreMemoryThanThereIs) {
  const auto arguments = eal_arguments({"-m", "5000"}, kSmall);
  EXPECT_EQ(arguments.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(arguments.status().to_string(), HasSubstr("4096 MiB left"));
}

TEST(DeviceString, IsReadAndWritten) {
  const DeviceString device = parse_device("net_af_packet0,iface=veth0,qdisc_bypass").value();
  EXPECT_EQ(device.name, "net_af_packet0");
  EXPECT_TRUE(device.driver_is("net_af_packet"));
  EXPECT_FALSE(device.driver_is("net_af"));
  EXPECT_EQ(device.argument("iface"), "veth0");
  EXPECT_EQ(device.argument("qdisc_bypass"), "");
  EXPECT_EQ(device.argument("qpairs"), std::nullopt);
  EXPECT_EQ(device.to_string(), "net_af_packet0,iface=veth0,qdisc_bypass");
  EXPECT_TRUE(parse_device("0000:3b:00.0").value().pci);
  EXPECT_EQ(parse_device("3b:00.0").value().name, "0000:3b:00.0");
  for (const char* const text : {"", "eth0", "net_x,", "net_x,,a=b", "net_x,=b", ",a=b", "net_x a", "net_X0", "net_x\n",
                                 "net_x,a=b,a=c", "net_x,a,a"})
    EXPECT_FALSE(parse_device(text).ok()) << text;
  EXPECT_FALSE(parse_device("net_" + std::string(70, 'x')).ok());
}

TEST(DeviceString, GetsWhatPacketSocketsNeed) {
  DeviceString device = parse_device("net_af_packet0,iface=veth0").value();
  complete_device(device, 5, 1500, 512);
  EXPECT_EQ(device.to_string(), "net_af_packet0,iface=veth0,qpairs=5,framecnt=512");
  complete_device(device, 7, 1500, 1024);
  EXPECT_EQ(device.argument("qpairs"), "5") << "it was there";
  device = parse_device("net_af_packet0,iface=veth0").value();
  complete_device(device, 1, 9000, 512);
  EXPECT_EQ(device.argument("framesz"), "10240");
  device = parse_device("net_memif0,role=client").value();
  complete_device(device, 5, 9000, 512);
  EXPECT_EQ(device.to_string(), "net_memif0,role=client");
}

}  // namespace
}  // namespace tensorlane::dpdk
