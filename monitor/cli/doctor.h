// What is wrong with this host for RoCE with classes. Read-only.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "switch-config/findings/findings.h"
#include "switch-config/model/device_qos.h"

namespace tensorlane::cli {

struct DoctorOptions {
  std::string root;  // a folder that stands for /, with sys and proc; empty: this host
  // Whose limits and environment; 0: the environment is our own, and the limits are those of the daemons that run here.
  int pid = 0;
  // What the fabric file asks for; null: only what is wrong on any fabric.
  const switches::DeviceQos* host = nullptr;
  // With `host`: the service level of each of its queues.
  std::array<std::uint8_t, switches::kQueues> service_levels{};
};

// Looks at every network interface that the fabric names, or without a fabric at those that have an RDMA device:
// trust, maps and PFC as mlnx_qos or dcb print them (doctor_nic.h); ECN's notification and reaction point for each
// priority, CNP's marks, MTU, the default TOS and device-wide traffic class of RDMA devices; of the process the
// variables of NCCL and UCX, and the limit of locked memory. What cannot be read is a note. InvalidArgument for a root
// that holds no sys, a process that is not there, or output of mlnx_qos or dcb that is none.
Result<findings::Report> examine(const DoctorOptions& options);

}  // namespace tensorlane::cli
