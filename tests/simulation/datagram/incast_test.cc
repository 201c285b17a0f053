// Incast: 64 hosts send to one at the same time. What is urgent takes hardly longer than it would alone, and bulk fills
// what is left; beside senders in the manner of TCP at the same queues.
#include "tests/simulation/datagram/incast.h"

#include <gtest/gtest.h>
#include <sodium.h>

#include <cstdio>

namespace tensorlane::datagram {
namespace {

void print(const char* who, const test::IncastResult& result, Duration ideal) {
  std::printf("%-22s p99 %8.3f ms, %.2f times the ideal of %.3f ms; goodput %.3f; %llu of %llu packets dropped\n", who,
              to_seconds(result.p99) * 1e3, to_seconds(result.p99) / to_seconds(ideal), to_seconds(ideal) * 1e3,
              result.goodput, static_cast<unsigned long long>(result.dropped),
              static_cast<unsigned long long>(result.sent));
}

TEST(Incast, UrgentMessagesTakeHardlyLongerThanAlone) {
  ASSERT_GE(sodium_init(), 0);
  for (const auto& [most, apart] : {std::pair(mib(1), milliseconds(40)), std::pair(kib(64), milliseconds(10))}) {
    test::IncastOptions options{.most = most, .apart = apart};
    const Duration ideal = test::incast_ideal(options);
    const test::IncastResult ours = test::incast_of_associations(options);
    const test::IncastResult simple = test::incast_of_simple_senders(options);
    std::printf("64 senders, messages of up to %llu KiB\n", static_cast<unsigned long long>(most.value / 1024));
    print("associations", ours, ideal);
    print("in the manner of TCP", simple, ideal);
    EXPECT_EQ(ours.wrong, "");
    EXPECT_TRUE(ours.whole);
    EXPECT_LE(to_seconds(ours.p99), 1.5 * to_seconds(ideal));
    EXPECT_GT(ours.goodput, 0.8);
    EXPECT_EQ(ours.answers, options.senders * options.bursts) << "what sinks send from inside on_frame()";
    EXPECT_GT(ours.duplicates, 10u) << "replays are noticed";
    EXPECT_GT(ours.dropped + simple.dropped, 0u) << "else it is no incast";
  }
}

}  // namespace
}  // namespace tensorlane::datagram
