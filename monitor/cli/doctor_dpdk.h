// What is wrong with this host for ports that the daemon drives itself (daemon/transport/dpdk). Read-only.
#pragma once

#include <string>

#include "common/base/status.h"
#include "switch-config/findings/findings.h"

namespace tensorlane::cli {

// Where a daemon.yaml is looked for, unless somebody names one.
inline constexpr const char* kDefaultConfig = "/etc/tensorlane/daemon.yaml";

struct DpdkDoctorOptions {
  std::string root;  // a folder that stands for /, with sys, proc, and the folders of memif's sockets; empty: this host
  std::string config;  // a daemon.yaml, wherever it is; empty: ROOT/etc/tensorlane/daemon.yaml, if it can be read
};

// By rule P1, and L7 of the MTU: nothing where daemon.yaml has no key `dpdk`. Of its devices, those on PCI by their
// driver, IOMMU group, /dev/vfio and the limit of locked memory; virtual ones by their interface, or the folder of
// their socket; of the host its huge pages, and whether this build has DPDK. Adds to `report`. InvalidArgument for a
// `config` that cannot be read; the default one is a note then.
Status examine_dpdk(const DpdkDoctorOptions& options, findings::Report& report);

}  // namespace tensorlane::cli
