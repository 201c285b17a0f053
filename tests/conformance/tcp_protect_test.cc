// Protected flows with somebody on the path: what they change, repeat, leave out, put in, move or cut off is noticed,
// at whatever place, and never becomes a payload. The flow is resumed where its job says so; else its end is named.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "daemon/transport/resume/exchange.h"
#include "resuming.h"
#include "tampering_proxy.h"

namespace tensorlane::conformance {
namespace {

using Kind = Fault::Kind;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kClientBytes = sizeof(handshake::Hello) + sizeof(handshake::Proof);
constexpr std::uint64_t kServerBytes = sizeof(handshake::Challenge) + sizeof(handshake::Verdict);
constexpr std::uint64_t kResumingBytes = sizeof(resume::FlowParameters);
constexpr std::size_t kHeaderRecord = protocol::kFrameHeaderBytes + protect::kTagBytes;
constexpr const char* kNotAuthentic = "carried a record that does not authenticate: the path changed the data";

std::string level_name(const ::testing::TestParamInfo<DataProtection>& info) {
  return std::string(data_protection_name(info.param));
}
const auto kLevels = ::testing::Values(DataProtection::kAuthenticate, DataProtection::kEncrypt);

// ---- flows that end with their connection ----

// Host 0 reaches host 1 through a proxy. No job resumes.
class Protected : public ::testing::TestWithParam<DataProtection> {
 protected:
  Protected() { begin(); }
  void begin(std::uint8_t ciphers_of_a = 0) {
    const TransportKind kind = tcp_protected(GetParam());
    a = std::make_unique<Host>(kind, HostIndex(0), HostOptions{.ciphers = ciphers_of_a});
    b = std::make_unique<Host>(kind, HostIndex(1));
    Host ports(kind, HostIndex(9));
    port = ports.data_port;
    ports.transport.reset();
    proxy = std::make_unique<TamperingProxy>(static_cast<std::uint16_t>(port + 1),
                                             static_cast<std::uint16_t>(b->data_port + 1));
    a->add_job();
    b->add_job();
  }
  bool run(const std::function<bool()>& done) {
    return run_until(clock, {a.get(), b.get()}, [&] {
      proxy->pump();
      return done();
    });
  }
  void connect() { ASSERT_TRUE((*a)->connect(to_b, "127.0.0.1", port, clock.now() + seconds(20)).ok()); }
  void bring_up() {
    connect();
    ASSERT_TRUE(run([&] { return a->sink->up(to_b) && b->sink->up(to_a); }));
  }
  void tear_down() {
    (*a)->close(to_b);
    (*b)->close(to_a);
    ASSERT_TRUE(run([&] { return !a->sink->up(to_b) && !b->sink->up(to_a); }));
    a->sink->forget();
    b->sink->forget();
  }

