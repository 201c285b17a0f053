#include "daemon/transport/rdma/place_table.h"

namespace tensorlane::rdma {

std::uint64_t PlaceTable::key(std::uint32_t grant, std::size_t nth) {
  return (grant & ((1u << protocol::kGrantIndexBits) - 1)) * std::uint64_t{kMaxPlaces} + nth;
}

void PlaceTable::put(std::uint32_t grant, const Message& message) {
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < message.head.places; ++i) {
    const Place place = message.place(i);
    const auto known = pieces_.find(key(grant, i));
    if (known != pieces_.end()) {
      known->second = {grant, begin, place};
    } else if (pieces_.size() < kMaxKnownPlaces) {
      pieces_.emplace(key(grant, i), Piece{grant, begin, place});
    }
    begin += place.length;
  }
}

std::optional<Place> PlaceTable::take(std::uint32_t grant, std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t page = offset / kMaxOperation.value;
  for (const std::uint64_t nth : {std::uint64_t{0}, page}) {
    if (nth >= kMaxPlaces) break;
    const auto found = pieces_.find(key(grant, nth));
    if (found == pieces_.end() || found->second.grant != grant) continue;
    Piece& piece = found->second;
    if (offset < piece.begin || offset - piece.begin > piece.place.length ||
        bytes > piece.place.length - (offset - piece.begin)) {
      continue;
    }
    Place place = piece.place;
    place.address += offset - piece.begin;
    const bool whole = bytes == place.length;
    place.length = bytes;
    if (whole) pieces_.erase(found);
    return place;
  }
  return std::nullopt;
}

}  // namespace tensorlane::rdma
