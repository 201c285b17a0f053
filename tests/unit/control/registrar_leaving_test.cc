// Groups that come and go in the plan of a job of one host and one rank.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <optional>

#include "daemon/control/registrar.h"

namespace tensorlane::control {
namespace {

using nlohmann::json;
using protocol::TensorBody;
using ::testing::HasSubstr;

// Carries out what the registrar asks for, at once.
class Alone final : public RegistrarOutput {
 public:
  Alone() {
    RegistrarConfig config{.job = "j", .self = "h0", .leader = "h0"};
    config.roster.hosts.push_back({"h0", {0}, {"127.0.0.1"}});
    config.roster.world_size = 1;
    config.planner = [](const TensorBody&) { return protocol::PlanTensor(); };
    registrar_.emplace(std::move(config), *this);
  }

  Status add(const std::string& group, std::size_t count) {
    std::vector<TensorBody> tensors(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::string name = fmt::format("{}.{}", group, i);
      std::memcpy(tensors[i].name, name.data(), name.size());
      tensors[i].operation = Operation::kBarrier;
    }
    answer_.reset();
    registrar_->register_group(0, ports::SessionId(1), 1, group, std::move(tensors));
    return settle();
  }
  Status remove(const std::string& group, std::uint64_t operations = 0) {
    answer_.reset();
    registrar_->unregister_group(0, ports::SessionId(1), 1, group, operations, {});
    return settle();
  }
  const protocol::Plan& plan() const { return registrar_->plan(); }
  const Registrar::Totals& totals() const { return registrar_->totals(); }
  Status failure;

 private:
  Status settle() {
    for (; !said_.empty(); said_.pop_front()) {
      const auto [type, body] = said_.front();
      EXPECT_TRUE(registrar_->handle("h0", type, body, Time(1))) << static_cast<int>(type);
      if (in_force_) registrar_->plan_in_force(*std::exchange(in_force_, std::nullopt));
    }
    EXPECT_TRUE(answer_.has_value()) << "no answer";
    return answer_.value_or(Status());
  }
  void to_leader(MessageType type, json body) override { said_.emplace_back(type, std::move(body)); }
  void to_all_hosts(MessageType type, json body) override { said_.emplace_back(type, std::move(body)); }
  void apply_plan(protocol::Plan added) override { in_force_ = added.version; }
  void vacate(std::uint32_t version, protocol::TensorRange) override { in_force_ = version; }
  void bind(std::uint32_t, TensorId, ports::BufferPlace) override {}
  void answer(ports::SessionId, std::uint32_t, Result<std::vector<TensorId>> ids) override { answer_ = ids.status(); }
  void answer_unregistered(ports::SessionId, std::uint32_t, Result<std::uint32_t> tensors) override {
    answer_ = tensors.status();
  }
  void report_late(std::uint32_t, const std::string&, Duration) override {}
  void fail_job(Status cause) override { failure = std::move(cause); }
  void note(const std::string&) override {}

  std::optional<Registrar> registrar_;
  std::deque<std::pair<MessageType, json>> said_;
  std::optional<std::uint32_t> in_force_;
  std::optional<Status> answer_;
};

TEST(RegistrarLeaving, TheHashIsThatOfTheTensorsThatAreThere) {
  Alone job;
  for (int turn = 0; turn < 3; ++turn) {
    ASSERT_TRUE(job.add("a", 3).ok());
    ASSERT_TRUE(job.add("b", 2).ok());
    ASSERT_TRUE(job.remove("a").ok());
    EXPECT_EQ(job.totals().hash, job.plan().hash());
    EXPECT_EQ(job.totals().tensors, 2u);
    ASSERT_TRUE(job.add("c", 2).ok());
    EXPECT_EQ(job.plan().tensors[0].name, "c.0");
    ASSERT_TRUE(job.remove("b").ok());
    ASSERT_TRUE(job.remove("c").ok());
    EXPECT_EQ(job.totals().hash, job.plan().hash());
    EXPECT_EQ(job.totals().tensors, 0u);
    EXPECT_EQ(job.plan().tensors.size(), 5u);
  }
  EXPECT_EQ(job.remove("a").code(), Code::kNotFound);
  EXPECT_TRUE(job.failure.ok()) << job.failure.to_string();
}

// Tables have an entry for each place, vacant or not.
TEST(RegistrarLeaving, PlacesThatAreLeftInPiecesDoNotMakeThePlanLarger) {
  constexpr std::size_t kGroup = 2048, kGroups = kMaxPlanTensors / kGroup;
  Alone job;
  for (std::size_t g = 0; g < kGroups; ++g) ASSERT_TRUE(job.add(fmt::format("g{}", g), kGroup).ok());
  EXPECT_EQ(job.add("more", 1).code(), Code::kResourceExhausted);
  for (std::size_t g = 0; g < kGroups; g += 2) ASSERT_TRUE(job.remove(fmt::format("g{}", g)).ok());
  const Status refused = job.add("large", kGroup + 1);
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.to_string(), HasSubstr("no 2049 in a row are vacant: group 'large' of job 'j': register in "
                                             "smaller groups"));
  EXPECT_TRUE(job.add("small", kGroup - 1).ok());
  EXPECT_TRUE(job.remove("g1").ok());
  EXPECT_TRUE(job.add("large", kGroup + 1).ok()) << "its name is free, and two pieces have become one";
  EXPECT_LE(job.plan().tensors.size(), kMaxPlanTensors);
  EXPECT_EQ(job.totals().hash, job.plan().hash());
  EXPECT_TRUE(job.failure.ok()) << job.failure.to_string();
}

}  // namespace
}  // namespace tensorlane::control
