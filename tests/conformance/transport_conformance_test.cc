// What every transport must do: one suite, a parameter per transport.
#include <algorithm>
#include <cstring>

#include "harness.h"

namespace tensorlane::conformance {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Frames of a flow that may land at once.
constexpr std::size_t kAtOnce = 64;

class Conformance : public OnTransport {};
INSTANTIATE_TEST_SUITE_P(Transports, Conformance, ::testing::ValuesIn(kinds_under_test()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Conformance, CarriesFramesBothWaysInEveryClass) {
  Pair pair(GetParam());
  const auto forth = pattern(3000, 1), back = pattern(5000, 2);
  for (const ClassId cls : {kControlClass, kUrgent, kBulk}) {
    pair.send(pair.a, pair.to_b(cls), forth, 0, 10);
    pair.send(pair.b, pair.to_a(cls), back, 0, 11);
  }
  ASSERT_TRUE(pair.run_until([&] { return pair.a.sink->frames.size() == 3 && pair.b.sink->frames.size() == 3; }));
  for (const auto& frame : pair.b.sink->frames) {
    EXPECT_EQ(frame.payload, forth);
    EXPECT_EQ(frame.flow.peer, HostIndex(0));
    EXPECT_EQ(frame.header.sequence, Sequence(10));
    EXPECT_EQ(frame.header.cls, frame.flow.cls);
    EXPECT_EQ(frame.header.job, kJob);
    EXPECT_EQ(frame.header.epoch, Epoch(7));
  }
  for (const auto& frame : pair.a.sink->frames) EXPECT_EQ(frame.payload, back);
}

TEST_P(Conformance, KeepsEveryHeaderField) {
  Pair pair(GetParam());
  const auto payload = pattern(100, 1);
  protocol::FrameHeader header;
  header.type = protocol::FrameType::kData;
  header.flags = protocol::kFlagEager;
  header.grant = 0xdeadbeef;
  header.tensor = TensorId(77);
  header.sequence = Sequence(0x123456789abcdef0);
  header.offset = 0xfedcba9876543210;
  header.slice = 12;
  header.aux = 13;
  pair.a.send(pair.to_b(kUrgent), {header, payload, 0});
  ASSERT_TRUE(pair.run_until([&] { return pair.b.sink->frames.size() == 1; }));
  header.cls = kUrgent;
  header.job = kJob;
  header.epoch = Epoch(7);
  header.payload_bytes = 100;
  EXPECT_EQ(pair.b.sink->frames[0].header, header);
}

TEST_P(Conformance, KeepsOrderWithinAFlow) {
  Pair pair(GetParam());
  std::vector<std::vector<std::byte>> payloads;
  for (std::uint64_t i = 0; i < 3000; ++i) payloads.push_back(pattern((i * 7919) % 3001, i));
  for (std::uint64_t i = 0; i < payloads.size(); ++i) pair.send(pair.a, pair.to_b(kBulk), payloads[i], i + 1, i);
  ASSERT_TRUE(pair.run_until(
      [&] { return pair.b.sink->frames.size() == payloads.size() && pair.a.sink->sent.size() == payloads.size(); }));
  for (std::uint64_t i = 0; i < payloads.size(); ++i) {
    ASSERT_EQ(pair.b.sink->frames[i].header.sequence.value, i);
    ASSERT_EQ(pair.b.sink->frames[i].payload, payloads[i]) << i;
    ASSERT_EQ(pair.a.sink->sent[i].second, i + 1);
  }
  // What one end has given is what the other has received (law 21), also of a flow that was idle.
  EXPECT_EQ(pair.a.progress(pair.to_b(kBulk)).given, payloads.size());
  EXPECT_EQ(pair.b.progress(pair.to_a(kBulk)).received, payloads.size());
  EXPECT_EQ(pair.b.progress(pair.to_a(kBulk)).given, 0u);
  EXPECT_EQ(pair.a.progress(pair.to_b(kUrgent)).given, 0u);
}

TEST_P(Conformance, FlushMovesWhatIsQueuedAndNobodySleepsOnIt) {
  Pair pair(GetParam());
  const auto payload = pattern(3000, 3);  // no more than may be sent before the peer has spoken
  std::size_t sent = 0;
  for (const ClassId cls : {kControlClass, kUrgent, kBulk}) {
    const auto arrived = [&] { return pair.b.sink->frames.size() == sent; };
    pair.send(pair.a, pair.to_b(cls), payload, ++sent);
    EXPECT_FALSE(pair.a->arm()) << "what waits for flush() or poll() would wait for ever";
    pair.a->flush();
    pair.a->flush();
    ASSERT_TRUE(run_until(pair.clock, {&pair.b}, arrived));  // host a is not polled
    EXPECT_EQ(pair.b.sink->frames.back().payload, payload);
  }
  ASSERT_TRUE(pair.run_until([&] { return pair.a.sink->sent.size() == sent; }));
}

TEST_P(Conformance, CarriesEverySize) {
  for (const bool crc : {false, true}) {
    Pair pair(GetParam(), {.payload_crc = crc});
    const std::size_t sizes[] = {0,    1,    2,    63,   64,   65,    127,   128,    4095,   4096,  8127,
                                 8128, 8129, 8191, 8192, 8193, 65535, 65536, 131072, 262143, 262144};
    std::vector<std::vector<std::byte>> payloads;
    for (const std::size_t size : sizes) payloads.push_back(pattern(size, size));
    for (const auto& payload : payloads) pair.send(pair.a, pair.to_b(kUrgent), payload);
    ASSERT_TRUE(pair.run_until([&] { return pair.b.sink->frames.size() == payloads.size(); }));
    for (std::size_t i = 0; i < payloads.size(); ++i) {
      EXPECT_EQ(pair.b.sink->frames[i].payload, payloads[i]) << sizes[i];
      EXPECT_EQ(pair.b.sink->frames[i].header.flags, crc && sizes[i] > 0 ? protocol::kFlagPayloadCrc : 0);
    }
  }
}

TEST_P(Conformance, ReadsAndWritesAtEveryAlignment) {
  Pair pair(GetParam());
  constexpr std::size_t kLongest = 40000;
  const auto bytes = pattern(kLongest + 64, 5);
  std::vector<std::byte> landing(kLongest + 128);
  pair.b.sink->landing = [&](const auto&, const auto& header) {
    return std::span(landing).subspan(header.aux, header.payload_bytes);
  };
  std::size_t sent = 0;
  for (const std::size_t size : {std::size_t{1}, std::size_t{7000}, kLongest}) {
    for (std::uint32_t shift = 0; shift < 64; ++shift) {
      std::memset(landing.data(), 0xa5, landing.size());
      protocol::FrameHeader header = data_header();
      header.aux = 64 - shift;  // where it lands
      pair.a.send(pair.to_b(kUrgent), {header, std::span(bytes).subspan(shift, size), 0});
      ++sent;
      ASSERT_TRUE(pair.run_until([&] { return pair.b.sink->frames.size() == sent; }));
      const std::byte* landed = landing.data() + header.aux;
      ASSERT_EQ(std::memcmp(landed, bytes.data() + shift, size), 0) << size << " bytes from " << shift;
      ASSERT_TRUE(landed[-1] == std::byte{0xa5} && landed[size] == std::byte{0xa5}) << size << " bytes from " << shift;
    }
  }
}

// A buffer of any size travels as operations of at most kMaxOperation, as a lane cuts it.
TEST_P(Conformance, MovesBuffersOfZeroBytesToOneGibibyte) {
  Pair pair(GetParam());
  // What belongs at an offset is a piece of this, from a place that differs from operation to operation.
  const auto source = pattern(mib(3).value, 3);
  const auto piece_at = [&](std::uint64_t offset, std::size_t bytes) {
    return std::span(source).subspan(offset / kMaxOperation.value * 4099 % (source.size() - kMaxOperation.value),
                                     bytes);
  };
  std::vector<std::byte> memory(kAtOnce * kMaxOperation.value);
  const auto land = [&](const protocol::FrameHeader& header) {
    return std::span(memory).subspan(header.offset % memory.size(), header.payload_bytes);
  };
  std::uint64_t landed = 0, wrong = 0, frames = 0;
  pair.b.sink->landing = [&](const auto&, const auto& header) { return land(header); };
  pair.b.sink->frame_hook = [&](const auto&, const auto& header) {
    const auto expected = piece_at(header.offset, header.payload_bytes);
    wrong += header.offset != landed || std::memcmp(land(header).data(), expected.data(), expected.size()) != 0;
    landed += header.payload_bytes;
    ++frames;
    pair.b.sink->frames.clear();
  };
  const std::uint64_t largest = GetParam().largest.value;
  for (const std::uint64_t bytes :
       {std::uint64_t{0}, std::uint64_t{1}, kMaxOperation.value, kMaxOperation.value + 1, mib(5).value - 3, largest}) {
    const std::uint64_t operations =
        std::max<std::uint64_t>((bytes + kMaxOperation.value - 1) / kMaxOperation.value, 1);
    std::uint64_t given = 0;
    landed = frames = 0;
    ASSERT_TRUE(run_until(
        pair.clock, {&pair.a, &pair.b},
        [&] {
          while (given < operations && pair.a.writable(pair.to_b(kBulk))) {
            protocol::FrameHeader header = data_header();
            header.offset = given++ * kMaxOperation.value;
            const std::uint64_t left = std::min(kMaxOperation.value, bytes - header.offset);
            pair.a.send(pair.to_b(kBulk), {header, piece_at(header.offset, left), 0});
          }
          return frames == operations;
        },
        std::chrono::seconds(100)))
        << bytes;
    EXPECT_EQ(landed, bytes);
  }
  EXPECT_EQ(wrong, 0u);
}

TEST_P(Conformance, StreamsBothWaysAtOnce) {
  Pair pair(GetParam());
  const std::size_t operations = GetParam().largest < mib(64) ? 48 : 256;  // of 256 KiB, each way
  const auto bytes = pattern(kMaxOperation.value, 9);
  std::vector<std::byte> memory_a(kAtOnce * bytes.size()), memory_b(kAtOnce * bytes.size());
  std::size_t wrong = 0, sent_a = 0, sent_b = 0;
  const auto receive = [&](Host& host, std::vector<std::byte>& memory) {
    const auto land = [&](const protocol::FrameHeader& header) {
      return std::span(memory).subspan(header.sequence.value % kAtOnce * bytes.size(), bytes.size());
    };
    host.sink->landing = [land](const auto&, const auto& header) { return land(header); };
    host.sink->frame_hook = [&, land](const auto&, const auto& header) {
      wrong += !std::ranges::equal(land(header), bytes) || header.sequence.value + 1 != host.sink->frames.size();
      std::memset(land(header).data(), 0, 4096);
    };
  };
  receive(pair.a, memory_a);
  receive(pair.b, memory_b);
  ASSERT_TRUE(pair.run_until([&] {
    while (sent_a < operations && pair.a.writable(pair.to_b(kBulk)))
      pair.a.send(pair.to_b(kBulk), {data_header(sent_a++), bytes, 0});
    while (sent_b < operations && pair.b.writable(pair.to_a(kBulk)))
      pair.b.send(pair.to_a(kBulk), {data_header(sent_b++), bytes, 0});
    return pair.a.sink->frames.size() == operations && pair.b.sink->frames.size() == operations;
  }));
  EXPECT_EQ(wrong, 0u);
  const auto stats = pair.a.stats(pair.to_b(kBulk));
  EXPECT_EQ(stats.frames_sent, operations);
  EXPECT_EQ(stats.frames_received, operations);
  EXPECT_EQ(stats.bytes_sent, operations * GetParam().frame_bytes(kMaxOperation.value));
  EXPECT_EQ(stats.bytes_received, stats.bytes_sent);
}

TEST_P(Conformance, TagsBothEndsOfEveryClass) {
  if (!GetParam().tags) GTEST_SKIP() << GetParam().name << " has no tags to read back";
  Pair pair(GetParam());
  for (const ClassSetup& c : pair.a.options.classes) {
    for (const auto& stats : {pair.a.stats(pair.to_b(c.tag.cls)), pair.b.stats(pair.to_a(c.tag.cls))}) {
      EXPECT_EQ(stats.effective_dscp, c.tag.dscp) << stats.describe;
      if (GetParam().pcp) {
        EXPECT_EQ(stats.effective_pcp, c.tag.pcp) << stats.describe;
      }
      EXPECT_THAT(stats.describe, HasSubstr(" -> "));
    }
  }
}

TEST_P(Conformance, DropsWhatTheSinkDoesNotWant) {
  Pair pair(GetParam());
  const auto large = pattern(kMaxOperation.value, 1), small = pattern(10, 2);
  pair.b.sink->drop_payloads = true;
  for (int i = 0; i < 5; ++i) pair.send(pair.a, pair.to_b(kBulk), i % 2 ? std::span(small) : std::span(large));
  pair.send(pair.a, pair.to_b(kBulk), {}, 0, 99);  // no payload, nothing to drop
  ASSERT_TRUE(pair.run_until([&] { return !pair.b.sink->frames.empty(); }));
  EXPECT_EQ(pair.b.sink->frames[0].header.sequence.value, 99u);
  pair.b.sink->drop_payloads = false;
  pair.send(pair.a, pair.to_b(kBulk), small);
  ASSERT_TRUE(pair.run_until([&] { return pair.b.sink->frames.size() == 2; }));
  EXPECT_EQ(pair.b.sink->frames[1].payload, small);
  EXPECT_EQ(pair.b->counters().payloads_dropped, 5u);
  pair.b->close(pair.to_a(kBulk));
  ASSERT_TRUE(pair.run_until([&] { return !pair.b.sink->up(pair.to_a(kBulk)); }));
  EXPECT_EQ(pair.b->counters().payloads_dropped, 5u) << "of flows that have ended, too";
}

// Under the address sanitizer: a flow that ends in the poll in which it was given something is not written any more.
TEST_P(Conformance, AnErrorOfTheSinkEndsWhatItHasQueued) {
  Pair pair(GetParam());
  const auto bytes = pattern(100, 1);
  pair.a.sink->frame_hook = [&](const ports::FlowKey& flow, const protocol::FrameHeader&) {
    if (pair.a.writable(flow)) pair.a.send(flow, {data_header(), bytes, 0});
  };
  pair.a.sink->landing = [](const auto&, const protocol::FrameHeader& header) -> Result<std::span<std::byte>> {
    if (header.sequence.value == 2) return Status(Code::kCorrupt, "no such tensor 5", "host 0");
    return std::span<std::byte>();
  };
  for (std::uint64_t sequence : {1, 2}) pair.b.send(pair.to_a(kBulk), {data_header(sequence), {}, 0});
  for (int i = 0; i < 20; ++i) pair.b->poll(pair.clock.now());
  ASSERT_TRUE(run_until(pair.clock, {&pair.a}, [&] { return pair.a.sink->downs.size() == 1; }));
  run_for(pair.clock, {&pair.a, &pair.b}, std::chrono::milliseconds(20));
  EXPECT_TRUE(pair.a.sink->up(pair.to_b(kUrgent)));
}

TEST_P(Conformance, AnErrorOfTheSinkClosesTheFlow) {
  Pair pair(GetParam());
  pair.b.sink->landing = [](const auto&, const auto&) -> Result<std::span<std::byte>> {
    return Status(Code::kCorrupt, "no such tensor 5", "host 0");
  };
  const auto bytes = pattern(100, 1);
  pair.send(pair.a, pair.to_b(kUrgent), bytes);
  ASSERT_TRUE(pair.run_until([&] { return pair.b.sink->downs.size() == 1 && pair.a.sink->downs.size() == 1; }));
  EXPECT_EQ(pair.b.sink->cause(pair.to_a(kUrgent)).what(), "no such tensor 5");
  EXPECT_EQ(pair.a.sink->cause(pair.to_b(kUrgent)).code(), Code::kUnavailable);
  EXPECT_TRUE(pair.a.sink->up(pair.to_b(kBulk)));  // other flows live on
}

TEST_P(Conformance, ClosingDeliversWhatWasSent) {
  Pair pair(GetParam());
  const auto bytes = pattern(kMaxOperation.value, 3);
  pair.send(pair.a, pair.to_b(kBulk), bytes, 5);
  // The other direction has bytes that host 0 never reads: its close must not destroy its own last frame with a reset.
  pair.b.send(pair.to_a(kBulk), {data_header(), bytes, 0});
  pair.b->poll(pair.clock.now());
  while (pair.a.sink->sent.empty()) {
    pair.a->poll(pair.clock.now());
    pair.b->poll(pair.clock.now());
  }
  pair.a->close(pair.to_b(kBulk));
  EXPECT_FALSE(pair.a.writable(pair.to_b(kBulk)));
  ASSERT_TRUE(pair.run_until([&] { return !pair.b.sink->up(pair.to_a(kBulk)) && !pair.a.sink->up(pair.to_b(kBulk)); }));
  ASSERT_EQ(pair.b.sink->frames.size(), 1u);
  EXPECT_EQ(pair.b.sink->frames[0].payload, bytes);
  EXPECT_TRUE(pair.a.sink->downs[0].second.ok());
  EXPECT_THAT(pair.b.sink->downs[0].second.to_string(),
              AllOf(HasSubstr("connection to host 0 ("), HasSubstr(", class 1) was closed by the peer")));
  EXPECT_EQ(pair.a.sink->downs.size(), 1u);
  EXPECT_EQ(pair.b.sink->downs.size(), 1u);
}

TEST_P(Conformance, ClosingFromInsideACallbackEndsDelivery) {
  Pair pair(GetParam());
  pair.b.sink->frame_hook = [&](const auto& flow, const auto&) { pair.b->close(flow); };
  for (int i = 0; i < 20; ++i) pair.a.send(pair.to_b(kUrgent), {data_header(), {}, 0});
  ASSERT_TRUE(pair.run_until([&] { return !pair.b.sink->downs.empty() && !pair.a.sink->downs.empty(); }));
  EXPECT_EQ(pair.b.sink->frames.size(), 1u);
  EXPECT_TRUE(pair.b.sink->downs[0].second.ok());
}

TEST_P(Conformance, ADeadPeerEndsEveryFlowOnceWithItsName) {
  Pair pair(GetParam());
  pair.b.transport.reset();
  ASSERT_TRUE(pair.run_until([&] { return pair.a.sink->downs.size() == 3; }));
  run_for(pair.clock, {&pair.a}, std::chrono::milliseconds(20));
  EXPECT_EQ(pair.a.sink->downs.size(), 3u);
  for (const auto& [flow, cause] : pair.a.sink->downs) {
    EXPECT_EQ(cause.code(), Code::kUnavailable);
    EXPECT_THAT(cause.to_string(), HasSubstr("connection to host 1 ("));
  }
}

TEST_P(Conformance, ARestartedHostConnectsAgain) {
  Pair pair(GetParam());
  for (Host* host : {&pair.b, &pair.a}) {
    host->restart();
    Host& other = host == &pair.b ? pair.a : pair.b;
    ASSERT_TRUE(pair.run_until([&] { return other.sink->downs.size() == 3; }));
    other.sink->forget();
    host->add_job();
    pair.connect();
    const auto bytes = pattern(1000, 1);
    pair.send(pair.a, pair.to_b(kUrgent), bytes);
    pair.send(pair.b, pair.to_a(kUrgent), bytes);
    ASSERT_TRUE(pair.run_until([&] { return pair.a.sink->frames.size() == 1 && pair.b.sink->frames.size() == 1; }));
    pair.a.sink->forget();
    pair.b.sink->forget();
  }
}

TEST_P(Conformance, RemovingAJobClosesItsFlowsAndRefusesNewOnes) {
  Pair pair(GetParam());
  const JobId other(99);
  pair.a->add_job(credentials(HostIndex(0), "correct horse", Epoch(7), other));
  pair.b->add_job(credentials(HostIndex(1), "correct horse", Epoch(7), other));
  const ports::FlowKey others{other, HostIndex(1), kBulk}, others_back{other, HostIndex(0), kBulk};
  ASSERT_TRUE(pair.a->connect(others, pair.b.kind.address, pair.b.data_port, pair.clock.now() + seconds(20)).ok());
  ASSERT_TRUE(pair.run_until([&] { return pair.a.sink->up(others) && pair.b.sink->up(others_back); }));
  pair.b->remove_job(kJob);
  ASSERT_TRUE(pair.run_until([&] { return pair.a.sink->downs.size() == 3 && pair.b.sink->downs.size() == 3; }));
  for (const auto& [flow, cause] : pair.b.sink->downs) EXPECT_TRUE(cause.ok());
  ASSERT_TRUE(
      pair.a->connect(pair.to_b(kUrgent), pair.b.kind.address, pair.b.data_port, pair.clock.now() + seconds(2)).ok());
  ASSERT_TRUE(pair.run_until([&] { return pair.a.sink->downs.size() == 4; }));
  EXPECT_THAT(pair.a.sink->cause(pair.to_b(kUrgent)).to_string(),
              HasSubstr("was refused by the peer: the job has ended on this host"));
  // Those of other jobs live on.
  EXPECT_TRUE(pair.a.sink->up(others) && pair.b.sink->up(others_back));
  const auto bytes = pattern(100, 1);
  pair.send(pair.a, others, bytes);
  EXPECT_TRUE(pair.run_until([&] { return pair.b.sink->frames.size() == 1; }));
}

TEST_P(Conformance, RetriesUntilThePeerKnowsTheJob) {
  Host a(GetParam(), HostIndex(0)), b(GetParam(), HostIndex(1));
  TestClock clock;
  a.add_job();
  const ports::FlowKey key{kJob, HostIndex(1), kUrgent};
  ASSERT_TRUE(a->connect(key, b.kind.address, b.data_port, clock.now() + seconds(20)).ok());
  run_for(clock, {&a, &b}, std::chrono::milliseconds(50));
  EXPECT_TRUE(a.sink->downs.empty());
  EXPECT_FALSE(a.writable(key));
  b.add_job();
  EXPECT_TRUE(run_until(clock, {&a, &b}, [&] { return a.sink->up(key); }));
}

TEST_P(Conformance, RetriesUntilThePeerListens) {
  Host a(GetParam(), HostIndex(0)), b(GetParam(), HostIndex(1));
  TestClock clock;
  b.transport.reset();
  a.add_job();
  const ports::FlowKey key{kJob, HostIndex(1), kUrgent};
  ASSERT_TRUE(a->connect(key, b.kind.address, b.data_port, clock.now() + seconds(20)).ok());
  run_for(clock, {&a}, std::chrono::milliseconds(50));
  EXPECT_TRUE(a.sink->downs.empty());
  b.restart();
  b.add_job();
  EXPECT_TRUE(run_until(clock, {&a, &b}, [&] { return a.sink->up(key); }));
}

TEST_P(Conformance, GivesUpAtTheDeadlineWithACause) {
  Host a(GetParam(), HostIndex(0)), b(GetParam(), HostIndex(1));
  b.transport.reset();
  TestClock clock;
  a.add_job();
  const ports::FlowKey key{kJob, HostIndex(1), kUrgent};
  const Time begin = clock.now();
  ASSERT_TRUE(a->connect(key, b.kind.address, b.data_port, begin + milliseconds(500)).ok());
  ASSERT_TRUE(run_until(clock, {&a}, [&] { return !a.sink->downs.empty(); }));
  EXPECT_LE(clock.now() - begin, seconds(4));  // a handshake alone may take 5 s
  EXPECT_EQ(a.sink->cause(key).code(), Code::kTimedOut);
  EXPECT_THAT(a.sink->cause(key).to_string(), AllOf(HasSubstr("connection to host 1 ("),
                                                    HasSubstr("Connection refused"), HasSubstr("until the deadline")));
}

TEST_P(Conformance, ConnectChecksItsArguments) {
  Host a(GetParam(), HostIndex(1));
  const Time later = Time(1'000'000'000);
  const auto connect = [&](HostIndex peer, ClassId cls, const std::string& address) {
    return a->connect({kJob, peer, cls}, address, a.data_port, later).code();
  };
  const std::string good = GetParam().address;
  EXPECT_EQ(connect(HostIndex(2), kUrgent, good), Code::kNotFound);  // no such job
  a.add_job();
  EXPECT_EQ(connect(HostIndex(2), ClassId(5), good), Code::kNotFound);
  EXPECT_EQ(connect(HostIndex(0), kUrgent, good), Code::kInvalidArgument);  // the lower index connects
  EXPECT_EQ(connect(HostIndex(1), kUrgent, good), Code::kInvalidArgument);
  EXPECT_EQ(connect(HostIndex(2), kUrgent, "host.example"), Code::kInvalidArgument);
  EXPECT_EQ(connect(HostIndex(2), kUrgent, good), Code::kOk);
  EXPECT_EQ(connect(HostIndex(2), kUrgent, good), Code::kAlreadyExists);
}

TEST_P(Conformance, WrongSecretsAreFoundByBothEnds) {
  LogCapture log;
  Host a(GetParam(), HostIndex(0)), b(GetParam(), HostIndex(1));
  TestClock clock;
  a.add_job("correct horse");
  b.add_job("battery staple");
  const ports::FlowKey key{kJob, HostIndex(1), kUrgent};
  ASSERT_TRUE(a->connect(key, b.kind.address, b.data_port, clock.now() + seconds(1)).ok());
  ASSERT_TRUE(run_until(clock, {&a, &b}, [&] { return !a.sink->downs.empty() && b->counters().refused >= 1; }));
  EXPECT_THAT(a.sink->cause(key).to_string(),
              AllOf(HasSubstr("connection to host 1 ("), HasSubstr("was closed by that host without an answer")));
  EXPECT_THAT(log.text(), AllOf(HasSubstr("connection from "), HasSubstr("which says that it is host 0 of job "),
                                HasSubstr("it does not hold the key of hosts 0 and 1 for the job")));
  EXPECT_TRUE(b.sink->ups.empty());
}

TEST_P(Conformance, WrongEpochsAreNamedWithBothValuesInTheLogOnly) {
  LogCapture log;
  Host a(GetParam(), HostIndex(0)), b(GetParam(), HostIndex(1));
  TestClock clock;
  a.add_job("correct horse", Epoch(6));
  b.add_job("correct horse", Epoch(7));
  const ports::FlowKey key{kJob, HostIndex(1), kUrgent};
  ASSERT_TRUE(a->connect(key, b.kind.address, b.data_port, clock.now() + seconds(1)).ok());
  ASSERT_TRUE(run_until(clock, {&a, &b}, [&] { return !a.sink->downs.empty(); }));
  EXPECT_THAT(a.sink->cause(key).to_string(), HasSubstr("was closed by that host without an answer"));
  EXPECT_THAT(log.text(), HasSubstr("epoch 6 of the job, this host has epoch 7"));
}

}  // namespace
}  // namespace tensorlane::conformance
