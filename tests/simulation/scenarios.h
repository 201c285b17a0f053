// Scenarios written by hand, for directed tests.
#pragma once

#include <fmt/format.h>

#include "simulator/swarm/simulation.h"

namespace tensorlane::simulator {

// `hosts` hosts with one rank each on 1 Gbit/s, no faults, no tensors.
inline Scenario quiet_scenario(std::uint16_t hosts) {
  Scenario s;
  s.seed = 7;
  s.engine.job = JobId(1);
  s.engine.epoch = Epoch(1);
  s.engine.hosts = hosts;
  s.engine.world_size = hosts;
  s.engine.classes = 2;
  s.engine.staging = mib(16);
  s.plan.version = 1;
  s.networks[0].hosts.resize(hosts);
  s.windows.fill(kib(512));
  s.windows[0] = mib(1);
  s.client.raise = 0;
  for (std::uint16_t h = 0; h < hosts; ++h) s.plan.rank_hosts.push_back(HostIndex(h));
  return s;
}

inline protocol::PlanTensor& add_tensor(Scenario& s, Operation operation, std::uint64_t elements, ClassId cls) {
  protocol::PlanTensor t;
  t.id = TensorId(static_cast<std::uint32_t>(s.plan.tensors.size()));
  t.name = fmt::format("t{}", t.id.value);
  t.operation = operation;
  t.cls = cls;
  t.urgency = cls.value == 0 ? 0.9f : 0.1f;
  t.elements = elements;
  t.slice_elements = 16384;
  s.plan.tensors.push_back(t);
  return s.plan.tensors.back();
}

// A second job of somebody else on all hosts, with one tensor; what is the machines' is as in `s`, which is complete.
inline Scenario& add_second_job(Scenario& s) {
  Scenario other = s;
  other.seed = s.seed + 1;
  other.user = s.user + 1;
  other.engine.job = JobId(2);
  other.engine.epoch = Epoch(9);
  other.plan.tensors.clear();
  other.growths.clear();
  other.faults.clear();
  other.iterations = 20;
  add_tensor(other, Operation::kAllreduce, 1000, ClassId(1));
  s.neighbours.push_back(std::move(other));
  return s.neighbours.back();
}

inline std::string finding_text(const Outcome& outcome) {
  return outcome.finding ? outcome.finding->checker + ": " + outcome.finding->message : "";
}

}  // namespace tensorlane::simulator