  TestClock clock;
  std::unique_ptr<Host> a, b;
  const ports::FlowKey to_b{kJob, HostIndex(1), kUrgent}, to_a{kJob, HostIndex(0), kUrgent};
  std::uint16_t port = 0;
  std::unique_ptr<TamperingProxy> proxy;
};
INSTANTIATE_TEST_SUITE_P(Levels, Protected, kLevels, level_name);

TEST_P(Protected, WhatGoesOverTheWireIsInClearOnlyWithAuthenticate) {
  const auto payload = pattern(150000, 1);
  bring_up();
  a->send(to_b, {data_header(), payload, 1});
  ASSERT_TRUE(run([&] { return b->sink->frames.size() == 1; }));
  const std::vector<std::byte>& wire = proxy->seen(true);
  ASSERT_EQ(wire.size(), kClientBytes + kHeaderRecord + payload.size() + protect::tags_of(payload.size()));
  const auto found = std::search(wire.begin(), wire.end(), payload.begin(), payload.begin() + 64);
  EXPECT_EQ(found != wire.end(), GetParam() == DataProtection::kAuthenticate);
  EXPECT_EQ(b->sink->frames[0].payload, payload);
}

// Every byte of a frame of one record and of its tags.
TEST_P(Protected, EveryChangedByteOfAFrameIsNamedAndNothingIsDelivered) {
  const auto payload = pattern(100, 1);
  const std::size_t bytes = kHeaderRecord + payload.size() + protect::kTagBytes;
  for (std::size_t at = 0; at < bytes; ++at) {
    SCOPED_TRACE("byte " + std::to_string(at));
    bring_up();
    proxy->tamper({Tampering::Kind::kFlip, true, kClientBytes + at, 1, 0});
    a->send(to_b, {data_header(), payload, 1});
    ASSERT_TRUE(run([&] { return !b->sink->downs.empty() && !a->sink->downs.empty(); }));
    EXPECT_TRUE(b->sink->frames.empty());
    EXPECT_EQ(b->sink->downs[0].second.code(), Code::kCorrupt);
    EXPECT_THAT(b->sink->downs[0].second.to_string(),
                AllOf(HasSubstr("connection to host 0 (127.0.0.1:"), HasSubstr(kNotAuthentic),
                      HasSubstr("find out what is on the path")));
    tear_down();
  }
}

// The end of a connection tells nothing: only the control plane ends a job in order.
TEST_P(Protected, AnEarlyEndIsNoOrderlyOne) {
  const auto payload = pattern(100, 1);
  for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{79}, std::uint64_t{80},
                                 std::uint64_t{179}, std::uint64_t{195}, std::uint64_t{196}, std::uint64_t{200}}) {
    SCOPED_TRACE("byte " + std::to_string(at));
    bring_up();
    proxy->tamper({Tampering::Kind::kEnd, true, kClientBytes + at, 0, 0});
    for (std::uint64_t i = 0; i < 2; ++i) a->send(to_b, {data_header(i), payload, i + 1});
    ASSERT_TRUE(run([&] { return !b->sink->downs.empty(); }));
    EXPECT_EQ(b->sink->frames.size(), at < 196 ? 0u : 1u);
    EXPECT_EQ(b->sink->downs[0].second.code(), Code::kUnavailable);
    EXPECT_THAT(b->sink->downs[0].second.to_string(), HasSubstr("was closed by the peer"));
    tear_down();
  }
}

// What is read away for a stale grant is not looked at, but what comes behind it is.
TEST_P(Protected, ADroppedPayloadCountsAndWhatFollowsItIsStillRight) {
  const auto payload = pattern(200000, 1);
  bring_up();
  b->sink->drop_payloads = true;
  a->send(to_b, {data_header(0), payload, 1});
  ASSERT_TRUE(run([&] { return (*b)->counters().payloads_dropped == 1; }));
  b->sink->drop_payloads = false;
  a->send(to_b, {data_header(1), payload, 2});
  ASSERT_TRUE(run([&] { return b->sink->frames.size() == 1; }));
  EXPECT_EQ(b->sink->frames[0].payload, payload);
}

TEST_P(Protected, ARecordOfTheOtherDirectionOrOfAnotherConnectionIsRefused) {
  const auto payload = pattern(100, 1);
  for (const bool other_connection : {false, true}) {
    bring_up();
    // The other direction of this connection, or this direction of the one before, has just the same frame.
    Host& from = other_connection ? *a : *b;
    from.send(other_connection ? to_b : to_a, {data_header(), payload, 1});
    ASSERT_TRUE(run([&] { return (other_connection ? b : a)->sink->frames.size() == 1; }));
    const std::uint64_t handshake = other_connection ? kClientBytes : kServerBytes;
    const auto& seen = proxy->seen(other_connection);
    const std::vector<std::byte> record(seen.begin() + static_cast<std::ptrdiff_t>(handshake), seen.end());
    if (other_connection) {
      tear_down();
      bring_up();
    }
    proxy->insert(true, record);
    ASSERT_TRUE(run([&] { return !b->sink->downs.empty(); }));
    EXPECT_TRUE(b->sink->frames.empty());
    EXPECT_THAT(b->sink->downs[0].second.to_string(), HasSubstr(kNotAuthentic));
    tear_down();
  }
}

// One host's processor lacks what the other one's has.
TEST_P(Protected, HostsUseACipherThatBothHave) {
  begin(static_cast<std::uint8_t>(protect::Cipher::kChaCha20Poly1305));
  const auto payload = pattern(100000, 1);
  bring_up();
  a->send(to_b, {data_header(), payload, 1});
  b->send(to_a, {data_header(), payload, 1});
  ASSERT_TRUE(run([&] { return a->sink->frames.size() == 1 && b->sink->frames.size() == 1; }));
  EXPECT_EQ(a->sink->frames[0].payload, payload);
  EXPECT_EQ(b->sink->frames[0].payload, payload);
}

