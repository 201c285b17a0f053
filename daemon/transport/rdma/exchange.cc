#include "daemon/transport/rdma/exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tensorlane::rdma {

Result<std::vector<std::byte>> PairExchange::offer(std::span<const std::byte> peer) {
  if (!registrations_.ok()) return registrations_.status();
  // First: a flow that cannot go on needs no queue pairs.
  std::vector<std::byte> of_flow;
  if (flow_) {
    TL_ASSIGN_OR_RETURN(of_flow, flow_->offer(peer.empty() ? peer : peer.subspan(sizeof(Parameters))));
  }
  connecting_end_ = peer.empty();
  mine_.queue_pairs = queue_pairs_;
  mine_.path_mtu = static_cast<std::uint8_t>(context_.device.mtu());
  mine_.gid = context_.device.gid().gid;
  context_.connector.offer(mine_);
  for (std::size_t i = 0; i < queue_pairs_; ++i) {
    TL_ASSIGN_OR_RETURN(std::unique_ptr<QueuePair> pair,
                        QueuePair::create(context_.device, *registrations_, context_.queue, context_.table));
    mine_.pairs[i] = pair->parameters();
    pairs_.push_back(std::move(pair));
  }
  const auto bytes = std::as_bytes(std::span(&mine_, 1));
  std::vector<std::byte> all(bytes.begin(), bytes.end());
  all.insert(all.end(), of_flow.begin(), of_flow.end());
  return all;
}

Status PairExchange::accept(std::span<const std::byte> peer) {
  TL_ASSIGN_OR_RETURN(const Parameters theirs, parse_parameters(peer.first(sizeof(Parameters)), mine_));
  if (flow_) TL_RETURN_IF_ERROR(flow_->accept(peer.subspan(sizeof(Parameters))));
  const Path path{theirs.gid, std::min(context_.device.mtu(), static_cast<ibv_mtu>(theirs.path_mtu)), tag_, retries_};
  TL_ASSIGN_OR_RETURN(connecting_, context_.connector.connect({key_, connecting_end_, path, theirs, secret_},
                                                              std::exchange(pairs_, {})));
  return {};
}

}  // namespace tensorlane::rdma
