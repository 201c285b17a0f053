#include "daemon/transport/datagram/send_stream.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/assert.h"

namespace tensorlane::datagram {
namespace {

// A payload, or an end of one, that is no longer than this is copied: another part costs more.
constexpr std::size_t kCopied = 256;

}  // namespace

SendStream::SendStream(std::size_t frames) : most_(frames), frames_(std::bit_ceil(frames)) {
  TL_ASSERT(frames > 0);
}

void SendStream::push(const protocol::FrameHeader& header, std::span<const std::byte> payload, std::uint64_t token) {
  TL_ASSERT(writable());
  Frame& added = frame(count_);
  added.begin = end_;
  added.payload = payload;
  added.token = token;
  added.borrowed_until = 0;
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

void SendStream::leaves(Range piece) {
  lost_.remove(piece);
  unsent_ = std::max(unsent_, piece.end);
}

// Calls `use` with one run of bytes after the other that lie together, until the piece ends or `use` takes less than
// the whole run. Returns where that is.
template <typename Use>
std::uint64_t SendStream::walk(Range piece, Use use) {
  TL_ASSERT(piece.end <= end_ && piece.begin >= acked_);
  std::uint64_t at = piece.begin;
  for (std::size_t i = find(piece.begin); at < piece.end;) {
    Frame& from = frame(i);
    const std::uint64_t inside = at - from.begin;
    const bool header = inside < from.header.size();
    std::span<const std::byte> source = header ? std::span<const std::byte>(from.header).subspan(inside)
                                               : from.payload.subspan(inside - from.header.size());
    source = source.first(std::min<std::size_t>(source.size(), piece.end - at));
    const std::size_t taken = use(from, source, header);
    at += taken;
    if (taken < source.size()) break;
    if (at == from.end()) ++i;
  }
  return at;
}

void SendStream::take(Range piece, std::span<std::byte> out) {
  TL_ASSERT(out.size() == piece.length());
  walk(piece, [to = out.data()](Frame&, std::span<const std::byte> source, bool) mutable {
    std::memcpy(to, source.data(), source.size());
    to += source.size();
    return source.size();
  });
  leaves(piece);
}

Range SendStream::gather(Range piece, std::uint64_t number, std::span<std::byte> own, Gathered* into) {
  const auto use = [&](Frame& from, std::span<const std::byte> source, bool header) -> std::size_t {
    if (!header && source.size() > kCopied) {
      if (into->count == into->parts.size()) return 0;
      into->parts[into->count++] = source;
      into->borrows = true;
      from.borrowed_until = borrowed_until_ = number + 1;
      return source.size();
    }
    // Behind what was written last, or a part of its own.
    const std::size_t bytes = std::min(source.size(), own.size());
    if (bytes == 0) return 0;
    std::memcpy(own.data(), source.data(), bytes);
    std::span<const std::byte>& last = into->parts[into->count - 1];
    if (last.data() + last.size() == own.data()) {
      last = {last.data(), last.size() + bytes};
    } else {
      if (into->count == into->parts.size()) return 0;
      into->parts[into->count++] = own.first(bytes);
    }
    own = own.subspan(bytes);
    return bytes;
  };
  piece.end = walk(piece, use);
  into->bytes += piece.length();
  leaves(piece);
  return piece;
}

void SendStream::lost(Range piece) {
  // Another copy may have arrived.
  for (Range gap = come_.gap(std::max(piece.begin, acked_), piece.end); gap.begin < gap.end;
       gap = come_.gap(gap.end, piece.end))
    lost_.add(gap);
}

bool SendStream::note_arrived(Range piece) {
  piece.begin = std::max(piece.begin, acked_);
  if (piece.begin >= piece.end) return false;
  come_.add(piece);
  lost_.remove(piece);
  acked_ = come_.first_missing({acked_, end_});
  come_.remove({0, acked_});
  return true;
}

}  // namespace tensorlane::datagram
