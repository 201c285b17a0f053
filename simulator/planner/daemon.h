// A daemon for planning: its host of engines (daemon/host), the same code as in a daemon, under the virtual clock and
// over ports without bytes. Regions are lengths, arithmetic takes time and touches nothing, and its NIC is one of the
// planner's network.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "common/protocol/plan.h"
#include "daemon/host/config.h"
#include "simulator/clock/event_queue.h"
#include "simulator/network/fabric_network.h"

namespace tensorlane::simulator {

struct HostOptions {
  Bytes window;                       // of each class: operations in flight until acknowledged (law 8)
  Duration wake;                      // from an event until the host sees it
  double sum_bytes_per_second = 5e9;  // of what is read to be added or copied
  std::uint32_t ranks = 1;            // whose tensors are added before the host sends any
};

class PlannedDaemon {
 public:
  struct Context {
    EventQueue& events;
    FabricNetwork& network;
    ports::LaneMetrics& metrics;  // all daemons count in the same ones, and nobody reads them
    std::uint16_t hosts = 0;
  };
  // Only classes, single_queue and staging of `config` count.
  static std::unique_ptr<PlannedDaemon> create(HostIndex self, const Context& context, const HostOptions& options,
                                               const host::HostConfig& config);
  virtual ~PlannedDaemon() = default;

  // Add jobs in the same order on all hosts, before the clock runs. `completed` is called for every operation that
  // completes here. Errors: too many ranks, and those of Engine::extend_plan().
  virtual Status add_job(protocol::Plan plan, std::function<void(TensorId)> completed) = 0;
  // The next operation on the tensor, by all ranks at once. The one before must be complete.
  virtual void submit(std::size_t job, TensorId tensor) = 0;
  // The job waits for the operation that runs on the tensor (law 9).
  virtual void boost(std::size_t job, TensorId tensor) = 0;
};

}  // namespace tensorlane::simulator
