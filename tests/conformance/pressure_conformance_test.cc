// What every transport must do under load: backpressure, order of service, waking, and no leak over many connections.
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <optional>

#include "harness.h"

namespace tensorlane::conformance {
namespace {

class Pressure : public OnTransport {};
INSTANTIATE_TEST_SUITE_P(Transports, Pressure, ::testing::ValuesIn(kinds_under_test()),
                         [](const auto& info) { return info.param.name; });

// Of one that has been armed: something has happened since.
bool woken(ports::Transport& transport, int timeout_ms) {
  pollfd wait{transport.wake_fd(), POLLIN, 0};
  return ::poll(&wait, 1, timeout_ms) == 1;
}
bool readable(ports::Transport& transport, int timeout_ms) {
  return !transport.arm() || woken(transport, timeout_ms);
}

// The same where wake_fd() never stays quiet for long: polls have found nothing many times in a row. The transport is
// armed, wakes by itself, and has slept in between: whoever waits for it does not take a core.
void settle_by_time(TestClock& clock, ports::Transport& transport) {
  Duration longest;
  for (int i = 0, idle = 0; i < 10000 && idle < 20; ++i) {
    const bool nothing = transport.poll(clock.now()) == 0;
    if (!transport.arm()) continue;
    const Time begin = clock.now();
    ASSERT_TRUE(woken(transport, 1000)) << "nothing else wakes it";
    longest = std::max(longest, clock.now() - begin);
    idle = nothing ? idle + 1 : 0;
  }
  transport.poll(clock.now());
  ASSERT_TRUE(transport.arm());
  ASSERT_GE(longest, microseconds(50)) << "it does not rest";
}

// Polls until nothing is left to do: wake_fd() stays quiet, and the transport is armed.
void settle(TestClock& clock, Host& host) {
  ports::Transport& transport = *host;
  if (host.kind.wakes_by_time) return settle_by_time(clock, transport);
  // Once is enough: a timer that asks a silent peer again becomes due ever more rarely, and may be due right
  // afterwards.
  bool quiet = false;
  for (int i = 0; i < 1000 && !quiet; ++i) {
    quiet = !readable(transport, 5);
    if (!quiet) transport.poll(clock.now());
  }
  ASSERT_TRUE(quiet);
}

TEST_P(Pressure, AReceiverThatStopsFillsTheSendersQueueAndNoMore) {
  Pair pair(GetParam());
  const auto bytes = pattern(kMaxOperation.value, 1);
  const auto key = pair.to_b(kBulk);
  std::uint64_t given = 0;
  for (int i = 0; i < 2000; ++i) {
    while (pair.a.writable(key)) pair.a.send(key, {data_header(given), bytes, ++given});
    pair.a->poll(pair.clock.now());
  }
  EXPECT_FALSE(pair.a.writable(key));
  EXPECT_LT(given, 400u);  // 100 MiB: a queue of operations plus the kernel's buffers of both ends
  const std::uint64_t frame = GetParam().frame_bytes(kMaxOperation.value);
  EXPECT_LE(pair.a->in_flight(kBulk).value, given * frame);
  // Whatever the kernel has not taken counts.
  EXPECT_GE(pair.a->in_flight(kBulk).value, (given - pair.a.sink->sent.size()) * frame - frame);
  ASSERT_TRUE(pair.run_until([&] { return pair.b.sink->frames.size() == given; }));
  EXPECT_TRUE(pair.run_until([&] { return pair.a->in_flight(kBulk).value == 0; }));
  EXPECT_TRUE(pair.a.writable(key));
}

TEST_P(Pressure, AWindowKeptByTheSenderIsNeverExceededAndAlwaysOpensAgain) {
  Pair pair(GetParam());
  const auto bytes = pattern(kMaxOperation.value, 1);
  const auto key = pair.to_b(kBulk);
  const std::uint64_t window = mib(1).value, frame = GetParam().frame_bytes(kMaxOperation.value);
  std::uint64_t given = 0, largest = 0;
  const auto fill = [&] {
    while (given < 200 && pair.a.writable(key) && pair.a->in_flight(kBulk).value + frame <= window) {
      pair.a.send(key, {data_header(given++), bytes, 0});
      largest = std::max(largest, pair.a->in_flight(kBulk).value);
    }
  };
  // Nobody reads: at most the window, plus what the receiver's kernel has acknowledged.
  for (int i = 0; i < 200; ++i) {
    fill();
    pair.a->poll(pair.clock.now());
  }
  EXPECT_LT(given, 200u);
  EXPECT_EQ(pair.b.sink->frames.size(), 0u);
  ASSERT_TRUE(pair.run_until([&] {
    fill();
    return pair.b.sink->frames.size() == 200;
  }));
  EXPECT_LE(largest, window);
  EXPECT_GE(largest, 3 * frame);
}

TEST_P(Pressure, InFlightCountsAllPeersOfAClassAndFallsToZero) {
  TestClock clock;
  Host a(GetParam(), HostIndex(0)), b(GetParam(), HostIndex(1)), c(GetParam(), HostIndex(2));
  for (Host* host : {&a, &b, &c}) host->add_job();
  const ports::FlowKey to_b{kJob, HostIndex(1), kBulk}, to_c{kJob, HostIndex(2), kBulk};
  ASSERT_TRUE(a->connect(to_b, b.kind.address, b.data_port, clock.now() + seconds(20)).ok());
  ASSERT_TRUE(a->connect(to_c, c.kind.address, c.data_port, clock.now() + seconds(20)).ok());
  ASSERT_TRUE(run_until(clock, {&a, &b, &c}, [&] { return a.sink->up(to_b) && a.sink->up(to_c); }));
  const auto bytes = pattern(1000, 1);
  a.send(to_b, {data_header(), bytes, 0});
  a.send(to_c, {data_header(), bytes, 0});
  EXPECT_EQ(a->in_flight(kBulk).value, 2 * GetParam().frame_bytes(1000));
  EXPECT_EQ(a->in_flight(kUrgent).value, 0u);
  EXPECT_TRUE(run_until(clock, {&a, &b, &c}, [&] { return a->in_flight(kBulk).value == 0; }));
  // What a flow held when it ended is in flight no more.
  a.send(to_b, {data_header(), bytes, 0});
  a->close(to_b);
  EXPECT_EQ(a->in_flight(kBulk).value, 0u);
}

// Both ends send, so the kernel would delay acknowledgements for 40 ms; a window must not stay shut that long after its
// bytes were read.
TEST_P(Pressure, WhatHasBeenReadIsAcknowledgedSoon) {
  Pair pair(GetParam());
  const auto bytes = pattern(60000, 1);
  std::size_t slow = 0;
  for (std::size_t round = 1; round <= 20; ++round) {
    for (const bool forth : {true, false}) {
      Host& from = forth ? pair.a : pair.b;
      Host& to = forth ? pair.b : pair.a;
      from.send(forth ? pair.to_b(kBulk) : pair.to_a(kBulk), {data_header(), bytes, 0});
      ASSERT_TRUE(pair.run_until([&] { return to.sink->frames.size() == round; }));
    }
    const Time begin = pair.clock.now();
    ASSERT_TRUE(
        pair.run_until([&] { return pair.a->in_flight(kBulk).value < 5000 && pair.b->in_flight(kBulk).value < 5000; }));
    slow += pair.clock.now() - begin > milliseconds(20);
  }
  EXPECT_LE(slow, 15u);  // without, nearly all are; a busy machine may delay some
}

TEST_P(Pressure, UrgentFramesAreDeliveredBeforeBulkThatCameEarlier) {
  Pair pair(GetParam());
  // Bulk that has arrived as a whole: whoever reads it first delivers it first. No more than may be sent unasked.
  const auto bytes = pattern(1000, 1);
  for (int i = 0; i < 7; ++i) pair.a.send(pair.to_b(kBulk), {data_header(), std::span(bytes).first(400), 0});
  for (int i = 0; i < 50; ++i) pair.a->poll(pair.clock.now());
  pair.a.send(pair.to_b(kUrgent), {data_header(), bytes, 0});
  pair.a.send(pair.to_b(kControlClass), {data_header(), {}, 0});
  for (int i = 0; i < 50; ++i) pair.a->poll(pair.clock.now());
  ASSERT_TRUE(run_until(pair.clock, {&pair.b}, [&] { return pair.b.sink->frames.size() >= 3; }));
  EXPECT_EQ(pair.b.sink->frames[0].flow.cls, kControlClass);
  EXPECT_EQ(pair.b.sink->frames[1].flow.cls, kUrgent);
  EXPECT_EQ(pair.b.sink->frames[2].flow.cls, kBulk);
}

// An urgent class whose next operation is always there already.
TEST_P(Pressure, ABusyClassKeepsNoOtherUnread) {
  Pair pair(GetParam());
  const auto bytes = pattern(kMaxOperation.value, 1);
  const auto fill = [&] {
    while (pair.a.writable(pair.to_b(kUrgent))) pair.a.send(pair.to_b(kUrgent), {data_header(), bytes, 0});
    for (int i = 0; i < 4; ++i) pair.a->poll(pair.clock.now());
  };
  fill();
  pair.a.send(pair.to_b(kBulk), {data_header(), std::span(bytes).first(1000), 0});
  const auto of_bulk = [&] {
    return std::ranges::count_if(pair.b.sink->frames, [](const auto& frame) { return frame.flow.cls == kBulk; });
  };
  std::size_t urgent = 0;
  for (int i = 0; i < 64 && of_bulk() == 0; ++i) {
    fill();
    const std::size_t before = pair.b.sink->frames.size();
    pair.b->poll(pair.clock.now());
    urgent += pair.b.sink->frames.size() - before;
  }
  EXPECT_EQ(of_bulk(), 1) << urgent << " urgent frames came in 64 polls";
}

TEST_P(Pressure, OnePollDoesBoundedWork) {
  Pair pair(GetParam());
  const auto bytes = pattern(kMaxOperation.value, 1);
  std::uint64_t sent = 0;
  while (sent < 40) {
    while (sent < 40 && pair.a.writable(pair.to_b(kBulk)))
      pair.a.send(pair.to_b(kBulk), {data_header(sent++), bytes, 0});
    pair.a->poll(pair.clock.now());
    if (pair.a.sink->sent.size() + 64 <= sent) pair.b->poll(pair.clock.now());
  }
  std::size_t largest = 0;
  ASSERT_TRUE(run_until(pair.clock, {&pair.a}, [&] {
    const std::size_t before = pair.b.sink->frames.size();
    pair.b->poll(pair.clock.now());
    largest = std::max(largest, pair.b.sink->frames.size() - before);
    return pair.b.sink->frames.size() == 40;
  }));
  EXPECT_LE(largest, 2u);  // a block of 256 KiB holds the end of one operation and at most one more
}

TEST_P(Pressure, WakesForWhateverPollHasToDo) {
  Pair pair(GetParam());
  settle(pair.clock, pair.a);
  settle(pair.clock, pair.b);
  const auto bytes = pattern(1000, 1);
  pair.a.send(pair.to_b(kUrgent), {data_header(), bytes, 1});
  EXPECT_TRUE(readable(*pair.a, 0)) << "an operation waits to be written";
  pair.a->poll(pair.clock.now());
  while (pair.a.sink->sent.empty() && !GetParam().told_by_peer) pair.a->poll(pair.clock.now());
  EXPECT_TRUE(woken(*pair.b, 1000)) << "bytes have come";
  settle(pair.clock, pair.b);
  EXPECT_EQ(pair.b.sink->frames.size(), 1u);
  settle(pair.clock, pair.a);
  pair.b->close(pair.to_a(kUrgent));
  EXPECT_TRUE(readable(*pair.b, 0)) << "on_flow_down waits to be called";
}

// One that is read where it lies is the caller's again once it has been read, which the peer alone knows.
TEST_P(Pressure, WakesWhenAPayloadIsNotReadAnyMore) {
  Pair pair(GetParam());
  const auto bytes = pattern(kMaxOperation.value, 1);
  pair.a.send(pair.to_b(kUrgent), {data_header(), bytes, 1});
  pair.a->poll(pair.clock.now());
  settle(pair.clock, pair.a);
  const auto come = [&] { return pair.b.sink->frames.size() == 1; };
  if (!run_until(pair.clock, {&pair.b}, come, std::chrono::seconds(2))) {  // it is longer than a ring
    ASSERT_TRUE(pair.run_until(come));
    settle(pair.clock, pair.a);
  }
  if (pair.a.sink->sent.empty()) {
    EXPECT_TRUE(woken(*pair.a, 1000));
    EXPECT_TRUE(run_until(pair.clock, {&pair.a}, [&] { return !pair.a.sink->sent.empty(); }));
  }
}

TEST_P(Pressure, WakesWhenAFullSocketTakesBytesAgain) {
  Pair pair(GetParam());
  const auto bytes = pattern(kMaxOperation.value, 1);
  for (int i = 0; i < 2000; ++i) {
    while (pair.a.writable(pair.to_b(kBulk))) pair.a.send(pair.to_b(kBulk), {data_header(), bytes, 1});
    pair.a->poll(pair.clock.now());
  }
  settle(pair.clock, pair.a);
  const std::size_t before = pair.a.sink->sent.size();
  for (int i = 0; i < 200; ++i) pair.b->poll(pair.clock.now());
  EXPECT_TRUE(woken(*pair.a, 1000));
  EXPECT_TRUE(pair.run_until([&] { return pair.a.sink->sent.size() > before; }));
}

TEST_P(Pressure, WakesWhenAWindowMayHaveRoomAgain) {
  Pair pair(GetParam());
  settle(pair.clock, pair.a);
  const auto bytes = pattern(kMaxOperation.value, 1);
  for (int i = 0; i < 4; ++i) pair.a.send(pair.to_b(kBulk), {data_header(), bytes, 1});
  do {
    pair.a->poll(pair.clock.now());
  } while (GetParam().sockets && pair.a.sink->sent.size() < 4);
  // The lane finds the window full and blocks; nobody sends it anything.
  while (pair.a->in_flight(kBulk).value > 0) {
    pair.b->poll(pair.clock.now());
    const bool full = pair.a->in_flight(kBulk) + kMaxOperation > mib(1);
    if (full) {
      EXPECT_TRUE(readable(*pair.a, 100));
    }
    pair.a->poll(pair.clock.now());
  }
}

// What a process holds.
struct Held {
  std::size_t descriptors = open_descriptors();
  std::size_t kib = resident_kib();
  std::string objects;  // of the device

