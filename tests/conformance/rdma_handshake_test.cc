// The handshake in front of RDMA flows against peers that get it wrong, or mean ill: nothing of a queue pair is given
// to who has not proved itself, and nothing that such a peer says is believed.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "daemon/transport/rdma/message.h"
#include "queue_pair_faults.h"
#include "raw_peer.h"
#include "rdma_kinds.h"
#include "rdma_peer.h"

namespace tensorlane::conformance {
namespace {

using handshake::Refusal;
using ::testing::AllOf;
using ::testing::HasSubstr;

// In the subnet of the device, and nobody's.
std::string nobodys_address() {
  const std::string address = rdma_address();
  return address.substr(0, address.rfind('.')) + ".250";
}

class RdmaHandshake : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!rdma_absent().empty()) GTEST_SKIP() << rdma_absent();
    hello = handshake::make_hello(job, HostIndex(1), kUrgent, sizeof(rdma::Parameters));
  }

  void TearDown() override { set_address({}); }

  TestClock clock;
  const handshake::Job job{credentials(HostIndex(0))};
  handshake::Hello hello;
  const ports::FlowKey key{kJob, HostIndex(1), kUrgent};
};

// ---- the accepting end: host 1 is under test ----

class RdmaAccepting : public RdmaHandshake {
 protected:
  void SetUp() override {
    RdmaHandshake::SetUp();
    if (IsSkipped()) return;
    host = std::make_unique<Host>(rdma_kind("rdma", 1), HostIndex(1));
    host->add_job();
    parameters = good_parameters(rdma_address());
  }
  // The proof of host 0 for what it was asked, and its parameters.
  std::vector<std::byte> proof_for(const handshake::Challenge& challenge) const {
    return joined(good_proof(hello, challenge.nonce, std::as_bytes(std::span(&parameters, 1))), parameters);
  }
  // What the host answers to a proof that `forge` has changed, and says in its log.
  void expect_refused(const std::function<void(std::vector<std::byte>&)>& forge, Refusal refusal,
                      const std::string& text) {
    LogCapture log;
    clock.skip(seconds(2));  // past the log's limit
    RawPeer peer(clock, *host, kUrgent);
    peer.send_message(hello);
    std::vector<std::byte> proof = proof_for(peer.receive_message<handshake::Challenge>());
    forge(proof);
    peer.send(proof);
    if (refusal != Refusal::kKey) {  // who has proved itself is told
      const auto verdict = peer.receive_message<handshake::Verdict>();
      EXPECT_EQ(verdict.head.refusal, refusal);
      EXPECT_THAT(handshake::unpack_text(verdict.text), HasSubstr(text));
    }
    EXPECT_TRUE(peer.closed());
    EXPECT_THAT(log.text(), AllOf(HasSubstr("host 0"), HasSubstr(text)));
    EXPECT_TRUE(host->sink->ups.empty());
  }

  std::unique_ptr<Host> host;
  rdma::Parameters parameters;
};

TEST_F(RdmaAccepting, TakesAGoodPeer) {
  RawPeer peer(clock, *host, kUrgent);
  peer.send_message(hello);
  const auto challenge = peer.receive_message<handshake::Challenge>();
  peer.send(proof_for(challenge));
  EXPECT_EQ(peer.receive_message<handshake::Verdict>().head.refusal, Refusal::kNone);
  const auto theirs = peer.receive(sizeof parameters);
  EXPECT_EQ(theirs.size(), sizeof parameters);
  EXPECT_TRUE(host->sink->ups.empty()) << "before the peer is ready";
  peer.send_message(good_ready(hello, challenge.nonce, std::as_bytes(std::span(&parameters, 1)), theirs));
  EXPECT_TRUE(run_until(clock, {host.get()}, [&] { return host->sink->ups.size() == 1; }));
}

TEST_F(RdmaAccepting, RefusesAForgedProof) {
  expect_refused([](auto& proof) { proof[sizeof(handshake::Head)] ^= std::byte{1}; }, Refusal::kKey,
                 "it does not hold the key of hosts 0 and 1");
}

// Somebody in between lets the proof pass and puts another queue pair in.
TEST_F(RdmaAccepting, RefusesParametersThatAreNotInTheProof) {
  expect_refused([](auto& proof) { proof.back() ^= std::byte{1}; }, Refusal::kKey, "it does not hold the key");
}

TEST_F(RdmaAccepting, RefusesAReplayedHandshake) {
  std::vector<std::byte> said;
  {
    RawPeer good(clock, *host, kUrgent);
    good.send_message(hello);
    said = proof_for(good.receive_message<handshake::Challenge>());
    good.send(said);
    ASSERT_EQ(good.receive_message<handshake::Verdict>().head.refusal, Refusal::kNone);
  }
  run_for(clock, {host.get()}, std::chrono::milliseconds(50));  // sees the end of that one
  expect_refused([&](auto& proof) { proof = said; }, Refusal::kKey, "it does not hold the key");
}

TEST_F(RdmaAccepting, RefusesAPeerOfAnotherFrameVersion) {
  parameters.frame_version = 9;
  expect_refused([](auto&) {}, Refusal::kParameters,
                 fmt::format("frames of version 9 in messages of version {}, this host speaks {} and {}",
                             rdma::kMessageVersion, protocol::kFrameVersion, rdma::kMessageVersion));
}

TEST_F(RdmaAccepting, RefusesAGidThatNoRouteLeadsTo) {
  parameters = good_parameters("10.99.0.9");
  set_address({.error = ENETUNREACH, .times = 1});  // whatever routes this machine has
  expect_refused([](auto&) {}, Refusal::kParameters, "cannot reach 10.99.0.9 by RDMA: ");
}

