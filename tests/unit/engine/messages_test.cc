// Messages between two ranks: two hosts whose frames the test carries. Orders, faults and lies at random are the
// swarm's (tests/simulation/messages_swarm.cc).
#include "daemon/engine/messages/messages.h"

#include <gtest/gtest.h>

namespace tensorlane::engine {
namespace {

using protocol::FrameHeader;
using protocol::FrameType;

constexpr HostIndex kHere{0}, kThere{1};
constexpr ClassId kUrgent{0};

// Ranks 0 and 1 are of host 0, ranks 2 and 3 of host 1.
Messages host(HostIndex self, std::uint32_t open = 8, std::uint32_t announcements = 8) {
  MessagesConfig config{.job = JobId(7), .epoch = Epoch(1), .self = self, .hosts = 2};
  config.host_of = {kHere, kHere, kThere, kThere};
  config.open_per_rank = open;
  config.announcements = announcements;
  Messages made(config);
  made.peer_up(self == kHere ? kThere : kHere);
  return made;
}

Message message(std::uint32_t source, std::uint32_t destination, std::uint64_t tag, std::uint64_t count,
                std::uint64_t request) {
  Message m{.source = Rank(source), .destination = Rank(destination), .tag = tag, .count = count};
  m.buffer = {static_cast<std::uint32_t>(request), 0, 0, count * 4};
  m.request = request;
  return m;
}

// The next frame of a flow, which must be there.
Send next(Messages& from, HostIndex to, ClassId cls) {
  Send send;
  EXPECT_EQ(from.pick({to, cls}, kMaxOperation, std::span(&send, 1)), 1u);
  return send;
}

// Carries control frames until there are none.
void carry(Messages& here, Messages& there) {
  while (here.has_sends({kThere, kControlClass}) || there.has_sends({kHere, kControlClass})) {
    if (here.has_sends({kThere, kControlClass})) {
      EXPECT_EQ(there.take_frame(Time(1), kHere, next(here, kThere, kControlClass).header), nullptr);
    }
    if (there.has_sends({kHere, kControlClass})) {
      EXPECT_EQ(here.take_frame(Time(1), kThere, next(there, kHere, kControlClass).header), nullptr);
    }
  }
}

MessageDone outcome(Messages& of) {
  MessageDone done;
  EXPECT_TRUE(of.next_done(&done));
  return done;
}

TEST(Messages, UnexpectedBytesStayWithTheSender) {
  Messages here = host(kHere), there = host(kThere);
  ASSERT_TRUE(here.send(Time(1), message(0, 2, 5, 100, 1)).ok());
  carry(here, there);
  EXPECT_FALSE(here.has_sends({kThere, kUrgent}));
  EXPECT_EQ(here.lent(kThere).announced, 1u);
  Message receive = message(0, 2, 5, 100, 2);
  receive.source = kAnySource;
  ASSERT_TRUE(there.receive(Time(1), receive).ok());
  carry(here, there);
  const Send data = next(here, kThere, kUrgent);
  const Result<Descriptor> place = there.landing(kHere, data.header);
  ASSERT_TRUE(place.ok());
  EXPECT_EQ(*place, (Descriptor{2, 0, 0, 400}));
  EXPECT_EQ(there.take_frame(Time(1), kHere, data.header), nullptr);
  const MessageDone received = outcome(there);
  EXPECT_EQ(received.request, 2u);
  EXPECT_EQ(received.source, Rank(0));
  MessageDone done;
  EXPECT_FALSE(here.next_done(&done));  // the transport still reads it
  here.sent(data.token);
  EXPECT_EQ(outcome(here).request, 1u);
  EXPECT_EQ(here.lent(kThere).open + there.lent(kHere).open, 0u);
}

TEST(Messages, TheMoreUrgentGoesFirst) {
  Messages here = host(kHere), there = host(kThere);
  for (std::uint64_t i = 0; i < 3; ++i) {
    Message send = message(0, 2, i, 10, 10 + i);
    send.urgency = i == 2 ? 1.0F : 0.5F;
    ASSERT_TRUE(here.send(Time(1), send).ok());
    ASSERT_TRUE(there.receive(Time(1), message(0, 2, i, 10, 20 + i)).ok());
  }
  carry(here, there);
  for (std::uint32_t region : {12u, 10u, 11u}) EXPECT_EQ(next(here, kThere, kUrgent).payload.region, region);
}

TEST(Messages, BothEndsHearWhatDiffers) {
  Messages here = host(kHere), there = host(kThere);
  Message receive = message(0, 2, 5, 99, 2);
  receive.dtype = Dtype::kInt32;
  ASSERT_TRUE(there.receive(Time(1), receive).ok());
  ASSERT_TRUE(here.send(Time(1), message(0, 2, 5, 100, 1)).ok());
  carry(here, there);
  const MessageDone received = outcome(there);
  carry(here, there);
  const MessageDone sent = outcome(here);
  EXPECT_EQ(received.code, Code::kMismatch);
  EXPECT_EQ(received.other_count, 100u);
  EXPECT_EQ(received.other_dtype, Dtype::kFloat32);
  EXPECT_EQ(sent.code, Code::kMismatch);
  EXPECT_EQ(sent.other_count, 99u);
  EXPECT_EQ(sent.other_dtype, Dtype::kInt32);
  EXPECT_EQ(sent.tag, 5u);
}

TEST(Messages, WaitForCreditAtTheirHost) {
  Messages here = host(kHere, 8, 2), there = host(kThere, 8, 2);
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(here.send(Time(1), message(0, 2, i, 0, i)).ok());
  carry(here, there);
  EXPECT_EQ(here.lent(kThere).announced, 2u);
  for (std::uint64_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(there.receive(Time(1), message(0, 2, i, 0, 10 + i)).ok());
    MessageDone done;
    EXPECT_FALSE(there.next_done(&done)) << "its answer has not gone";
    carry(here, there);
    EXPECT_EQ(outcome(there).code, Code::kOk) << i;
    EXPECT_EQ(outcome(here).request, i);
  }
  EXPECT_EQ(here.lent(kThere).announced + there.lent(kHere).unanswered, 0u);
}

// What is over makes room, before its answer, or anything of it, can still be under way.
TEST(Messages, WhatIsToldIsGone) {
  Messages here = host(kHere, 8), there = host(kThere, 1);
  for (std::uint64_t i = 0; i < 4; ++i) {
    Message receive = message(0, 2, i, 0, 10 + i);
    receive.dtype = i % 2 == 0 ? Dtype::kFloat32 : Dtype::kInt8;
    ASSERT_TRUE(here.send(Time(1), message(0, 2, i, 0, i)).ok());
    carry(here, there);
    ASSERT_TRUE(there.receive(Time(1), receive).ok()) << i;
    while (there.has_sends({kHere, kControlClass})) {
      ASSERT_EQ(here.take_frame(Time(1), kThere, next(there, kHere, kControlClass).header), nullptr);
    }
    EXPECT_EQ(outcome(there).code, i % 2 == 0 ? Code::kOk : Code::kMismatch);
    (void)outcome(here);
  }
}

TEST(Messages, NothingGoesBeforeTheFlowsAreUp) {
  MessagesConfig config;
  config.self = kHere;
  config.hosts = 2;
  config.host_of = {kHere, kThere};
  Messages here(config);
  ASSERT_TRUE(here.send(Time(1), message(0, 1, 1, 1, 1)).ok());
  EXPECT_FALSE(here.has_sends({kThere, kControlClass}));
  here.peer_up(kThere);
  EXPECT_TRUE(here.has_sends({kThere, kControlClass}));
}

TEST(Messages, ARankHasAQuotaOfItsOwn) {
  Messages here = host(kHere, 2);
  EXPECT_TRUE(here.receive(Time(1), message(2, 0, 1, 1, 1)).ok());
  EXPECT_TRUE(here.send(Time(1), message(0, 2, 1, 1, 2)).ok());
  const Status status = here.send(Time(1), message(0, 2, 1, 1, 3));
  EXPECT_EQ(status.to_string(), "rank 0 has too many messages under way: the limit is 2: wait for some of them first");
  EXPECT_TRUE(here.send(Time(1), message(1, 2, 1, 1, 4)).ok());
  EXPECT_EQ(here.send(Time(1), message(1, 9, 1, 1, 5)).to_string(),
            "rank 9 is not in the job: the job has 4 ranks: name a rank of the job");
}

TEST(Messages, RanksOfOneHostNeedNoFrames) {
  Messages here = host(kHere);
  const std::uint64_t count = kMaxOperation.value / 4 + 1;
  ASSERT_TRUE(here.send(Time(1), message(0, 1, 1, count, 1)).ok());
  ASSERT_TRUE(here.receive(Time(1), message(0, 1, 1, count, 2)).ok());
  MessageCopy first, second, third;
  ASSERT_TRUE(here.pick_copy(&first) && here.pick_copy(&second));
  EXPECT_FALSE(here.pick_copy(&third));
  EXPECT_EQ(second.to, (Descriptor{2, 0, kMaxOperation.value, 4}));
  here.copied(second.token);
  MessageDone done;
  EXPECT_FALSE(here.next_done(&done));
  here.copied(first.token);
  EXPECT_EQ(outcome(here).code, Code::kOk);
  EXPECT_EQ(outcome(here).code, Code::kOk);
  EXPECT_FALSE(here.has_sends({kThere, kControlClass}));
}

TEST(Messages, WhatIsOpenFailsOnceTheFlowsAreClosed) {
  Messages here = host(kHere);
  ASSERT_TRUE(here.send(Time(1), message(0, 2, 1, 1, 1)).ok());
  ASSERT_TRUE(here.receive(Time(1), message(2, 0, 1, 1, 2)).ok());
  here.abort();
  MessageDone done;
  EXPECT_FALSE(here.next_done(&done));
  EXPECT_FALSE(here.has_sends({kThere, kControlClass}));
  EXPECT_EQ(here.send(Time(1), message(0, 2, 1, 1, 3)).code(), Code::kAborted);
  here.drained();
  EXPECT_EQ(outcome(here).code, Code::kAborted);
  EXPECT_EQ(outcome(here).code, Code::kAborted);
  EXPECT_FALSE(here.next_done(&done));
}

}  // namespace
}  // namespace tensorlane::engine
