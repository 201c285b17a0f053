// Whether the network still honours the classes, looked at all the time: once in `probe_marks` one other host of the
// fabric is probed, in each class and on each rail with one connection to its data ports, and says how the packets
// arrived. `tensorlane verify` does the same for all pairs, at once, and finds out where marks change.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "common/base/status.h"
#include "common/fabric/fabric.h"
#include "common/json/json.h"
#include "common/probe/prober.h"
#include "daemon/ports/probe_tokens.h"
#include "daemon/ports/question.h"
#include "daemon/telemetry/metrics.h"

namespace tensorlane::wiring {

// Any thread. Its own thread, which probes, is there from start() to stop().
class MarkWatch {
 public:
  // Asks the daemon of a host; `done` comes from any thread, or never where that daemon's control has stopped.
  using Ask = std::function<void(const std::string& host, const std::string& kind, const nlohmann::json& args,
                                 Duration patience, ports::Answered done)>;
  struct Parts {
    const fabric::Fabric* fabric;  // outlives this
    std::string host;              // this one
    fabric::ClassTable classes;    // in force
    Duration every;                // 0: hosts that probe this one are answered, and it probes none
    ports::ProbeTokens* tokens;    // outlives this
    Ask ask;
  };
  // What probes of one class have shown.
  struct Counts {
    std::uint64_t kept = 0;       // they arrived as they were sent
    std::uint64_t changed = 0;    // with another DSCP
    std::uint64_t not_known = 0;  // they did not arrive, or the receiver's kernel does not say how
  };

  explicit MarkWatch(Parts parts);
  ~MarkWatch();
  MarkWatch(const MarkWatch&) = delete;
  MarkWatch& operator=(const MarkWatch&) = delete;

  void start();
  // Waits for a probe that is under way, for up to 2 s.
  void stop();

  // The daemon of another host is about to probe this one: {"token": 32 hexadecimal digits}.
  void answer(const ports::Question& question, const ports::Answered& done);
  // By the class's name.
  std::map<std::string, Counts> counts() const;
  std::vector<telemetry::ExtraFamily> metrics() const;
  // For the status: whose marks changed when they were last looked at, at most kMostShown.
  nlohmann::json describe() const;

  // One look at one host, from the caller's thread.
  void look_at(const fabric::Host& peer);

 private:
  static constexpr std::size_t kMostShown = 64;

  struct Seen {
    std::string peer;
    std::size_t rail = 0;
    std::string cls;
    auto operator<=>(const Seen&) const = default;
  };

  void run();
  bool allowed_by(const std::string& peer, const ports::ProbeTokens::Token& token);
  void note(const Seen& seen, int sent, const probe::Arrival& arrival);

  const Parts parts_;
  const std::vector<fabric::TrafficClass> classes_;  // control first, as ports are
  mutable std::mutex mutex_;
  std::condition_variable wakes_;
  bool stops_ = false;
  std::map<std::string, Counts> counts_;
  std::map<Seen, int> changed_;  // as what the class's DSCP last arrived
  std::thread thread_;
};

}  // namespace tensorlane::wiring
