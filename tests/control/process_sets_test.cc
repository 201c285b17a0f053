// Groups of a process set: its ranks register and unregister them without the others, and every host has their plan.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "cluster.h"

namespace tensorlane::control::testing {
namespace {

using protocol::TensorBody;
using ::testing::HasSubstr;

constexpr std::uint32_t kPerHost = 2;

// Three hosts with two ranks each.
struct Hosts {
  Hosts() : cluster({.hosts = 3}) {
    cluster.start();
    cluster.join_all(kPerHost);
  }
  void ask(std::uint32_t rank, std::uint32_t request, const std::string& group, const std::vector<TensorBody>& tensors,
           const std::vector<std::uint32_t>& ranks) {
    cluster.control(rank / kPerHost).register_group(ports::SessionId(rank), request, group, tensors, ranks);
  }
  std::optional<Result<std::vector<TensorId>>> told(std::uint32_t rank, std::uint32_t request) {
    return cluster.sessions(rank / kPerHost).wait_registered(rank, request);
  }
  void expect_registered(const std::vector<std::uint32_t>& ranks, std::uint32_t request, std::uint32_t first_id) {
    for (const std::uint32_t rank : ranks) {
      const auto answer = told(rank, request);
      ASSERT_TRUE(answer && answer->ok()) << "rank " << rank;
      EXPECT_EQ((*answer)->front().value, first_id) << "rank " << rank;
    }
  }
  void unregister(const std::vector<std::uint32_t>& ranks, const std::string& group, std::uint64_t operations) {
    for (const std::uint32_t rank : ranks) {
      cluster.control(rank / kPerHost).unregister_group(ports::SessionId(rank), 9, group, operations, {});
    }
    for (const std::uint32_t rank : ranks) {
      const auto answer = cluster.sessions(rank / kPerHost).wait_unregistered(rank, 9);
      ASSERT_TRUE(answer && answer->ok()) << "rank " << rank;
    }
  }
  const protocol::PlanTensor& planned(std::size_t host, std::size_t tensor) {
    record = cluster.lane(host).record("j");
    return record.plan.tensors.at(tensor);
  }
  Cluster cluster;
  Lane::JobRecord record;
};

TEST(ProcessSet, RegistersWithoutTheOtherRanks) {
  Hosts hosts;
  TensorBody body = tensor("a", 8);
  body.operation = Operation::kBroadcast;
  body.root = 2;  // of the set: rank 5
  for (const std::uint32_t rank : {1U, 4U, 5U}) hosts.ask(rank, 1, "g", {body}, {1, 4, 5});
  hosts.expect_registered({1, 4, 5}, 1, 0);
  for (std::size_t host = 0; host < 3; ++host) {
    const protocol::PlanTensor& planned = hosts.planned(host, 0);
    ASSERT_NE(planned.world, nullptr) << "host " << host;
    EXPECT_THAT(planned.world->ranks(), ::testing::ElementsAre(1, 4, 5));
    EXPECT_EQ(planned.world->hosts(), 2);
    EXPECT_EQ(planned.root_rank, Rank(2));
    EXPECT_EQ(planned.root, HostIndex(1)) << "the second host of the set";
    const std::array<std::size_t, 3> bound = {1, 0, 2};
    EXPECT_EQ(hosts.record.bindings.size(), bound[host]) << "host " << host;
  }
  // All ranks register beside it.
  for (std::uint32_t rank = 0; rank < 6; ++rank) hosts.ask(rank, 2, "all", {tensor("b", 8)}, {});
  hosts.expect_registered({0, 1, 2, 3, 4, 5}, 2, 1);
}

TEST(ProcessSet, IsCheckedLikeAJobOfItsRanks) {
  Hosts hosts;
  TensorBody gathered = tensor("a", 9);  // by three ranks
  gathered.operation = Operation::kAllgather;
  hosts.ask(0, 1, "g", {gathered}, {0, 2});
  const auto answer = hosts.told(0, 1);
  ASSERT_TRUE(answer && !answer->ok());
  EXPECT_THAT(answer->status().to_string(), HasSubstr("which 2 ranks do not divide"));
  hosts.ask(0, 2, "g", {gathered}, {1, 2, 3});
  const auto other = hosts.told(0, 2);
  ASSERT_TRUE(other && !other->ok());
  EXPECT_THAT(other->status().to_string(), HasSubstr("rank 0 registers for a process set that it is not in"));
}

TEST(ProcessSet, RanksThatDifferOnItAreNamed) {
  Hosts hosts;
  hosts.ask(0, 1, "g", {tensor("a", 8)}, {0, 2});
  hosts.ask(2, 1, "g", {tensor("a", 8)}, {0, 2, 3});
  const auto first = hosts.told(0, 1), second = hosts.told(2, 1);
  ASSERT_TRUE(first && !first->ok() && second && !second->ok());
  EXPECT_EQ(first->status().code(), Code::kMismatch);
  EXPECT_THAT(first->status().to_string(), HasSubstr("registers it for ranks 0, 2"));
  EXPECT_THAT(first->status().to_string(), HasSubstr("for ranks 0, 2-3"));
  // On one host, too, where the others of the first set go on.
  hosts.ask(4, 2, "h", {tensor("b", 8)}, {3, 4});
  hosts.ask(5, 2, "h", {tensor("b", 8)}, {});
  const auto third = hosts.told(5, 2);
  ASSERT_TRUE(third && !third->ok());
  EXPECT_THAT(third->status().to_string(), HasSubstr("rank 4 registers it for ranks 3-4, rank 5 for all ranks"));
  hosts.ask(3, 2, "h", {tensor("b", 8)}, {3, 4});
  hosts.expect_registered({3, 4}, 2, 0);
  // The job lives on.
  for (const std::uint32_t rank : {0U, 2U}) hosts.ask(rank, 3, "g", {tensor("a", 8)}, {0, 2});
  hosts.expect_registered({0, 2}, 3, 1);
}

// The name of a group that is registered, on a host without a part in it.
TEST(ProcessSet, GroupsOfOneNameAreRefusedWhoeverHasIt) {
  Hosts hosts;
  for (int turn = 0; turn < 20; ++turn) {
    const std::string group = "g" + std::to_string(turn);
    const auto request = static_cast<std::uint32_t>(turn + 1);
    hosts.ask(2, request, group, {tensor("x" + group, 8)}, {2});
    hosts.ask(4, request, group, {tensor("y" + group, 8)}, {4});
    const auto one = hosts.told(2, request), other = hosts.told(4, request);
    ASSERT_TRUE(one && other);
    EXPECT_FALSE(one->ok() && other->ok());
    for (const auto& answer : {*one, *other}) {
      const Code code = answer.ok() ? Code::kOk : answer.status().code();
      EXPECT_THAT(code, ::testing::AnyOf(Code::kOk, Code::kMismatch, Code::kAlreadyExists))
          << answer.status().to_string();
    }
  }
  for (std::uint32_t rank = 0; rank < 6; ++rank) hosts.ask(rank, 90, "all", {tensor("b", 8)}, {});
  for (std::uint32_t rank = 0; rank < 6; ++rank) {
    const auto answer = hosts.told(rank, 90);
    ASSERT_TRUE(answer && answer->ok()) << "rank " << rank;
  }
}

TEST(ProcessSet, OnlyItsRanksUnregister) {
  Hosts hosts;
  for (const std::uint32_t rank : {1U, 4U}) hosts.ask(rank, 1, "g", {tensor("a", 8)}, {1, 4});
  hosts.expect_registered({1, 4}, 1, 0);
  hosts.cluster.control(2).unregister_group(ports::SessionId(5), 9, "g", 7, {});
  const auto answer = hosts.cluster.sessions(2).wait_unregistered(5, 9);
  ASSERT_TRUE(answer && !answer->ok());
  EXPECT_EQ(answer->status().code(), Code::kNotFound);
  hosts.unregister({1, 4}, "g", 7);
}

// Who does not come back waits for nobody, for however long: here one rank says so, and the other leaves the job.
TEST(ProcessSet, ThatARankHasLeftForGoodGoesWithItsLastRank) {
  Hosts hosts;
  for (const std::uint32_t rank : {1U, 4U}) hosts.ask(rank, 1, "g", {tensor("a", 8)}, {1, 4});
  hosts.expect_registered({1, 4}, 1, 0);
  hosts.cluster.control(0).unregister_group(ports::SessionId(1), 9, "g", 7, ports::kForGood);
  hosts.cluster.control(2).leave(ports::SessionId(4), {});
  const auto answer = hosts.cluster.sessions(0).wait_unregistered(1, 9);
  ASSERT_TRUE(answer && answer->ok());
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!hosts.planned(2, 0).vacant && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(hosts.planned(2, 0).vacant);
}

TEST(ProcessSet, LeavesThePlanAndOthersCountOnFromThere) {
  Hosts hosts;
  for (const std::uint32_t rank : {1U, 4U}) hosts.ask(rank, 1, "g", {tensor("a", 8)}, {1, 4});
  hosts.expect_registered({1, 4}, 1, 0);
  hosts.unregister({1, 4}, "g", 7);
  for (const std::uint32_t rank : {2U, 3U}) hosts.ask(rank, 2, "h", {tensor("a", 8)}, {2, 3});
  hosts.expect_registered({2, 3}, 2, 0);
  for (std::size_t host = 0; host < 3; ++host) EXPECT_EQ(hosts.planned(host, 0).base, 7U) << "host " << host;
  hosts.unregister({2, 3}, "h", 2);
  for (std::uint32_t rank = 0; rank < 6; ++rank) hosts.ask(rank, 3, "all", {tensor("a", 8)}, {});
  hosts.expect_registered({0, 1, 2, 3, 4, 5}, 3, 0);
  EXPECT_EQ(hosts.planned(2, 0).base, 9U);
  EXPECT_EQ(hosts.planned(2, 0).world, nullptr);
}

TEST(ProcessSet, GoesOnWhereARankLeavesThatIsNotInIt) {
  Hosts hosts;
  hosts.ask(1, 1, "g", {tensor("a", 8)}, {1, 4});
  hosts.cluster.control(1).leave(ports::SessionId(3), {});
  hosts.ask(4, 1, "g", {tensor("a", 8)}, {1, 4});
  hosts.expect_registered({1, 4}, 1, 0);
}

}  // namespace
}  // namespace tensorlane::control::testing
