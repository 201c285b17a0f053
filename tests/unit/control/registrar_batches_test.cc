// Batches in the plan of a job of two hosts, whose leader is the test's.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>

#include "daemon/control/registrar.h"

namespace tensorlane::control {
namespace {

using nlohmann::json;
using protocol::PlanTensor;
using protocol::TensorBody;

// What the leader says to all hosts.
struct Said final : RegistrarOutput {
  void to_leader(MessageType, json) override {}
  void to_all_hosts(MessageType type, json body) override { said.emplace_back(type, std::move(body)); }
  void apply_plan(protocol::Plan plan) override { applied = std::move(plan); }
  void vacate(std::uint32_t, protocol::TensorRange) override {}
  void answer_unregistered(ports::SessionId, std::uint32_t, Result<std::uint32_t>) override {}
  void bind(std::uint32_t, TensorId, ports::BufferPlace) override {}
  void answer(ports::SessionId, std::uint32_t, Result<std::vector<TensorId>>) override {}
  void report_late(std::uint32_t, const std::string&, Duration) override {}
  void fail_job(Status cause) override { failure = std::move(cause); }
  void note(const std::string&) override {}
  std::vector<std::pair<MessageType, json>> said;
  std::optional<protocol::Plan> applied;
  Status failure;
};

// All of it in one batch.
void one_batch(const std::vector<TensorBody>&, const protocol::SharedWorld&, std::vector<PlanTensor>* tensors) {
  PlanTensor batch = tensors->front();
  batch.elements = 0;
  batch.members = static_cast<std::uint32_t>(tensors->size());
  for (PlanTensor& member : *tensors) {
    member.batch = batch.members;
    member.batch_offset = batch.elements;
    batch.elements += member.elements;
  }
  tensors->push_back(batch);
}

struct Leader {
  explicit Leader(std::vector<std::string> hosts) {
    RegistrarConfig config{.job = "j", .self = hosts[0], .leader = hosts[0]};
    for (std::uint32_t h = 0; h < hosts.size(); ++h) config.roster.hosts.push_back({hosts[h], {h}, {"127.0.0.1"}});
    config.roster.world_size = static_cast<std::uint32_t>(hosts.size());
    config.planner = [](const TensorBody&, const protocol::SharedWorld&) { return PlanTensor(); };
    config.batch_planner = one_batch;
    names = std::move(hosts);
    registrar.emplace(std::move(config), said);
  }
  // Every host registers as many tensors; what the leader then says.
  json plan(const std::string& group, std::size_t count, std::size_t name_length = 8) {
    std::vector<TensorBody> tensors(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::string name = fmt::format("{}{:0{}}", group, i, name_length);
      std::memcpy(tensors[i].name, name.data(), name.size());
      tensors[i].elements = 10;
    }
    for (std::size_t h = 0; h < names.size(); ++h) {
      const json body = json::array({group, json::array(), h, tensors_to_json(tensors), status_to_json({})});
      EXPECT_TRUE(registrar->handle(names[h], MessageType::kGroup, body, Time(1)));
    }
    EXPECT_FALSE(said.said.empty());
    EXPECT_EQ(said.said.back().first, MessageType::kPlan);
    return said.said.back().second;
  }
  std::vector<std::string> names;
  Said said;
  std::optional<Registrar> registrar;
};

TEST(RegistrarBatches, ArePlannedBehindTheirMembers) {
  Leader leader({"h0", "h1"});
  for (const char* group : {"a", "b"}) {
    ASSERT_TRUE(leader.registrar->handle("h0", MessageType::kPlan, leader.plan(group, 3), Time(2)));
    const std::uint32_t version = leader.registrar->plan().version;
    for (const char* host : {"h0", "h1"}) {
      const json planned = json::array({version, leader.registrar->plan().hash()});
      ASSERT_TRUE(leader.registrar->handle(host, MessageType::kPlanned, planned, Time(3)));
    }
  }
  const std::vector<PlanTensor>& tensors = leader.registrar->plan().tensors;
  ASSERT_EQ(tensors.size(), 8u);
  EXPECT_EQ(tensors[6].operation_id(), TensorId(7));
  EXPECT_EQ(tensors[6].batch_offset, 20u);
  EXPECT_EQ(tensors[7].members, 3u);
  EXPECT_EQ(tensors[7].group, 2u);
}

TEST(RegistrarBatches, ThatMakeNoSenseAreRefusedByEveryHost) {
  Leader leader({"h0", "h1"});
  json body = leader.plan("a", 3);
  body[6][1][15] = 11;  // where the second member lies
  EXPECT_FALSE(leader.registrar->handle("h0", MessageType::kPlan, body, Time(2)));
  EXPECT_FALSE(leader.said.applied.has_value());
}

TEST(RegistrarBatches, AJobOfOneHostHasNone) {
  Leader leader({"h0"});
  EXPECT_EQ(leader.plan("a", 3)[6].size(), 3u);
}

// A message that is too long would never arrive.
TEST(RegistrarBatches, AreLeftOutWhereTheirPlanDoesNotFitIntoAMessage) {
  Leader leader({"h0", "h1"});
  const json body = leader.plan("a", 7000, 100);
  EXPECT_EQ(body[6].size(), 7001u);
  Leader full({"h0", "h1"});
  EXPECT_EQ(full.plan("a", 8200, 100)[6].size(), 8200u);
}

}  // namespace
}  // namespace tensorlane::control
