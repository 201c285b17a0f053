// Peers whose address the kernel finds late or never while their queue pairs are connected by verbs: the lane goes on
// meanwhile, what comes late is waited for, what never comes is named, and a handshake that is given up while a call
// about its queue pairs is under way leaves nothing behind.
#include <sys/socket.h>

#include <cerrno>

#include "daemon/transport/rdma/message.h"
#include "queue_pair_faults.h"
#include "raw_peer.h"
#include "rdma_kinds.h"
#include "rdma_peer.h"

namespace tensorlane::conformance {
namespace {

using namespace std::chrono_literals;
using handshake::Refusal;
using ::testing::AllOf;
using ::testing::HasSubstr;

class RdmaAddress : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!rdma_absent().empty()) GTEST_SKIP() << rdma_absent();
    kind = rdma_kind("address", 2);
    make_hosts();
  }
  void TearDown() override { set_address({}); }
  void make_hosts() {
    a = std::make_unique<Host>(kind, HostIndex(0));
    b = std::make_unique<Host>(kind, HostIndex(1));
    a->add_job();
    b->add_job();
  }
  static ports::FlowKey to_b(ClassId cls) { return {kJob, HostIndex(1), cls}; }
  static ports::FlowKey to_a(ClassId cls) { return {kJob, HostIndex(0), cls}; }
  void connect(ClassId cls, Duration within = seconds(20)) {
    ASSERT_TRUE((*a)->connect(to_b(cls), b->kind.address, b->data_port, clock.now() + within).ok());
  }
  bool up(ClassId cls) const { return a->sink->up(to_b(cls)) && b->sink->up(to_a(cls)); }
  bool run(const std::function<bool()>& done, std::chrono::milliseconds timeout = 20s) {
    return run_until(clock, {a.get(), b.get()}, done, timeout);
  }
  bool run_into_call() {
    return run([] { return address_calls_under_way() > 0; });
  }

  TransportKind kind;
  TestClock clock;
  std::unique_ptr<Host> a, b;
};

TEST_F(RdmaAddress, OtherFlowsGoOnWhileOneIsLookedFor) {
  connect(kUrgent);
  ASSERT_TRUE(run([&] { return up(kUrgent); }));
  std::size_t frames = 0;
  const auto exchange = [&] {
    const std::size_t end = frames + 20;
    return run([&] {
      if (frames < end && b->sink->frames.size() == frames) a->send(to_b(kUrgent), {data_header(frames++), {}, 0});
      return b->sink->frames.size() == end;
    });
  };
  set_address({.held = true});
  connect(kBulk);
  ASSERT_TRUE(run_into_call());
  ASSERT_TRUE(exchange());
  EXPECT_EQ(address_calls_under_way(), 1u) << "the call of the accepting end has kept the lane";
  // The next one is of its second queue pair, then the connecting end has its turn.
  set_address({.after = 1, .held = true});
  ASSERT_TRUE(run_into_call());
  ASSERT_TRUE(exchange());
  EXPECT_EQ(address_calls_under_way(), 1u) << "the call of the connecting end has kept the lane";
  EXPECT_FALSE(up(kBulk));
  set_address({});
  ASSERT_TRUE(run([&] { return up(kBulk); }));
}

// As it may happen to any queue pair, and to all of them when the device fails.
TEST_F(RdmaAddress, QueuePairsThatFailBeforeTheyAreConnectedAreMadeAnew) {
  for (const std::size_t calls_before : {0u, 2u}) {
    set_address({.after = calls_before, .held = true});
    connect(kUrgent);
    ASSERT_TRUE(run_into_call());
    fail_all_queue_pairs();
    set_address({});
    ASSERT_TRUE(run([&] { return up(kUrgent) || !a->sink->downs.empty(); }));
    EXPECT_TRUE(a->sink->downs.empty()) << a->sink->cause(to_b(kUrgent)).to_string();
    (*a)->close(to_b(kUrgent));
    ASSERT_TRUE(run([&] { return !a->sink->downs.empty() && !b->sink->downs.empty(); }));
    a->sink->forget();
    b->sink->forget();
  }
}

