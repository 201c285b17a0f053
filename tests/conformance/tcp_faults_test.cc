// TCP flows through a proxy that cuts, flips and half-closes, and from a peer that speaks wrong frames.
#include <cstring>

#include "fault_proxy.h"
#include "raw_peer.h"

namespace tensorlane::conformance {
namespace {

using Kind = Fault::Kind;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr ClassId kUrgent{0};
constexpr std::uint64_t kClientBytes = sizeof(handshake::Hello) + sizeof(handshake::Proof);
constexpr std::uint64_t kServerBytes = sizeof(handshake::Challenge) + sizeof(handshake::Verdict);

// Host 0 reaches host 1 through a proxy.
class Proxied : public ::testing::Test {
 protected:
  explicit Proxied(bool payload_crc = false)
      : a(tcp_ipv4(), HostIndex(0), {.payload_crc = payload_crc}), b(tcp_ipv4(), HostIndex(1)) {
    Host ports(tcp_ipv4(), HostIndex(9));
    port = ports.data_port;
    ports.transport.reset();
    proxy =
        std::make_unique<FaultProxy>(static_cast<std::uint16_t>(port + 1), static_cast<std::uint16_t>(b.data_port + 1));
    a.add_job();
    b.add_job();
  }
  void connect(Duration patience = seconds(20)) {
    ASSERT_TRUE(a->connect(to_b, "127.0.0.1", port, clock.now() + patience).ok());
  }
  bool run(const std::function<bool()>& done, std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    return run_until(
        clock, {&a, &b},
        [&] {
          proxy->pump();
          return done();
        },
        timeout);
  }
  void bring_up() {
    connect();
    ASSERT_TRUE(run([&] { return a.sink->up(to_b) && b.sink->up(to_a); }));
  }
  // Ends whatever there is, so that the next case starts clean.
  void tear_down() {
    a->close(to_b);
    b->close(to_a);
    ASSERT_TRUE(run([&] { return !a.sink->up(to_b) && !b.sink->up(to_a); }));
    proxy->to_target = proxy->from_target = {};
    a.sink->forget();
    b.sink->forget();
  }

