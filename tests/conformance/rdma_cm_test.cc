// Queue pairs connected by rdma_cm: whoever sends requests and replies, only the handshake decides.
#include <fmt/format.h>

#include <cstring>

#include "raw_peer.h"
#include "rdma_kinds.h"
#include "rdma_peer.h"

namespace tensorlane::conformance {
namespace {

using handshake::Refusal;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRefused = 28;  // the rejection's reason: by the consumer

class RdmaCm : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!rdma_absent().empty()) GTEST_SKIP() << rdma_absent();
    hello = handshake::make_hello(job, HostIndex(1), kUrgent, sizeof(rdma::Parameters));
    mine = good_parameters(rdma_address());
    mine.connect_by = rdma::ConnectBy::kCm;
    mine.cm_port = 1;
  }
  static std::span<const std::byte> bytes(const auto& object) { return std::as_bytes(std::span(&object, 1)); }

  const TransportKind kind = rdma_kind("rdma_cm", 1, rdma::ConnectBy::kCm);
  const std::uint8_t tos = static_cast<std::uint8_t>(three_classes()[1].tag.dscp << 2 | 2);
  TestClock clock;
  const handshake::Job job{credentials(HostIndex(0))};
  handshake::Hello hello;
  const ports::FlowKey key{kJob, HostIndex(1), kUrgent}, back{kJob, HostIndex(0), kUrgent};
  rdma::Parameters mine;
};

// ---- the accepting end: host 1 is under test, host 0 has shaken hands with it ----

class RdmaCmAccepting : public RdmaCm {
 protected:
  void SetUp() override {
    RdmaCm::SetUp();
    if (IsSkipped()) return;
    host = std::make_unique<Host>(kind, HostIndex(1));
    host->add_job();
    cm = std::make_unique<RawCm>(clock, *host, rdma_address());
    peer = std::make_unique<RawPeer>(clock, *host, kUrgent);
    peer->send_message(hello);
    const auto challenge = peer->receive_message<handshake::Challenge>();
    peer->send(joined(good_proof(hello, challenge.nonce, bytes(mine)), mine));
    ASSERT_EQ(peer->receive_message<handshake::Verdict>().head.refusal, Refusal::kNone);
    const auto said = peer->receive(sizeof theirs);
    ASSERT_EQ(said.size(), sizeof theirs);
    std::memcpy(&theirs, said.data(), sizeof theirs);
    const auto secret = handshake::exchange_secret(job, hello, challenge.nonce, bytes(mine), bytes(theirs));
    ready = good_ready(hello, challenge.nonce, bytes(mine), bytes(theirs));
    request = {.pair = theirs.pairs[0].number, .proof = rdma::cm_proof(secret, theirs.pairs[0].number)};
  }
  RawCm::Answer ask(std::uint32_t pair, std::span<const std::byte> said) {
    return cm->request(theirs.cm_port, pair, said, tos);
  }
  void expect_taken() {
    const RawCm::Answer answer = ask(mine.pairs[0].number, bytes(request));
    EXPECT_EQ(answer.event, RDMA_CM_EVENT_CONNECT_RESPONSE) << rdma_event_str(answer.event) << ' ' << answer.status;
    EXPECT_EQ(answer.pair, theirs.pairs[0].number);
  }
  void expect_refused(std::uint32_t pair, std::span<const std::byte> said, const std::string& text) {
    LogCapture log;
    clock.skip(milliseconds(1100));  // past the log's limit; the handshake has 5 s in all
    const std::uint64_t before = (*host)->counters().refused;
    const RawCm::Answer answer = ask(pair, said);
    EXPECT_EQ(answer.event, RDMA_CM_EVENT_REJECTED) << rdma_event_str(answer.event);
    EXPECT_EQ(answer.status, kRefused);
    EXPECT_EQ((*host)->counters().refused, before + 1);
    EXPECT_THAT(log.text(), AllOf(HasSubstr("request of rdma_cm from " + rdma_address()), HasSubstr(text)));
    EXPECT_TRUE(host->sink->ups.empty());
  }

