// Hosts of a lab that are virtual machines with a Soft-RoCE device (`tensorlane lab up --rdma`). Each runs in the
// network namespace of its host, behind a bridge, so the ports, their queues and the way down are those of every lab:
//
//   guest eth0 - tap vm0 - bridge br0 - eth0 (the host's port) - switch
//
// and so on with eth1, vm1 and br1 for a second rail. Above each of its NICs a guest has an RDMA device: rxe0, rxe1.
//
// QEMU emulates them in software: some 200 Mbit/s in all, on any machine. A guest sees this machine's root, read-only,
// and the lab's runtime folder, writable, at the paths that they have here; its /run is its own. What is asked of it
// travels in files of RUNTIME/guests/HOST (tests/rdma-vm/guest/agent). tests/rdma-vm/guest/make-guest makes the image.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/fabric/fabric.h"
#include "monitor/cli/lab_plan.h"

namespace tensorlane::cli {

struct Guests {
  std::string image;       // folder with vmlinux and initrd
  int memory_mib = 512;    // each
  std::uint16_t vlan = 0;  // 802.1Q id of the hosts' rdma addresses; 0: no VLAN
  bool iommu = false;      // an IOMMU before their NICs, so that vfio-pci can have them
};

// Transmit queues of a guest's NICs: one, and with an IOMMU one for each class, as a daemon that drives them wants.
std::size_t guest_queues(const Guests& guests, const fabric::ClassTable& classes);

// Link size for an RDMA path MTU of 4096, the largest.
inline constexpr std::uint32_t kRdmaMtu = 4500;

// The image that belongs to this program: ../rdma-vm beside its folder, build/rdma-vm in a source tree.
std::string default_guest_image();

// kInvalidArgument: not 2 to 4 hosts, memory or vlan out of range, a VLAN but a host without rdma addresses of its
// own. kNotFound: no QEMU, no image.
Status check_guests(const fabric::Fabric& fabric, const Guests& guests);

// What a guest configures before it is ready, for each of its rails: lines for `ip -batch` (addresses, routes and the
// VLAN device, whose PCP is the packet's priority), for `tc -batch` (that priority by the class's DSCP: the kernel
// gives RDMA packets none) and for `rdma -batch` (the RDMA device).
std::string guest_ip_lines(const Node& node, std::uint16_t vlan);
std::string guest_tc_lines(const Node& node, const fabric::ClassTable& classes, std::uint16_t vlan);
std::string guest_rdma_lines(const Node& node);

// Starts one guest per host of `plan`, whose namespaces are there, and waits until each takes commands and its devices
// are active. RUNTIME/guests/HOST/qmp is a socket of QEMU's machine protocol, where the links of the NICs net0, net1
// can be set. Whoever ends the processes in the namespaces ends the guests. kTimedOut, or kUnavailable when a guest
// gives up, with what its console said last.
Status start_guests(const LabPlan& plan, const std::string& runtime, const Guests& guests);

// Runs `argv` in a host's guest with our environment and working folder, nothing on its standard input; relays its
// output and returns its exit status, 128 + N when signal N ended it. SIGINT, SIGTERM and SIGHUP are passed on; who has
// not ended 10 seconds later, or by the second signal, is killed. Any number may run at a time. kUnavailable when the
// guest is gone or stuck. Changes the calling thread's signal mask.
Result<int> run_in_guest(const std::string& runtime, const Node& node, const std::vector<std::string>& argv);

}  // namespace tensorlane::cli
