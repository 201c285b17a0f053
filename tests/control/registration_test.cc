// What happens when ranks do not register the same, across hosts and within one.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <sstream>
#include <thread>

#include "cluster.h"
#include "common/base/log_share.h"

namespace tensorlane::control::testing {
namespace {

using protocol::TensorBody;

// Registers `first` from rank 0 and `second` from the last rank, and what the others have from rank 0; expects `what`
// at every rank.
void expect_rejected(std::size_t hosts, std::uint32_t per_host, const std::vector<TensorBody>& first,
                     const std::vector<TensorBody>& second, Code code, const std::string& text) {
  Cluster cluster({.hosts = hosts});
  cluster.start();
  cluster.join_all(per_host);
  const auto world = static_cast<std::uint32_t>(hosts) * per_host;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    cluster.control(rank / per_host).register_group(ports::SessionId(rank), 1, "g", rank + 1 == world ? second : first);
  }
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const auto answer = cluster.sessions(rank / per_host).wait_registered(rank, 1);
    ASSERT_TRUE(answer.has_value()) << "rank " << rank;
    ASSERT_FALSE(answer->ok()) << "rank " << rank;
    EXPECT_EQ(answer->status().code(), code);
    EXPECT_EQ(answer->status().to_string(), text);
  }
  // The job lives on: the same group, corrected, is accepted.
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    cluster.control(rank / per_host).register_group(ports::SessionId(rank), 2, "g", first);
  }
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const auto answer = cluster.sessions(rank / per_host).wait_registered(rank, 2);
    ASSERT_TRUE(answer && answer->ok()) << "rank " << rank;
  }
}

constexpr const char* kSame =
    ": group 'g' of job 'j': register the same tensors with the same properties on every rank";

struct Mismatch {
  const char* name;
  std::function<void(TensorBody&)> prepare;  // on every rank
  std::function<void(TensorBody&)> change;   // on the last rank
  const char* text;                          // what rank 0 registers, what rank 3 does
};

class Attribute : public ::testing::TestWithParam<Mismatch> {};

TEST_P(Attribute, that_differs_between_hosts_is_an_error_at_every_rank) {
  std::vector<TensorBody> first{tensor("embedding", 64), tensor("fc1.weight", 1000)};
  if (GetParam().prepare) GetParam().prepare(first[1]);
  std::vector<TensorBody> second = first;
  GetParam().change(second[1]);
  expect_rejected(4, 1, first, second, Code::kMismatch,
                  std::string("tensor 'fc1.weight' differs: ") + GetParam().text + kSame);
}

INSTANTIATE_TEST_SUITE_P(All, Attribute,
                         ::testing::Values(Mismatch{"dtype",
                                                    {},
                                                    [](TensorBody& t) { t.dtype = Dtype::kFloat64; },
                                                    "rank 0 registers float32[1000], rank 3 float64[1000]"},
                                           Mismatch{"elements",
                                                    {},
                                                    [](TensorBody& t) { t.elements = 999; },
                                                    "rank 0 registers float32[1000], rank 3 float32[999]"},
                                           Mismatch{"operation",
                                                    {},
                                                    [](TensorBody& t) { t.operation = Operation::kBroadcast; },
                                                    "rank 0 registers allreduce, rank 3 broadcast"},
                                           Mismatch{"reduction",
                                                    {},
                                                    [](TensorBody& t) { t.reduce = ReduceOp::kAverage; },
                                                    "rank 0 registers sum, rank 3 average"},
                                           Mismatch{"root", [](TensorBody& t) { t.operation = Operation::kBroadcast; },
                                                    [](TensorBody& t) { t.root = 2; },
                                                    "rank 0 registers root 0, rank 3 root 2"},
                                           Mismatch{"position",
                                                    {},
                                                    [](TensorBody& t) { t.position = 4; },
                                                    "rank 0 registers position 0 of 10, rank 3 position 4 of 10"},
                                           Mismatch{"urgency",
                                                    [](TensorBody& t) {
                                                      t.explicit_urgency = 1;
                                                      t.urgency = 0.5f;
                                                    },
                                                    [](TensorBody& t) { t.urgency = 0.75f; },
                                                    "rank 0 registers urgency 0.5, rank 3 urgency 0.75"}),
                         [](const auto& info) { return info.param.name; });

