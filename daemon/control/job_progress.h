// Whether the traffic of a job moves (law 21): what this host's lane says, what peers say in their heartbeats, and what
// follows from it. Pure: no sockets, clocks or threads.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/units.h"
#include "common/json/json.h"
#include "daemon/ports/progress.h"
#include "daemon/progress/flow_watch.h"
#include "daemon/progress/port_load.h"

namespace tensorlane::control {

// What one host tells all others of a flow that it sends on, or of its lane.
struct Standstill {
  enum class State : std::uint8_t {
    kLate,     // stands still
    kStarved,  // is kept standing by more urgent traffic
    kMoves,    // was reported as one of these, and goes on
  };
  HostIndex to;  // the sender itself: its lane does not turn
  RailIndex rail;
  ClassId cls;
  State state{};
  Duration waited{};
  bool held = false;  // nothing of it is on its way: it waits for its window
  ports::FlowProgress progress;
};

nlohmann::json standstill_to_json(const Standstill& standstill);
// Nothing when malformed, or of a host that is not among `hosts`.
std::optional<Standstill> standstill_from_json(const nlohmann::json& array, std::size_t hosts);

// One job, on one host.
class JobProgress {
 public:
  // `speeds`: of each host's port by rail; 0 where the fabric file does not say.
  JobProgress(HostIndex self, std::vector<std::vector<BitsPerSecond>> speeds, progress::Limits limits);

  // The lane's word. Its first one is awaited for as long as it takes.
  void lane_says(const ports::LaneProgress& progress, Time now);
  // The body of a heartbeat to a peer: what was received of it, and what the ports here carry.
  nlohmann::json heartbeat(HostIndex peer) const;
  // The body of a heartbeat of a peer. False when malformed.
  bool heard(HostIndex peer, const nlohmann::json& body, Time now);

  struct News {
    std::vector<Standstill> reported;
    std::optional<Standstill> error;  // has stood still for late_error
  };
  // Call it every quarter of a heartbeat's interval.
  News check(Time now);

 private:
  using Key = std::tuple<HostIndex, RailIndex, ClassId>;
  struct Peer {
    bool spoken = false;  // of its flows, be they none
    std::map<std::pair<RailIndex, ClassId>, std::uint64_t> delivered;
    std::vector<progress::PortLoad> receiving;  // its ports, by rail
  };
  void look(const Key& key, const progress::FlowCounts& counts, bool filled, const ports::FlowProgress& progress,
            Time now, News* news);
  bool filled(const Key& key, Time now) const;

  const HostIndex self_;
  const progress::Limits limits_;
  std::vector<progress::PortLoad> sending_;  // this host's ports, by rail
  std::vector<Peer> peers_;                  // by host
  ports::LaneProgress lane_;
  std::uint64_t lane_reports_ = 0;
  std::map<Key, progress::FlowWatch> watches_;
};

}  // namespace tensorlane::control
