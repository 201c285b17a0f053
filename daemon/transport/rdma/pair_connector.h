// How the queue pairs of a flow are connected once its ends know each other: by plain verbs (verbs_connector.h) or by
// rdma_cm (cm_connector.h).
#pragma once

#include <memory>
#include <vector>

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

using QueuePairs = std::vector<std::unique_ptr<QueuePair>>;

// The connecting of one flow's queue pairs, which it owns. Destroying it gives up what is not connected, and waits for
// nothing.
class Connecting {
 public:
  virtual ~Connecting() = default;
  // Of the accepting end: whether the peer may be told to go on.
  virtual Result<bool> may_answer() { return true; }
  // Whether all of them can send and receive. Errors of both: kUnavailable (no way to the peer, or not now),
  // kInProgress (nobody answers for its address), kMismatch (what came of it is not what the handshake has settled),
  // kInternal.
  virtual Result<bool> done() = 0;
  // Why they wait, as far as it is known: kInProgress; else ok.
  virtual Status delay() const { return {}; }
  // Once done.
  virtual QueuePairs take_pairs() = 0;
};

// Who hears of what has happened. Calls come from inside serve().
class PairEvents {
 public:
  virtual ~PairEvents() = default;
  // The connecting of this flow's pairs may be done, or may have failed.
  virtual void on_moved(const ports::FlowKey& flow) = 0;
  // A request was refused: nobody waits for it, or it does not prove what it should.
  virtual void on_request_refused(const Status& cause) = 0;
};

// One thread. It outlives what it has made.
class PairConnector {
 public:
  virtual ~PairConnector() = default;
  // Fills in what the peer has to know of this way.
  virtual void offer(Parameters& mine) const = 0;
  // Errors: as Connecting::done(), where they show at once, and kResourceExhausted.
  virtual Result<std::unique_ptr<Connecting>> connect(const Meeting& meeting, QueuePairs pairs) = 0;
  // Readable when serve() has something to do.
  virtual int fd() const = 0;
  virtual void serve() = 0;
};

}  // namespace tensorlane::rdma