TEST(Registration, leaving_a_tensor_out_names_both_ranks) {
  const std::vector<TensorBody> both{tensor("a", 8), tensor("x", 8)};
  expect_rejected(2, 1, both, {both[0]}, Code::kMismatch,
                  std::string("rank 1 leaves out tensor 'x' that rank 0 registers") + kSame);
}

TEST(Registration, a_tensor_too_many_names_both_ranks) {
  const std::vector<TensorBody> both{tensor("a", 8), tensor("x", 8)};
  expect_rejected(2, 1, {both[0]}, both, Code::kMismatch,
                  std::string("rank 0 leaves out tensor 'x' that rank 1 registers") + kSame);
}

TEST(Registration, ranks_of_one_host_that_differ_are_told_like_those_of_two) {
  expect_rejected(1, 2, {tensor("a", 8)}, {tensor("a", 9)}, Code::kMismatch,
                  std::string("tensor 'a' differs: rank 0 registers float32[8], rank 1 float32[9]") + kSame);
}

TEST(Registration, groups_that_come_in_different_orders_get_the_same_ids_everywhere) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.join_all();
  constexpr int kGroups = 20;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    for (int i = 0; i < kGroups; ++i) {
      const int g = rank == 0 ? i : kGroups - 1 - i;
      const std::string name = fmt::format("t{}", g);
      cluster.control(rank).register_group(ports::SessionId(rank), static_cast<std::uint32_t>(g), fmt::format("g{}", g),
                                           {tensor(name, 8)});
    }
  }
  std::set<std::uint32_t> ids;
  for (std::uint32_t g = 0; g < kGroups; ++g) {
    const auto a = cluster.sessions(0).wait_registered(0, g), b = cluster.sessions(1).wait_registered(1, g);
    ASSERT_TRUE(a && b && a->ok() && b->ok());
    EXPECT_EQ(a->value(), b->value());
    ids.insert(a->value()[0].value);
  }
  EXPECT_EQ(ids.size(), static_cast<std::size_t>(kGroups));
  EXPECT_EQ(cluster.lane(0).record("j").plan.hash(), cluster.lane(1).record("j").plan.hash());
}

TEST(Registration, a_name_or_group_that_is_registered_already_is_an_error) {
  Cluster cluster({.hosts = 1});
  cluster.start();
  cluster.join_all();
  cluster.control(0).register_group(ports::SessionId(0), 1, "g", {tensor("a", 8)});
  ASSERT_TRUE(cluster.sessions(0).wait_registered(0, 1)->ok());
  cluster.control(0).register_group(ports::SessionId(0), 2, "other", {tensor("a", 8)});
  EXPECT_EQ(cluster.sessions(0).wait_registered(0, 2)->status().to_string(),
            "tensor 'a' is registered already: group 'other' of job 'j': give every tensor of a job a name of its own");
  cluster.control(0).register_group(ports::SessionId(0), 3, "g", {tensor("b", 8)});
  EXPECT_EQ(cluster.sessions(0).wait_registered(0, 3)->status().to_string(),
            "the group is registered already (rank 0): group 'g' of job 'j': use another group name");
}

TEST(Registration, a_group_too_large_for_one_message_is_refused_and_a_large_one_is_not) {
  Cluster cluster({.hosts = 2, .detection = seconds(20)});  // so many tensors keep a sanitized build busy
  cluster.start();
  cluster.join_all();
  const auto many = [](int count) {
    std::vector<TensorBody> tensors;
    for (int i = 0; i < count; ++i)
      tensors.push_back(tensor(fmt::format("model.layers.self_attention.weight.{}", i), 8));
    return tensors;
  };
  cluster.control(0).register_group(ports::SessionId(0), 1, "g", many(20000));
  const auto refused = cluster.sessions(0).wait_registered(0, 1);
  ASSERT_TRUE(refused && !refused->ok());
  EXPECT_EQ(refused->status().to_string(),
            "20000 tensors take more than 524288 bytes to describe: group 'g' of job 'j': register in several groups");
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    cluster.control(rank).register_group(ports::SessionId(rank), 2, "g", many(5000));
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const auto ids = cluster.sessions(rank).wait_registered(rank, 2);
    ASSERT_TRUE(ids && ids->ok());
    EXPECT_EQ(ids->value().size(), 5000u);
  }
}

