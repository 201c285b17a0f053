// The TCP handshake against peers that get it wrong, or mean ill: at both ends, every reason with its text.
#include <cstring>

#include "raw_peer.h"

namespace tensorlane::conformance {
namespace {

using handshake::Refusal;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr ClassId kUrgent{0};

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// ---- the accepting end: host 1 is under test ----

class Accepting : public ::testing::Test {
 protected:
  Accepting() { host.add_job(); }
  // What both ends say of `hello`.
  void expect_refused(const handshake::Hello& hello, Refusal refusal, const std::string& text) {
    LogCapture log;
    const auto refused = host->counters().refused;
    clock.skip(seconds(2));  // past the log's limit
    RawPeer peer(clock, host, kUrgent);
    peer.send_message(hello);
    const auto answer = peer.receive_message<handshake::Challenge>();
    EXPECT_EQ(answer.head.refusal, refusal);
    EXPECT_THAT(handshake::unpack_text(answer.text), HasSubstr(text));
    EXPECT_TRUE(peer.closed());
    EXPECT_EQ(host->counters().refused, refused + 1);
    EXPECT_THAT(log.text(), AllOf(HasSubstr("was refused by this host: "), HasSubstr(text), HasSubstr("127.0.0.1:"),
                                  HasSubstr("class 0")));
    EXPECT_TRUE(host.sink->ups.empty());
  }

