#include "daemon/control/resolver.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

namespace tensorlane::control {
namespace {

using Clock = std::chrono::steady_clock;

// Whether the condition holds within some seconds.
template <typename Condition>
bool eventually(const Condition& condition) {
  for (const auto end = Clock::now() + std::chrono::seconds(10); Clock::now() < end;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

TEST(Resolver, numbers_are_known_at_once) {
  Resolver resolver([] {}, [](const std::string&) -> Result<std::string> { return std::string("unused"); });
  EXPECT_EQ(resolver.find("10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(resolver.find("fd00::1"), "fd00::1");
}

TEST(Resolver, many_names_are_asked_for_by_a_few_threads) {
  std::atomic<std::size_t> asking{0}, most{0}, news{0};
  Resolver resolver([&] { ++news; },
                    [&](const std::string& name) -> Result<std::string> {
                      const std::size_t now = ++asking;
                      for (std::size_t seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
                      }
                      std::this_thread::sleep_for(std::chrono::milliseconds(1));
                      --asking;
                      return "address of " + name;
                    });
  constexpr int kNames = 1000;
  for (int i = 0; i < kNames; ++i) resolver.find(fmt::format("h{}", i));
  EXPECT_TRUE(eventually([&] { return news == kNames; }));
  EXPECT_LE(most, Resolver::kThreads);
  for (int i = 0; i < kNames; ++i) EXPECT_EQ(resolver.find(fmt::format("h{}", i)), fmt::format("address of h{}", i));
}

TEST(Resolver, names_beyond_its_bound_wait_until_others_are_forgotten) {
  Resolver resolver([] {},
                    [](const std::string&) -> Result<std::string> {
                      std::this_thread::sleep_for(std::chrono::seconds(1));
                      return std::string("1.2.3.4");
                    });
  for (std::size_t i = 0; i < Resolver::kMaxNames; ++i) resolver.find(fmt::format("h{}", i));
  EXPECT_EQ(resolver.find("one-more"), std::nullopt);
  EXPECT_EQ(resolver.why_not("one-more"), "");
}

}  // namespace
}  // namespace tensorlane::control
