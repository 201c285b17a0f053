// How configuration names a device of DPDK: the address of a PCI device ("0000:3b:00.0"), or a virtual one by its
// driver, a number and arguments ("net_af_packet0,iface=veth0").
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace tensorlane::dpdk {

struct DeviceString {
  std::string name;  // "net_af_packet0", "0000:3b:00.0"
  std::vector<std::pair<std::string, std::string>>
      arguments;  // in their order; of a word without "=" the value is empty
  bool pci = false;

  bool driver_is(std::string_view driver) const;  // "net_af_packet": whatever number is behind it
  std::optional<std::string> argument(std::string_view key) const;
  std::string to_string() const;
};

// Error: kInvalidArgument.
Result<DeviceString> parse_device(std::string_view text);

// Adds what a driver does not find out: net_af_packet has as many pairs of queues as it is told, and frames of 2 KiB.
// What is there already stays.
void complete_device(DeviceString& device, std::size_t queues, std::uint16_t mtu, std::uint16_t receive_packets);

}  // namespace tensorlane::dpdk
