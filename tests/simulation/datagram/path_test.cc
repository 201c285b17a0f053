// Two associations over a path that loses, delays, repeats, damages and forges: all frames come, once, in order and as
// they were sent, whatever the seed.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/simulation/datagram/path.h"

namespace tensorlane::datagram {
namespace {

using namespace test;

struct OpenPath : Path {
  explicit OpenPath(const PathOptions& options) : Path(options) {
    EXPECT_TRUE(run(seconds(1), [&] { return open(); }));
  }
};

// Gives frames for as long as there is room, `count` in all of each slot.
void feed(Path& path, int from, Slot slot, std::uint64_t count, const std::function<std::size_t()>& bytes) {
  while (path.host(from).sends[slot]->given() < count && path.send(from, slot, bytes())) {
  }
}

void expect_all(Path& path, const std::string& what) {
  EXPECT_EQ(path.wrong(), "") << what;
  for (int i : {0, 1}) {
    for (Slot slot = 0; slot < path.host(i).sinks.size(); ++slot)
      EXPECT_EQ(path.host(1 - i).receives[slot]->delivered(), path.host(i).sends[slot]->given())
          << what << ", host " << i << ", slot " << int{slot};
  }
}

TEST(Path, ACleanPathIsFilled) {
  OpenPath path({});
  const Time begin = path.now();
  constexpr std::uint64_t kFrames = 40;
  feed(path, 0, kBulk, kFrames, [] { return kMaxOperation.value; });
  ASSERT_TRUE(path.run(seconds(2), [&] { return path.settled(); }));
  expect_all(path, "clean");
  const double goodput = static_cast<double>(kFrames * kMaxOperation.value) * 8 / to_seconds(path.now() - begin);
  EXPECT_GT(goodput, 0.90e9);
  EXPECT_EQ(path.host(0).association->counters().packets_lost, 0u);
  EXPECT_EQ(path.host(1).association->counters().duplicates, 0u);
}

// A message is there after a round trip or less.
TEST(Path, ASmallFrameGoesAtOnce) {
  OpenPath path({});
  const Time begin = path.now();
  path.send(0, kUrgent, 4096);
  ASSERT_TRUE(path.run(seconds(1), [&] { return path.host(1).receives[kUrgent]->delivered() == 1; }));
  EXPECT_LT(path.now() - begin, microseconds(20 + 36 + 10));
  ASSERT_TRUE(path.run(seconds(1), [&] { return path.settled(); }));
  EXPECT_LT(path.now() - begin, microseconds(250));
}

// Of 1 MiB in each class, given at the same time: the urgent one is there before a tenth of the bulk is.
TEST(Path, TheMostUrgentGoesFirst) {
  OpenPath path({});
  feed(path, 0, kBulk, 4, [] { return kMaxOperation.value; });
  feed(path, 0, kUrgent, 4, [] { return kMaxOperation.value; });
  ASSERT_TRUE(path.run(seconds(1), [&] { return path.host(1).receives[kUrgent]->delivered() == 4; }));
  EXPECT_EQ(path.host(1).receives[kBulk]->delivered(), 0u);
  ASSERT_TRUE(path.run(seconds(1), [&] { return path.settled(); }));
  expect_all(path, "both");
}

// Bits per second of 10 MiB of bulk.
double goodput(const PathOptions& options, AssociationCounters* counters = nullptr) {
  OpenPath path(options);
  const Time begin = path.now();
  feed(path, 0, kBulk, 40, [] { return kMaxOperation.value; });
  EXPECT_TRUE(path.run(seconds(5), [&] { return path.settled(); }));
  expect_all(path, "goodput");
  if (counters != nullptr) *counters = path.host(0).association->counters();
  return static_cast<double>(40 * kMaxOperation.value) * 8 / to_seconds(path.now() - begin);
}

TEST(Path, OfGoodputMostIsLeftWhereALittleIsLost) {
  const double clean = goodput({});
  const auto share = [&](double loss, std::uint64_t seed) { return goodput({.loss = loss, .seed = seed}) / clean; };
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    const double one = share(0.01, seed), five = share(0.05, seed);
    std::printf("seed %d: of the goodput %.3f is left where 1 %% is lost, and %.3f where 5 %% is\n",
                static_cast<int>(seed), one, five);
    EXPECT_GT(one, 0.6);
    EXPECT_GT(five, 0.3);
  }
}

// Each packet is late by up to twelve others, or by many round trips' worth of them.
TEST(Path, OvertakingIsNeitherLossNorCongestion) {
  const double clean = goodput({});
  for (const int late : {20, 100, 400}) {
    PathOptions options;
    options.jitter = microseconds(late);
    AssociationCounters counters;
    const double share = goodput(options, &counters) / clean;
    std::printf("up to %d us late: %.3f of the goodput, %llu of %llu packets taken for lost\n", late, share,
                static_cast<unsigned long long>(counters.packets_lost),
                static_cast<unsigned long long>(counters.packets_sent));
    EXPECT_GT(share, 0.8);
    // The window for overtaking is a round trip at the most, so what is later than that may count as lost.
    if (late <= 100) {
      EXPECT_LT(counters.packets_lost, counters.packets_sent / 50);
    }
  }
}

// Later packets would be implausible for ever if numbers could not be far ahead.
TEST(Path, ABurstThatIsLostWholeIsNoBlackHole) {
  PathOptions options;
  options.config.packets = 1 << 21;
  options.config.packet_bytes = 256;
  options.config.window = mib(512);
  options.credits.window = options.credits.unasked = mib(512);
  OpenPath path(options);
  Association& association = *path.host(0).association;
  const Slot slot = kBulk;
  std::uint64_t lost = 0;
  std::array<std::byte, 256> packet;
  while (lost < 1'200'000) {
    path.send(0, slot, kMaxOperation.value);
    const std::uint64_t before = lost;
    while (association.make(path.now(), slot, packet) > 0) ++lost;
    if (lost == before && !association.writable(slot)) break;
  }
  ASSERT_GT(lost, 600'000u);
  path.close(0, slot);  // what was lost is not sent again: the numbers are ahead, and no more
  path.attach(0, slot);
  ASSERT_TRUE(path.run(seconds(1), [&] { return path.host(1).closed[slot] == 1; }));
  path.attach(1, slot);
  ASSERT_TRUE(path.run(seconds(1), [&] { return association.writable(slot) && path.open(); }));
  ASSERT_TRUE(path.send(0, slot, 100'000));
  ASSERT_TRUE(path.run(seconds(1), [&] { return path.settled(); })) << "every packet is implausible";
  EXPECT_EQ(path.wrong(), "");
}

// Nobody is answered, nothing is changed, and each is counted.
TEST(Path, ForgedPacketsChangeNothingButACounter) {
  for (const DataProtection level : {DataProtection::kNone, DataProtection::kAuthenticate, DataProtection::kEncrypt}) {
    PathOptions options;
    options.forged = 1;
    options.level = level;
    OpenPath path(options);
    feed(path, 0, kBulk, 8, [] { return std::size_t{50'000}; });
    ASSERT_TRUE(path.run(seconds(2), [&] { return path.settled(); }));
    expect_all(path, "forged");
    EXPECT_GT(path.host(1).association->counters().forged, 200u);
    EXPECT_EQ(path.host(0).association->counters().packets_lost, 0u);
  }
}

TEST(Path, AnOutageIsSurvived) {
  OpenPath path({});
  feed(path, 0, kBulk, 20, [] { return kMaxOperation.value; });
  path.send(0, kControl, 0);
  ASSERT_FALSE(path.run(milliseconds(10), [] { return false; }));
  path.loss = 1;
  ASSERT_FALSE(path.run(milliseconds(300), [] { return false; }));
  const std::uint64_t sent = path.packets;
  ASSERT_FALSE(path.run(seconds(1), [] { return false; }));
  EXPECT_LT(path.packets - sent, 100u) << "it keeps on asking, ever more rarely";
  path.loss = 0;
  ASSERT_TRUE(path.run(seconds(3), [&] { return path.settled(); }));
  expect_all(path, "after the outage");
}

// Marks make the window smaller, and it grows again.
TEST(Path, MarksOfCongestionAreHeeded) {
  PathOptions options;
  options.marks = 0.5;
  OpenPath path(options);
  feed(path, 0, kBulk, 40, [] { return kMaxOperation.value; });
  ASSERT_TRUE(path.run(seconds(20), [&] { return path.settled(); }));
  expect_all(path, "marked");
  EXPECT_LT(path.host(0).association->window(kBulk), kib(64).value);
  EXPECT_EQ(path.host(0).association->counters().packets_lost, 0u);
}

}  // namespace
}  // namespace tensorlane::datagram