TEST(Registration, a_lane_whose_queue_is_full_gets_every_binding_before_the_rank_is_answered) {
  Cluster cluster({.hosts = 1});
  cluster.start();
  cluster.join_all();
  cluster.lane(0).refuse_binds(5);
  cluster.control(0).register_group(ports::SessionId(0), 1, "g", {tensor("a", 8), tensor("b", 8)});
  ASSERT_TRUE(cluster.sessions(0).wait_registered(0, 1)->ok());
  EXPECT_EQ(cluster.lane(0).record("j").bindings.size(), 2u);
}

TEST(Registration, a_broadcast_knows_rank_and_host_of_its_root) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.join_all(2);
  TensorBody body = tensor("b", 8);
  body.operation = Operation::kBroadcast;
  body.root = 3;
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    cluster.control(rank / 2).register_group(ports::SessionId(rank), 1, "g", {body});
  for (std::uint32_t rank = 0; rank < 4; ++rank) ASSERT_TRUE(cluster.sessions(rank / 2).wait_registered(rank, 1)->ok());
  const auto plan = cluster.lane(1).record("j").plan;
  EXPECT_EQ(plan.tensors[0].root, HostIndex(1));
  EXPECT_EQ(plan.tensors[0].root_rank, Rank(3));
}

TEST(Registration, the_leader_decides_the_ordering_and_groups_are_numbered) {
  Cluster cluster({.hosts = 2, .ordering = protocol::Ordering::kConcurrent, .concurrent = 3});
  cluster.start();
  cluster.join_all();
  for (std::uint32_t g = 1; g <= 2; ++g) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      cluster.control(rank).register_group(ports::SessionId(rank), g, fmt::format("g{}", g),
                                           {tensor(fmt::format("a{}", g), 8), tensor(fmt::format("b{}", g), 8)});
    }
    for (std::uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(cluster.sessions(rank).wait_registered(rank, g)->ok());
  }
  for (std::size_t host = 0; host < 2; ++host) {
    const auto plan = cluster.lane(host).record("j").plan;
    EXPECT_EQ(plan.ordering, protocol::Ordering::kConcurrent);
    EXPECT_EQ(plan.concurrent, 3U);
    ASSERT_EQ(plan.tensors.size(), 4U);
    EXPECT_EQ(plan.tensors[0].group, plan.tensors[1].group);
    EXPECT_EQ(plan.tensors[2].group, plan.tensors[3].group);
    EXPECT_NE(plan.tensors[0].group, plan.tensors[2].group);
  }
}

// Each group is a line of the log on every host.
TEST(Registration, a_user_who_registers_without_end_does_not_flood_the_log) {
  const auto began = std::chrono::steady_clock::now();
  std::ostringstream text;
  const auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text);
  spdlog::default_logger()->sinks().push_back(sink);
  {
    Cluster cluster({.hosts = 1});
    cluster.start();
    cluster.join_all();
    for (std::uint32_t g = 1; g <= 3 * LogShare::kBurst; ++g) {
      cluster.control(0).register_group(ports::SessionId(0), g, fmt::format("g{}", g),
                                        {tensor(fmt::format("t{}", g), 8)});
      ASSERT_TRUE(cluster.sessions(0).wait_registered(0, g)->ok());
    }
  }
  spdlog::default_logger()->sinks().pop_back();
  const std::string log = text.str();
  const auto lines = std::ranges::count(log, '\n');
  const auto passed = std::chrono::steady_clock::now() - began;
  EXPECT_GE(lines, LogShare::kBurst);
  EXPECT_LE(lines, LogShare::kBurst + passed / std::chrono::nanoseconds(LogShare::kEach.value) + 1);
}

