// The parts of an association, each by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "daemon/transport/datagram/credits.h"
#include "daemon/transport/datagram/ranges.h"
#include "daemon/transport/datagram/recovery.h"
#include "daemon/transport/datagram/send_stream.h"
#include "daemon/transport/datagram/window.h"

namespace tensorlane::datagram {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Against a set of single numbers.
TEST(RangeSet, IsASetOfNumbers) {
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    RangeSet ranges;
    std::set<std::uint64_t> numbers;
    for (int step = 0; step < 40; ++step) {
      const std::uint64_t begin = random() % 60, end = begin + random() % 12;
      const bool adds = random() % 3 != 0;
      adds ? ranges.add({begin, end}) : ranges.remove({begin, end});
      for (std::uint64_t n = begin; n < end; ++n) adds ? (void)numbers.insert(n) : (void)numbers.erase(n);
      for (std::uint64_t n = 0; n < 75; ++n) ASSERT_EQ(ranges.contains(n), numbers.contains(n));
      for (std::size_t i = 1; i < ranges.ranges().size(); ++i)
        ASSERT_LT(ranges.ranges()[i - 1].end, ranges.ranges()[i].begin) << "neither in order nor apart";
      const std::uint64_t from = random() % 70, until = from + random() % 10;
      std::uint64_t missing = from;
      while (missing < until && numbers.contains(missing)) ++missing;
      ASSERT_EQ(ranges.first_missing({from, until}), missing);
      const Range gap = ranges.gap(from, until);
      ASSERT_EQ(gap.begin, missing);
      for (std::uint64_t n = gap.begin; n < gap.end; ++n) ASSERT_FALSE(numbers.contains(n));
      ASSERT_TRUE(gap.end == until || numbers.contains(gap.end));
    }
  }
}

TEST(RangeSet, KeepsTheLast) {
  RangeSet ranges;
  for (std::uint64_t i = 0; i < 5; ++i) ranges.add({i * 4, i * 4 + 1});
  ranges.keep_last(2);
  EXPECT_THAT(ranges.ranges(), ElementsAre(Range{12, 13}, Range{16, 17}));
}

TEST(RoundTrips, BelievesThePeersDelayAsFarAsTheLeastRoundTripAllows) {
  RoundTrips trips;
  EXPECT_FALSE(trips.known());
  trips.add(microseconds(100), {});
  EXPECT_EQ(trips.smoothed(), microseconds(100));
  trips.add(microseconds(180), microseconds(80));
  EXPECT_EQ(trips.smoothed(), microseconds(100));
  trips.add(microseconds(180), microseconds(500));  // it lies
  EXPECT_EQ(trips.smoothed(), microseconds(110));
  EXPECT_GT(trips.timeout(), trips.smoothed());
}

class Recovering : public ::testing::Test {
 protected:
  void send(std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t number = recovery.next_number();
      recovery.sent(now, {number * 100, number * 100 + 100});
      now = now + microseconds(1);
    }
  }
  bool ack(std::vector<Range> come) { return recovery.acknowledge(now, come, {}, &trips, &outcome); }

  Time now{1'000'000};
  Recovery recovery{16};
  RoundTrips trips;
  Recovery::Outcome outcome;
};

TEST_F(Recovering, WhatIsAcknowledgedIsSaidOnce) {
  send(4);
  EXPECT_EQ(recovery.bytes_in_flight(), 400u);
  ASSERT_TRUE(ack({{0, 2}}));
  EXPECT_THAT(outcome.acked, ElementsAre(Range{0, 200}));
  ASSERT_TRUE(ack({{0, 3}}));
  EXPECT_THAT(outcome.acked, ElementsAre(Range{200, 300}));
  ASSERT_TRUE(ack({{0, 3}}));
  EXPECT_THAT(outcome.acked, IsEmpty());
  EXPECT_EQ(recovery.bytes_in_flight(), 100u);
}

TEST_F(Recovering, ThreePacketsBehindAMissingOneMakeItLost) {
  send(5);
  ASSERT_TRUE(ack({{1, 3}}));
  EXPECT_THAT(outcome.lost, IsEmpty()) << "two: it may have been overtaken";
  ASSERT_TRUE(ack({{1, 4}}));
  EXPECT_THAT(outcome.lost, ElementsAre(Range{0, 100}));
  EXPECT_EQ(outcome.packets_lost, 1u);
  ASSERT_TRUE(ack({{0, 5}}));  // it comes after all
  EXPECT_THAT(outcome.acked, ElementsAre(Range{0, 100}, Range{400, 500}));
  EXPECT_EQ(outcome.spurious, 1u);
}

