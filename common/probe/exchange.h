// What a probe and whoever answers it say to each other, over a connection to a data port: a hello that carries a
// token, and an answer that says how the packets of the connection arrived. Numbers are little-endian; no byte is
// padding.
//
// A token is random, known to the two ends alone, and valid for a short time. Who does not know it learns nothing:
// the connection closes without a word, as after any hello that proves nothing.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

namespace tensorlane::probe {

inline constexpr std::uint32_t kMagic = 0x50534c54;  // "TLSP"
inline constexpr std::uint16_t kVersion = 1;

// 128 random bits.
using Token = std::array<std::uint8_t, 16>;

// What the connection is for.
enum class Purpose : std::uint8_t {
  kTell = 0,  // one Answer, then the end
  kSink = 1,  // an Answer, then a burst of kBurstByte that ends with kLastByte, then a Received with its counts
  kEcho = 2,  // an Answer, then one byte for each message of kMessageBytes, until the end
};

inline constexpr std::size_t kMessageBytes = 1024;
inline constexpr char kBurstByte = 0, kLastByte = 1;

// From the prober. The first eight bytes are laid out as the head of the handshake of flows, whose ports it shares.
struct Hello {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  Purpose purpose = Purpose::kTell;
  std::uint8_t reserved = 0;
  Token token{};
  std::uint64_t nonce = 0;  // comes back in the answer
};
static_assert(sizeof(Hello) == 32 && std::has_unique_object_representations_v<Hello>);

inline constexpr std::uint8_t kUnknown = 0xff;

// How the first packet of the connection arrived.
struct Answer {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint8_t dscp = kUnknown;       // 0..63
  std::uint8_t hop_limit = kUnknown;  // its time to live, or hop limit, on arrival
  std::uint8_t pcp = kUnknown;        // 0..7 where the NIC shows an 802.1Q tag
  std::array<std::uint8_t, 7> reserved{};
  std::uint64_t nonce = 0;
};
static_assert(sizeof(Answer) == 24 && std::has_unique_object_representations_v<Answer>);

// A burst as it arrived: bytes in each slot of kSlotMilliseconds from `start` on, on the receiver's own clock.
inline constexpr std::uint32_t kSlotMilliseconds = 5;
inline constexpr std::size_t kSlots = 1024;  // what comes later counts in the last one
struct Received {
  std::uint64_t start = 0;  // milliseconds of the receiver's monotonic clock at the first slot
  std::uint64_t slots = 0;  // that follow: 8 bytes each
};
static_assert(sizeof(Received) == 16);

}  // namespace tensorlane::probe