  explicit Held(const TransportKind& kind) : objects(kind.objects()) {}
  std::string text() const { return fmt::format("{} descriptors, {} KiB, {}", descriptors, kib, objects); }
};

int cycles_of(const TransportKind& kind) {
  const char* wanted = std::getenv("TENSORLANE_CYCLES");
  return wanted == nullptr ? kind.cycles : std::max(1, std::atoi(wanted));
}

TEST_P(Pressure, ManyConnectionsLeakNothing) {
  TestClock clock;
  Host a(GetParam(), HostIndex(0)), b(GetParam(), HostIndex(1));
  a.add_job();
  b.add_job();
  const ports::FlowKey key{kJob, HostIndex(1), kUrgent}, back{kJob, HostIndex(0), kUrgent};
  const auto bytes = pattern(100, 1);
  std::optional<Held> before;
  const int cycles = cycles_of(GetParam());
  const Time begin = clock.now();
  for (int cycle = 0; cycle < cycles; ++cycle) {
    ASSERT_TRUE(a->connect(key, b.kind.address, b.data_port, clock.now() + seconds(20)).ok());
    ASSERT_TRUE(run_until(clock, {&a, &b}, [&] { return a.sink->up(key) && b.sink->up(back); }));
    a.send(key, {data_header(), bytes, 1});
    ASSERT_TRUE(run_until(clock, {&a, &b}, [&] { return b.sink->frames.size() == 1; }));
    (cycle % 2 ? *a : *b).close(cycle % 2 ? key : back);
    ASSERT_TRUE(run_until(clock, {&a, &b}, [&] { return !a.sink->up(key) && !b.sink->up(back); }));
    a.sink->forget();
    b.sink->forget();
    if (cycle == cycles / 10) {
      run_for(clock, {&a, &b}, std::chrono::milliseconds(100));
      before.emplace(GetParam());
    }
  }
  // The kernel takes its time to take some of them apart.
  run_until(clock, {&a, &b},
            [&] { return open_descriptors() <= before->descriptors + 2 && GetParam().objects() == before->objects; });
  const Held after(GetParam());
  EXPECT_LE(after.descriptors, before->descriptors + 2);
  EXPECT_LT(after.kib, before->kib + 8 * 1024);
  EXPECT_EQ(after.objects, before->objects);
  std::cout << fmt::format("{} cycles in {:.1f} s: {}; before: {}\n", cycles, to_seconds(clock.now() - begin),
                           after.text(), before->text());
}

}  // namespace
}  // namespace tensorlane::conformance
