// Ten thousand strangers that connect, a process without descriptors, and one without privileges.
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "daemon/transport/handshake/listener.h"
#include "daemon/transport/tcp/tcp_transport.h"
#include "raw_peer.h"

namespace tensorlane::conformance {
namespace {

using ::testing::HasSubstr;

constexpr ClassId kUrgent{0};

void set_descriptor_limit(rlim_t soft) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min(soft, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// A process that opens `count` connections and says nothing until `hold` is closed. Exits with 0 if all could be
// opened.
pid_t stranger(std::uint16_t port, int count, int hold, int other_end) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::close(other_end);
  set_descriptor_limit(RLIM_INFINITY);
  int opened = 0;
  const auto endpoint = *handshake::parse_endpoint("127.0.0.1", port);
  for (int i = 0; i < count; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    opened += fd >= 0 && ::connect(fd, endpoint.get(), endpoint.length) == 0;
  }
  char byte;
  (void)!::read(hold, &byte, 1);
  ::_exit(opened == count ? 0 : 1);
}

TEST(Crowd, TenThousandSilentConnectionsDoNoHarm) {
  constexpr int kProcesses = 20, kEach = 500;
  TestClock clock;
  Host a(tcp_ipv4(), HostIndex(0)), b(tcp_ipv4(), HostIndex(1));
  a.add_job();
  b.add_job();
  int hold[2];
  ASSERT_EQ(::pipe(hold), 0);
  const std::size_t before = open_descriptors(), memory = resident_kib();
  std::vector<pid_t> strangers;
  for (int i = 0; i < kProcesses; ++i)
    strangers.push_back(stranger(static_cast<std::uint16_t>(b.data_port + 1), kEach, hold[0], hold[1]));
  // They are still coming when a good peer connects, and it gets through.
  ASSERT_TRUE(run_until(clock, {&a, &b}, [&] { return b->counters().accepted > 1000; }));
  const ports::FlowKey key{kJob, HostIndex(1), kUrgent};
  ASSERT_TRUE(a->connect(key, "127.0.0.1", b.data_port, clock.now() + seconds(60)).ok());
  ASSERT_TRUE(run_until(clock, {&a, &b}, [&] { return a.sink->up(key); }));
  ASSERT_TRUE(run_until(
      clock, {&a, &b}, [&] { return b->counters().accepted >= kProcesses * kEach; }, std::chrono::seconds(60)));
  EXPECT_LE(open_descriptors(), before + handshake::kMaxUnauthenticatedPerAddress + 10);
  EXPECT_LT(resident_kib(), memory + 32 * 1024);
  EXPECT_GE(b->counters().unauthenticated_dropped, kProcesses * kEach - handshake::kMaxUnauthenticatedPerAddress - 1);
  const auto bytes = pattern(1000, 1);
  a.send(key, {data_header(), bytes, 0});
  ASSERT_TRUE(run_until(clock, {&a, &b}, [&] { return b.sink->frames.size() == 1; }));
  // The last of them are dropped for their silence.
  clock.skip(seconds(6));
  run_for(clock, {&a, &b}, std::chrono::milliseconds(20));
  EXPECT_LE(open_descriptors(), before + 5);
  EXPECT_TRUE(b.sink->downs.empty());
  ::close(hold[1]);
  ::close(hold[0]);
  for (const pid_t pid : strangers) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0) << "a stranger could not open its connections";
  }
}

TEST(Crowd, APeerThatHasSpokenIsNotDroppedForSilentOnes) {
  TestClock clock;
  Host b(tcp_ipv4(), HostIndex(1));
  b.add_job();
  RawPeer early(clock, b, kUrgent);
  const auto hello = good_hello(kUrgent);
  early.send_message(hello);
  const auto challenge = early.receive_message<handshake::Challenge>();
  std::vector<RawPeer> silent;
  for (std::size_t i = 0; i < handshake::kMaxUnauthenticated + 50; ++i) silent.emplace_back(clock, b, kUrgent);
  early.send_message(good_proof(hello, challenge.nonce));
  EXPECT_EQ(early.receive_message<handshake::Verdict>().head.refusal, handshake::Refusal::kNone);
}

