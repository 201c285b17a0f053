// Traffic between the hosts of a Network, watched as control watches it (law 21): no engines, only flows that are kept
// full, heartbeats that say what was delivered, and the rules of daemon/progress. For hours of virtual time.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "daemon/progress/flow_watch.h"
#include "daemon/progress/port_load.h"
#include "simulator/clock/event_queue.h"
#include "simulator/network/network.h"

namespace tensorlane::simulator {

// What a host says in its heartbeats.
struct Delivered {
  Time at;
  progress::ClassBytes received{};                                // by its port
  std::map<std::pair<HostIndex, ClassId>, std::uint64_t> frames;  // by sender and class
};

class WatchedTraffic {
 public:
  struct Config {
    NetworkConfig network;
    Duration heartbeat = milliseconds(1250);
    progress::Limits limits{seconds(10), seconds(60)};
    Bytes frame = kib(64);
    std::size_t window = 4;   // frames of a flow on their way
    bool links_known = true;  // the fabric file says how fast ports are
  };
  WatchedTraffic(EventQueue& events, const Config& config);

  Network& network() { return network_; }
  // From now on this flow always has something to send; or nothing new.
  void fill(HostIndex from, HostIndex to, ClassId cls, bool on);

  using Verdict = progress::FlowWatch::Verdict;
  // How often a verdict was given of a flow, and when last.
  struct Given {
    std::uint64_t count = 0;
    Time last;
  };
  Given given(HostIndex from, HostIndex to, ClassId cls, Verdict verdict) const;
  std::uint64_t delivered(HostIndex from, HostIndex to, ClassId cls) const;

 private:
  struct Flow {
    bool on = false;
    std::uint64_t given = 0, delivered = 0, heard = 0;  // frames; heard: delivered, as the sender knows
    progress::FlowWatch watch;
    std::map<Verdict, Given> verdicts;
  };
  using Key = std::tuple<HostIndex, HostIndex, ClassId>;  // from, to
  struct Host final : NetworkSink {
    Host(WatchedTraffic& t, HostIndex s) : traffic(t), self(s) {}
    void on_packet(const Packet& packet) override;
    void on_arrived(const FramePtr&) override {}
    void on_acknowledged(const FramePtr& frame) override;
    void on_heartbeat(HostIndex from, const Heartbeat& beat) override;
    void on_reset(const Channel&) override {}
    std::optional<ledger::Number> on_reconnect(const Channel&) override { return std::nullopt; }
    void on_resumed(const Channel&, ledger::Number) override {}
    void on_acknowledged(const Channel&, ledger::Number) override {}

    WatchedTraffic& traffic;
    const HostIndex self;
    progress::ClassBytes sent{}, received{};
    progress::PortLoad sending;
    std::vector<progress::PortLoad> receiving;  // of each peer, as it says
  };

  void send_more(const Key& key, Flow& flow);
  void beat();

  EventQueue& events_;
  const Config config_;
  Network network_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::map<Key, Flow> flows_;
};

}  // namespace tensorlane::simulator
