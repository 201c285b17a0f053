// TCP flows that lose their connection and go on over a new one: nothing is lost, nothing comes twice, wherever it
// breaks; and what must not be resumed is not.
#include <fmt/format.h>

#include <cstring>
#include <deque>
#include <random>

#include "daemon/transport/tcp/exchange.h"
#include "fault_proxy.h"
#include "raw_peer.h"

namespace tensorlane::conformance {
namespace {

using Kind = Fault::Kind;
using handshake::Refusal;
using tcp::FlowParameters;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr Duration kResumeWithin = seconds(5);
constexpr std::uint64_t kClientBytes =
    sizeof(handshake::Hello) + sizeof(handshake::Proof) + sizeof(FlowParameters) + sizeof(handshake::Ready);
constexpr std::uint64_t kServerBytes =
    sizeof(handshake::Challenge) + sizeof(handshake::Verdict) + sizeof(FlowParameters) + handshake::kMacBytes;

// What one end sends: frames of all kinds of lengths, each of which is overwritten as soon as the transport allows it.
class Traffic {
 public:
  Traffic(Host& from, Host& to, const ports::FlowKey& flow, const ports::FlowKey& at_receiver, std::uint64_t seed)
      : from_(from), to_(to), flow_(flow), at_receiver_(at_receiver), seed_(seed) {
    from.sink->sent_hook = [this](const ports::FlowKey&, std::uint64_t token) {
      for (std::byte& byte : buffers_[token - 1]) byte = std::byte{0xee};
    };
  }
  static std::size_t length(std::uint64_t i) {
    constexpr std::size_t kLengths[] = {0, 1, 100, 5000, 40000, 0, 64, 20000};
    return kLengths[i % std::size(kLengths)];
  }
  // Queues what the flow takes, up to `frames` in all.
  void feed(std::uint64_t frames) {
    while (buffers_.size() < frames && from_->writable(flow_)) {
      const std::uint64_t i = buffers_.size();
      buffers_.push_back(pattern(length(i), seed_ + i));
      from_->send(flow_, {data_header(i), buffers_.back(), i + 1});
    }
  }
  bool arrived(std::uint64_t frames) const {
    return to_.sink->frames.size() >= frames && from_.sink->sent.size() >= frames;
  }
  // Each frame once, in order, as it was; each completion once, in order.
  void check(std::uint64_t frames) const {
    ASSERT_EQ(to_.sink->frames.size(), frames);
    ASSERT_EQ(from_.sink->sent.size(), frames);
    for (std::uint64_t i = 0; i < frames; ++i) {
      const RecordingSink::Frame& frame = to_.sink->frames[i];
      ASSERT_EQ(frame.flow, at_receiver_);
      ASSERT_EQ(frame.header.sequence.value, i);
      ASSERT_EQ(frame.header.flags, 0);
      ASSERT_TRUE(frame.payload == pattern(length(i), seed_ + i)) << "frame " << i;
      ASSERT_EQ(from_.sink->sent[i].second, i + 1);
    }
    EXPECT_TRUE(from_.sink->downs.empty());
    EXPECT_EQ(from_.sink->ups.size(), 1u);
  }

