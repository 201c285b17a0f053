// Which of several transports the flows to a peer take: the fastest, as measured; of those that are about as fast, the
// most capable.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/ports/transport.h"

namespace tensorlane::mixed {

// What was measured of a transport to a peer: a message of d bytes is there after latency + d / bandwidth.
struct Figures {
  Duration latency;
  BitsPerSecond bandwidth;  // not 0
};

struct Candidate {
  std::string transport;
  std::optional<Figures> figures;
  std::string why_not;  // there are no figures
};

// Within this share of the fastest, the more capable transport is taken: it costs less of the processors.
inline constexpr double kAsFast = 0.1;

// The score, less is better: how long the largest operation (kMaxOperation) takes.
Duration operation_time(const Figures& figures);

struct Choice {
  std::vector<std::size_t> order;                // of the candidates: the chosen one, then what to fall back on
  std::vector<ports::PathCandidate> candidates;  // as they came, with verdicts
  std::size_t chosen() const { return order.front(); }
};

// `candidates`, at least one, come with the most capable first. Where nothing was measured that decides alone; what was
// not measured comes after what was.
Choice choose(std::span<const Candidate> candidates);

// The outcome as one end tells it to the other: kRecordBytes for each candidate.
inline constexpr std::size_t kRecordBytes = 128;
inline constexpr std::size_t kMaxCandidates = 8;
std::vector<std::byte> encode(std::span<const ports::PathCandidate> candidates);
// Texts are cut to what a record holds, and what is not printable reads as '?'. kCorrupt unless `bytes` are 1 to
// kMaxCandidates records of which exactly one was chosen, with figures in range.
Result<std::vector<ports::PathCandidate>> decode(std::span<const std::byte> bytes);

}  // namespace tensorlane::mixed
