// Sends and receives of ranks: from their sessions over the lanes and back.
#include <limits>

#include "daemon/host/message_desk.h"
#include "lane_fixture.h"

namespace tensorlane::lane {
namespace {

using protocol::MessageSlot;

MessageSlot send_to(std::uint32_t rank, std::uint64_t tag, std::uint64_t count, std::uint64_t offset) {
  return {.peer = rank, .sends = 1, .tag = tag, .count = count, .offset = offset, .urgency = 1};
}
MessageSlot receive_from(std::uint32_t rank, std::uint64_t tag, std::uint64_t count, std::uint64_t offset) {
  return {.peer = rank, .tag = tag, .count = count, .offset = offset};
}

float value(std::uint32_t from, std::uint32_t to, std::uint64_t i) {
  return static_cast<float>(from * 10 + to) + static_cast<float>(i % 1000) / 1024;
}

class MessagesTest : public LaneTest {
 protected:
  static constexpr std::uint64_t kCount = 150'000;  // three transport operations

  // Everybody sends to everybody, and to itself, and gets what was sent. Slot 2r is the send to rank r, 2r + 1 the
  // receive from it.
  void everybody_to_everybody(std::uint32_t ranks) {
    const auto place = [](std::uint32_t slot) { return slot * kCount * sizeof(float); };
    each_client([&](FakeClient& client, std::uint32_t rank) {
      for (std::uint32_t peer = 0; peer < ranks; ++peer) {
        float* out = client.data<float>(place(2 * peer));
        for (std::uint64_t i = 0; i < kCount; ++i) out[i] = value(rank, peer, i);
        client.post(2 * peer, send_to(peer, 5, kCount, place(2 * peer)));
        client.post(2 * peer + 1, receive_from(peer, 5, kCount, place(2 * peer + 1)));
      }
    });
    each_client([&](FakeClient& client, std::uint32_t rank) {
      for (std::uint32_t peer = 0; peer < ranks; ++peer) {
        ASSERT_EQ(client.wait_message(2 * peer).first, Code::kOk);
        const auto [code, outcome] = client.wait_message(2 * peer + 1);
        ASSERT_EQ(code, Code::kOk);
        EXPECT_EQ(outcome.other_rank, peer);
        const float* got = client.data<float>(place(2 * peer + 1));
        for (std::uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(got[i], value(peer, rank, i)) << i;
      }
    });
  }
};

TEST_F(MessagesTest, TravelBetweenHostsAndInsideOne) {
  start(3, 2, {allreduce(1000)});
  everybody_to_everybody(6);
  each_client([](FakeClient& client, std::uint32_t) { client.submit(0, 1); });
  each_client([](FakeClient& client, std::uint32_t) { EXPECT_EQ(client.wait(0, 1), Code::kOk); });
}

TEST_F(MessagesTest, StayInsideAJobOfOneHost) {
  start(1, 3, {});
  everybody_to_everybody(3);
}

TEST_F(MessagesTest, GoByTheFirstOfSeveralRails) {
  rails_ = 2;
  start(2, 1, {allreduce(1000)});
  everybody_to_everybody(2);
  EXPECT_EQ(hosts_[0]->metrics().rails[0].bytes_sent[0].value(), kCount * sizeof(float));
  EXPECT_EQ(hosts_[0]->metrics().rails[1].bytes_sent[0].value(), 0u);
}

// A plan without a tensor needs no flows: those to the peer of a message are made for it, whoever of the two it is that
// makes them, and are charged to the job at both ends.
TEST_F(MessagesTest, MakeTheFlowsThatTheyNeed) {
  start(4, 1, {});
  for (auto& host : hosts_) EXPECT_TRUE(host->metrics().flows.all().empty());
  FakeClient& first = *hosts_[0]->clients[0];
  FakeClient& last = *hosts_[3]->clients[0];
  last.post(0, send_to(0, 1, 100, 0));
  first.post(0, receive_from(3, 1, 100, 0));
  EXPECT_EQ(last.wait_message(0).first, Code::kOk);
  EXPECT_EQ(first.wait_message(0).first, Code::kOk);
  for (const std::size_t h : {0u, 3u}) {
    EXPECT_EQ(hosts_[h]->metrics().flows.all().size(), 3u) << "two classes, and control";
    EXPECT_EQ(hosts_[h]->descriptors.in_use(), 3u);
  }
  for (const std::size_t h : {1u, 2u}) EXPECT_TRUE(hosts_[h]->metrics().flows.all().empty());
  everybody_to_everybody(4);
  for (auto& host : hosts_) {
    EXPECT_EQ(host->metrics().flows.all().size(), 9u);
    EXPECT_EQ(host->descriptors.in_use(), 9u);
  }
  for (auto& host : hosts_)
    ASSERT_TRUE(host->lane->detach(kJob, Rank(static_cast<std::uint32_t>(&host - &hosts_[0]))).ok());
  for (auto& host : hosts_) {
    EXPECT_TRUE(host->listener.wait_closed());
    EXPECT_EQ(host->descriptors.in_use(), 0u);
  }
}

// A receive from a rank opens them, too: who sends may come later.
TEST_F(MessagesTest, MakeFlowsForAReceiveAlone) {
  start(3, 1, {});
  hosts_[2]->clients[0]->post(0, receive_from(0, 1, 100, 0));
  const auto flows = [&](std::size_t h) { return hosts_[h]->metrics().flows.all().size(); };
  for (int i = 0; i < 1000 && (flows(0) < 3 || flows(2) < 3); ++i) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(flows(0), 3u);
  EXPECT_EQ(flows(2), 3u);
  EXPECT_EQ(flows(1), 0u);
}

// One from anybody opens none: who sends does.
TEST_F(MessagesTest, AreTakenFromAnybody) {
  start(2, 2, {});
  FakeClient& any = *hosts_[0]->clients[0];
  for (std::uint32_t slot = 0; slot < 3; ++slot) any.post(slot, receive_from(protocol::kAnyRank, 8, 1, slot * 64));
  const auto rank_sends = [&](std::size_t host, std::size_t local, float what) {
    FakeClient& client = *hosts_[host]->clients[local];
    *client.data<float>(0) = what;
    client.post(0, send_to(0, 8, 1, 0));
    EXPECT_EQ(client.wait_message(0).first, Code::kOk);
  };
  rank_sends(1, 1, 3);
  rank_sends(0, 1, 1);
  rank_sends(1, 0, 2);
  for (const std::uint32_t slot : {0u, 1u, 2u}) {
    const auto [code, outcome] = any.wait_message(slot);
    EXPECT_EQ(code, Code::kOk);
    EXPECT_EQ(outcome.other_rank, (std::array{3u, 1u, 2u})[slot]);
    EXPECT_EQ(*any.data<float>(slot * 64), static_cast<float>(outcome.other_rank));
  }
}

// Of two receives that could get a message, whether from its source or from anybody, the one that was posted first
// does.
TEST_F(MessagesTest, GoToTheReceiveThatWasPostedFirst) {
  start(2, 1, {});
  FakeClient &sender = *hosts_[0]->clients[0], &receiver = *hosts_[1]->clients[0];
  for (const std::uint32_t any_at : {0u, 1u, 2u}) {
    for (std::uint32_t slot = 0; slot < 3; ++slot)
      receiver.post(slot, receive_from(slot == any_at ? protocol::kAnyRank : 0, 5, 1, slot * 64));
    receiver.post(9, receive_from(1, 6, 0, 0));  // all are posted when this one is over
    receiver.post(10, send_to(1, 6, 0, 0));
    ASSERT_EQ(receiver.wait_message(9).first, Code::kOk);
    ASSERT_EQ(receiver.wait_message(10).first, Code::kOk);
    for (std::uint32_t slot = 0; slot < 3; ++slot) {
      *sender.data<float>(slot * 64) = static_cast<float>(slot);
      sender.post(slot, send_to(1, 5, 1, slot * 64));
    }
    for (std::uint32_t slot = 0; slot < 3; ++slot) {
      ASSERT_EQ(sender.wait_message(slot).first, Code::kOk);
      ASSERT_EQ(receiver.wait_message(slot).first, Code::kOk);
      EXPECT_EQ(*receiver.data<float>(slot * 64), static_cast<float>(slot)) << "from anybody: " << any_at;
    }
  }
}

// A receive whose answer is all that it waits for is over with it, also where the host says something of an operation
// right after it.
TEST_F(MessagesTest, WithoutBytesEndBesideOperations) {
  start(2, 1, {allreduce(100'000)});
  FakeClient &sender = *hosts_[0]->clients[0], &receiver = *hosts_[1]->clients[0];
  std::uint64_t sequence = 0;
  const auto operate = [&] {
    ++sequence;
    each_client([&](FakeClient& client, std::uint32_t) { client.submit(0, sequence); });
  };
  const auto wait_for_operation = [&] {
    each_client([&](FakeClient& client, std::uint32_t) { ASSERT_EQ(client.wait(0, sequence), Code::kOk); });
  };
  for (std::uint64_t round = 0; round < 10; ++round) {
    sender.post(0, send_to(1, 1, 0, 0));
    sender.post(1, send_to(1, 2, 0, 0));
    receiver.post(1, receive_from(0, 2, 0, 0));
    ASSERT_EQ(receiver.wait_message(1).first, Code::kOk) << "so the first one is announced, too";
    operate();
    wait_for_operation();
    receiver.post(0, receive_from(0, 1, 0, 0));
    operate();
    ASSERT_EQ(receiver.wait_message(0).first, Code::kOk);
    wait_for_operation();
    for (const std::uint32_t slot : {0u, 1u}) ASSERT_EQ(sender.wait_message(slot).first, Code::kOk);
  }
}

TEST_F(MessagesTest, WhoseEndsDisagreeFailAtBothWithBothValues) {
  start(2, 1, {});
  FakeClient &sender = *hosts_[0]->clients[0], &receiver = *hosts_[1]->clients[0];
  MessageSlot wrong = receive_from(0, 2, 7, 0);
  wrong.dtype = Dtype::kInt64;
  sender.post(9, send_to(1, 2, 1000, 0));
  receiver.post(4, wrong);
  const auto [sent, told] = sender.wait_message(9);
  EXPECT_EQ(sent, Code::kMismatch);
  EXPECT_EQ(std::tuple(told.other_count, told.other_dtype, told.other_rank), std::tuple(7u, Dtype::kInt64, 1u));
  const auto [got, said] = receiver.wait_message(4);
  EXPECT_EQ(got, Code::kMismatch);
  EXPECT_EQ(std::tuple(said.other_count, said.other_dtype, said.other_rank), std::tuple(1000u, Dtype::kFloat32, 0u));
  everybody_to_everybody(2);
}

// A client that breaks the protocol fails its job, by name.
TEST_F(MessagesTest, NoClientMayLieAboutThem) {
  struct Lie {
    const char* said;
    std::uint32_t slot = 0;
    MessageSlot message;
    std::uint64_t sequence = 0;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<Lie> lies = {
      {"an unknown message", protocol::kMessageSlots, send_to(0, 0, 1, 0)},
      {"an unknown message", 0xffffffff, send_to(0, 0, 1, 0)},
      {"an unknown message", 0, send_to(0, 0, 1, 0), 1},
      {"a rank that the job does not have", 0, send_to(2, 0, 1, 0)},
      {"a rank that the job does not have", 0, send_to(protocol::kAnyRank, 0, 1, 0)},
      {"a message that cannot be", 0, send_to(1, 0, protocol::kMaxElements + 1, 0)},
      {"a message that cannot be", 0, send_to(1, 0, std::uint64_t{1} << 62, 0)},
      {"a message outside of its arenas", 0, send_to(1, 0, 5'000'000, 0)},
      {"a message outside of its arenas", 0, receive_from(1, 0, 1, 16 << 20)},
      {"a message outside of its arenas", 0, receive_from(1, 0, 1, ~std::uint64_t{0})},
  };
  for (const float urgency : {-1.0F, 1.5F, nan}) {
    lies.push_back({"a message that cannot be", 0, send_to(1, 0, 1, 0)});
    lies.back().message.urgency = urgency;
  }
  lies.push_back({"a message that cannot be", 0, send_to(1, 0, 1, 0)});
  lies.back().message.dtype = static_cast<Dtype>(8);
  for (const Lie& lie : lies) {
    hosts_.clear();
    plan_ = {};
    start(2, 1, {});
    hosts_[0]->clients[0]->post(lie.slot, lie.message, lie.sequence);
    const Status failed = hosts_[0]->listener.wait_failed();
    EXPECT_EQ(failed.code(), Code::kCorrupt);
    EXPECT_THAT(failed.what(), ::testing::HasSubstr("rank 0"));
    EXPECT_THAT(failed.what(), ::testing::HasSubstr(lie.said));
  }
}

TEST_F(MessagesTest, ASlotIsNotUsedTwiceAtATime) {
  start(2, 1, {});
  FakeClient& client = *hosts_[0]->clients[0];
  client.post(3, send_to(1, 0, 1, 0));
  client.post(3, send_to(1, 1, 1, 0));
  EXPECT_THAT(hosts_[0]->listener.wait_failed().what(), ::testing::HasSubstr("a message that is under way"));
}

// Every one of them comes out once, and no buffer is touched afterwards.
TEST_F(MessagesTest, EndWithTheirJob) {
  for (const std::size_t hosts : {1u, 2u}) {
    hosts_.clear();
    plan_ = {};
    start(hosts, 2, {});
    each_client([&](FakeClient& client, std::uint32_t rank) {
      client.post(0, send_to((rank + 1) % 2, 5, 100, 0));
      client.post(1, receive_from((rank + 1) % 2, 6, 100, 0));
      client.post(2, receive_from(protocol::kAnyRank, 7, 0, 0));
    });
    std::this_thread::sleep_for(100ms);
    for (auto& host : hosts_) ASSERT_TRUE(host->lane->abort_job(kJob, {Code::kAborted, "enough", "here", ""}).ok());
    each_client([&](FakeClient& client, std::uint32_t) {
      for (const std::uint32_t slot : {0u, 1u, 2u}) EXPECT_EQ(client.wait_message(slot).first, Code::kAborted) << slot;
      EXPECT_EQ(client.wait_failure().what(), "enough");
      EXPECT_EQ(client.messages_over(), 0u);
    });
    for (auto& host : hosts_) EXPECT_TRUE(host->listener.wait_closed());
  }
}

// Only what needs a peer that has left fails.
TEST_F(MessagesTest, APeerThatIsGoneIsNamed) {
  start(2, 1, {});
  everybody_to_everybody(2);
  ASSERT_TRUE(hosts_[1]->lane->detach(kJob, Rank(1)).ok());
  EXPECT_TRUE(hosts_[1]->listener.wait_closed());
  FakeClient& client = *hosts_[0]->clients[0];
  client.post(0, send_to(0, 1, 1, 0));
  client.post(1, receive_from(0, 1, 1, 64));
  EXPECT_EQ(client.wait_message(1).first, Code::kOk) << "it is of this host alone";
  client.post(2, receive_from(1, 1, 1, 0));
  EXPECT_THAT(hosts_[0]->listener.wait_failed().what(), ::testing::HasSubstr("host h1"));
}

TEST_F(MessagesTest, ThatWaitForLongAreReported) {
  start(2, 1, {}, milliseconds(200));
  hosts_[0]->clients[0]->post(0, receive_from(1, 1, 1, 0));
  hosts_[0]->clients[0]->post(1, receive_from(protocol::kAnyRank, 2, 1, 64));
  const auto waiting = hosts_[0]->listener.wait_waiting(4);
  ASSERT_GE(waiting.size(), 4u);
  std::size_t of_anybody = 0;
  for (const auto& w : waiting) {
    EXPECT_EQ(w.rank, Rank(0));
    EXPECT_GE(w.waited, milliseconds(200));
    of_anybody += w.peer ? 0 : 1;
    EXPECT_TRUE(!w.peer || *w.peer == Rank(1));
  }
  EXPECT_GE(of_anybody, 1u);
  EXPECT_LT(of_anybody, waiting.size());
}

// One of a rank that has left is told of long before it is late.
TEST_F(MessagesTest, OfARankThatHasLeftAreToldSoon) {
  start(2, 1, {}, seconds(600));
  hosts_[0]->clients[0]->post(0, receive_from(0, 1, 1, 0));
  hosts_[0]->clients[0]->post(1, receive_from(1, 1, 1, 64));
  hosts_[0]->clients[0]->post(2, receive_from(protocol::kAnyRank, 2, 1, 128));
  ASSERT_TRUE(hosts_[0]->lane->rank_left(kJob, Rank(1)).ok());
  std::set<std::optional<Rank>> of;
  for (const auto& w : hosts_[0]->listener.wait_waiting(2)) {
    EXPECT_EQ(w.why, ports::MessageWait::kOtherEnd);
    of.insert(w.peer);
  }
  EXPECT_EQ(of, (std::set<std::optional<Rank>>{Rank(1), std::nullopt}));
}

// 1,025 sends of two ranks to another host: what one of them waits for is not its receive.
TEST_F(MessagesTest, BeyondTheCreditOfTheirHostSaySoAndAreCounted) {
  start(2, 2, {}, milliseconds(200));
  const std::uint32_t half = ports::kAnnouncedMessages / 2;
  for (std::uint32_t slot = 0; slot <= half; ++slot) {
    hosts_[0]->clients[0]->post(slot, send_to(2, slot, 1, 0));
    if (slot < half) hosts_[0]->clients[1]->post(slot, send_to(3, slot, 1, 0));
  }
  const auto count = [&](ports::MessageWait why) {
    const auto all = hosts_[0]->listener.wait_waiting(0);
    return std::ranges::count(all, why, &FakeListener::Waiting::why);
  };
  for (int i = 0; i < 1000 && count(ports::MessageWait::kCredit) == 0; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_GT(count(ports::MessageWait::kCredit), 0);
  EXPECT_GT(count(ports::MessageWait::kOtherEnd), 0);
  EXPECT_EQ(hosts_[0]->metrics().messages_open.value(), ports::kAnnouncedMessages + 1);
  EXPECT_GE(hosts_[0]->metrics().oldest_message_ns.value(), 200'000'000u);
  for (std::uint32_t slot = 0; slot <= half; ++slot) {
    hosts_[1]->clients[0]->post(slot, receive_from(0, slot, 1, 0));
    if (slot < half) hosts_[1]->clients[1]->post(slot, receive_from(1, slot, 1, 0));
  }
  for (int i = 0; i < 1000 && hosts_[0]->metrics().messages_open.value() > 0; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(hosts_[0]->metrics().messages_open.value(), 0u);
  EXPECT_EQ(hosts_[0]->metrics().oldest_message_ns.value(), 0u);
}

// The oldest is that of those that are left, in whichever order they end.
TEST_F(MessagesTest, TellTheAgeOfTheOldestThatIsOpen) {
  start(1, 1, {});
  FakeClient& client = *hosts_[0]->clients[0];
  const auto oldest = [&] { return hosts_[0]->metrics().oldest_message_ns.value(); };
  const auto ends = [&](std::uint32_t slot, std::uint64_t tag) {
    client.post(slot, send_to(0, tag, 1, 0));
    EXPECT_EQ(client.wait_message(slot).first, Code::kOk);
  };
  for (std::uint32_t tag : {0u, 1u, 2u}) client.post(tag, receive_from(0, tag, 1, 64));
  for (int i = 0; i < 1000 && oldest() < 1'500'000'000; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_GE(oldest(), 1'500'000'000u);
  client.post(3, receive_from(0, 3, 1, 64));
  ends(4, 1);
  ends(5, 0);
  EXPECT_GE(oldest(), 1'500'000'000u);
  ends(6, 2);
  for (int i = 0; i < 1000 && oldest() >= 1'500'000'000; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_LT(oldest(), 1'500'000'000u);
  EXPECT_EQ(hosts_[0]->metrics().messages_open.value(), 1u);
}

// What a send to another host exceeds of its class's limit makes it go in the next class.
TEST(MessageDesk, KeepsToTheLimitOfAClass) {
  engine::MessagesConfig config;
  config.hosts = 2;
  config.host_of = {HostIndex(0), HostIndex(1)};
  config.open_per_rank = protocol::kMessageSlots;
  std::array<RateLimit, kMaxDataClasses> limits{};
  limits[0] = {BitsPerSecond(8000), Bytes(1000)};
  host::MessageDesk desk(config, limits);
  std::vector<std::byte> memory(2000);
  std::uint32_t slot = 0;
  const auto class_of = [&](std::uint32_t to, Time now) {
    host::MessagePost post{.sends = true, .buffer = memory};
    post.message = {.source = Rank(0), .destination = Rank(to), .count = 2000, .dtype = Dtype::kUint8};
    post.message.request = host::MessageDesk::request_of(0, slot++);
    return desk.post(post, now);
  };
  EXPECT_EQ(class_of(0, Time(0)), ClassId(0)) << "it stays on this host";
  EXPECT_EQ(class_of(1, Time(0)), ClassId(0));
  EXPECT_EQ(class_of(1, Time(1'000'000)), ClassId(1)) << "a kilobyte too much: for a second";
  EXPECT_EQ(class_of(0, Time(1'000'000)), ClassId(0));
  EXPECT_EQ(class_of(1, Time(3'000'000'000)), ClassId(0));
}

}  // namespace
}  // namespace tensorlane::lane
