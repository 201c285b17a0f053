#include "simulator/network/foreign_traffic.h"

#include <algorithm>

#include "common/base/assert.h"

namespace tensorlane::simulator {

ForeignTraffic::ForeignTraffic(EventQueue& events, FabricNetwork& network, const Topology& topology,
                               const ForeignOptions& options)
    : events_(events),
      network_(network),
      options_(options),
      random_(options.seed),
      gaps_(topology.hosts),
      under_way_(topology.hosts) {
  TL_ASSERT(topology.hosts >= 2 && options.load > 0 && options.level < kLevels);
  const double bits = static_cast<double>(options.burst.value) * 8 / options.load;
  for (const Cable& cable : topology.cables) {
    for (const NodeIndex end : {cable.a, cable.b}) {
      if (end >= topology.hosts) continue;
      const auto gap = static_cast<std::int64_t>(bits * 1e9 / static_cast<double>(cable.rate.value));
      gaps_[end] = std::max(gaps_[end], Duration(std::max<std::int64_t>(1, gap)));
    }
  }
  network.attach_foreign(this);
}

void ForeignTraffic::start() {
  for (std::size_t h = 0; h < gaps_.size(); ++h) next_burst(HostIndex(static_cast<std::uint16_t>(h)));
}

void ForeignTraffic::next_burst(HostIndex host) {
  events_.after(random_.between(Duration(1), gaps_[host.value] * 2), [this, host] {
    send(host);
    next_burst(host);
  });
}

void ForeignTraffic::send(HostIndex host) {
  if (under_way_[host.value] == kMostAtOnce) return;
  ++under_way_[host.value];
  ++bursts_;
  std::uint64_t to = random_.below(gaps_.size() - 1);
  if (to >= host.value) ++to;
  Message burst{.from = host, .to = HostIndex(static_cast<std::uint16_t>(to)), .level = options_.level};
  burst.job = kForeignJob;
  burst.header.payload_bytes = static_cast<std::uint32_t>(options_.burst.value);
  network_.send(burst);
}

void ForeignTraffic::on_delivered(const Message& message) {
  --under_way_[message.from.value];
  bytes_ += message.header.payload_bytes;
}

}  // namespace tensorlane::simulator
