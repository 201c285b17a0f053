#include "daemon/transport/datagram/receive_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tensorlane::datagram {

Status ReceiveStream::take(std::uint64_t offset, std::span<const std::byte> bytes, std::uint64_t limit,
                           ports::FrameSink& sink) {
  const std::uint64_t end = offset + bytes.size();
  if (end < offset || end > limit)
    return {Code::kCorrupt, fmt::format("bytes up to {} of a stream that may go to {}", end, limit)};
  for (Range gap = come_.gap(std::max(offset, delivered_), end); gap.begin < gap.end; gap = come_.gap(gap.end, end)) {
    come_.add(gap);
    come_bytes_ += gap.length();
    TL_RETURN_IF_ERROR(place(gap, bytes.data() + (gap.begin - offset), sink));
    TL_RETURN_IF_ERROR(place_held(sink));
  }
  return deliver(sink);
}

// Bytes that are new go where they belong: into the payload of a frame, or into the header that comes next; what lies
// behind that is kept.
Status ReceiveStream::place(Range range, const std::byte* bytes, ports::FrameSink& sink) {
  while (range.begin < range.end) {
    std::uint64_t placed = 0;
    if (range.begin >= header_at_ + header_.size()) {
      hold(range, bytes);
      return {};
    }
    if (range.begin >= header_at_) {
      const std::uint64_t inside = range.begin - header_at_;
      placed = std::min(range.length(), header_.size() - inside);
      std::memcpy(header_.data() + inside, bytes, placed);
      header_bytes_ += placed;
      if (header_bytes_ == header_.size()) TL_RETURN_IF_ERROR(begin_frame(sink));
    } else {
      const auto found =
          std::ranges::upper_bound(frames_, range.begin, {}, [](const Frame& f) { return f.payload.end; });
      // A header that is known came whole; so what is new is of a payload.
      placed = std::min(range.end, found->payload.end) - range.begin;
      if (!found->dropped) std::memcpy(found->landing.data() + (range.begin - found->payload.begin), bytes, placed);
    }
    range.begin += placed;
    bytes += placed;
  }
  return {};
}

Status ReceiveStream::begin_frame(ports::FrameSink& sink) {
  TL_RETURN_IF_ERROR(deliver(sink));  // a frame at a time where nothing is missing
  TL_ASSIGN_OR_RETURN(const protocol::FrameHeader header, protocol::decode_frame(header_));
  Frame frame{.header = header};
  frame.payload.begin = header_at_ + header_.size();
  frame.payload.end = frame.payload.begin + header.payload_bytes;
  TL_ASSIGN_OR_RETURN(frame.landing, sink.on_header(header));
  frame.dropped = frame.landing.empty() && header.payload_bytes > 0;
  if (!frame.dropped && frame.landing.size() != header.payload_bytes)
    return {Code::kInternal, "a payload was given a place that is not as long"};
  frames_.push_back(frame);
  header_at_ = frame.payload.end;
  header_bytes_ = 0;
  return {};
}

void ReceiveStream::hold(Range range, const std::byte* bytes) {
  held_.emplace(range.begin, std::vector<std::byte>(bytes, bytes + range.length()));
  held_bytes_ += range.length();
}

// Headers have come: what was held behind them may have a place now, and may bring further ones.
Status ReceiveStream::place_held(ports::FrameSink& sink) {
  while (!held_.empty() && held_.begin()->first < header_at_ + header_.size()) {
    const auto held = held_.extract(held_.begin());
    const Range range{held.key(), held.key() + held.mapped().size()};
    held_bytes_ -= range.length();
    TL_RETURN_IF_ERROR(place(range, held.mapped().data(), sink));
  }
  return {};
}

Status ReceiveStream::deliver(ports::FrameSink& sink) {
  while (!frames_.empty()) {
    const Frame frame = frames_.front();
    if (come_.first_missing(frame.payload) != frame.payload.end) break;
    frames_.pop_front();
    delivered_ = frame.payload.end;
    come_.remove({0, delivered_});
    ++frames_done_;
    if (frame.dropped) continue;
    const bool checked = (frame.header.flags & protocol::kFlagPayloadCrc) != 0;
    if (checked && protocol::crc32c(frame.landing) != frame.header.payload_crc)
      return {Code::kCorrupt, fmt::format("a payload of {} bytes is not what its checksum says", frame.landing.size())};
    sink.on_frame(frame.header);
  }
  return {};
}

}  // namespace tensorlane::datagram
