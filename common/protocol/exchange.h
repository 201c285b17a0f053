// Gather, scatter and all-to-all: which part of which rank's buffer goes where in which rank's. Every pair of ranks has
// a part of one size, the block, or none.
//
// Between hosts the engines move one buffer of each host. That is a rank's own where the host has a single rank, and of
// a gather and a scatter at the root's host, whose other ranks copy from and into the root's. Elsewhere several ranks
// share a buffer of the daemon's own, into which what goes to other hosts is copied, and out of which what comes from
// them is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/units.h"
#include "common/protocol/plan.h"
#include "common/protocol/rank_places.h"
#include "common/protocol/session.h"

namespace tensorlane::protocol {

// As ranks see it. Counts and places are in elements of the rank's buffer.
struct Exchange {
  Operation operation{};  // exchanges()
  std::uint64_t elements = 0;
  std::uint32_t world_size = 1;
  std::uint32_t root = 0;  // rank; of an all-to-all, not used

  // What `elements` must be a multiple of.
  static constexpr std::uint64_t unit(Operation operation, std::uint32_t world_size) {
    return std::uint64_t{operation == Operation::kAlltoall ? 2u : 1u} * world_size;
  }

  std::uint64_t block() const { return elements / unit(operation, world_size); }
  // The whole buffer of a rank.
  std::uint64_t buffer(std::uint32_t rank) const {
    return operation == Operation::kAlltoall || rank == root ? elements : block();
  }
  bool sends(std::uint32_t from, std::uint32_t to) const {
    if (operation == Operation::kGather) return to == root;
    return operation == Operation::kAlltoall || from == root;
  }
  // Where the block for `to` lies in the buffer of `from`.
  std::uint64_t sent_from(std::uint32_t from, std::uint32_t to) const {
    return operation == Operation::kAlltoall || from == root ? to * block() : 0;
  }
  // Where it comes to lie in the buffer of `to`.
  std::uint64_t lands_at(std::uint32_t from, std::uint32_t to) const {
    if (operation == Operation::kAlltoall) return (std::uint64_t{world_size} + from) * block();
    return to == root ? from * block() : 0;
  }
  // A number of the pair, below pairs().
  std::uint64_t pair(std::uint32_t from, std::uint32_t to) const {
    if (operation == Operation::kAlltoall) return std::uint64_t{from} * world_size + to;
    return operation == Operation::kGather ? from : to;
  }
};

inline Exchange exchange_of(const PlanTensor& tensor, std::uint32_t world_size) {
  return {tensor.operation, tensor.elements, world_size, tensor.root_rank.value};
}

// The bytes of a rank's buffer of a tensor, whatever its operation.
inline std::uint64_t buffer_bytes(const TensorBody& tensor, std::uint32_t world_size, std::uint32_t rank) {
  const Exchange exchange{tensor.operation, tensor.elements, world_size, tensor.root};
  return (exchanges(tensor.operation) ? exchange.buffer(rank) : tensor.elements) * dtype_size(tensor.dtype);
}

// One block that is copied inside a host.
struct LocalCopy {
  // Of a buffer: the local index of the rank whose it is, or kHost.
  static constexpr std::uint32_t kHost = 0xffffffff;
  std::uint32_t from = 0, to = 0;
  std::uint64_t from_place = 0, to_place = 0;  // in elements
};

// As one host sees it. A value; `places` outlives it.
class HostExchange {
 public:
  HostExchange(const Exchange& exchange, const RankPlaces& places, HostIndex host)
      : exchange_(exchange),
        places_(&places),
        host_(host),
        ranks_(places.ranks(host)),
        rooted_(exchange.operation != Operation::kAlltoall),
        has_root_(rooted_ && has(exchange.root)) {}

  bool has(std::uint32_t rank) const { return places_->host(rank) == host_; }
  std::uint64_t block() const { return exchange_.block(); }
  // Whether the engines' buffer is the daemon's own; else it is that of the rank with the local index leader().
  bool own_buffer() const { return ranks_.size() > 1 && !has_root_; }
  std::uint32_t leader() const { return has_root_ ? places_->index(exchange_.root) : 0; }

