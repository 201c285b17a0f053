// A packet allocates nothing, whether it comes in order, overtakes others, or is lost, once tables have grown to what
// they need.
#include <gtest/gtest.h>
#include <sodium.h>

#include <random>
#include <vector>

#include "daemon/transport/datagram/association.h"
#include "daemon/transport/datagram/receive_stream.h"
#include "tests/allocations/allocation_count.h"

namespace tensorlane::datagram {
namespace {

constexpr std::size_t kPacket = 1400, kFlying = 64;

struct CountedHost final : CreditHolder, ports::FrameSink {
  CountedHost(const AssociationConfig& config)
      : place(kMaxOperation.value), association(config, credits, *this, *this) {}
  void credit_raised() override {}
  Result<std::span<std::byte>> on_header(const protocol::FrameHeader& header) override {
    return std::span(place).first(header.payload_bytes);
  }
  void on_frame(const protocol::FrameHeader&) override { ++come; }
  void on_sent(std::uint64_t) override {}

  std::vector<std::byte> place;
  Credits credits{{}};
  Association association;
  std::uint64_t come = 0;
};

AssociationConfig counted_config(unsigned char end) {
  AssociationConfig config;
  config.slot = 1;
  config.packet_bytes = kPacket;
  config.send_secret[0] = std::byte{end};
  config.receive_secret[0] = static_cast<std::byte>(1 - end);
  return config;
}

TEST(Allocations, APacketAllocatesNothing) {
  ASSERT_GE(sodium_init(), 0);
  CountedHost hosts[2] = {{counted_config(0)}, {counted_config(1)}};
  Time now{1000};
  struct Flight {
    int to = 0;
    std::size_t bytes = 0;
    std::array<std::byte, kPacket> packet;
  };
  std::vector<Flight> flying(kFlying);
  std::mt19937_64 random(3);
  const std::vector<std::byte> payload(20'000);
  std::uint64_t packets = 0;
  // A packet takes the place of one that flies, which arrives, or is lost.
  const auto round = [&] {
    now = now + microseconds(3);
    for (int from : {0, 1}) {
      Association& association = hosts[from].association;
      hosts[from].credits.give(now);
      if (association.writable() && association.outstanding() < 200'000)
        association.send({.header = {}, .payload = payload});
      for (const bool ack : {true, false}) {
        Flight& flight = flying[random() % kFlying];
        if (flight.bytes > 0 && random() % 30 != 0) {
          const std::span packet = std::span(flight.packet).first(flight.bytes);
          ASSERT_TRUE(hosts[flight.to].association.take(now, packet, false).ok());
        }
        flight.to = 1 - from;
        flight.bytes = ack ? association.make_ack(now, flight.packet) : association.make(now, flight.packet);
        packets += flight.bytes > 0;
      }
      if (association.deadline().value_or(now + seconds(1)) <= now) {
        ASSERT_TRUE(association.on_time(now).ok());
      }
    }
  };
  for (int i = 0; i < 300'000; ++i) round();
  const std::uint64_t come = hosts[1].come, before = packets;
  counting::count_allocations(counting::CountedThreads::kAll);
  for (int i = 0; i < 100'000; ++i) round();
  counting::count_allocations(counting::CountedThreads::kNone);
  EXPECT_EQ(counting::allocations(), 0u);
  EXPECT_GT(packets - before, 50'000u);
  EXPECT_GT(hosts[1].come, come + 100) << "something goes on";
  EXPECT_GT(hosts[0].association.counters().packets_lost, 100u);
}

struct Nowhere final : ports::FrameSink {
  Result<std::span<std::byte>> on_header(const protocol::FrameHeader&) override { return std::span<std::byte>(); }
  void on_frame(const protocol::FrameHeader&) override {}
  void on_sent(std::uint64_t) override {}
};

// A peer that sends a stream without its begin, a byte here and there, makes nobody keep much more than it has sent.
TEST(Allocations, TinyPiecesTakeLittleMemory) {
  constexpr std::uint64_t kPieces = 8000, kApart = 2;
  ReceiveStream stream;
  Nowhere sink;
  const std::array piece{std::byte{1}};
  const std::uint64_t before = counting::allocated_bytes();
  counting::count_allocations(counting::CountedThreads::kAll);
  for (std::uint64_t i = 0; i < kPieces; ++i)
    ASSERT_TRUE(stream.take(1000 + i * kApart, piece, 1 << 20, sink)) << stream.failure().what();
  counting::count_allocations(counting::CountedThreads::kNone);
  EXPECT_LT(counting::allocated_bytes() - before, 3u << 20) << "with what tables leave behind when they grow";
}

}  // namespace
}  // namespace tensorlane::datagram