  TestClock clock;
  Host a, b;
  const ports::FlowKey to_b{kJob, HostIndex(1), kUrgent}, to_a{kJob, HostIndex(0), kUrgent};
  std::uint16_t port = 0;
  std::unique_ptr<FaultProxy> proxy;
};
class Crc : public Proxied {
 protected:
  Crc() : Proxied(true) {}
};

TEST_F(Proxied, ADeathAnywhereInTheHandshakeIsSurvivedByTryingAgain) {
  std::vector<std::pair<bool, std::uint64_t>> places;  // direction, position
  for (const std::uint64_t at : {0, 1, 7, 8, 95, 96, 97, 135}) places.emplace_back(true, at);
  for (const std::uint64_t at : {0, 1, 7, 8, 231, 232, 233, 423}) places.emplace_back(false, at);
  ASSERT_EQ(kClientBytes, 136u);
  ASSERT_EQ(kServerBytes, 424u);
  for (const Kind kind : {Kind::kReset, Kind::kClose, Kind::kHalfClose}) {
    for (const auto& [to_target, at] : places) {
      SCOPED_TRACE((to_target ? "to the server, byte " : "from the server, byte ") + std::to_string(at) + ", kind " +
                   std::to_string(static_cast<int>(kind)));
      const std::size_t before = proxy->connections;
      (to_target ? proxy->to_target : proxy->from_target) = {kind, at};
      connect();
      ASSERT_TRUE(run([&] { return proxy->connections == before + 1; }));
      proxy->to_target = proxy->from_target = {};
      ASSERT_TRUE(run([&] { return a.sink->up(to_b) && b.sink->up(to_a) && proxy->connections >= before + 2; }));
      EXPECT_TRUE(a.sink->downs.empty());
      EXPECT_EQ(a.sink->ups.size(), 1u);
      tear_down();
    }
  }
}

TEST_F(Proxied, NoChangedByteOfTheHandshakeIsAccepted) {
  for (const bool to_target : {true, false}) {
    for (std::uint64_t at = 0; at < (to_target ? kClientBytes : kServerBytes); ++at) {
      SCOPED_TRACE((to_target ? "to the server, byte " : "from the server, byte ") + std::to_string(at));
      (to_target ? proxy->to_target : proxy->from_target) = {Kind::kFlip, at};
      connect(milliseconds(5));
      ASSERT_TRUE(run([&] { return !a.sink->downs.empty(); }));
      EXPECT_TRUE(a.sink->ups.empty());
      EXPECT_FALSE(a.sink->downs[0].second.ok());
      tear_down();
    }
  }
}

TEST_F(Proxied, ADeathAnywhereInAFrameIsNamed) {
  const auto bytes = pattern(5000, 1);
  for (const Kind kind : {Kind::kReset, Kind::kClose, Kind::kHalfClose}) {
    for (const std::uint64_t at : {1, 63, 64, 65, 1000, 5063}) {
      SCOPED_TRACE("byte " + std::to_string(at) + ", kind " + std::to_string(static_cast<int>(kind)));
      proxy->to_target = {kind, kClientBytes + at};
      bring_up();
      a.send(to_b, {data_header(), bytes, 1});
      ASSERT_TRUE(run([&] { return !b.sink->downs.empty() && !a.sink->downs.empty(); }));
      EXPECT_TRUE(b.sink->frames.empty());
      const std::string cause = b.sink->downs[0].second.to_string();
      EXPECT_THAT(cause, HasSubstr("connection to host 0 (127.0.0.1:"));
      const std::string where =
          at < 64 ? std::to_string(at) + " of 64 header bytes" : std::to_string(at - 64) + " of 5000 payload bytes";
      if (kind == Kind::kReset) {
        EXPECT_THAT(cause, AnyOf(HasSubstr("was reset: Connection reset by peer"), HasSubstr(where)));
      } else {
        EXPECT_THAT(cause, HasSubstr("was closed by the peer in the middle of a frame (" + where));
      }
      EXPECT_EQ(b.sink->downs.size(), 1u);
      EXPECT_EQ(a.sink->downs.size(), 1u);
      EXPECT_FALSE(a.sink->downs[0].second.ok());
      tear_down();
    }
  }
}

TEST_F(Proxied, EveryChangedByteOfAHeaderClosesTheFlow) {
  for (std::uint64_t at = 0; at < protocol::kFrameHeaderBytes; ++at) {
    SCOPED_TRACE("byte " + std::to_string(at));
    proxy->to_target = {Kind::kFlip, kClientBytes + at};
    bring_up();
    a.send(to_b, {data_header(), {}, 1});
    ASSERT_TRUE(run([&] { return !b.sink->downs.empty(); }));
    EXPECT_TRUE(b.sink->frames.empty());
    EXPECT_THAT(b.sink->downs[0].second.to_string(),
                AllOf(HasSubstr("connection to host 0 ("), HasSubstr(", class 0) carried a "),
                      HasSubstr(at < 4    ? "bad frame magic"
                                : at == 4 ? "frame version 0, this daemon speaks 1"
                                          : "bad header CRC")));
    tear_down();
  }
}

TEST_F(Crc, AChangedPayloadIsFound) {
  const auto bytes = pattern(5000, 1);
  for (const std::uint64_t at : {0, 1, 2500, 4999}) {
    proxy->to_target = {Kind::kFlip, kClientBytes + protocol::kFrameHeaderBytes + at};
    bring_up();
    a.send(to_b, {data_header(), bytes, 1});
    ASSERT_TRUE(run([&] { return !b.sink->downs.empty(); }));
    EXPECT_TRUE(b.sink->frames.empty());
    EXPECT_EQ(b.sink->downs[0].second.code(), Code::kCorrupt);
    EXPECT_THAT(b.sink->downs[0].second.to_string(),
                AllOf(HasSubstr("carried a payload of 5000 bytes with CRC 0x"), HasSubstr("computed 0x")));
    tear_down();
  }
}

TEST_F(Proxied, WithoutPayloadCrcOnlyTheHeaderIsChecked) {
  const auto bytes = pattern(5000, 1);
  proxy->to_target = {Kind::kFlip, kClientBytes + protocol::kFrameHeaderBytes + 7};
  bring_up();
  a.send(to_b, {data_header(), bytes, 1});
  ASSERT_TRUE(run([&] { return !b.sink->frames.empty(); }));
  EXPECT_NE(b.sink->frames[0].payload, bytes);
}

// Liveness is decided by heartbeats alone (law 10): a peer that says nothing for an hour is a flow that is up.
TEST_F(Proxied, SilenceIsNoReasonToClose) {
  const auto bytes = pattern(5000, 1);
  proxy->to_target = {Kind::kStall, kClientBytes + 1000};
  bring_up();
  a.send(to_b, {data_header(), bytes, 1});
  clock.skip(seconds(3600));
  run([] { return false; }, std::chrono::milliseconds(50));
  EXPECT_TRUE(a.sink->downs.empty());
  EXPECT_TRUE(b.sink->downs.empty());
  EXPECT_TRUE(b.sink->frames.empty());
}

// ---- a peer that holds the key but sends wrong frames ----

class WrongFrames : public ::testing::Test {
 protected:
  WrongFrames() { host.add_job(); }
  protocol::FrameHeader good() const {
    protocol::FrameHeader header = data_header();
    header.job = kJob;
    header.epoch = Epoch(7);
    header.cls = kUrgent;
    return header;
  }
  void expect_closed(std::span<const std::byte> bytes, const std::string& text) {
    RawPeer peer(clock, host, kUrgent);
    peer.authenticate(kUrgent);
    peer.send(bytes);
    ASSERT_TRUE(run_until(clock, {&host}, [&] { return !host.sink->downs.empty(); }));
    EXPECT_THAT(host.sink->downs[0].second.to_string(),
                AllOf(HasSubstr("connection to host 0 (127.0.0.1:"), HasSubstr(", class 0) carried a " + text)));
    EXPECT_TRUE(host.sink->frames.empty());
    EXPECT_TRUE(peer.closed());
    host.sink->forget();
  }
  void expect_closed(const protocol::FrameHeader& header, const std::string& text) {
    std::array<std::byte, protocol::kFrameHeaderBytes> bytes;
    protocol::encode_frame(header, bytes);
    expect_closed(bytes, text);
  }