TEST_F(RdmaAddress, NobodyWhoAnswersAtFirstIsAskedAgain) {
  for (const int error : {ETIMEDOUT, EAGAIN, EHOSTUNREACH}) {
    set_address({50ms, error, 7});
    connect(kUrgent);
    ASSERT_TRUE(run([&] { return up(kUrgent); })) << error;
    EXPECT_EQ(address_calls(), 7u + 4u) << "in the first handshake";
    EXPECT_TRUE(a->sink->downs.empty());
    (*a)->close(to_b(kUrgent));
    ASSERT_TRUE(run([&] { return !a->sink->downs.empty() && !b->sink->downs.empty(); }));
    a->sink->forget();
    b->sink->forget();
  }
}

TEST_F(RdmaAddress, AnAddressThatIsNeverFoundIsNamedInTheEnd) {
  set_address({300ms, ETIMEDOUT, 1000});
  LogCapture log;
  connect(kUrgent, seconds(5));
  ASSERT_TRUE(run([&] { return !a->sink->downs.empty(); }));
  const Status cause = a->sink->cause(to_b(kUrgent));
  EXPECT_EQ(cause.code(), Code::kTimedOut);
  EXPECT_THAT(cause.to_string(), AllOf(HasSubstr("connection to host 1 ("), HasSubstr("was refused by the peer: "),
                                       HasSubstr("cannot reach " + rdma_address() + " by RDMA: nobody answers"),
                                       HasSubstr("and so until the deadline")));
  EXPECT_THAT(log.text(), AllOf(HasSubstr("host 0"), HasSubstr("was refused by this host: cannot reach")));
  EXPECT_TRUE(a->sink->ups.empty() && b->sink->ups.empty());
  ASSERT_TRUE(run([] { return queue_pairs() == 0; }));
}

TEST_F(RdmaAddress, AnAddressThatIsFoundBeforeTheDeadlineIsNoError) {
  set_address({300ms, ETIMEDOUT, 1000});
  connect(kUrgent);
  // Longer than the first handshake.
  ASSERT_FALSE(run([&] { return up(kUrgent); }, 3s));
  EXPECT_TRUE(a->sink->downs.empty());
  set_address({});
  ASSERT_TRUE(run([&] { return up(kUrgent); }));
}

// Of the accepting end, whose two calls come first, or of the connecting one.
TEST_F(RdmaAddress, AnErrorThatLastsIsReportedAtOnce) {
  for (const int error : {EINVAL, ENETUNREACH}) {
    for (const std::size_t calls_before : {0u, 2u}) {
      set_address({.error = error, .times = 1, .after = calls_before});
      connect(kUrgent);
      ASSERT_TRUE(run([&] { return !a->sink->downs.empty(); }));
      EXPECT_EQ(address_calls(), calls_before + 1);
      const Status cause = a->sink->cause(to_b(kUrgent));
      EXPECT_EQ(cause.code(), Code::kMismatch);
      EXPECT_THAT(cause.to_string(), HasSubstr("cannot reach " + rdma_address() + " by RDMA: "));
      a->sink->forget();
    }
  }
}

// ---- given up in the middle ----

enum class Way { kClose, kRemoveJob, kDestroyConnecting, kDestroyAccepting, kDestroyBoth };

