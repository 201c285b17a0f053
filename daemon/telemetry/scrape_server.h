// The HTTP server that answers Prometheus.
#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"

namespace prometheus {
class Collectable;
}

namespace tensorlane::telemetry {

// Whether metrics could be served at ADDRESS:PORT: the address has both parts and is one of this host's. A port that is
// in use is no error, because it may be the running daemon's. Errors: kInvalidArgument.
Status check_listen_address(const std::string& listen);

// Serves GET /metrics from start to end of its life, on a thread of its own. The library's server keeps a thread, or a
// place in a queue, for each connection, so that those who say nothing delay those who ask. Here a connection that asks
// is answered at once, whoever else is there: nobody waits for a thread, and where kConnections are open already, the
// one that has said nothing for longest makes room.
class ScrapeServer {
 public:
  // Of a request: its bytes, and the time until it is complete. Of an answer: the time until it is read.
  static constexpr std::size_t kConnections = 32, kRequestBytes = 8192;
  static constexpr int kRequestMs = 2000, kAnswerMs = 10000;

  // Errors: kInvalidArgument (address), kUnavailable (port in use).
  static Result<std::unique_ptr<ScrapeServer>> start(const std::string& listen,
                                                     std::shared_ptr<prometheus::Collectable> page);
  virtual ~ScrapeServer() = default;
  // Where it listens: "127.0.0.1:9400".
  virtual std::string address() const = 0;
};

}  // namespace tensorlane::telemetry
