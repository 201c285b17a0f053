// What a host of engines is told when it is made: its limits, and the ports that it works through.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ledger.h"
#include "common/base/token_bucket.h"
#include "common/base/units.h"
#include "daemon/engine/urgency/observed_order.h"
#include "daemon/engine_log/observer.h"
#include "daemon/ports/executor.h"
#include "daemon/ports/job.h"
#include "daemon/ports/memory.h"
#include "daemon/ports/scratch.h"
#include "daemon/ports/telemetry.h"
#include "daemon/ports/transport.h"

namespace tensorlane::host {

// A NIC as its host treats it.
struct RailConfig {
  std::vector<Bytes> windows;  // by ClassId: how much may be in flight per (NIC, class), law 8
  RateLimit control_limit;     // of all control frames that leave by it, law 10
  std::size_t lane = 0;        // that drives it
};

struct HostConfig {
  std::uint8_t classes = 2;       // data classes
  std::vector<RailConfig> rails;  // of this host, 1 to kMaxRails
  // What each job may send in a class on each rail, by ClassId; what exceeds it is demoted (law 11). None for the last
  // class.
  std::array<RateLimit, kMaxDataClasses> job_limits{};
  bool tunes = false;  // jobs may change their classes while they run
  // Jobs learn in which order their ranks here wait for tensors, and take that as urgency (engine/urgency).
  bool observes = false;
  engine::ObservedOrderSettings observation;
  std::vector<double> thresholds;  // of urgency, between the classes: classes - 1, descending. For `observes`
  bool single_queue = false;       // no priorities: one class, order of arrival
  Bytes staging = mib(64);
  // Contributions of at most `limit` travel on credit: so many of each peer at once. Alike on all hosts.
  Bytes eager_limit = kib(32);
  std::uint32_t eager_credits = 16;
  std::uint32_t eager_slots = 256;          // of a job on a rail, see engine.h
  std::size_t max_queued_slices = 1 << 17;  // of a job on a rail: what exceeds it is refused with the plan
  std::size_t actions = 1024;  // room for what a step of an engine brings about; it goes on when there is room again
  Duration late_after = seconds(10);  // when a missing rank is reported
  bool messages = true;               // ranks may send to each other: every job has tables for that
  bool resume_flows = false;  // a flow that loses its connection has the job's detection time to go on over a new one
};

// Makes who observes a job's engine on a rail, as what keeps its log; or null. Called for each when the job begins, on
// the thread that prepares it.
using ObserverMaker = std::function<std::unique_ptr<engine_log::Observer>(const ports::JobSpec&, RailIndex)>;

class Links;

// What a host works through. Owned by the caller, outlive the host.
struct HostPorts {
  ports::Memory* memory = nullptr;
  ports::Executor* executor = nullptr;  // of this host alone
  ports::LaneMetrics* metrics = nullptr;
  ports::Timeline* timeline = nullptr;
  // Makes the transport of a rail, which tells the given owner of its flows. Called once for each, when the host is
  // made.
  std::function<Result<std::unique_ptr<ports::Transport>>(RailIndex, ports::FlowOwner&)> make_transport;
  ObserverMaker make_observer = {};                  // none: nobody observes
  ports::ScratchPool* scratch = nullptr;             // staging, and sums that are wider than their tensors
  Ledger* regions = nullptr;                         // who has how much of each lane's `memory`; null: nobody counts
  Ledger* descriptors = nullptr;                     // the same of descriptors: one for each flow
  std::function<void(const std::string&)> log = {};  // a line for the log; none: there is no log
  std::size_t lane = 0;                              // which one the host is of
  Links* links = nullptr;                            // to the other lanes; null: there are none
};

}  // namespace tensorlane::host
