// RDMA flows that lose their queue pairs, or the connection beside them, and go on over new ones: nothing is lost,
// nothing comes twice, no write lands where it does not belong any more; and what must not be resumed is not.
#include <cstring>
#include <random>

#include "daemon/transport/rdma/message.h"
#include "daemon/transport/resume/exchange.h"
#include "queue_pair_faults.h"
#include "rdma_kinds.h"
#include "resuming.h"

namespace tensorlane::conformance {
namespace {

using Kind = Fault::Kind;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kParameterBytes = sizeof(rdma::Parameters) + sizeof(resume::FlowParameters);
constexpr std::uint64_t kClientBytes =
    sizeof(handshake::Hello) + sizeof(handshake::Proof) + kParameterBytes + sizeof(handshake::Ready);
constexpr std::uint64_t kServerBytes = sizeof(handshake::Challenge) + sizeof(handshake::Verdict) + kParameterBytes;

struct Pairs {
  std::uint8_t of_a_flow;
  rdma::ConnectBy connected_by;
};

class RdmaResuming : public ::testing::TestWithParam<Pairs> {
 protected:
  void SetUp() override {
    if (!rdma_absent().empty()) GTEST_SKIP() << rdma_absent();
    hosts = std::make_unique<ResumingHosts>(kind(), kBulk);
  }
  static TransportKind kind() {
    return rdma_kind("resuming", GetParam().of_a_flow, GetParam().connected_by, "0.0.0.0");
  }
  ports::TransportCounters both() const {
    ports::TransportCounters sum = hosts->a->counters();
    const ports::TransportCounters b = hosts->b->counters();
    sum.flows_resumed += b.flows_resumed;
    sum.frames_resent += b.frames_resent;
    return sum;
  }
  bool both_connected() const {
    return !hosts->a.stats(hosts->to_b).describe.empty() && !hosts->b.stats(hosts->to_a).describe.empty();
  }
  // Either end may be ahead of the other one; then a queue pair of either end fails, or the connection.
  void break_somewhere() {
    for (std::uint64_t polls = random() % 4; polls > 0; --polls)
      (random() % 2 == 0 ? hosts->a : hosts->b)->poll(hosts->clock.now());
    if (random() % 4 == 0) return hosts->cut();
    fail_queue_pair(random() % queue_pairs());
  }

