// Streams changed at random, from fixed seeds, against a live host: it never crashes, never delivers what was not sent,
// and serves the next peer.
#include <random>

#include "tests/conformance/raw_peer.h"

namespace tensorlane::conformance {
namespace {

constexpr ClassId kUrgent{0};

class TcpFuzz : public ::testing::Test {
 protected:
  TcpFuzz() { host.add_job(); }
  void expect_alive() {
    *host.sink = RecordingSink();
    RawPeer peer(clock, host, kUrgent);
    peer.authenticate(kUrgent);
    EXPECT_EQ(host.sink->ups.size(), 1u);
    peer.half_close();
    ASSERT_TRUE(run_until(clock, {&host}, [&] { return host.sink->downs.size() == 1; }));
  }
  TestClock clock;
  Host host{tcp_ipv4(), HostIndex(1)};
};

TEST_F(TcpFuzz, Handshakes) {
  LogCapture quiet;
  std::mt19937_64 random(1);
  for (int i = 0; i < 500; ++i) {
    const auto hello = good_hello(kUrgent);
    std::vector<std::byte> bytes(handshake::bytes_of(hello).begin(), handshake::bytes_of(hello).end());
    for (std::uint64_t k = random() % 4; k > 0; --k) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    const auto noise = pattern(random() % 200, random());
    bytes.insert(bytes.end(), noise.begin(), noise.end());
    bytes.resize(random() % (bytes.size() + 1));
    RawPeer peer(clock, host, kUrgent);
    peer.send(bytes);
    if (random() % 2) peer.reset();
  }
  run_for(clock, {&host}, std::chrono::milliseconds(10));
  EXPECT_TRUE(host.sink->ups.empty());
  expect_alive();
}

TEST_F(TcpFuzz, Frames) {
  LogCapture quiet;
  std::mt19937_64 random(2);
  for (int i = 0; i < 200; ++i) {
    *host.sink = RecordingSink();
    RawPeer peer(clock, host, kUrgent);
    peer.authenticate(kUrgent);
    // A few good frames, some bytes of which are changed.
    std::vector<std::byte> stream;
    std::vector<std::vector<std::byte>> payloads;
    for (std::uint64_t k = 1 + random() % 5; k > 0; --k) {
      payloads.push_back(pattern(random() % 3000, random()));
      protocol::FrameHeader header = data_header(payloads.size());
      header.flags = protocol::kFlagPayloadCrc;
      header.job = kJob;
      header.epoch = Epoch(7);
      header.cls = kUrgent;
      header.payload_bytes = static_cast<std::uint32_t>(payloads.back().size());
      header.payload_crc = protocol::crc32c(payloads.back());
      std::array<std::byte, protocol::kFrameHeaderBytes> bytes;
      protocol::encode_frame(header, bytes);
      stream.insert(stream.end(), bytes.begin(), bytes.end());
      stream.insert(stream.end(), payloads.back().begin(), payloads.back().end());
    }
    const auto good = stream;
    for (std::uint64_t k = random() % 3; k > 0; --k)
      stream[random() % stream.size()] ^= static_cast<std::byte>(1 + random() % 255);
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t piece = std::min<std::size_t>(1 + random() % 2000, stream.size() - at);
      peer.send(std::span(stream).subspan(at, piece));
      at += piece;
    }
    ASSERT_TRUE(run_until(clock, {&host}, [&] {
      return stream == good ? host.sink->frames.size() == payloads.size() : !host.sink->downs.empty();
    }));
    for (std::size_t k = 0; k < host.sink->frames.size(); ++k)
      ASSERT_EQ(host.sink->frames[k].payload, payloads[k]) << i;
    if (stream != good) {
      ASSERT_LT(host.sink->frames.size(), payloads.size());
    }
    peer.half_close();
    ASSERT_TRUE(run_until(clock, {&host}, [&] { return host.sink->downs.size() == 1; }));
  }
  expect_alive();
}

}  // namespace
}  // namespace tensorlane::conformance
