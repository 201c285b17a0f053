// Operations whose contribution comes to exist in parts: when what is announced, what a peer may say of it, and what
// the engine says of the result.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "one_engine.h"

namespace tensorlane::engine::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Two hosts, a server each: slices 0 and 1 of 4096 elements are host 0's, whom the test is; 2 and 3 are host 1's.
class InParts : public ::testing::Test {
 protected:
  static Plan plan() {
    PlanTensor t = allreduce(kServer, Dtype::kFloat32, 16384, 4096);
    return plan_of(t);
  }
  std::vector<Action> begin() {
    Event event{.kind = Event::Kind::kTensorReady};
    event.tensor_ready = {TensorId(0), Sequence(1), {1, 0, 0, 16384 * 4}, {}, true};
    return e.feed(event);
  }
  std::vector<Action> part(std::uint64_t offset, std::uint64_t elements) {
    return e.feed({.kind = Event::Kind::kPartReady, .part_ready = {TensorId(0), Sequence(1), offset, elements}});
  }
  FrameHeader ready_in_parts() {
    FrameHeader h = header(FrameType::kReady, 0, 1, 0, 9);
    h.flags = protocol::kFlagInParts;
    return h;
  }
  std::vector<std::string> control() {
    std::vector<std::string> texts;
    for (const Send& s : e.pick(kControlClass)) {
      const FrameHeader& h = s.header;
      const bool in_parts = (h.flags & protocol::kFlagInParts) != 0;
      if (h.type == FrameType::kReady) texts.emplace_back(in_parts ? "ready in parts" : "ready");
      if (h.type == FrameType::kRts) texts.push_back("rts " + std::to_string(h.slice));
      if (h.type == FrameType::kGrant) texts.push_back("grant " + std::to_string(h.slice));
    }
    return texts;
  }
  OneEngine e{plan(), no_credit()};
};

TEST_F(InParts, ASliceIsAnnouncedWhenAllOfItExists) {
  begin();
  EXPECT_THAT(control(), ElementsAre("ready in parts"));
  part(0, 8192);  // slices of my own: nobody asks for them
  EXPECT_THAT(control(), IsEmpty());
  part(8193, 4095 + 100);
  EXPECT_THAT(control(), IsEmpty());
  part(8192, 1);
  EXPECT_THAT(control(), ElementsAre("rts 2"));
  part(8192 + 4096 + 100, 3996);
  EXPECT_THAT(control(), ElementsAre("rts 3"));
}

TEST_F(InParts, NothingIsSentThatDoesNotExist) {
  begin();
  (void)control();
  EXPECT_EQ(e.frame(header(FrameType::kReady, 0, 1, 0, 9)), "");
  EXPECT_EQ(e.frame(header(FrameType::kGrant, 0, 1, 2, 5)), "grant for a contribution that is not announced");
  EXPECT_THAT(e.pick(ClassId(0)), IsEmpty());
  part(8192, 4096);
  EXPECT_EQ(e.frame(header(FrameType::kGrant, 0, 1, 2, 5)), "");
  EXPECT_EQ(e.pick(ClassId(0)).size(), 1u);
}

// Mine must exist, too: staging is not taken before a sum can be formed (law 2).
TEST_F(InParts, GrantsWaitForMyOwnPart) {
  begin();
  (void)control();
  EXPECT_EQ(e.frame(header(FrameType::kReady, 0, 1, 0, 9)), "");
  EXPECT_THAT(control(), IsEmpty());
  part(4096, 4096);
  EXPECT_THAT(control(), ElementsAre("grant 1"));
  part(0, 4096);
  EXPECT_THAT(control(), ElementsAre("grant 0"));
}

TEST_F(InParts, GrantsWaitForThePeersParts) {
  e.ready(0);
  EXPECT_THAT(control(), ElementsAre("ready"));
  EXPECT_EQ(e.frame(ready_in_parts()), "");
  EXPECT_THAT(control(), IsEmpty());
  EXPECT_EQ(e.frame(header(FrameType::kRts, 0, 1, 1)), "");
  EXPECT_THAT(control(), ElementsAre("grant 1"));
}