// Before somebody who has shown a key of the job, strangers give way who have said just anything; and those of another
// address do not pay for a crowd.
TEST(Crowd, WhoGivesWayIsTheLeastProvenOfTheAddressThatCrowds) {
  TestClock clock;
  Host b(tcp_ipv4(), HostIndex(1));
  b.add_job();
  const auto from = [&](const char* address) {
    const auto local = *handshake::parse_endpoint(address, 0);
    const auto remote = *handshake::parse_endpoint("127.0.0.1", static_cast<std::uint16_t>(b.data_port + 1));
    handshake::Fd socket(::socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(::bind(socket.get(), local.get(), local.length), 0);
    EXPECT_EQ(::connect(socket.get(), remote.get(), remote.length), 0);
    return RawPeer(clock, b, std::move(socket));
  };
  RawPeer elsewhere = from("127.0.0.2");
  RawPeer babbling(clock, b, kUrgent);
  const std::byte byte = handshake::bytes_of(good_hello(kUrgent))[0];
  babbling.send({&byte, 1});
  RawPeer early(clock, b, kUrgent);
  const auto hello = good_hello(kUrgent);
  early.send_message(hello);
  const auto challenge = early.receive_message<handshake::Challenge>();
  std::vector<RawPeer> crowd;
  const auto crowds = [&](std::size_t count, bool speaks) {
    for (std::size_t i = 0; i < count; ++i) {
      crowd.emplace_back(clock, b, kUrgent);
      if (speaks) crowd.back().send({&byte, 1});
    }
    run_for(clock, {&b}, std::chrono::milliseconds(20));
  };
  crowds(handshake::kMaxUnauthenticatedPerAddress + 20, false);
  EXPECT_TRUE(crowd.front().closed()) << "the first of those that say nothing";
  crowds(handshake::kMaxUnauthenticatedPerAddress - 2, true);
  babbling.send({&byte, 1});
  EXPECT_EQ(b->counters().refused, 0U) << "nobody has been heard to the end";
  crowds(20, true);
  EXPECT_TRUE(babbling.closed()) << "nobody is silent any more, and it is the first of the others";
  early.send_message(good_proof(hello, challenge.nonce));
  EXPECT_EQ(early.receive_message<handshake::Verdict>().head.refusal, handshake::Refusal::kNone);
  elsewhere.send_message(hello);
  EXPECT_EQ(elsewhere.receive_message<handshake::Challenge>().head.refusal, handshake::Refusal::kNone);
}

// Runs `body` in a process of its own, which may give up what it needs; its exit status says how many expectations
// failed.
constexpr int kSkipped = 77;
template <typename Body>
int in_child(const Body& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    body();
    ::_exit(::testing::Test::HasFailure() ? 1 : ::testing::Test::IsSkipped() ? kSkipped : 0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

TEST(Crowd, WithoutDescriptorsStrangersGiveWayAndFlowsLive) {
  EXPECT_EQ(in_child([] {
              TestClock clock;
              Pair pair(tcp_ipv4());
              // The strangers live in another process: the limit is this one's.
              int hold[2];
              ASSERT_EQ(::pipe(hold), 0);
              const pid_t pid = stranger(static_cast<std::uint16_t>(pair.b.data_port + 1), 200, hold[0], hold[1]);
              set_descriptor_limit(open_descriptors() + 20);
              ASSERT_TRUE(run_until(clock, {&pair.a, &pair.b}, [&] { return pair.b->counters().accepted >= 200; }));
              const auto bytes = pattern(1000, 1);
              pair.send(pair.a, pair.to_b(kUrgent), bytes);
              ASSERT_TRUE(pair.run_until([&] { return pair.b.sink->frames.size() == 1; }));
              EXPECT_TRUE(pair.b.sink->downs.empty());
              ::close(hold[1]);
              ::kill(pid, SIGKILL);
              ::waitpid(pid, nullptr, 0);
            }),
            0);
}

TEST(Crowd, WithoutAnyDescriptorAListenerRestsInsteadOfSpinning) {
  EXPECT_EQ(in_child([] {
              TestClock clock;
              Host b(tcp_ipv4(), HostIndex(1));
              const handshake::Fd socket(::socket(AF_INET, SOCK_STREAM, 0));
              set_descriptor_limit(static_cast<rlim_t>(socket.get()) + 1);
              const auto endpoint =
                  *handshake::parse_endpoint("127.0.0.1", static_cast<std::uint16_t>(b.data_port + 1));
              ASSERT_EQ(::connect(socket.get(), endpoint.get(), endpoint.length), 0);
              b->poll(clock.now());
              EXPECT_EQ(b->counters().accepted, 0u);
              pollfd wait{b->wake_fd(), POLLIN, 0};
              EXPECT_EQ(::poll(&wait, 1, 20), 0) << "a lane that blocks on the transport would spin";
              set_descriptor_limit(1000);
              EXPECT_TRUE(run_until(clock, {&b}, [&] { return b->counters().accepted == 1; }));  // after its rest
            }),
            0);
}

TEST(Privilege, PrioritySevenBecomesSixWithAWarning) {
  const int status = in_child([] {
    if (::getuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) GTEST_SKIP() << "cannot give up privileges";
    LogCapture log;
    HostOptions options;
    options.classes[1].tag.pcp = 7;
    Pair pair(tcp_ipv4(), options);
    EXPECT_THAT(log.text(), HasSubstr("class 0: priority 7 needs the privilege CAP_NET_ADMIN, which this process "
                                      "lacks: frames leave with priority 6"));
    EXPECT_EQ(pair.a.stats(pair.to_b(kUrgent)).effective_pcp, 6);
    EXPECT_EQ(pair.b.stats(pair.to_a(kUrgent)).effective_pcp, 6);
    EXPECT_EQ(pair.b.stats(pair.to_a(kUrgent)).effective_dscp, 43);
  });
  if (status == kSkipped) GTEST_SKIP() << "this user cannot give up its privileges";
  EXPECT_EQ(status, 0);
}

TEST(Configuration, ErrorsSayWhatAndWhere) {
  RecordingSink sink;
  Host host(tcp_ipv4(), HostIndex(0));
  const auto make = [&](const std::function<void(tcp::TcpConfig&)>& change) {
    tcp::TcpConfig config;
    config.listen_address = "127.0.0.1";
    config.data_port = host.data_port;
    for (const ClassSetup& c : three_classes()) config.classes.push_back({c.tag, c.window});
    change(config);
    auto made = tcp::make_tcp_transport(config, sink);
    EXPECT_FALSE(made.ok());
    return made.ok() ? std::string() : made.status().to_string();
  };
  EXPECT_EQ(make([](auto&) {}),
            "cannot listen for class control: Address already in use: 127.0.0.1:" + std::to_string(host.data_port) +
                ": stop the other program (perhaps a daemon of this host that runs already), or give this host another "
                "data_port in fabric.yaml");
  EXPECT_THAT(make([](auto& c) { c.listen_address = "gpu-7"; }),
              HasSubstr("'gpu-7' is not a numeric IPv4 or IPv6 address"));
  EXPECT_THAT(make([](auto& c) { c.listen_address = "203.0.113.9"; }),
              HasSubstr("Cannot assign requested address: 203.0.113.9:"));
  EXPECT_THAT(make([](auto& c) { c.data_port = 65535; }), HasSubstr("data_port 65535 is too high"));
  EXPECT_THAT(make([](auto& c) {
                c.classes.pop_back();
                c.classes.pop_back();
              }),
              HasSubstr("needs the control class and a data class"));
  EXPECT_THAT(make([](auto& c) { c.classes.push_back(c.classes[1]); }), HasSubstr("class 0 is there twice"));
  EXPECT_THAT(make([](auto& c) { c.classes[1].tag.dscp = 64; }), HasSubstr("class 0 has DSCP 64"));
}

}  // namespace
}  // namespace tensorlane::conformance
