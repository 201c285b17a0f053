// A device of DPDK's ethdev: found or plugged in, configured, started, and given back.
#pragma once

#include <rte_ethdev.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "daemon/transport/dpdk/ethdev/device_string.h"
#include "daemon/transport/dpdk/ethdev/kernel_link.h"
#include "daemon/transport/dpdk/port/headers.h"
#include "daemon/transport/dpdk/port/packet_port.h"

namespace tensorlane::dpdk {

// Where a payload that is to be sent lies in its mbuf: so that the frame before it, with headers of that length, begins
// with a line of the cache, and longer headers have room, too. Devices that copy frames copy such ones sooner.
constexpr std::uint16_t payload_offset(std::size_t headers) {
  return static_cast<std::uint16_t>(RTE_CACHE_LINE_SIZE + headers);
}
static_assert(payload_offset(datagram_header_bytes(false, false)) >= kMaxHeaderBytes);
// mbufs that a port may have outside of the queues of the device: waiting for each transmit queue, handed out, and in
// the pool's cache of its owner's thread.
inline constexpr std::uint16_t kStaged = 64, kHeld = 256, kCached = 256;

class Device {
 public:
  // As open_port().
  static Result<std::unique_ptr<Device>> open(const PortConfig& config);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  // Stops the device; a virtual one is unplugged. All mbufs have come back.
  ~Device();

  std::uint16_t id() const { return id_; }
  rte_mempool* pool() const { return pool_; }
  std::uint16_t receive_queues() const { return receive_queues_; }
  MacAddress mac() const { return mac_; }
  ChecksumOffload transmit_checksums() const { return checksums_; }
  // The driver copies what it sends, in pieces too, and is done with it when it has taken it.
  bool copies() const { return copies_; }
  const std::vector<int>& wake_descriptors() const { return wake_descriptors_; }
  const std::string& name() const { return string_.name; }
  // Nothing: the device does not say. Does not wait for the link.
  std::optional<LinkState> link();
  std::vector<DeviceCount> counts() const;

 private:
  explicit Device(DeviceString string) : string_(std::move(string)) {}
  Status find(std::uint16_t mtu);
  Status configure(const PortConfig& config, const rte_eth_dev_info& info, bool interrupts);
  Status make_pool(const PortConfig& config);
  Status set_up_queues(const PortConfig& config);
  Status start(const PortConfig& config);
  Status hear_groups(const PortConfig& config);
  void find_wake_descriptors();

  DeviceString string_;
  std::uint16_t id_ = RTE_MAX_ETHPORTS;
  rte_device* plugged_ = nullptr;  // to be unplugged
  bool named_ = false;             // in the list of those that are open
  bool started_ = false;
  rte_mempool* pool_ = nullptr;
  std::uint16_t receive_queues_ = 1, transmit_descriptors_ = 0, receive_descriptors_ = 0;
  std::uint64_t transmit_offloads_ = 0;
  MacAddress mac_{};
  ChecksumOffload checksums_;
  bool copies_ = false;
  std::unique_ptr<KernelLink> kernel_link_;  // of an interface of the kernel's
  std::vector<int> wake_descriptors_;
  std::vector<std::string> count_names_;
};

}  // namespace tensorlane::dpdk
