// How the queue pairs of a flow are connected once its ends know each other: by plain verbs (verbs_connector.h) or by
// rdma_cm (cm_connector.h).
#pragma once

#include <memory>
#include <span>

#include "common/base/status.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/handshake.h"
#include "daemon/transport/rdma/message.h"
#include "daemon/transport/rdma/queue_pair.h"

namespace tensorlane::rdma {

// What the handshake of a flow has settled; as trustworthy as the key of the two hosts.
struct Meeting {
  ports::FlowKey flow;
  bool connecting_end = false;
  Path path;
  Parameters theirs;
  handshake::Mac secret{};  // handshake::Exchange::bind
};

// The connecting of one flow's queue pairs. Destroying it gives up what is not connected.
class Connecting {
 public:
  virtual ~Connecting() = default;
  // Whether all of them can send and receive. Errors: kUnavailable (no way to the peer, or not now), kMismatch (what
  // came of it is not what the handshake has settled), kInternal.
  virtual Result<bool> done() = 0;
};

// One thread. It outlives what it has made.
class PairConnector {
 public:
  virtual ~PairConnector() = default;
  // Fills in what the peer has to know of this way.
  virtual void offer(Parameters& mine) const = 0;
  // `pairs` live until the answer is destroyed. Errors: as Connecting::done(), where they show at once.
  virtual Result<std::unique_ptr<Connecting>> connect(const Meeting& meeting,
                                                      std::span<const std::unique_ptr<QueuePair>> pairs) = 0;
};

}  // namespace tensorlane::rdma
