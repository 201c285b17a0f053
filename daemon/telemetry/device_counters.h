// What RDMA devices of this host have counted, as their drivers tell the kernel.
#pragma once

#include <string>
#include <vector>

namespace tensorlane::telemetry {

struct DeviceCounter {
  std::string device, port;  // "mlx5_0", "1"
  std::string name;          // as the driver calls it: "out_of_sequence", "rnr_nak_retry_err", "np_cnp_sent"
  double value = 0;
};

// Everything in FOLDER/DEVICE/ports/PORT/hw_counters, ordered by device, port and name; nothing where there is no such
// folder. FOLDER is /sys/class/infiniband except in tests. Reads files: not for the data path. A counter that cannot
// be read is left out.
std::vector<DeviceCounter> read_device_counters(const std::string& folder);

}  // namespace tensorlane::telemetry
