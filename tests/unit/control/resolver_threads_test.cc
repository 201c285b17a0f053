#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "daemon/control/resolver.h"

namespace tensorlane::control {
namespace {

std::size_t address_space() {
  std::ifstream in("/proc/self/statm");
  std::size_t pages = 0;
  in >> pages;
  return pages * 4096;
}

[[noreturn]] void resolve_without_threads() {
  Resolver resolver([] {}, [](const std::string&) -> Result<std::string> { return std::string("1.2.3.4"); });
  rlimit limit{};
  getrlimit(RLIMIT_AS, &limit);
  const rlimit tight{std::min<rlim_t>(limit.rlim_max, address_space() + (1 << 20)), limit.rlim_max};
  setrlimit(RLIMIT_AS, &tight);  // no room for the stack of a thread
  for (int i = 0; i < 100; ++i) {
    resolver.find(fmt::format("h{}", i));
    if (i == 50) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const bool known = resolver.find("h0").has_value();
  setrlimit(RLIMIT_AS, &limit);
  for (int i = 0; i < 10000 && !resolver.find("h99"); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::exit(known ? 2 : resolver.find("h99") ? 0 : 3);
}

// As where the service manager limits tasks: that a thread cannot be started is no reason to end.
TEST(ResolverDeathTest, without_a_thread_a_name_is_not_known_yet) {
  EXPECT_EXIT(resolve_without_threads(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tensorlane::control
