// The link of a network interface of the kernel's. DPDK's drivers for packet sockets say that it is always up.
#pragma once

#include <string>

#include "daemon/transport/dpdk/port/packet_port.h"

namespace tensorlane::dpdk {

// One owner thread. The interface is looked for in the network namespace of the thread that makes this object.
class KernelLink {
 public:
  explicit KernelLink(std::string interface);
  ~KernelLink();
  KernelLink(const KernelLink&) = delete;
  KernelLink& operator=(const KernelLink&) = delete;

  // One system call, and another one when the link has come up.
  LinkState look();

 private:
  std::string interface_;
  int socket_;
  LinkState last_;
};

}  // namespace tensorlane::dpdk
