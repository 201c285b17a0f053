// The two ends of a ring of bytes. Each keeps its own count for itself, because the peer can write to everything in the
// segment: what the peer says is read once and checked. One thread each.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <span>

#include "common/base/assert.h"
#include "daemon/transport/local/segment.h"

namespace tensorlane::local {

// Puts bytes in.
class RingWriter {
 public:
  RingWriter(std::span<std::byte> ring, Side& mine, const Side& theirs) : ring_(ring), mine_(mine), theirs_(theirs) {}

  // Learns what the peer has taken. False: it says what cannot be.
  bool look() {
    const std::uint64_t consumed = theirs_.consumed.load(std::memory_order_acquire);
    if (consumed - taken_ > produced_ - taken_) return false;
    taken_ = consumed;
    return true;
  }
  std::size_t room() const { return ring_.size() - (produced_ - taken_); }
  // At most room() bytes; seen by the peer after publish().
  void put(std::span<const std::byte> bytes) {
    TL_ASSERT(bytes.size() <= room());
    const std::size_t at = produced_ % ring_.size(), first = std::min(bytes.size(), ring_.size() - at);
    if (first > 0) std::memcpy(ring_.data() + at, bytes.data(), first);
    if (first < bytes.size()) std::memcpy(ring_.data(), bytes.data() + first, bytes.size() - first);
    produced_ += bytes.size();
  }
  void publish() { mine_.produced.store(produced_, std::memory_order_release); }
  // Ever put in, and ever taken by the peer.
  std::uint64_t produced() const { return produced_; }
  std::uint64_t taken() const { return taken_; }
  // The peer has said something since look().
  bool news() const { return theirs_.consumed.load(std::memory_order_relaxed) != taken_; }

 private:
  const std::span<std::byte> ring_;
  Side& mine_;
  const Side& theirs_;
  std::uint64_t produced_ = 0, taken_ = 0;
};

// Takes bytes out.
class RingReader {
 public:
  RingReader(std::span<const std::byte> ring, Side& mine, const Side& theirs)
      : ring_(ring), mine_(mine), theirs_(theirs) {}

  // Learns what the peer has put in. False: it says what cannot be.
  bool look() {
    const std::uint64_t produced = theirs_.produced.load(std::memory_order_acquire);
    if (produced - consumed_ > ring_.size() || produced - consumed_ < limit_ - consumed_) return false;
    limit_ = produced;
    return true;
  }
  std::size_t available() const { return limit_ - consumed_; }
  // At most available() bytes.
  void take(std::span<std::byte> out) {
    TL_ASSERT(out.size() <= available());
    const std::size_t at = consumed_ % ring_.size(), first = std::min(out.size(), ring_.size() - at);
    if (first > 0) std::memcpy(out.data(), ring_.data() + at, first);
    if (first < out.size()) std::memcpy(out.data() + first, ring_.data(), out.size() - first);
    consumed_ += out.size();
  }
  void skip(std::size_t bytes) {
    TL_ASSERT(bytes <= available());
    consumed_ += bytes;
  }
  // Lets the peer use the room again.
  void publish() { mine_.consumed.store(consumed_, std::memory_order_release); }
  std::uint64_t consumed() const { return consumed_; }
  // How much there is by now, or what the peer says there is.
  std::uint64_t waiting() const { return theirs_.produced.load(std::memory_order_relaxed) - consumed_; }

 private:
  const std::span<const std::byte> ring_;
  Side& mine_;
  const Side& theirs_;
  std::uint64_t consumed_ = 0, limit_ = 0;
};

}  // namespace tensorlane::local