// Either end may be in the call: the accepting one is first, then the connecting one.
TEST_F(RdmaAddress, NothingIsLeftOfWhatIsGivenUpDuringTheCall) {
  kind = rdma_kind("address", 1);
  a.reset();
  b.reset();
  const std::size_t descriptors = open_descriptors();
  const std::string objects = kind.objects();
  for (const std::size_t calls_before : {0u, 1u}) {
    for (const Way way :
         {Way::kClose, Way::kRemoveJob, Way::kDestroyConnecting, Way::kDestroyAccepting, Way::kDestroyBoth}) {
      SCOPED_TRACE(std::to_string(calls_before) + " calls before, way " + std::to_string(static_cast<int>(way)));
      make_hosts();
      const bool held = way == Way::kClose || way == Way::kRemoveJob;
      set_address({.time = 300ms, .after = calls_before, .held = held});
      connect(kUrgent);
      ASSERT_TRUE(run_into_call());
      if (way == Way::kClose) (*a)->close(to_b(kUrgent));
      if (way == Way::kRemoveJob) {
        (*a)->remove_job(kJob);
        (*b)->remove_job(kJob);
        (*a)->unmap(kJob);
        (*b)->unmap(kJob);
      }
      if (held) {
        ASSERT_TRUE(run([&] { return !a->sink->downs.empty(); }));
        EXPECT_TRUE(a->sink->cause(to_b(kUrgent)).ok());
        EXPECT_EQ(address_calls_under_way(), 1u) << "the lane has waited for the call";
        set_address({});
        ASSERT_TRUE(run([] { return queue_pairs() == 0; }));
      }
      if (way == Way::kDestroyConnecting || way == Way::kDestroyBoth) a->transport.reset();
      if (way == Way::kDestroyAccepting || way == Way::kDestroyBoth) b->transport.reset();
      a.reset();
      b.reset();
      EXPECT_EQ(queue_pairs(), 0u);
      EXPECT_EQ(address_calls_under_way(), 0u) << "a call outlives the transport";
      EXPECT_EQ(open_descriptors(), descriptors);
    }
  }
  EXPECT_EQ(kind.objects(), objects);
}

// ---- the accepting end against a peer made by hand ----

class RdmaAnswering : public RdmaAddress {
 protected:
  void SetUp() override {
    RdmaAddress::SetUp();
    if (IsSkipped()) return;
    hello = handshake::make_hello(job, HostIndex(1), kUrgent, sizeof(rdma::Parameters));
    parameters = good_parameters(rdma_address());
    parameters.queue_pairs = 2;
    parameters.pairs[1] = {0xabcdee, 1};
    set_address({.held = true});
    peer = std::make_unique<RawPeer>(clock, *b, kUrgent);
    peer->send_message(hello);
    const auto challenge = peer->receive_message<handshake::Challenge>();
    peer->send(joined(good_proof(hello, challenge.nonce, std::as_bytes(std::span(&parameters, 1))), parameters));
    ASSERT_TRUE(run_into_call());
  }

  bool says_something() const {
    std::byte byte;
    return ::recv(peer->fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
  }

  const handshake::Job job{credentials(HostIndex(0))};
  handshake::Hello hello;
  rdma::Parameters parameters;
  std::unique_ptr<RawPeer> peer;
};

// A peer that goes on earlier would send into queue pairs that take nothing.
TEST_F(RdmaAnswering, AnswersOnlyWhenItsQueuePairsCanReceive) {
  EXPECT_FALSE(run([&] { return says_something(); }, 300ms));
  set_address({.held = true});  // the second one
  ASSERT_TRUE(run([] { return address_calls() == 1; }));
  EXPECT_FALSE(run([&] { return says_something(); }, 300ms));
  set_address({});
  EXPECT_EQ(peer->receive_message<handshake::Verdict>().head.refusal, Refusal::kNone);
}

TEST_F(RdmaAnswering, NoticesAPeerThatGoes) {
  LogCapture log;
  peer.reset();
  ASSERT_TRUE(run([&] { return log.text().find("closed by the peer") != std::string::npos; }, 5s));
  EXPECT_THAT(log.text(), HasSubstr("while waiting for this host's end of the transport's connection"));
  EXPECT_EQ(address_calls_under_way(), 1u) << "it is noticed only after the call";
  set_address({});
  ASSERT_TRUE(run([] { return queue_pairs() == 0; }));
  EXPECT_EQ(address_calls(), 0u) << "nobody wants the second queue pair any more";
}

TEST_F(RdmaAnswering, RefusesWhenTheJobEndsMeanwhile) {
  (*b)->remove_job(kJob);
  set_address({});
  EXPECT_EQ(peer->receive_message<handshake::Verdict>().head.refusal, Refusal::kJob);
  ASSERT_TRUE(run([] { return queue_pairs() == 0; }));
}

}  // namespace
}  // namespace tensorlane::conformance
