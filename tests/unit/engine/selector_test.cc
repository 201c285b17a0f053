// The cost model of patterns against the formulas of Thakur, Rabenseifner and Gropp, and against the routes.
#include "daemon/engine/pattern/selector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "daemon/engine/pattern/route.h"
#include "daemon/engine/pattern/shards.h"

namespace tensorlane::engine {
namespace {

using protocol::Pattern;
using protocol::PlanTensor;

constexpr double kLatency = 20'000, kPerByte = 8.0, kPerSum = 0.25;  // ns: 20 us, 1 Gbit/s, 4 GB/s

PatternCosts costs() {
  PatternCosts c;
  c.network = NetworkModel::of(microseconds(20), BitsPerSecond(1'000'000'000));
  c.message = Duration(0);
  c.sum_bytes_per_second = 4e9;
  c.window = mib(64);
  c.staging = mib(1024);
  return c;
}

PlanTensor allreduce(Pattern pattern, std::uint64_t bytes) {
  PlanTensor t;
  t.operation = Operation::kAllreduce;
  t.pattern = pattern;
  t.elements = bytes / sizeof(float);
  t.slice_elements = 1 << 20;
  return t;
}

double predicted(Pattern pattern, std::uint64_t bytes, std::uint16_t hosts) {
  return static_cast<double>(predict(costs(), allreduce(pattern, bytes), hosts).value);
}

TEST(Selector, OneSmallShardTakesWhatTheBinomialTreeTakes) {
  for (const unsigned log : {1u, 2u, 3u, 4u, 5u, 6u}) {
    // Section 3.3 of the paper, twice: reduce and broadcast. Hosts that add several at once read their own once.
    const double n = 4096, steps = 2.0 * log * (kLatency + n * kPerByte);
    const double got = predicted(Pattern::kTree, 4096, static_cast<std::uint16_t>(1u << log));
    EXPECT_GE(got, steps);
    EXPECT_LE(got, steps + 2 * log * n * kPerSum + (log > 1 ? 4096 * kPerByte : 0)) << log;  // meeting at the root
    EXPECT_EQ(got, predicted(Pattern::kHalvingDoubling, 4096, static_cast<std::uint16_t>(1u << log)));
  }
}

TEST(Selector, AShardOnEveryHostTakesWhatTheRingTakes) {
  for (const std::uint16_t hosts : {2, 3, 4, 8, 16}) {
    // 2 (N-1) a + 2 (N-1)/N n b + (N-1)/N n c (section 4.4), where contributions are announced and granted.
    const double n = 8e6, chunk = n / hosts, steps = hosts - 1;
    const double expected = steps * (4 * kLatency + 2 * chunk * kPerByte + 2 * chunk * kPerSum);
    EXPECT_NEAR(predicted(Pattern::kRing, 8'000'000, hosts), expected, 0.001 * expected) << hosts;
  }
}

TEST(Selector, HalvingAndDoublingSavesTheRingsLatencyOnly) {
  for (const unsigned log : {2u, 3u, 4u}) {
    // 2 log2(N) a + 2 (N-1)/N n b + (N-1)/N n c (section 4.5), and what is added by several hosts is read there.
    const double hosts = 1u << log, n = 8e6, chunk = n / hosts;
    const double expected = 4 * log * kLatency + (hosts - 1) * 2 * chunk * kPerByte;
    const double got = predicted(Pattern::kHalvingDoubling, 8'000'000, static_cast<std::uint16_t>(hosts));
    EXPECT_GE(got, expected + (hosts - 1) * chunk * kPerSum);
    EXPECT_LE(got, expected + 2 * (hosts - 1) * chunk * kPerSum);
  }
}

TEST(Selector, AServersLinkCarriesAllContributionsOneAfterTheOther) {
  const double n = 16384;
  for (const std::uint16_t hosts : {2, 5, 16}) {
    const double others = hosts - 1;
    EXPECT_NEAR(predicted(Pattern::kParameterServer, 16384, hosts),
                2 * kLatency + 2 * others * n * kPerByte + hosts * n * kPerSum, 2);
  }
  // On N servers the incast is divided by N.
  EXPECT_NEAR(predicted(Pattern::kParameterServer, 8'000'000, 16),
              4 * kLatency + 2 * 15 / 16.0 * 8e6 * kPerByte + 8e6 * kPerSum,
              10'000);  // shards are multiples of 64 bytes
}

TEST(Selector, MessagesThatCostAHostMoreThanTheLinkCountByNumber) {
  PatternCosts slow = costs();
  slow.message = microseconds(100);  // 4 KiB take 33 us
  const auto time = [&](Pattern pattern) {
    return static_cast<double>(predict(slow, allreduce(pattern, 4096), 8).value);
  };
  // 7 in and 7 out at the owner; a hop of the ring has nothing to wait for.
  EXPECT_NEAR(time(Pattern::kParameterServer), 2 * (kLatency + 4096 * kPerByte) + 12 * 100'000 + 8 * 4096 * kPerSum, 2);
  EXPECT_NEAR(time(Pattern::kRing), 14 * (kLatency + 4096 * kPerByte) + 14 * 4096 * kPerSum, 2);
}

TEST(Selector, AClassWithASmallWindowIsSlower) {
  PatternCosts narrow = costs();
  narrow.window = kib(1);  // per round trip of 40 us: 39 ns for each byte
  const auto wide = predict(costs(), allreduce(Pattern::kRing, 8'000'000), 4);
  EXPECT_NEAR(to_seconds(predict(narrow, allreduce(Pattern::kRing, 8'000'000), 4)) / to_seconds(wide), 39.06 / 8, 0.3);
}

TEST(Selector, ChoosesByOperationSizeAndGroup) {
  const auto best = [](Operation operation, std::uint64_t bytes, std::uint16_t hosts) {
    PlanTensor t = allreduce(Pattern::kRing, bytes);
    t.operation = operation;
    return compare_patterns(costs(), t, hosts).front().pattern;
  };
  EXPECT_EQ(best(Operation::kAllreduce, 64, 4), Pattern::kParameterServer);         // nothing but latency
  EXPECT_EQ(best(Operation::kAllreduce, 16384, 16), Pattern::kHalvingDoubling);     // incast
  EXPECT_EQ(best(Operation::kAllreduce, 16384, 12), Pattern::kTree);                // hosts would have to join
  EXPECT_EQ(best(Operation::kAllreduce, 8'000'000, 4), Pattern::kParameterServer);  // adds once
  EXPECT_EQ(best(Operation::kBroadcast, 1'000'000, 8), Pattern::kHalvingDoubling);  // as a tree
}

TEST(Selector, TheFastestComesFirstAndAllAreThere) {
  const auto all = compare_patterns(costs(), allreduce(Pattern::kTree, 1 << 20), 8);
  EXPECT_TRUE(std::ranges::is_sorted(all, {}, &Prediction::time));
  for (const Pattern pattern : kSelectable)
    EXPECT_EQ(std::ranges::count(all, pattern, &Prediction::pattern), 1) << protocol::pattern_name(pattern);
}

TEST(MostReceived, IsWhatTheRoutesOfTheBusiestHostSay) {
  for (const Pattern pattern : kSelectable) {
    for (std::uint16_t hosts = 1; hosts <= 40; ++hosts) {
      std::uint32_t most = 0;
      for (std::uint16_t me = 0; me < hosts; ++me) {
        std::uint32_t received = 0, sent = 0;
        for (std::uint16_t owner = 0; owner < hosts; ++owner) {
          const Route way = route(pattern, hosts, HostIndex(owner), HostIndex(me));
          received += static_cast<std::uint32_t>(way.sum_order.size() - 1);
          sent += static_cast<std::uint32_t>(way.result_to.size());
        }
        EXPECT_EQ(received, sent);
        most = std::max(most, received);
      }
      EXPECT_DOUBLE_EQ(most_received(pattern, hosts, hosts), most)
          << protocol::pattern_name(pattern) << " on " << hosts;
    }
  }
}

}  // namespace
}  // namespace tensorlane::engine
