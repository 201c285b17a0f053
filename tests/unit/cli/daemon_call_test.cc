#include "monitor/cli/daemon_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tensorlane::cli {
namespace {

TEST(DaemonAnswers, AreAnObjectOfEachHostOrWhyThereIsNone) {
  const DaemonAnswers all{"h0",
                          {{"h0", std::string(R"({"host": "h0"})")},
                           {"h1", std::string("[1, 2]")},
                           {"h2", std::string("\xff{")},
                           {"h3", std::string(100, '[')},
                           {"h4", Status(Code::kTimedOut, "it has not answered in 1 s", "h4", "look at its daemon")}}};
  const HostReports sorted = sort_out(all);
  ASSERT_EQ(sorted.reports.size(), 1u);
  EXPECT_EQ(sorted.reports.at("h0"), nlohmann::json({{"host", "h0"}}));
  ASSERT_EQ(sorted.silent.size(), 4u);
  for (const char* host : {"h1", "h2", "h3"}) {
    EXPECT_EQ(sorted.silent.at(host).code(), Code::kCorrupt);
    EXPECT_EQ(sorted.silent.at(host).to_string(),
              std::string("its answer is no JSON object: ") + host + ": install the same release on all hosts");
  }
  EXPECT_EQ(sorted.silent.at("h4").code(), Code::kTimedOut);
}

}  // namespace
}  // namespace tensorlane::cli
