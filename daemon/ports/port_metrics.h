// What a NIC port that the daemon drives itself has done, and the packets of flows over it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "daemon/ports/telemetry.h"

namespace tensorlane::ports {

// What the device and its driver count, under the driver's names for it, such as "rx_missed_errors" or
// "rx_priority3_xoff_packets". Any thread.
class DeviceCounters {
 public:
  using Values = std::vector<std::pair<std::string, std::uint64_t>>;
  using Read = std::function<Values()>;  // of any thread; may take as long as the NIC's firmware does
  // Null: the device has gone. Waits for a read() that is under way.
  void set(Read read) {
    const std::lock_guard lock(mutex_);
    read_ = std::move(read);
  }
  // Empty where there is no device.
  Values read() const {
    const std::lock_guard lock(mutex_);
    return read_ ? read_() : Values();
  }

 private:
  mutable std::mutex mutex_;
  Read read_;
};

// Since the port was opened. Its lane writes the counts some times a second, never for a packet; any thread reads them.
struct PortMetrics {
  // `reasons`: why packets that arrive may be dropped, as metrics name it: "ip_checksum".
  PortMetrics(std::string port_device, std::string port_mac, std::vector<std::string> reasons)
      : device(std::move(port_device)), mac(std::move(port_mac)), drop_reasons(std::move(reasons)) {}

  // A transmit queue carries one class.
  struct Queue {
    Counter packets, bytes;  // that the device has taken; of their frames
    Counter full;            // times that it took fewer than it was given
    Counter refused;         // packets that it cannot send, and that were dropped
  };
  // Of flows that are up and of those that have ended.
  struct Datagrams {
    Counter lost;        // packets taken for lost
    Counter resent;      // packets with what had been sent before, after a loss or a time-out
    Counter spurious;    // of those taken for lost, those that arrived after all
    Counter duplicates;  // that came before
    Counter forged;      // that nobody who has the keys has made, or that were damaged
    Counter marked;      // that came with a mark of congestion (ECN)
    Counter timeouts;    // times that a flow waited for acknowledgements in vain
  };

  const std::string device, mac;
  const std::vector<std::string> drop_reasons;
  std::array<Queue, kMaxDataClasses + 1> sent;          // by metrics_slot()
  Counter received_packets, received_bytes;             // handed to flows; bytes of payload
  std::vector<Counter> drops{drop_reasons.size()};      // by drop_reasons
  Counter no_memory;                                    // times that there was no packet buffer
  Counter neighbour_questions, neighbour_answers;       // sent
  Counter link_up, link_bits_per_second, link_changes;  // 1: it is up; 0: its speed is not known
  Counter polled_ns;                                    // since the first poll
  Counter busy_ns;                                      // of it, turns of the lane that had packets
  Counter busy_permille;                                // the same of the last second
  Datagrams datagrams;
  DeviceCounters device_counters;
};

}  // namespace tensorlane::ports
