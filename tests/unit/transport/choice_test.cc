// Measuring and choosing between transports, on links that are arithmetic.
#include "daemon/transport/mixed/choice.h"

#include <cstring>

#include "daemon/transport/mixed/probe.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorlane::mixed {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A link that a message occupies for its transfer and that it then takes `latency` to cross; answers only cross.
struct Link {
  Duration latency;
  double bits_per_second = 1e9;
};
struct Measured {
  std::optional<Figures> figures;
  Duration took;
  std::uint64_t bytes = 0;
};

Measured measure(const Link& link) {
  Probe probe;
  Time now = Time(1'000'000'000);
  const Time began = now;
  Measured measured;
  std::vector<Probe::Message> messages = probe.begin(now);
  while (!messages.empty()) {
    std::uint64_t awaited = 0;
    for (const Probe::Message& m : messages) {
      EXPECT_LE(m.bytes, kMaxOperation.value);
      measured.bytes += m.bytes;
      now = now + Duration(static_cast<std::int64_t>(m.bytes * 8e9 / link.bits_per_second));
      EXPECT_EQ(m.answered, &m == &messages.back()) << "the last message of a round is answered, and no other";
      awaited = m.number;
    }
    now = now + link.latency * 2;
    EXPECT_TRUE(probe.answered(awaited - 1, now).empty()) << "nobody waits for that one";
    EXPECT_FALSE(probe.done());
    messages = probe.answered(awaited, now);
  }
  EXPECT_TRUE(probe.done());
  measured.figures = probe.figures();
  measured.took = now - began;
  return measured;
}

TEST(Probe, FindsLatencyAndBandwidthWithinItsCost) {
  for (const double rate : {2e7, 5e8, 1e10, 2e11}) {
    for (const Duration latency : {microseconds(2), microseconds(50), milliseconds(1)}) {
      const Measured measured = measure({latency, rate});
      SCOPED_TRACE(testing::Message() << rate << " bit/s, " << latency.value << " ns");
      ASSERT_TRUE(measured.figures);
      const double ping = 64 * 8e9 / rate;  // of which the figure counts half
      EXPECT_NEAR(static_cast<double>(measured.figures->latency.value), static_cast<double>(latency.value) + ping / 2,
                  2);
      // Where the round trip is most of it, what is left over is at most a sixteenth.
      const double certain = 16 * 8.0 * static_cast<double>(kLastRound.value) / (32 * to_seconds(latency));
      EXPECT_NEAR(static_cast<double>(measured.figures->bandwidth.value), rate,
                  rate * 0.05 + (rate > certain ? rate : 0));
      EXPECT_LE(measured.took, kProbeTime);
      EXPECT_LE(measured.bytes, kProbeBytes.value + kPings * kPing.value);
    }
  }
}

TEST(Probe, TakesWhatItCanGetOnASlowLink) {
  const Measured measured = measure({milliseconds(30), 1e6});
  ASSERT_TRUE(measured.figures);
  EXPECT_NEAR(static_cast<double>(measured.figures->bandwidth.value), 1e6, 2e4);
  EXPECT_EQ(measured.bytes, kPing.value + kFirstRound.value) << "one round trip and one round";
}

TEST(Probe, HasNoFiguresBeforeTheFirstRound) {
  Probe probe;
  const auto first = probe.begin(Time(1));
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].bytes, kPing.value);
  EXPECT_FALSE(probe.figures());
  probe.answered(first[0].number, Time(1000));
  EXPECT_FALSE(probe.figures());
}

Candidate measured(const std::string& name, Duration latency, double rate) {
  return {name, Figures{latency, BitsPerSecond(static_cast<std::uint64_t>(rate))}, {}};
}

