// What can be wrong has a name, and ends no process.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>

#include "ports.h"

namespace tensorlane::dpdk::testing {
namespace {

using ::testing::ExitedWithCode;

TEST_F(PortTest, DevicesThatCannotBe) {
  const auto refused = [](const std::string& device) {
    PortConfig wrong = config(1);
    wrong.device = device;
    const auto port = open_port(wrong);
    return port.ok() ? Status() : port.status();
  };
  const Status unknown = refused("net_af_packet1,iface=nowhere0");
  EXPECT_EQ(unknown.code(), Code::kNotFound) << unknown.to_string();
  EXPECT_THAT(unknown.what(), ::testing::HasSubstr("no network interface \"nowhere0\""));
  EXPECT_EQ(refused("net_af_packet1").code(), Code::kInvalidArgument);
  const Status loopback = refused("net_af_packet1,iface=lo");
  EXPECT_EQ(loopback.code(), Code::kInvalidArgument) << loopback.to_string();
  EXPECT_THAT(loopback.to_string(), ::testing::HasSubstr("name a NIC, not loopback"));
  EXPECT_EQ(refused("net_af_packet1,iface=tla,bogus=1").code(), Code::kInternal)
      << refused("net_af_packet1,iface=tla,bogus=1").to_string();
  EXPECT_EQ(refused("net_af_packet1,iface=tla,qpairs=1").code(), Code::kInvalidArgument) << "three classes";
  const Status nothing = refused("net_nothing0");
  EXPECT_EQ(nothing.code(), Code::kNotFound) << nothing.to_string();
  EXPECT_THAT(nothing.to_string(), ::testing::HasSubstr("has none of that name"));
  PortConfig longer = config(1);
  longer.mtu = 9000;
  EXPECT_THAT(open_port(longer).status().to_string(), ::testing::HasSubstr("ip link set dev tla mtu 9000"));
  EXPECT_FALSE(refused("0000:ff:1f.7").ok()) << "no such card";
  EXPECT_EQ(refused("eth0").code(), Code::kInvalidArgument);
  auto first = open(config(1));
  ASSERT_TRUE(first);
  EXPECT_EQ(refused("net_af_packet1,iface=tla").code(), Code::kAlreadyExists);
  first.reset();
  EXPECT_TRUE(open(config(1))) << "it was given back";
}

TEST_F(PortTest, EalStartsOnce) {
  EXPECT_TRUE(start_eal({{"--no-huge", "-m", "512", "--no-pci"}}).ok());
  EXPECT_EQ(start_eal({{"--no-huge", "-m", "128"}}).code(), Code::kAlreadyExists);
}

// Each of these starts DPDK in a process of its own.
struct EalDeathTest : ::testing::Test {
  EalDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  // Starts EAL and a port with standard output in a file, which stays empty, and says how that went.
  [[noreturn]] static void try_it(const std::vector<std::string>& arguments) {
    spdlog::set_default_logger(spdlog::stderr_logger_mt("stderr"));
    char name[] = "/tmp/tl-stdout-XXXXXX";
    const int file = mkstemp(name);
    unlink(name);
    std::fflush(stdout);
    dup2(file, STDOUT_FILENO);
    Status status = start_eal({arguments});
    if (status.ok()) {
      const std::string reason = make_network();
      auto port = open_port(config(1));
      status = port.ok() ? Status() : port.status();
    }
    std::fflush(stdout);
    std::fprintf(stderr, "[%s] %s, %ld bytes of output\n", code_name(status.code()), status.to_string().c_str(),
                 static_cast<long>(lseek(file, 0, SEEK_END)));
    _exit(0);
  }
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root";
  }
};

TEST_F(EalDeathTest, RefusesArguments) {
  EXPECT_EXIT(try_it({"--bogus"}), ExitedWithCode(0), "invalid argument. .*no such argument.*, 0 bytes");
  EXPECT_EXIT(try_it({"--help"}), ExitedWithCode(0), "invalid argument. .*ends the process.*, 0 bytes");
  EXPECT_EXIT(try_it({"--hel"}), ExitedWithCode(0), "invalid argument. .*, 0 bytes");
  EXPECT_EXIT(try_it({"--vfio-intr=sometimes"}), ExitedWithCode(0), "invalid argument. .*, 0 bytes");
  EXPECT_EXIT(try_it({"--base-virtaddr=here"}), ExitedWithCode(0), "invalid argument. .*, 0 bytes");
  EXPECT_EXIT(try_it({"--no-huge", "--in-memory"}), ExitedWithCode(0), "invalid argument. .*, 0 bytes");
}

TEST_F(EalDeathTest, SaysThatThereIsNoMemory) {
  EXPECT_EXIT(try_it({"--no-huge", "-m", "1"}), ExitedWithCode(0), "resource exhausted. .*packet buffers.*, 0 bytes");
  EXPECT_EXIT(try_it({"--no-huge", "-m", "1000000"}), ExitedWithCode(0), "resource exhausted. .*MiB left.*, 0 bytes");
}

// Fewer bytes of address space than EAL asks for.
[[noreturn]] void try_without_address_space() {
  const rlimit few{1UL << 30, 1UL << 30};
  setrlimit(RLIMIT_AS, &few);
  EalDeathTest::try_it({"--no-huge", "-m", "900"});
}

TEST_F(EalDeathTest, SaysThatItGotNoMemory) {
  EXPECT_EXIT(try_without_address_space(), ExitedWithCode(0), "resource exhausted. .*, 0 bytes");
}

TEST_F(EalDeathTest, SaysThatItMayNot) {
  const auto unprivileged = [] {
    if (start_eal({}).ok() && make_network().empty() && setuid(65534) == 0) {
      const auto port = open_port(config(1));
      std::fprintf(stderr, "%s\n", port.status().to_string().c_str());
    }
    _exit(0);
  };
  EXPECT_EXIT(unprivileged(), ExitedWithCode(0), "may not open packet sockets");
}

}  // namespace
}  // namespace tensorlane::dpdk::testing
