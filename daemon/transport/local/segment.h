// The memory that the two ends of a flow share: what each tells the other, and a ring of bytes for each direction.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "common/base/status.h"
#include "daemon/transport/handshake/socket.h"

namespace tensorlane::local {

inline constexpr std::uint32_t kSegmentVersion = 1;
// Of one ring; a power of two. Half of a usual second-level cache, so that what one core writes the other reads from
// it.
inline constexpr std::size_t kRingBytes = std::size_t{256} << 10;

// What one end tells the other. An end writes its own and never reads it back: the other one can write it, too.
struct Side {
  alignas(64) std::atomic<std::uint64_t> produced;  // bytes that it has ever put into its ring
  std::atomic<std::uint64_t> consumed;              // bytes that it has ever taken from the other's ring
  std::atomic<std::uint32_t> reads_memory;          // 1: payloads may stay where they are, it reads them there
  std::atomic<std::uint32_t> withdrawn;             // 1: it has closed the flow: payloads that stayed count no more
  alignas(64) std::atomic<std::uint32_t> sleeping;  // kWakeFor...; whoever makes it 0 sends a byte over the socket
};
inline constexpr std::uint32_t kWakeForBytes = 1, kWakeForRoom = 2;

struct SegmentPage {
  Side connecting, accepting;
};
inline constexpr std::size_t kSegmentPageBytes = 4096;
inline constexpr std::size_t kSegmentBytes = kSegmentPageBytes + 2 * kRingBytes;
static_assert(sizeof(SegmentPage) <= kSegmentPageBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

// A mapping of it; unmapped when the object goes.
class Segment {
 public:
  Segment() = default;
  Segment(Segment&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), descriptor_(std::move(other.descriptor_)) {}
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  // Zeroed, populated, and sealed so that no end can change its size. Errors: kResourceExhausted.
  static Result<Segment> create();
  // What a peer has made. Its pages may go and come back as zeros, but an access never faults (law 16): its size is
  // right and sealed, and it is memory of the kernel's own. Errors: kCorrupt where that is not so, kResourceExhausted.
  static Result<Segment> adopt(handshake::Fd descriptor);

  bool valid() const { return base_ != nullptr; }
  int descriptor() const { return descriptor_.get(); }
  // The mapping needs it no longer.
  void close_descriptor() { descriptor_.reset(); }
  SegmentPage& page() const { return *reinterpret_cast<SegmentPage*>(base_); }
  // The ring of the connecting end's bytes, or of the accepting end's.
  std::span<std::byte> ring(bool of_connecting_end) const {
    return {base_ + kSegmentPageBytes + (of_connecting_end ? 0 : kRingBytes), kRingBytes};
  }

 private:
  static Result<Segment> map(handshake::Fd descriptor);
  std::byte* base_ = nullptr;
  handshake::Fd descriptor_;
};

}  // namespace tensorlane::local
