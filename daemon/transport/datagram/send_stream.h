// The sending end of a flow: frames, one behind the other, as one stream of bytes, until the peer has them. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/protocol/frame.h"
#include "daemon/transport/datagram/ranges.h"

namespace tensorlane::datagram {

// A packet as parts that lie in several places, in their order: what was written for it (heads, frame headers, small
// payloads) and what is read where the caller of send() keeps it.
struct Gathered {
  static constexpr std::size_t kMostParts = 5;
  std::array<std::span<const std::byte>, kMostParts> parts;
  std::size_t count = 0;     // of parts
  std::size_t bytes = 0;     // of all parts
  std::uint64_t number = 0;  // of the packet, for Association::released()
  bool borrows = false;      // there is a part that lies where the caller of send() keeps it
};

class SendStream {
 public:
  // At most `frames` are kept at a time.
  explicit SendStream(std::size_t frames);

  bool writable() const { return count_ < most_; }
  // `payload` belongs to the caller, and is read until on_sent(token). Unless !writable().
  void push(const protocol::FrameHeader& header, std::span<const std::byte> payload, std::uint64_t token);

  // Where the stream ends now; all before acked() have arrived.
  std::uint64_t end() const { return end_; }
  std::uint64_t acked() const { return acked_; }
  // What has never been sent begins here.
  std::uint64_t unsent() const { return unsent_; }
  // What goes next, at most `most` bytes: what was lost first, then what is new and lies before `limit`.
  std::optional<Range> next(std::uint64_t limit, std::size_t most) const;
  // That piece leaves; it is copied to `out`, which is as long.
  void take(Range piece, std::span<std::byte> out);
  // As much of the piece leaves, in packet `number`, as `into` has parts for and `own` has room for: all headers and
  // short payloads are written there. `into` has a part already, and the parts are added behind it. Returns what
  // leaves.
  Range gather(Range piece, std::uint64_t number, std::span<std::byte> own, Gathered* into);
  void lost(Range piece);
  // Calls `on_sent(token)` for each frame that has arrived whole, and all before it have, in order; but not before the
  // last packet that borrows its payload is released.
  template <typename OnSent>
  void arrived(Range piece, OnSent on_sent) {
    if (note_arrived(piece)) report(on_sent);
  }
  // No packet before `number` is read any more. Calls `on_sent(token)`, too.
  template <typename OnSent>
  void released(std::uint64_t number, OnSent on_sent) {
    released_ = std::max(released_, number);
    report(on_sent);
  }
  // A packet borrows a payload, and is not released.
  bool borrows() const { return borrowed_until_ > released_; }

 private:
  struct Frame {
    std::uint64_t begin = 0;
    std::array<std::byte, protocol::kFrameHeaderBytes> header{};
    std::span<const std::byte> payload;
    std::uint64_t token = 0;
    std::uint64_t borrowed_until = 0;  // packets before this number read its payload
    std::uint64_t end() const { return begin + header.size() + payload.size(); }
  };
  Frame& frame(std::size_t i) { return frames_[(first_ + i) & (frames_.size() - 1)]; }
  const Frame& frame(std::size_t i) const { return frames_[(first_ + i) & (frames_.size() - 1)]; }
  std::size_t find(std::uint64_t offset) const;
  template <typename Use>
  std::uint64_t walk(Range piece, Use use);
  void leaves(Range piece);
  bool note_arrived(Range piece);
  template <typename OnSent>
  void report(OnSent& on_sent) {
    while (count_ > 0 && frame(0).end() <= acked_ && frame(0).borrowed_until <= released_) {
      const std::uint64_t token = frame(0).token;
      ++first_;
      --count_;
      if (token != 0) on_sent(token);
    }
  }

  const std::size_t most_;
  std::vector<Frame> frames_;  // by count of frames modulo the size, which is a power of 2
  std::size_t first_ = 0, count_ = 0;
  std::uint64_t end_ = 0, unsent_ = 0, acked_ = 0;   // of the stream; what has never been sent begins at unsent_
  std::uint64_t borrowed_until_ = 0, released_ = 0;  // packet numbers
  RangeSet lost_, come_;                             // above acked_
};

}  // namespace tensorlane::datagram
