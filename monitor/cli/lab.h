// A fabric in network namespaces on this machine: one per host with its address, one per switch with a bridge or a
// router, and rate-limited ports. Needs root (or CAP_SYS_ADMIN and CAP_NET_ADMIN) and iproute2. A lab lives until it is
// taken down, or with its owner.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/fabric/fabric.h"
#include "monitor/cli/lab_guest.h"
#include "monitor/cli/lab_plan.h"
#include "monitor/cli/local_fabric.h"

namespace tensorlane::cli {

inline constexpr const char* kDefaultLab = "lab";

struct LabOptions {
  std::string name = kDefaultLab;  // 1 to 20 letters, digits or '_'
  Policy policy = Policy::kStrict;
  Switching switching = Switching::kBridged;
  Bytes buffer = kib(512);  // of ports whose link states none
  // The process that the lab belongs to; when it is gone, the next lab_up() of anybody takes this lab down, or
  // guard_lab() does. 0: nobody.
  int owner = 0;
  std::optional<Guests> guests;  // when set, the hosts are virtual machines
};

struct Lab {
  std::string name;
  Policy policy = Policy::kStrict;  // of all ports but those that set_port_policy() changed: Port::policy
  Switching switching = Switching::kBridged;
  Bytes buffer{};  // LabOptions::buffer
  int owner = 0;
  std::string owner_started;  // so that a reused number is no owner
  std::optional<Guests> guests;
  RuntimeDir runtime;  // runtime_root()/lab-NAME
  LabPlan plan;
};

// Takes down stale labs, then builds this one and starts its guests; when it fails, nothing is left. Labs are built and
// taken down one at a time, whoever does it; guests start beside each other. Errors: kInvalidArgument (plan_lab,
// check_guests), kAlreadyExists, kPermissionDenied (no right to make namespaces), kNotFound (no iproute2;
// check_guests), kInternal (ip or tc refused something), and those of start_guests.
Result<Lab> lab_up(fabric::Fabric fabric, const LabOptions& options);

// kNotFound when there is none of that name.
Result<Lab> open_lab(const std::string& name);
// Names of all labs, sorted: those in runtime_root(), and those of which only namespaces are left.
std::vector<std::string> lab_names();

// Kills every process in the lab's namespaces (SIGTERM, SIGKILL after a second), removes the namespaces and the runtime
// folder. Ok when there is nothing to remove.
Status lab_down(const std::string& name);

// Watches over a lab that process `starter` is about to build: takes it down when its owner, while it is built the
// starter, is gone. Ends when there is nothing to watch any more. Guests use processor time as long as they live, so a
// lab of theirs must not wait for the next lab_up().
Status guard_lab(const std::string& name, int starter);

// Switches every port; connections live on. Between strict and fifo in place: queued packets stay, and it takes
// milliseconds. To and from `service` queues are replaced, and what they hold is lost. Errors: service_scripts().
Status set_lab_policy(Lab& lab, Policy policy);

// Switches one port between strict and fifo, in place: "leaf1:spine1", the port of a node by its device or by the only
// neighbour that it leads to. Until the next set_lab_policy(). Errors: kNotFound (no such port), kInvalidArgument (two
// ports to that neighbour; `service`, which is of whole labs, before or after).
Status set_port_policy(Lab& lab, const std::string& port, Policy policy);

// The node of that name; kNotFound when the lab has none.
Result<const Node*> node_of(const Lab& lab, const std::string& name);

// What to execute for `argv` to run on a switch or on a host that is no guest (run_in_guest() does that). kNotFound
// when the lab has no such node, or when there is no such program.
Result<std::vector<std::string>> command_on(const Lab& lab, const std::string& node,
                                            const std::vector<std::string>& argv);

}  // namespace tensorlane::cli
