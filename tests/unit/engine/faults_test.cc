// Peers that break the protocol, and what they may do unasked: each fault is named, and changes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "one_engine.h"

namespace tensorlane::engine::testing {
namespace {

using ::testing::IsEmpty;

class Faults : public ::testing::Test {
 protected:
  // Host 0 owns tensor 0: it has granted slice 0 and 1 to host 1 of three, whose host 2 has done its part eagerly
  // nowhere.
  void SetUp() override {
    e.ready(0);
    ASSERT_EQ(e.frame(header(FrameType::kReady, 0, 1, 0, 9), 1), "");
    ASSERT_EQ(e.frame(header(FrameType::kReady, 0, 1, 0, 9), 2), "");
    for (const Send& s : e.pick(kControlClass, 1)) grants.push_back(s.header.grant);
    ASSERT_EQ(grants.size(), 2u);
  }
  static Plan plan() {
    Plan plan;
    for (int i = 0; i < 3; ++i) add(&plan, allreduce(kServer, Dtype::kFloat32, 64, 32));
    return plan;
  }
  OneEngine e{plan(), no_credit(), 3};
  std::vector<std::uint32_t> grants;
};

TEST_F(Faults, PayloadMustBeInsideItsGrant) {
  EXPECT_EQ(e.frame(data(0, 0, grants[0], 0, 132)), "payload outside its grant");
  EXPECT_EQ(e.frame(data(0, 0, grants[0], 124, 8)), "payload outside its grant");
  EXPECT_EQ(e.frame(data(0, 0, grants[0], ~0ull, 8)), "payload outside its grant");
  EXPECT_FALSE(e->landing(HostIndex(1), data(0, 0, grants[0], 124, 8)).ok());
  EXPECT_EQ(e.frame(data(0, 0, grants[0], 0, 128)), "");
}

TEST_F(Faults, PayloadMustBeCutAt256KiB) {
  EXPECT_EQ(e.frame(data(0, 0, grants[0], 64, 64)), "payload that is not cut at 256 KiB");
  EXPECT_EQ(e.frame(data(0, 0, grants[0], 0, 64)), "payload that is not cut at 256 KiB");
  EXPECT_FALSE(e->landing(HostIndex(1), data(0, 0, grants[0], 32, 64)).ok());
}

// Longer than an operation: what comes first may be any part of it.
TEST(LongSlices, PayloadMustComeOnce) {
  Plan plan;
  add(&plan, allreduce(kServer, Dtype::kFloat32, 200'000, 100'000));  // a slice for each host
  OneEngine e(plan, no_credit());
  e.ready(0);
  ASSERT_EQ(e.frame(header(FrameType::kReady, 0, 1, 0, 9)), "");
  const std::vector<Send> sent = e.pick(kControlClass);
  ASSERT_EQ(sent.size(), 2u);  // my announcement, and the grant
  const std::uint32_t grant = sent[1].header.grant;
  EXPECT_EQ(e.frame(data(0, 0, grant, kMaxOperation.value, 400'000 - kMaxOperation.value)), "");
  EXPECT_EQ(e.frame(data(0, 0, grant, kMaxOperation.value, 400'000 - kMaxOperation.value)),
            "payload that has already arrived");
  EXPECT_EQ(e.frame(data(0, 0, grant, 0, kMaxOperation.value)), "");
  EXPECT_EQ(e.frame(data(0, 0, grant, 0, kMaxOperation.value)), "");  // complete: stale
  EXPECT_EQ(e->counters().stale_grants, 1u);
}

TEST_F(Faults, GrantsServeWhomAndWhatTheyWereGivenFor) {
  EXPECT_EQ(e.frame(data(0, 0, grants[0], 0, 64), 2), "grant of another host");
  EXPECT_EQ(e.frame(data(0, 1, grants[0], 0, 64)), "grant of another slice");
  EXPECT_EQ(e.frame(data(1, 0, grants[0], 0, 64)), "grant of another operation");
  FrameHeader h = data(0, 0, grants[0], 0, 64);
  h.sequence = Sequence(2);
  EXPECT_EQ(e.frame(h), "grant of another operation");
}

TEST_F(Faults, StaleGrantsAreDroppedAndCounted) {
  const std::uint32_t stale = grants[0] + (1u << 20);
  const auto landing = e->landing(HostIndex(1), data(0, 0, stale, 0, 64));
  ASSERT_TRUE(landing.ok());
  EXPECT_EQ(landing->length, 0u);
  EXPECT_EQ(e.frame(data(0, 0, stale, 0, 64)), "");
  EXPECT_EQ(e.frame(data(0, 0, grants[0], 0, 128)), "");
  EXPECT_EQ(e.frame(data(0, 0, grants[0], 0, 128)),
            "");  // complete, so its grant is stale: a late duplicate changes nothing
  EXPECT_EQ(e->counters().stale_grants, 2u);
}

TEST_F(Faults, FramesMustFitThePlanAndTheJob) {
  EXPECT_EQ(e.frame(header(FrameType::kReady, 3, 1)), "tensor that is not in the plan");
  EXPECT_EQ(e.frame(header(FrameType::kRts, 0, 1, 2)), "slice that the tensor does not have");
  EXPECT_EQ(e.frame(header(FrameType::kReady, 0, 1, 0, 9)), "operation announced twice");
  EXPECT_EQ(e.frame(header(FrameType::kReady, 1, 1, 0, 9)), "announcement that nobody needs");
  EXPECT_EQ(e.frame(header(FrameType::kReady, 1, 1, 0, 9), 2),
            "announcement from a host that has no part in the tensor");
  EXPECT_EQ(e.frame(header(FrameType::kReady, 0, 2, 0, 0)), "announcement with a wrong grant for results");
  EXPECT_EQ(e.frame(header(FrameType::kRts, 0, 1, 0)), "partial sum from a host that makes none");
  EXPECT_EQ(e.frame(header(FrameType::kReady, 0, 0, 0, 9)), "sequence that is neither the current nor the next one");
  EXPECT_EQ(e.frame(header(FrameType::kReady, 0, 2, 0, 9), 0), "frame from a host that is no peer");
  EXPECT_EQ(e.frame(header(FrameType::kReady, 0, 2, 0, 9), 3), "frame from a host that is no peer");
  FrameHeader h = header(FrameType::kReady, 0, 2, 0, 9);
  h.job = JobId(1);
  EXPECT_EQ(e.frame(h), "frame of another job or epoch");
  h = header(FrameType::kReady, 0, 2, 0, 9);
  h.payload_bytes = 4;
  EXPECT_EQ(e.frame(h), "payload on a frame that carries none");
}

TEST_F(Faults, PeersMayGrantOnlyWhatIsAnnounced) {
  EXPECT_EQ(e.frame(header(FrameType::kGrant, 0, 1, 0, 5)), "grant for a contribution that does not go there");
  EXPECT_EQ(e.frame(header(FrameType::kGrant, 1, 1, 0, 5)), "grant for an operation that is not announced");
  e.ready(1);
  EXPECT_EQ(e.frame(header(FrameType::kGrant, 1, 1, 0, 0)), "grant without an id");
  EXPECT_EQ(e.frame(header(FrameType::kGrant, 1, 1, 0, 5), 2), "grant for a contribution that does not go there");
  EXPECT_EQ(e.frame(header(FrameType::kGrant, 1, 1, 0, 5)), "");
  EXPECT_EQ(e.frame(header(FrameType::kGrant, 1, 1, 0, 5)), "grant for a contribution that is not announced");
  EXPECT_EQ(e.frame(header(FrameType::kCredit, 0, 0)), "credit that was not spent");
}

TEST_F(Faults, ResultsComeFromTheirOwnerAfterTheContribution) {
  e.ready(1);
  const std::vector<Send> ready = e.pick(kControlClass);
  ASSERT_EQ(ready.size(), 1u);
  const std::uint32_t result = ready[0].header.grant;
  ASSERT_NE(result, 0u);
  EXPECT_EQ(e.frame(data(1, 0, result, 0, 128), 2), "result from a host that does not send it");
  EXPECT_EQ(e.frame(data(1, 0, result, 0, 128)), "result before its contribution");
  for (std::uint32_t s : {0, 1}) ASSERT_EQ(e.frame(header(FrameType::kGrant, 1, 1, s, 5 + s)), "");
  const std::vector<Send> sent = e.pick(ClassId(0));
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(e.frame(data(1, 1, result, 0, 128)), "payload outside its grant");  // slice 1 starts at 128
  EXPECT_EQ(e.frame(data(1, 1, result, 128, 128)), "");                         // slices in any order
  EXPECT_EQ(e.frame(data(1, 1, result, 128, 128)), "payload that has already arrived");
  EXPECT_EQ(e.frame(data(1, 0, result, 0, 128)), "");
  EXPECT_THAT(e.completed_, IsEmpty());  // our sends are not done
  EXPECT_THAT(e.feed({.kind = Event::Kind::kSendDone, .token = sent[0].token}), IsEmpty());
  const std::vector<Action> last = e.feed({.kind = Event::Kind::kSendDone, .token = sent[1].token});
  ASSERT_EQ(last.size(), 1u);
  EXPECT_TRUE(last[0].complete.ok);
  EXPECT_EQ(last[0].complete.tensor, TensorId(1));
}

// ---- eager ----

TEST(Eager, NeedsCreditAndAWholeContributionOnce) {
  EngineConfig config;
  config.eager_credits = 2;
  OneEngine e(two_tensors(), config);
  EXPECT_EQ(e.frame(eager(0, 0, 2, 128, 9)), "eager payload without credit");
  EXPECT_EQ(e.frame(eager(0, 0, 0, 124, 9)), "eager payload that is not a whole contribution");
  EXPECT_EQ(e.frame(eager(0, 0, 0, 128, 0)), "eager payload with a wrong grant for results");
  EXPECT_EQ(e.frame(eager(1, 0, 0, 128, 0)), "contribution from a host that has none for the slice");
  EXPECT_EQ(e.frame(eager(0, 0, 0, 128, 9)), "");
  EXPECT_EQ(e.frame(eager(0, 1, 0, 128, 9)), "eager payload without credit");  // the slot is taken
  EXPECT_EQ(e.frame(eager(0, 0, 1, 128, 9)), "contribution sent twice");
  EXPECT_EQ(e.frame(eager(0, 1, 1, 128, 8)), "eager payload with a wrong grant for results");
  EXPECT_EQ(e.frame(header(FrameType::kReady, 0, 1, 0, 9)), "operation announced twice");
  EXPECT_EQ(e.frame(eager(0, 1, 1, 128, 9)), "");
  EXPECT_EQ(e->landing(HostIndex(1), eager(0, 0, 0, 128, 9, 2)).ok(), false);  // no slot left for the next operation
  e.ready(0);
  Work work;
  ASSERT_TRUE(e->pick_work(Time(0), &work));
  EXPECT_THAT(e.pick(kControlClass), IsEmpty());
  e.feed({.kind = Event::Kind::kWorkDone, .token = work.token});
  const Time freed = e.now();
  const std::vector<Send> credit = e.pick(kControlClass);  // the peer had none left: at once
  ASSERT_EQ(credit.size(), 1u);
  EXPECT_EQ(credit[0].eligible, freed);
  EXPECT_EQ(credit[0].header.type, FrameType::kCredit);
  EXPECT_EQ(credit[0].header.aux, 1u);
  EXPECT_EQ(credit[0].header.offset, 1u);
}

TEST(Eager, WithoutEnoughCreditEverythingIsAnnounced) {
  EngineConfig config;
  config.eager_credits = 3;
  Plan plan = two_tensors();
  for (int i = 0; i < 2; ++i) add(&plan, allreduce(kServer, Dtype::kFloat32, 64, 32));  // tensor 2 is host 1's, too
  OneEngine e(plan, config);
  e.ready(1);
  EXPECT_THAT(e.pick(kControlClass), IsEmpty());
  const std::vector<Send> sends = e.pick(ClassId(0));
  ASSERT_EQ(sends.size(), 2u);
  EXPECT_EQ(sends[0].header.flags, protocol::kFlagEager);
  EXPECT_NE(sends[0].header.aux, 0u);
  EXPECT_NE(sends[0].header.grant, sends[1].header.grant);
  e.ready(2);  // two slices, one credit left
  EXPECT_THAT(e.pick(ClassId(0)), IsEmpty());
  const std::vector<Send> control = e.pick(kControlClass);
  ASSERT_EQ(control.size(), 1u);
  EXPECT_EQ(control[0].header.type, FrameType::kReady);
  EXPECT_EQ(e->counters().eager_refused, 1u);
  EXPECT_EQ(e->counters().eager_sent, 2u);
}

}  // namespace
}  // namespace tensorlane::engine::testing
