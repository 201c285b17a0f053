// The lane's thread is shared by users, and what a user gets by its jobs: submissions and arithmetic.
#include "played_network.h"

namespace tensorlane::lane {
namespace {

using ::testing::ElementsAre;

class UsersTest : public PlayedNetwork {
 protected:
  // A job of this host alone.
  std::vector<std::shared_ptr<Client>> add_local(std::uint64_t job, std::uint32_t user, std::size_t ranks,
                                                 std::uint32_t tensors, std::uint64_t elements) {
    return add_job(JobId(job), 1, ranks, {tensors, tensor(Operation::kAllreduce, elements, 65536)}, user);
  }
};

TEST_F(UsersTest, SubmissionsAreTakenOfOneUserSoManyInATurnHoweverManyJobsItHas) {
  constexpr std::uint32_t kEach = 1000;
  start(windows(mib(1)));
  const auto first = add_local(1, 3001, 1, kEach, 16).front(), second = add_local(2, 3001, 1, kEach, 16).front();
  add_local(3, 3002, 1, 1, 16);
  while_it_stands([&] {
    std::vector<protocol::SubmissionEntry> entries;
    for (std::uint32_t t = 0; t < kEach; ++t) entries.push_back({t, 0, 1});
    first->submit(entries);
    second->submit(entries);
  });
  wait([&] { return first->completed().size() == kEach && second->completed().size() == kEach; });
  lane_->stop();
  std::map<std::uint64_t, std::size_t> together = first->taken();
  for (const auto& [turn, count] : second->taken()) together[turn] += count;
  for (const auto& [turn, count] : together) ASSERT_LE(count, 64u) << "in turn " << turn;
  // Neither waits until the other has nothing left.
  const auto [earlier, later] = std::minmax({first->taken().rbegin()->first, second->taken().rbegin()->first});
  const auto turns_of_one = kEach / 64;
  EXPECT_LE(later - earlier, turns_of_one / 2);
}

TEST_F(UsersTest, ArithmeticIsSharedByUsersAndThenByTheirJobs) {
  constexpr std::uint64_t kBlocks = 16;
  start(windows(mib(1)));
  std::vector<std::vector<std::shared_ptr<Client>>> jobs;
  for (std::uint64_t j = 1; j <= 3; ++j)
    jobs.push_back(add_local(j, j == 3 ? 3002 : 3001, 2, 1, kBlocks * kMaxOperation.value / sizeof(float)));
  while_it_stands([&] {
    for (const auto& clients : jobs) {
      for (const auto& client : clients) client->submit({{0, 0, 1}});
    }
  });
  for (const auto& clients : jobs) wait([&] { return clients[0]->completed().size() == 1; });
  lane_->stop();
  ASSERT_GE(timeline_.sums.size(), 3 * kBlocks);
  std::vector<int> blocks(3);
  for (std::size_t i = 0; i < kBlocks; ++i) ++blocks[timeline_.sums[i].job.value - 1];
  EXPECT_THAT(blocks, ElementsAre(kBlocks / 4, kBlocks / 4, kBlocks / 2)) << "while all three have some";
}

}  // namespace
}  // namespace tensorlane::lane