// Who is late, by the status of a host, once anybody is.
nlohmann::json wait_late(Cluster& cluster, std::size_t host) {
  nlohmann::json late;
  for (std::uint32_t request = 1; late.empty() && request < 100; ++request) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    cluster.control(host).status(ports::SessionId(0), 0, request);
    late = (*cluster.sessions(host).wait_status(0, request))["jobs"][0]["late"];
  }
  return late;
}

TEST(Registration, a_rank_that_does_not_come_is_reported_everywhere_and_then_fails_the_job) {
  Cluster cluster({.hosts = 2, .stall_warning = milliseconds(200), .stall_error = seconds(3)});
  cluster.start();
  cluster.join_all(2);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    cluster.control(rank / 2).register_group(ports::SessionId(rank), 1, "g", {tensor("a", 8)});
  }
  for (std::size_t host = 0; host < 2; ++host) {
    const nlohmann::json late = wait_late(cluster, host);
    ASSERT_EQ(late.size(), 1u) << late;
    EXPECT_EQ(late[0]["rank"], 3);
    EXPECT_EQ(late[0]["host"], "h1");
    EXPECT_EQ(late[0]["what"], "group 'g'");
    EXPECT_GE(late[0]["seconds"], 0.2);
  }
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const auto cause = cluster.sessions(rank / 2).wait_failed(rank);
    ASSERT_TRUE(cause.has_value());
    EXPECT_EQ(cause->code(), Code::kTimedOut);
    EXPECT_EQ(cause->what().substr(0, 43), "rank 3 on host h1 has not registered after ");
    EXPECT_EQ(cause->where(), "group 'g' of job 'j'");
    if (rank < 3) {
      const auto answer = cluster.sessions(rank / 2).wait_registered(rank, 1);
      ASSERT_TRUE(answer && !answer->ok());
      EXPECT_EQ(answer->status(), *cause);
    }
  }
}

// Both sentences are made for ranks of one host and of several.
TEST(Registration, every_missing_rank_is_named_with_its_own_host) {
  Cluster cluster({.hosts = 3, .stall_warning = milliseconds(200), .stall_error = seconds(1)});
  cluster.start();
  cluster.join_all(1);
  cluster.control(0).register_group(ports::SessionId(0), 1, "g", {tensor("a", 8)});
  const auto cause = cluster.sessions(0).wait_failed(0);
  ASSERT_TRUE(cause.has_value());
  EXPECT_THAT(cause->what(), ::testing::StartsWith("rank 1 on host h1, rank 2 on host h2 have not registered after "));
}

// By the leader's rank or a follower's; of what nobody registers it says nothing.
TEST(Registration, a_program_that_waits_no_longer_names_the_ranks_that_are_missing) {
  for (const std::uint32_t impatient : {0u, 2u}) {
    Cluster cluster({.hosts = 2, .stall_warning = milliseconds(200)});
    cluster.start();
    cluster.join_all(2);
    cluster.control(impatient / 2).overdue(ports::SessionId(impatient), 1);
    for (std::uint32_t rank = 0; rank < 3; ++rank)
      cluster.control(rank / 2).register_group(ports::SessionId(rank), 1, "g", {tensor("a", 8)});
    ASSERT_EQ(wait_late(cluster, 0).size(), 1u);  // the leader has heard of all others
    cluster.control(impatient / 2).overdue(ports::SessionId(impatient), 1);
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      const auto cause = cluster.sessions(rank / 2).wait_failed(rank);
      ASSERT_TRUE(cause.has_value());
      EXPECT_EQ(cause->code(), Code::kTimedOut);
      EXPECT_EQ(cause->what().substr(0, 43), "rank 3 on host h1 has not registered after ");
      EXPECT_EQ(cause->fix(), "find out what is done there instead, or raise TENSORLANE_TIMEOUT of rank " +
                                  std::to_string(impatient) + ", which waits no longer");
    }
  }
}

