// Checker "admission": operations begin as the plan's ordering says, judged from outside: from what clients submit and
// wait for, and from what reaches the engine.
#pragma once

#include <cstdint>
#include <vector>

#include "simulator/checkers/findings.h"
#include "simulator/workload/scenario.h"

namespace tensorlane::simulator {

// One for all hosts. Each call is about one host's tensor.
class AdmissionChecker {
 public:
  AdmissionChecker(const Scenario& scenario, Findings& findings);
  void submitted(HostIndex host, TensorId tensor);
  // A client waits for the operation that it has submitted last.
  void waits(HostIndex host, TensorId tensor);
  void begins(HostIndex host, TensorId tensor);
  void completed(HostIndex host, TensorId tensor);

 private:
  struct State {
    std::uint64_t submitted = 0, begun = 0, completed = 0;  // operations
    bool waits = false;
    // It is a pull, or of a process set, or a member of a batch, which is no operation, or while it was not submitted
    // the client waited for another one of its group: it has no place, or may have lost it.
    bool excused = false;
  };
  bool same_group(std::size_t a, std::size_t b) const;
  bool before(std::size_t a, std::size_t b) const;
  void excuse(std::vector<State>& states, std::size_t waited) const;
  void check_order(HostIndex host, std::size_t tensor, const std::vector<State>& states);
  void check_running(HostIndex host, std::size_t tensor, const std::vector<State>& states);

  const Scenario& scenario_;
  Findings& findings_;
  const std::vector<TensorWorld> worlds_;   // by tensor
  std::vector<std::vector<State>> states_;  // by host and tensor
};

}  // namespace tensorlane::simulator
