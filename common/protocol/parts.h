// Parts of a buffer: how a client tells the daemon what exists already of a contribution that comes to exist bit by bit
// (a copy from a GPU), and the daemon what is in place of its result. A buffer has at most kMaxParts of them, all of
// the same size but the last. What is said of parts only allows both to begin earlier: SubmissionEntry without flags
// and CompletionEntry with a final status say that everything is there.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace tensorlane::protocol {

inline constexpr std::uint32_t kMaxParts = 64;

// Of a buffer of `bytes`. A multiple of 64 bytes, so that no element lies in two parts.
constexpr std::uint64_t part_bytes(std::uint64_t bytes) {
  constexpr std::uint64_t kAlignment = 64;
  const std::uint64_t least = std::max<std::uint64_t>((bytes + kMaxParts - 1) / kMaxParts, 1);
  return (least + kAlignment - 1) / kAlignment * kAlignment;
}

constexpr std::uint32_t part_count(std::uint64_t bytes) {
  return static_cast<std::uint32_t>((bytes + part_bytes(bytes) - 1) / part_bytes(bytes));
}

// Parts [first, first + count).
struct PartRun {
  std::uint32_t first = 0, count = 0;

  constexpr bool is_in(std::uint32_t parts) const { return count > 0 && first < parts && count <= parts - first; }
  // Bit i is part i.
  constexpr std::uint64_t mask() const {
    return count == 0 ? 0 : (~std::uint64_t{0} >> (kMaxParts - std::min(count, kMaxParts))) << std::min(first, 63U);
  }
};

// The lowest parts of `mask`, which is not 0, that follow one another.
constexpr PartRun first_run(std::uint64_t mask) {
  const auto first = static_cast<std::uint32_t>(std::countr_zero(mask));
  return {first, static_cast<std::uint32_t>(std::countr_one(mask >> first))};
}

// Entries that speak of parts carry them beside the sequence.
inline constexpr std::uint32_t kSequenceBits = 48;
constexpr std::uint64_t with_parts(std::uint64_t sequence, const PartRun& run) {
  return sequence | std::uint64_t{run.first} << kSequenceBits | std::uint64_t{run.count} << (kSequenceBits + 8);
}
constexpr std::uint64_t sequence_in(std::uint64_t word) {
  return word & ((std::uint64_t{1} << kSequenceBits) - 1);
}
constexpr PartRun parts_in(std::uint64_t word) {
  return {static_cast<std::uint32_t>(word >> kSequenceBits & 0xff), static_cast<std::uint32_t>(word >> 56)};
}

}  // namespace tensorlane::protocol