TEST(Registration, a_rank_that_has_left_is_the_cause_when_others_need_it) {
  for (const bool leaves_first : {true, false}) {
    Cluster cluster({.hosts = 2});
    cluster.start();
    cluster.join_all();
    if (leaves_first) cluster.control(1).leave(ports::SessionId(1), {});
    cluster.control(0).register_group(ports::SessionId(0), 1, "g", {tensor("a", 8)});
    if (!leaves_first) cluster.control(1).leave(ports::SessionId(1), {});
    const auto cause = cluster.sessions(0).wait_failed(0);
    ASSERT_TRUE(cause.has_value());
    EXPECT_EQ(cause->to_string(),
              "rank 1 on host h1 has left the job: group 'g' of job 'j': let every rank register before any leaves");
    EXPECT_FALSE(cluster.sessions(1).wait_failed(1, 0)) << "who has left is told nothing any more";
  }
}

// ---- unregistering ----

// Every rank but those of `without` asks; request 5.
void unregister(Cluster& cluster, std::uint32_t per_host, std::uint32_t world, std::uint32_t without = ~0u,
                Duration patience = {}) {
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    if (rank == without) continue;
    cluster.control(rank / per_host).unregister_group(ports::SessionId(rank), 5, "g", 7, patience);
  }
}

void register_all(Cluster& cluster, std::uint32_t per_host, std::uint32_t world, const std::string& group,
                  const std::vector<TensorBody>& tensors, std::uint32_t request, std::uint32_t first_id) {
  for (std::uint32_t rank = 0; rank < world; ++rank)
    cluster.control(rank / per_host).register_group(ports::SessionId(rank), request, group, tensors);
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const auto answer = cluster.sessions(rank / per_host).wait_registered(rank, request);
    ASSERT_TRUE(answer && answer->ok()) << "rank " << rank;
    EXPECT_EQ((*answer)->front().value, first_id);
  }
}

TEST(Unregistering, frees_names_and_places_on_all_hosts) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.join_all(2);
  register_all(cluster, 2, 4, "g", {tensor("a", 10), tensor("b", 20), tensor("c", 30)}, 1, 0);
  register_all(cluster, 2, 4, "stays", {tensor("d", 10)}, 2, 3);
  unregister(cluster, 2, 4);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const auto answer = cluster.sessions(rank / 2).wait_unregistered(rank, 5);
    ASSERT_TRUE(answer && answer->ok()) << "rank " << rank;
    EXPECT_EQ(**answer, 3u);
  }
  // The places are given out again, and where there is no room for all of a group, behind what is there.
  register_all(cluster, 2, 4, "g", {tensor("c", 7), tensor("e", 8)}, 3, 0);
  register_all(cluster, 2, 4, "large", {tensor("a", 7), tensor("b", 8)}, 4, 4);
  for (std::size_t host = 0; host < 2; ++host) {
    const auto record = cluster.lane(host).record("j");
    std::vector<std::string> names;
    for (const auto& planned : record.plan.tensors) names.push_back(planned.vacant ? "-" : planned.name);
    EXPECT_THAT(names, ::testing::ElementsAre("c", "e", "-", "d", "a", "b"));
    EXPECT_EQ(record.bindings.size(), 10u);
  }
  const nlohmann::json plan = [&] {
    cluster.control(0).status(ports::SessionId(0), 0, 9);
    return cluster.sessions(0).wait_status(0, 9)->at("jobs").at(0).at("plan");
  }();
  EXPECT_EQ(plan.at("tensors"), 5);
}

TEST(Unregistering, a_rank_that_does_not_is_named_and_nothing_is_lost) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.join_all(1);
  register_all(cluster, 1, 2, "g", {tensor("a", 10)}, 1, 0);
  unregister(cluster, 1, 2, 1, seconds(1));
  const auto answer = cluster.sessions(0).wait_unregistered(0, 5);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status().code(), Code::kTimedOut);
  EXPECT_THAT(answer->status().to_string(),
              ::testing::MatchesRegex("rank 1 on host h1 has not unregistered after .* s: group 'g' of job 'j': .*"));
  EXPECT_EQ(cluster.lane(0).record("j").bindings.size(), 1u);
  // Later both do.
  cluster.control(0).unregister_group(ports::SessionId(0), 6, "g", 7, {});
  cluster.control(1).unregister_group(ports::SessionId(1), 6, "g", 7, {});
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const auto later = cluster.sessions(rank).wait_unregistered(rank, 6);
    ASSERT_TRUE(later && later->ok()) << "rank " << rank;
  }
}