 private:
  Host& from_;
  Host& to_;
  const ports::FlowKey flow_, at_receiver_;
  const std::uint64_t seed_;
  std::deque<std::vector<std::byte>> buffers_;
};

// Host 0 reaches one class of host 1 through a proxy.
class Resuming : public ::testing::Test {
 protected:
  explicit Resuming(ClassId cls = kUrgent)
      : a(tcp_ipv4(), HostIndex(0), {.resume_within = kResumeWithin}),
        b(tcp_ipv4(), HostIndex(1), {.resume_within = kResumeWithin}),
        to_b{kJob, HostIndex(1), cls},
        to_a{kJob, HostIndex(0), cls} {
    Host ports(tcp_ipv4(), HostIndex(9));
    port = ports.data_port;
    ports.transport.reset();
    proxy = make_proxy();
    a.add_job();
    b.add_job();
  }
  std::unique_ptr<FaultProxy> make_proxy() const {
    const std::uint16_t of_class = to_b.cls == kControlClass ? 0 : static_cast<std::uint16_t>(1 + to_b.cls.value);
    return std::make_unique<FaultProxy>(static_cast<std::uint16_t>(port + of_class),
                                        static_cast<std::uint16_t>(b.data_port + of_class));
  }
  bool run(const std::function<bool()>& done, std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    return run_until(
        clock, {&a, &b},
        [&] {
          if (proxy) proxy->pump();
          return done();
        },
        timeout);
  }
  void bring_up() {
    ASSERT_TRUE(a->connect(to_b, "127.0.0.1", port, clock.now() + seconds(20)).ok());
    ASSERT_TRUE(run([&] { return a.sink->up(to_b) && b.sink->up(to_a); }));
  }
  // Sends `frames` each way; `each_turn` may break what it likes.
  void exchange(std::uint64_t frames, const std::function<void()>& each_turn = {}) {
    Traffic forth(a, b, to_b, to_a, 1000), back(b, a, to_a, to_b, 5000);
    ASSERT_TRUE(run([&] {
      forth.feed(frames);
      back.feed(frames);
      if (each_turn) each_turn();
      return forth.arrived(frames) && back.arrived(frames);
    }));
    forth.check(frames);
    back.check(frames);
    a.sink->sent_hook = b.sink->sent_hook = nullptr;
  }
  void tear_down() {
    a->close(to_b);
    ASSERT_TRUE(run([&] { return !a.sink->up(to_b) && !b.sink->up(to_a); }));
    proxy->to_target = proxy->from_target = {};
    *a.sink = RecordingSink();
    *b.sink = RecordingSink();
  }
  // The connection that there is ends with a reset at both ends; the next one is let through.
  void cut() {
    proxy.reset();
    proxy = make_proxy();
  }
  void break_at(Kind kind, bool to_target, std::uint64_t at) {
    SCOPED_TRACE(fmt::format("{} byte {}, kind {}", to_target ? "to the server," : "from the server,", at,
                             static_cast<int>(kind)));
    const std::size_t before = proxy->connections;
    (to_target ? proxy->to_target : proxy->from_target) = {kind, at};
    ASSERT_TRUE(a->connect(to_b, "127.0.0.1", port, clock.now() + seconds(20)).ok());
    exchange(24, [&] {
      if (proxy->connections > before) proxy->to_target = proxy->from_target = {};
    });
    EXPECT_GE(proxy->connections, before + 2);
    tear_down();
  }

  TestClock clock;
  Host a, b;
  const ports::FlowKey to_b, to_a;
  std::uint16_t port = 0;
  std::unique_ptr<FaultProxy> proxy;
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

TEST_F(Resuming, APayloadBelongsToTheTransportUntilThePeerHasIt) {
  bring_up();
  const auto large = pattern(100000, 1), small = pattern(1000, 2);
  a->send(to_b, {data_header(0), small, 1});
  a->send(to_b, {data_header(1), large, 2});
  a->send(to_b, {data_header(2), small, 3});
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
      for (; given < 600 && a->writable(to_b); ++given) a->send(to_b, {data_header(given), payload, given + 1});
      return a.sink->sent.size() == before + 600;
    }));
    ASSERT_TRUE(run([&] { return b.sink->frames.size() == 600; }));
    b.sink->frames.clear();
  }
}

// ---- what is not resumed ----

