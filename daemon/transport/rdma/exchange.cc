#include "daemon/transport/rdma/exchange.h"

#include <algorithm>
#include <cstring>

namespace tensorlane::rdma {

Result<std::vector<std::byte>> PairExchange::offer(std::span<const std::byte> /*peer*/) {
  if (!registrations_.ok()) return registrations_.status();
  Parameters mine;
  mine.queue_pairs = queue_pairs_;
  mine.path_mtu = static_cast<std::uint8_t>(around_.device.mtu());
  mine.gid = around_.device.gid().gid;
  for (std::size_t i = 0; i < queue_pairs_; ++i) {
    TL_ASSIGN_OR_RETURN(std::unique_ptr<QueuePair> pair,
                        QueuePair::create(around_.device, *registrations_, around_.queue, around_.table));
    mine.pairs[i] = pair->parameters();
    pairs_.push_back(std::move(pair));
  }
  const auto bytes = std::as_bytes(std::span(&mine, 1));
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

Status PairExchange::accept(std::span<const std::byte> peer) {
  TL_ASSIGN_OR_RETURN(const Parameters theirs, parse_parameters(peer, queue_pairs_));
  path_ = {theirs.gid, std::min(around_.device.mtu(), static_cast<ibv_mtu>(theirs.path_mtu)), tag_, timeout_};
  for (std::size_t i = 0; i < pairs_.size(); ++i) TL_RETURN_IF_ERROR(pairs_[i]->connect(path_, theirs.pairs[i]));
  return {};
}

}  // namespace tensorlane::rdma