// RFC 8985, section 6.2: only time counts then, and the window grows with every packet that was not lost after all.
TEST_F(Recovering, WhereALostOneArrivesAfterAllOnlyTimeCounts) {
  send(5);
  now = now + microseconds(1000);
  ASSERT_TRUE(ack({{1, 5}}));
  EXPECT_EQ(outcome.packets_lost, 1u);
  ASSERT_TRUE(ack({{0, 5}}));
  EXPECT_EQ(outcome.spurious, 1u);
  EXPECT_LE(trips.patience(1000), trips.smoothed() * 2 + microseconds(200)) << "a round trip more at the most";
  const Time first = now;
  send(8);
  now = now + microseconds(900);
  ASSERT_TRUE(ack({{6, 13}}));
  EXPECT_EQ(outcome.packets_lost, 0u) << "seven behind it have come";
  const auto due = recovery.deadline(trips);
  ASSERT_TRUE(due);
  EXPECT_EQ(*due, first + trips.patience(2)) << "it has grown by a quarter";
  EXPECT_GT(trips.patience(2), trips.patience(1));
  recovery.on_time(*due, trips, &outcome);
  EXPECT_THAT(outcome.lost, ElementsAre(Range{500, 600}));
}

TEST_F(Recovering, OneThatIsOvertakenForTooLongIsLost) {
  send(2);
  now = now + microseconds(100);
  ASSERT_TRUE(ack({{1, 2}}));
  EXPECT_THAT(outcome.lost, IsEmpty());
  const auto due = recovery.deadline(trips);
  ASSERT_TRUE(due);
  recovery.on_time(*due + nanoseconds(-1), trips, &outcome);
  EXPECT_THAT(outcome.lost, IsEmpty());
  recovery.on_time(*due, trips, &outcome);
  EXPECT_THAT(outcome.lost, ElementsAre(Range{0, 100}));
  EXPECT_FALSE(recovery.deadline(trips));
}

TEST_F(Recovering, SilenceIsProbedEverMoreRarely) {
  send(2);
  Duration before;
  for (int i = 0; i < 2; ++i) {
    const auto due = recovery.deadline(trips);
    ASSERT_TRUE(due);
    EXPECT_GT(*due - now, before);
    before = *due - now;
    now = *due;
    recovery.on_time(now, trips, &outcome);
    EXPECT_EQ(outcome.probe, (Range{0, 100}));
    EXPECT_THAT(outcome.lost, IsEmpty()) << "it may be on its way still";
  }
  ASSERT_TRUE(ack({{0, 1}}));
  EXPECT_THAT(outcome.acked, ElementsAre(Range{0, 100}));
  EXPECT_EQ(*recovery.deadline(trips), now + trips.timeout()) << "it begins anew";
}

// One without a piece only says how much there is. Probing with it would leave what is lost behind it where it is.
TEST_F(Recovering, TheOldestThatCarriesSomethingIsProbedWith) {
  recovery.sent(now, {100, 100});
  send(2);
  now = *recovery.deadline(trips);
  recovery.on_time(now, trips, &outcome);
  EXPECT_EQ(outcome.probe, (Range{100, 200}));
}

TEST_F(Recovering, WhereThereIsNoRoomTheOldestIsGivenUp) {
  send(16);
  now = *recovery.deadline(trips);
  recovery.on_time(now, trips, &outcome);
  EXPECT_EQ(outcome.probe, (Range{0, 100}));
  EXPECT_THAT(outcome.lost, ElementsAre(Range{0, 100}));
  EXPECT_FALSE(recovery.full());
}

// What was heard last counts as well as what was sent last.
TEST_F(Recovering, AnswersPutTheTimeOutOff) {
  send(4);
  const Time first = *recovery.deadline(trips);
  now = first + nanoseconds(-1000);
  ASSERT_TRUE(ack({{0, 2}}));
  EXPECT_GT(*recovery.deadline(trips), first);
}

TEST_F(Recovering, WhatWasNeverSentCannotHaveCome) {
  send(2);
  EXPECT_FALSE(ack({{0, 3}}));
  EXPECT_EQ(recovery.bytes_in_flight(), 200u);
}

