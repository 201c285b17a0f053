// Queue pairs connected by plain verbs: the handshake has brought all that it takes. Either end moves its pairs on
// threads beside the lane, because the kernel looks for the peer's address meanwhile; the accepting end answers only
// when its pairs can receive.
#pragma once

#include <memory>

#include "daemon/transport/rdma/address_workers.h"
#include "daemon/transport/rdma/pair_connector.h"

namespace tensorlane::rdma {

class VerbsConnector final : public PairConnector {
 public:
  // `device` and `events` outlive it. Errors: kResourceExhausted (descriptors).
  static Result<std::unique_ptr<VerbsConnector>> open(const Device& device, PairEvents& events);

  void offer(Parameters& mine) const override;
  Result<std::unique_ptr<Connecting>> connect(const Meeting& meeting, QueuePairs pairs) override;
  int fd() const override { return workers_->fd(); }
  void serve() override;

 private:
  VerbsConnector(const Device& device, PairEvents& events, std::unique_ptr<AddressWorkers> workers)
      : device_(device), events_(events), workers_(std::move(workers)) {}

  const Device& device_;
  PairEvents& events_;
  std::unique_ptr<AddressWorkers> workers_;
};

}  // namespace tensorlane::rdma