TEST(Unregistering, every_missing_rank_is_named_with_its_own_host) {
  Cluster cluster({.hosts = 3});
  cluster.start();
  cluster.join_all(1);
  register_all(cluster, 1, 3, "g", {tensor("a", 10)}, 1, 0);
  cluster.control(0).unregister_group(ports::SessionId(0), 5, "g", 7, seconds(1));
  const auto answer = cluster.sessions(0).wait_unregistered(0, 5);
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(answer->status().what(),
              ::testing::StartsWith("rank 1 on host h1, rank 2 on host h2 have not unregistered after "));
}

// The lane speaks of what it had a moment ago, in which nobody is late any more.
// Each report goes to every host, and a user may have thousands of groups that wait for one rank.
TEST(Unregistering, many_groups_that_wait_for_a_rank_are_not_all_reported) {
  Cluster cluster({.hosts = 2, .stall_warning = seconds(1), .stall_error = seconds(300)});
  cluster.start();
  cluster.join_all(1);
  constexpr std::uint32_t kGroups = 60;
  for (std::uint32_t i = 0; i < kGroups; ++i)
    register_all(cluster, 1, 2, fmt::format("g{}", i), {tensor(fmt::format("t{}", i), 10)}, i, i);
  for (std::uint32_t i = 0; i < kGroups; ++i)
    cluster.control(0).unregister_group(ports::SessionId(0), 100 + i, fmt::format("g{}", i), 7, {});
  ASSERT_TRUE(eventually([&] { return cluster.control(0).counts().late_reports > 0; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LE(cluster.control(0).counts().late_reports, 2 * 16u);
  for (std::uint32_t i = 0; i < kGroups; ++i)
    cluster.control(1).unregister_group(ports::SessionId(1), 100 + i, fmt::format("g{}", i), 7, {});
  for (std::uint32_t i = 0; i < kGroups; ++i) {
    const auto answer = cluster.sessions(0).wait_unregistered(0, 100 + i);
    ASSERT_TRUE(answer && answer->ok()) << i;
  }
}

TEST(Unregistering, what_is_said_late_of_tensors_that_are_gone_ends_nothing) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.join_all(1);
  register_all(cluster, 1, 2, "g", {tensor("a", 10)}, 1, 0);
  register_all(cluster, 1, 2, "stays", {tensor("b", 10)}, 2, 1);
  unregister(cluster, 1, 2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(cluster.sessions(rank).wait_unregistered(rank, 5)->ok());
  const JobId job = job_id("j");
  cluster.control(0).on_late(job, Rank(0), TensorId(0), seconds(100000));
  cluster.control(0).on_missing(job, HostIndex(1), TensorId(0), Sequence(5), seconds(3));
  cluster.control(0).on_missing(job, HostIndex(1), TensorId(1), Sequence(5), seconds(3));
  EXPECT_TRUE(eventually([&] { return !cluster.lane(1).record("j").awaited.empty(); }));
  EXPECT_EQ(cluster.lane(1).record("j").awaited, (std::vector<Lane::Awaited>{{TensorId(1), Sequence(5), seconds(3)}}));
  EXPECT_FALSE(cluster.sessions(0).wait_failed(0, 0.1));
}

// A program that does not wait as long as the lanes take goes on waiting with its next call.
TEST(Unregistering, a_rank_may_ask_again_while_the_group_is_on_its_way_out) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.join_all(1);
  register_all(cluster, 1, 2, "g", {tensor("a", 10)}, 1, 0);
  cluster.lane(1).hold_vacate();
  unregister(cluster, 1, 2);
  EXPECT_TRUE(eventually([&] { return cluster.lane(0).record("j").bindings.empty(); }));
  cluster.control(0).unregister_group(ports::SessionId(0), 6, "g", 7, {});
  const auto first = cluster.sessions(0).wait_unregistered(0, 5);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->status().code(), Code::kAlreadyExists);
  EXPECT_FALSE(cluster.sessions(0).wait_unregistered(0, 6, 0.1).has_value()) << "a lane has it still";
  cluster.lane(1).vacate_now();
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const auto answer = cluster.sessions(rank).wait_unregistered(rank, rank == 0 ? 6 : 5);
    ASSERT_TRUE(answer && answer->ok()) << "rank " << rank;
  }
  register_all(cluster, 1, 2, "g", {tensor("a", 10)}, 7, 0);
}

