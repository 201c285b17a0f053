// What a lane says of how far its jobs have come (law 21).
#include <chrono>
#include <thread>

#include "lane_fixture.h"

namespace tensorlane::lane {
namespace {

// Whether what one of two hosts has sent is what the other one has received.
bool is_settled(const ports::LaneProgress& here, const ports::LaneProgress& there) {
  const auto agree = [](const ports::FlowState& mine, const ports::FlowState& theirs) {
    return mine.progress.given == theirs.progress.received && mine.progress.received == theirs.progress.given &&
           !mine.held && !theirs.held;
  };
  const auto carried = [](const ports::PortBytes& mine, const ports::PortBytes& theirs) {
    return mine.sent == theirs.received && mine.received == theirs.sent;
  };
  const bool begun = std::ranges::any_of(
      here.flows, [](const auto& flow) { return flow.cls != kControlClass && flow.progress.given > 0; });
  return begun && std::ranges::equal(here.flows, there.flows, agree) &&
         std::ranges::equal(here.ports, there.ports, carried);
}

TEST_F(LaneTest, SaysHowFarItsFlowsHaveComeInNumbersThatBothEndsShare) {
  rails_ = 2;
  start(2, 1, {allreduce(500'000), allreduce(100)});
  each_client([](FakeClient& client, std::uint32_t) {
    client.submit(0, 1);
    client.submit(1, 1);
  });
  each_client([](FakeClient& client, std::uint32_t) {
    ASSERT_EQ(client.wait(0, 1), Code::kOk);
    ASSERT_EQ(client.wait(1, 1), Code::kOk);
  });
  // Until both have reported after the last frame, which may come after the end of the operations.
  ports::LaneProgress here, there;
  const auto last = std::chrono::steady_clock::now() + 30s;
  do {
    std::this_thread::sleep_for(50ms);
    here = hosts_[0]->listener.wait_progress(1);
    there = hosts_[1]->listener.wait_progress(1);
  } while (!is_settled(here, there) && std::chrono::steady_clock::now() < last);
  ASSERT_EQ(here.flows.size(), 6u);
  ASSERT_EQ(there.flows.size(), 6u);
  std::uint64_t data = 0;
  for (std::size_t i = 0; i < here.flows.size(); ++i) {
    const ports::FlowState& mine = here.flows[i];
    const ports::FlowState& theirs = there.flows[i];
    EXPECT_EQ(mine.peer, HostIndex(1));
    EXPECT_EQ(theirs.peer, HostIndex(0));
    EXPECT_EQ(mine.cls, theirs.cls);
    EXPECT_EQ(mine.rail, theirs.rail);
    EXPECT_EQ(mine.progress.given, theirs.progress.received);
    EXPECT_EQ(mine.progress.received, theirs.progress.given);
    EXPECT_FALSE(mine.held || theirs.held);
    if (mine.cls != kControlClass) data += mine.progress.given;
  }
  EXPECT_GT(data, 0u);
  ASSERT_EQ(here.ports.size(), 2u);
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_GT(here.ports[r].sent[0], 0u);
    EXPECT_EQ(here.ports[r].sent[0], there.ports[r].received[0]);
  }
}

TEST_F(LaneTest, KnowsTheAgeOfTheOldestOperationThatIsReady) {
  protocol::PlanTensor bulk = allreduce(100);
  bulk.cls = ClassId(1);
  start(2, 1, {allreduce(100), bulk});
  const auto age = [&](std::size_t cls) { return hosts_[0]->metrics().oldest_operation_ns[cls].value(); };
  const auto soon = [](auto condition) {
    for (int i = 0; i < 100 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return condition();
  };
  hosts_[0]->clients[0]->submit(1, 1);
  EXPECT_TRUE(soon([&] { return age(1) > 400'000'000; }));
  EXPECT_EQ(age(0), 0u);
  hosts_[1]->clients[0]->submit(1, 1);
  EXPECT_TRUE(soon([&] { return age(1) == 0; }));
}

}  // namespace
}  // namespace tensorlane::lane
