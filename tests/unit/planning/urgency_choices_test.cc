// How urgent operations are whose programs do not say it.
#include "daemon/planning/urgency_choices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "daemon/planning/plan_tensor.h"

namespace tensorlane::planning {
namespace {

protocol::TensorBody body_of(const std::string& name, Operation operation, std::uint8_t explicit_urgency,
                             float urgency) {
  protocol::TensorBody body;
  std::memcpy(body.name, name.data(), name.size());
  body.operation = operation;
  body.elements = 1000;
  body.dtype = Dtype::kFloat32;
  body.positions = 4;
  body.position = 1;
  body.explicit_urgency = explicit_urgency;
  body.urgency = urgency;
  return body;
}

config::DaemonConfig configuration() {
  config::DaemonConfig config;
  config.fabric = *fabric::parse(R"(hosts: [{name: h0, addresses: {tcp: 127.0.0.1}}]
urgencies:
  - {job: fsdp, operation: allgather, urgency: 0.75}
  - {operation: allgather, urgency: 0.25}
)",
                                 "fabric.yaml");
  config.host = "h0";
  config.pattern = protocol::Pattern::kRing;
  return config;
}

TEST(UrgencyChoices, OnlyWhatTheProgramDoesNotSay) {
  const config::DaemonConfig config = configuration();
  Choices choices(config);
  ports::JobSpec job;
  job.name = "fsdp";
  job.hosts.resize(2);
  const auto planned = [&](const protocol::TensorBody& body) { return plan_tensor(config, choices, body, job); };
  EXPECT_EQ(planned(body_of("x", Operation::kAllgather, 1, 0.125)).urgency, 0.125F);
  EXPECT_EQ(planned(body_of("x", Operation::kAllgather, 0, 0.125)).urgency, 0.75F) << "layer order: 1 - 1 / 4";
  EXPECT_TRUE(choices.urgencies.choices().empty());
  const protocol::PlanTensor gathered = planned(body_of("x", Operation::kAllgather, protocol::kUnsaidUrgency, 0.5));
  EXPECT_EQ(gathered.urgency, 0.75F);
  EXPECT_EQ(gathered.cls, ClassId(0));
  EXPECT_EQ(planned(body_of("x", Operation::kAllreduce, protocol::kUnsaidUrgency, 0.5)).urgency, 0.5F);
  job.name = "other";
  const protocol::PlanTensor other = planned(body_of("y", Operation::kAllgather, protocol::kUnsaidUrgency, 0.5));
  EXPECT_EQ(other.urgency, 0.25F);
  EXPECT_EQ(other.cls, ClassId(1));
}

TEST(UrgencyChoices, TheStatusSaysWhatFitted) {
  const config::DaemonConfig config = configuration();
  UrgencyChoices choices(config.fabric);
  for (const char* name : {"a", "b"})
    choices.choose("fsdp", body_of(name, Operation::kAllgather, protocol::kUnsaidUrgency, 0.5));
  choices.choose("fsdp", body_of("c", Operation::kBarrier, protocol::kUnsaidUrgency, 0.5));
  EXPECT_EQ(choices.choices(), nlohmann::json::parse(R"([
      {"job": "fsdp", "job_id": 0, "rule": "fabric.yaml:3", "operation": "allgather", "urgency": 0.75, "tensors": 2, "last": "b"},
      {"job": "fsdp", "job_id": 0, "rule": "none", "operation": "barrier", "urgency": 0.5, "tensors": 1, "last": "c"}])"));
  const fabric::Fabric plain;
  UrgencyChoices defaults(plain);
  EXPECT_EQ(defaults.choose("j", body_of("a", Operation::kReduceScatter, protocol::kUnsaidUrgency, 0.5)), 0.1F);
  EXPECT_EQ(defaults.choices()[0]["rule"], "default");
}

TEST(UrgencyChoices, ReportsSoManyRulesOfAJobAndFollowsMore) {
  std::string text = "hosts: [{name: h0, addresses: {tcp: 127.0.0.1}}]\nurgencies:\n";
  for (int i = 0; i < 300; ++i) text += "  - {tensor: t" + std::to_string(i) + ", urgency: 0.75}\n";
  const fabric::Fabric fabric = *fabric::parse(text, "fabric.yaml");
  UrgencyChoices choices(fabric);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 300; ++i) {
      const std::string name = "t" + std::to_string(i);
      EXPECT_EQ(choices.choose("j", body_of(name, Operation::kAllreduce, protocol::kUnsaidUrgency, 0.5)), 0.75F);
    }
  }
  const nlohmann::json all = choices.choices();
  EXPECT_EQ(all.size(), 256u);
  EXPECT_TRUE(std::ranges::all_of(all, [](const nlohmann::json& one) { return one["tensors"] == 2; }));
}

TEST(UrgencyChoices, AJobThatHasEndedIsForgottenAndManyOfOneHideNoOther) {
  config::DaemonConfig config = configuration();
  config.pattern.reset();
  Choices choices(config);
  ports::JobSpec job;
  job.hosts.resize(2);
  for (const char* name : {"long", "other"}) {
    job.name = name;
    for (std::uint64_t elements = 1; elements <= 300; ++elements) {
      protocol::TensorBody body = body_of("x", Operation::kAllreduce, protocol::kUnsaidUrgency, 0.5);
      body.elements = elements;
      plan_tensor(config, choices, body, job);
    }
  }
  const auto of = [&](const nlohmann::json& all, const std::string& name) {
    return std::ranges::count_if(all, [&](const nlohmann::json& one) { return one["job"] == name; });
  };
  EXPECT_EQ(of(choices.patterns.choices(), "long"), 256);
  EXPECT_EQ(of(choices.patterns.choices(), "other"), 256);
  choices.forget("long");
  EXPECT_EQ(of(choices.patterns.choices(), "long"), 0);
  EXPECT_EQ(of(choices.urgencies.choices(), "long"), 0);
  EXPECT_EQ(of(choices.patterns.choices(), "other"), 256);
  EXPECT_EQ(of(choices.urgencies.choices(), "other"), 1);
}

}  // namespace
}  // namespace tensorlane::planning
