#include "simulator/checkers/admission.h"

#include "daemon/engine/ordering/admission.h"

namespace tensorlane::simulator {

using protocol::Ordering;

AdmissionChecker::AdmissionChecker(const Scenario& scenario, Findings& findings)
    : scenario_(scenario),
      findings_(findings),
      worlds_(scenario.worlds()),
      states_(scenario.hosts(), std::vector<State>(scenario.plan.tensors.size())) {
  for (std::vector<State>& states : states_) {
    for (std::size_t i = 0; i < states.size(); ++i) {
      const protocol::PlanTensor& t = scenario.plan.tensors[i];
      states[i].excused = t.operation == Operation::kPull || t.in_batch() || t.world != nullptr;
    }
  }
}

bool AdmissionChecker::same_group(std::size_t a, std::size_t b) const {
  return scenario_.plan.tensors[a].group == scenario_.plan.tensors[b].group;
}

// In the order of their group.
bool AdmissionChecker::before(std::size_t a, std::size_t b) const {
  const float urgency_a = scenario_.plan.tensors[a].urgency, urgency_b = scenario_.plan.tensors[b].urgency;
  return urgency_a != urgency_b ? urgency_a > urgency_b : a < b;
}

void AdmissionChecker::submitted(HostIndex host, TensorId tensor) {
  ++states_[host.value][tensor.value].submitted;
}

void AdmissionChecker::waits(HostIndex host, TensorId tensor) {
  std::vector<State>& states = states_[host.value];
  states[tensor.value].waits = true;
  excuse(states, tensor.value);
}

void AdmissionChecker::excuse(std::vector<State>& states, std::size_t waited) const {
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (same_group(i, waited) && states[i].submitted == states[i].completed) states[i].excused = true;
  }
}

void AdmissionChecker::completed(HostIndex host, TensorId tensor) {
  std::vector<State>& states = states_[host.value];
  ++states[tensor.value].completed;
  states[tensor.value].waits = false;
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (states[i].waits && same_group(i, tensor.value)) states[tensor.value].excused = true;
  }
}

void AdmissionChecker::begins(HostIndex host, TensorId tensor) {
  if (const TensorWorld& world = worlds_[tensor.value]; !world.place_of(host) || world.hosts() == 1) {
    findings_.fail("admission", "host {} begins tensor {} with its engines, of which {}", host.value, tensor.value,
                   world.place_of(host) ? "it is the only host" : "it has no part");
  }
  std::vector<State>& states = states_[host.value];
  ++states[tensor.value].begun;
  if (scenario_.plan.ordering == Ordering::kTagged || states[tensor.value].excused) return;
  if (scenario_.plan.ordering == Ordering::kNegotiated) {
    for (std::size_t h = 0; h < states_.size(); ++h) {
      if (states_[h][tensor.value].submitted >= states[tensor.value].begun) continue;
      findings_.fail("admission", "host {} begins tensor {}, sequence {}, which host {} does not have", host.value,
                     tensor.value, states[tensor.value].begun, h);
    }
    return;
  }
  check_order(host, tensor.value, states);
  check_running(host, tensor.value, states);
}

// Several that were let in at once may overtake one another while ranks' buffers are brought together.
void AdmissionChecker::check_order(HostIndex host, std::size_t tensor, const std::vector<State>& states) {
  const std::uint64_t round = states[tensor].begun;
  std::uint64_t let_in = scenario_.plan.ordering == Ordering::kConcurrent ? scenario_.plan.concurrent - 1 : 0;
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (i == tensor || states[i].excused || !same_group(i, tensor)) continue;
    if (states[i].begun >= (before(i, tensor) ? round : round - 1)) continue;
    if (let_in > 0) {
      --let_in;
      continue;
    }
    findings_.fail("admission", "host {} begins tensor {}, sequence {}, though tensor {} comes first", host.value,
                   tensor, round, i);
  }
}

void AdmissionChecker::check_running(HostIndex host, std::size_t tensor, const std::vector<State>& states) {
  std::uint64_t running = 0;
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (!states[i].excused && same_group(i, tensor)) running += states[i].begun - states[i].completed;
  }
  const Ordering ordering = scenario_.plan.ordering;
  const std::uint64_t most = ordering == Ordering::kCounters     ? states.size()
                             : ordering == Ordering::kConcurrent ? scenario_.plan.concurrent
                                                                 : 1;
  if (running > most)
    findings_.fail("admission", "host {} begins tensor {} as number {} of {} operations that may run at once",
                   host.value, tensor, running, most);
}

}  // namespace tensorlane::simulator