  std::unique_ptr<Host> host;
  std::unique_ptr<RawCm> cm;
  std::unique_ptr<RawPeer> peer;
  rdma::Parameters theirs;
  handshake::Ready ready;
  rdma::CmRequest request;
};

TEST_F(RdmaCmAccepting, TakesTheRequestOfWhoHasShakenHands) {
  expect_taken();
  EXPECT_TRUE(host->sink->ups.empty()) << "before the peer is ready";
  peer->send_message(ready);
  ASSERT_TRUE(run_until(clock, {host.get()}, [&] { return host->sink->up(back); }));
  EXPECT_EQ(host->stats(back).effective_dscp, three_classes()[1].tag.dscp);
}

// A forger cannot use the right to connect up either. (Each names another queue pair: the kernel itself refuses one
// that it has heard of a moment ago.)
TEST_F(RdmaCmAccepting, RefusesAForgedRequestAndStillTakesTheGoodOne) {
  rdma::CmRequest forged = request;
  forged.proof[31] ^= 1;
  expect_refused(0xabcd01, bytes(forged), "it does not prove that its sender holds the job's secret");
  forged = request;
  ++forged.pair;
  expect_refused(0xabcd02, bytes(forged), fmt::format("nobody waits for it at queue pair {}", forged.pair));
  expect_refused(0xabcd03, {}, "that is none of ours");
  expect_taken();
}

TEST_F(RdmaCmAccepting, RefusesAReplayedRequest) {
  expect_taken();
  const RawCm::Answer again = ask(mine.pairs[0].number, bytes(request));
  EXPECT_EQ(again.event, RDMA_CM_EVENT_REJECTED) << "by the kernel, which has the connection";
  expect_refused(0xabcd01, bytes(request), "nobody waits for it at queue pair ");
}

// Somebody in between lets the proof pass and puts another queue pair in.
TEST_F(RdmaCmAccepting, RefusesTheRequestOfAnotherQueuePair) {
  expect_refused(0xabcdee, bytes(request), "it is from queue pair 11259374, the handshake was for 11259375");
  expect_taken();
}

TEST_F(RdmaCmAccepting, RefusesARequestWhosePacketsWouldBeOfAnotherClass) {
  const RawCm::Answer answer = cm->request(theirs.cm_port, mine.pairs[0].number, bytes(request), 0);
  EXPECT_EQ(answer.event, RDMA_CM_EVENT_REJECTED) << rdma_event_str(answer.event);
  LogCapture log;
  peer->send_message(ready);
  EXPECT_TRUE(peer->closed());
  EXPECT_THAT(log.text(),
              HasSubstr(fmt::format("rdma_cm marks packets with traffic class 0, the class of the flow has {}", tos)));
  EXPECT_TRUE(host->sink->ups.empty());
}

TEST_F(RdmaCmAccepting, RefusesAPeerThatIsReadyAndHasConnectedNothing) {
  LogCapture log;
  peer->send_message(ready);
  EXPECT_TRUE(peer->closed());
  EXPECT_THAT(log.text(), AllOf(HasSubstr("connection to host 0 ("), HasSubstr("has connected nothing")));
  EXPECT_TRUE(host->sink->ups.empty());
}

// ---- the connecting end: host 0 is under test ----

class RdmaCmConnecting : public RdmaCm {
 protected:
  // Host 1 as it should be up to its verdict; host 0 has until `deadline`.
  RawPeer shake_hands(Duration deadline) {
    const std::uint16_t port = Host(kind, HostIndex(1)).data_port;  // a free one
    listener = std::make_unique<RawListener>(static_cast<std::uint16_t>(port + 1), rdma_address());
    host->add_job();
    EXPECT_TRUE((*host)->connect(key, rdma_address(), port, clock.now() + deadline).ok());
    RawPeer peer = listener->accept(clock, *host);
    hello = peer.receive_message<handshake::Hello>();
    const auto challenge = good_challenge(hello);
    peer.send_message(challenge);
    EXPECT_EQ(peer.receive_message<handshake::Proof>().head.refusal, Refusal::kNone);
    const auto theirs = peer.receive(sizeof(rdma::Parameters));
    peer.send(joined(good_verdict(hello, challenge.nonce, theirs, bytes(mine)), mine));
    return peer;
  }
  std::string cause() {
    EXPECT_TRUE(run_until(clock, {host.get()}, [&] { return !host->sink->downs.empty(); }));
    EXPECT_TRUE(host->sink->ups.empty());
    return host->sink->cause(key).to_string();
  }
  void SetUp() override {
    RdmaCm::SetUp();
    if (!IsSkipped()) host = std::make_unique<Host>(kind, HostIndex(0));
  }