  // Of the engines' buffer, in elements.
  std::uint64_t buffer() const {
    if (!own_buffer()) return exchange_.buffer(ranks_[leader()]);
    return ranks_.size() * (rooted_ ? block() : exchange_.elements);
  }
  // Where in it the block lies that a rank of this host sends to one of another.
  std::uint64_t sent_from(std::uint32_t from, std::uint32_t to) const {
    if (!own_buffer()) return exchange_.sent_from(from, to);
    return place_in_own(places_->index(from), to);
  }
  // Where in it the block from a rank of another host comes to lie.
  std::uint64_t lands_at(std::uint32_t from, std::uint32_t to) const {
    if (!own_buffer()) return exchange_.lands_at(from, to);
    return place_in_own(places_->index(to) + (rooted_ ? 0 : ranks_.size()), from);
  }

  // What is copied before anything goes between hosts, `between_hosts` if anything does: blocks between ranks of this
  // host, and what others get into the own buffer. So many places in a list, and what is copied for the i-th: nothing
  // for some.
  std::uint64_t collected(bool between_hosts) const {
    const std::uint64_t n = ranks_.size();
    if (!rooted_) return n == 1 ? 1 : n * exchange_.world_size;
    if (has_root_) return n == 1 ? 0 : n;
    return between_hosts && own_buffer() && exchange_.operation == Operation::kGather ? n : 0;
  }
  std::optional<LocalCopy> collect(std::uint64_t i) const {
    if (!rooted_) {
      const std::uint32_t world = exchange_.world_size;
      const auto local = static_cast<std::uint32_t>(ranks_.size() == 1 ? 0 : i / world);
      const auto to = ranks_.size() == 1 ? ranks_[0] : static_cast<std::uint32_t>(i % world);
      const std::uint64_t place = exchange_.sent_from(ranks_[local], to);
      if (!has(to)) return LocalCopy{local, LocalCopy::kHost, place, sent_from(ranks_[local], to)};
      return LocalCopy{local, places_->index(to), place, exchange_.lands_at(ranks_[local], to)};
    }
    const auto local = static_cast<std::uint32_t>(i);
    if (!has_root_) return LocalCopy{local, LocalCopy::kHost, 0, sent_from(ranks_[local], exchange_.root)};
    if (local == leader()) return std::nullopt;
    const std::uint64_t at_root = ranks_[local] * block();
    if (exchange_.operation == Operation::kGather) return LocalCopy{local, leader(), 0, at_root};
    return LocalCopy{leader(), local, at_root, 0};
  }
  // The same when all has come from other hosts: out of the own buffer.
  std::uint64_t spread() const {
    if (!own_buffer() || exchange_.operation == Operation::kGather) return 0;
    return ranks_.size() * (rooted_ ? 1 : exchange_.world_size);
  }
  std::optional<LocalCopy> spread(std::uint64_t i) const {
    const auto local = static_cast<std::uint32_t>(rooted_ ? i : i / exchange_.world_size);
    const auto from = rooted_ ? exchange_.root : static_cast<std::uint32_t>(i % exchange_.world_size);
    if (has(from)) return std::nullopt;
    const std::uint32_t to = ranks_[local];
    return LocalCopy{LocalCopy::kHost, local, lands_at(from, to), exchange_.lands_at(from, to)};
  }

 private:
  // Of a gather and a scatter the own buffer has the block of each local rank; of an all-to-all what each sends, by
  // receiver, then what each gets, by sender.
  std::uint64_t place_in_own(std::uint64_t row, std::uint32_t rank) const {
    return (rooted_ ? row : row * exchange_.world_size + rank) * block();
  }

  Exchange exchange_;
  const RankPlaces* places_;
  HostIndex host_;
  std::span<const std::uint32_t> ranks_;  // of this host
  bool rooted_, has_root_;
};

}  // namespace tensorlane::protocol