TEST_P(Protected, HostsWithoutACommonCipherSaySo) {
  begin(4);
  LogCapture log;
  connect();
  ASSERT_TRUE(run([&] { return !a->sink->downs.empty(); }));
  EXPECT_THAT(a->sink->downs[0].second.to_string(), HasSubstr("no cipher for data_protection in common"));
}

TEST_P(Protected, HostsThatProtectDifferentlyAreNamedWithBothLevels) {
  for (const DataProtection other : {DataProtection::kNone, DataProtection::kAuthenticate, DataProtection::kEncrypt}) {
    if (other == GetParam()) continue;
    LogCapture log;
    Host c(other == DataProtection::kNone ? tcp_ipv4() : tcp_protected(other), HostIndex(1));
    c.add_job();
    ASSERT_TRUE((*a)->connect(to_b, "127.0.0.1", c.data_port, clock.now() + seconds(20)).ok());
    ASSERT_TRUE(run_until(clock, {a.get(), &c}, [&] { return !a->sink->downs.empty(); }));
    const std::string text = "data_protection is " + std::string(data_protection_name(GetParam())) + " on host 0 and " +
                             std::string(data_protection_name(other)) + " on host 1";
    EXPECT_EQ(a->sink->downs[0].second.code(), Code::kMismatch);
    EXPECT_THAT(a->sink->downs[0].second.to_string(),
                AllOf(HasSubstr(text), HasSubstr("one `data_protection`, on every host")));
    EXPECT_THAT(log.text(), HasSubstr(text)) << "the accepting host's log";
    EXPECT_TRUE(c.sink->ups.empty());
    a->sink->downs.clear();
  }
}

// ---- somebody on the path, at random ----

// What a flow carries in one try. Payloads of no, of one and of more than one record.
std::size_t length_of(std::uint64_t i) {
  constexpr std::size_t kLengths[] = {0, 1, 100, 3000, 0, 64, 70000, 500};
  return kLengths[i % std::size(kLengths)];
}

class Attacked : public Protected {
 protected:
  static constexpr std::uint64_t kFrames = 8;
  // Both ends send until all has arrived or the flow is down. Whatever arrives is what was sent, in order.
  void one_try(std::uint64_t seed) {
    std::vector<std::vector<std::byte>> payloads;
    for (std::uint64_t i = 0; i < kFrames; ++i) payloads.push_back(pattern(length_of(i), i));
    const std::size_t before = proxy->done();
    bring_up();
    proxy->tamper_at_random(seed, kClientBytes, kServerBytes, 74500);
    std::uint64_t forth = 0, back = 0;
    ASSERT_TRUE(run([&] {
      while (forth < kFrames && a->writable(to_b)) a->send(to_b, {data_header(forth), payloads[forth], ++forth});
      while (back < kFrames && b->writable(to_a)) b->send(to_a, {data_header(back), payloads[back], ++back});
      const bool arrived = a->sink->frames.size() == kFrames && b->sink->frames.size() == kFrames;
      return arrived || (!a->sink->downs.empty() && !b->sink->downs.empty()) || proxy->stalled();
    }));
    for (const Host* host : {a.get(), b.get()}) {
      for (std::size_t i = 0; i < host->sink->frames.size(); ++i) {
        ASSERT_EQ(host->sink->frames[i].header.sequence.value, i);
        ASSERT_TRUE(host->sink->frames[i].payload == payloads[i]) << "frame " << i;
      }
      for (const auto& [flow, cause] : host->sink->downs) {
        ASSERT_THAT(cause.to_string(), AnyOf(HasSubstr(kNotAuthentic), HasSubstr("was closed by the peer"),
                                             HasSubstr("was reset"), HasSubstr("failed: ")));
        not_authentic += cause.to_string().find(kNotAuthentic) != std::string::npos;
      }
    }
    tampered += proxy->done() - before;
    tear_down();
  }
  std::size_t not_authentic = 0, tampered = 0;
};
INSTANTIATE_TEST_SUITE_P(Levels, Attacked, kLevels, level_name);

