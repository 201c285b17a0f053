#include "daemon/transport/rdma/gid.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tensorlane::rdma {
namespace {

constexpr std::array<std::uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

std::string list(std::span<const GidEntry> table) {
  std::string text;
  for (const GidEntry& entry : table) {
    if (entry.type != GidType::kRoceV2) continue;
    text += fmt::format("{}{} ({}{}{})", text.empty() ? "" : ", ", address_of_gid(entry.gid), "index ", entry.index,
                        entry.interface.empty() ? "" : ", " + entry.interface);
  }
  return text;
}

}  // namespace

Result<GidBytes> gid_of_address(const std::string& address) {
  GidBytes gid{};
  if (::inet_pton(AF_INET6, address.c_str(), gid.data()) == 1) return gid;
  std::copy(kMapped.begin(), kMapped.end(), gid.begin());
  if (::inet_pton(AF_INET, address.c_str(), gid.data() + kMapped.size()) == 1) return gid;
  return Status(Code::kInvalidArgument, fmt::format("'{}' is not a numeric IPv4 or IPv6 address", address), "rdma",
                "write an address such as 10.1.0.2 or fd00::2 under `addresses: rdma` in fabric.yaml");
}

std::string address_of_gid(const GidBytes& gid) {
  char text[INET6_ADDRSTRLEN] = {};
  if (std::equal(kMapped.begin(), kMapped.end(), gid.begin())) {
    ::inet_ntop(AF_INET, gid.data() + kMapped.size(), text, sizeof text);
  } else {
    ::inet_ntop(AF_INET6, gid.data(), text, sizeof text);
  }
  return text;
}

Result<GidEntry> choose_gid(std::span<const GidEntry> table, const std::string& address, int wanted,
                            const std::string& where) {
  const auto v2 = [](const GidEntry& entry) { return entry.type == GidType::kRoceV2; };
  if (wanted >= 0) {
    const auto found = std::ranges::find(table, static_cast<std::uint32_t>(wanted), &GidEntry::index);
    if (found == table.end() || !v2(*found)) {
      return Status(Code::kInvalidArgument,
                    fmt::format("GID {} {}", wanted, found == table.end() ? "does not exist" : "is not a RoCE v2 GID"),
                    where, fmt::format("leave out `gid_index`, or use one of {}", list(table)));
    }
    return *found;
  }
  if (std::ranges::none_of(table, v2)) {
    return Status(Code::kNotFound, "the port has no RoCE v2 GID", where,
                  "give its network interface an address, and let the device speak RoCE v2");
  }
  TL_ASSIGN_OR_RETURN(const GidBytes gid, gid_of_address(address));
  const auto found = std::ranges::find_if(table, [&](const GidEntry& e) { return v2(e) && e.gid == gid; });
  if (found == table.end()) {
    return Status(Code::kNotFound, fmt::format("no RoCE v2 GID has this host's rdma address {}", address), where,
                  fmt::format("its GIDs are {}: write one of these addresses under `addresses: rdma` of this host in "
                              "fabric.yaml, or give the interface (or the VLAN on it, which must exist) that address",
                              list(table)));
  }
  return *found;
}

}  // namespace tensorlane::rdma
