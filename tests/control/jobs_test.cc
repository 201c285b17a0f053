// Several jobs of one daemon: how they are told apart, and what its status shows of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "cluster.h"

namespace tensorlane::control::testing {
namespace {

TEST(Jobs, two_at_once_do_not_notice_each_other) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.join_all(1, "a", 0);
  cluster.join_all(2, "b", 10);
  cluster.control(0).leave(ports::SessionId(0), Status(Code::kAborted, "killed"));
  EXPECT_TRUE(cluster.sessions(1).wait_failed(1));
  EXPECT_FALSE(cluster.sessions(1).wait_failed(12, 0.3));
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    cluster.control(rank / 2).register_group(ports::SessionId(10 + rank), 1, "g", {tensor("t", 8)});
  }
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    EXPECT_TRUE(cluster.sessions(rank / 2).wait_registered(10 + rank, 1)->ok());
}

TEST(Jobs, of_one_name_and_of_other_users_leaders_or_ports_do_not_meet) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  const auto of = [&](std::uint32_t rank, std::uint64_t base, std::uint32_t uid, std::uint16_t port) {
    auto request = cluster.request(rank, 1, "none", base);
    request.uid = uid;
    request.leader_port = port;
    request.secret.assign(16, static_cast<std::byte>(uid));  // which differs between users, and not between runs
    return request;
  };
  // Whoever squats on the name on any host takes it from nobody.
  cluster.control(1).join(of(1, 10, 1002, 29500));
  cluster.control(0).join(of(0, 20, 1001, 29501));
  for (std::uint32_t rank = 0; rank < 2; ++rank) cluster.control(rank).join(of(rank, 0, 1001, 29500));
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const auto joined = cluster.sessions(rank).wait_joined(rank);
    ASSERT_TRUE(joined && joined->ok());
    EXPECT_EQ(joined->value().host, Cluster::name(rank));
  }
  cluster.control(0).join(of(0, 10, 1002, 29500));
  cluster.control(1).join(of(1, 20, 1001, 29501));
  auto led_from_1 = of(0, 30, 1001, 29500), other_end = of(1, 30, 1001, 29500);
  led_from_1.leader = other_end.leader = "h1";
  cluster.control(1).join(led_from_1);
  cluster.control(0).join(other_end);
  for (const auto& [host, session] : {std::pair(0, 10), {1, 11}, {0, 20}, {1, 21}, {1, 30}, {0, 31}}) {
    const auto joined =
        cluster.sessions(static_cast<std::size_t>(host)).wait_joined(static_cast<std::uint64_t>(session));
    ASSERT_TRUE(joined.has_value()) << session;
    EXPECT_TRUE(joined->ok()) << session << ": " << joined->status().to_string();
  }
  // They end one by one.
  cluster.control(1).leave(ports::SessionId(11), Status(Code::kAborted, "killed"));
  EXPECT_TRUE(cluster.sessions(0).wait_failed(10));
  for (const std::uint64_t session : {0, 20, 31}) EXPECT_FALSE(cluster.sessions(0).wait_failed(session, 0.1));
}

TEST(Jobs, the_end_of_the_last_one_of_a_name_is_told) {
  std::atomic<int> told{0};
  Cluster cluster({.hosts = 1});
  cluster.job_ended = [&](const std::string& name) { told += name == "none" ? 1 : 100; };
  cluster.start();
  for (const std::uint16_t port : {1, 2}) {
    auto request = cluster.request(0, 1, "none", port * 10U);
    request.world_size = request.local_world_size = 1;
    request.leader_port = port;
    cluster.control(0).join(request);
    const auto joined = cluster.sessions(0).wait_joined(port * 10U);
    ASSERT_TRUE(joined && joined->ok());
  }
  cluster.control(0).leave(ports::SessionId(10), Status());
  ASSERT_TRUE(cluster.sessions(0).wait_left(10));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(told, 0) << "another one of this name goes on";
  cluster.control(0).leave(ports::SessionId(20), Status());
  for (int turns = 0; told == 0 && turns < 1000; ++turns) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(told, 1);
}