  TestClock clock;
  Host host{tcp_ipv4(), HostIndex(1)};
  handshake::Hello hello = good_hello(kUrgent);
};

TEST_F(Accepting, TakesAGoodPeer) {
  RawPeer peer(clock, host, kUrgent);
  peer.authenticate(kUrgent);
  ASSERT_EQ(host.sink->ups.size(), 1u);
  EXPECT_EQ(host.sink->ups[0], (ports::FlowKey{kJob, HostIndex(0), kUrgent}));
}

TEST_F(Accepting, TakesAPeerThatComesByteByByte) {
  RawPeer peer(clock, host, kUrgent);
  for (const std::byte& byte : handshake::bytes_of(hello)) peer.send({&byte, 1});
  const auto challenge = peer.receive_message<handshake::Challenge>();
  handshake::Proof proof;
  proof.mac = handshake::client_mac(handshake::Job(credentials(HostIndex(0))), hello, challenge.nonce);
  for (const std::byte& byte : handshake::bytes_of(proof)) peer.send({&byte, 1});
  EXPECT_EQ(peer.receive_message<handshake::Verdict>().head.refusal, Refusal::kNone);
  EXPECT_EQ(host.sink->ups.size(), 1u);
}

TEST_F(Accepting, RefusesAnotherProtocol) {
  hello.head.magic = 0x20544547;  // "GET "
  expect_refused(hello, Refusal::kNotTensorlane, "handshake magic 0x20544547, expected 0x48534c54");
}

TEST_F(Accepting, RefusesAnotherVersion) {
  hello.head.version = 9;
  expect_refused(hello, Refusal::kVersion, "handshake version 9, this host speaks 1");
}

TEST_F(Accepting, RefusesAnotherClassThanTheListeners) {
  hello.cls = 1;
  expect_refused(hello, Refusal::kClass, "a flow of class 1 on the port of class 0");
}

TEST_F(Accepting, RefusesAnUnknownJob) {
  hello.job = 0xabc;
  expect_refused(hello, Refusal::kJob, "job 0x0000000000000abc is not known to this host");
}

TEST_F(Accepting, RefusesAnotherEpoch) {
  hello.epoch = 6;
  expect_refused(hello, Refusal::kEpochOlder, "epoch 6 of the job, this host has epoch 7");
  hello.epoch = 8;
  expect_refused(hello, Refusal::kEpochNewer, "epoch 8 of the job, this host has epoch 7");
}

TEST_F(Accepting, RefusesAFlowToAnotherHostOrInTheWrongDirection) {
  hello.to = 5;
  expect_refused(hello, Refusal::kHost, "a flow to host 5, this is host 1");
  hello.to = 1;
  hello.from = 1;
  expect_refused(hello, Refusal::kHost, "a flow from host 1 to host 1: the lower index connects");
  hello.from = 2;
  expect_refused(hello, Refusal::kHost, "a flow from host 2 to host 1: the lower index connects");
}

TEST_F(Accepting, RefusesAWrongProof) {
  LogCapture log;
  RawPeer peer(clock, host, kUrgent);
  peer.send_message(hello);
  (void)peer.receive_message<handshake::Challenge>();
  peer.send_message(handshake::Proof{});
  const auto verdict = peer.receive_message<handshake::Verdict>();
  EXPECT_EQ(verdict.head.refusal, Refusal::kSecret);
  EXPECT_THAT(handshake::unpack_text(verdict.text), HasSubstr("secret"));
  EXPECT_THAT(log.text(), AllOf(HasSubstr("connection to host 0 ("), HasSubstr("secret")));
  EXPECT_TRUE(peer.closed());
  EXPECT_TRUE(host.sink->ups.empty());
}

// An attacker sends the server's own proof back to it.
TEST_F(Accepting, RefusesAReflectedProof) {
  RawPeer peer(clock, host, kUrgent);
  peer.send_message(hello);
  const auto challenge = peer.receive_message<handshake::Challenge>();
  handshake::Proof proof;
  proof.mac = challenge.mac;
  peer.send_message(proof);
  EXPECT_EQ(peer.receive_message<handshake::Verdict>().head.refusal, Refusal::kSecret);
  EXPECT_TRUE(host.sink->ups.empty());
}

// An attacker repeats every byte of a connection that was good.
TEST_F(Accepting, RefusesAReplayedProof) {
  handshake::Proof proof;
  {
    RawPeer good(clock, host, kUrgent);
    good.send_message(hello);
    const auto challenge = good.receive_message<handshake::Challenge>();
    proof.mac = handshake::client_mac(handshake::Job(credentials(HostIndex(0))), hello, challenge.nonce);
    good.send_message(proof);
    ASSERT_EQ(good.receive_message<handshake::Verdict>().head.refusal, Refusal::kNone);
  }
  RawPeer attacker(clock, host, kUrgent);
  attacker.send_message(hello);
  (void)attacker.receive_message<handshake::Challenge>();
  attacker.send_message(proof);
  EXPECT_EQ(attacker.receive_message<handshake::Verdict>().head.refusal, Refusal::kSecret);
  EXPECT_EQ(host.sink->ups.size(), 1u);
}

TEST_F(Accepting, RefusesAProofForAnotherClass) {
  RawPeer peer(clock, host, kUrgent);
  peer.send_message(hello);
  const auto challenge = peer.receive_message<handshake::Challenge>();
  handshake::Hello other = hello;
  other.cls = 1;
  handshake::Proof proof;
  proof.mac = handshake::client_mac(handshake::Job(credentials(HostIndex(0))), other, challenge.nonce);
  peer.send_message(proof);
  EXPECT_EQ(peer.receive_message<handshake::Verdict>().head.refusal, Refusal::kSecret);
}

TEST_F(Accepting, RefusesGarbageInPlaceOfTheProof) {
  RawPeer peer(clock, host, kUrgent);
  peer.send_message(hello);
  (void)peer.receive_message<handshake::Challenge>();
  peer.send(pattern(4096, 1));
  EXPECT_EQ(peer.receive_message<handshake::Verdict>().head.refusal, Refusal::kNotTensorlane);
  EXPECT_TRUE(peer.closed());
}

TEST_F(Accepting, SurvivesGarbageOfEverySize) {
  for (std::size_t size = 1; size < 6000; size += size < 80 ? 1 : 997) {
    RawPeer peer(clock, host, kUrgent);
    peer.send(pattern(size, size));
    if (size % 3 == 0) peer.half_close();
    if (size % 3 == 1) peer.reset();
    if (size >= 8 && size % 3 != 1) {
      EXPECT_TRUE(peer.closed());
    }
  }
  EXPECT_TRUE(host.sink->ups.empty());
  RawPeer good(clock, host, kUrgent);
  good.authenticate(kUrgent);
}

TEST_F(Accepting, SaysWhenThePeerFoundOurSecretWrong) {
  LogCapture log;
  RawPeer peer(clock, host, kUrgent);
  peer.send_message(hello);
  (void)peer.receive_message<handshake::Challenge>();
  handshake::Proof proof;
  proof.head.refusal = Refusal::kSecret;
  peer.send_message(proof);
  EXPECT_TRUE(peer.closed());
  EXPECT_THAT(log.text(), HasSubstr("was refused by the peer: it could not verify this host's secret for the job"));
}

TEST_F(Accepting, RefusesAJobThatEndsDuringTheHandshake) {
  RawPeer peer(clock, host, kUrgent);
  peer.send_message(hello);
  const auto challenge = peer.receive_message<handshake::Challenge>();
  host->remove_job(kJob);
  handshake::Proof proof;
  proof.mac = handshake::client_mac(handshake::Job(credentials(HostIndex(0))), hello, challenge.nonce);
  peer.send_message(proof);
  EXPECT_EQ(peer.receive_message<handshake::Verdict>().head.refusal, Refusal::kJob);
}

TEST_F(Accepting, GivesUpOnSlowPeersAfterFiveSeconds) {
  RawPeer silent(clock, host, kUrgent), slow(clock, host, kUrgent);
  slow.send_message(hello);
  (void)slow.receive_message<handshake::Challenge>();
  clock.skip(milliseconds(4900));
  host->poll(clock.now());
  EXPECT_EQ(host->counters().unauthenticated_dropped, 0u);
  clock.skip(milliseconds(200));
  host->poll(clock.now());
  EXPECT_EQ(host->counters().unauthenticated_dropped, 2u);
  const auto verdict = slow.receive_message<handshake::Verdict>();
  EXPECT_EQ(verdict.head.refusal, Refusal::kNotAnswered);
  EXPECT_EQ(handshake::unpack_text(verdict.text), "the proof did not come in time");
  EXPECT_TRUE(silent.closed());
}

TEST_F(Accepting, LogsAtMostOneRefusalASecond) {
  LogCapture log;
  hello.head.version = 9;
  const auto knock = [&] {
    RawPeer peer(clock, host, kUrgent);
    peer.send_message(hello);
    EXPECT_TRUE(peer.receive_message<handshake::Challenge>().head.refusal == Refusal::kVersion);
  };
  for (int i = 0; i < 20; ++i) knock();
  EXPECT_EQ(count(log.text(), "handshake version 9"), 1u);
  clock.skip(seconds(1));
  knock();
  EXPECT_EQ(count(log.text(), "handshake version 9"), 2u);
  EXPECT_THAT(log.text(), HasSubstr("(19 more such since the last message)"));
  EXPECT_EQ(host->counters().refused, 21u);
}

TEST_F(Accepting, ANewConnectionOfTheSameHostReplacesTheOld) {
  RawPeer first(clock, host, kUrgent);
  first.authenticate(kUrgent);
  RawPeer second(clock, host, kUrgent);
  second.authenticate(kUrgent);
  ASSERT_EQ(host.sink->downs.size(), 1u);
  EXPECT_THAT(host.sink->downs[0].second.to_string(), HasSubstr("was replaced by a new one from the same host"));
  EXPECT_EQ(host.sink->ups.size(), 2u);
  EXPECT_TRUE(first.closed());
  EXPECT_TRUE(host->writable({kJob, HostIndex(0), kUrgent}));
}

// ---- the connecting end: host 0 is under test ----

class Connecting : public ::testing::Test {
 protected:
  Connecting() {
    // A free port: the one that a host which has gone again had for class 0.
    Host other(tcp_ipv4(), HostIndex(1));
    port = other.data_port;
    other.transport.reset();
    listener = std::make_unique<RawListener>(static_cast<std::uint16_t>(port + 1));
    host.add_job();
    EXPECT_TRUE(host->connect(key, "127.0.0.1", port, clock.now() + seconds(20)).ok());
  }
  Status final_cause() {
    EXPECT_TRUE(run_until(clock, {&host}, [&] { return !host.sink->downs.empty(); }));
    return host.sink->cause(key);
  }
  void expect_name(const Status& cause) {
    EXPECT_THAT(cause.to_string(),
                HasSubstr("connection to host 1 (127.0.0.1:" + std::to_string(port + 1) + ", class 0)"));
  }

