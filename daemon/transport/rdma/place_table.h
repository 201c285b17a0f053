// Where one peer's grants let payloads land: what it told with them.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <optional>
#include <unordered_map>

#include "daemon/transport/rdma/message.h"

namespace tensorlane::rdma {

// Pieces that one peer may have told of. What does not fit is not kept: payloads for it travel in messages.
inline constexpr std::size_t kMaxKnownPlaces = std::size_t{1} << 17;

// One thread. Memory grows to the most that was ever known and is then used again.
class PlaceTable {
 public:
  PlaceTable() : pieces_(&pool_) {}
  PlaceTable(const PlaceTable&) = delete;
  PlaceTable& operator=(const PlaceTable&) = delete;

  // A frame of the peer gives `grant`, with the places of `message`. Replaces an older generation of the same index.
  void put(std::uint32_t grant, const Message& message);
  // Where [offset, offset + bytes) of what the grant covers lies, if it is known and lies in one piece; a grant has one
  // piece, or pages of kMaxOperation of which the last may be shorter. A piece that is used as a
  // whole is forgotten: its grant says where bytes land once.
  std::optional<Place> take(std::uint32_t grant, std::uint64_t offset, std::uint64_t bytes);
  std::size_t size() const { return pieces_.size(); }

 private:
  struct Piece {
    std::uint32_t grant = 0;
    std::uint64_t begin = 0;  // in what the grant covers
    Place place;
  };
  static std::uint64_t key(std::uint32_t grant, std::size_t nth);

  std::pmr::unsynchronized_pool_resource pool_;
  std::pmr::unordered_map<std::uint64_t, Piece> pieces_;
};

}  // namespace tensorlane::rdma
