// Probes of `tensorlane verify` on the ports of flows: who knows a token is answered, or handed over; to anybody else
// the port is as silent as ever.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "common/probe/exchange.h"
#include "daemon/ports/probe_tokens.h"
#include "raw_peer.h"

namespace tensorlane::conformance {
namespace {

using probe::Purpose;

constexpr ClassId kUrgent{0};
constexpr probe::Token kToken{1, 2, 3};

class Probes : public ::testing::Test {
 protected:
  probe::Hello hello(Purpose purpose) const {
    probe::Hello said;
    said.purpose = purpose;
    said.token = kToken;
    said.nonce = 77;
    return said;
  }
  Time later() const { return clock.now() + seconds(60); }
  // Keeps a descriptor of its own of whatever is handed over, with what had been said.
  ports::ProbeTokens::TakeOver taker() {
    return [this](int socket, std::span<const std::byte> said) {
      taken = handshake::Fd(::fcntl(socket, F_DUPFD_CLOEXEC, 0));
      said_first.assign(said.begin(), said.end());
      return true;
    };
  }
  // Not a byte comes back, and it counts as refused.
  void expect_silence(const probe::Hello& said) {
    const auto refused = host->counters().refused;
    RawPeer peer(clock, host, kUrgent);
    peer.send(handshake::bytes_of(said));
    EXPECT_TRUE(peer.receive(1).empty());
    EXPECT_TRUE(peer.closed());
    EXPECT_EQ(host->counters().refused, refused + 1);
  }

  TestClock clock;
  ports::ProbeTokens tokens;
  Host host{tcp_ipv4(), HostIndex(1), with_probes()};
  handshake::Fd taken;
  std::vector<std::byte> said_first;