  TestClock clock;
  Host host{tcp_ipv4(), HostIndex(0)};
  const ports::FlowKey key{kJob, HostIndex(1), kUrgent};
  std::uint16_t port = 0;
  std::unique_ptr<RawListener> listener;
};

TEST_F(Connecting, NamesAnotherProtocol) {
  RawPeer peer = listener->accept(clock, host);
  const char banner[] = "SSH-2.0-OpenSSH_9.2";
  peer.send(std::as_bytes(std::span(banner)));
  const Status cause = final_cause();
  EXPECT_EQ(cause.code(), Code::kCorrupt);
  EXPECT_THAT(cause.to_string(), HasSubstr("handshake magic 0x2d485353, expected 0x48534c54"));
  expect_name(cause);
}

TEST_F(Connecting, NamesAnotherVersion) {
  RawPeer peer = listener->accept(clock, host);
  handshake::Head head;
  head.version = 2;
  peer.send_message(head);  // nothing else: version 2 may be shorter
  const Status cause = final_cause();
  EXPECT_EQ(cause.code(), Code::kVersionMismatch);
  EXPECT_THAT(cause.to_string(), HasSubstr("handshake version 2, this host speaks 1"));
}

TEST_F(Connecting, RefusesAServerWithoutTheSecretAndTellsIt) {
  RawPeer peer = listener->accept(clock, host);
  const auto hello = peer.receive_message<handshake::Hello>();
  EXPECT_EQ(hello.to, 1);
  peer.send_message(handshake::Challenge{});
  EXPECT_EQ(peer.receive_message<handshake::Proof>().head.refusal, Refusal::kSecret);
  const Status cause = final_cause();
  EXPECT_EQ(cause.code(), Code::kPermissionDenied);
  EXPECT_THAT(cause.to_string(), HasSubstr("it does not hold the secret"));
  expect_name(cause);
}

TEST_F(Connecting, ShowsTheReasonItIsGivenWithoutControlCharacters) {
  RawPeer peer = listener->accept(clock, host);
  (void)peer.receive_message<handshake::Hello>();
  handshake::Challenge refusal;
  refusal.head.refusal = Refusal::kHost;
  refusal.text = handshake::pack_text("no\n\x1b[31mway");
  peer.send_message(refusal);
  const Status cause = final_cause();
  EXPECT_EQ(cause.code(), Code::kMismatch);
  EXPECT_THAT(cause.to_string(), HasSubstr("was refused by the peer: no??[31mway: use the same fabric.yaml"));
}

TEST_F(Connecting, ShowsARefusalInTheVerdict) {
  RawPeer peer = listener->accept(clock, host);
  const auto hello = peer.receive_message<handshake::Hello>();
  const handshake::Job job(credentials(HostIndex(1)));
  handshake::Challenge challenge;
  challenge.nonce = handshake::random_nonce();
  challenge.mac = handshake::server_mac(job, hello, challenge.nonce);
  peer.send_message(challenge);
  EXPECT_TRUE(handshake::same_mac(peer.receive_message<handshake::Proof>().mac,
                                  handshake::client_mac(job, hello, challenge.nonce)));
  handshake::Verdict verdict;
  verdict.head.refusal = Refusal::kEpochOlder;
  verdict.text = handshake::pack_text("too old");
  peer.send_message(verdict);
  EXPECT_THAT(final_cause().to_string(), HasSubstr("was refused by the peer: too old"));
  EXPECT_TRUE(host.sink->ups.empty());
}

TEST_F(Connecting, TriesAgainAfterARefusalThatMayPass) {
  for (const Refusal refusal : {Refusal::kJob, Refusal::kEpochNewer, Refusal::kNotAnswered, Refusal::kNotYet}) {
    RawPeer peer = listener->accept(clock, host);
    (void)peer.receive_message<handshake::Hello>();
    handshake::Challenge challenge;
    challenge.head.refusal = refusal;
    peer.send_message(challenge);
  }
  (void)listener->accept(clock, host);
  EXPECT_TRUE(host.sink->downs.empty());
}

TEST_F(Connecting, TriesAgainWhenThePeerIsSilentAndEndsAtTheDeadline) {
  RawPeer silent = listener->accept(clock, host);
  (void)silent.receive_message<handshake::Hello>();
  clock.skip(milliseconds(5100));
  RawPeer second = listener->accept(clock, host);
  EXPECT_TRUE(silent.closed());
  clock.skip(seconds(20));
  const Status cause = final_cause();
  EXPECT_EQ(cause.code(), Code::kTimedOut);
  EXPECT_THAT(cause.to_string(),
              AllOf(HasSubstr("the challenge did not come in time"), HasSubstr("until the deadline")));
}

TEST_F(Connecting, CanBeClosedDuringTheHandshake) {
  RawPeer peer = listener->accept(clock, host);
  host->close(key);
  EXPECT_TRUE(final_cause().ok());
  EXPECT_TRUE(peer.closed());
  run_for(clock, {&host}, std::chrono::milliseconds(30));
  EXPECT_EQ(host.sink->downs.size(), 1u);
}

}  // namespace
}  // namespace tensorlane::conformance
