// Queue pairs connected by plain verbs: the handshake has brought all that it takes.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

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
  // A peer's address that nobody has answered for, and how often flows to it have asked since.
  struct Unresolved {
    std::uint32_t asked = 0;
    Status why;
  };
  Status connect_all(const Meeting& meeting, std::span<const std::unique_ptr<QueuePair>> pairs) const;

  std::map<std::pair<JobId, GidBytes>, Unresolved> unresolved_;
  const Device& device_;
};

}  // namespace tensorlane::rdma
