// What every transport must do when a host dies, freezes or starts again, in every state of a connection: the cases
// through faulty_transport.h, the same for all.
#include <algorithm>
#include <cstring>

#include "faulty_transport.h"

namespace tensorlane::conformance {
namespace {

using Of = FaultyTransport::Moment::Of;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Faults : public OnTransport {
 protected:
  void SetUp() override {
    OnTransport::SetUp();
    if (!IsSkipped()) kind = faulty(GetParam());
  }
  TransportKind kind;
};
INSTANTIATE_TEST_SUITE_P(Transports, Faults, ::testing::ValuesIn(kinds_under_test()),
                         [](const auto& info) { return info.param.name; });

// Two hosts that want one flow, whatever happens to one of them.
struct Couple {
  explicit Couple(const TransportKind& kind) : a(kind, HostIndex(0)), b(kind, HostIndex(1)) {
    a.add_job();
    b.add_job();
  }
  void dial() {
    const Status status = a->connect(to_b, b.kind.address, b.data_port, clock.now() + seconds(60));
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  bool up() const { return a.sink->up(to_b) && b.sink->up(to_a); }
  bool run_until(const std::function<bool()>& done) { return conformance::run_until(clock, {&a, &b}, done); }
  void restart(Host& host) {
    host.restart();
    host.add_job();
    if (&host == &a) dial();
  }
  // Up again, by dialling again where the flow has gone down at the host that dials, and good for frames both ways.
  void expect_recovery() {
    std::size_t downs = a.sink->downs.size();
    ASSERT_TRUE(run_until([&] {
      if (a.sink->downs.size() > downs) {
        downs = a.sink->downs.size();
        dial();
      }
      if (!up()) return false;
      // An old end may not know yet that it is one: only a frame that gets through tells.
      if (a.writable(to_b)) a.send(to_b, {data_header(77), {}, 0});
      if (b.writable(to_a)) b.send(to_a, {data_header(77), {}, 0});
      const auto got = [](const Host& host) {
        return std::ranges::any_of(host.sink->frames, [](const auto& f) { return f.header.sequence.value == 77; });
      };
      return got(a) && got(b);
    }));
  }

  TestClock clock;
  Host a, b;
  const ports::FlowKey to_b{kJob, HostIndex(1), kUrgent}, to_a{kJob, HostIndex(0), kUrgent};
};

// Polls after which something happens: every one at first, when the states of a connection follow each other, then
// fewer, and fewer where connecting is slow. The loops end when the flow was up by then.
std::uint64_t next_moment(const TransportKind& kind, std::uint64_t polls) {
  const bool slow = kind.cycles < 1000;
  return polls < 12 && !slow ? polls + 1 : polls + polls / (slow ? 1 : 3) + 1;
}

void expect_named_end(const Host& host, const ports::FlowKey& flow, const std::string& peer) {
  const Status cause = host.sink->cause(flow);
  EXPECT_FALSE(cause.ok());
  EXPECT_THAT(cause.to_string(), HasSubstr("connection to " + peer + " ("));
}

TEST_P(Faults, ADeathInAnyStateOfAConnectionIsSurvived) {
  for (const bool dialler : {false, true}) {
    bool was_up = false;
    for (std::uint64_t polls = 0; !was_up; polls = next_moment(kind, polls)) {
      SCOPED_TRACE((dialler ? "the dialling host, after polls: " : "the accepting host, after polls: ") +
                   std::to_string(polls));
      Couple couple(kind);
      couple.dial();
      Host& victim = dialler ? couple.a : couple.b;
      Host& survivor = dialler ? couple.b : couple.a;
      faults(victim).die({Of::kPoll, polls});
      ASSERT_TRUE(couple.run_until([&] { return faults(victim).dead(); }));
      was_up = victim.sink->up(dialler ? couple.to_b : couple.to_a);
      const bool survivor_up = survivor.sink->up(dialler ? couple.to_a : couple.to_b);
      run_for(couple.clock, {&survivor}, milliseconds(3));
      EXPECT_LE(survivor.sink->downs.size(), survivor_up || !survivor.sink->ups.empty() ? 1u : 0u)
          << survivor.sink->downs[0].second.to_string();
      if (!survivor.sink->downs.empty())
        expect_named_end(survivor, dialler ? couple.to_a : couple.to_b, dialler ? "host 0" : "host 1");
      // Its buffers, too: the survivor's end may have gone down already, and is dialled again then.
      const bool lost = !dialler && !survivor.sink->downs.empty();
      couple.restart(victim);
      if (lost) couple.dial();
      couple.expect_recovery();
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST_P(Faults, AFreezeInAnyStateOfAConnectionIsWaitedFor) {
  for (const bool dialler : {false, true}) {
    bool was_up = false;
    for (std::uint64_t polls = 0; !was_up; polls = next_moment(kind, polls)) {
      SCOPED_TRACE((dialler ? "the dialling host, after polls: " : "the accepting host, after polls: ") +
                   std::to_string(polls));
      Couple couple(kind);
      couple.dial();
      Host& victim = dialler ? couple.a : couple.b;
      Host& survivor = dialler ? couple.b : couple.a;
      faults(victim).freeze({Of::kPoll, polls});
      ASSERT_TRUE(couple.run_until([&] { return faults(victim).frozen(); }));
      was_up = victim.sink->up(dialler ? couple.to_b : couple.to_a);
      run_for(couple.clock, {&survivor}, milliseconds(3));
      // Longer than any handshake may take: the half-open connection is given up, not the flow.
      couple.clock.skip(seconds(6));
      run_for(couple.clock, {&survivor}, milliseconds(3));
      EXPECT_TRUE(survivor.sink->downs.empty());
      faults(victim).thaw();
      couple.expect_recovery();
      ASSERT_FALSE(HasFailure());
    }
  }
}

// Law 10: silence is no reason to close; who wants to can, without the peer's help, and nothing is used any more then.
TEST_P(Faults, AFlowToAFrozenPeerFillsUpAndCanBeClosed) {
  Pair pair(kind);
  faults(pair.b).freeze({});
  auto bytes = pattern(kMaxOperation.value, 1);
  std::uint64_t given = 0;
  const auto end = std::chrono::steady_clock::now() + milliseconds(50);
  run_until(
      pair.clock, {&pair.a},
      [&] {
        while (pair.a.writable(pair.to_b(kBulk))) pair.a.send(pair.to_b(kBulk), {data_header(given), bytes, ++given});
        return std::chrono::steady_clock::now() > end;
      },
      milliseconds(50));
  EXPECT_TRUE(pair.a.sink->downs.empty());
  EXPECT_LT(given, 400u);
  pair.a->close(pair.to_b(kBulk));
  ASSERT_TRUE(run_until(pair.clock, {&pair.a}, [&] { return !pair.a.sink->up(pair.to_b(kBulk)); }));
  EXPECT_TRUE(pair.a.sink->downs[0].second.ok());
  EXPECT_EQ(pair.a->in_flight(kBulk).value, 0u);
  std::ranges::fill(bytes, std::byte{0xee});
  faults(pair.b).thaw();
  std::size_t wrong = 0;
  pair.b.sink->frame_hook = [&, good = pattern(kMaxOperation.value, 1)](const auto&, const auto& header) {
    const auto& frame = pair.b.sink->frames.back();
    wrong += frame.payload != good || header.sequence.value + 1 != pair.b.sink->frames.size();
  };
  ASSERT_TRUE(pair.run_until([&] { return !pair.b.sink->up(pair.to_a(kBulk)); }));
  EXPECT_EQ(wrong, 0u);
  EXPECT_LE(pair.b.sink->frames.size(), given);
  EXPECT_TRUE(pair.a.sink->up(pair.to_b(kUrgent))) << "other flows live on";
}

// The host has lost its power and is back, and its peer's end of the old connection has heard nothing of that.
TEST_P(Faults, AHostThatComesBackReplacesItsHalfOpenConnection) {
  Couple couple(kind);
  couple.dial();
  ASSERT_TRUE(couple.run_until([&] { return couple.up(); }));
  faults(couple.a).freeze({});
  Host again(kind, HostIndex(0));
  again.add_job();
  ASSERT_TRUE(
      again->connect(couple.to_b, couple.b.kind.address, couple.b.data_port, couple.clock.now() + seconds(20)).ok());
  ASSERT_TRUE(run_until(couple.clock, {&again, &couple.b},
                        [&] { return again.sink->up(couple.to_b) && couple.b.sink->ups.size() == 2; }));
  ASSERT_EQ(couple.b.sink->downs.size(), 1u);
  EXPECT_THAT(couple.b.sink->downs[0].second.to_string(), HasSubstr("was replaced by a new one from the same host"));
  const auto bytes = pattern(1000, 1);
  again.send(couple.to_b, {data_header(), bytes, 0});
  ASSERT_TRUE(run_until(couple.clock, {&again, &couple.b}, [&] { return couple.b.sink->frames.size() == 1; }));
  // The old one is no zombie: when it runs on, it learns that it is over.
  faults(couple.a).thaw();
  ASSERT_TRUE(run_until(couple.clock, {&couple.a, &again, &couple.b}, [&] { return !couple.a.sink->downs.empty(); }));
  EXPECT_EQ(couple.b.sink->downs.size(), 1u);
  EXPECT_TRUE(again.sink->up(couple.to_b));
}

// Streams from both hosts, of operations of many sizes; whoever's moment it is dies or cuts the flow.
class Streams {
 public:
  explicit Streams(const TransportKind& kind) : pair(kind) {
    const std::uint64_t large = kind.largest < mib(64) ? 12 : 3;  // every so many
    for (std::uint64_t i = 0; i < kOperations; ++i)
      payloads.push_back(pattern(i % large == 0 ? kMaxOperation.value : (i * 7919) % 40000, i));
  }
  // One turn of both senders, and whatever has come.
  void pump(Host& host, const ports::FlowKey& to, std::uint64_t& given) {
    while (given < kOperations && host.transport && host.writable(to)) {
      host.send(to, {data_header(given), payloads[given], given + 1});
      ++given;
    }
  }
  bool run(const std::function<bool()>& done) {
    return pair.run_until([&] {
      pump(pair.a, pair.to_b(kBulk), given_a);
      pump(pair.b, pair.to_a(kBulk), given_b);
      return done();
    });
  }
  // What a host has got is the beginning of what was sent, and whole; so is what it was told of its own.
  void check(const Host& host) {
    for (std::size_t i = 0; i < host.sink->frames.size(); ++i) {
      ASSERT_EQ(host.sink->frames[i].header.sequence.value, i);
      ASSERT_TRUE(host.sink->frames[i].payload == payloads[i]) << i;
    }
    for (std::size_t i = 0; i < host.sink->sent.size(); ++i) ASSERT_EQ(host.sink->sent[i].second, i + 1);
  }

  static constexpr std::uint64_t kOperations = 40;
  Pair pair;
  std::vector<std::vector<std::byte>> payloads;
  std::uint64_t given_a = 0, given_b = 0;
};

TEST_P(Faults, ADeathAtAnyFrameLeavesTheBeginningOfTheStream) {
  for (const Of of : {Of::kSent, Of::kReceived}) {
    for (const std::uint64_t at : {1, 2, 7, 20, 33}) {
      SCOPED_TRACE((of == Of::kSent ? "sent " : "received ") + std::to_string(at));
      Streams streams(kind);
      Pair& pair = streams.pair;
      faults(pair.b).die({of, at});
      ASSERT_TRUE(streams.run([&] { return pair.a.sink->downs.size() == 3; }));
      run_for(pair.clock, {&pair.a}, milliseconds(2));
      EXPECT_EQ(pair.a.sink->downs.size(), 3u);
      expect_named_end(pair.a, pair.to_b(kBulk), "host 1");
      EXPECT_EQ(pair.a->in_flight(kBulk).value, 0u);
      streams.check(pair.a);
      streams.check(pair.b);
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST_P(Faults, ACutAtAnyFrameLeavesTheBeginningOfTheStream) {
  for (const Of of : {Of::kSent, Of::kReceived}) {
    for (const std::uint64_t at : {1, 3, 20}) {
      SCOPED_TRACE((of == Of::kSent ? "sent " : "received ") + std::to_string(at));
      Streams streams(kind);
      Pair& pair = streams.pair;
      faults(pair.b).cut({of, at});
      ASSERT_TRUE(streams.run([&] { return !pair.a.sink->downs.empty() && !pair.b.sink->downs.empty(); }));
      EXPECT_TRUE(pair.b.sink->cause(pair.to_a(kBulk)).ok());
      expect_named_end(pair.a, pair.to_b(kBulk), "host 1");
      EXPECT_EQ((of == Of::kSent ? pair.b.sink->sent.size() : pair.b.sink->frames.size()), at);
      streams.check(pair.a);
      streams.check(pair.b);
      // The same flow again, from its first frame.
      pair.a.sink->frames.clear();
      pair.b.sink->frames.clear();
      ASSERT_TRUE(
          pair.a->connect(pair.to_b(kBulk), pair.b.kind.address, pair.b.data_port, pair.clock.now() + seconds(20))
              .ok());
      ASSERT_TRUE(
          pair.run_until([&] { return pair.a.sink->up(pair.to_b(kBulk)) && pair.b.sink->up(pair.to_a(kBulk)); }));
      streams.given_a = streams.given_b = 0;
      pair.a.sink->sent.clear();
      pair.b.sink->sent.clear();
      ASSERT_TRUE(streams.run([&] {
        return pair.a.sink->frames.size() == Streams::kOperations && pair.b.sink->frames.size() == Streams::kOperations;
      }));
      streams.check(pair.a);
      streams.check(pair.b);
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST_P(Faults, SlowHostsKeepTheOrderWithinFlows) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Streams streams(kind);
    Pair& pair = streams.pair;
    faults(pair.a).be_slow(seed, 20);
    faults(pair.b).be_slow(seed + 100, 7);
    ASSERT_TRUE(streams.run([&] {
      return pair.a.sink->frames.size() == Streams::kOperations && pair.b.sink->frames.size() == Streams::kOperations &&
             pair.a.sink->sent.size() == Streams::kOperations && pair.b.sink->sent.size() == Streams::kOperations;
    }));
    streams.check(pair.a);
    streams.check(pair.b);
    ASSERT_TRUE(pair.run_until([&] { return pair.a->in_flight(kBulk).value + pair.b->in_flight(kBulk).value == 0; }));
  }
}

// Law 7: the receiver aborts while the sender, which has a grant and does not hear of it, goes on sending. Once the
// flow is down the memory behind the grant belongs to somebody else.
TEST_P(Faults, NothingLandsInABufferThatWasGivenBack) {
  for (const std::uint64_t polls : {0, 1, 2, 5, 20}) {
    SCOPED_TRACE("frozen after polls: " + std::to_string(polls));
    Pair pair(kind);
    const auto source = pattern(4 * kMaxOperation.value, 1);
    std::vector<std::byte> memory(source), landing(source.size());
    ASSERT_TRUE(pair.a->map(kJob, memory).ok());
    ASSERT_TRUE(pair.b->map(kJob, landing).ok());
    std::vector<std::span<std::byte>> places;
    for (std::size_t page = 0; page < 4; ++page)
      places.push_back(std::span(landing).subspan(page * kMaxOperation.value, kMaxOperation.value));
    protocol::FrameHeader grant;
    grant.type = protocol::FrameType::kGrant;
    grant.grant = 5;
    pair.b.sink->granted = places;
    pair.b.send(pair.to_a(kControlClass), {grant, {}, 0});
    ASSERT_TRUE(pair.run_until([&] { return pair.a.sink->frames.size() == 1; }));
    pair.b.sink->landing = [&](const auto&, const auto& header) {
      return std::span(landing).subspan(header.offset, header.payload_bytes);
    };
    for (std::size_t page = 0; page < 4; ++page) {
      protocol::FrameHeader header = data_header();
      header.grant = 5;
      header.offset = page * kMaxOperation.value;
      pair.a.send(pair.to_b(kBulk), {header, std::span(memory).subspan(header.offset, kMaxOperation.value), page + 1});
    }
    faults(pair.a).freeze({Of::kPoll, polls});
    ASSERT_TRUE(run_until(pair.clock, {&pair.a}, [&] { return faults(pair.a).frozen(); }));
    pair.b->close(pair.to_a(kBulk));
    ASSERT_TRUE(run_until(pair.clock, {&pair.b}, [&] { return !pair.b.sink->up(pair.to_a(kBulk)); }));
    std::ranges::fill(landing, std::byte{0xee});
    faults(pair.a).thaw();
    ASSERT_TRUE(pair.run_until([&] { return !pair.a.sink->up(pair.to_b(kBulk)); }));
    run_for(pair.clock, {&pair.a, &pair.b}, milliseconds(3));
    EXPECT_TRUE(std::ranges::all_of(landing, [](std::byte b) { return b == std::byte{0xee}; }));
    for (Host* host : {&pair.a, &pair.b}) {
      (*host)->remove_job(kJob);
      ASSERT_TRUE(pair.run_until([&] { return host->sink->downs.size() == 3; }));
      (*host)->unmap(kJob);
    }
  }
}

}  // namespace
}  // namespace tensorlane::conformance
