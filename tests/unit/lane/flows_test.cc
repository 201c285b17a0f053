// Which flows a host opens, when, and what waits for them.
#include "played_network.h"

namespace tensorlane::lane {
namespace {

using protocol::Pattern;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::size_t kFlows = 3;  // to a host: two classes and control

class FlowsTest : public PlayedNetwork {
 protected:
  static protocol::PlanTensor allreduce(Pattern pattern) {
    protocol::PlanTensor t = tensor(Operation::kAllreduce, 100'000, 1000);
    t.pattern = pattern;
    return t;
  }
  // The plan of job 1 goes on with this tensor. Ready once it is in force.
  std::future<void> grow(const protocol::PlanTensor& tensor) {
    const auto done = std::make_shared<std::promise<void>>();
    protocol::Plan plan = plans_.at(kJob);
    protocol::PlanTensor t = tensor;
    t.id = TensorId(static_cast<std::uint32_t>(plan.tensors.size() + 1));
    t.name = "more";
    plan.version = 2;
    plan.tensors.push_back(t);
    EXPECT_TRUE(lane_->apply_plan(kJob, plan, [done] { done->set_value(); }).ok());
    return done->get_future();
  }
  static protocol::Plan plan_of(std::uint16_t hosts) {
    protocol::Plan plan;
    plan.version = 1;
    for (std::uint16_t h = 0; h < hosts; ++h) plan.rank_hosts.push_back(HostIndex(h));
    plan.tensors.push_back(allreduce(Pattern::kParameterServer));
    plan.tensors.back().id = TensorId(0);
    plan.tensors.back().name = "first";
    return plan;
  }
  // Job 1, in which this is host `self`, with a rank on each host and one tensor. Ready once the plan is in force.
  std::future<void> begin(HostIndex self, std::uint16_t hosts, bool with_plan = true) {
    ports::JobSpec spec;
    spec.name = "job";
    spec.owner = {0, spec.name};
    spec.credentials = {kJob, kEpoch, self, {}};
    spec.world_size = hosts;
    spec.detection = detection_;
    for (std::uint16_t h = 0; h < hosts; ++h)
      spec.hosts.push_back({fmt::format("h{}", h), {"127.0.0.1"}, 1, {Rank(h)}});
    EXPECT_TRUE(lane_->start_job(spec).ok());
    wait([&] { return listener_.connected == 1; });
    const auto done = std::make_shared<std::promise<void>>();
    if (with_plan) {
      EXPECT_TRUE(lane_->apply_plan(kJob, plan_of(hosts), [done] { done->set_value(); }).ok());
    }
    return done->get_future();
  }
  std::vector<std::uint16_t> peers_dialed() {
    std::vector<std::uint16_t> peers;
    for (const ports::FlowKey& flow : transport_->dialed()) peers.push_back(flow.peer.value);
    return peers;
  }
  static constexpr JobId kJob{1};
  Duration detection_ = seconds(10);
};

// A ring has two neighbours, and this host dials both, since it has the lowest number.
TEST_F(FlowsTest, OpenToTheHostsThatThePlanNeeds) {
  start(windows(mib(1)));
  add_job(kJob, 8, 1, {allreduce(Pattern::kRing)});
  EXPECT_THAT(peers_dialed(), ElementsAre(1, 1, 1, 7, 7, 7));
  EXPECT_EQ(metrics_.flows.all().size(), 2 * kFlows);
  EXPECT_EQ(descriptors_.in_use(), 2 * kFlows);
  transport_->hold_back();
  auto in_force = grow(allreduce(Pattern::kParameterServer));
  wait([&] { return peers_dialed().size() == 7 * kFlows; });
  EXPECT_EQ(descriptors_.in_use(), 7 * kFlows);
  // Until the last of them is up.
  const std::vector<ports::FlowKey> dialed = transport_->dialed();
  for (std::size_t i = 2 * kFlows; i + 1 < dialed.size(); ++i) transport_->let_rise(dialed[i]);
  EXPECT_EQ(in_force.wait_for(100ms), std::future_status::timeout);
  transport_->let_rise(dialed.back());
  in_force.wait();
}

// Slots are lent to a peer, and said to it, once all of its flows are up.
TEST_F(FlowsTest, ComeWithCredit) {
  start(windows(mib(1)));
  transport_->note_credit();
  add_job(kJob, 4, 1, {allreduce(Pattern::kParameterServer)});
  wait([&] { return transport_->left().size() == 3; });
  for (const Left& left : transport_->left()) {
    EXPECT_EQ(left.header.type, FrameType::kCredit);
    EXPECT_EQ(left.header.aux, 16u);
    EXPECT_EQ(left.header.offset, 0xffffu);
  }
}

// Nothing is pending on the job, and all the same whoever registers must not wait for ever.
TEST_F(FlowsTest, ThatCannotBeMadeFailTheJobWithTheirCause) {
  start(windows(mib(1)));
  add_job(kJob, 4, 1, {allreduce(Pattern::kRing)});
  transport_->hold_back();
  listener_.expected = true;
  auto in_force = grow(allreduce(Pattern::kParameterServer));
  wait([&] { return peers_dialed().size() == 3 * kFlows; });
  transport_->fall(transport_->dialed().back(), {Code::kTimedOut, "nobody answers", "10.0.0.3:1", "open the port"});
  EXPECT_EQ(listener_.failed.get_future().get().what(),
            "no connection of host h0 to host h2 for classes 0, 1 and control: nobody answers");
  EXPECT_EQ(in_force.wait_for(0s), std::future_status::timeout);
}

TEST_F(FlowsTest, AreChargedToTheirUserAndRefusedByNameBeyondThat) {
  descriptors_.change({.what = "descriptors", .key = "LimitNOFILE", .total = 10});
  start(windows(mib(1)));
  add_job(kJob, 8, 1, {allreduce(Pattern::kRing)}, 3001);
  EXPECT_EQ(descriptors_.in_use_by(3001), 2 * kFlows);
  listener_.expected = true;
  auto in_force = grow(allreduce(Pattern::kParameterServer));
  const Status cause = listener_.failed.get_future().get();
  EXPECT_EQ(cause.code(), Code::kResourceExhausted);
  EXPECT_THAT(cause.to_string(), ::testing::AllOf(HasSubstr("descriptors"), HasSubstr("LimitNOFILE"), HasSubstr("h0")));
  ASSERT_TRUE(lane_->abort_job(kJob, cause).ok());
}

// A flow that was up goes while others of the same host are still being made: nobody makes it again.
TEST_F(FlowsTest, ThatGoBeforeTheirHostHasAllFailTheJobThoughNothingIsPending) {
  start(windows(mib(1)));
  transport_->hold_back();
  listener_.expected = true;
  begin(HostIndex(0), 2);
  wait([&] { return peers_dialed().size() == kFlows; });
  transport_->let_rise(transport_->dialed().front());
  wait([&] { return metrics_.flows.all().size() == 1; });
  transport_->fall(transport_->dialed().front(), {Code::kUnavailable, "connection reset", "10.0.0.2:1", "look there"});
  EXPECT_EQ(listener_.failed.get_future().get().what(),
            "no connection of host h0 to host h1 for classes 0, 1 and control: connection reset");
}

// Those who look at the host ask the kernel for a flow by its ends.
TEST_F(FlowsTest, ThatAreResumedAreShownOverTheirNewConnection) {
  start(windows(mib(1)));
  auto in_force = begin(HostIndex(0), 2);
  wait([&] { return metrics_.flows.all().size() == kFlows; });
  const ports::FlowKey flow{kJob, HostIndex(1), kUrgent};
  transport_->resume(flow, "10.0.0.1:9 -> 10.0.0.2:1");
  wait([&] {
    const auto flows = metrics_.flows.all();
    return std::ranges::count(flows, "10.0.0.1:9 -> 10.0.0.2:1", &ports::FlowReport::path) == 1;
  });
  const auto flows = metrics_.flows.all();
  EXPECT_EQ(flows.size(), kFlows);
  const auto resumed = std::ranges::find(flows, "10.0.0.1:9 -> 10.0.0.2:1", &ports::FlowReport::path);
  ASSERT_NE(resumed, flows.end());
  EXPECT_EQ(resumed->cls, kUrgent);
}

TEST_F(FlowsTest, ThatCannotBeMadeAreNamedByTheirClasses) {
  start(windows(mib(1)));
  transport_->hold_back();
  listener_.expected = true;
  begin(HostIndex(0), 2);
  wait([&] { return peers_dialed().size() == kFlows; });
  const std::vector<ports::FlowKey> dialed = transport_->dialed();
  for (const ports::FlowKey& flow : dialed) {
    if (flow.cls != ClassId(1)) transport_->let_rise(flow);
  }
  wait([&] { return metrics_.flows.all().size() == 2; });
  const auto bulk = std::ranges::find(dialed, ClassId(1), &ports::FlowKey::cls);
  transport_->fall(*bulk, {Code::kTimedOut, "nobody answers", "10.0.0.2:1", "open the port"});
  EXPECT_EQ(listener_.failed.get_future().get().what(),
            "no connection of host h0 to host h1 for class 1: nobody answers");
}

// The end that is dialed waits for the other one, which may come again; and not for ever.
TEST_F(FlowsTest, ThatAreAwaitedMayComeAgain) {
  start(windows(mib(1)));
  auto in_force = begin(HostIndex(1), 2);
  EXPECT_TRUE(transport_->dialed().empty());
  const auto flow = [](ClassId cls) { return ports::FlowKey{kJob, HostIndex(0), cls}; };
  transport_->let_rise(flow(kUrgent));
  transport_->let_rise(flow(kBulk));
  wait([&] { return metrics_.flows.all().size() == 2; });
  transport_->fall(flow(kUrgent), {Code::kUnavailable, "replaced by a new one", "", ""});
  wait([&] { return metrics_.flows.all().size() == 1; });
  transport_->let_rise(flow(kControlClass));
  EXPECT_EQ(in_force.wait_for(50ms), std::future_status::timeout);
  transport_->let_rise(flow(kUrgent));
  in_force.wait();
}

TEST_F(FlowsTest, ThatDoNotComeAreAnErrorThatNamesTheHost) {
  start(windows(mib(1)));
  listener_.expected = true;
  detection_ = milliseconds(100);
  begin(HostIndex(1), 2);
  EXPECT_EQ(listener_.failed.get_future().get().what(),
            "host h0 has not opened its flows to host h1 on rail 0 within 0.4 s");
}

// A peer may have its plan first.
TEST_F(FlowsTest, MayComeBeforeThePlanDoes) {
  start(windows(mib(1)));
  begin(HostIndex(1), 2, false);
  for (const ClassId cls : {kUrgent, kBulk, kControlClass}) transport_->let_rise({kJob, HostIndex(0), cls});
  wait([&] { return metrics_.flows.all().size() == kFlows; });
  put_in_force(kJob, plan_of(2));
}

// A job may end while they are opened, a few at a time.
TEST_F(FlowsTest, AreNotOpenedAnyMoreOnceTheJobCloses) {
  LaneConfig config = windows(mib(1));
  config.staging = mib(64);
  start(config);
  transport_->hold_back();
  transport_->when_dialed = [this] { EXPECT_TRUE(lane_->abort_job(kJob, {Code::kAborted, "enough", "", ""}).ok()); };
  begin(HostIndex(0), 200);
  wait([&] { return !transport_->dialed().empty(); });
  std::this_thread::sleep_for(50ms);
  EXPECT_LT(transport_->dialed().size(), 199 * kFlows);
}

// In several steps of a command (law 20).
TEST_F(FlowsTest, OpenToManyHosts) {
  LaneConfig config = windows(mib(1));
  config.staging = mib(64);  // a slice has 200 contributions
  start(config);
  begin(HostIndex(0), 200).wait();
  EXPECT_EQ(peers_dialed().size(), 199 * kFlows);
  EXPECT_EQ(metrics_.flows.all().size(), 199 * kFlows);
}

}  // namespace
}  // namespace tensorlane::lane
