// How fast a port sends, beside dpdk-testpmd on the same cable in the same run.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <thread>

#include "ports.h"

namespace tensorlane::dpdk::testing {
namespace {

constexpr std::size_t kFrame = 1400;  // without the FCS
constexpr Duration kTime = seconds(2);

double million_per_second(std::uint64_t frames, Duration time) {
  return static_cast<double>(frames) / to_seconds(time) / 1e6;
}

// Frames per microsecond that reach tlb from testpmd, in the middle of its run. Negative: it did not start.
double of_testpmd() {
  const pid_t child = fork();
  if (child == 0) {
    std::freopen("/dev/null", "w", stdout);
    std::freopen("/dev/null", "w", stderr);
    std::freopen("/dev/null", "r", stdin);
    execlp("dpdk-testpmd", "dpdk-testpmd", "--lcores", "0@0,1@0", "--no-huge", "-m", "256", "--no-pci",
           "--no-telemetry", "--file-prefix=tensorlane-rate", "--vdev=net_af_packet0,iface=tla", "--",
           "--forward-mode=txonly", "--txpkts=1400", "--auto-start", "--stats-period=1", "--total-num-mbufs=16384",
           "--no-mlockall", nullptr);
    _exit(127);
  }
  const std::uint64_t before = received_frames("tlb");
  for (int i = 0; i < 100 && received_frames("tlb") < before + 1000; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::uint64_t first = received_frames("tlb");
  const Time begin = now();
  std::this_thread::sleep_for(std::chrono::nanoseconds(kTime.value));
  const double rate = million_per_second(received_frames("tlb") - first, now() - begin);
  kill(child, SIGINT);
  waitpid(child, nullptr, 0);
  return first < before + 1000 ? -1 : rate;
}

// The same of a port, whose payloads are copied and whose checksums are computed.
double of_port(PacketPort& port, PeerId peer) {
  const std::string payload(kFrame - 42, 'x');
  std::array<std::span<const std::byte>, 32> burst;
  burst.fill(bytes(payload));
  const std::uint64_t first = received_frames("tlb");
  const Time begin = now();
  while (now() - begin < kTime) send(port, 0, {peer, 50001}, burst);
  return million_per_second(received_frames("tlb") - first, now() - begin);
}

TEST_F(PortTest, SendsAsFastAsTestpmd) {
  if (!run("command -v dpdk-testpmd >/dev/null")) GTEST_SKIP() << "needs dpdk-testpmd (Debian: dpdk-dev)";
  const double peer_rate = of_testpmd();
  ASSERT_GT(peer_rate, 0) << "dpdk-testpmd sends nothing";
  PortConfig of_a = config(1);
  of_a.neighbours = {{ip("10.9.0.2"), {2, 0, 0, 0, 0, 2}}};
  auto a = open(of_a);
  ASSERT_TRUE(a);
  const PeerId peer = a->add_peer(ip("10.9.0.2")).value();
  const double rate = of_port(*a, peer);
  const std::uint64_t sent = a->counts().sent[0].packets;
  std::printf("frames of %zu bytes: port %.3f, dpdk-testpmd txonly %.3f million a second, ratio %.2f\n", kFrame, rate,
              peer_rate, rate / peer_rate);
  EXPECT_GT(sent, 0U);
  EXPECT_GT(rate / peer_rate, 0.3);
}

// One thread sends and receives.
TEST_F(PortTest, BringsPayloadsFromPortToPort) {
  PortConfig of_a = config(1), of_b = config(2);
  auto a = open(of_a), b = open(of_b);
  ASSERT_TRUE(a && b);
  const PeerId peer = a->add_peer(ip("10.9.0.2")).value();
  ASSERT_TRUE(becomes_reachable(*a, peer, b.get()));
  const std::string payload(kFrame - 42, 'x');
  std::array<std::span<const std::byte>, 32> burst;
  burst.fill(bytes(payload));
  std::array<Received, 64> some;
  std::uint64_t sent = 0, received = 0, wrong = 0;
  const Time begin = now();
  while (now() - begin < seconds(1)) {
    sent += send(*a, 0, {peer, 50001}, burst);
    while (const std::size_t count = b->receive(now(), some)) {
      received += count;
      for (const Received& one : std::span(some).first(count))
        if (one.payload.size() != payload.size() || one.payload.back() != std::byte{'x'}) ++wrong;
    }
  }
  const Duration time = now() - begin;
  std::printf("port to port, one thread: %.3f million a second of %zu bytes sent, %.3f received, checksums looked at\n",
              million_per_second(sent, time), kFrame, million_per_second(received, time));
  EXPECT_EQ(wrong, 0U);
  EXPECT_GT(received, sent / 2);
}

}  // namespace
}  // namespace tensorlane::dpdk::testing