  std::unique_ptr<Host> host;
  std::unique_ptr<RawListener> listener;
};

TEST_F(RdmaCmConnecting, NamesAQueuePairThatTheHandshakeDidNot) {
  RawCm cm(clock, *host, rdma_address());
  mine.cm_port = cm.listen();
  RawPeer peer = shake_hands(seconds(20));
  cm.accept(0xabcdee);
  EXPECT_EQ(peer.receive_message<handshake::Ready>().head.refusal, Refusal::kParameters);
  EXPECT_THAT(cause(), AllOf(HasSubstr("connection to host 1 ("),
                             HasSubstr(fmt::format("rdma_cm leads to queue pair 11259374 of {}, the handshake to "
                                                   "11259375 of {}",
                                                   rdma_address(), rdma_address()))));
}

TEST_F(RdmaCmConnecting, TriesAgainUntilTheDeadlineAndNamesWhatIsWrong) {
  const RawPeer peer = shake_hands(seconds(4));  // nobody takes requests at port 1
  EXPECT_THAT(cause(), AllOf(HasSubstr("connection to host 1 ("),
                             HasSubstr(fmt::format("failed: cannot reach {} by RDMA: nobody there takes requests of "
                                                   "rdma_cm, and so until the deadline",
                                                   rdma_address()))));
}

TEST_F(RdmaCmConnecting, NamesAGidThatNoRouteLeadsTo) {
  mine.gid = good_parameters("10.99.0.9").gid;
  const RawPeer peer = shake_hands(seconds(5));  // rdma_cm takes 2 s to find nobody, the next attempt 5 s
  EXPECT_THAT(cause(), AllOf(HasSubstr("connection to host 1 ("), HasSubstr("cannot reach 10.99.0.9 by RDMA: rdma_cm"),
                             HasSubstr("put the rdma addresses of both hosts into one subnet")));
}

TEST_F(RdmaCmConnecting, EndsWhenThePeerDoesMeanwhile) {
  RawCm cm(clock, *host, rdma_address());
  mine.cm_port = cm.listen();  // answers nothing
  { const RawPeer peer = shake_hands(seconds(3)); }
  EXPECT_THAT(cause(), HasSubstr("failed while waiting for the transport's connection: closed by the peer"));
}

// ---- both ----

TEST_F(RdmaCm, HostsThatConnectInDifferentWaysSaySo) {
  LogCapture log;
  Host a(kind, HostIndex(0)), b(rdma_kind("rdma", 1), HostIndex(1));
  a.add_job();
  b.add_job();
  ASSERT_TRUE(a->connect(key, b.kind.address, b.data_port, clock.now() + seconds(20)).ok());
  ASSERT_TRUE(run_until(clock, {&a, &b}, [&] { return !a.sink->downs.empty(); }));
  EXPECT_EQ(a.sink->cause(key).code(), Code::kMismatch);
  for (const std::string& text : {a.sink->cause(key).to_string(), log.text()})
    EXPECT_THAT(text, HasSubstr("queue pairs connected by rdma_cm, this host does it by verbs"));
}

TEST_F(RdmaCm, StatusSaysWhatConnectsAndWhatMarksPackets) {
  rdma::RdmaConfig config = rdma_config({}, 9000);
  EXPECT_THAT(*rdma::explain_device(config), HasSubstr(", connected by verbs: DSCP by traffic class, PCP "));
  config.connect_by = rdma::ConnectBy::kCm;
  EXPECT_THAT(*rdma::explain_device(config), HasSubstr(", connected by rdma_cm: DSCP by TOS, PCP "));
}

}  // namespace
}  // namespace tensorlane::conformance