  TestClock clock;
  Host host{tcp_ipv4(), HostIndex(1)};
};

TEST_F(WrongFrames, OfAnotherJob) {
  auto header = good();
  header.job = JobId(5);
  expect_closed(header, "frame of job 0x0000000000000005, expected 0x1122334455667788");
}

TEST_F(WrongFrames, OfAnotherEpoch) {
  auto header = good();
  header.epoch = Epoch(6);
  expect_closed(header, "frame of epoch 6, expected 7");
}

TEST_F(WrongFrames, OfAnotherClass) {
  auto header = good();
  header.cls = kControlClass;
  expect_closed(header, "frame of class control, expected 0");
}

TEST_F(WrongFrames, LongerThanAnOperation) {
  auto header = good();
  header.payload_bytes = 262145;
  expect_closed(header, "payload of 262145 bytes, at most 262144 are allowed");
}

TEST_F(WrongFrames, OfAnUnknownType) {
  auto header = good();
  header.type = static_cast<protocol::FrameType>(99);
  expect_closed(header, "unknown frame type 99");
}

TEST_F(WrongFrames, Garbage) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) expect_closed(pattern(64 + seed * 500, seed), "bad frame magic 0x");
}

TEST_F(WrongFrames, GarbageAfterAGoodFrame) {
  std::vector<std::byte> bytes(protocol::kFrameHeaderBytes);
  protocol::encode_frame(good(), std::span<std::byte, protocol::kFrameHeaderBytes>(bytes));
  const auto garbage = pattern(64, 1);
  bytes.insert(bytes.end(), garbage.begin(), garbage.end());
  RawPeer peer(clock, host, kUrgent);
  peer.authenticate(kUrgent);
  peer.send(bytes);
  ASSERT_TRUE(run_until(clock, {&host}, [&] { return !host.sink->downs.empty(); }));
  EXPECT_EQ(host.sink->frames.size(), 1u);
}

TEST_F(WrongFrames, ReceivesHeadersAndPayloadsInAnyPieces) {
  const auto payload = pattern(777, 1);
  auto header = good();
  header.payload_bytes = 777;
  std::vector<std::byte> bytes(protocol::kFrameHeaderBytes);
  protocol::encode_frame(header, std::span<std::byte, protocol::kFrameHeaderBytes>(bytes));
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  for (const std::size_t piece : {1u, 3u, 63u, 65u, 100u, 840u}) {
    RawPeer peer(clock, host, kUrgent);
    peer.authenticate(kUrgent);
    for (std::size_t at = 0; at < bytes.size(); at += piece)
      peer.send(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
    ASSERT_TRUE(run_until(clock, {&host}, [&] { return host.sink->frames.size() == 1; }));
    EXPECT_EQ(host.sink->frames[0].payload, payload);
    peer.half_close();
    ASSERT_TRUE(run_until(clock, {&host}, [&] { return host.sink->downs.size() == 1; }));
    host.sink->forget();
  }
}

}  // namespace
}  // namespace tensorlane::conformance