TEST(Jobs, a_host_that_dies_while_others_are_awaited_is_not_counted_as_here) {
  Cluster cluster({.hosts = 3, .detection = milliseconds(1000), .join_timeout = milliseconds(4000)});
  cluster.start();
  cluster.control(0).join(cluster.request(0));
  cluster.control(1).join(cluster.request(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  cluster.kill(1);
  EXPECT_THAT(joined_error(cluster, 0, 0).to_string(),
              ::testing::AllOf(::testing::HasSubstr("ranks 1-2 of 3 have not come within 4.0 s"),
                               ::testing::HasSubstr("here: h0 (rank 0); host h1 came"),
                               ::testing::HasSubstr("look at the daemon there")));
}

TEST(Jobs, ranks_whose_user_or_port_differs_between_hosts_are_named_when_they_are_missed) {
  Cluster cluster({.hosts = 3, .join_timeout = milliseconds(1500)});
  cluster.start();
  auto first = cluster.request(0), second = cluster.request(1), third = cluster.request(2);
  first.leader_port = second.leader_port = 29500;
  second.uid = 1001;
  third.leader_port = 29501;
  cluster.control(0).join(first);
  cluster.control(1).join(second);
  cluster.control(2).join(third);
  EXPECT_EQ(
      joined_error(cluster, 0, 0).to_string(),
      "ranks 1-2 of 3 have not come within 1.5 s: job 'j' of user 1000, led by host h0, port 29500; here: h0 "
      "(rank 0); host h1 was refused: its ranks are of job 'j' of user 1001, led by host h0, port 29500; host h2 "
      "was refused: its ranks are of job 'j' of user 1000, led by host h0, port 29501: start the missing ranks as "
      "the same user, with the same job name, MASTER_ADDR and MASTER_PORT, on hosts whose daemon answers `tensorlane "
      "status`");
}

TEST(Jobs, ranks_of_a_host_that_name_different_leaders_are_told_of_each_other) {
  Cluster cluster({.hosts = 2, .join_timeout = milliseconds(300)});
  cluster.start();
  auto first = cluster.request(0, 2), second = cluster.request(1, 2);
  second.leader = "h1";
  cluster.control(0).join(first);
  cluster.control(0).join(second);
  // Whichever gives up first knows of the other one.
  const std::string texts = joined_error(cluster, 0, 0).to_string() + joined_error(cluster, 0, 1).to_string();
  EXPECT_NE(texts.find("; ranks wait here, too, for job 'j' of user 1000, led by host h"), std::string::npos) << texts;
}

TEST(Status, shows_the_jobs_of_others_without_names) {
  Cluster cluster({.hosts = 1});
  cluster.start();
  auto other = cluster.request(0, 1, "secret project", 10);
  other.uid = 1001;
  cluster.control(0).join(other);
  cluster.join_all(1, "mine");
  ASSERT_TRUE(cluster.sessions(0).wait_joined(10));
  cluster.control(0).status(ports::SessionId(0), 1000, 1);
  const auto status = cluster.sessions(0).wait_status(0, 1);
  ASSERT_TRUE(status.has_value());
  ASSERT_EQ((*status)["jobs"].size(), 1u);
  EXPECT_EQ((*status)["jobs"][0]["name"], "mine");
  EXPECT_EQ((*status)["jobs"][0]["user"], 1000);
  ASSERT_EQ((*status)["jobs_of_others"].size(), 1u);
  EXPECT_EQ((*status)["jobs_of_others"][0]["user"], 1001);
  EXPECT_EQ((*status)["jobs_of_others"][0]["state"], "running");
  EXPECT_EQ(status->dump().find("secret"), std::string::npos);
  cluster.control(0).status(ports::SessionId(0), 0, 2);
  EXPECT_EQ(cluster.sessions(0).wait_status(0, 2)->at("jobs").size(), 2u) << "root sees everything";
}

TEST(Status, says_what_there_is) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.join_all(2);
  cluster.control(1).status(ports::SessionId(9), 0, 3);
  const auto status = cluster.sessions(1).wait_status(9, 3);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ((*status)["host"], "h1");
  EXPECT_EQ((*status)["pid"], getpid());
  EXPECT_EQ((*status)["version"], "0.1.0");
  const auto& job = (*status)["jobs"][0];
  EXPECT_EQ(job["name"], "j");
  EXPECT_EQ(job["state"], "running");
  EXPECT_EQ(job["leader"], "h0");
  EXPECT_EQ(job["hosts"][1]["name"], "h1");
  EXPECT_EQ(job["hosts"][1]["ranks"], (std::vector<int>{2, 3}));
  EXPECT_EQ(job["plan"]["version"], 0);
  EXPECT_EQ((*status)["fabric"]["classes"][0]["dscp"], 43);
  EXPECT_EQ((*status)["fabric"]["classes"][2]["dscp"], 51);
}

TEST(Alike, keys_that_the_leader_does_not_have_are_compared_among_the_others) {
  Cluster cluster({.hosts = 3});
  cluster.settings[1]["daemon.yaml transport"] = "tcp";
  cluster.settings[2]["daemon.yaml transport"] = "rdma";
  cluster.start();
  for (std::uint32_t rank = 0; rank < 3; ++rank) cluster.control(rank).join(cluster.request(rank));
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const Status status = joined_error(cluster, rank, rank);
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_EQ(status.what(),
              "hosts differ in what must be alike: daemon.yaml transport is 'tcp' on h1 and 'rdma' on h2");
  }
}