TEST_P(Attacked, NothingButWhatWasSentArrivesInAThousandTries) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    one_try(seed);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(tampered, 900u);
  EXPECT_GT(not_authentic, 600u);
}

// ---- flows that are resumed ----

class ProtectedResuming : public ::testing::TestWithParam<DataProtection>, protected ResumingHosts {
 protected:
  ProtectedResuming() : ResumingHosts(tcp_protected(GetParam()), kUrgent) {}
  static constexpr std::uint64_t kClient = kClientBytes + kResumingBytes + sizeof(handshake::Ready);
  static constexpr std::uint64_t kServer = kServerBytes + kResumingBytes;
};
INSTANTIATE_TEST_SUITE_P(Levels, ProtectedResuming, kLevels, level_name);

const std::vector<std::uint64_t> kPlaces = {0,   1,    63,   64,   79,    80,    81,    159,   160,   161,    175,
                                            176, 1000, 5000, 5600, 16500, 30000, 38000, 46000, 47200, 100000, 150001};

TEST_P(ProtectedResuming, NothingIsLostOrDoubledWhereverAConnectionBreaks) {
  for (const Kind kind : {Kind::kReset, Kind::kClose, Kind::kHalfClose}) {
    for (const bool to_target : {true, false}) {
      for (const std::uint64_t at : kPlaces) break_at(kind, to_target, (to_target ? kClient : kServer) + at);
    }
  }
  EXPECT_GT(a->counters().frames_resent + b->counters().frames_resent, 100u);
}

// A payload of four records, sent by the caller's memory, that breaks in each of them.
TEST_P(ProtectedResuming, APayloadOfManyRecordsIsSentAgainFromItsStart) {
  const auto payload = pattern(200000, 1);
  for (const Kind kind : {Kind::kReset, Kind::kFlip}) {
    for (const std::uint64_t at : {40000, 65600, 65620, 65700, 140000, 190000, 200140}) {
      SCOPED_TRACE(fmt::format("byte {}, kind {}", at, static_cast<int>(kind)));
      proxy->to_target = {kind, kClient + at};
      bring_up();
      proxy->to_target = {};
      a.send(to_b, {data_header(), payload, 1});
      ASSERT_TRUE(run([&] { return b.sink->frames.size() == 1 && a.sink->sent.size() == 1; }));
      EXPECT_TRUE(b.sink->frames[0].payload == payload);
      tear_down();
    }
  }
  EXPECT_EQ(a->counters().flows_resumed, 14u);
}

TEST_P(ProtectedResuming, AFlowWhoseBytesWereChangedGoesOnOverANewConnection) {
  LogCapture log;
  for (const bool to_target : {true, false}) {
    for (const std::uint64_t at : kPlaces) break_at(Kind::kFlip, to_target, (to_target ? kClient : kServer) + at);
  }
  EXPECT_GE(a->counters().flows_resumed, 2 * kPlaces.size() - 4);
  EXPECT_THAT(log.text(), HasSubstr(kNotAuthentic));
}

// The goodbye is a record too. Whoever ends the connection instead brings about a loss, and no end in order.
TEST_P(ProtectedResuming, OnlyAGoodbyeOfThePeerEndsAFlowInOrder) {
  bring_up();
  a->close(to_b);
  ASSERT_TRUE(run([&] { return !b.sink->downs.empty(); }));
  EXPECT_THAT(b.sink->downs[0].second.to_string(),
              AllOf(HasSubstr("was closed by the peer"), Not(HasSubstr("resumed"))));
  EXPECT_EQ(proxy->seen_to_target.size(), kClient + kHeaderRecord);
  tear_down();

  proxy->to_target = {Kind::kFlip, kClient + 7};
  bring_up();
  a->close(to_b);
  clock.skip(milliseconds(1));
  ASSERT_TRUE(run([&] {
    clock.skip(milliseconds(2));
    return !b.sink->downs.empty();
  }));
  EXPECT_THAT(b.sink->downs[0].second.to_string(), AllOf(HasSubstr(kNotAuthentic), HasSubstr("could not be resumed")));
}

}  // namespace
}  // namespace tensorlane::conformance
