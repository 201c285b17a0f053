// GIDs: which entry of a device's table stands for this host's RDMA address. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "common/base/status.h"

namespace tensorlane::rdma {

using GidBytes = std::array<std::uint8_t, 16>;

enum class GidType : std::uint8_t { kInfiniband, kRoceV1, kRoceV2 };

// One entry of a port's GID table.
struct GidEntry {
  std::uint32_t index = 0;
  GidType type = GidType::kRoceV2;
  GidBytes gid{};
  std::string interface;  // the network interface it belongs to: "eth0.100"; empty when unknown

  bool operator==(const GidEntry&) const = default;
};

// "10.77.0.1" -> ::ffff:10.77.0.1, "fd00::1" as it is. Errors: kInvalidArgument.
Result<GidBytes> gid_of_address(const std::string& address);
// The address as people write it: IPv4 where it is one.
std::string address_of_gid(const GidBytes& gid);

// The RoCE v2 entry that `address` names, or the entry `wanted` where that is not negative. `where` is the device and
// port for errors: "mlx5_0 port 1". Errors: kNotFound (no RoCE v2 entry at all; none with the address: names those that
// there are, since an address of the wrong subnet or of a VLAN that does not exist looks like that), kInvalidArgument
// (an entry that is not there or not RoCE v2; not an address).
Result<GidEntry> choose_gid(std::span<const GidEntry> table, const std::string& address, int wanted,
                            const std::string& where);

}  // namespace tensorlane::rdma
