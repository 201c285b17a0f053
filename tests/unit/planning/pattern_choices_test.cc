// Who decides the pattern of a tensor: the client, daemon.yaml or the cost model; and what the status says of it.
#include "daemon/planning/pattern_choices.h"

#include <gtest/gtest.h>

#include "common/protocol/session.h"

namespace tensorlane::planning {
namespace {

using protocol::kAutomaticPattern;
using protocol::kDaemonsPattern;
using protocol::Pattern;

constexpr std::uint16_t kHosts = 8;

config::DaemonConfig configuration(std::optional<Pattern> pattern) {
  config::DaemonConfig config;
  config.fabric.classes.data.resize(2);
  config.fabric.classes.data[0].name = "urgent";
  config.fabric.classes.data[1].name = "bulk";
  fabric::Host& host = config.fabric.hosts.emplace_back();
  host.name = "h0";
  host.addresses["tcp"] = {"127.0.0.1"};
  config.host = "h0";
  config.pattern = pattern;
  return config;
}

protocol::PlanTensor tensor(std::uint64_t elements, Operation operation = Operation::kAllreduce) {
  protocol::PlanTensor t;
  t.operation = operation;
  t.elements = elements;
  t.slice_elements = 1 << 20;
  return t;
}

std::uint8_t asks_for(Pattern pattern) {
  return static_cast<std::uint8_t>(static_cast<unsigned>(pattern) + 1);
}

TEST(PatternChoices, TheClientComesBeforeTheConfigurationAndThatBeforeTheModel) {
  const config::DaemonConfig config = configuration(Pattern::kTree);
  PatternChoices choices(config);
  EXPECT_EQ(choices.choose("job", tensor(16), kDaemonsPattern, kHosts), Pattern::kTree);
  for (const Pattern pattern : engine::kSelectable)
    EXPECT_EQ(choices.choose("job", tensor(16), asks_for(pattern), kHosts), pattern);
  EXPECT_TRUE(choices.choices().empty());  // nobody has asked the model
  // Eight hosts' kilobytes: the sum of one server takes two latencies; a ring fourteen.
  EXPECT_EQ(choices.choose("job", tensor(16), kAutomaticPattern, kHosts), Pattern::kParameterServer);
  EXPECT_EQ(choices.choices().size(), 1u);
}

TEST(PatternChoices, AutomaticFollowsTheModelOfDaemonYaml) {
  config::DaemonConfig config = configuration(std::nullopt);
  config.network_model.message_cost = Duration(0);
  EXPECT_EQ(PatternChoices(config).choose("job", tensor(16), kDaemonsPattern, kHosts), Pattern::kParameterServer);
  config.network_model.latency = microseconds(5);
  config.network_model.message_cost = milliseconds(1);  // now seven messages at one host are what takes long
  EXPECT_NE(PatternChoices(config).choose("job", tensor(16), kDaemonsPattern, kHosts), Pattern::kParameterServer);
  config.network_model = {.message_cost = Duration(0), .incast_percent = 1000};
  EXPECT_EQ(PatternChoices(config).choose("job", tensor(64 << 20), kDaemonsPattern, kHosts), Pattern::kRing);
}

TEST(PatternChoices, APushAndItsPullAreCutAlike) {
  config::DaemonConfig config = configuration(std::nullopt);
  config.network_model.incast_percent = 1000;
  PatternChoices choices(config);
  for (const Operation operation : {Operation::kPush, Operation::kPull})
    EXPECT_EQ(choices.choose("job", tensor(64 << 20, operation), kDaemonsPattern, kHosts), Pattern::kParameterServer);
}

TEST(PatternChoices, TheStatusNamesEachKindOnceAndCountsItsTensors) {
  const config::DaemonConfig config = configuration(std::nullopt);
  PatternChoices choices(config);
  const Pattern chosen = choices.choose("job", tensor(1024), kDaemonsPattern, kHosts);
  choices.choose("job", tensor(1024), kDaemonsPattern, kHosts);
  protocol::PlanTensor bulk = tensor(1024);
  bulk.cls = ClassId(1);
  choices.choose("job", bulk, kDaemonsPattern, kHosts);
  const nlohmann::json all = choices.choices();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["tensors"], 2);
  EXPECT_EQ(all[0]["bytes"], 4096);
  EXPECT_EQ(all[0]["hosts"], kHosts);
  EXPECT_EQ(all[0]["operation"], "allreduce");
  EXPECT_EQ(all[0]["pattern"], protocol::pattern_name(chosen));
  EXPECT_EQ(all[0]["predicted_s"].size(), engine::kSelectable.size());
  EXPECT_EQ(all[0]["class"], "urgent");
  EXPECT_EQ(all[1]["class"], "bulk");
  EXPECT_EQ(choices.model()["bandwidth_bits_per_second"], 10'000'000'000);  // no link is described
}

TEST(PatternChoices, KeepsABoundedNumberOfKindsAndChoosesForAll) {
  const config::DaemonConfig config = configuration(std::nullopt);
  PatternChoices choices(config);
  for (std::uint64_t elements = 1; elements <= 1000; ++elements)
    EXPECT_EQ(choices.choose("job", tensor(elements), kDaemonsPattern, 2),
              choices.choose("job", tensor(elements), kDaemonsPattern, 2));
  EXPECT_EQ(choices.choices().size(), 256u);
}

}  // namespace
}  // namespace tensorlane::planning