// It may come to the network later than its daemon, or this machine may be too busy to take the answer.
TEST_F(RdmaAccepting, TellsAPeerWhoseGidNobodyAnswersForToComeAgain) {
  parameters = good_parameters(nobodys_address());
  LogCapture log;
  RawPeer peer(clock, *host, kUrgent);
  peer.send_message(hello);
  peer.send(proof_for(peer.receive_message<handshake::Challenge>()));
  const std::string text = "cannot reach " + nobodys_address() + " by RDMA: nobody answers for that address";
  ASSERT_TRUE(run_until(clock, {host.get()}, [&] { return log.text().find(text) != std::string::npos; }));
  const auto verdict = peer.receive_message<handshake::Verdict>();
  EXPECT_EQ(verdict.head.refusal, Refusal::kNotYet);
  EXPECT_THAT(handshake::unpack_text(verdict.text), HasSubstr(text));
  EXPECT_TRUE(peer.closed());
  EXPECT_EQ(host->sink->downs.size() + host->sink->ups.size(), 0u);
}

// Without parameters it would be a flow of the TCP transport.
TEST_F(RdmaAccepting, RefusesAPeerOfAnotherTransport) {
  RawPeer peer(clock, *host, kUrgent);
  hello = good_hello(kUrgent);
  peer.send_message(hello);
  const auto answer = peer.receive_message<handshake::Challenge>();
  EXPECT_EQ(answer.head.refusal, Refusal::kParameters);
  EXPECT_THAT(handshake::unpack_text(answer.text), HasSubstr("0 bytes of parameters, expected 160"));
}

// ---- the connecting end: host 0 is under test ----

class RdmaConnecting : public RdmaHandshake {
 protected:
  void SetUp() override {
    RdmaHandshake::SetUp();
    if (IsSkipped()) return;
    const TransportKind kind = rdma_kind("rdma", 1);
    // A free port: the one that a host which has gone again had for class 0.
    const std::uint16_t port = Host(kind, HostIndex(1)).data_port;
    listener = std::make_unique<RawListener>(static_cast<std::uint16_t>(port + 1), rdma_address());
    host = std::make_unique<Host>(kind, HostIndex(0));
    host->add_job();
    ASSERT_TRUE((*host)->connect(key, rdma_address(), port, clock.now() + seconds(20)).ok());
    parameters = good_parameters(rdma_address());
  }
  // Host 1 as it should be, but for its parameters and what `forge` does to its last message; how the flow ends.
  Status cause_of(
      const std::function<void(std::vector<std::byte>&)>& forge, const std::function<void()>& then = [] {}) {
    RawPeer peer = listener->accept(clock, *host);
    hello = peer.receive_message<handshake::Hello>();
    const auto challenge = good_challenge(hello);
    peer.send_message(challenge);
    EXPECT_TRUE(peer.receive_message<handshake::Proof>().head.refusal == Refusal::kNone);
    const auto theirs = peer.receive(sizeof(rdma::Parameters));
    const auto mine = std::as_bytes(std::span(&parameters, 1));
    std::vector<std::byte> verdict = joined(good_verdict(hello, challenge.nonce, theirs, mine), parameters);
    forge(verdict);
    peer.send(verdict);
    then();
    EXPECT_TRUE(run_until(clock, {host.get()}, [&] { return !host->sink->downs.empty(); }));
    EXPECT_TRUE(host->sink->ups.empty());
    return host->sink->cause(key);
  }

  std::unique_ptr<Host> host;
  std::unique_ptr<RawListener> listener;
  rdma::Parameters parameters;
};

TEST_F(RdmaConnecting, NamesParametersThatWereChangedOnTheWay) {
  const Status cause = cause_of([](auto& verdict) { verdict.back() ^= std::byte{1}; });
  EXPECT_EQ(cause.code(), Code::kPermissionDenied);
  EXPECT_THAT(cause.to_string(),
              AllOf(HasSubstr("connection to host 1 ("), HasSubstr("or its words were changed on the way")));
}

TEST_F(RdmaConnecting, NamesAPeerOfAnotherFrameVersion) {
  parameters.frame_version = 9;
  const Status cause = cause_of([](auto&) {});
  EXPECT_EQ(cause.code(), Code::kMismatch);
  EXPECT_THAT(cause.to_string(), AllOf(HasSubstr("connection to host 1 ("), HasSubstr("frames of version 9"),
                                       HasSubstr("install the same tensorlane version on every host")));
}

TEST_F(RdmaConnecting, NamesAGidThatNobodyAnswersFor) {
  parameters = good_parameters(nobodys_address());
  set_address({});
  const Status cause = cause_of([](auto&) {},
                                [&] {
                                  const auto asked = [] { return address_calls() > 1; };
                                  EXPECT_TRUE(run_until(clock, {host.get()}, asked)) << "it is not asked again";
                                  clock.skip(seconds(20));
                                });
  EXPECT_EQ(cause.code(), Code::kTimedOut);
  EXPECT_THAT(cause.to_string(),
              AllOf(HasSubstr("connection to host 1 ("),
                    HasSubstr("failed: the transport's connection did not come in time: cannot reach " +
                              nobodys_address() + " by RDMA: nobody answers for that address"),
                    HasSubstr("look whether its interface and VLAN are up")));
}

TEST_F(RdmaConnecting, NamesAGidThatNoRouteLeadsTo) {
  parameters = good_parameters("10.99.0.9");
  set_address({.error = ENETUNREACH, .times = 1});
  const Status cause = cause_of([](auto&) {});
  EXPECT_THAT(cause.to_string(),
              AllOf(HasSubstr("connection to host 1 ("), HasSubstr("cannot reach 10.99.0.9 by RDMA: "),
                    HasSubstr("put the rdma addresses of both hosts into one subnet")));
}

}  // namespace
}  // namespace tensorlane::conformance
