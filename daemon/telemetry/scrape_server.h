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

// Serves GET /metrics from start to end of its life. Whoever connects and says nothing, or says it slowly, holds one of
// kThreads threads for kPatienceMs; connections that wait for a thread are bounded, too, so that a scrape is answered
// within ten seconds (Prometheus's own patience) however many idle ones there are before it.
class ScrapeServer {
 public:
  static constexpr int kThreads = 8, kPatienceMs = 1000, kWaiting = 32;

  // Errors: kInvalidArgument (address), kUnavailable (port in use).
  static Result<std::unique_ptr<ScrapeServer>> start(const std::string& listen,
                                                     std::shared_ptr<prometheus::Collectable> page);
  virtual ~ScrapeServer() = default;
  // Where it listens: "127.0.0.1:9400".
  virtual std::string address() const = 0;
};

}  // namespace tensorlane::telemetry
