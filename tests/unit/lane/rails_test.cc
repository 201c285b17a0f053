// Jobs over several NICs: what the rails of a lane add up to.
#include <random>

#include "lane_fixture.h"

namespace tensorlane::lane {
namespace {

// Values of which the sums depend on the order, in many slices and one: every result is a function of the plan's cut,
// which rails do not change.
TEST_F(LaneTest, TheBitsOfAResultDoNotDependOnTheNumberOfRails) {
  constexpr std::uint64_t kElements = 200'000;  // ends where the next one begins
  std::vector<std::vector<float>> results;
  for (const std::size_t rails : {1u, 2u, 3u}) {
    hosts_.clear();
    plan_ = {};
    rails_ = rails;
    start(3, 1, {allreduce(kElements), allreduce(100)});
    each_client([](FakeClient& client, std::uint32_t rank) {
      std::mt19937 random(rank);
      std::lognormal_distribution<float> value(0, 4);
      for (std::uint64_t i = 0; i < kElements + 100; ++i) client.data<float>(0)[i] = value(random);
      client.submit(0, 1);
      client.submit(1, 1);
    });
    each_client([&](FakeClient& client, std::uint32_t) {
      ASSERT_EQ(client.wait(0, 1), Code::kOk);
      ASSERT_EQ(client.wait(1, 1), Code::kOk);
      results.emplace_back(client.data<float>(0), client.data<float>(0) + kElements + 100);
    });
  }
  for (const std::vector<float>& result : results)
    ASSERT_EQ(std::memcmp(result.data(), results[0].data(), result.size() * sizeof(float)), 0);
}

TEST_F(LaneTest, EveryRailCarriesItsShareOverItsOwnAddress) {
  rails_ = 2;
  start(2, 1, {allreduce(1'000'000)});
  each_client([](FakeClient& client, std::uint32_t) { client.submit(0, 1); });
  each_client([](FakeClient& client, std::uint32_t) { ASSERT_EQ(client.wait(0, 1), Code::kOk); });
  const std::vector<ports::FlowReport> flows = hosts_[0]->metrics().flows.all();
  ASSERT_EQ(flows.size(), 6u);
  for (const ports::FlowReport& flow : flows) {
    EXPECT_THAT(flow.path, ::testing::StartsWith(hosts_[0]->addresses[flow.rail.value] + ":"));
    EXPECT_THAT(flow.path, ::testing::HasSubstr(" -> " + hosts_[1]->addresses[flow.rail.value] + ":"));
  }
  for (auto& host : hosts_) {
    const std::uint64_t all = host->metrics().classes[0].bytes_sent.value();
    EXPECT_EQ(all, 4'000'000u);
    const std::uint64_t first = host->metrics().rails[0].bytes_sent[0].value();
    EXPECT_EQ(first + host->metrics().rails[1].bytes_sent[0].value(), all);
    EXPECT_NEAR(static_cast<double>(first), static_cast<double>(all) / 2, 65536);
  }
}

// Buffers go back only when no rail touches them any more, and every operation completes once.
TEST_F(LaneTest, AnAbortClosesEveryRail) {
  rails_ = 3;
  start(2, 1, {allreduce(1'000'000), allreduce(100)});
  hosts_[0]->clients[0]->submit(0, 1);
  hosts_[0]->clients[0]->submit(1, 1);
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(hosts_[0]->descriptors.in_use(), 3 * 3u);  // two classes and control on each rail
  ASSERT_TRUE(hosts_[0]->lane->abort_job(kJob, {Code::kAborted, "the test has had enough", "here", ""}).ok());
  EXPECT_EQ(hosts_[0]->clients[0]->wait_failure().what(), "the test has had enough");
  EXPECT_EQ(hosts_[0]->clients[0]->wait(0, 1), Code::kAborted);
  EXPECT_EQ(hosts_[0]->clients[0]->wait(1, 1), Code::kAborted);
  EXPECT_TRUE(hosts_[0]->listener.wait_closed());
  EXPECT_TRUE(hosts_[0]->metrics().flows.all().empty());
  EXPECT_EQ(hosts_[0]->descriptors.in_use(), 0u);
}

// As soon as control hears that it is closed: its lanes may not have forgotten the one before.
TEST_F(LaneTest, AJobThatBeginsAgainAtOnceIsConnectedEveryTime) {
  rails_ = 3;
  start(1, 1, {allreduce(100)});
  TestHost& host = *hosts_[0];
  ports::JobSpec spec;
  spec.name = "again";
  spec.hosts.push_back({"h0", host.addresses, TestHost::port(), {Rank(0)}});
  spec.hosts.push_back({"h1", host.addresses, TestHost::port(), {Rank(1)}});
  spec.world_size = 2;
  for (std::uint32_t epoch = 1; epoch <= 200; ++epoch) {
    host.listener.forget();
    spec.credentials = {JobId(78), Epoch(epoch), HostIndex(0), ports::PairKeys(2)};
    ASSERT_TRUE(host.lane->start_job(spec).ok());
    ASSERT_TRUE(host.listener.wait_connected()) << epoch;
    ASSERT_TRUE(host.lane->abort_job(JobId(78), {Code::kAborted, "enough", "", ""}).ok());
    ASSERT_TRUE(host.listener.wait_closed()) << epoch;
  }
  EXPECT_EQ(host.metrics().jobs_failed.value(), 200u);
}

// Rail i speaks to rail i: where the fabric files of two hosts list their addresses in different orders, slices would
// be added to the wrong ones.
TEST_F(LaneTest, RailsThatAreCrossedAreRefused) {
  rails_ = 2;
  crossed_ = true;
  start(2, 1, {allreduce(100)});
  EXPECT_THAT(hosts_[0]->listener.wait_failed().what(),
              ::testing::ContainsRegex("a flow of rail (0, this is rail 1|1, this is rail 0) of host 1"));
}

}  // namespace
}  // namespace tensorlane::lane
