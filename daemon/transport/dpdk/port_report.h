// What a transport shows other threads of its port and its flows.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "common/base/units.h"
#include "daemon/ports/port_metrics.h"
#include "daemon/transport/datagram/association.h"
#include "daemon/transport/dpdk/port/packet_port.h"

namespace tensorlane::dpdk {

// How often that is brought up to date: packets and turns pay nothing for it.
inline constexpr Duration kReportInterval = milliseconds(100);

// Empty counts for a port.
std::shared_ptr<ports::PortMetrics> make_port_metrics(const PacketPort& port);

// The lane's thread.
class PortReport {
 public:
  PortReport() = default;
  PortReport(const PortReport&) = delete;
  PortReport& operator=(const PortReport&) = delete;
  ~PortReport();
  // Null: nothing is shown. The port outlives the report; `classes` are those of its queues, in their order.
  void open(const PacketPort& port, std::shared_ptr<ports::PortMetrics> metrics, std::vector<ClassId> classes);
  // A turn of the lane begins. `worked`: the one before had packets, and the lane did not rest after it.
  void turn(Time now, bool worked);
  // Whether to publish().
  bool due(Time now) const { return metrics_ != nullptr && now >= next_; }
  // `strangers`: of what the port has received, what was of no flow.
  struct Strangers {
    std::uint64_t packets = 0, bytes = 0;
  };
  void publish(Time now, const datagram::AssociationCounters& flows, const Strangers& strangers);

 private:
  const PacketPort* port_ = nullptr;
  std::shared_ptr<ports::PortMetrics> metrics_;
  std::vector<ClassId> classes_;
  bool started_ = false;
  Time last_turn_, next_;
  Duration polled_, busy_;
  Duration window_polled_, window_busy_;  // when the last whole second was over
};

}  // namespace tensorlane::dpdk
