// What the handshake of a flow that may be resumed says beside what the transport needs: which flow it is, and how many
// frames of the peer have been delivered. Both are inside the handshake's MACs and of one connection only, so nobody
// else can resume a flow, and no old answer counts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/transport/handshake/handshake.h"
#include "daemon/transport/ledger/ledger.h"
#include "daemon/transport/resume/resumable.h"

namespace tensorlane::resume {

// What to do about a peer whose flow does not fit.
inline constexpr const char* kLookThere = "look at the log of tensorlaned on that host";

// On the wire, little-endian, from either end. `to` = 0: the connecting end begins a new flow.
struct FlowParameters {
  std::uint64_t from = 0, to = 0;  // identities of the sender's and of the receiver's end
  ledger::Number delivered = 0;    // frames of the receiver
};

// What an end has of a flow when it takes part in a new connection for it.
struct FlowOffer {
  FlowIdentity identity;         // peers = 0: not known yet
  ledger::Number delivered = 0;  // and nothing is delivered until the connection is used or fails
  std::uint64_t number = 0;      // of the offer; 0: there is no flow to resume
};

// Who knows the flows. Calls come from inside poll().
class FlowOffers {
 public:
  virtual ~FlowOffers() = default;
  // This end's part as the connecting one.
  virtual FlowOffer offer_flow(const ports::FlowKey& key) = 0;
  // As the accepting one, to a peer that has proved itself. Errors: kUnavailable (no flow of that identity here),
  // kInProgress (the flow still delivers what the last connection has brought: ask again).
  virtual Result<FlowOffer> answer_flow(const ports::FlowKey& key, const FlowParameters& peer) = 0;
  // Whether the flow of the offer can go on where the peer says that it has `delivered` frames.
  virtual bool can_resume(const ports::FlowKey& key, ledger::Number delivered) const = 0;
};

class FlowExchange final : public handshake::Exchange {
 public:
  FlowExchange(const ports::FlowKey& key, FlowOffers& offers) : key_(key), offers_(offers) {}

  // Errors: those of answer_flow().
  Result<std::vector<std::byte>> offer(std::span<const std::byte> peer) override;
  // Errors: kMismatch (another flow), kCorrupt (a ledger that does not fit).
  Status accept(std::span<const std::byte> peer) override;

  // After accept(): this end's part, complete, and what the peer has.
  const FlowOffer& mine() const { return mine_; }
  ledger::Number peer_has() const { return peer_has_; }

 private:
  const ports::FlowKey key_;
  FlowOffers& offers_;
  FlowOffer mine_;
  ledger::Number peer_has_ = 0;
};

}  // namespace tensorlane::resume
