#include "daemon/transport/datagram/send_stream.h"

#include <algorithm>
#include <cstring>

#include "common/base/assert.h"

namespace tensorlane::datagram {

SendStream::SendStream(std::size_t frames) : frames_(frames) {
  TL_ASSERT(frames > 0);
}

void SendStream::push(const protocol::FrameHeader& header, std::span<const std::byte> payload, std::uint64_t token) {
  TL_ASSERT(writable());
  Frame& added = frames_[(first_ + count_) % frames_.size()];
  added.begin = end_;
  added.payload = payload;
  added.token = token;
  protocol::FrameHeader own = header;
  own.payload_bytes = static_cast<std::uint32_t>(payload.size());
  protocol::encode_frame(own, added.header);
  end_ = added.end();
  ++count_;
}

// The frame that this byte is of.
std::size_t SendStream::find(std::uint64_t offset) const {
  std::size_t low = 0, high = count_;
  while (high - low > 1) {
    const std::size_t middle = (low + high) / 2;
    (frame(middle).begin <= offset ? low : high) = middle;
  }
  return low;
}

std::optional<Range> SendStream::next(std::uint64_t limit, std::size_t most) const {
  if (most == 0) return std::nullopt;
  if (!lost_.empty()) {
    const Range piece = lost_.ranges().front();
    return Range{piece.begin, std::min(piece.end, piece.begin + most)};
  }
  const std::uint64_t end = std::min({end_, limit, unsent_ + most});
  if (end <= unsent_) return std::nullopt;
  return Range{unsent_, end};
}

void SendStream::take(Range piece, std::span<std::byte> out) {
  TL_ASSERT(piece.end <= end_ && piece.begin >= acked_ && out.size() == piece.length());
  lost_.remove(piece);
  unsent_ = std::max(unsent_, piece.end);
  std::size_t i = find(piece.begin);
  for (std::uint64_t at = piece.begin; at < piece.end; ++i) {
    const Frame& from = frame(i);
    const std::uint64_t inside = at - from.begin;
    const bool header = inside < from.header.size();
    const std::span<const std::byte> source = header ? std::span<const std::byte>(from.header).subspan(inside)
                                                     : from.payload.subspan(inside - from.header.size());
    const std::size_t bytes = std::min<std::size_t>(source.size(), piece.end - at);
    std::memcpy(out.data() + (at - piece.begin), source.data(), bytes);
    at += bytes;
    if (header && bytes == source.size() && !from.payload.empty()) --i;  // its payload follows
  }
}

void SendStream::lost(Range piece) {
  // Another copy may have arrived.
  for (Range gap = come_.gap(std::max(piece.begin, acked_), piece.end); gap.begin < gap.end;
       gap = come_.gap(gap.end, piece.end))
    lost_.add(gap);
}

void SendStream::arrived(Range piece, const std::function<void(std::uint64_t)>& on_sent) {
  piece.begin = std::max(piece.begin, acked_);
  if (piece.begin >= piece.end) return;
  come_.add(piece);
  lost_.remove(piece);
  acked_ = come_.first_missing({acked_, end_});
  come_.remove({0, acked_});
  while (count_ > 0 && frame(0).end() <= acked_) {
    const std::uint64_t token = frame(0).token;
    first_ = (first_ + 1) % frames_.size();
    --count_;
    if (token != 0) on_sent(token);
  }
}

}  // namespace tensorlane::datagram
