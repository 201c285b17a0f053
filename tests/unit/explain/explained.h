// What is concluded from a made-up job.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "monitor/explain/explain.h"
#include "tests/unit/explain/job.h"

namespace tensorlane::explain {

inline std::vector<HostTimes> times_of(const test::MadeUpJob& job) {
  std::vector<HostTimes> hosts;
  for (const auto& [before, after] : job.reports()) {
    const Result<HostTimes> times = difference(before, after);
    EXPECT_TRUE(times.ok()) << times.status().to_string();
    if (times.ok()) hosts.push_back(*times);
  }
  return hosts;
}

inline Explanation explained(const test::MadeUpJob& job) {
  const Result<Explanation> all = explain(times_of(job));
  EXPECT_TRUE(all.ok()) << all.status().to_string();
  return all.ok() ? *all : Explanation{};
}

inline std::string text_of(const Explanation& all) {
  std::string text;
  for (const Finding& f : all.findings)
    text += std::string(cause_name(f.cause)) + " (" + std::string(confidence_name(f.confidence)) + ") " + f.where +
            ": " + f.evidence + "\n";
  return text;
}

inline const Finding* find(const Explanation& all, Cause cause) {
  const auto found = std::ranges::find(all.findings, cause, &Finding::cause);
  return found == all.findings.end() ? nullptr : &*found;
}

}  // namespace tensorlane::explain