TEST_F(Recovering, IsFullUntilTheOldestIsKnown) {
  send(16);
  EXPECT_TRUE(recovery.full());
  ASSERT_TRUE(ack({{1, 2}}));
  EXPECT_TRUE(recovery.full());
  ASSERT_TRUE(ack({{0, 2}}));
  EXPECT_FALSE(recovery.full());
}

TEST(SendStream, SendsWhatWasLostFirstAndReportsFramesInOrder) {
  SendStream stream(4);
  const std::vector<std::byte> payload(100, std::byte{9});
  for (std::uint64_t token : {1u, 2u})
    stream.push({.type = protocol::FrameType::kData, .payload_bytes = 100}, payload, token);
  EXPECT_EQ(stream.end(), 328u);
  std::vector<std::byte> out(328);
  EXPECT_EQ(stream.next(50, 1000), (Range{0, 50}));
  EXPECT_EQ(stream.next(1000, 200), (Range{0, 200}));
  stream.take({0, 200}, std::span(out).first(200));
  EXPECT_EQ(out[64], std::byte{9});
  stream.take({200, 328}, std::span(out).first(128));
  EXPECT_EQ(out[127], std::byte{9});
  EXPECT_FALSE(stream.next(1000, 1000));
  std::vector<std::uint64_t> sent;
  const auto note = [&](std::uint64_t token) { sent.push_back(token); };
  stream.arrived({150, 328}, note);
  EXPECT_THAT(sent, IsEmpty()) << "the first has not come";
  stream.lost({0, 200});
  EXPECT_EQ(stream.next(1000, 1000), (Range{0, 150})) << "of the rest another copy has come";
  stream.take({0, 150}, std::span(out).first(150));
  stream.arrived({0, 150}, note);
  EXPECT_THAT(sent, ElementsAre(1, 2));
  EXPECT_EQ(stream.acked(), stream.end());
}

TEST(Window, MarksMakeItSmallerAndItGrowsAgain) {
  Window window(kib(100), 1000);
  Time now{0};
  const auto rounds = [&](int count, std::uint64_t marked, std::uint64_t lost) {
    for (int i = 0; i < count; ++i) window.note(now = now + microseconds(100), 50, marked, lost, 0, microseconds(100));
  };
  rounds(5, 0, 0);
  EXPECT_EQ(window.size(), kib(100).value);
  rounds(20, 50, 0);
  EXPECT_LT(window.size(), kib(20).value);
  EXPECT_GE(window.size(), 2000u);
  const std::uint64_t small = window.size();
  rounds(1000, 0, 0);
  EXPECT_GT(window.size(), small * 2);
  rounds(100, 0, 1);  // two in a hundred
  EXPECT_EQ(window.size(), kib(100).value);
  rounds(30, 0, 10);  // one in six
  EXPECT_LT(window.size(), kib(50).value);
}

TEST(Window, LossesThatAreNoneAreTakenBack) {
  Window window(kib(100), 1000);
  Time now{0};
  for (int i = 0; i < 3; ++i) window.note(now = now + microseconds(100), 50, 0, 30, 0, microseconds(100));
  const std::uint64_t small = window.size();
  EXPECT_LT(small, kib(80).value);
  window.note(now = now + microseconds(10), 30, 0, 0, 30, microseconds(100));
  EXPECT_GT(window.size(), small * 5 / 4);
}

struct Raised final : CreditHolder {
  void credit_raised() override { ++times; }
  int times = 0;
};

class Crediting : public ::testing::Test, public CreditHolder {
 protected:
  // How often somebody may send more.
  int give() {
    times = 0;
    credits.give(now);
    return times;
  }
  void credit_raised() override { ++times; }
  int times = 0;
  Credits::Options options{.window = Bytes(40'000), .unasked = Bytes(1000), .quantum = Bytes(10'000)};
  Credits credits{options};
  Time now{0};
};