TEST(Choice, TheScoreIsTheTimeOfTheLargestOperation) {
  // 262,144 bytes at 1 Gbit/s take 2.097152 ms.
  EXPECT_EQ(operation_time({microseconds(100), BitsPerSecond(1'000'000'000)}), nanoseconds(2'197'152));
}

TEST(Choice, MeasurementDecidesAgainstCapability) {
  const std::vector<Candidate> candidates{measured("rdma", milliseconds(5), 1e9),
                                          measured("tcp", microseconds(50), 9e8)};
  const Choice choice = choose(candidates);
  EXPECT_THAT(choice.order, ElementsAre(1, 0));
  EXPECT_FALSE(choice.candidates[0].chosen);
  EXPECT_TRUE(choice.candidates[1].chosen);
  EXPECT_EQ(choice.candidates[0].verdict, "7.097 ms for 256 KiB, tcp takes 2.380 ms");
  EXPECT_EQ(choice.candidates[1].verdict, "fastest");
  EXPECT_EQ(choice.candidates[0].latency, milliseconds(5));
  EXPECT_EQ(choice.candidates[1].bandwidth, BitsPerSecond(900'000'000));
}

TEST(Choice, CapabilityDecidesBetweenTheAboutAsFast) {
  const auto rdma_first = [](double share) {
    const std::vector<Candidate> candidates{measured("rdma", Duration(), 1e9 / share),
                                            measured("tcp", Duration(), 1e9)};
    return choose(candidates).chosen() == 0;
  };
  EXPECT_TRUE(rdma_first(0.5));
  EXPECT_TRUE(rdma_first(1.09));
  EXPECT_FALSE(rdma_first(1.11));
  const std::vector<Candidate> close{measured("rdma", Duration(), 1e9), measured("tcp", Duration(), 1.05e9)};
  EXPECT_EQ(choose(close).candidates[0].verdict, "as fast as any within 10%, and more capable");
}

TEST(Choice, WhatWasNotMeasuredComesLast) {
  const std::vector<Candidate> candidates{
      {"dpdk", {}, "Connection refused"}, measured("rdma", milliseconds(9), 1e9), measured("tcp", Duration(), 1e9)};
  const Choice choice = choose(candidates);
  EXPECT_THAT(choice.order, ElementsAre(2, 1, 0));
  EXPECT_EQ(choice.candidates[0].verdict, "not measured: Connection refused");
}

TEST(Choice, CapabilityDecidesAloneWhereNothingWasMeasured) {
  const std::vector<Candidate> candidates{{"rdma", {}, "no answer"}, {"tcp", {}, "no answer either"}};
  const Choice choice = choose(candidates);
  EXPECT_THAT(choice.order, ElementsAre(0, 1));
  EXPECT_EQ(choice.candidates[0].verdict, "the most capable; none could be measured: no answer");
}

TEST(Outcome, PassesBetweenTheEnds) {
  const std::vector<ports::PathCandidate> sent{
      {"rdma", false, microseconds(7), BitsPerSecond(123), "slow"},
      {"tcp", true, {}, {}, std::string(200, 'x') + "\n"},
  };
  const auto bytes = encode(sent);
  EXPECT_EQ(bytes.size(), 2 * kRecordBytes);
  const auto got = decode(bytes);
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  EXPECT_EQ(got->at(0).transport, "rdma");
  EXPECT_EQ(got->at(0).latency, microseconds(7));
  EXPECT_EQ(got->at(0).bandwidth, BitsPerSecond(123));
  EXPECT_FALSE(got->at(0).chosen);
  EXPECT_TRUE(got->at(1).chosen);
  EXPECT_EQ(got->at(1).verdict, std::string(95, 'x'));
}

TEST(Outcome, RefusesWhatNoPeerOfOursSays) {
  const std::vector<ports::PathCandidate> two{{"a", true, {}, {}, "\x01"}, {"b", false, {}, {}, ""}};
  auto good = encode(two);
  EXPECT_EQ(decode(good)->at(0).verdict, "?");
  EXPECT_THAT(decode({}).status().to_string(), HasSubstr("0 bytes of candidates"));
  EXPECT_FALSE(decode(std::span(good).first(200)).ok());
  EXPECT_FALSE(decode(std::vector<std::byte>(9 * kRecordBytes)).ok());
  auto none = good;
  std::memset(none.data() + 31, 0, 1);
  EXPECT_THAT(decode(none).status().to_string(), StartsWith("0 candidates were chosen"));
  auto negative = good;
  std::memset(negative.data(), 0xff, 8);
  EXPECT_THAT(decode(negative).status().to_string(), HasSubstr("out of range"));
  auto strange = good;
  std::memset(strange.data() + 31, 2, 1);
  EXPECT_THAT(decode(strange).status().to_string(), HasSubstr("out of range"));
}

}  // namespace
}  // namespace tensorlane::mixed
