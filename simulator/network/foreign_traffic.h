// Traffic of others on the same links: bursts between hosts, drawn from a seed.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/units.h"
#include "simulator/clock/event_queue.h"
#include "simulator/clock/random.h"
#include "simulator/network/fabric_network.h"

namespace tensorlane::simulator {

struct ForeignOptions {
  double load = 0.2;  // of every host's link, in and out, on average; at most what is left when one burst waits
  Bytes burst = mib(1);
  std::uint8_t level = 1;  // of service
  std::uint64_t seed = 1;
};

// Every host sends bursts to others, drawn evenly, after gaps between 0 and twice the mean one. A host with
// kMostAtOnce bursts under way leaves bursts out, so that queues are bounded. Never stops: a run ends by what it
// waits for. One thread, the event queue's.
class ForeignTraffic final : public FabricSink {
 public:
  static constexpr std::uint32_t kMostAtOnce = 4;

  // At least two hosts. What is referred to outlives the last event.
  ForeignTraffic(EventQueue& events, FabricNetwork& network, const Topology& topology, const ForeignOptions& options);

  // The first bursts follow now().
  void start();
  std::uint64_t bursts() const { return bursts_; }  // sent
  std::uint64_t bytes() const { return bytes_; }    // that arrived

  void on_delivered(const Message& message) override;
  void on_acknowledged(const Message&) override {}

 private:
  void next_burst(HostIndex host);
  void send(HostIndex host);

  EventQueue& events_;
  FabricNetwork& network_;
  const ForeignOptions options_;
  Random random_;
  std::vector<Duration> gaps_;            // by host: the mean
  std::vector<std::uint32_t> under_way_;  // by host
  std::uint64_t bursts_ = 0, bytes_ = 0;
};

}  // namespace tensorlane::simulator