// Only the two of them compare their files when one joins: a third host is looked at when the roster comes.
TEST(Alike, a_third_host_with_other_rails_than_the_leader_says_is_refused) {
  Cluster cluster({.hosts = 3});
  for (fabric::Fabric& fabric : cluster.fabrics) {
    for (fabric::Host& host : fabric.hosts) host.addresses["tcp"].push_back("127.0.0.2");
  }
  cluster.fabrics[1].hosts[2].addresses["tcp"].pop_back();
  cluster.start();
  for (std::uint32_t rank = 0; rank < 3; ++rank) cluster.control(rank).join(cluster.request(rank));
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const auto joined = cluster.sessions(rank).wait_joined(rank);
    ASSERT_TRUE(joined.has_value()) << "rank " << rank;
    const Status status = joined->ok() ? cluster.sessions(rank).wait_failed(rank).value_or(Status()) : joined->status();
    EXPECT_EQ(status.what(), "host h2 has 2 rails in the roster of the leader h0 and 1 in the fabric file of host h1");
  }
}

TEST(Status, what_was_chosen_for_a_job_is_shown_to_its_user_alone) {
  Cluster cluster({.hosts = 1});
  const std::uint64_t own = job_id("j").value;
  cluster.more_status = [own] {
    nlohmann::json lane{{"flows", nlohmann::json::array()}, {"jobs", nlohmann::json::array()}};
    for (const char* list : {"pattern_choices", "urgency_choices"})  // of two users' jobs of the same name
      lane[list] = {{{"job", "j"}, {"job_id", own}}, {{"job", "j"}, {"job_id", own + 1}}};
    return nlohmann::json{{"lane", std::move(lane)}};
  };
  cluster.start();
  cluster.join_all();
  const auto seen_by = [&](std::uint32_t uid) {
    cluster.control(0).status(ports::SessionId(uid), uid, 1);
    const nlohmann::json status = cluster.sessions(0).wait_status(uid, 1).value();
    EXPECT_EQ(status["lane"]["pattern_choices"], status["lane"]["urgency_choices"]);
    return status["lane"]["pattern_choices"];
  };
  const nlohmann::json of_owner = seen_by(1000);
  ASSERT_EQ(of_owner.size(), 1u);
  EXPECT_EQ(of_owner[0]["job_id"], own);
  EXPECT_EQ(seen_by(2000).size(), 0u);
}

}  // namespace
}  // namespace tensorlane::control::testing
