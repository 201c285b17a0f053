// Two associations over a path that loses, delays, repeats, damages and forges: all frames come, once, in order and as
// they were sent, whatever the seed.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/simulation/datagram/path.h"

namespace tensorlane::datagram {
namespace {

using namespace test;

// Gives frames for as long as there is room, `count` in all of each slot.
void feed(Path& path, int from, Slot slot, std::uint64_t count, const std::function<std::size_t()>& bytes) {
  while (path.at(from, slot).sends.given() < count && path.at(from, slot).send(bytes())) {
  }
}

void expect_all(Path& path, const std::string& what) {
  EXPECT_EQ(path.wrong(), "") << what;
  for (const Path::Flow* flow : path.flows())
    EXPECT_EQ(path.at(1 - flow->end, flow->slot).receives.delivered(), flow->sends.given())
        << what << ", end " << flow->end << ", slot " << int{flow->slot};
}

TEST(Path, ACleanPathIsFilled) {
  Path path({});
  const Time begin = path.now();
  constexpr std::uint64_t kFrames = 40;
  feed(path, 0, kBulk, kFrames, [] { return kMaxOperation.value; });
  ASSERT_TRUE(path.run(seconds(2), [&] { return path.settled(); }));
  expect_all(path, "clean");
  const double goodput = static_cast<double>(kFrames * kMaxOperation.value) * 8 / to_seconds(path.now() - begin);
  EXPECT_GT(goodput, 0.90e9);
  EXPECT_EQ(path.at(0, kBulk).association->counters().packets_lost, 0u);
  EXPECT_EQ(path.at(1, kBulk).association->counters().duplicates, 0u);
}

// A message is there after a round trip or less.
TEST(Path, ASmallFrameGoesAtOnce) {
  Path path({});
  const Time begin = path.now();
  path.at(0, kUrgent).send(4096);
  ASSERT_TRUE(path.run(seconds(1), [&] { return path.at(1, kUrgent).receives.delivered() == 1; }));
  EXPECT_LT(path.now() - begin, microseconds(20 + 36 + 10));
  ASSERT_TRUE(path.run(seconds(1), [&] { return path.settled(); }));
  EXPECT_LT(path.now() - begin, microseconds(250));
}

// Of 1 MiB in each class, given at the same time: the urgent one is there before a tenth of the bulk is.
TEST(Path, TheMostUrgentGoesFirst) {
  Path path({});
  feed(path, 0, kBulk, 4, [] { return kMaxOperation.value; });
  feed(path, 0, kUrgent, 4, [] { return kMaxOperation.value; });
  ASSERT_TRUE(path.run(seconds(1), [&] { return path.at(1, kUrgent).receives.delivered() == 4; }));
  EXPECT_EQ(path.at(1, kBulk).receives.delivered(), 0u);
  ASSERT_TRUE(path.run(seconds(1), [&] { return path.settled(); }));
  expect_all(path, "both");
}

// Bits per second of 10 MiB of bulk.
double goodput(const PathOptions& options, AssociationCounters* counters = nullptr) {
  Path path(options);
  const Time begin = path.now();
  feed(path, 0, kBulk, 40, [] { return kMaxOperation.value; });
  EXPECT_TRUE(path.run(seconds(5), [&] { return path.settled(); }));
  expect_all(path, "goodput");
  if (counters != nullptr) *counters = path.at(0, kBulk).association->counters();
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
  Path path(options);
  Path::Flow& flow = path.at(0, kBulk);
  std::uint64_t lost = 0;
  std::array<std::byte, 256> packet;
  while (lost < 1'200'000) {
    flow.send(kMaxOperation.value);
    const std::uint64_t before = lost;
    while (flow.association->make(path.now(), packet) > 0) ++lost;
    if (lost == before && !flow.association->writable()) break;
  }
  ASSERT_GT(lost, 600'000u);
  ASSERT_TRUE(path.run(seconds(1), [&] { return path.at(1, kBulk).receives.delivered() == 2; }))
      << "every packet is implausible";
  EXPECT_EQ(path.wrong(), "");
}

// Nobody is answered, nothing is changed, and each is counted.
TEST(Path, ForgedPacketsChangeNothingButACounter) {
  for (const DataProtection level : {DataProtection::kNone, DataProtection::kAuthenticate, DataProtection::kEncrypt}) {
    PathOptions options;
    options.forged = 1;
    options.level = level;
    Path path(options);
    feed(path, 0, kBulk, 8, [] { return std::size_t{50'000}; });
    ASSERT_TRUE(path.run(seconds(2), [&] { return path.settled(); }));
    expect_all(path, "forged");
    EXPECT_GT(path.at(1, kBulk).association->counters().forged, 200u);
    EXPECT_EQ(path.at(0, kBulk).association->counters().packets_lost, 0u);
  }
}

TEST(Path, AnOutageIsSurvived) {
  Path path({});
  feed(path, 0, kBulk, 20, [] { return kMaxOperation.value; });
  path.at(0, kControl).send(0);
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
  Path path(options);
  feed(path, 0, kBulk, 40, [] { return kMaxOperation.value; });
  ASSERT_TRUE(path.run(seconds(20), [&] { return path.settled(); }));
  expect_all(path, "marked");
  EXPECT_LT(path.at(0, kBulk).association->window(), kib(64).value);
  EXPECT_EQ(path.at(0, kBulk).association->counters().packets_lost, 0u);
}

}  // namespace
}  // namespace tensorlane::datagram