 private:
  HostOptions with_probes() {
    HostOptions options;
    options.probes = &tokens;
    return options;
  }
};

// One that is told again takes no place of another.
TEST(Tokens, OfTooManyTheOneThatEndsFirstGoes) {
  constexpr auto kMost = static_cast<std::uint8_t>(ports::ProbeTokens::kMaxTokens);
  ports::ProbeTokens tokens;
  const auto allow = [&](std::uint8_t number, int ends_s) { tokens.allow({number}, Time(0) + seconds(ends_s), 10); };
  const auto known = [&] {
    std::vector<int> known;
    for (std::uint8_t number = 0; number < kMost + 2; ++number)
      if (tokens.take({number}, Time(0))) known.push_back(number);
    return known;
  };
  for (std::uint8_t number = 0; number < kMost; ++number) allow(number, 100 - number);
  allow(3, 300);
  EXPECT_EQ(known().size(), kMost);
  allow(kMost, 200);
  std::vector<int> others(kMost - 1);
  std::iota(others.begin(), others.end(), 0);
  others.push_back(kMost);
  EXPECT_EQ(known(), others);
}

// As many as a token has answers, and what nobody takes is none of them.
TEST(Tokens, ABurstThatIsTakenIsAnAnswer) {
  using Handed = ports::ProbeTokens::Handed;
  ports::ProbeTokens tokens;
  bool takes = false;
  tokens.allow(kToken, Time(10), 2, [&](int, std::span<const std::byte>) { return takes; });
  EXPECT_EQ(tokens.hand_over(kToken, Time(0), -1, {}), Handed::kNobody);
  takes = true;
  EXPECT_EQ(tokens.hand_over(kToken, Time(10), -1, {}), Handed::kUnknown) << "it has ended";
  EXPECT_EQ(tokens.hand_over(kToken, Time(9), -1, {}), Handed::kTaken);
  EXPECT_TRUE(tokens.take(kToken, Time(9)));
  EXPECT_EQ(tokens.hand_over(kToken, Time(9), -1, {}), Handed::kUnknown);
  EXPECT_EQ(tokens.answered(), 2U);
}

TEST_F(Probes, WhoKnowsATokenIsAnsweredOnce) {
  tokens.allow(kToken, later(), 1);
  RawPeer peer(clock, host, kUrgent);
  peer.send(handshake::bytes_of(hello(Purpose::kTell)));
  const auto bytes = peer.receive(sizeof(probe::Answer));
  ASSERT_EQ(bytes.size(), sizeof(probe::Answer));
  probe::Answer answer;
  std::memcpy(&answer, bytes.data(), sizeof answer);
  EXPECT_EQ(answer.magic, probe::kMagic);
  EXPECT_EQ(answer.nonce, 77U);
  EXPECT_EQ(answer.dscp, 0);
  EXPECT_EQ(tokens.answered(), 1U);
  EXPECT_EQ(host->counters().refused, 0U);
  expect_silence(hello(Purpose::kTell));
}

TEST_F(Probes, ATokenThatNobodyHasToldOrThatHasEndedIsNone) {
  expect_silence(hello(Purpose::kTell));
  tokens.allow(kToken, clock.now(), 10);
  expect_silence(hello(Purpose::kTell));
  tokens.allow(kToken, later(), 10, taker());
  tokens.forget(kToken);
  expect_silence(hello(Purpose::kTell));
  expect_silence(hello(Purpose::kSink));
  EXPECT_EQ(tokens.answered(), 0U);
  EXPECT_FALSE(taken.valid());
}

TEST_F(Probes, AnotherVersionOrPurposeIsNone) {
  tokens.allow(kToken, later(), 10, taker());
  probe::Hello other = hello(Purpose::kTell);
  other.version = 2;
  expect_silence(other);
  other = hello(Purpose::kSink);
  other.version = 2;
  expect_silence(other);
  expect_silence(hello(static_cast<Purpose>(3)));
  EXPECT_FALSE(taken.valid());
}

TEST_F(Probes, BurstsAreHandedOver) {
  for (const Purpose purpose : {Purpose::kSink, Purpose::kEcho}) {
    tokens.allow(kToken, later(), 10, taker());
    RawPeer peer(clock, host, kUrgent);
    peer.send(handshake::bytes_of(hello(purpose)));
    ASSERT_TRUE(run_until(clock, {&host}, [&] { return taken.valid(); }));
    ASSERT_EQ(said_first.size(), sizeof(probe::Hello));
    EXPECT_EQ(static_cast<Purpose>(said_first[6]), purpose);
    EXPECT_EQ(host->counters().refused, 0U);
    // From now on it is who took it that hears and answers, and the host is not woken by it any more.
    const std::vector<std::byte> burst(30'000, std::byte{7});
    peer.send(burst);
    run_for(clock, {&host}, std::chrono::milliseconds(50));
    pollfd wakes{host->wake_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&wakes, 1, 0), 0);
    std::vector<std::byte> heard(burst.size());
    EXPECT_EQ(::recv(taken.get(), heard.data(), heard.size(), MSG_WAITALL), static_cast<ssize_t>(burst.size()));
    EXPECT_EQ(heard, burst);
    EXPECT_EQ(::send(taken.get(), "x", 1, MSG_NOSIGNAL), 1);
    EXPECT_EQ(peer.receive(1), std::vector<std::byte>(1, std::byte{'x'}));
    taken = {};
    EXPECT_TRUE(peer.closed());
  }
}

// What it cannot take is refused as any stranger is.
TEST_F(Probes, NobodyTakesABurst) {
  tokens.allow(kToken, later(), 10);
  expect_silence(hello(Purpose::kSink));
  tokens.allow(kToken, later(), 10, [](int, std::span<const std::byte>) { return false; });
  expect_silence(hello(Purpose::kEcho));
  EXPECT_EQ(tokens.answered(), 0u);
}

// A socket that has been handed over lives on elsewhere; the host's own descriptor, and its interest in it, do not.
TEST_F(Probes, NothingOfItStays) {
  tokens.allow(kToken, later(), 1000, taker());
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 50; ++i) {
    RawPeer peer(clock, host, kUrgent);
    peer.send(handshake::bytes_of(hello(Purpose::kSink)));
    ASSERT_TRUE(run_until(clock, {&host}, [&] { return taken.valid(); }));
    peer.send(std::vector<std::byte>(10));
    run_for(clock, {&host}, std::chrono::milliseconds(2));
    taken = {};
  }
  run_for(clock, {&host}, std::chrono::milliseconds(50));
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace tensorlane::conformance
