// Joining, leaving and status, over real ZeroMQ sockets.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "cluster.h"
#include "common/json/json.h"

namespace tensorlane::control::testing {
namespace {

class ClusterOf : public ::testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Hosts, ClusterOf, ::testing::Values(1, 2, 4));

TEST_P(ClusterOf, joins_registers_and_ends_in_peace_and_the_name_can_be_used_again) {
  Cluster cluster({.hosts = GetParam()});
  cluster.start();
  std::uint32_t last_epoch = 0;
  for (std::uint64_t round = 0; round < 2; ++round) {
    const std::uint64_t base = round * 100;
    cluster.join_all(2, "j", base);
    const auto world = static_cast<std::uint32_t>(GetParam() * 2);
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      const auto joined = cluster.sessions(rank / 2).wait_joined(base + rank);
      ASSERT_TRUE(joined && joined->ok());
      EXPECT_EQ(joined->value().hosts, GetParam());
      EXPECT_EQ(joined->value().host_index.value, rank / 2);
      EXPECT_EQ(joined->value().detection, seconds(1));
      EXPECT_GT(joined->value().epoch.value, last_epoch);
      // The order of tensors differs between ranks: ids follow the names.
      std::vector<protocol::TensorBody> tensors{tensor("a", 1000), tensor("b", 10, Dtype::kBfloat16)};
      tensors[0].offset = 64 * rank;
      if (rank % 2 == 1) std::swap(tensors[0], tensors[1]);
      cluster.control(rank / 2).register_group(ports::SessionId(base + rank), 7, "g", tensors);
    }
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      const auto ids = cluster.sessions(rank / 2).wait_registered(base + rank, 7);
      ASSERT_TRUE(ids.has_value());
      ASSERT_TRUE(ids->ok()) << ids->status().to_string();
      const std::vector<TensorId> expected =
          rank % 2 == 0 ? std::vector{TensorId(0), TensorId(1)} : std::vector{TensorId(1), TensorId(0)};
      EXPECT_EQ(ids->value(), expected);
    }
    const std::uint64_t hash = cluster.lane(0).record("j").plan.hash();
    for (std::size_t host = 0; host < GetParam(); ++host) {
      const Lane::JobRecord record = cluster.lane(host).record("j");
      EXPECT_EQ(record.plan.hash(), hash);
      EXPECT_EQ(record.plan.version, 1u);
      ASSERT_EQ(record.plan.tensors.size(), 2u);
      EXPECT_TRUE(record.plan.tensors[1].fp32_contributions);
      ASSERT_EQ(record.bindings.size(), 4u);
      EXPECT_EQ(record.bindings[0].place.offset, 128 * host);
      EXPECT_EQ(record.bindings[0].place.bytes, 4000u);
      EXPECT_EQ(record.spec.hosts.size(), GetParam());
      EXPECT_EQ(record.spec.hosts[host].ranks[1].value, 2 * host + 1);
    }
    last_epoch = cluster.sessions(0).wait_joined(base)->value().epoch.value;
    for (std::uint32_t rank = 0; rank < world; ++rank)
      cluster.control(rank / 2).leave(ports::SessionId(base + rank), {});
    for (std::uint32_t rank = 0; rank < world; ++rank) EXPECT_TRUE(cluster.sessions(rank / 2).wait_left(base + rank));
  }
  for (std::size_t host = 0; host < GetParam(); ++host) {
    EXPECT_FALSE(cluster.sessions(host).wait_failed(0, 0)) << "a job that ends in peace has no error";
    EXPECT_FALSE(cluster.lane(host).record("j").aborted);
  }
}

// The leader is told of iterations that take as long as the thresholds make them; every host uses what it finds.
class Tuning : public ::testing::TestWithParam<Operation> {};

TEST_P(Tuning, the_leader_searches_and_every_host_uses_its_thresholds) {
  Cluster cluster({.hosts = 3, .tuned_classes = 2});
  cluster.start();
  cluster.join_all();
  std::vector<protocol::TensorBody> tensors;
  for (std::uint32_t i = 0; i < 10; ++i) {
    tensors.push_back(tensor(fmt::format("t{}", i), 1000));
    tensors.back().operation = GetParam();
    tensors.back().explicit_urgency = 1;
    tensors.back().urgency = 1 - static_cast<float>(i) / 10;
  }
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    cluster.control(rank).register_group(ports::SessionId(rank), 1, "g", tensors);
  for (std::uint32_t rank = 0; rank < 3; ++rank) ASSERT_TRUE(cluster.sessions(rank).wait_registered(rank, 1));

  const JobId job = cluster.lane(0).record("j").spec.credentials.job;
  const auto in_use = [&](std::size_t host) { return cluster.lane(host).record("j").thresholds; };
  for (int i = 0; i < 80; ++i) {
    const std::optional<std::vector<double>> now = in_use(0);
    const bool best = now && now->size() == 1 && now->front() > 0.5 && now->front() < 0.7;
    cluster.control(0).on_iteration(job, milliseconds(best ? 80 : 100));
    cluster.control(1).on_iteration(job, milliseconds(1));  // not the leader: nobody listens
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (std::size_t host = 0; host < 3; ++host) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (in_use(host) != in_use(0) && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ASSERT_TRUE(in_use(host).has_value()) << "host " << host;
    ASSERT_EQ(in_use(host)->size(), 1u) << "host " << host;
    EXPECT_NEAR(in_use(host)->front(), 0.6, 0.1) << "host " << host;
  }
  cluster.control(0).status(ports::SessionId(0), 0, 9);
  const auto status = cluster.sessions(0).wait_status(0, 9);
  ASSERT_TRUE(status.has_value());
  const nlohmann::json tuning = (*status)["jobs"][0]["tuning"];
  EXPECT_FALSE(tuning["searching"].get<bool>());
  EXPECT_NEAR(tuning["chosen_s"].get<double>(), 0.08, 0.001);
  EXPECT_NEAR(tuning["single_class_s"].get<double>(), 0.1, 0.001);
}

INSTANTIATE_TEST_SUITE_P(Sums, Tuning,
                         ::testing::Values(Operation::kAllreduce, Operation::kPush, Operation::kReduceScatter),
                         [](const auto& of) { return std::string(operation_name(of.param)); });

}  // namespace
}  // namespace tensorlane::control::testing
