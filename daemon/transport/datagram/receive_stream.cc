#include "daemon/transport/datagram/receive_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <utility>

#include "common/base/assert.h"

namespace tensorlane::datagram {
namespace {

// Memory of three sizes: a packet of most networks has the largest, which one of a larger network makes larger still;
// what a peer sends in tiny pieces costs little more than it is.
constexpr std::array<std::size_t, 3> kHeldBytes{128, 512, 2048};
std::size_t size_for(std::size_t piece) {
  const auto fits = std::ranges::lower_bound(kHeldBytes, piece);
  return std::min<std::size_t>(fits - kHeldBytes.begin(), kHeldBytes.size() - 1);
}
// So many pieces more have room where there was none for another one.
constexpr std::size_t kMoreHeld = 64;
// Of a stream, with gaps between them: more than the packets that a peer may have on its way
// (AssociationConfig::packets) are none that it has sent honestly, and each takes memory.
constexpr std::size_t kMostPieces = 8192;

}  // namespace

bool ReceiveStream::fail(Status status) {
  failure_ = std::move(status);
  return false;
}

bool ReceiveStream::take(std::uint64_t offset, std::span<const std::byte> bytes, std::uint64_t limit,
                         ports::FrameSink& sink) {
  const std::uint64_t end = offset + bytes.size();
  if (end < offset || end > limit)
    return fail({Code::kCorrupt, fmt::format("bytes up to {} of a stream that may go to {}", end, limit)});
  for (std::uint64_t at = std::max(offset, delivered_); at < end;) {
    const Range gap = come_.gap(at, end);
    if (gap.begin >= gap.end) break;
    come_.add(gap);
    come_bytes_ += gap.length();
    if (come_.ranges().size() > kMostPieces)
      return fail({Code::kCorrupt, fmt::format("a stream in more than {} pieces", kMostPieces)});
    if (!place(gap, bytes.data() + (gap.begin - offset), sink) || !place_held(sink)) return false;
    at = std::max(gap.end, delivered_);  // with the gap further frames may have come whole
  }
  // The header behind a frame may have waited for it, and more behind that.
  while (deliver(sink)) {
    if (header_bytes_ < header_.size() || frame_) return true;
    if (!begin_frame(sink) || !place_held(sink)) return false;
  }
  return false;
}

// Bytes that are new go where they belong: into the payload of the frame under way, or into the header behind it; what
// lies farther is kept.
bool ReceiveStream::place(Range range, const std::byte* bytes, ports::FrameSink& sink) {
  while (range.begin < range.end) {
    std::uint64_t placed = 0;
    if (range.begin >= header_at_ + header_.size()) {
      hold(range, bytes);
      return true;
    }
    if (range.begin >= header_at_) {
      const std::uint64_t inside = range.begin - header_at_;
      placed = std::min(range.length(), header_.size() - inside);
      std::memcpy(header_.data() + inside, bytes, placed);
      header_bytes_ += placed;
      if (header_bytes_ == header_.size() && !begin_frame(sink)) return false;
    } else {
      // Its header came whole; so what is new is of its payload.
      TL_ASSERT(frame_ && range.begin >= frame_->payload.begin);
      placed = std::min(range.end, frame_->payload.end) - range.begin;
      if (!frame_->dropped) std::memcpy(frame_->landing.data() + (range.begin - frame_->payload.begin), bytes, placed);
    }
    range.begin += placed;
    bytes += placed;
  }
  return true;
}

bool ReceiveStream::begin_frame(ports::FrameSink& sink) {
  // One frame at a time: whoever owns the sink counts what has come of a grant when a frame is complete. What comes of
  // later ones is held.
  if (!deliver(sink)) return false;
  if (frame_) return true;
  auto header = protocol::decode_frame(header_);
  if (!header.ok()) return fail(header.status());
  Frame frame{.header = *header};
  frame.payload.begin = header_at_ + header_.size();
  frame.payload.end = frame.payload.begin + header->payload_bytes;
  auto landing = sink.on_header(*header);
  if (!landing.ok()) return fail(landing.status());
  frame.landing = *landing;
  frame.dropped = frame.landing.empty() && header->payload_bytes > 0;
  if (!frame.dropped && frame.landing.size() != header->payload_bytes)
    return fail({Code::kInternal, "a payload was given a place that is not as long"});
  frame_ = frame;
  header_at_ = frame.payload.end;
  header_bytes_ = 0;
  return true;
}

void ReceiveStream::hold(Range range, const std::byte* bytes) {
  const std::size_t size = size_for(range.length());
  auto& spare = spare_[size];
  for (std::size_t i = 0; spare.empty() || (i > 0 && i < kMoreHeld); ++i)
    spare.emplace_back().reserve(kHeldBytes[size]);
  Held held{.begin = range.begin, .bytes = std::move(spare.back())};
  spare.pop_back();
  held.bytes.reserve(std::max<std::size_t>(std::bit_ceil(range.length()), kHeldBytes[size]));
  held.bytes.assign(bytes, bytes + range.length());
  const auto at = std::ranges::lower_bound(held_, range.begin, std::greater<>(), &Held::begin);
  held_.insert(at, std::move(held));
}

// Headers have come: what was held behind them may have a place now, and may bring further ones.
bool ReceiveStream::place_held(ports::FrameSink& sink) {
  while (!held_.empty() && held_.back().begin < header_at_ + header_.size()) {
    Held held = std::move(held_.back());
    held_.pop_back();
    const bool placed = place({held.begin, held.begin + held.bytes.size()}, held.bytes.data(), sink);
    spare_[size_for(held.bytes.size())].push_back(std::move(held.bytes));
    if (!placed) return false;
  }
  return true;
}

bool ReceiveStream::deliver(ports::FrameSink& sink) {
  if (!frame_ || come_.first_missing(frame_->payload) != frame_->payload.end) return true;
  const Frame frame = *frame_;
  frame_.reset();
  delivered_ = frame.payload.end;
  come_.remove({0, delivered_});
  ++frames_done_;
  if (frame.dropped) return true;
  const bool checked = (frame.header.flags & protocol::kFlagPayloadCrc) != 0;
  if (checked && protocol::crc32c(frame.landing) != frame.header.payload_crc)
    return fail(
        {Code::kCorrupt, fmt::format("a payload of {} bytes is not what its checksum says", frame.landing.size())});
  sink.on_frame(frame.header);
  return true;
}

}  // namespace tensorlane::datagram
