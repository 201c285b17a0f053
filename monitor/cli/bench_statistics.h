// What `tensorlane bench` makes of its samples.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/base/assert.h"

namespace tensorlane::cli {

// The middle sample, or the mean of the middle two. `samples` is not empty.
inline double median(std::vector<double> samples) {
  TL_ASSERT(!samples.empty());
  std::sort(samples.begin(), samples.end());
  const std::size_t middle = samples.size() / 2;
  return samples.size() % 2 == 1 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
}

// The smallest sample that at least 99% of the samples do not exceed (nearest rank): the largest of fewer than 100.
inline double p99(std::vector<double> samples) {
  TL_ASSERT(!samples.empty());
  std::sort(samples.begin(), samples.end());
  return samples[(samples.size() * 99 + 99) / 100 - 1];
}

}  // namespace tensorlane::cli