TEST_F(InParts, WhoKeepsPartsIsMissing) {
  e.ready(0);
  EXPECT_THAT(e->missing(TensorId(0)), ElementsAre(HostIndex(1)));
  EXPECT_EQ(e.frame(ready_in_parts()), "");
  EXPECT_THAT(e->missing(TensorId(0)), ElementsAre(HostIndex(1)));
  EXPECT_EQ(e.frame(header(FrameType::kRts, 0, 1, 1)), "");
  EXPECT_THAT(e->missing(TensorId(0)), ElementsAre(HostIndex(1)));
  EXPECT_EQ(e.frame(header(FrameType::kRts, 0, 1, 0)), "");
  EXPECT_THAT(e->missing(TensorId(0)), IsEmpty());
}

// A peer that has said all of its parts does not keep this host, which has not said its own.
TEST_F(InParts, WhoHasAnnouncedAllIsNotMissing) {
  begin();
  EXPECT_EQ(e.frame(ready_in_parts()), "");
  EXPECT_EQ(e.frame(header(FrameType::kRts, 0, 1, 0)), "");
  EXPECT_EQ(e.frame(header(FrameType::kRts, 0, 1, 1)), "");
  EXPECT_THAT(e->missing(TensorId(0)), IsEmpty());
}

TEST_F(InParts, ThePeersPartsMayComeBeforeThisHostBegins) {
  EXPECT_EQ(e.frame(ready_in_parts()), "");
  EXPECT_EQ(e.frame(header(FrameType::kRts, 0, 1, 0)), "");
  begin();
  part(0, 16384);
  EXPECT_THAT(control(), ElementsAre("ready in parts", "rts 2", "rts 3", "grant 0"));
}

TEST_F(InParts, WhatAPeerSaysOfPartsIsChecked) {
  EXPECT_EQ(e.frame(header(FrameType::kRts, 0, 1, 0)), "partial sum from a host that makes none");
  e.ready(0);
  EXPECT_EQ(e.frame(header(FrameType::kRts, 0, 1, 0)), "partial sum from a host that makes none");
  EXPECT_EQ(e.frame(ready_in_parts()), "");
  EXPECT_EQ(e.frame(header(FrameType::kRts, 0, 1, 2)), "contribution from a host that has none for the slice");
  EXPECT_EQ(e.frame(header(FrameType::kRts, 0, 1, 0)), "");
  EXPECT_EQ(e.frame(header(FrameType::kRts, 0, 1, 0)), "contribution announced twice");
  EXPECT_EQ(e.frame(ready_in_parts()), "operation announced twice");
}

TEST_F(InParts, AResultBeforeMyContributionIsRefused) {
  begin();
  const std::vector<Send> sent = e.pick(kControlClass);
  ASSERT_EQ(sent.size(), 1u);
  FrameHeader result = data(0, 2, sent[0].header.grant, 8192 * 4, 4096 * 4);
  EXPECT_EQ(e.frame(result), "result before its contribution");
}

TEST_F(InParts, TellsWhatIsInPlaceAndAtLastThatAllIs) {
  begin();
  part(0, 16384);
  const std::vector<Send> sent = e.pick(kControlClass);
  const std::uint32_t results = sent[0].header.grant;
  EXPECT_EQ(e.frame(header(FrameType::kReady, 0, 1, 0, 9)), "");
  EXPECT_EQ(e.frame(header(FrameType::kGrant, 0, 1, 2, 5)), "");
  EXPECT_EQ(e.frame(header(FrameType::kGrant, 0, 1, 3, 6)), "");
  for (const Send& s : e.pick(ClassId(0)))
    EXPECT_THAT(e.feed({.kind = Event::Kind::kSendDone, .token = s.token}), IsEmpty());
  Event event{.kind = Event::Kind::kFrameArrived};
  event.frame = {HostIndex(1), data(0, 3, results, 12288 * 4, 4096 * 4)};
  const std::vector<Action> actions = e.feed(event);
  ASSERT_EQ(actions.size(), 1u);
  ASSERT_EQ(actions[0].kind, Action::Kind::kPartInPlace);
  EXPECT_EQ(actions[0].in_place.tensor, TensorId(0));
  EXPECT_EQ(actions[0].in_place.sequence, Sequence(1));
  EXPECT_EQ(actions[0].in_place.offset, 12288u);
  EXPECT_EQ(actions[0].in_place.elements, 4096u);
}

