// The connecting end of a flow until it is up: attempts, back-off, deadline.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/connection.h"
#include "daemon/transport/handshake/handshake.h"
#include "daemon/transport/handshake/socket.h"

namespace tensorlane::handshake {

// Between attempts: doubles from the first to the last.
inline constexpr Duration kFirstBackoff = milliseconds(10);
inline constexpr Duration kLastBackoff = milliseconds(500);

// One thread. The transport drives it: start() when due, failed() when the attempt has failed.
class Dialer {
 public:
  // The first attempt is due at `first`. `again`: the peer has had the flow, so that it not knowing the job is no
  // reason to try once more, and the first attempt may not take the time of many: a lost SYN alone costs a second.
  // Every attempt that has run out of time is followed by one of twice the time, for what takes long is perhaps a busy
  // host.
  Dialer(ports::FlowKey key, JobPtr job, const Endpoint& peer, Time first, Time deadline, bool again)
      : key_(key),
        job_(std::move(job)),
        peer_(peer),
        deadline_(deadline),
        again_(again),
        patience_(patience(first, deadline, again)),
        next_(first) {}

  // Makes a tagged socket that connects, from `source` unless that is a wildcard. Errors: of this host (descriptors, no
  // route); count as a failed attempt.
  Status start(Time now, const Endpoint& source, const ports::ClassTag& tag, Bytes window,
               const ExchangeFactory& exchanges);
  // The attempt has failed with `cause`. Ok: another one follows at next(). Else the flow is given up, with that
  // status.
  Status failed(Time now, const Status& cause, Refusal refusal);

  const ports::FlowKey& key() const { return key_; }
  const JobPtr& job() const { return job_; }
  // When start() is due; meaningless while there is an attempt.
  Time next() const { return next_; }

  std::unique_ptr<Connection> attempt;

 private:
  static Duration patience(Time first, Time deadline, bool again);

  const ports::FlowKey key_;
  const JobPtr job_;
  const Endpoint peer_;
  const Time deadline_;
  const bool again_;
  Duration patience_;  // of the next attempt
  Time next_;
  Duration backoff_ = kFirstBackoff;
  Status last_cause_;
};

}  // namespace tensorlane::handshake
