// The TCP handshake against peers that get it wrong, or mean ill: at both ends, every reason with its text.
#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "raw_peer.h"

namespace tensorlane::conformance {
namespace {

using handshake::Refusal;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr ClassId kUrgent{0};

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// Only of these a peer can be told that its job has ended: it is the key of that very start that proves it.
TEST(JobTable, RemembersTheLastThatEndedEachOfItsEpoch) {
  handshake::JobTable jobs;
  constexpr std::uint64_t kJobs = handshake::JobTable::kMaxEnded + 2;
  for (std::uint64_t id = 1; id <= kJobs; ++id) {
    jobs.add(std::make_shared<const handshake::Job>(credentials(HostIndex(0), "horse", Epoch(7), JobId(id))));
    jobs.remove(JobId(id));
  }
  EXPECT_EQ(jobs.find_ended(JobId(2), Epoch(7)), nullptr) << "the oldest are forgotten";
  EXPECT_NE(jobs.find_ended(JobId(3), Epoch(7)), nullptr);
  EXPECT_NE(jobs.find_ended(JobId(kJobs), Epoch(7)), nullptr);
  EXPECT_EQ(jobs.find_ended(JobId(kJobs), Epoch(6)), nullptr);
  EXPECT_EQ(jobs.find_ended(JobId(kJobs), Epoch(8)), nullptr);
}

// ---- texts ----

TEST(HandshakeText, AnErrorIsToldInWholeParts) {
  const std::string what(60, 'w'), fix(60, 'f');
  const auto text_of = [](const Status& error) {
    return handshake::unpack_text(handshake::pack_text(handshake::text_that_fits(error)));
  };
  EXPECT_EQ(text_of({Code::kUnavailable, what, "here", fix}), what + ": here: " + fix);
  EXPECT_EQ(text_of({Code::kUnavailable, what, std::string(60, 'h'), fix}), what + ": " + fix);
  EXPECT_EQ(text_of({Code::kUnavailable, what, "here", std::string(120, 'f')}), what);
  EXPECT_EQ(text_of({Code::kUnavailable, std::string(151, 'w'), "here", fix}), std::string(151, 'w'));
}

// ---- what is proved ----

// Whatever is changed on the way, or was said in another handshake, gives another MAC.
TEST(Macs, DependOnAllThatBothEndsHaveSaid) {
  const handshake::Job job(credentials(HostIndex(0)));
  const std::vector<std::byte> mine(8, std::byte{1}), theirs(8, std::byte{2}), others(8, std::byte{3});
  using Made = std::vector<handshake::Mac>;
  const auto all = [&job](const handshake::Hello& hello, const handshake::Nonce& nonce, handshake::Parameters client,
                          handshake::Parameters server) {
    return Made{proof_mac(job, hello, nonce, {}, client), verdict_mac(job, hello, nonce, {}, client, server),
                ready_mac(job, hello, nonce, {}, client, server), exchange_secret(job, hello, nonce, client, server)};
  };
  const handshake::Hello hello = good_hello(kUrgent), again = good_hello(kUrgent);
  const handshake::Nonce nonce = handshake::random_nonce();
  const Made made = all(hello, nonce, mine, theirs);
  EXPECT_EQ(made, all(hello, nonce, mine, theirs));
  const Made changed[] = {all(again, nonce, mine, theirs), all(hello, handshake::random_nonce(), mine, theirs),
                          all(hello, nonce, others, theirs), all(hello, nonce, mine, others)};
  for (std::size_t change = 0; change < 4; ++change) {
    for (std::size_t i = 0; i < made.size(); ++i) {
      const bool unsaid = change == 3 && i == 0;  // the server says its parameters after the proof
      EXPECT_EQ(made[i] == changed[change][i], unsaid) << "MAC " << i << ", change " << change;
      EXPECT_EQ(std::ranges::count(made, made[i]), 1) << "MAC " << i << " is another's";
    }
  }
}

// ---- the accepting end: host 1 is under test ----

class Accepting : public ::testing::Test {
 protected:
  Accepting() { host.add_job(); }
  void expect_logged(const LogCapture& log, const std::string& text) {
    EXPECT_THAT(log.text(), AllOf(HasSubstr("was refused by this host: "), HasSubstr(text), HasSubstr("127.0.0.1:"),
                                  HasSubstr("class 0")));
    EXPECT_TRUE(host.sink->ups.empty());
  }
  // A host of the job asks for what does not fit: both ends say why.
  void expect_told(const handshake::Hello& hello, Refusal refusal, const std::string& text) {
    LogCapture log;
    const auto refused = host->counters().refused;
    clock.skip(seconds(2));  // past the log's limit
    RawPeer peer(clock, host, kUrgent);
    peer.send_message(hello);
    const auto answer = peer.receive_message<handshake::Challenge>();
    EXPECT_EQ(answer.head.refusal, refusal);
    EXPECT_THAT(handshake::unpack_text(answer.text), HasSubstr(text));
    EXPECT_TRUE(handshake::same_mac(
        answer.mac, handshake::challenge_mac(handshake::Job(credentials(HostIndex(0))), hello, answer)));
    EXPECT_TRUE(peer.closed());
    EXPECT_EQ(host->counters().refused, refused + 1);
    expect_logged(log, text);
  }
  // The same from somebody who may be anyone: not a byte comes back, and the log says who it was and what was wrong.
  void expect_silence(const handshake::Hello& hello, const std::string& text, const char* level = "[warning]") {
    LogCapture log;
    const auto refused = host->counters().refused;
    clock.skip(seconds(2));
    RawPeer peer(clock, host, kUrgent);
    peer.send_message(hello);
    EXPECT_TRUE(peer.receive(1).empty());
    EXPECT_TRUE(peer.closed());
    EXPECT_EQ(host->counters().refused, refused + 1);
    expect_logged(log, text);
    EXPECT_THAT(log.text(), HasSubstr(level));
    EXPECT_THAT(log.text(),
                HasSubstr(fmt::format("which says that it is host {} of job {:#018x}", hello.from, hello.job)));
  }
  // The hello as a host with other credentials makes it.
  static handshake::Hello hello_of(const ports::JobCredentials& other, HostIndex to = HostIndex(1)) {
    return handshake::make_hello(handshake::Job(other), to, kUrgent);
  }
  // Up to the challenge.
  handshake::Challenge begin(RawPeer& peer) {
    peer.send_message(hello);
    return peer.receive_message<handshake::Challenge>();
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
  const auto proof = good_proof(hello, peer.receive_message<handshake::Challenge>().nonce);
  for (const std::byte& byte : handshake::bytes_of(proof)) peer.send({&byte, 1});
  EXPECT_EQ(peer.receive_message<handshake::Verdict>().head.refusal, Refusal::kNone);
  EXPECT_EQ(host.sink->ups.size(), 1u);
}

TEST_F(Accepting, ClosesOnAnotherProtocolWithoutAWord) {
  hello.head.magic = 0x20544547;  // "GET "
  LogCapture log;
  RawPeer peer(clock, host, kUrgent);
  peer.send_message(hello);
  EXPECT_TRUE(peer.receive(1).empty());
  EXPECT_TRUE(peer.closed());
  expect_logged(log, "handshake magic 0x20544547, expected 0x48534c54");
}

// The one thing that is told to anybody, so that a daemon which was not updated can be named.
TEST_F(Accepting, TellsAnotherVersionItsOwn) {
  for (const std::uint64_t job : {hello.job, std::uint64_t{5}}) {
    hello.job = job;
    hello.head.version = 9;
    LogCapture log;
    clock.skip(seconds(2));
    RawPeer peer(clock, host, kUrgent);
    peer.send_message(hello);
    handshake::Challenge expected = refusing<handshake::Challenge>(
        Refusal::kVersion, fmt::format("handshake version 9, this host speaks {}", handshake::kHandshakeVersion));
    const auto answer = peer.receive_message<handshake::Challenge>();
    EXPECT_EQ(std::memcmp(&answer, &expected, sizeof answer), 0) << "the same bytes, whatever it asks for";
    EXPECT_TRUE(peer.closed());
    expect_logged(log, fmt::format("handshake version 9, this host speaks {}", handshake::kHandshakeVersion));
  }
}

// ---- what a host of the job is told ----

TEST_F(Accepting, TellsAHostOfTheJobThatItMeansAnotherClass) {
  expect_told(handshake::make_hello(handshake::Job(credentials(HostIndex(0))), HostIndex(1), ClassId(1)),
              Refusal::kClass, "a flow of class 1 on the port of class 0");
}

TEST_F(Accepting, TellsAHostOfTheJobThatItMeansAnotherRail) {
  ports::JobCredentials other = credentials(HostIndex(0));
  other.rail = RailIndex(3);
  expect_told(hello_of(other), Refusal::kHost, "a flow of rail 3, this is rail 0 of host 1");
}

TEST_F(Accepting, TellsAHostOfTheJobThatItHasEnded) {
  host->remove_job(kJob);
  expect_told(hello, Refusal::kJob, "the job has ended on this host");
}

// ---- what a stranger is told: nothing ----

TEST_F(Accepting, IsSilentAboutJobsEpochsAndHosts) {
  expect_silence(hello_of(credentials(HostIndex(0), "correct horse", Epoch(7), JobId(0xabc))),
                 "job 0x0000000000000abc is not known to this host", "[debug]");  // it may begin here in a moment
  expect_silence(hello_of(credentials(HostIndex(0), "correct horse", Epoch(6))),
                 "epoch 6 of the job, this host has epoch 7");
  expect_silence(hello_of(credentials(HostIndex(0), "correct horse", Epoch(8))),
                 "epoch 8 of the job, this host has epoch 7");
  expect_silence(hello_of(credentials(HostIndex(0)), HostIndex(5)), "a flow to host 5, this is host 1");
  expect_silence(hello_of(credentials(HostIndex(2))), "a flow from host 2 to host 1: the lower index connects");
  hello.from = 1;
  expect_silence(hello, "a flow from host 1 to host 1: the lower index connects");
}

TEST_F(Accepting, IsSilentToWhoeverHasAnotherKey) {
  expect_silence(hello_of(credentials(HostIndex(0), "wrong horse")), "it does not hold the key of hosts 0 and 1");
  // Every byte of the hello counts.
  for (const std::size_t at :
       {sizeof(handshake::Head) - 1, offsetof(handshake::Hello, rail), offsetof(handshake::Hello, cls),
        offsetof(handshake::Hello, nonce), offsetof(handshake::Hello, mac), sizeof(handshake::Hello) - 1}) {
    handshake::Hello changed = hello;
    std::as_writable_bytes(std::span(&changed, 1))[at] ^= std::byte{1};
    expect_silence(changed, "it does not hold the key of hosts 0 and 1");
  }
}

// An old hello of a real host is all that an attacker on the path has: the next word has to be new.
TEST_F(Accepting, IsSilentToWhoeverRepeatsAHelloAndHasNoProof) {
  const auto refuses = [&](const handshake::Proof& proof) {
    LogCapture log;
    clock.skip(seconds(2));
    RawPeer peer(clock, host, kUrgent);
    (void)begin(peer);
    peer.send_message(proof);
    EXPECT_TRUE(peer.receive(1).empty());
    EXPECT_TRUE(peer.closed());
    expect_logged(log, "it does not hold the key of hosts 0 and 1");
    EXPECT_THAT(log.text(), HasSubstr("which says that it is host 0 of job 0x1122334455667788"));
  };
  refuses({});
  handshake::Proof forged;
  forged.mac.fill(0x5a);
  refuses(forged);
  refuses(good_proof(hello, handshake::random_nonce()));  // of another connection
  handshake::Hello other = hello;
  other.cls = 1;
  RawPeer peer(clock, host, kUrgent);
  peer.send_message(hello);
  peer.send_message(good_proof(other, peer.receive_message<handshake::Challenge>().nonce));  // of another class
  EXPECT_TRUE(peer.receive(1).empty());
  EXPECT_TRUE(host.sink->ups.empty());
}

// An attacker sends the server's own MAC back to it.
TEST_F(Accepting, RefusesAReflectedProof) {
  RawPeer peer(clock, host, kUrgent);
  handshake::Proof proof;
  proof.mac = begin(peer).mac;
  peer.send_message(proof);
  EXPECT_TRUE(peer.receive(1).empty());
  EXPECT_TRUE(host.sink->ups.empty());
}

// An attacker repeats every byte of a connection that was good.
TEST_F(Accepting, RefusesAReplayedProof) {
  handshake::Proof proof;
  {
    RawPeer good(clock, host, kUrgent);
    proof = good_proof(hello, begin(good).nonce);
    good.send_message(proof);
    ASSERT_EQ(good.receive_message<handshake::Verdict>().head.refusal, Refusal::kNone);
  }
  RawPeer attacker(clock, host, kUrgent);
  (void)begin(attacker);
  attacker.send_message(proof);
  EXPECT_TRUE(attacker.receive(1).empty());
  EXPECT_EQ(host.sink->ups.size(), 1u);
}

TEST_F(Accepting, RefusesGarbageInPlaceOfTheProof) {
  RawPeer peer(clock, host, kUrgent);
  (void)begin(peer);
  peer.send(pattern(4096, 1));
  EXPECT_TRUE(peer.receive(1).empty());
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

TEST_F(Accepting, SaysWhenThePeerCouldNotMakeItsEnd) {
  LogCapture log;
  RawPeer peer(clock, host, kUrgent);
  const auto challenge = begin(peer);
  auto proof = refusing<handshake::Proof>(Refusal::kParameters);
  proof.mac = handshake::proof_mac(handshake::Job(credentials(HostIndex(0))), hello, challenge.nonce, proof);
  peer.send_message(proof);
  EXPECT_TRUE(peer.closed());
  EXPECT_THAT(log.text(), HasSubstr("was refused by the peer: it could not make its end of the flow"));
}

TEST_F(Accepting, RefusesAJobThatEndsDuringTheHandshake) {
  RawPeer peer(clock, host, kUrgent);
  const auto challenge = begin(peer);
  host->remove_job(kJob);
  peer.send_message(good_proof(hello, challenge.nonce));
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

TEST_F(Accepting, LogsAtMostOneRefusalASecondOfOneAddress) {
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
  EXPECT_THAT(host.sink->downs[0].second.to_string(),
              HasSubstr("was replaced by a new one from the same host, at 127.0.0.1:"));
  EXPECT_EQ(host.sink->ups.size(), 2u);
  EXPECT_TRUE(first.closed());
  EXPECT_TRUE(host.writable({kJob, HostIndex(0), kUrgent}));
}

// The end of the old one and the last word of the new one come in the same poll.
TEST_F(Accepting, TheOldOnesEndIsToldBeforeTheNewOneIsUp) {
  RawPeer first(clock, host, kUrgent);
  first.authenticate(kUrgent);
  RawPeer second(clock, host, kUrgent);
  const auto challenge = begin(second);
  first.reset();
  second.send_message(good_proof(hello, challenge.nonce));
  host->poll(clock.now());
  ASSERT_TRUE(run_until(clock, {&host}, [&] { return host.sink->ups.size() == 2; }));
  ASSERT_EQ(host.sink->downs.size(), 1u);
  EXPECT_TRUE(host.writable({kJob, HostIndex(0), kUrgent}));
}

// ---- guessing ----

// All that a stranger can find out: what comes back to whatever it says, byte for byte, and whether the host closes.
std::string all_that_a_stranger_sees(Host& host, TestClock& clock) {
  std::vector<std::vector<std::byte>> probes;
  const auto probe = [&](const auto& message) {
    const auto bytes = handshake::bytes_of(message);
    probes.emplace_back(bytes.begin(), bytes.end());
  };
  handshake::Hello hello;
  hello.to = 1;
  hello.cls = kUrgent.value;
  for (const std::uint64_t job : {kJob.value, std::uint64_t{1}}) {
    for (const std::uint32_t epoch : {6u, 7u, 8u}) {
      for (const std::uint16_t from : {0, 1, 9}) {
        for (const char* guess : {"correct horse", "battery staple"}) {
          hello.job = job;
          hello.epoch = epoch;
          hello.from = from;
          // The secret of a job is no key: whoever knows or guesses it is a stranger, too.
          ports::JobCredentials guessed = credentials(HostIndex(from == 1 ? 0 : from), guess, Epoch(epoch), JobId(job));
          for (ports::PairKey& key : guessed.keys) key = {std::byte{guess[0] == 'c'}};
          hello.mac = handshake::hello_mac(handshake::Job(guessed), hello);
          probe(hello);
        }
      }
    }
  }
  hello.head.version = 1;
  probe(hello);
  hello.head.magic = 5;
  probe(hello);
  std::string seen;
  for (const auto& bytes : probes) {
    RawPeer peer(clock, host, kUrgent);
    peer.send(bytes);
    for (const std::byte byte : peer.receive(1000)) seen += fmt::format("{:02x}", static_cast<unsigned>(byte));
    seen += peer.closed() ? " closed\n" : " open\n";
  }
  return seen;
}

TEST(Guessing, FindsNothingToTestGuessesAgainst) {
  std::set<std::string> seen;
  for (const char* secret : {"correct horse", "battery staple"}) {
    TestClock clock;
    Host host(tcp_ipv4(), HostIndex(1));
    host.add_job(secret);
    seen.insert(all_that_a_stranger_sees(host, clock));
  }
  TestClock clock;
  Host idle(tcp_ipv4(), HostIndex(1));  // there is no job at all
  seen.insert(all_that_a_stranger_sees(idle, clock));
  EXPECT_EQ(seen.size(), 1u) << "it can tell hosts with one secret, another or none apart";
  EXPECT_EQ(count(*seen.begin(), "\n closed\n"), count(*seen.begin(), "\n") - 2) << "only the version is answered";
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
  // A host of the job refuses.
  static handshake::Challenge refused(const handshake::Hello& hello, Refusal refusal, const std::string& text = {}) {
    auto challenge = refusing<handshake::Challenge>(refusal, text);
    challenge.mac = handshake::challenge_mac(handshake::Job(credentials(HostIndex(1))), hello, challenge);
    return challenge;
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
  head.version = 1;
  peer.send_message(head);  // nothing else: version 1 may be shorter
  const Status cause = final_cause();
  EXPECT_EQ(cause.code(), Code::kVersionMismatch);
  EXPECT_THAT(cause.to_string(),
              HasSubstr(fmt::format("handshake version 1, this host speaks {}", handshake::kHandshakeVersion)));
}

TEST_F(Connecting, RefusesAServerWithoutTheKeyAndTellsItNothing) {
  RawPeer peer = listener->accept(clock, host);
  const auto hello = peer.receive_message<handshake::Hello>();
  EXPECT_EQ(hello.to, 1);
  peer.send_message(handshake::Challenge{});
  EXPECT_TRUE(peer.receive(1).empty());
  const Status cause = final_cause();
  EXPECT_EQ(cause.code(), Code::kPermissionDenied);
  EXPECT_THAT(cause.to_string(), HasSubstr("it does not hold the key of hosts 0 and 1"));
  expect_name(cause);
}

// What stands in the way of a flow may be temporary: the leader's roster reaches some hosts before others.
TEST_F(Connecting, TriesAgainWhereItIsNotKnownAndSaysWhereToLookInTheEnd) {
  for (int i = 0; i < 3; ++i) (void)listener->accept(clock, host).receive_message<handshake::Hello>();
  EXPECT_TRUE(host.sink->downs.empty());
  clock.skip(seconds(20));
  const Status cause = final_cause();
  EXPECT_EQ(cause.code(), Code::kTimedOut);
  EXPECT_THAT(cause.to_string(),
              AllOf(HasSubstr("was closed by that host without an answer, and so until the deadline"),
                    HasSubstr("look at the log of tensorlaned there")));
  expect_name(cause);
}

TEST_F(Connecting, ShowsTheReasonItIsGivenWithoutControlCharacters) {
  RawPeer peer = listener->accept(clock, host);
  peer.send_message(refused(peer.receive_message<handshake::Hello>(), Refusal::kHost, "no\n\x1b[31mway"));
  const Status cause = final_cause();
  EXPECT_EQ(cause.code(), Code::kMismatch);
  EXPECT_THAT(cause.to_string(), HasSubstr("was refused by the peer: no??[31mway: use the same fabric.yaml"));
}

TEST_F(Connecting, BelievesNoReasonWithoutAMac) {
  RawPeer peer = listener->accept(clock, host);
  (void)peer.receive_message<handshake::Hello>();
  peer.send_message(refusing<handshake::Challenge>(Refusal::kJob, "go away"));
  EXPECT_THAT(final_cause().to_string(), AllOf(HasSubstr("does not hold the key"), Not(HasSubstr("go away"))));
}

TEST_F(Connecting, ShowsARefusalInTheVerdict) {
  RawPeer peer = listener->accept(clock, host);
  const auto hello = peer.receive_message<handshake::Hello>();
  const auto challenge = good_challenge(hello);
  peer.send_message(challenge);
  EXPECT_TRUE(
      handshake::same_mac(peer.receive_message<handshake::Proof>().mac, good_proof(hello, challenge.nonce).mac));
  auto verdict = refusing<handshake::Verdict>(Refusal::kClass, "too old");
  verdict.mac = handshake::verdict_mac(handshake::Job(credentials(HostIndex(1))), hello, challenge.nonce, verdict);
  peer.send_message(verdict);
  EXPECT_THAT(final_cause().to_string(), HasSubstr("was refused by the peer: too old"));
  EXPECT_TRUE(host.sink->ups.empty());
}

TEST_F(Connecting, TriesAgainAfterARefusalThatMayPass) {
  for (const Refusal refusal : {Refusal::kNotAnswered, Refusal::kNotYet}) {
    RawPeer peer = listener->accept(clock, host);
    peer.send_message(refused(peer.receive_message<handshake::Hello>(), refusal));
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
