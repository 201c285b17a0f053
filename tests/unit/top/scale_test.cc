// The picture of a large fabric: what it takes is counted in allocations, which no busy machine changes.
#include <gtest/gtest.h>

#include "monitor/top/screen.h"
#include "tests/allocations/allocation_count.h"
#include "tests/unit/top/reports.h"

namespace tensorlane::top {
namespace {

// Of each host.
double allocations_of(int hosts) {
  History history;
  for (const int at : {10, 12}) history.add(round_of(hosts, at, true));
  const std::uint64_t before = counting::allocations();
  counting::count_allocations(counting::CountedThreads::kAll);
  const Picture picture = make_picture(history);
  const std::size_t lines = plain_lines(picture, 120, 40, true).size();
  counting::count_allocations(counting::CountedThreads::kNone);
  EXPECT_LE(lines, 300U);
  return static_cast<double>(counting::allocations() - before) / hosts;
}

TEST(Pictures, WhatAHostTakesDoesNotGrowWithTheFabric) {
  EXPECT_LT(allocations_of(1024), 1.25 * allocations_of(64));
}

}  // namespace
}  // namespace tensorlane::top
