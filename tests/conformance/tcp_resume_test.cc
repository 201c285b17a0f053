// TCP flows that lose their connection and go on over a new one: nothing is lost, nothing comes twice, wherever it
// breaks; and what must not be resumed is not.
#include <unistd.h>

#include <cstring>
#include <random>
#include <vector>

#include "daemon/transport/resume/exchange.h"
#include "raw_peer.h"
#include "resuming.h"

namespace tensorlane::conformance {
namespace {

using Kind = Fault::Kind;
using handshake::Refusal;
using resume::FlowParameters;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kClientBytes =
    sizeof(handshake::Hello) + sizeof(handshake::Proof) + sizeof(FlowParameters) + sizeof(handshake::Ready);
constexpr std::uint64_t kServerBytes =
    sizeof(handshake::Challenge) + sizeof(handshake::Verdict) + sizeof(FlowParameters);

class Resuming : public ::testing::Test, protected ResumingHosts {
 protected:
  explicit Resuming(ClassId cls = kUrgent) : ResumingHosts(tcp_ipv4(), cls) {}
};
class ResumingControl : public Resuming {
 protected:
  ResumingControl() : Resuming(kControlClass) {}
};
class ResumingBulk : public Resuming {
 protected:
  ResumingBulk() : Resuming(kBulk) {}
};

const std::vector<std::uint64_t> kPlaces = {0,   1,   63,  64,   65,   128,  129,  163,   164,   165,    228,   293,
                                            392, 393, 500, 1000, 5000, 5456, 5457, 30000, 45521, 100000, 150001};

TEST_F(Resuming, NothingIsLostOrDoubledWhereverAConnectionBreaks) {
  for (const Kind kind : {Kind::kReset, Kind::kClose, Kind::kHalfClose}) {
    for (const bool to_target : {true, false}) {
      for (const std::uint64_t at : kPlaces) break_at(kind, to_target, (to_target ? kClientBytes : kServerBytes) + at);
    }
  }
  EXPECT_GE(a->counters().flows_resumed, 3 * 2 * kPlaces.size() - 6);
  EXPECT_GT(a->counters().frames_resent + b->counters().frames_resent, 100u);
}
TEST_F(ResumingControl, NothingIsLostOrDoubledWhereverAConnectionBreaks) {
  for (const bool to_target : {true, false}) {
    for (const std::uint64_t at : kPlaces)
      break_at(Kind::kReset, to_target, (to_target ? kClientBytes : kServerBytes) + at);
  }
}
TEST_F(ResumingBulk, NothingIsLostOrDoubledWhereverAConnectionBreaks) {
  for (const bool to_target : {true, false}) {
    for (const std::uint64_t at : kPlaces)
      break_at(Kind::kReset, to_target, (to_target ? kClientBytes : kServerBytes) + at);
  }
}

// Also where the flow is up at one end only: the other one has not heard the handshake's last message.
TEST_F(Resuming, ADeathAnywhereInTheFirstHandshakeIsSurvived) {
  for (const bool to_target : {true, false}) {
    for (std::uint64_t at = 0; at < (to_target ? kClientBytes : kServerBytes); at += at % 64 < 4 ? 1 : 13)
      break_at(Kind::kReset, to_target, at);
  }
  for (std::uint64_t at = kClientBytes - sizeof(handshake::Ready); at < kClientBytes; ++at)
    break_at(Kind::kClose, true, at);
}

// Every new connection dies too, in its handshake or soon after.
TEST_F(Resuming, AFlowSurvivesBreakingAgainAndAgain) {
  std::mt19937_64 random(7);
  bring_up();
  std::size_t seen = proxy->connections;
  std::size_t breaks = 0;
  proxy->to_target = {Kind::kReset, 0};
  cut();
  exchange(400, [&] {
    if (proxy->connections == seen && breaks > 0) return;
    seen = proxy->connections;
    proxy->to_target = proxy->from_target = {};
    if (++breaks > 40) return;
    const bool to_target = random() % 2 == 0;
    (to_target ? proxy->to_target : proxy->from_target) = {random() % 2 == 0 ? Kind::kReset : Kind::kClose,
                                                           random() % 120000};
  });
  EXPECT_GT(breaks, 20u);
  EXPECT_GT(a->counters().flows_resumed, 10u);
}

// Whoever looks at the flow finds its connection, as the kernel names it.
TEST_F(Resuming, TheOwnerHearsOfTheNewConnection) {
  bring_up();
  const std::string before = a.sink->ends.begin()->second;
  cut();
  ASSERT_TRUE(run([&] { return a->counters().flows_resumed == 1 && b->counters().flows_resumed == 1; }));
  EXPECT_NE(a.sink->ends.begin()->second, before) << "it was dialed from another port";
  for (const Host* host : {&a, &b}) {
    ASSERT_EQ(host->sink->ends.size(), 1u);
    const auto& [key, ends] = *host->sink->ends.begin();
    ASSERT_NE(host->sink->find(key), nullptr);
    EXPECT_EQ(ends, host->sink->find(key)->stats().describe);
  }
}

// Nothing is sent in between. It is lost again long after the time that the loss before was allowed, and just before
// the end of that time, by when it has stood for a while.
TEST_F(Resuming, AnIdleFlowHasAllTheTimeAgainWhenItIsLostLater) {
  bring_up();
  std::uint64_t losses = 0;
  const auto resumed = [&] { return a->counters().flows_resumed == losses && b->counters().flows_resumed == losses; };
  for (const Duration later : {kResumeWithin + seconds(1), kResumeWithin - milliseconds(500)}) {
    cut();
    ++losses;
    ASSERT_TRUE(run(resumed));
    clock.skip(later);
    run_for(clock, {&a, &b}, std::chrono::milliseconds(20));
  }
  cut();
  ++losses;
  proxy->from_target = {Kind::kStall, 0};
  run_for(clock, {&a, &b}, std::chrono::milliseconds(20));
  clock.skip(seconds(2));
  run_for(clock, {&a, &b}, std::chrono::milliseconds(20));
  EXPECT_TRUE(a.sink->downs.empty() && b.sink->downs.empty());
  proxy->from_target = {};
  ASSERT_TRUE(run(resumed));
}

TEST_F(Resuming, APayloadBelongsToTheTransportUntilThePeerHasIt) {
  bring_up();
  const auto large = pattern(100000, 1), small = pattern(1000, 2);
  a.send(to_b, {data_header(0), small, 1});
  a.send(to_b, {data_header(1), large, 2});
  a.send(to_b, {data_header(2), small, 3});
  // The peer's kernel takes everything, the peer nothing.
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (std::chrono::steady_clock::now() < end) {
    a->poll(clock.now());
    proxy->pump();
  }
  // Of a short payload there is a copy; completions keep their order.
  ASSERT_EQ(a.sink->sent.size(), 1u);
  EXPECT_EQ(a.sink->sent[0].second, 1u);
  ASSERT_TRUE(run([&] { return a.sink->sent.size() == 3; }));
  EXPECT_EQ(b.sink->frames.size(), 3u);
}

// A sender whose copies fill up is told in time, whatever the lengths.
TEST_F(Resuming, ManyPayloadsOfOneLengthKeepMoving) {
  bring_up();
  for (const std::size_t length : {0, 1, 1000, 20000, 32768, 32769}) {
    SCOPED_TRACE(length);
    const auto payload = pattern(length, length);
    const std::size_t before = a.sink->sent.size();
    std::uint64_t given = 0;
    ASSERT_TRUE(run([&] {
      for (; given < 600 && a.writable(to_b); ++given) a.send(to_b, {data_header(given), payload, given + 1});
      return a.sink->sent.size() == before + 600;
    }));
    ASSERT_TRUE(run([&] { return b.sink->frames.size() == 600; }));
    b.sink->frames.clear();
  }
}

// It waited for its socket, which is not the one that it has afterwards.
TEST_F(Resuming, AFlowWhoseSocketWasFullGoesOn) {
  bring_up();
  const auto payload = pattern(kMaxOperation.value, 1);
  std::uint64_t given = 0;
  for (int i = 0; i < 1000; ++i) {  // the peer takes nothing
    for (; a.writable(to_b); ++given) a.send(to_b, {data_header(given), payload, given + 1});
    a->poll(clock.now());
  }
  cut();
  ASSERT_TRUE(run([&] { return b.sink->frames.size() == given && a.sink->sent.size() == given; }));
  EXPECT_TRUE(a.sink->downs.empty());
}

// The end that dials has nothing to send: only its kernel's question tells it that the other end has lost the flow.
TEST_F(Resuming, AnIdleEndLearnsThatTheOtherOneHasLostTheFlow) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to take a connection away without a word";
  proxy->from_target = {Kind::kForget, kServerBytes + 1000};
  bring_up();
  proxy->from_target = {};
  const auto payload = pattern(100000, 1);
  b.send(to_a, {data_header(), payload, 1});
  ASSERT_TRUE(run([&] { return b.sink->sent.size() == 1; }));
  ASSERT_EQ(a.sink->frames.size(), 1u);
  EXPECT_EQ(a.sink->frames[0].payload, payload);
  EXPECT_EQ(a->counters().flows_resumed, 1u);
  EXPECT_TRUE(a.sink->downs.empty() && b.sink->downs.empty());
}

// ---- what is not resumed ----

TEST_F(Resuming, AFlowThatDoesNotComeBackGoesDownOnceWithItsCause) {
  bring_up();
  const auto payload = pattern(100000, 1);
  a.send(to_b, {data_header(), payload, 1});
  proxy.reset();
  ASSERT_TRUE(run([&] { return !a.writable(to_b) && !b.writable(to_a); }));
  clock.skip(kResumeWithin - seconds(2));
  run_for(clock, {&a, &b}, std::chrono::milliseconds(20));
  EXPECT_TRUE(a.sink->downs.empty() && b.sink->downs.empty());
  clock.skip(kResumeWithin);
  ASSERT_TRUE(run([&] { return !a.sink->downs.empty() && !b.sink->downs.empty(); }));
  run_for(clock, {&a, &b}, std::chrono::milliseconds(50));
  ASSERT_EQ(a.sink->downs.size(), 1u);
  ASSERT_EQ(b.sink->downs.size(), 1u);
  EXPECT_TRUE(a.sink->sent.empty());
  EXPECT_THAT(a.sink->downs[0].second.to_string(),
              AllOf(HasSubstr("connection to host 1 (127.0.0.1:"), HasSubstr("could not be resumed: ")));
  EXPECT_THAT(b.sink->downs[0].second.to_string(), HasSubstr("no new connection within 5.0 s"));
}

// A connection that comes up and is lost before anything passes does not extend the time.
TEST_F(Resuming, UselessConnectionsDoNotPutOffTheEnd) {
  bring_up();
  const auto payload = pattern(100000, 1);
  proxy->to_target = {Kind::kReset, kClientBytes + 10};
  proxy->from_target = {Kind::kReset, kServerBytes + 10};
  proxy.reset();
  proxy = make_proxy();
  proxy->to_target = {Kind::kReset, kClientBytes + 10};
  std::size_t turns = 0;
  ASSERT_TRUE(run([&] {
    if (a.writable(to_b) && a.sink->up(to_b)) a.send(to_b, {data_header(), payload, 1});
    if (++turns % 10 == 0) clock.skip(milliseconds(5));
    return !a.sink->downs.empty() && !b.sink->downs.empty();
  }));
  EXPECT_GT(proxy->connections, 3u);
  EXPECT_TRUE(b.sink->frames.empty());
}

// A busy host answers late, perhaps later than a first attempt waits.
TEST_F(Resuming, EveryAttemptThatRunsOutOfTimeIsFollowedByALongerOne) {
  bring_up();
  cut();
  proxy->from_target = {Kind::kStall, 0};
  std::vector<Time> attempts;
  ASSERT_TRUE(run([&] {
    if (proxy->connections > attempts.size()) attempts.push_back(clock.now());
    clock.skip(milliseconds(2));
    return !a.sink->downs.empty();
  }));
  ASSERT_GE(attempts.size(), 3u);
  EXPECT_GT((attempts[2] - attempts[1]).value * 2, (attempts[1] - attempts[0]).value * 3);
}

TEST_F(Resuming, ADaemonThatHasStartedAgainIsNotResumed) {
  bring_up();
  b.restart();
  b.add_job();
  ASSERT_TRUE(run([&] { return !a.sink->downs.empty(); }));
  EXPECT_THAT(a.sink->downs[0].second.to_string(), HasSubstr("the flow to resume is not here any more"));
  EXPECT_TRUE(b.sink->ups.empty());
}

TEST_F(Resuming, AConnectingDaemonThatHasStartedAgainIsNotResumed) {
  bring_up();
  a.restart();
  a.add_job();
  ASSERT_TRUE(a->connect(to_b, "127.0.0.1", port, clock.now() + seconds(20)).ok());
  ASSERT_TRUE(run([&] { return a.sink->up(to_b) && b.sink->ups.size() == 2; }));
  ASSERT_EQ(b.sink->downs.size(), 1u);
  EXPECT_THAT(b.sink->downs[0].second.to_string(), HasSubstr("was replaced by a new one from the same host"));
  EXPECT_EQ(b->counters().flows_resumed, 0u);
}

TEST_F(Resuming, AFlowThatIsClosedOnPurposeIsNotMissed) {
  for (Host* closing : {&a, &b}) {
    bring_up();
    Host& other = closing == &a ? b : a;
    (*closing)->close(closing == &a ? to_b : to_a);
    ASSERT_TRUE(run([&] { return !a.sink->downs.empty() && !b.sink->downs.empty(); }));
    EXPECT_TRUE(closing->sink->downs[0].second.ok());
    EXPECT_THAT(other.sink->downs[0].second.to_string(), HasSubstr("was closed by the peer"));
    EXPECT_THAT(other.sink->downs[0].second.to_string(), Not(HasSubstr("resumed")));
    tear_down();
  }
}

TEST_F(Resuming, AJobThatHasEndedAtThePeerIsNotWaitedFor) {
  bring_up();
  proxy.reset();
  ASSERT_TRUE(run([&] { return !a.writable(to_b) && !b.writable(to_a); }));
  b->remove_job(kJob);
  proxy = make_proxy();
  ASSERT_TRUE(run([&] { return !a.sink->downs.empty() && !b.sink->downs.empty(); }));
  EXPECT_TRUE(b.sink->downs[0].second.ok());
  EXPECT_THAT(a.sink->downs[0].second.to_string(), HasSubstr("the job has ended on this host"));
}

TEST_F(Resuming, HostsThatDoNotAgreeOnItSaySo) {
  Host c(tcp_ipv4(), HostIndex(1));
  c.add_job();
  ASSERT_TRUE(a->connect(to_b, "127.0.0.1", c.data_port, clock.now() + seconds(1)).ok());
  ASSERT_TRUE(run_until(clock, {&a, &c}, [&] { return !a.sink->downs.empty(); }));
  EXPECT_THAT(a.sink->downs[0].second.to_string(), HasSubstr("use the same `transport`, `on_lost_flow`"));
}

// ---- who is not let in ----

class Intruding : public Resuming {
 protected:
  // The handshake of somebody who has the key of `hello` and that of `proof`: what host 1 says to it, kKey where it
  // closes without a word.
  Refusal resume_as(const std::string& hello_secret, const std::string& proof_secret, const FlowParameters& parameters,
                    bool change = false) {
    const handshake::Job job(credentials(HostIndex(0), hello_secret)), other(credentials(HostIndex(0), proof_secret));
    const handshake::Hello hello = handshake::make_hello(job, HostIndex(1), kUrgent, sizeof parameters);
    RawPeer peer(clock, b, kUrgent);
    peer.send_message(hello);
    handshake::Challenge challenge;
    const auto said = peer.receive(sizeof challenge);
    if (said.empty()) return Refusal::kKey;
    std::memcpy(&challenge, said.data(), said.size());
    handshake::Proof proof;
    proof.mac = handshake::proof_mac(other, hello, challenge.nonce, proof, handshake::bytes_of(parameters));
    peer.send_message(proof);
    FlowParameters sent = parameters;
    if (change) ++sent.delivered;
    peer.send_message(sent);
    handshake::Verdict verdict;
    const auto answer = peer.receive(sizeof verdict);
    if (answer.empty()) return Refusal::kKey;
    std::memcpy(&verdict, answer.data(), answer.size());
    return verdict.head.refusal;
  }
  // What host 0 has said of its flow on the proxy's last connection.
  FlowParameters said() const {
    FlowParameters parameters;
    std::memcpy(&parameters, proxy->seen_to_target.data() + sizeof(handshake::Hello) + sizeof(handshake::Proof),
                sizeof parameters);
    return parameters;
  }
  void expect_undisturbed() {
    EXPECT_TRUE(a.writable(to_b) && b.writable(to_a));
    exchange(10);
    EXPECT_EQ(b->counters().flows_resumed, resumed_);
  }
  std::uint64_t resumed_ = 0;
};

TEST_F(Intruding, AForgedOrReplayedResumeIsRefused) {
  bring_up();
  cut();
  ASSERT_TRUE(run([&] { return a->counters().flows_resumed == 1 && b->counters().flows_resumed == 1; }));
  resumed_ = 1;
  const FlowParameters good = said();
  ASSERT_NE(good.to, 0u);
  const std::string key = "correct horse", wrong = "wrong horse";
  EXPECT_EQ(resume_as(wrong, wrong, good), Refusal::kKey);
  EXPECT_EQ(resume_as(key, wrong, good), Refusal::kKey);
  EXPECT_EQ(resume_as(key, key, good, true), Refusal::kKey);
  {  // the very bytes that have worked once
    RawPeer replay(clock, b, kUrgent);
    const auto bytes = proxy->seen_to_target;
    replay.send(std::span(bytes).first(kClientBytes));
    (void)replay.receive_message<handshake::Challenge>();
    EXPECT_TRUE(replay.closed());
  }
  // A host of the job that means another flow.
  EXPECT_EQ(resume_as(key, key, {good.from, good.to + 1, 0}), Refusal::kParameters);
  EXPECT_EQ(resume_as(key, key, {good.from + 1, good.to, 0}), Refusal::kParameters);
  expect_undisturbed();
}

// It holds the key and knows the flow, so its word costs the flow its connection, but never a frame.
TEST_F(Intruding, ALedgerThatCannotBeIsRefusedAndTheFlowGoesOn) {
  bring_up();
  cut();
  ASSERT_TRUE(run([&] { return a->counters().flows_resumed == 1 && b->counters().flows_resumed == 1; }));
  FlowParameters good = said();
  good.delivered = 1000;
  EXPECT_EQ(resume_as("correct horse", "correct horse", good), Refusal::kParameters);
  ASSERT_TRUE(run([&] { return a->counters().flows_resumed == 2 && b->counters().flows_resumed == 2; }));
  resumed_ = 2;
  expect_undisturbed();
}

}  // namespace
}  // namespace tensorlane::conformance