TEST_F(Resuming, AFlowThatDoesNotComeBackGoesDownOnceWithItsCause) {
  bring_up();
  const auto payload = pattern(100000, 1);
  a->send(to_b, {data_header(), payload, 1});
  proxy.reset();
  ASSERT_TRUE(run([&] { return !a->writable(to_b) && !b->writable(to_a); }));
  clock.skip(kResumeWithin - milliseconds(500));
  run_for(clock, {&a, &b}, std::chrono::milliseconds(20));
  EXPECT_TRUE(a.sink->downs.empty() && b.sink->downs.empty());
  clock.skip(seconds(1));
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
    if (a->writable(to_b) && a.sink->up(to_b)) a->send(to_b, {data_header(), payload, 1});
    if (++turns % 10 == 0) clock.skip(milliseconds(5));
    return !a.sink->downs.empty() && !b.sink->downs.empty();
  }));
  EXPECT_GT(proxy->connections, 3u);
  EXPECT_TRUE(b.sink->frames.empty());
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
  ASSERT_TRUE(run([&] { return !a->writable(to_b) && !b->writable(to_a); }));
  b->remove_job(kJob);
  proxy = make_proxy();
  ASSERT_TRUE(run([&] { return !a.sink->downs.empty() && !b.sink->downs.empty(); }));
  EXPECT_TRUE(b.sink->downs[0].second.ok());
  EXPECT_THAT(a.sink->downs[0].second.to_string(), HasSubstr("is not known to this host"));
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
  // The handshake of somebody who has `secret`, up to the verdict.
  Refusal resume_as(const std::string& secret, const FlowParameters& parameters, bool change = false) {
    const handshake::Job job(credentials(HostIndex(0), secret));
    const handshake::Hello hello = handshake::make_hello(job, HostIndex(1), kUrgent, sizeof parameters);
    RawPeer peer(clock, b, kUrgent);
    peer.send_message(hello);
    const auto challenge = peer.receive_message<handshake::Challenge>();
    handshake::Proof proof;
    proof.mac = handshake::client_mac(job, hello, challenge.nonce, handshake::bytes_of(parameters));
    peer.send_message(proof);
    FlowParameters sent = parameters;
    if (change) ++sent.delivered;
    peer.send_message(sent);
    return peer.receive_message<handshake::Verdict>().head.refusal;
  }
  // What host 0 has said of its flow on the proxy's last connection.
  FlowParameters said() const {
    FlowParameters parameters;
    std::memcpy(&parameters, proxy->seen_to_target.data() + sizeof(handshake::Hello) + sizeof(handshake::Proof),
                sizeof parameters);
    return parameters;
  }
  void expect_undisturbed() {
    EXPECT_TRUE(a->writable(to_b) && b->writable(to_a));
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
  EXPECT_EQ(resume_as("wrong horse", good), Refusal::kSecret);
  EXPECT_EQ(resume_as("correct horse", good, true), Refusal::kSecret);
  {  // the very bytes that have worked once
    RawPeer replay(clock, b, kUrgent);
    const auto bytes = proxy->seen_to_target;
    replay.send(std::span(bytes).first(kClientBytes));
    (void)replay.receive_message<handshake::Challenge>();
    EXPECT_EQ(replay.receive_message<handshake::Verdict>().head.refusal, Refusal::kSecret);
  }
  // A host of the job that means another flow.
  EXPECT_EQ(resume_as("correct horse", {good.from, good.to + 1, 0}), Refusal::kParameters);
  EXPECT_EQ(resume_as("correct horse", {good.from + 1, good.to, 0}), Refusal::kParameters);
  expect_undisturbed();
}

// It holds the secret and knows the flow, so its word costs the flow its connection, but never a frame.
TEST_F(Intruding, ALedgerThatCannotBeIsRefusedAndTheFlowGoesOn) {
  bring_up();
  cut();
  ASSERT_TRUE(run([&] { return a->counters().flows_resumed == 1 && b->counters().flows_resumed == 1; }));
  FlowParameters good = said();
  good.delivered = 1000;
  EXPECT_EQ(resume_as("correct horse", good), Refusal::kParameters);
  ASSERT_TRUE(run([&] { return a->counters().flows_resumed == 2 && b->counters().flows_resumed == 2; }));
  resumed_ = 2;
  expect_undisturbed();
}

}  // namespace
}  // namespace tensorlane::conformance
