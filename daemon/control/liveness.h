// Who of a job is alive, by heartbeats alone (law 10). Pure: time comes in.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "common/base/units.h"

namespace tensorlane::control {

class Liveness {
 public:
  explicit Liveness(Duration detection) : detection_(detection) {}

  Duration detection() const { return detection_; }
  // Between two heartbeats of one host: seven may be lost or late.
  Duration interval() const { return Duration(detection_.value / 8); }
  // Silence that makes a host dead. The rest of the detection time is for spreading the news.
  Duration patience() const { return Duration(detection_.value * 6 / 10); }

  // The host is expected to be heard from now on. Its first heartbeat may take 1.5 times the patience: connections are
  // being made.
  void add(const std::string& host, Time now);
  void remove(const std::string& host) { hosts_.erase(host); }
  // Something authentic came from the host; nothing happens when it is not expected.
  void heard(const std::string& host, Time now);
  // How long ago; nothing when it is not expected.
  std::optional<Duration> silence(const std::string& host, Time now) const;

  struct Verdict {
    std::optional<Duration>
        own_pause;  // this daemon itself stood still for longer than the detection time: it is the one that failed
    std::optional<std::string> dead;  // silent for longer than the patience (the most silent one)
    Duration silence;                 // of `dead`
  };
  // Call at least every interval(), after everything that has arrived was reported by heard(). When this daemon has not
  // been running between two calls, it has heard nobody for that long and blames nobody for it.
  Verdict check(Time now);

  // True once per interval(): send heartbeats now.
  bool due(Time now);

 private:
  Duration detection_;
  std::map<std::string, Time> hosts_;  // when each was last heard
  std::optional<Time> checked_, sent_;
};

}  // namespace tensorlane::control
