// What the control thread does again and again does not look at every rank of the world each time. Counted by what that
// would allocate.
#include <gtest/gtest.h>

#include "one_host.h"
#include "tests/allocations/allocation_count.h"

namespace tensorlane::control {
namespace {

TEST(Registrar, LooksForMissingRanksOnlyWhenItSpeaksOfThem) {
  constexpr std::uint32_t kRanks = 4, kGroups = 100;
  OneHost job(kRanks);
  const auto group = [](std::uint32_t number) { return fmt::format("a group with a long name, number {}", number); };
  for (std::uint32_t i = 0; i < kGroups; ++i) ASSERT_TRUE(job.add(group(i), 1).ok());
  for (std::uint32_t i = 0; i < kGroups; ++i) job.ask(0, group(i), 2);
  job.deliver();

  counting::count_allocations(counting::CountedThreads::kAll);
  const std::uint64_t before = counting::allocations();
  for (int second = 1; second < 10; ++second) (*job).tick(Time(1) + seconds(second));
  const std::uint64_t allocated = counting::allocations() - before;
  counting::count_allocations(counting::CountedThreads::kNone);
  EXPECT_EQ(allocated, 0u);
  EXPECT_EQ(job.late.size(), 0u);

  (*job).tick(Time(1) + kWarning);
  EXPECT_GE(job.late.size(), kRanks - 1);
  EXPECT_LT(job.late.size(), (kRanks - 1) * kGroups) << "a few speak for all";
}

}  // namespace
}  // namespace tensorlane::control
