#include "daemon/transport/local/exchange.h"

#include <fmt/format.h>

#include <cstring>

namespace tensorlane::local {

Result<std::vector<std::byte>> SegmentExchange::offer(std::span<const std::byte> peer) {
  if (peer.empty()) {
    TL_ASSIGN_OR_RETURN(segment_, Segment::create());
  } else {
    TL_RETURN_IF_ERROR(accept(peer));  // its version, before its size
    TL_ASSIGN_OR_RETURN(segment_, Segment::adopt(std::move(descriptor_)));
  }
  Parameters mine;
  mine.probe = own_probe();
  const auto bytes = handshake::bytes_of(mine);
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

Status SegmentExchange::accept(std::span<const std::byte> peer) {
  Parameters theirs;
  TL_ASSERT(peer.size() == sizeof theirs);
  std::memcpy(&theirs, peer.data(), sizeof theirs);
  if (theirs.version != kSegmentVersion || theirs.ring_bytes != kRingBytes) {
    return {Code::kVersionMismatch,
            fmt::format("shared memory of version {} with rings of {} bytes, this daemon has version {} and {} bytes",
                        theirs.version, theirs.ring_bytes, kSegmentVersion, kRingBytes),
            {},
            "install the same tensorlane version on every host"};
  }
  peer_probe_ = theirs.probe;
  return {};
}

Segment SegmentExchange::take_segment() {
  segment_.close_descriptor();
  return std::move(segment_);
}

}  // namespace tensorlane::local
