// The probing library over loopback: what arrives, whoever does not know the token, peers that hang or talk rubbish,
// and the commands of tensorlane-probe.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "common/json/json.h"
#include "common/probe/answerer.h"
#include "common/probe/host.h"
#include "common/probe/load.h"
#include "common/probe/packet.h"
#include "common/probe/prober.h"
#include "common/probe/session.h"

namespace tensorlane::probe {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr Token kToken{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

// A port of loopback that nothing has.
std::uint16_t free_port(const std::string& address) {
  const Address any = *Address::parse(address, 0);
  const Socket socket = make_tagged(any, {});
  return bind_to(socket.fd(), any) == 0 && ::listen(socket.fd(), 1) == 0 ? local_port(socket.fd()) : 0;
}

FlowSpec flow_to(const std::string& address, std::uint16_t port, std::uint8_t dscp = 43) {
  return {.id = 7, .address = address, .port = port, .source = address, .tag = {dscp, 5}};
}

Arrival probe_once(const FlowSpec& flow, const Token& token = kToken, int timeout_ms = 2000) {
  Arrival last;
  probe({flow}, {.token = token, .timeout_ms = timeout_ms}, nullptr, [&](const Arrival& arrival) { last = arrival; });
  return last;
}

class OverLoopback : public ::testing::TestWithParam<const char*> {};

TEST_P(OverLoopback, SaysHowTheFirstPacketCame) {
  const std::uint16_t port = free_port(GetParam());
  Answerer answerer(kToken, nullptr);
  ASSERT_EQ(answerer.listen_at({GetParam(), port, {12, 1}}), 0);
  answerer.start();
  const Arrival arrival = probe_once(flow_to(GetParam(), port));
  EXPECT_EQ(arrival.id, 7U);
  EXPECT_EQ(arrival.outcome, Outcome::kArrived);
  EXPECT_EQ(arrival.answer.dscp, 43);
  EXPECT_EQ(arrival.answer.hop_limit, kHopLimit);
  EXPECT_EQ(arrival.own.dscp, 43);
  EXPECT_EQ(arrival.own.priority, 5);
  EXPECT_NE(arrival.source_port, 0);
}

TEST_P(OverLoopback, TellsAStrangerNothing) {
  const std::uint16_t port = free_port(GetParam());
  Answerer answerer(kToken, nullptr);
  ASSERT_EQ(answerer.listen_at({GetParam(), port, {}}), 0);
  answerer.start();
  Token other = kToken;
  other.back() ^= 1;
  EXPECT_EQ(probe_once(flow_to(GetParam(), port), other).outcome, Outcome::kSilent);
  EXPECT_EQ(probe_once(flow_to(GetParam(), port)).outcome, Outcome::kArrived);
}

INSTANTIATE_TEST_SUITE_P(Families, OverLoopback, ::testing::Values("127.0.0.1", "::1"),
                         [](const auto& info) { return std::string(info.index == 0 ? "IPv4" : "IPv6"); });

// Takes one connection and does with it what it is told.
class Peer {
 public:
  explicit Peer(std::function<void(int)> act) : listener_(make_tagged(*Address::parse("127.0.0.1", 0), {})) {
    EXPECT_EQ(bind_to(listener_.fd(), *Address::parse("127.0.0.1", 0)), 0);
    EXPECT_EQ(::listen(listener_.fd(), 4), 0);
    port = local_port(listener_.fd());
    thread_ = std::thread([this, act = std::move(act)] {
      for (int tries = 0; tries < 500; ++tries) {
        const Socket taken(::accept(listener_.fd(), nullptr, nullptr));
        if (taken.valid()) return act(taken.fd());
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
  }
  ~Peer() { thread_.join(); }

  std::uint16_t port = 0;

 private:
  Socket listener_;
  std::thread thread_;
};

TEST(Prober, NamesWhatWentWrong) {
  EXPECT_EQ(probe_once(flow_to("127.0.0.1", free_port("127.0.0.1"))).outcome, Outcome::kRefused);
  EXPECT_EQ(probe_once({.address = "127.0.0.1", .port = 1, .source = "192.0.2.77"}).outcome, Outcome::kLocal);
  EXPECT_EQ(probe_once({.address = "127.0.0.1", .port = 1, .source = "::1"}).outcome, Outcome::kLocal);
  EXPECT_EQ(probe_once({.address = "no address", .port = 1, .source = "::1"}).outcome, Outcome::kLocal);
}

TEST(Prober, GivesAHangingPeerUp) {
  Peer peer([](int) { std::this_thread::sleep_for(std::chrono::milliseconds(400)); });
  EXPECT_EQ(probe_once(flow_to("127.0.0.1", peer.port), kToken, 150).outcome, Outcome::kHangs);
}

// What the deadline leaves out, and what it cuts short, is not lost: nobody has waited for it.
TEST(Prober, WhatTheDeadlineLeavesOutWasNotSent) {
  Peer peer([](int) { std::this_thread::sleep_for(std::chrono::milliseconds(400)); });
  const std::vector<FlowSpec> flows(3, flow_to("127.0.0.1", peer.port));
  std::vector<Arrival> all;
  probe(flows, {.token = kToken, .at_once = 1, .deadline_ms = 150}, nullptr,
        [&](const Arrival& arrival) { all.push_back(arrival); });
  ASSERT_THAT(all, SizeIs(3));
  for (const Arrival& arrival : all) EXPECT_STREQ(outcome_name(arrival.outcome), "not_sent");
  EXPECT_NE(all[0].source_port, 0) << "cut short";
  EXPECT_EQ(all[2].source_port, 0) << "left out";
}

TEST(Prober, BelievesNoRubbish) {
  const auto answer_with = [](std::function<void(Answer&)> spoil) {
    Peer peer([spoil](int fd) {
      Hello hello;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      EXPECT_EQ(::recv(fd, &hello, sizeof hello, MSG_WAITALL), static_cast<ssize_t>(sizeof hello));
      Answer answer{.dscp = 43, .nonce = hello.nonce};
      spoil(answer);
      EXPECT_EQ(::send(fd, &answer, sizeof answer, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof answer));
    });
    return probe_once(flow_to("127.0.0.1", peer.port)).outcome;
  };
  EXPECT_EQ(answer_with([](Answer&) {}), Outcome::kArrived);
  EXPECT_EQ(answer_with([](Answer& answer) { answer.magic ^= 1; }), Outcome::kRubbish);
  EXPECT_EQ(answer_with([](Answer& answer) { answer.nonce ^= 1; }), Outcome::kRubbish);
  EXPECT_EQ(answer_with([](Answer& answer) { answer.dscp = 64; }), Outcome::kRubbish);
  EXPECT_EQ(answer_with([](Answer& answer) { answer.pcp = 9; }), Outcome::kRubbish);
}

TEST(Answering, WhoSaysNothingIsClosed) {
  const std::uint16_t port = free_port("127.0.0.1");
  Answerer answerer(kToken, nullptr);
  ASSERT_EQ(answerer.listen_at({"127.0.0.1", port, {}}), 0);
  answerer.start();
  const Socket silent = make_tagged(*Address::parse("127.0.0.1", 0), {});
  const Address to = *Address::parse("127.0.0.1", port);
  const int connected = ::connect(silent.fd(), to.get(), to.length);
  ASSERT_TRUE(connected == 0 || errno == EINPROGRESS);
  pollfd waited{silent.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&waited, 1, static_cast<int>(kHelloMilliseconds) / 2), 0) << "it may take a while";
  EXPECT_EQ(::poll(&waited, 1, 4 * static_cast<int>(kHelloMilliseconds)), 1);
}

TEST(Load, CountsABurstAndMeasuresMessages) {
  const std::uint16_t port = free_port("127.0.0.1");
  Answerer answerer(kToken, nullptr);
  ASSERT_EQ(answerer.listen_at({"127.0.0.1", port, {}}), 0);
  answerer.start();
  BurstSpec stream{.flow = flow_to("127.0.0.1", port), .source_ports = {0, 0}, .duration_ms = 50};
  stream.max_bytes = 1 << 20;
  BurstSpec echo{.flow = flow_to("127.0.0.1", port), .purpose = Purpose::kEcho, .duration_ms = 50};
  const auto began = std::chrono::steady_clock::now();
  const auto seen = load({stream, echo}, kToken);
  const auto took = std::chrono::steady_clock::now() - began;
  ASSERT_THAT(seen, SizeIs(2));
  EXPECT_EQ(seen[0].outcome, Outcome::kArrived);
  ASSERT_THAT(seen[0].streams, SizeIs(2));
  for (const auto& one : seen[0].streams) {
    std::uint64_t bytes = 0;
    for (const std::uint64_t slot : one.bytes) bytes += slot;
    EXPECT_GE(bytes, stream.max_bytes);
    EXPECT_LE(bytes, 2 * stream.max_bytes);
  }
  EXPECT_EQ(seen[1].outcome, Outcome::kArrived);
  EXPECT_FALSE(seen[1].delays_us.empty());
  std::uint64_t waited_us = 0;
  for (const std::uint32_t delay : seen[1].delays_us) waited_us += delay;
  EXPECT_GT(waited_us, seen[1].delays_us.size()) << "a message and its answer take more than a microsecond";
  EXPECT_LE(std::chrono::microseconds(waited_us), took) << "one goes at a time";
}

// Of several streams one that fails is the burst's outcome, also where the others end later.
TEST(Load, AStreamThatFailsIsNotHidden) {
  const std::uint16_t port = free_port("127.0.0.1");
  Answerer answerer(kToken, nullptr);
  ASSERT_EQ(answerer.listen_at({"127.0.0.1", port, {}}), 0);
  answerer.start();
  const Address any = *Address::parse("127.0.0.1", 0);
  const Socket taken = make_tagged(any, {});
  ASSERT_TRUE(bind_to(taken.fd(), any) == 0 && ::listen(taken.fd(), 1) == 0);
  for (const bool first : {true, false}) {
    BurstSpec burst{.flow = flow_to("127.0.0.1", port), .source_ports = {0, 0}, .duration_ms = 50};
    burst.max_bytes = 1 << 20;
    burst.source_ports[first ? 0 : 1] = local_port(taken.fd());
    const auto seen = load({burst}, kToken);
    ASSERT_THAT(seen, SizeIs(1));
    EXPECT_EQ(seen[0].outcome, Outcome::kLocal) << first;
  }
}

// A service that says again what it hears has not agreed to a burst.
TEST(Load, NothingGoesToWhoOnlyRepeatsTheHello) {
  std::atomic<ssize_t> more = -1;
  {
    Peer peer([&more](int fd) {
      std::array<char, sizeof(Hello)> hello{};
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      EXPECT_EQ(::recv(fd, hello.data(), hello.size(), MSG_WAITALL), static_cast<ssize_t>(hello.size()));
      EXPECT_EQ(::send(fd, hello.data(), hello.size(), MSG_NOSIGNAL), static_cast<ssize_t>(hello.size()));
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      more = std::max<ssize_t>(::recv(fd, hello.data(), hello.size(), MSG_DONTWAIT), 0);
    });
    const BurstSpec stream{.flow = flow_to("127.0.0.1", peer.port), .duration_ms = 50};
    EXPECT_EQ(load({stream}, kToken)[0].outcome, Outcome::kRubbish);
  }
  EXPECT_EQ(more, 0);
}

// A listener of somebody else, as a daemon's, which hands what comes to an answerer that does not listen itself.
class Channel : public ::testing::Test {
 protected:
  Channel() : listener_(make_tagged(*Address::parse("127.0.0.1", 0), {})) {
    EXPECT_EQ(bind_to(listener_.fd(), *Address::parse("127.0.0.1", 0)), 0);
    EXPECT_EQ(::listen(listener_.fd(), 16), 0);
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    mine = Socket(ends[0]);
    theirs = Socket(ends[1]);
  }
  ~Channel() override {
    stops_ = true;
    if (thread_.joinable()) thread_.join();
  }
  // Takes connections, reads their hellos and hands them over, for as long as this is there.
  void hand_all_over() {
    thread_ = std::thread([this] {
      while (!stops_) {
        const Socket taken(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
        Hello hello;
        if (taken.valid() && ::recv(taken.fd(), &hello, sizeof hello, MSG_WAITALL) == sizeof hello)
          hand_over(mine.fd(), taken.fd(), hello);
        else
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    });
  }
  std::uint16_t port() const { return local_port(listener_.fd()); }

  Socket mine, theirs;

 private:
  Socket listener_;
  std::atomic<bool> stops_ = false;
  std::thread thread_;
};

TEST_F(Channel, ConnectionsThatAreHandedOverAreAnswered) {
  Answerer answerer(kToken, nullptr, theirs.fd());
  answerer.start();
  hand_all_over();
  BurstSpec stream{.flow = flow_to("127.0.0.1", port()), .source_ports = {0, 0}, .duration_ms = 50};
  stream.max_bytes = 1 << 20;
  const BurstSpec echo{.flow = flow_to("127.0.0.1", port()), .purpose = Purpose::kEcho, .duration_ms = 50};
  const auto seen = load({stream, echo}, kToken);
  ASSERT_THAT(seen, SizeIs(2));
  EXPECT_EQ(seen[0].outcome, Outcome::kArrived);
  EXPECT_THAT(seen[0].streams, SizeIs(2));
  EXPECT_EQ(seen[1].outcome, Outcome::kArrived);
  EXPECT_FALSE(seen[1].delays_us.empty());
}

TEST_F(Channel, WithAnotherTokenItIsClosed) {
  Answerer answerer(kToken, nullptr, theirs.fd());
  answerer.start();
  hand_all_over();
  Token other = kToken;
  other.front() ^= 1;
  BurstSpec stream{.flow = flow_to("127.0.0.1", port()), .duration_ms = 20};
  stream.source_ports = {0};
  EXPECT_EQ(load({stream}, other)[0].outcome, Outcome::kSilent);
  EXPECT_EQ(load({stream}, kToken)[0].outcome, Outcome::kArrived);
}

// Neither rubbish nor the end of the channel ends the answerer.
TEST_F(Channel, GoesOnWithoutIt) {
  const std::uint16_t own = free_port("127.0.0.1");
  Answerer answerer(kToken, nullptr, theirs.fd());
  ASSERT_EQ(answerer.listen_at({"127.0.0.1", own, {}}), 0);
  answerer.start();
  EXPECT_EQ(::send(mine.fd(), "rubbish", 7, 0), 7);
  const std::vector<char> without_a_socket(sizeof(Hello));
  EXPECT_EQ(::send(mine.fd(), without_a_socket.data(), without_a_socket.size(), 0),
            static_cast<ssize_t>(sizeof(Hello)));
  EXPECT_EQ(probe_once(flow_to("127.0.0.1", own)).outcome, Outcome::kArrived);
  mine = {};
  EXPECT_EQ(probe_once(flow_to("127.0.0.1", own)).outcome, Outcome::kArrived);
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 50) << "it asks again and again for what has ended";
}

// What goes over the channel is a whole hello: one of which a byte is missing is none, and its connection is closed.
TEST_F(Channel, AHelloThatIsTooShortIsNone) {
  Answerer answerer(kToken, nullptr, theirs.fd());
  answerer.start();
  Hello hello;
  hello.purpose = Purpose::kEcho;
  hello.token = kToken;
  for (const std::size_t missing : {1, 0}) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    const Socket own(ends[0]);
    {
      const Socket given(ends[1]);
      iovec part{&hello, sizeof hello - missing};
      alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
      msghdr message{};
      message.msg_iov = &part, message.msg_iovlen = 1;
      message.msg_control = control.data(), message.msg_controllen = control.size();
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET, rights->cmsg_type = SCM_RIGHTS, rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &ends[1], sizeof(int));
      ASSERT_GT(::sendmsg(mine.fd(), &message, 0), 0);
    }
    Answer answer;
    const ssize_t got = ::recv(own.fd(), &answer, sizeof answer, MSG_WAITALL);
    EXPECT_EQ(got, missing == 0 ? static_cast<ssize_t>(sizeof answer) : 0);
  }
}

TEST_F(Channel, NobodyHasMoreConnectionsThanItsBound) {
  Answerer answerer(kToken, nullptr, theirs.fd());
  answerer.start();
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const Socket own(ends[0]), given(ends[1]);  // one and the same, given again and again
  Hello hello;
  hello.purpose = Purpose::kEcho;
  hello.token = kToken;
  // Whether it is answered within that time.
  const auto answered = [&](int milliseconds) {
    EXPECT_TRUE(hand_over(mine.fd(), given.fd(), hello));
    pollfd waited{own.fd(), POLLIN, 0};
    Answer answer;
    return ::poll(&waited, 1, milliseconds) == 1 &&
           ::recv(own.fd(), &answer, sizeof answer, MSG_WAITALL) == static_cast<ssize_t>(sizeof answer);
  };
  for (std::size_t i = 0; i < kMaxConnections; ++i) ASSERT_TRUE(answered(10'000)) << i;
  EXPECT_FALSE(answered(300));
}

// Who floods the answerer's own ports and says nothing keeps no burst away.
TEST_F(Channel, TheSilentGiveWay) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  const Address at = *Address::parse("127.0.0.1", free_port("127.0.0.1"));
  Answerer answerer(kToken, nullptr, theirs.fd());
  ASSERT_EQ(answerer.listen_at({"127.0.0.1", at.port(), {}}), 0);
  answerer.start();
  std::vector<Socket> silent;
  for (std::size_t i = 0; i < kMaxConnections + 50; ++i) {
    silent.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(silent.back().fd(), at.get(), at.length), 0);
    if (i % 32 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // no more than wait for accept()
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until all are taken
  hand_all_over();
  const BurstSpec echo{.flow = flow_to("127.0.0.1", port()), .purpose = Purpose::kEcho, .duration_ms = 10};
  EXPECT_EQ(load({echo}, kToken)[0].outcome, Outcome::kArrived);
}

TEST_F(Channel, HandingOverToNobodyFails) {
  const Socket some = make_tagged(*Address::parse("127.0.0.1", 0), {});
  EXPECT_TRUE(hand_over(mine.fd(), some.fd(), Hello{}));
  theirs = {};
  EXPECT_FALSE(hand_over(mine.fd(), some.fd(), Hello{}));
}

TEST(Packet, ReadsWhatHopsQuote) {
  // ICMP time exceeded: the router's IPv4 header, ICMP's, then the quoted packet with DSCP 43 and eight bytes of TCP.
  std::vector<std::uint8_t> message{
      0x45, 0xc0,    0, 56, 0, 0, 0,    0, 64, 1, 0, 0, 10, 0, 0, 254, 10, 0, 0, 1, 11,   0,    0,    0,    0, 0, 0, 0,
      0x45, 43 << 2, 0, 60, 0, 0, 0x40, 0, 1,  6, 0, 0, 10, 0, 0, 1,   10, 0, 1, 1, 0x9c, 0x40, 0x1b, 0xc7, 0, 0, 0, 1};
  const auto quoted = read_time_exceeded(message, false);
  ASSERT_TRUE(quoted);
  EXPECT_EQ(quoted->dscp, 43);
  EXPECT_EQ(quoted->source_port, 40000);
  EXPECT_EQ(quoted->destination_port, 7111);
  EXPECT_EQ(quoted->destination, "10.0.1.1");
  for (std::size_t size = 0; size < 52; ++size)  // before both ports are there
    EXPECT_FALSE(read_time_exceeded(std::span(message).first(size), false)) << size;
  message[20] = 3;  // unreachable
  EXPECT_FALSE(read_time_exceeded(message, false));
}

TEST(Host, FindsADeviceWideTrafficClass) {
  const std::string root = ::testing::TempDir() + "/probe_root" + std::to_string(::getpid());
  std::filesystem::create_directories(root + "/sys/class/infiniband/mlx5_0/tc/1");
  std::ofstream(root + "/sys/class/infiniband/mlx5_0/tc/1/traffic_class") << "Global tclass=106\n";
  const auto found = overrides(root);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].dscp, 26);
  EXPECT_THAT(found[0].where, HasSubstr("mlx5_0"));
  std::filesystem::remove_all(root);
}

std::vector<json> say(Session& session, std::vector<std::string>& lines, const json& command) {
  lines.clear();
  EXPECT_TRUE(session.handle(command.dump()));
  std::vector<json> parsed;
  for (const std::string& line : lines) parsed.push_back(json::parse(line));
  return parsed;
}

TEST(Session, ProbesItself) {
  std::vector<std::string> lines;
  Session session([&](const std::string& line) { lines.push_back(line); });
  const std::uint16_t port = free_port("127.0.0.1");
  const std::string token = token_text(kToken);
  auto answers = say(session, lines,
                     {{"do", "listen"},
                      {"token", token},
                      {"sockets",
                       {{{"address", "127.0.0.1"}, {"port", port}, {"dscp", 1}, {"pcp", 0}},
                        {{"address", "192.0.2.77"}, {"port", port}}}}});
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_EQ(answers[0]["failed"].size(), 1U);
  const json flow{{"id", 3},   {"address", "127.0.0.1"}, {"source", "127.0.0.1"}, {"port", port}, {"dscp", 27},
                  {"count", 2}};
  answers = say(session, lines, {{"do", "probe"}, {"token", token}, {"flows", {flow}}});
  ASSERT_THAT(answers, SizeIs(3));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(answers[i]["outcome"], "arrived");
    EXPECT_EQ(answers[i]["dscp"], 27);
  }
  EXPECT_EQ(answers[0]["id"].get<int>() + answers[1]["id"].get<int>(), 7);
  EXPECT_EQ(answers[2], (json{{"kind", "done"}, {"do", "probe"}}));
}

TEST(Session, RefusesWhatItCannotDo) {
  std::vector<std::string> lines;
  Session session([&](const std::string& line) { lines.push_back(line); });
  for (const char* line : {"", "hello", "[]", "{}", R"({"do": 1})", R"({"do": "reboot"})"}) {
    EXPECT_FALSE(session.handle(line)) << line;
    EXPECT_THAT(lines.back(), HasSubstr("no command"));
  }
  const std::string token = token_text(kToken);
  const json flow{{"address", "::1"}, {"source", "::1"}, {"port", 1}};
  const std::pair<json, const char*> refused[] = {
      {{{"do", "probe"}}, "token"},
      {{{"do", "probe"}, {"token", "0"}, {"flows", json::array()}}, "32 hexadecimal digits"},
      {{{"do", "probe"}, {"token", token}, {"flows", 1}}, "no list"},
      {{{"do", "probe"}, {"token", token}, {"flows", {1}}}, "no object"},
      {{{"do", "probe"}, {"token", token}, {"flows", {{{"address", "::1"}}}}}, "source"},
      {{{"do", "probe"}, {"token", token}, {"flows", {{{"address", "::1"}, {"source", "::1"}}}}}, "port"},
      {{{"do", "sweep"}, {"flows", {flow}}, {"deadline_ms", 1 << 30}}, "deadline_ms"},
      {{{"do", "sweep"}, {"flows", std::vector<json>(kMaxFlows + 1, flow)}}, "more than"},
      {{{"do", "load"}, {"token", token}, {"bursts", std::vector<json>(kMaxBursts + 1, flow)}}, "more than"},
      {{{"do", "listen"}, {"token", token}, {"sockets", {{{"address", "::1"}, {"port", 70000}}}}}, "port"},
  };
  for (const auto& [command, why] : refused) {
    const auto answers = say(session, lines, command);
    ASSERT_THAT(answers, SizeIs(1)) << command;
    EXPECT_EQ(answers[0]["kind"], "error");
    EXPECT_THAT(answers[0]["what"].get<std::string>(), HasSubstr(why)) << command;
  }
}

TEST(Session, DescribesThisHost) {
  std::vector<std::string> lines;
  Session session([&](const std::string& line) { lines.push_back(line); });
  const auto answers = say(session, lines, {{"do", "describe"}, {"lifetime_s", 600}});
  ::alarm(0);
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_EQ(answers[0]["version"], kVersion);
  EXPECT_EQ(answers[0]["sees_hops"], false);  // open_raw() was not called
  EXPECT_TRUE(answers[0]["addresses"].is_array());
}

TEST(Token, IsHexadecimal) {
  Token token{};
  EXPECT_TRUE(parse_token(token_text(kToken), &token));
  EXPECT_EQ(token, kToken);
  EXPECT_FALSE(parse_token(token_text(kToken) + "0", &token));
  EXPECT_FALSE(parse_token(std::string(32, 'g'), &token));
  EXPECT_FALSE(parse_token(std::string(32, '\0'), &token));
}

}  // namespace
}  // namespace tensorlane::probe
