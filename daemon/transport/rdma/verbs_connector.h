// Queue pairs connected by plain verbs: the handshake has brought all that it takes.
#pragma once

#include "daemon/transport/rdma/pair_connector.h"

namespace tensorlane::rdma {

class VerbsConnector final : public PairConnector {
 public:
  // `device` outlives it.
  explicit VerbsConnector(const Device& device) : device_(device) {}

  void offer(Parameters& mine) const override;
  Result<std::unique_ptr<Connecting>> connect(const Meeting& meeting,
                                              std::span<const std::unique_ptr<QueuePair>> pairs) override;

 private:
  const Device& device_;
};

}  // namespace tensorlane::rdma
