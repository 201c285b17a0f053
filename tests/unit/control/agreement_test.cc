#include "daemon/control/agreement.h"

#include <gtest/gtest.h>

namespace tensorlane::control {
namespace {

using nlohmann::json;

const Settings kOurs{{"a", "1"}, {"b", "x"}, {"only here", "1"}};

TEST(Agreement, names_every_difference_with_both_values) {
  EXPECT_EQ(differences("h0", kOurs, "h1", kOurs), "");
  EXPECT_EQ(differences("h0", kOurs, "h1", {{"a", "2"}, {"b", "y"}, {"only there", "1"}}),
            "a is '1' on h0 and '2' on h1; b is 'x' on h0 and 'y' on h1");
}

TEST(Agreement, the_hash_is_that_of_keys_and_values) {
  EXPECT_EQ(settings_hash(kOurs), settings_hash(Settings(kOurs)));
  EXPECT_NE(settings_hash({{"a", "1"}}), settings_hash({{"a", "2"}}));
  EXPECT_NE(settings_hash({{"ab", "1"}}), settings_hash({{"a", "b1"}}));
  EXPECT_EQ(settings_hash({}).size(), 16u);
}

TEST(Agreement, comes_back_as_it_went_and_nothing_else_does) {
  EXPECT_EQ(settings_from_json(settings_to_json(kOurs)), kOurs);
  EXPECT_EQ(settings_from_json(settings_to_json({})), Settings());
  EXPECT_FALSE(settings_from_json(json::array()));
  EXPECT_FALSE(settings_from_json(json::array({"0000000000000000", json::array({"a", "1"})})));
  json twice = settings_to_json({{"a", "1"}});
  twice.push_back(json::array({"a", "1"}));
  EXPECT_FALSE(settings_from_json(twice));
  json number = settings_to_json({{"a", "1"}});
  number[1][1] = 1;
  EXPECT_FALSE(settings_from_json(number));
  Settings many;
  for (std::size_t i = 0; i <= kMaxSettings; ++i) many[std::to_string(i)] = "";
  EXPECT_FALSE(settings_from_json(settings_to_json(many)));
}

}  // namespace
}  // namespace tensorlane::control