TEST_F(Crediting, TheMostUrgentClassGetsAllThereIs) {
  const auto bulk = credits.add(JobId(1), 2, *this), urgent = credits.add(JobId(2), 1, *this);
  credits.wants(bulk, 100'000);
  credits.wants(urgent, 30'000);
  give();
  EXPECT_EQ(credits.credit(urgent), 30'000u);
  EXPECT_EQ(credits.credit(bulk), 21'000u) << "what is left: 11,000 bytes, and so two quanta";
}

// What bulk holds is overtaken on the way.
TEST_F(Crediting, UrgentDoesNotWaitForCreditThatBulkHolds) {
  const auto bulk = credits.add(JobId(1), 2, *this);
  credits.wants(bulk, 100'000);
  give();
  EXPECT_EQ(credits.credit(bulk), 41'000u) << "all of the window, and what it may send unasked";
  const auto urgent = credits.add(JobId(2), 1, *this);
  credits.wants(urgent, 30'000);
  give();
  EXPECT_EQ(credits.credit(urgent), 30'000u);
  credits.come(now, bulk, 20'000);
  give();
  EXPECT_EQ(credits.credit(bulk), 41'000u) << "both together are beyond the window";
}

// Else many senders would fill a queue that no credit knows of.
TEST_F(Crediting, UnaskedIsOnlyWhatBeginsAMessage) {
  std::vector<Credits::Stream> streams;
  for (int i = 0; i < 64; ++i) streams.push_back(credits.add(JobId(1), 1, *this));
  for (const auto stream : streams) credits.wants(stream, 1'000'000);
  give();
  for (const auto stream : streams) credits.come(now, stream, 1000);
  give();
  std::uint64_t ahead = 0;
  for (const auto stream : streams) ahead += credits.credit(stream) - 1000;
  EXPECT_LE(ahead, options.window.value + options.quantum.value);
  credits.come(now, streams[0], 1'000'000);  // it has all
  give();
  EXPECT_EQ(credits.credit(streams[0]), 1'000'000 + options.unasked.value);
}

TEST_F(Crediting, WhoSpeaksAgainHoldsWhatItHeld) {
  const auto silent = credits.add(JobId(1), 1, *this);
  credits.wants(silent, 1'000'000);
  give();
  now = now + options.gives_up;
  give();
  EXPECT_EQ(credits.credit(silent), 41'000u);
  credits.come(now, silent, 9'999);
  give();
  EXPECT_EQ(credits.credit(silent), 41'000u) << "a quantum has not come yet";
  credits.come(now, silent, 10'000);
  give();
  EXPECT_EQ(credits.credit(silent), 51'000u) << "a quantum: 30,000 bytes of the window count as on their way";
}

TEST_F(Crediting, InsideAClassJobsTakeTurnsAndThenTheirPeers) {
  std::vector<Credits::Stream> streams{credits.add(JobId(1), 1, *this), credits.add(JobId(1), 1, *this),
                                       credits.add(JobId(2), 1, *this)};
  for (const auto stream : streams) credits.wants(stream, 1'000'000);
  give();
  EXPECT_EQ(credits.credit(streams[0]), 11'000u);
  EXPECT_EQ(credits.credit(streams[1]), 11'000u);
  EXPECT_EQ(credits.credit(streams[2]), 21'000u) << "a job with one peer has as much as one with two";
}

TEST_F(Crediting, WhatComesMakesRoom) {
  const auto stream = credits.add(JobId(1), 1, *this);
  credits.wants(stream, 1'000'000);
  give();
  EXPECT_EQ(credits.credit(stream), 41'000u);
  EXPECT_EQ(give(), 0);
  credits.come(now, stream, 10'000);
  EXPECT_EQ(give(), 1);
  EXPECT_EQ(credits.credit(stream), 51'000u);
}

TEST_F(Crediting, CreditThatNothingComesOfIsGivenToOthers) {
  const auto silent = credits.add(JobId(1), 1, *this), other = credits.add(JobId(2), 2, *this);
  credits.wants(silent, 1'000'000);
  credits.wants(other, 1'000'000);
  give();
  EXPECT_EQ(credits.credit(other), 1000u);
  now = now + options.gives_up;
  give();
  EXPECT_GT(credits.credit(other), 1000u);
}

TEST_F(Crediting, WhoSendsHoldsItsCreditHoweverLongThatTakes) {
  const auto slow = credits.add(JobId(1), 1, *this), other = credits.add(JobId(2), 2, *this);
  credits.wants(slow, 1'000'000);
  credits.wants(other, 1'000'000);
  give();
  for (std::uint64_t come = 10'000; come <= 100'000; come += 10'000) {
    now = now + milliseconds(3);
    credits.come(now, slow, come);
    give();
    EXPECT_EQ(credits.credit(other), 1000u) << come;
  }
}

// A liar of a more urgent class, and one of the same.
TEST_F(Crediting, WhoSendsALittleNowAndThenHoldsNothing) {
  for (const Slot slot : {Slot{1}, Slot{2}}) {
    Credits all{options};
    const auto liar = all.add(JobId(1), slot, *this), honest = all.add(JobId(2), 2, *this);
    all.wants(liar, 1'000'000'000);
    all.give(now);
    all.wants(honest, 1'000'000'000);
    std::uint64_t lies = 0, come = 0;
    for (int step = 0; step < 1000; ++step) {
      now = now + milliseconds(1);
      if (step % 4 == 0) all.come(now, liar, ++lies);
      come = all.credit(honest);
      all.come(now, honest, come);
      all.give(now);
    }
    EXPECT_GT(come, 9'000'000u) << "at least a quantum in each step";
  }
}

TEST_F(Crediting, WhoIsGoneHoldsNothing) {
  const auto first = credits.add(JobId(1), 1, *this);
  credits.wants(first, 1'000'000);
  give();
  EXPECT_EQ(credits.credit(first), 41'000u);
  credits.remove(first);
  EXPECT_EQ(credits.add(JobId(3), 2, *this), first) << "its number is free";
  EXPECT_EQ(credits.credit(first), 1000u);
  credits.wants(first, 1'000'000);
  give();
  EXPECT_EQ(credits.credit(first), 41'000u) << "and all of the window";
}

// Another one of the same job and class is there, and waits for nothing.
TEST_F(Crediting, WhoIsGoneIsGivenNothingWhoeverRemains) {
  for (const std::uint64_t wanted : {43'000u, 1'000'000u}) {  // a last quantum in part, and many
    Credits all{options};
    Raised gone;
    const auto waits = all.add(JobId(1), 1, gone), rests = all.add(JobId(1), 1, *this);
    all.wants(waits, wanted);
    all.give(now);
    ASSERT_EQ(all.credit(waits), 41'000u);
    gone.times = 0;
    all.remove(waits);
    all.give(now);
    EXPECT_EQ(gone.times, 0);
    all.wants(rests, 5000);
    all.give(now);
    EXPECT_EQ(all.credit(rests), 5000u);
  }
}

// Streams come and go, want more and receive, at random: nobody is given anything who has gone or wants nothing, what
// counts as on its way is what was given, and in the end all that stay have all they want.
TEST(Credits, HoldWhateverComesAndGoes) {
  struct Holder final : CreditHolder {
    void credit_raised() override { EXPECT_TRUE(there); }
    bool there = false;
    Slot slot = 0;
    Credits::Stream stream = 0;
    std::uint64_t wanted = 0, come = 0;
  };
  for (std::uint32_t seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    Credits credits({.window = Bytes(40'000), .unasked = Bytes(1000), .quantum = Bytes(10'000)});
    std::vector<Holder> holders(12);
    Time now{0};
    for (int step = 0; step < 400; ++step) {
      Holder& holder = holders[random() % holders.size()];
      const std::uint32_t what = random() % 8;
      if (!holder.there) {
        holder = {};
        holder.there = true;
        holder.slot = static_cast<Slot>(random() % 3);
        holder.stream = credits.add(JobId(1 + random() % 2), holder.slot, holder);
      } else if (what == 0) {
        credits.remove(holder.stream);
        holder.there = false;
      } else if (what < 4) {
        credits.wants(holder.stream, holder.wanted += random() % 30'000);
      } else {
        const std::uint64_t may = std::min(holder.wanted, credits.credit(holder.stream));
        holder.come += may > holder.come ? random() % (may - holder.come + 1) : 0;
        credits.come(now, holder.stream, holder.come);
      }
      now = now + microseconds(random() % 2000);
      if (random() % 2 == 0) credits.give(now);
    }
    const auto is_done = [&](const Holder& one) { return !one.there || one.come >= one.wanted; };
    for (int rounds = 0; rounds < 1000 && !std::ranges::all_of(holders, is_done); ++rounds) {
      now = now + microseconds(100);
      credits.give(now);
      for (Holder& one : holders) {
        if (!one.there) continue;
        one.come = std::max(one.come, std::min(one.wanted, credits.credit(one.stream)));
        credits.come(now, one.stream, one.come);
      }
    }
    EXPECT_TRUE(std::ranges::all_of(holders, is_done)) << "seed " << seed;
    // Nothing counts as on its way: who is less urgent than all may have the whole window.
    Holder last;
    last.there = true;
    last.stream = credits.add(JobId(1), 3, last);
    credits.wants(last.stream, 1'000'000);
    credits.give(now);
    EXPECT_EQ(credits.credit(last.stream), 41'000u) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tensorlane::datagram
