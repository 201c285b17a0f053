#include "monitor/cli/calibrate.h"

#include "daemon/engine/classify/thresholds.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorlane::cli {
namespace {

using ::testing::HasSubstr;

TEST(Calibrate, EveryClassIsReachedByItsUrgency) {
  const std::vector<std::vector<double>> tables{{}, {0.5}, {0.9, 0.2}, {0.99, 0.98, 0.5, 0.001}};
  for (const std::vector<double>& thresholds : tables) {
    for (std::size_t c = 0; c <= thresholds.size(); ++c) {
      const auto urgency = static_cast<float>(urgency_of_class(thresholds, c));  // as it goes over the wire
      EXPECT_EQ(engine::class_by_thresholds(thresholds, urgency).value, c) << urgency;
    }
  }
}

nlohmann::json report_of_two() {
  const auto model = [](std::int64_t small_us, std::int64_t large_us) {
    const std::vector<engine::TransferSample> samples{{engine::kSmallSample, microseconds(small_us)},
                                                      {engine::kLargeSample, microseconds(large_us)}};
    return engine::NetworkModel::fit(samples).value();
  };
  return calibration_report({"h0", "h1"}, "tcp",
                            {{"urgent", microseconds(50), microseconds(5000), model(50, 5000)},
                             {"bulk", microseconds(100), microseconds(33654), model(100, 33654)}});
}

TEST(Calibrate, TheReportSaysWhatFollowsFromTheTwoTimes) {
  const nlohmann::json report = report_of_two();
  EXPECT_EQ(report["transport"], "tcp");
  const nlohmann::json& bulk = report["classes"].at(1);
  EXPECT_EQ(bulk["class"], "bulk");
  // 4 MiB less 64 bytes take 33,554 us: 8 ns for each byte, 1 Gbit/s.
  EXPECT_NEAR(bulk["bits_per_second"], 1e9, 1e5);
  EXPECT_NEAR(bulk["overhead_s"], 99.5e-6, 1e-7);
  EXPECT_NEAR(bulk["batching_threshold_bytes"], 1.5 * 99.5e-6 * 1e9 / 8, 20);
}

TEST(Calibrate, ThePlannerReadsTheLeastUrgentClass) {
  const auto network = read_calibration(report_of_two().dump(), "network.json");
  ASSERT_TRUE(network.ok()) << network.status().to_string();
  EXPECT_NEAR(static_cast<double>(network->rate.value), 1e9, 1e5);
  EXPECT_NEAR(to_seconds(network->overhead), 99.5e-6, 1e-7);
}

TEST(Calibrate, OtherFilesAreRefusedByName) {
  for (const char* text :
       {"", "[]", "{}", R"({"classes": []})", R"({"classes": [7]})", R"({"classes": [{"bits_per_second": 1}]})",
        R"({"classes": [{"bits_per_second": "x", "overhead_s": 1}]})",
        R"({"classes": [{"bits_per_second": 0, "overhead_s": 1}]})",
        R"({"classes": [{"bits_per_second": 1e9, "overhead_s": -1}]})",
        R"({"classes": [{"bits_per_second": 1e30, "overhead_s": 0}]})"}) {
    const auto network = read_calibration(text, "other.json");
    ASSERT_FALSE(network.ok()) << text;
    EXPECT_EQ(network.status().code(), Code::kCorrupt);
    EXPECT_THAT(network.status().to_string(), HasSubstr("other.json"));
  }
}

}  // namespace
}  // namespace tensorlane::cli
