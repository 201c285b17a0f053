// Classes that change while a job runs.
#include <chrono>
#include <thread>

#include "lane_fixture.h"

namespace tensorlane::lane {
namespace {

constexpr std::uint64_t kLarge = 20'000;

protocol::PlanTensor with_urgency(std::uint64_t elements, float urgency, ClassId cls) {
  protocol::PlanTensor tensor = allreduce(elements);
  tensor.urgency = urgency;
  tensor.cls = cls;
  return tensor;
}

class Tuning : public LaneTest {
 protected:
  void start_tuned() { start(2, 1, {with_urgency(100, 1, ClassId(0)), with_urgency(kLarge, 0.25F, ClassId(1))}); }
  void iterate(std::uint64_t sequence) {
    each_client([&](FakeClient& client, std::uint32_t rank) {
      for (std::uint64_t i = 0; i < kLarge + 100; ++i) client.data<float>(0)[i] = static_cast<float>(rank + sequence);
      client.submit(1, sequence);
      client.submit(0, sequence);
    });
    each_client([&](FakeClient& client, std::uint32_t) {
      ASSERT_EQ(client.wait(0, sequence), Code::kOk);
      ASSERT_EQ(client.wait(1, sequence), Code::kOk);
      EXPECT_EQ(client.data<float>(0)[0], static_cast<float>(2 * sequence + 1));
      EXPECT_EQ(client.data<float>(0)[kLarge + 99], static_cast<float>(2 * sequence + 1));
    });
  }
  void use(const std::vector<double>& thresholds) {
    for (auto& host : hosts_) ASSERT_TRUE(host->lane->use_thresholds(kJob, thresholds).ok());
    barrier();
  }
  // What host 0 has sent in each class since the last call.
  std::pair<std::uint64_t, std::uint64_t> sent() {
    const std::uint64_t urgent = hosts_[0]->metrics().classes[0].bytes_sent.value();
    const std::uint64_t bulk = hosts_[0]->metrics().classes[1].bytes_sent.value();
    const std::pair since(urgent - urgent_, bulk - bulk_);
    urgent_ = urgent, bulk_ = bulk;
    return since;
  }
  std::uint64_t urgent_ = 0, bulk_ = 0;
};

TEST_F(Tuning, ThresholdsMoveTensorsBetweenClasses) {
  tunes_ = true;
  start_tuned();
  iterate(1);
  const auto [urgent, bulk] = sent();
  EXPECT_GT(urgent, 0u);
  EXPECT_GT(bulk, urgent);
  use({});  // one class: the lowest
  iterate(2);
  EXPECT_EQ(sent(), std::pair(std::uint64_t{0}, bulk + urgent));
  use({0.2});  // all of it is urgent
  iterate(3);
  EXPECT_EQ(sent(), std::pair(bulk + urgent, std::uint64_t{0}));
  use({0.5});
  iterate(4);
  EXPECT_EQ(sent(), std::pair(urgent, bulk));
  use({0.6, 0.5});  // more classes than there are: not for this lane
  iterate(5);
  EXPECT_EQ(sent(), std::pair(urgent, bulk));
}

TEST_F(Tuning, HostsNeedNotChangeTogether) {
  tunes_ = true;
  start_tuned();
  for (std::uint64_t sequence = 1; sequence <= 40; ++sequence) {
    const std::vector<double> thresholds = sequence % 3 == 0 ? std::vector<double>{} : std::vector<double>{0.5};
    ASSERT_TRUE(hosts_[sequence % 2]->lane->use_thresholds(kJob, thresholds).ok());
    iterate(sequence);
  }
}

TEST_F(Tuning, ATensorThatIsRegisteredLaterGetsTheThresholdsInUse) {
  tunes_ = true;
  start_tuned();
  use({});
  grow_plan();  // planned as the first one is: urgent
  barrier();
  iterate(1);
  EXPECT_EQ(sent().first, 0u);
}

TEST_F(Tuning, IterationsAreCountedByTheLargestTensor) {
  tunes_ = true;
  start_tuned();
  for (std::uint64_t sequence = 1; sequence <= 4; ++sequence) iterate(sequence);
  EXPECT_EQ(hosts_[0]->listener.wait_iterations(3), 3u);
}

class TunedBy : public Tuning, public ::testing::WithParamInterface<Operation> {};

// Nothing in the plan is an allreduce. What a pull moves is as large, but comes as often as its program likes.
TEST_P(TunedBy, IterationsAreCountedByTheLargestTensorThatSums) {
  tunes_ = true;
  protocol::PlanTensor sums = with_urgency(kLarge, 0.25F, ClassId(1)), pull = with_urgency(kLarge, 1, ClassId(0));
  sums.operation = GetParam();
  pull.operation = Operation::kPull;
  start(2, 1, {pull, sums});
  std::uint64_t pulls = 0;
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    each_client([&](FakeClient& client, std::uint32_t) { client.submit(1, sequence); });
    each_client([&](FakeClient& client, std::uint32_t) { ASSERT_EQ(client.wait(1, sequence), Code::kOk); });
    for (int i = 0; i < 2; ++i) {
      ++pulls;
      each_client([&](FakeClient& client, std::uint32_t) { client.submit(0, pulls); });
      each_client([&](FakeClient& client, std::uint32_t) { ASSERT_EQ(client.wait(0, pulls), Code::kOk); });
    }
  }
  EXPECT_EQ(hosts_[0]->listener.wait_iterations(2), 2u);
}

INSTANTIATE_TEST_SUITE_P(All, TunedBy, ::testing::Values(Operation::kPush, Operation::kReduceScatter),
                         [](const auto& of) { return std::string(operation_name(of.param)); });

TEST_F(Tuning, IsOffUnlessAskedFor) {
  start_tuned();
  use({});
  iterate(1);
  EXPECT_GT(sent().first, 0u);
}

class Observing : public Tuning {
 protected:
  Observing() { observes_ = true; }
  // An iteration in which the ranks of these hosts say that they wait for the large tensor first.
  void iterate_waiting(std::uint64_t sequence, std::initializer_list<std::size_t> hosts) {
    iterate(sequence);
    for (const std::size_t host : hosts) {
      hosts_[host]->clients[0]->tell_of_wait(1, sequence);
      hosts_[host]->clients[0]->tell_of_wait(0, sequence);
    }
  }
  // What a rank says travels by its ring, and a lane may look there only after the calls that barrier() waits for.
  bool has_learned(std::size_t host) {
    for (int i = 0; i < 1000 && hosts_[host]->clients[0]->observed(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return !hosts_[host]->clients[0]->observed();
  }
};

TEST_F(Observing, WhatIsWaitedForFirstBecomesUrgentOnTheHostThatSawIt) {
  start_tuned();
  for (std::uint64_t sequence = 1; sequence <= 7; ++sequence) {
    EXPECT_TRUE(hosts_[0]->clients[0]->observed()) << sequence;
    iterate_waiting(sequence, {0});
  }
  EXPECT_TRUE(has_learned(0));
  EXPECT_TRUE(hosts_[1]->clients[0]->observed());
  sent();
  iterate(8);
  const auto [urgent, bulk] = sent();
  EXPECT_GT(urgent, bulk);
  EXPECT_GT(bulk, 0u);
}

TEST_F(Observing, APlanThatGrowsIsLearnedAnew) {
  start_tuned();
  for (std::uint64_t sequence = 1; sequence <= 7; ++sequence) iterate_waiting(sequence, {0, 1});
  EXPECT_TRUE(has_learned(0));
  EXPECT_TRUE(has_learned(1));
  grow_plan();
  barrier();
  EXPECT_TRUE(hosts_[0]->clients[0]->observed());
  sent();
  iterate(8);  // by the plan again
  const auto [urgent, bulk] = sent();
  EXPECT_LT(urgent, bulk);
}

// The client may not have seen yet that nobody asks.
TEST_F(Observing, ALateWordIsNoError) {
  start_tuned();
  for (std::uint64_t sequence = 1; sequence <= 9; ++sequence) iterate_waiting(sequence, {0, 1});
  iterate(10);
}

TEST_F(Tuning, NobodyIsAskedForWaitsUnlessItIsWanted) {
  start_tuned();
  iterate(1);
  EXPECT_FALSE(hosts_[0]->clients[0]->observed());
}

}  // namespace
}  // namespace tensorlane::lane