TEST(Unregistering, what_comes_and_goes_a_thousand_times_takes_no_more_places) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.join_all(1);
  register_all(cluster, 1, 2, "stays", {tensor("s", 10)}, 1, 0);
  const auto status_bytes = [&](std::uint32_t request) {
    cluster.control(0).status(ports::SessionId(0), 0, request);
    return cluster.sessions(0).wait_status(0, request)->dump().size();
  };
  std::size_t before = 0;
  for (std::uint32_t turn = 0; turn < 1000; ++turn) {
    const std::uint32_t request = 10 + turn * 3;
    std::vector<TensorBody> tensors;
    for (std::uint32_t i = 0; i <= turn % 3; ++i) tensors.push_back(tensor(fmt::format("x{}", i), 1 + turn));
    register_all(cluster, 1, 2, "g", tensors, request, 1);
    for (std::uint32_t rank = 0; rank < 2; ++rank)
      cluster.control(rank).unregister_group(ports::SessionId(rank), request + 1, "g", 0, {});
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      const auto answer = cluster.sessions(rank).wait_unregistered(rank, request + 1);
      ASSERT_TRUE(answer && answer->ok()) << turn;
    }
    if (turn == 100) before = status_bytes(request + 2);
  }
  EXPECT_LE(status_bytes(9), before + 200) << "of longer numbers";
  for (std::size_t host = 0; host < 2; ++host) {
    EXPECT_LE(cluster.lane(host).record("j").plan.tensors.size(), 4u);
    EXPECT_EQ(cluster.lane(host).record("j").bindings.size(), 1u);
  }
}

TEST(Unregistering, unlike_ranks_and_unknown_groups_are_errors) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.join_all(1);
  register_all(cluster, 1, 2, "g", {tensor("a", 10)}, 1, 0);
  cluster.control(0).unregister_group(ports::SessionId(0), 5, "g", 7, {});
  cluster.control(1).unregister_group(ports::SessionId(1), 5, "g", 8, {});
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const auto answer = cluster.sessions(rank).wait_unregistered(rank, 5);
    ASSERT_TRUE(answer && !answer->ok()) << "rank " << rank;
    EXPECT_EQ(answer->status().code(), Code::kMismatch);
    EXPECT_EQ(answer->status().what(), "rank 0 has completed 7 operations on its tensors, rank 1 8");
  }
  cluster.control(1).unregister_group(ports::SessionId(1), 6, "other", 0, {});
  const auto unknown = cluster.sessions(1).wait_unregistered(1, 6);
  ASSERT_TRUE(unknown.has_value());
  EXPECT_EQ(unknown->status().code(), Code::kNotFound);
}

TEST(Unregistering, a_rank_that_has_left_or_died_is_named) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.join_all(1);
  register_all(cluster, 1, 2, "g", {tensor("a", 10)}, 1, 0);
  unregister(cluster, 1, 2, 1);
  cluster.control(1).leave(ports::SessionId(1), {});
  const auto left = cluster.sessions(0).wait_unregistered(0, 5);
  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(left->status().what(), "rank 1 on host h1 has left the job and did not unregister it");

  cluster.join_all(1, "k", 10);
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    cluster.control(rank).register_group(ports::SessionId(10 + rank), 1, "g", {tensor("a", 10)});
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    ASSERT_TRUE(cluster.sessions(rank).wait_registered(10 + rank, 1)->ok());
  cluster.control(0).unregister_group(ports::SessionId(10), 2, "g", 0, {});
  cluster.control(1).leave(ports::SessionId(11), Status(Code::kUnavailable, "rank 1 was killed"));
  const auto died = cluster.sessions(0).wait_unregistered(10, 2);
  ASSERT_TRUE(died.has_value());
  EXPECT_EQ(died->status().what(), "rank 1 was killed");
}

}  // namespace
}  // namespace tensorlane::control::testing
