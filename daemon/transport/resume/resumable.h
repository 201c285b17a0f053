// A flow that may outlive its connection: what the flows of all transports that resume have.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/handshake.h"
#include "daemon/transport/handshake/up_flow.h"
#include "daemon/transport/ledger/ledger.h"

namespace tensorlane::resume {

// Who a flow is to both ends. Random; the same on every connection that carries it.
struct FlowIdentity {
  std::uint64_t mine = 0, peers = 0;
  bool operator==(const FlowIdentity&) const = default;
};

// One thread, the lane's.
class Resumable : public handshake::UpFlow {
 public:
  const FlowIdentity& identity() const { return identity_; }
  bool resumes() const { return job_->resume_within().value > 0; }

  virtual bool connected() const = 0;
  // Has no connection, and delivers nothing more of what the last one has brought: delivered() stays as it is.
  virtual bool settled() const = 0;

  // How many frames of the peer have been delivered.
  ledger::Number delivered() const { return in_.delivered(); }
  // Grows with every frame that has been delivered in either direction.
  std::uint64_t moved() const { return in_.delivered() + out_.delivered(); }
  // Everything that this end has sent has been delivered.
  bool idle() const { return out_.delivered() == out_.pushed(); }
  // Whether the peer can have `delivered` frames of this end.
  bool can_resume(ledger::Number delivered) const { return delivered >= out_.delivered() && delivered <= out_.next(); }

  // The Resumer's notes of a flow that has lost its connection: why, when it is given up, and moved() by then.
  Status lost_cause;
  Time lost_deadline;
  Time resumed_at;
  std::uint64_t lost_moved = 0;
  Time redial_from;
  std::uint64_t offers = 0;  // of this end's part in a new connection; the last one counts

 protected:
  // Keeps up to `kept` frames that the peer does not have.
  Resumable(const ports::FlowKey& key, handshake::JobPtr job, const FlowIdentity& identity, std::uint32_t kept)
      : UpFlow(key, std::move(job)), identity_(identity), out_(kept) {}

  const FlowIdentity identity_;
  ledger::SendLedger out_;
  ledger::ReceiveLedger in_;
};

}  // namespace tensorlane::resume
