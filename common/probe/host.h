// What a host says of itself, for whoever asks what its packets are marked with: its addresses, and what overrides the
// marks that a program sets.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace tensorlane::probe {

struct OwnAddress {
  std::string interface, address;  // numeric; no link-local or loopback one
  bool ipv6 = false;
};
std::vector<OwnAddress> own_addresses();

// A setting that gives all traffic of a device one mark, whatever its programs ask for.
struct Override {
  std::string where;  // the file
  int dscp = -1;
};
// The device-wide traffic classes of RDMA devices under ROOT/sys; `root` is empty for this host.
std::vector<Override> overrides(const std::string& root);

// The variables of this process's environment by which other libraries mark their traffic (NCCL_IB_TC and the like).
std::map<std::string, std::string> marking_environment();

}  // namespace tensorlane::probe
