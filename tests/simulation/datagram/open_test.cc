// How classes of an association are opened, closed and given up, and what a port is told of them.
#include <gtest/gtest.h>

#include "tests/simulation/datagram/path.h"

namespace tensorlane::datagram {
namespace {

using namespace test;

PathOptions closed() {
  PathOptions options;
  options.attach = false;
  options.config.give_up = milliseconds(500);
  return options;
}

bool never() {
  return false;
}

TEST(Opening, AClassIsUpOnlyOnceBothEndsHaveAttached) {
  Path path(closed());
  path.attach(0, kUrgent);
  ASSERT_FALSE(path.run(seconds(5), never));
  EXPECT_EQ(path.host(0).opened[kUrgent], 0u);
  EXPECT_FALSE(path.host(0).association->writable(kUrgent));
  EXPECT_TRUE(path.host(0).failed.ok()) << "the peer answers: " << path.host(0).failed.to_string();
  EXPECT_LT(path.packets, 200u) << "it asks ever more rarely, but often enough not to give the peer up";
  path.attach(1, kUrgent);
  ASSERT_FALSE(path.run(milliseconds(5), never));
  for (int i : {0, 1}) {
    EXPECT_EQ(path.host(i).opened[kUrgent], 1u);
    EXPECT_TRUE(path.host(i).association->writable(kUrgent));
    EXPECT_FALSE(path.host(i).association->is_up(kBulk));
  }
  ASSERT_TRUE(path.send(0, kUrgent, 5000));
  ASSERT_TRUE(path.run(seconds(1), [&] { return path.settled(); }));
  EXPECT_EQ(path.host(1).receives[kUrgent]->delivered(), 1u);
}

TEST(Opening, WhatTheOneClosesTheOtherIsToldOf) {
  Path path(closed());
  for (int i : {0, 1}) path.attach(i, kBulk), path.attach(i, kUrgent);
  ASSERT_FALSE(path.run(milliseconds(5), never));
  for (int count = 0; count < 20; ++count) ASSERT_TRUE(path.send(0, kBulk, 100'000));
  ASSERT_FALSE(path.run(milliseconds(2), never));
  path.close(0, kBulk);
  ASSERT_FALSE(path.run(milliseconds(5), never));
  EXPECT_EQ(path.host(1).closed[kBulk], 1u);
  EXPECT_EQ(path.host(0).closed[kBulk], 0u) << "it knows";
  EXPECT_EQ(path.host(1).closed[kUrgent], 0u);
  EXPECT_FALSE(path.host(1).association->attached(kBulk));
  EXPECT_EQ(path.host(0).association->outstanding(kBulk), 0u);
  const std::uint64_t packets = path.packets;
  ASSERT_FALSE(path.run(seconds(2), never));
  EXPECT_EQ(path.packets, packets) << "there is nothing more to be said";
  EXPECT_TRUE(path.host(0).failed.ok()) << "an idle association is not given up";
  ASSERT_TRUE(path.send(0, kUrgent, 5000));
  ASSERT_TRUE(path.run(seconds(1), [&] { return path.settled(); }));
}

// Packets of the earlier stream are on their way still when the next one has begun.
TEST(Opening, AClassIsOpenedAgainAndAgain) {
  PathOptions options = closed();
  options.jitter = microseconds(300);
  options.loss = 0.1;
  options.twice = 0.1;
  Path path(options);
  for (int i : {0, 1}) path.attach(i, kBulk);
  for (unsigned round = 1; round <= 20; ++round) {
    ASSERT_TRUE(path.run(seconds(2),
                         [&] { return path.host(0).opened[kBulk] == round && path.host(1).opened[kBulk] == round; }));
    for (int count = 0; count < 5; ++count)
      for (int i : {0, 1}) ASSERT_TRUE(path.send(i, kBulk, 20'000));
    ASSERT_FALSE(path.run(microseconds(200 * round), never));
    path.close(round % 2, kBulk);
    path.attach(round % 2, kBulk);
    ASSERT_TRUE(path.run(seconds(2), [&] { return path.host(1 - round % 2).closed[kBulk] > (round - 1) / 2; }));
    path.attach(1 - round % 2, kBulk);
    ASSERT_EQ(path.wrong(), "");
  }
  ASSERT_TRUE(path.run(seconds(2), [&] { return path.host(0).association->is_up(kBulk); }));
  ASSERT_TRUE(path.send(0, kBulk, 20'000));
  ASSERT_TRUE(path.run(seconds(2), [&] { return path.settled(); }));
  EXPECT_EQ(path.wrong(), "");
  EXPECT_EQ(path.host(0).association->generation(kBulk), 21u);
  EXPECT_GT(path.host(0).association->counters().stale + path.host(1).association->counters().stale, 0u);
}

// The close of the one and the attach of the other cross each other.
TEST(Opening, WhoHasNotBeenUpFollowsSilently) {
  Path path(closed());
  path.attach(0, kBulk);
  path.close(0, kBulk);
  path.attach(0, kBulk);
  path.close(0, kBulk);
  path.attach(1, kBulk);
  ASSERT_FALSE(path.run(milliseconds(100), never));
  EXPECT_EQ(path.host(1).closed[kBulk], 0u);
  path.attach(0, kBulk);
  ASSERT_TRUE(path.run(seconds(2), [&] { return path.host(1).opened[kBulk] == 1 && path.host(0).opened[kBulk] == 1; }));
  EXPECT_EQ(path.host(0).association->generation(kBulk), 3u);
  EXPECT_EQ(path.host(1).association->generation(kBulk), 3u);
}

// Law 21: it is said once, and names what waits.
TEST(GivingUp, ASilentPeerIsNamedWhereSomethingWaitsForIt) {
  Path path(closed());
  for (int i : {0, 1}) path.attach(i, kControl), path.attach(i, kBulk);
  ASSERT_FALSE(path.run(milliseconds(5), never));
  path.loss = 1;
  ASSERT_FALSE(path.run(seconds(3), never));
  for (int i : {0, 1}) EXPECT_TRUE(path.host(i).failed.ok()) << "nothing waits";
  ASSERT_TRUE(path.send(0, kBulk, 1000));
  ASSERT_FALSE(path.run(milliseconds(490), never));
  EXPECT_TRUE(path.host(0).failed.ok());
  ASSERT_FALSE(path.run(milliseconds(20), never));
  EXPECT_EQ(path.host(0).failed.code(), Code::kTimedOut);
  EXPECT_NE(path.host(0).failed.what().find("1064 bytes"), std::string::npos) << path.host(0).failed.what();
  EXPECT_TRUE(path.host(1).failed.ok());
  EXPECT_TRUE(path.host(0).association->on_time(path.now() + seconds(9)).ok()) << "once";
}

TEST(GivingUp, AnOpeningThatIsNotAnsweredIsNamed) {
  Path path(closed());
  path.loss = 1;
  path.attach(0, kBulk);
  ASSERT_FALSE(path.run(milliseconds(510), never));
  EXPECT_EQ(path.host(0).failed.code(), Code::kTimedOut);
  EXPECT_NE(path.host(0).failed.what().find("be opened"), std::string::npos) << path.host(0).failed.what();
}

TEST(GivingUp, SlowButSureIsNotGivenUp) {
  PathOptions options = closed();
  options.rate = BitsPerSecond(1'000'000);
  Path path(options);
  for (int i : {0, 1}) path.attach(i, kBulk);
  ASSERT_TRUE(path.run(seconds(1), [&] { return path.host(0).association->writable(kBulk); }));
  ASSERT_TRUE(path.send(0, kBulk, 250'000));
  ASSERT_TRUE(path.run(seconds(5), [&] { return path.settled(); })) << path.wrong();
  EXPECT_GT(path.now().value, seconds(2).value);
}

TEST(Progress, CountsWhatWasGivenDeliveredAndSentAgain) {
  PathOptions options;
  options.loss = 0.05;
  Path path(options);
  ASSERT_TRUE(path.run(seconds(1), [&] { return path.open(); }));
  path.host(1).receives[kBulk]->drops = 3;
  for (int count = 0; count < 9; ++count) ASSERT_TRUE(path.send(0, kBulk, 50'000));
  EXPECT_EQ(path.host(0).association->progress(kBulk).outstanding_bytes, 9 * 50'064u);
  ASSERT_TRUE(path.run(seconds(2), [&] { return path.settled(); }));
  const ports::FlowProgress here = path.host(0).association->progress(kBulk);
  EXPECT_EQ(here.given, 9u);
  EXPECT_EQ(here.outstanding_bytes, 0u);
  EXPECT_GT(here.retransmissions, 0u);
  EXPECT_EQ(path.host(1).association->progress(kBulk).received, 9u) << "dropped ones count";
}

// on_sent() frees the payload in the Ends, so that a packet which is read later is a fault, and its contents are
// others.
TEST(Gathering, PayloadsStayUntilNoPacketBorrowsThem) {
  PathOptions options;
  options.gathers = true;
  options.loss = 0.02;
  Path path(options);
  ASSERT_TRUE(path.run(seconds(1), [&] { return path.open(); }));
  Association& association = *path.host(0).association;
  ASSERT_TRUE(path.send(0, kBulk, 3000));
  std::array<std::byte, 1400> own;
  Gathered packet;
  ASSERT_TRUE(association.make(path.now(), kBulk, own, &packet));
  EXPECT_TRUE(packet.borrows);
  EXPECT_EQ(packet.count, 2u) << "what stands before it, and the payload";
  EXPECT_EQ(packet.bytes, 1400u);
  // The packet is lost, and its copy arrives; but it is being sent still.
  ASSERT_TRUE(path.run(seconds(1), [&] { return association.outstanding(kBulk) == 0; }));
  for (int i = 0; i < 3; ++i) ASSERT_FALSE(path.run(milliseconds(10), never));
  EXPECT_EQ(path.host(0).sends[kBulk]->sent(), 1u) << "later packets of the slot were released, and so this one";
  for (int count = 0; count < 40; ++count) path.send(0, kBulk, count % 2 == 0 ? 90'000 : 100);
  ASSERT_TRUE(path.run(seconds(5), [&] { return path.settled(); }));
  EXPECT_EQ(path.wrong(), "");
}

TEST(Gathering, WhatIsAcknowledgedButNotReleasedIsNotSent) {
  Path path({});
  ASSERT_TRUE(path.run(seconds(1), [&] { return path.open(); }));
  Association& association = *path.host(0).association;
  ASSERT_TRUE(path.send(0, kBulk, 1000));
  std::array<std::byte, 1400> own;
  Gathered packet;
  ASSERT_TRUE(association.make(path.now(), kBulk, own, &packet));
  ASSERT_TRUE(path.run(seconds(1), [&] { return association.outstanding(kBulk) == 0; }));
  EXPECT_EQ(path.host(0).sends[kBulk]->sent(), 0u);
  EXPECT_TRUE(association.borrows(kBulk));
  association.released(kBulk, packet.number);
  EXPECT_EQ(path.host(0).sends[kBulk]->sent(), 1u);
  EXPECT_FALSE(association.borrows(kBulk));
}

}  // namespace
}  // namespace tensorlane::datagram
