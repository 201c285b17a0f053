#include "daemon/transport/datagram/receive_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace tensorlane::datagram {
namespace {

constexpr std::uint64_t kLimit = 1 << 20;

// Refuses a header while a frame is under way, as whoever counts what has come of a grant has to.
struct OneAtATime final : ports::FrameSink {
  Result<std::span<std::byte>> on_header(const protocol::FrameHeader& header) override {
    if (under_way) return Status(Code::kCorrupt, "a header while a frame is under way");
    under_way = true;
    landing.assign(header.payload_bytes, std::byte{0});
    return std::span<std::byte>(landing);
  }
  void on_frame(const protocol::FrameHeader& header) override {
    under_way = false;
    sequences.push_back(header.sequence.value);
    payloads.push_back(landing);
  }
  void on_sent(std::uint64_t) override {}

  bool under_way = false;
  std::vector<std::byte> landing;
  std::vector<std::uint64_t> sequences;
  std::vector<std::vector<std::byte>> payloads;
};

struct Frames {
  std::vector<std::byte> bytes;  // as they follow each other in the stream
  std::vector<std::vector<std::byte>> payloads;

  void add(std::size_t payload_bytes) {
    protocol::FrameHeader header{.type = protocol::FrameType::kData,
                                 .payload_bytes = static_cast<std::uint32_t>(payload_bytes)};
    header.sequence = Sequence(payloads.size());
    std::array<std::byte, protocol::kFrameHeaderBytes> encoded{};
    protocol::encode_frame(header, encoded);
    bytes.insert(bytes.end(), encoded.begin(), encoded.end());
    std::vector<std::byte> payload(payload_bytes);
    for (std::size_t i = 0; i < payload_bytes; ++i) payload[i] = static_cast<std::byte>(i * 31 + payloads.size());
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    payloads.push_back(payload);
  }
};

// Pieces come in any order, some twice.
TEST(ReceiveStream, FramesLandOneAfterTheOther) {
  for (std::uint32_t seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    Frames sent;
    for (int i = 0; i < 12; ++i) sent.add(random() % 4 == 0 ? 0 : random() % 900);
    std::vector<Range> pieces;
    for (std::uint64_t at = 0; at < sent.bytes.size();) {
      const std::uint64_t end = std::min<std::uint64_t>(sent.bytes.size(), at + 1 + random() % 300);
      pieces.push_back({at, end});
      if (random() % 5 == 0) pieces.push_back({at, end});
      at = end;
    }
    std::ranges::shuffle(pieces, random);
    ReceiveStream stream;
    OneAtATime sink;
    for (const Range& piece : pieces) {
      const auto bytes = std::span(sent.bytes).subspan(piece.begin, piece.length());
      ASSERT_TRUE(stream.take(piece.begin, bytes, kLimit, sink)) << stream.failure().to_string() << ", seed " << seed;
    }
    ASSERT_EQ(sink.payloads, sent.payloads) << "seed " << seed;
    ASSERT_TRUE(std::ranges::is_sorted(sink.sequences));
  }
}

// What is sent again is cut anew: a piece may overlap others at both ends, and frames that have been delivered.
TEST(ReceiveStream, PiecesOverlapEachOther) {
  for (std::uint32_t seed = 1; seed <= 1000; ++seed) {
    std::mt19937 random(seed);
    Frames sent;
    for (int i = 0; i < 12; ++i) sent.add(random() % 3 == 0 ? 0 : random() % 200);
    ReceiveStream stream;
    OneAtATime sink;
    const auto take = [&](std::uint64_t begin, std::uint64_t end) {
      const std::vector<std::byte> piece(sent.bytes.data() + begin, sent.bytes.data() + end);  // of its own memory
      return stream.take(begin, piece, kLimit, sink);
    };
    for (int i = 0; i < 60; ++i) {
      const std::uint64_t begin = random() % sent.bytes.size();
      const std::uint64_t end = std::min<std::uint64_t>(sent.bytes.size(), begin + 1 + random() % 400);
      ASSERT_TRUE(take(begin, end)) << stream.failure().to_string() << ", seed " << seed;
    }
    ASSERT_TRUE(take(0, sent.bytes.size())) << stream.failure().to_string() << ", seed " << seed;
    ASSERT_EQ(sink.payloads, sent.payloads) << "seed " << seed;
    ASSERT_EQ(stream.come(), sent.bytes.size()) << "seed " << seed << ": each byte counts once";
  }
}

// The first header was lost, the three behind it were overtaken and came late, and all are sent again in one packet.
TEST(ReceiveStream, WhatIsSentAgainAsOneMayHaveComeInPart) {
  Frames sent;
  for (int i = 0; i < 4; ++i) sent.add(0);
  constexpr std::uint64_t kHeader = protocol::kFrameHeaderBytes;
  ReceiveStream stream;
  OneAtATime sink;
  ASSERT_TRUE(stream.take(kHeader, std::span(sent.bytes).subspan(kHeader, 2 * kHeader), kLimit, sink));
  ASSERT_TRUE(stream.take(0, sent.bytes, kLimit, sink)) << stream.failure().to_string();
  EXPECT_EQ(sink.sequences, (std::vector<std::uint64_t>{0, 1, 2, 3}));
  EXPECT_EQ(stream.come(), sent.bytes.size());
}

// A peer that says a byte of every two would have each kept for itself.
TEST(ReceiveStream, CrumbsAreRefused) {
  Frames sent;
  sent.add(100'000);
  ReceiveStream stream;
  OneAtATime sink;
  std::uint64_t at = protocol::kFrameHeaderBytes + 1;  // behind a header that never comes
  while (at < sent.bytes.size() && stream.take(at, std::span(sent.bytes).subspan(at, 1), kLimit, sink)) at += 2;
  EXPECT_EQ(stream.failure().code(), Code::kCorrupt);
  EXPECT_LT(at, 20'000u);
}

}  // namespace
}  // namespace tensorlane::datagram
