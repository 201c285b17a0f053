// The sending end of a flow: frames, one behind the other, as one stream of bytes, until the peer has them. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "common/protocol/frame.h"
#include "daemon/transport/datagram/ranges.h"

namespace tensorlane::datagram {

class SendStream {
 public:
  // At most `frames` are kept at a time.
  explicit SendStream(std::size_t frames);

  bool writable() const { return count_ < frames_.size(); }
  // `payload` belongs to the caller, and is read until on_sent(token). Unless !writable().
  void push(const protocol::FrameHeader& header, std::span<const std::byte> payload, std::uint64_t token);

  // Where the stream ends now; all before acked() have arrived.
  std::uint64_t end() const { return end_; }
  std::uint64_t acked() const { return acked_; }
  // What goes next, at most `most` bytes: what was lost first, then what is new and lies before `limit`.
  std::optional<Range> next(std::uint64_t limit, std::size_t most) const;
  // That piece leaves; it is copied to `out`, which is as long.
  void take(Range piece, std::span<std::byte> out);
  void lost(Range piece);
  // Calls `on_sent` for each frame that has arrived whole, and all before it have, in order.
  void arrived(Range piece, const std::function<void(std::uint64_t token)>& on_sent);

  // Frames of which not all has arrived; of them, tokens are told to nobody.
  std::size_t frames() const { return count_; }

 private:
  struct Frame {
    std::uint64_t begin = 0;
    std::array<std::byte, protocol::kFrameHeaderBytes> header{};
    std::span<const std::byte> payload;
    std::uint64_t token = 0;
    std::uint64_t end() const { return begin + header.size() + payload.size(); }
  };
  const Frame& frame(std::size_t i) const { return frames_[(first_ + i) % frames_.size()]; }
  std::size_t find(std::uint64_t offset) const;

  std::vector<Frame> frames_;
  std::size_t first_ = 0, count_ = 0;
  std::uint64_t end_ = 0, unsent_ = 0, acked_ = 0;  // of the stream; what has never been sent begins at unsent_
  RangeSet lost_, come_;                            // above acked_
};

}  // namespace tensorlane::datagram
