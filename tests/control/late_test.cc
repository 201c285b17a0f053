// Ranks that others wait for: late ones, and those that have left.
#include <gtest/gtest.h>

#include <string>

#include "cluster.h"

namespace tensorlane::control::testing {
namespace {

void register_everywhere(Cluster& cluster, std::uint32_t ranks, const std::string& name) {
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    cluster.control(rank).register_group(ports::SessionId(rank), 1, "g", {tensor(name, 8)});
  for (std::uint32_t rank = 0; rank < ranks; ++rank) ASSERT_TRUE(cluster.sessions(rank).wait_registered(rank, 1)->ok());
}

TEST(Late, a_late_rank_is_reported_everywhere_and_past_the_error_time_fails_the_job) {
  Cluster cluster({.hosts = 2, .stall_warning = seconds(10), .stall_error = seconds(300)});
  cluster.start();
  cluster.join_all();
  ASSERT_NO_FATAL_FAILURE(register_everywhere(cluster, 2, "fc1.weight"));
  const JobId job = job_id("j");
  cluster.control(1).on_late(job, Rank(1), TensorId(0), seconds(1));  // not long enough to speak of
  cluster.control(1).on_late(job, Rank(1), TensorId(0), seconds(12));
  EXPECT_TRUE(eventually([&] { return cluster.control(0).counts().late_reports == 1; }));
  cluster.control(0).status(ports::SessionId(0), 0, 1);
  const auto late = (*cluster.sessions(0).wait_status(0, 1))["jobs"][0]["late"];
  ASSERT_EQ(late.size(), 1u);
  EXPECT_EQ(late[0]["rank"], 1);
  EXPECT_EQ(late[0]["host"], "h1");
  EXPECT_EQ(late[0]["what"], "tensor 'fc1.weight'");
  EXPECT_EQ(late[0]["seconds"], 12.0);
  cluster.control(1).on_late(job, Rank(1), TensorId(0), seconds(300));
  EXPECT_EQ(cluster.sessions(0).wait_failed(0)->to_string(),
            "rank 1 on host h1 has not submitted for 300.0 s: tensor 'fc1.weight' of job 'j': find out what the rank "
            "does instead, or raise "
            "the stall time");
}

TEST(Late, a_rank_that_has_left_and_is_needed_is_the_cause) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.join_all();
  ASSERT_NO_FATAL_FAILURE(register_everywhere(cluster, 2, "w"));
  cluster.control(1).leave(ports::SessionId(1), {});
  cluster.control(1).on_late(job_id("j"), Rank(1), TensorId(0), seconds(1));
  EXPECT_EQ(cluster.sessions(0).wait_failed(0)->to_string(),
            "rank 1 on host h1 has left the job: tensor 'w' of job 'j': let every rank finish its operations before "
            "any leaves");
}

TEST(Late, a_host_that_is_missed_is_asked_and_one_whose_rank_has_left_is_the_cause) {
  Cluster cluster({.hosts = 3});
  cluster.start();
  cluster.join_all();
  ASSERT_NO_FATAL_FAILURE(register_everywhere(cluster, 3, "w"));
  const JobId job = job_id("j");
  cluster.control(0).on_missing(job, HostIndex(7), TensorId(0), Sequence(5), seconds(3));
  cluster.control(0).on_missing(job, HostIndex(1), TensorId(7), Sequence(5), seconds(3));
  cluster.control(0).on_missing(job, HostIndex(1), TensorId(0), Sequence(5), seconds(3));
  EXPECT_TRUE(eventually([&] { return !cluster.lane(1).record("j").awaited.empty(); }));
  EXPECT_EQ(cluster.lane(1).record("j").awaited, (std::vector<Lane::Awaited>{{TensorId(0), Sequence(5), seconds(3)}}));
  EXPECT_TRUE(cluster.lane(0).record("j").awaited.empty() && cluster.lane(2).record("j").awaited.empty());
  cluster.control(1).leave(ports::SessionId(1), {});
  EXPECT_TRUE(cluster.sessions(1).wait_left(1));
  EXPECT_FALSE(cluster.sessions(0).wait_failed(0, 0.3));
  cluster.control(2).on_missing(job, HostIndex(1), TensorId(0), Sequence(6), seconds(3));
  for (std::uint32_t rank : {0U, 2U}) {
    EXPECT_EQ(cluster.sessions(rank).wait_failed(rank)->to_string(),
              "rank 1 on host h1 has left the job: tensor 'w' of job 'j': let every rank finish its operations before "
              "any leaves");
  }
}

// It waits for what may still be on its way, and not until anything is late.
TEST(Late, a_message_of_a_rank_that_has_left_fails_soon_unless_it_is_moving) {
  Cluster cluster({.hosts = 2, .stall_warning = seconds(100)});
  cluster.start();
  cluster.join_all();
  ASSERT_NO_FATAL_FAILURE(register_everywhere(cluster, 2, "w"));
  const JobId job = job_id("j");
  cluster.control(1).leave(ports::SessionId(1), {});
  EXPECT_TRUE(eventually([&] { return cluster.lane(0).record("j").left == std::set<std::uint32_t>{1}; }));
  const auto left = std::chrono::steady_clock::now();
  const auto waits = [&](ports::MessageWait why) {
    cluster.control(0).on_message_waits(job, Rank(0), Rank(1), why, seconds(3));
  };
  waits(ports::MessageWait::kOtherEnd);
  while (std::chrono::steady_clock::now() < left + std::chrono::milliseconds(400)) waits(ports::MessageWait::kTransfer);
  EXPECT_FALSE(cluster.sessions(0).wait_failed(0, 0.1));
  waits(ports::MessageWait::kOtherEnd);
  EXPECT_EQ(cluster.sessions(0).wait_failed(0)->to_string(),
            "rank 1 on host h1 has left the job: rank 0 of job 'j' has waited 3.0 s for a message to or from it: let "
            "every rank send and receive all messages before any leaves");
}

TEST(Late, a_send_that_waits_for_credit_is_reported_with_the_limit) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.join_all();
  ASSERT_NO_FATAL_FAILURE(register_everywhere(cluster, 2, "w"));
  cluster.control(0).on_message_waits(job_id("j"), Rank(0), Rank(1), ports::MessageWait::kCredit, seconds(12));
  EXPECT_TRUE(eventually([&] { return cluster.control(1).counts().late_reports == 1; }));
  cluster.control(1).status(ports::SessionId(1), 0, 1);
  const auto late = (*cluster.sessions(1).wait_status(1, 1))["jobs"][0]["late"];
  ASSERT_EQ(late.size(), 1u);
  EXPECT_EQ(late[0]["rank"], 1);
  EXPECT_EQ(late[0]["what"],
            "messages: one of rank 0 waits until fewer than 1024 from host h0 to host h1 are unreceived");
}

}  // namespace
}  // namespace tensorlane::control::testing
