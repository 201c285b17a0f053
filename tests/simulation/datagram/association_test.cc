// How an association gives up a silent peer, what it counts, how packets borrow payloads, and what it takes from others
// than its peer.
#include <gtest/gtest.h>

#include "tests/simulation/datagram/path.h"

namespace tensorlane::datagram {
namespace {

using namespace test;

PathOptions impatient() {
  PathOptions options;
  options.config.give_up = milliseconds(500);
  return options;
}

bool never() {
  return false;
}

// Law 21: it is said once, and names what waits.
TEST(GivingUp, ASilentPeerIsNamedWhereSomethingWaitsForIt) {
  Path path(impatient());
  path.loss = 1;
  const std::uint64_t packets = path.packets;
  ASSERT_FALSE(path.run(seconds(3), never));
  EXPECT_EQ(path.packets, packets) << "there is nothing to be said";
  EXPECT_EQ(path.wrong(), "") << "nothing waits";
  Path::Flow& flow = path.at(0, kBulk);
  ASSERT_TRUE(flow.send(1000));
  ASSERT_FALSE(path.run(milliseconds(490), never));
  EXPECT_TRUE(flow.failed.ok());
  ASSERT_FALSE(path.run(milliseconds(20), never));
  EXPECT_EQ(flow.failed.code(), Code::kTimedOut);
  EXPECT_NE(flow.failed.what().find("1064 bytes"), std::string::npos) << flow.failed.what();
  for (const Path::Flow* other : path.flows()) EXPECT_TRUE(other == &flow || other->failed.ok());
  EXPECT_TRUE(flow.association->on_time(path.now() + seconds(9)).ok()) << "once";
}

TEST(GivingUp, SlowButSureIsNotGivenUp) {
  PathOptions options = impatient();
  options.rate = BitsPerSecond(1'000'000);
  Path path(options);
  ASSERT_TRUE(path.at(0, kBulk).send(250'000));
  ASSERT_TRUE(path.run(seconds(5), [&] { return path.settled(); })) << path.wrong();
  EXPECT_GT(path.now().value, seconds(2).value);
}

// Packets of the earlier ones are on their way still, some twice, when the next one has begun, half of the time at the
// same number.
TEST(Strangers, WhatIsLateOfAnEarlierAssociationIsForged) {
  PathOptions options;
  options.jitter = microseconds(300);
  options.loss = 0.1;
  options.twice = 0.1;
  Path path(options);
  std::uint64_t forged = 0;
  for (int round = 1; round <= 20; ++round) {
    for (int count = 0; count < 5; ++count)
      for (int end : {0, 1}) ASSERT_TRUE(path.at(end, kBulk).send(20'000));
    ASSERT_FALSE(path.run(microseconds(200 * round), never));
    for (int end : {0, 1}) forged += path.at(end, kBulk).association->counters().forged;
    path.restart(path.at(round % 2, kBulk), microseconds(10));
    ASSERT_TRUE(path.run(seconds(1), [&] { return path.complete(); }));
    ASSERT_EQ(path.wrong(), "");
  }
  ASSERT_TRUE(path.at(0, kBulk).send(20'000));
  ASSERT_TRUE(path.run(seconds(2), [&] { return path.settled(); }));
  EXPECT_EQ(path.wrong(), "");
  EXPECT_EQ(path.at(1, kBulk).receives.delivered(), 1u);
  EXPECT_GT(forged, 0u);
}

TEST(Strangers, APacketOfAnotherFlowIsForged) {
  Path path({});
  ASSERT_TRUE(path.at(0, kBulk).send(1000));
  std::array<std::byte, 1400> packet;
  const std::size_t bytes = path.at(0, kBulk).association->make(path.now(), packet);
  ASSERT_GT(bytes, 1000u);
  Path::Flow& other = path.at(1, kUrgent);
  EXPECT_TRUE(other.association->take(path.now(), std::span(packet).first(bytes), false).ok());
  EXPECT_EQ(other.association->counters().forged, 1u);
  EXPECT_EQ(other.association->counters().packets_received, 0u);
}

TEST(Progress, CountsWhatWasGivenDeliveredAndSentAgain) {
  PathOptions options;
  options.loss = 0.05;
  Path path(options);
  path.at(1, kBulk).receives.drops = 3;
  for (int count = 0; count < 9; ++count) ASSERT_TRUE(path.at(0, kBulk).send(50'000));
  EXPECT_EQ(path.at(0, kBulk).association->progress().outstanding_bytes, 9 * 50'064u);
  ASSERT_TRUE(path.run(seconds(2), [&] { return path.settled(); }));
  const ports::FlowProgress here = path.at(0, kBulk).association->progress();
  EXPECT_EQ(here.given, 9u);
  EXPECT_EQ(here.outstanding_bytes, 0u);
  EXPECT_GT(here.retransmissions, 0u);
  EXPECT_EQ(path.at(1, kBulk).association->progress().received, 9u) << "dropped ones count";
}

// on_sent() frees the payload in the Ends, so that a packet which is read later is a fault, and its contents are
// others.
TEST(Gathering, PayloadsStayUntilNoPacketBorrowsThem) {
  PathOptions options;
  options.gathers = true;
  options.loss = 0.02;
  Path path(options);
  Association& association = *path.at(0, kBulk).association;
  ASSERT_TRUE(path.at(0, kBulk).send(3000));
  std::array<std::byte, 1400> own;
  Gathered packet;
  ASSERT_TRUE(association.make(path.now(), own, &packet));
  EXPECT_TRUE(packet.borrows);
  EXPECT_EQ(packet.count, 2u) << "what stands before it, and the payload";
  EXPECT_EQ(packet.bytes, 1400u);
  // The packet is lost, and its copy arrives; but it is being sent still.
  ASSERT_TRUE(path.run(seconds(1), [&] { return association.outstanding() == 0; }));
  for (int i = 0; i < 3; ++i) ASSERT_FALSE(path.run(milliseconds(10), never));
  EXPECT_EQ(path.at(0, kBulk).sends.sent(), 1u) << "later packets of the slot were released, and so this one";
  for (int count = 0; count < 40; ++count) path.at(0, kBulk).send(count % 2 == 0 ? 90'000 : 100);
  ASSERT_TRUE(path.run(seconds(5), [&] { return path.settled(); }));
  EXPECT_EQ(path.wrong(), "");
}

TEST(Gathering, WhatIsAcknowledgedButNotReleasedIsNotSent) {
  Path path({});
  Association& association = *path.at(0, kBulk).association;
  ASSERT_TRUE(path.at(0, kBulk).send(1000));
  std::array<std::byte, 1400> own;
  Gathered packet;
  ASSERT_TRUE(association.make(path.now(), own, &packet));
  ASSERT_TRUE(path.run(seconds(1), [&] { return association.outstanding() == 0; }));
  EXPECT_EQ(path.at(0, kBulk).sends.sent(), 0u);
  EXPECT_TRUE(association.borrows());
  association.released(packet.number);
  EXPECT_EQ(path.at(0, kBulk).sends.sent(), 1u);
  EXPECT_FALSE(association.borrows());
}

}  // namespace
}  // namespace tensorlane::datagram