  std::mt19937_64 random{11};
  std::unique_ptr<ResumingHosts> hosts;
};
INSTANTIATE_TEST_SUITE_P(QueuePairs, RdmaResuming,
                         ::testing::Values(Pairs{1, rdma::ConnectBy::kVerbs}, Pairs{3, rdma::ConnectBy::kVerbs},
                                           Pairs{2, rdma::ConnectBy::kCm}),
                         [](const auto& info) {
                           return (info.param.connected_by == rdma::ConnectBy::kCm ? "cm_" : "verbs_") +
                                  std::to_string(info.param.of_a_flow);
                         });

// Frames of all lengths in messages, both ways; a break at any moment, of any queue pair at either end or of the
// connection.
TEST_P(RdmaResuming, NothingIsLostOrDoubledWheneverItBreaks) {
  ResumingHosts& h = *hosts;
  h.bring_up();
  constexpr std::uint64_t kFrames = 600;
  std::uint64_t next = 10, breaks = 0;
  h.exchange(kFrames, [&] {
    const std::size_t came = std::min(h.a.sink->frames.size(), h.b.sink->frames.size());
    if (came < next || came + 10 > kFrames || !both_connected()) return;
    next = came + random() % 60;
    ++breaks;
    break_somewhere();
  });
  EXPECT_GT(breaks, 5u);
  EXPECT_GE(both().flows_resumed, 2 * (breaks - 1));
  EXPECT_GT(both().frames_resent, 10u);
  EXPECT_EQ(h.a->in_flight(kBulk).value, 0u);
  EXPECT_EQ(h.b->in_flight(kBulk).value, 0u);
}

// Payloads written under a grant. Each place is given to somebody else as soon as its frame has come: a write that is
// late, or comes twice, is seen there.
TEST_P(RdmaResuming, AWriteIsRepeatedUntilItsFrameHasComeAndNeverAfterwards) {
  ResumingHosts& h = *hosts;
  constexpr std::size_t kBytes = 50001, kOperations = 120;
  const auto source = pattern(kBytes * kOperations, 3);
  std::vector<std::byte> payloads = source, landing(kBytes * kOperations);
  const std::span<std::byte> all(landing);
  ASSERT_TRUE(h.a->map(kJob, payloads).ok());
  ASSERT_TRUE(h.b->map(kJob, landing).ok());
  h.bring_up();
  protocol::FrameHeader grant;
  grant.type = protocol::FrameType::kGrant;
  grant.grant = 5;
  h.b.sink->granted = {all};
  h.b.send(h.to_a, {grant, {}, 0});
  ASSERT_TRUE(h.run([&] { return h.a.sink->frames.size() == 1; }));
  h.b.sink->landing = [&](const auto&, const auto& header) { return all.subspan(header.offset, header.payload_bytes); };
  std::size_t came = 0, wrong = 0;
  h.b.sink->frame_hook = [&](const auto&, const protocol::FrameHeader& header) {
    EXPECT_EQ(header.offset, came * kBytes);
    const auto here = all.subspan(header.offset, kBytes);
    wrong += std::memcmp(here.data(), source.data() + header.offset, kBytes) == 0 ? 0 : 1;
    std::memset(here.data(), 0xdd, here.size());
    ++came;
  };
  // What has been sent is the owner's again.
  h.a.sink->sent_hook = [&](const auto&, std::uint64_t token) {
    std::memset(payloads.data() + (token - 1) * kBytes, 0xee, kBytes);
  };
  std::size_t given = 0, breaks = 0, next = 3;
  ASSERT_TRUE(h.run([&] {
    for (; given < std::min(kOperations, came + 8) && h.a.writable(h.to_b); ++given) {
      protocol::FrameHeader header = data_header(given);
      header.grant = 5;
      header.offset = given * kBytes;
      h.a.send(h.to_b, {header, std::span<const std::byte>(payloads).subspan(given * kBytes, kBytes), given + 1});
    }
    if (came >= next && came + 5 < kOperations && both_connected()) {
      next = came + random() % 8;
      ++breaks;
      break_somewhere();
    }
    return came == kOperations && h.a.sink->sent.size() == kOperations;
  }));
  run_for(h.clock, {&h.a, &h.b}, std::chrono::milliseconds(200));
  EXPECT_EQ(came, kOperations);
  EXPECT_EQ(wrong, 0u) << "payloads that were not there, or had been overwritten";
  EXPECT_TRUE(std::ranges::all_of(landing, [](std::byte b) { return b == std::byte{0xdd}; })) << "a late write";
  EXPECT_GT(breaks, 4u);
  EXPECT_GT(both().frames_resent, 5u);
  EXPECT_GE(h.b->counters().payloads_placed, kOperations);
  EXPECT_EQ(h.b->counters().payloads_copied, 0u);
}

// The peer's device has everything and says so; its daemon has looked at nothing yet. Nothing of that is sent again,
// and nothing is missing: its owner may have overwritten it.
TEST_P(RdmaResuming, WhatTheDeviceHasAcknowledgedIsDeliveredAfterALoss) {
  ResumingHosts& h = *hosts;
  h.bring_up();
  ASSERT_TRUE(h.run([&] { return h.a->in_flight(kBulk).value == 0; }));
  run_for(h.clock, {&h.a, &h.b}, std::chrono::milliseconds(50));
  const Time still = h.clock.now();
  Traffic forth(h.a, h.b, h.to_b, h.to_a, 1);
  forth.feed(4);  // lengths 0, 1, 100 and 5000
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (h.a.sink->sent.size() < 4 && std::chrono::steady_clock::now() < end) h.a->poll(still);
  ASSERT_EQ(h.a.sink->sent.size(), 4u);
  ASSERT_TRUE(h.b.sink->frames.empty());
  for (std::size_t i = 0, pairs = queue_pairs(); i < pairs; ++i) fail_queue_pair(i);
  ASSERT_TRUE(h.run([&] { return both().flows_resumed == 2; }));
  ASSERT_TRUE(h.run([&] { return forth.arrived(4); }));
  forth.check(4);
  EXPECT_EQ(both().frames_resent, 0u);
}

// Also where the flow is up at one end only: the other one has not heard the handshake's last message.
TEST_P(RdmaResuming, ADeathAnywhereInTheFirstHandshakeIsSurvived) {
  ResumingHosts& h = *hosts;
  constexpr std::uint64_t kHello = sizeof(handshake::Hello), kProven = kHello + sizeof(handshake::Proof),
                          kAsked = kProven + kParameterBytes;
  static_assert(kAsked + sizeof(handshake::Ready) == kClientBytes);
  for (const std::uint64_t at : {0ul, kHello, kProven, kAsked - 1, kAsked, kClientBytes - 1, kClientBytes})
    h.break_at(Kind::kReset, true, at);
  constexpr std::uint64_t kChallenge = sizeof(handshake::Challenge);
  for (const std::uint64_t at : {0ul, kChallenge - 1, kChallenge, 400ul, kServerBytes - 1, kServerBytes})
    h.break_at(Kind::kClose, false, at);
}

// The peer's queue pairs take what comes although its flow is not up yet, and their device acknowledges; if the
// handshake's last message never comes, all that goes with them.
TEST_P(RdmaResuming, AcknowledgementsBeforeThePeerIsUpDoNotCount) {
  ResumingHosts& h = *hosts;
  h.proxy->to_target = {Kind::kStall, kClientBytes - 1};
  ASSERT_TRUE(h.a->connect(h.to_b, "127.0.0.1", h.port, h.clock.now() + seconds(20)).ok());
  ASSERT_TRUE(h.run([&] { return h.a.sink->up(h.to_b); }));
  Traffic forth(h.a, h.b, h.to_b, h.to_a, 1);
  forth.feed(3);
  ASSERT_FALSE(h.run([&] { return h.a.sink->sent.size() > 0; }, std::chrono::milliseconds(300)));
  EXPECT_FALSE(h.b.sink->up(h.to_a));
  h.cut();
  ASSERT_TRUE(h.run([&] { return forth.arrived(3); }));
  forth.check(3);
}

// ---- what is not resumed ----

TEST_P(RdmaResuming, AFlowThatDoesNotComeBackGoesDownOnceWithItsCause) {
  ResumingHosts& h = *hosts;
  h.bring_up();
  h.proxy.reset();
  ASSERT_TRUE(h.run([&] { return !h.a.writable(h.to_b) && !h.b.writable(h.to_a); }));
  h.clock.skip(kResumeWithin - seconds(2));
  run_for(h.clock, {&h.a, &h.b}, std::chrono::milliseconds(100));
  EXPECT_TRUE(h.a.sink->downs.empty() && h.b.sink->downs.empty());
  h.clock.skip(kResumeWithin);
  ASSERT_TRUE(h.run([&] { return !h.a.sink->downs.empty() && !h.b.sink->downs.empty(); }));
  run_for(h.clock, {&h.a, &h.b}, std::chrono::milliseconds(50));
  ASSERT_EQ(h.a.sink->downs.size(), 1u);
  ASSERT_EQ(h.b.sink->downs.size(), 1u);
  EXPECT_THAT(h.a.sink->downs[0].second.to_string(),
              AllOf(HasSubstr("connection to host 1 (127.0.0.1:"), HasSubstr("could not be resumed: ")));
  EXPECT_THAT(h.b.sink->downs[0].second.to_string(), HasSubstr("no new connection within 5.0 s"));
  EXPECT_EQ(queue_pairs(), 0u);
}

TEST_P(RdmaResuming, ADaemonThatHasStartedAgainIsNotResumed) {
  ResumingHosts& h = *hosts;
  h.bring_up();
  h.b.restart();
  h.b.add_job();
  ASSERT_TRUE(h.run([&] { return !h.a.sink->downs.empty(); }));
  EXPECT_THAT(h.a.sink->downs[0].second.to_string(), HasSubstr("the flow to resume is not here any more"));
  EXPECT_TRUE(h.b.sink->ups.empty());
}

TEST_P(RdmaResuming, AFlowThatIsClosedOnPurposeIsNotMissed) {
  ResumingHosts& h = *hosts;
  for (Host* closing : {&h.a, &h.b}) {
    h.bring_up();
    Host& other = closing == &h.a ? h.b : h.a;
    (*closing)->close(closing == &h.a ? h.to_b : h.to_a);
    ASSERT_TRUE(h.run([&] { return !h.a.sink->downs.empty() && !h.b.sink->downs.empty(); }));
    EXPECT_TRUE(closing->sink->downs[0].second.ok());
    EXPECT_THAT(other.sink->downs[0].second.to_string(),
                AllOf(HasSubstr("was closed by the peer"), Not(HasSubstr("resumed"))));
    h.tear_down();
  }
}

TEST_P(RdmaResuming, APayloadThatBelongsElsewhereEndsTheFlowForGood) {
  ResumingHosts& h = *hosts;
  std::vector<std::byte> source(1000), landing(5000);
  ASSERT_TRUE(h.a->map(kJob, source).ok());
  ASSERT_TRUE(h.b->map(kJob, landing).ok());
  h.bring_up();
  protocol::FrameHeader grant;
  grant.type = protocol::FrameType::kGrant;
  grant.grant = 5;
  h.b.sink->granted = {landing};
  h.b.send(h.to_a, {grant, {}, 0});
  ASSERT_TRUE(h.run([&] { return h.a.sink->frames.size() == 1; }));
  h.b.sink->landing = [&](const auto&, const auto& header) {
    return std::span(landing).subspan(4000, header.payload_bytes);
  };
  protocol::FrameHeader header = data_header();
  header.grant = 5;
  h.a.send(h.to_b, {header, source, 1});
  ASSERT_TRUE(h.run([&] { return !h.b.sink->downs.empty() && !h.a.sink->downs.empty(); }));
  EXPECT_EQ(h.b.sink->downs[0].second.code(), Code::kCorrupt);
  EXPECT_THAT(h.b.sink->downs[0].second.to_string(), Not(HasSubstr("resumed")));
  EXPECT_THAT(h.a.sink->downs[0].second.to_string(), HasSubstr("could not be resumed: "));
}

}  // namespace
}  // namespace tensorlane::conformance
