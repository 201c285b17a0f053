// A flow that is up: what the flows of all transports that connect by a handshake have.
#pragma once

#include <string>
#include <utility>

#include "common/base/status.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/handshake.h"
#include "daemon/transport/handshake/socket.h"
#include "daemon/transport/handshake/watched.h"

namespace tensorlane::handshake {

// One thread, the lane's.
class UpFlow : public Watched, public ports::Flow {
 public:
  const ports::FlowKey& key() const { return key_; }
  const Job& job() const { return *job_; }
  // "connection to host 3 (10.0.0.4:7111, class 1)"
  std::string name() const { return connection_name(key_.peer, remote_, key_.cls); }
  // An error that names this flow: name() and `how`.
  Status broken(Code code, const std::string& how, const std::string& fix = {}) const {
    return {code, name() + " " + how, {}, fix};
  }
  // Where its frames go; before anything is read or sent.
  void deliver_to(ports::FrameSink& sink) { sink_ = &sink; }

 protected:
  UpFlow(const ports::FlowKey& key, JobPtr job) : Watched(Kind::kFlow), key_(key), job_(std::move(job)) {}
  // Goes over this connection.
  void note_ends(int socket) {
    local_ = local_endpoint(socket).text();
    remote_ = peer_endpoint(socket).text();
  }

  const ports::FlowKey key_;
  const JobPtr job_;
  std::string local_, remote_;  // the ends of the last connection
  ports::FrameSink* sink_ = nullptr;
};

}  // namespace tensorlane::handshake