// Operations that are whole from the beginning say nothing of parts: their programs do not look.
TEST_F(InParts, NothingIsToldOfOperationsThatBeganWhole) {
  e.ready(0);
  const std::vector<Send> sent = e.pick(kControlClass);
  EXPECT_EQ(e.frame(header(FrameType::kGrant, 0, 1, 2, 5)), "");
  EXPECT_EQ(e.frame(header(FrameType::kGrant, 0, 1, 3, 6)), "");
  for (const Send& s : e.pick(ClassId(0))) e.feed({.kind = Event::Kind::kSendDone, .token = s.token});
  Event event{.kind = Event::Kind::kFrameArrived};
  event.frame = {HostIndex(1), data(0, 3, sent[0].header.grant, 12288 * 4, 4096 * 4)};
  EXPECT_THAT(e.feed(event), IsEmpty());
}

TEST_F(InParts, AnAbortEndsIt) {
  begin();
  part(0, 100);
  e.feed({.kind = Event::Kind::kAbort});
  EXPECT_THAT(part(100, 100), IsEmpty());  // it may be on its way
  const std::vector<Action> actions = e.feed({.kind = Event::Kind::kDrained});
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_FALSE(actions[0].complete.ok);
}

// Though it is small, and the owner lends slots for it.
TEST(InPartsOnCredit, NothingIsSentThatDoesNotExist) {
  EngineConfig config;
  config.eager_credits = 4;
  OneEngine e(two_tensors(), config);
  Event event{.kind = Event::Kind::kTensorReady};
  event.tensor_ready = {TensorId(1), Sequence(1), {2, 0, 0, 256}, {}, true};
  e.feed(event);
  EXPECT_THAT(e.pick(ClassId(0)), IsEmpty());
  const std::vector<Send> sent = e.pick(kControlClass);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].header.type, FrameType::kReady);
  EXPECT_EQ(sent[0].header.flags, protocol::kFlagInParts);
}

// On a rail without a slice of the tensor, and where nobody asks for what this host has.
TEST(InPartsWithoutSlices, PartsThatNobodyNeedsAreNothing) {
  PlanTensor t = allreduce(kServer, Dtype::kFloat32, 64, 64);
  t.operation = Operation::kBroadcast;
  t.root = HostIndex(1);
  OneEngine e(plan_of(t), no_credit());
  Event event{.kind = Event::Kind::kTensorReady};
  event.tensor_ready = {TensorId(0), Sequence(1), {1, 0, 0, 256}, {}, true};
  EXPECT_THAT(e.feed(event), IsEmpty());
  EXPECT_THAT(e.feed({.kind = Event::Kind::kPartReady, .part_ready = {TensorId(0), Sequence(1), 0, 32}}), IsEmpty());
  const std::vector<Send> sent = e.pick(kControlClass);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].header.flags, 0);  // it has no part that it would announce
  Event result{.kind = Event::Kind::kFrameArrived};
  result.frame = {HostIndex(1), data(0, 0, sent[0].header.grant, 0, 256)};
  EXPECT_EQ(e.feed(result).size(), 1u);
  // All is over, though the rest of the parts is still told.
  EXPECT_THAT(e.feed({.kind = Event::Kind::kPartReady, .part_ready = {TensorId(0), Sequence(1), 32, 32}}), IsEmpty());
}

}  // namespace
}  // namespace tensorlane::engine::testing
