// The batches of one host, between its client and its engines: their own memory, and the copies in and out, as
// daemon/lane does it. Checker "memory": nobody writes a batch's memory while it does not run.
#pragma once

#include <optional>
#include <vector>

#include "daemon/engine/batching/batch_gate.h"
#include "daemon/engine/types.h"
#include "simulator/checkers/findings.h"
#include "simulator/host/memory.h"
#include "simulator/workload/scenario.h"

namespace tensorlane::simulator {

class Batches {
 public:
  using Members = std::span<const engine::BatchGate::Member>;
  // All outlive it. Knows of the whole plan of the scenario from the beginning: what is not allowed yet is not used.
  Batches(HostIndex host, const Scenario& scenario, SimMemory& memory, Findings& findings);

  Members members(TensorId batch) const { return gate_.members(batch); }
  // The client has submitted a member. The batch's operation, when it begins.
  std::optional<engine::TensorReady> submitted(const engine::TensorReady& member);
  // The batch's operation is over; `ok`: with a result, which goes to its members.
  void completed(TensorId batch, bool ok);
  void check_idle() const;

 private:
  struct State {
    engine::TensorReady ready;  // with the batch's memory
    bool runs = false;
  };
  void copy(const engine::BatchGate::Member& member, bool in, bool wide);
  void poison(const State& state);
  void check_idle(std::size_t batch) const;

  HostIndex host_;
  const Scenario& scenario_;
  SimMemory& memory_;
  Findings& findings_;
  engine::BatchGate gate_{1};
  std::vector<State> states_;  // by tensor; of members what the client has submitted
};

}  // namespace tensorlane::simulator
