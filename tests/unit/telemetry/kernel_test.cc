// What the kernel says of threads and connections.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "daemon/telemetry/connections.h"
#include "daemon/telemetry/scheduler.h"

namespace tensorlane::telemetry {
namespace {

std::uint32_t this_thread() {
  return static_cast<std::uint32_t>(syscall(SYS_gettid));
}

TEST(Scheduler, SaysHowLongAThreadRan) {
  const auto process = static_cast<std::uint32_t>(getpid());
  const ThreadTimes before = read_thread_times(process, this_thread());
  if (!before.known) GTEST_SKIP() << "this kernel keeps no statistics of its scheduler";
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  while (std::chrono::steady_clock::now() < until) {
  }
  const ThreadTimes after = read_thread_times(process, this_thread());
  const std::uint64_t both = after.run_ns - before.run_ns + after.runnable_ns - before.runnable_ns;
  EXPECT_GT(after.run_ns, before.run_ns);
  EXPECT_GT(both, 30'000'000u);
  EXPECT_FALSE(read_thread_times(process, 1).known) << "a thread of another process";
  EXPECT_FALSE(read_thread_times(0, 0).known);
}

TEST(Scheduler, AddsUpThreadsByNameAndOnlySoMany) {
  const std::string proc = ::testing::TempDir() + fmt::format("proc{}", getpid());
  const auto add = [&](int thread, const std::string& name, const std::string& times) {
    const std::string folder = fmt::format("{}/7/task/{}", proc, thread);
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/comm") << name << "\n";
    std::ofstream(folder + "/schedstat") << times;
  };
  add(1, "main", "1000 1 1\n");
  add(2, "lane", "20 2 1\n");
  add(3, "lane1", "30 3 1\n");
  add(4, "lane2", "rubbish\n");
  const ThreadTimes lanes = read_process_times(7, 100, "lane", proc);
  EXPECT_TRUE(lanes.known);
  EXPECT_EQ(lanes.run_ns, 50u);
  EXPECT_EQ(lanes.runnable_ns, 5u);
  EXPECT_EQ(read_process_times(7, 100, "", proc).run_ns, 1050u);
  EXPECT_LT(read_process_times(7, 1, "", proc).run_ns, 1050u);
  EXPECT_FALSE(read_process_times(8, 100, "", proc).known);
  std::filesystem::remove_all(proc);
}

// A connection to itself, whose sender has sent so much.
TEST(Connections, AreFoundWithWhatTheyCarried) {
  for (const int family : {AF_INET, AF_INET6}) {
    const int listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0),
              sender = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in6 place{};
    socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof place;
    place.sin6_family = static_cast<sa_family_t>(family);
    if (family == AF_INET6) place.sin6_addr = in6addr_loopback;
    if (bind(listener, reinterpret_cast<sockaddr*>(&place), size) != 0) {
      close(listener);
      close(sender);
      continue;  // there is no IPv6
    }
    ASSERT_EQ(listen(listener, 1), 0);
    getsockname(listener, reinterpret_cast<sockaddr*>(&place), &size);
    ASSERT_EQ(connect(sender, reinterpret_cast<sockaddr*>(&place), size), 0);
    const int receiver = accept(listener, nullptr, nullptr);
    const std::string bytes(100'000, 'x');
    std::thread reader([&] {
      std::string got(bytes.size(), '\0');
      for (std::size_t all = 0; all < bytes.size();) {
        const ssize_t n = read(receiver, got.data(), got.size());
        if (n <= 0) break;
        all += static_cast<std::size_t>(n);
      }
    });
    EXPECT_EQ(write(sender, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    reader.join();
    const std::string remote = fmt::format("{}:{}", family == AF_INET ? "127.0.0.1" : "[::1]", ntohs(place.sin6_port));
    const auto all = read_tcp_connections(65536);
    if (!all.ok()) GTEST_SKIP() << all.status().to_string();
    const auto found = std::ranges::find(*all, remote, &TcpConnection::remote);
    ASSERT_NE(found, all->end()) << remote;
    EXPECT_GE(found->acked_bytes, bytes.size());
    EXPECT_GT(found->segments, 0u);
    EXPECT_GT(found->rtt, Duration(0));
    EXPECT_LE(found->min_rtt, found->rtt);
    EXPECT_TRUE(
        std::ranges::any_of(*all, [&](const auto& c) { return c.local == remote && c.remote == found->local; }));
    EXPECT_EQ(read_tcp_connections(1)->size(), 1u);
    for (const int fd : {listener, sender, receiver}) close(fd);
  }
}

}  // namespace
}  // namespace tensorlane::telemetry
