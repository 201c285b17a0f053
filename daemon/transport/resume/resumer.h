// Flows of a transport that have lost their connection: the end with the lower index dials again, both agree on what
// was delivered (exchange.h), and the flow goes on; or the time is up and it goes down.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/connector.h"
#include "daemon/transport/resume/exchange.h"
#include "daemon/transport/resume/resumable.h"

namespace tensorlane::resume {

// The transport's flows, by name. Calls come from inside poll().
class Flows {
 public:
  virtual ~Flows() = default;
  // Null: not up.
  virtual Resumable* find_flow(const ports::FlowKey& key) = 0;
  // The peer has lost its end of the connection: the flow gives up its own, and Resumer::lost() is told.
  virtual void lose_connection(Resumable& flow, Status cause) = 0;
  virtual void end_flow(Resumable& flow, Status cause) = 0;
};

// One thread.
class Resumer final : public FlowOffers {
 public:
  // Both outlive the resumer.
  Resumer(handshake::Connector& connector, Flows& flows) : connector_(connector), flows_(flows) {}

  // This end makes the flow, from there. Kept for jobs that resume, until forget().
  void note_place(const ports::FlowKey& key, const std::string& address, std::uint16_t data_port);
  // The flow has ended, or was never up: it is not made again.
  void forget(const ports::FlowKey& key);
  void forget_job(JobId job);

  // The flow, of a job that resumes, is not connected any more. dial() follows when it has settled.
  void lost(Resumable& flow, Status cause, Time now);
  // The flow has settled: makes its new connection, unless the peer does.
  void dial(Resumable& flow, Time now);
  // No connection of the flow comes up any more: ends it with what took the last one, and `why`.
  void give_up(Resumable& flow, const Status& why);
  // Ends what is not back in time.
  void give_up_late(Time now);
  // When give_up_late() has something to do.
  Time next_deadline() const { return next_deadline_; }

  enum class Next : std::uint8_t {
    kBegin,   // a new flow; one of the same name, if there is one, is replaced
    kResume,  // the flow of this name goes on
    kIgnore,  // an offer that was overtaken: the connection is closed
  };
  // What an authenticated connection is for; `exchange` is null for jobs that do not resume.
  Next connected(const ports::FlowKey& key, const FlowExchange* exchange);
  // After kResume: the flow is connected, and sends so many frames again.
  void resumed(Resumable& flow, std::uint64_t again, Time now);
  void count(ports::TransportCounters& counters) const;

  FlowOffer offer_flow(const ports::FlowKey& key) override;
  Result<FlowOffer> answer_flow(const ports::FlowKey& key, const FlowParameters& peer) override;
  bool can_resume(const ports::FlowKey& key, ledger::Number delivered) const override;

 private:
  struct PeerPlace {
    std::string address;
    std::uint16_t data_port = 0;
  };
  handshake::Connector& connector_;
  Flows& flows_;
  std::map<ports::FlowKey, PeerPlace> places_;
  // New flows that this end has agreed to as the accepting one, the last of each name: if the connection is lost before
  // it has come up here, it may be up at the peer.
  std::map<ports::FlowKey, FlowIdentity> agreed_;
  std::vector<Resumable*> lost_;
  Time next_deadline_ = handshake::Connector::never();
  std::uint64_t flows_resumed_ = 0, frames_resent_ = 0;
};

}  // namespace tensorlane::resume
