// Bounded bursts: streams that fill a queue, and messages that measure its delay. For the question whether a class
// overtakes another one, which nobody can see without a queue.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/probe/exchange.h"
#include "common/probe/prober.h"

namespace tensorlane::probe {

// Bounds of one burst.
inline constexpr int kMaxBurstMilliseconds = 4000;
inline constexpr std::size_t kMaxStreams = 16;
inline constexpr std::uint64_t kMaxBurstBytes = std::uint64_t{4} << 30;

struct BurstSpec {
  FlowSpec flow;
  Purpose purpose = Purpose::kSink;
  std::vector<std::uint16_t> source_ports{0};  // one of each stream of kSink; 0: the kernel chooses
  int start_ms = 0;                            // after the command
  int duration_ms = 300;
  std::uint64_t max_bytes = kMaxBurstBytes;  // of each stream
};

struct BurstSeen {
  std::uint32_t id = 0;
  Outcome outcome = Outcome::kTimedOut;  // kArrived: of all streams
  // Of kSink, on the receiver's clock, one of each stream.
  struct Stream {
    std::uint64_t start_ms = 0;
    std::vector<std::uint64_t> bytes;  // in each slot of kSlotMilliseconds
  };
  std::vector<Stream> streams;
  std::uint64_t retransmitted = 0;       // packets
  std::vector<std::uint32_t> delays_us;  // of kEcho: one of each message
};

// Runs all bursts beside each other, in threads, and returns when the last one is over.
std::vector<BurstSeen> load(const std::vector<BurstSpec>& bursts, const Token& token);

}  // namespace tensorlane::probe
