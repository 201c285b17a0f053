// Jobs whose plan has an order, on lanes with real engines and real TCP.
#include <random>

#include "lane_fixture.h"

namespace tensorlane::lane {
namespace {

using protocol::Ordering;

constexpr int kElements = 100;

class OrderingTest : public LaneTest {
 protected:
  void start_with(Ordering ordering, std::size_t tensors, Duration late_after = seconds(10)) {
    plan_.ordering = ordering;
    plan_.concurrent = 2;
    start(2, 2, std::vector(tensors, allreduce(kElements)), late_after);
  }
  void submit_everywhere(std::uint32_t tensor, std::uint64_t sequence) {
    each_client([&](FakeClient& client, std::uint32_t) { client.submit(tensor, sequence); });
  }
  std::size_t pending(std::uint32_t tensor, std::uint64_t sequence) {
    std::size_t count = 0;
    each_client([&](FakeClient& client, std::uint32_t) { count += client.pending(tensor, sequence) ? 1 : 0; });
    return count;
  }
  void expect_complete(std::uint32_t tensor, std::uint64_t sequence) {
    each_client(
        [&](FakeClient& client, std::uint32_t) { ASSERT_EQ(client.wait(tensor, sequence), Code::kOk) << tensor; });
  }
};

class Orders : public OrderingTest, public ::testing::WithParamInterface<Ordering> {};

TEST_P(Orders, HoldWhatIsNotInItsTurn) {
  start_with(GetParam(), 3);
  submit_everywhere(2, 1);
  submit_everywhere(1, 1);
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(pending(1, 1) + pending(2, 1), 8U);
  submit_everywhere(0, 1);
  for (std::uint32_t tensor : {0U, 1U, 2U}) expect_complete(tensor, 1);
}

TEST_P(Orders, ATensorThatNobodySubmitsIsReported) {
  start_with(GetParam(), 2, milliseconds(200));
  submit_everywhere(1, 1);
  EXPECT_EQ(hosts_[0]->listener.wait_late(), std::pair(Rank(0), TensorId(0)));
  EXPECT_EQ(hosts_[1]->listener.wait_late(), std::pair(Rank(2), TensorId(0)));
}

TEST_P(Orders, RanksThatWaitHaveLeftItOut) {
  start_with(GetParam(), 2);
  submit_everywhere(1, 1);
  std::this_thread::sleep_for(20ms);
  each_client([](FakeClient& client, std::uint32_t) { client.boost(1, 1); });
  expect_complete(1, 1);
  submit_everywhere(1, 2);
  expect_complete(1, 2);
}

// Of two keys; pulls are what is needed first, and nobody blocks.
TEST_P(Orders, APullBeginsAfterItsPushAndHoldsNone) {
  plan_.ordering = GetParam();
  plan_.concurrent = 1;
  std::vector<protocol::PlanTensor> tensors(4, allreduce(kElements));
  for (std::size_t t : {0U, 2U}) tensors[t].operation = Operation::kPush;
  for (std::size_t t : {1U, 3U}) {
    tensors[t].operation = Operation::kPull;
    tensors[t].urgency = 1;
  }
  start(2, 2, tensors, seconds(10), {0, 0, 448, 448});
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    each_client([&](FakeClient& client, std::uint32_t rank) {
      client.data<float>(0)[0] = client.data<float>(448)[0] = static_cast<float>(rank + sequence);
    });
    submit_everywhere(0, sequence);
    expect_complete(0, sequence);
    for (auto& client : hosts_[0]->clients) client->submit(1, sequence);  // the other host's are yet to come
    submit_everywhere(2, sequence);
    expect_complete(2, sequence);
    each_client([&](FakeClient& client, std::uint32_t rank) {
      if (rank >= 2) client.submit(1, sequence);
      client.submit(3, sequence);
    });
    expect_complete(1, sequence);
    expect_complete(3, sequence);
    each_client([&](FakeClient& client, std::uint32_t) {
      for (std::size_t at : {0U, 448U}) ASSERT_EQ(client.data<float>(at)[0], static_cast<float>(6 + 4 * sequence));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, Orders,
                         ::testing::Values(Ordering::kFunnel, Ordering::kConcurrent, Ordering::kChained,
                                           Ordering::kCounters),
                         [](const auto& of) { return std::string(protocol::ordering_name(of.param)); });

TEST_F(OrderingTest, NegotiatedSendsNothingBeforeAllHostsHaveTheirPart) {
  start_with(Ordering::kNegotiated, 1);
  for (auto& client : hosts_[0]->clients) client->submit(0, 1);
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(hosts_[0]->metrics().classes[0].operations_sent.value(), 0U);
  for (auto& client : hosts_[1]->clients) client->submit(0, 1);
  expect_complete(0, 1);
  EXPECT_GT(hosts_[0]->metrics().classes[0].operations_sent.value(), 0U);
}

TEST_F(OrderingTest, APeerThatGoesIsAFailureForWhatIsHeld) {
  start_with(Ordering::kFunnel, 2);
  for (auto& client : hosts_[0]->clients) client->submit(1, 1);
  std::this_thread::sleep_for(50ms);
  for (std::uint32_t rank : {2U, 3U}) ASSERT_TRUE(hosts_[1]->lane->detach(kJob, Rank(rank)).ok());
  EXPECT_THAT(hosts_[0]->listener.wait_failed().what(), ::testing::HasSubstr("host h1"));
}

TEST_F(OrderingTest, NegotiatedFailsWhenAHostGoesThatHasNotOffered) {
  start_with(Ordering::kNegotiated, 1);
  for (auto& client : hosts_[1]->clients) client->submit(0, 1);
  std::this_thread::sleep_for(50ms);
  for (std::uint32_t rank : {0U, 1U}) ASSERT_TRUE(hosts_[0]->lane->detach(kJob, Rank(rank)).ok());
  EXPECT_THAT(hosts_[1]->listener.wait_failed().what(), ::testing::HasSubstr("host h0"));
}

class AllOrderings : public OrderingTest, public ::testing::WithParamInterface<std::tuple<Ordering, std::size_t>> {};

// Every rank submits an iteration's tensors in an order of its own.
TEST_P(AllOrderings, RandomOrdersComplete) {
  const auto [ordering, rails] = GetParam();
  rails_ = rails;
  constexpr std::uint32_t kTensors = 70;  // more than a word of the negotiation
  start_with(ordering, kTensors);
  std::mt19937 random(7);
  for (std::uint64_t sequence = 1; sequence <= 4; ++sequence) {
    each_client([&](FakeClient& client, std::uint32_t rank) {
      std::vector<std::uint32_t> order;
      for (std::uint32_t t = 0; t < kTensors; ++t) {
        client.data<float>(t * 448U)[0] = static_cast<float>((rank + 1) * (t + sequence));
        order.push_back(t);
      }
      std::ranges::shuffle(order, random);
      for (std::uint32_t t : order) client.submit(t, sequence);
    });
    for (std::uint32_t t = 0; t < kTensors; ++t) expect_complete(t, sequence);
    each_client([&](FakeClient& client, std::uint32_t) {
      for (std::uint32_t t = 0; t < kTensors; ++t)
        ASSERT_EQ(client.data<float>(t * 448U)[0], 10.0F * static_cast<float>(t + sequence));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, AllOrderings,
                         ::testing::Combine(::testing::Values(Ordering::kTagged, Ordering::kFunnel,
                                                              Ordering::kConcurrent, Ordering::kChained,
                                                              Ordering::kCounters, Ordering::kNegotiated),
                                            ::testing::Values(std::size_t{1}, std::size_t{2})),
                         [](const auto& of) {
                           return std::string(protocol::ordering_name(std::get<0>(of.param))) + "_" +
                                  std::to_string(std::get<1>(of.param)) + "_rails";
                         });

// Both hosts hear how far apart they are, and each of a rank of its own that is late.
TEST_F(OrderingTest, StragglerTimeIsFromTheFirstArrivalToTheLast) {
  start(2, 2, {allreduce(33333)});  // large enough for a shard on each host
  hosts_[0]->clients[0]->submit(0, 1);
  std::this_thread::sleep_for(150ms);
  hosts_[0]->clients[1]->submit(0, 1);
  std::this_thread::sleep_for(150ms);
  for (auto& client : hosts_[1]->clients) client->submit(0, 1);
  expect_complete(0, 1);
  const auto seconds_of = [&](std::size_t h) {
    return static_cast<double>(hosts_[h]->metrics().classes[0].straggler.sum_ns()) * 1e-9;
  };
  EXPECT_GE(seconds_of(0), 0.2);
  EXPECT_GE(seconds_of(1), 0.05);
  EXPECT_LT(seconds_of(1), seconds_of(0));
  // Of each operation by itself: nobody keeps anybody waiting with the next one.
  const std::array before{seconds_of(0), seconds_of(1)};
  submit_everywhere(0, 2);
  expect_complete(0, 2);
  for (std::size_t h : {0u, 1u}) EXPECT_LT(seconds_of(h) - before[h], 0.15);
}

}  // namespace
}  // namespace tensorlane::lane
