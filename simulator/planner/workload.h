// A training job as the planner sees it: layers with times and sizes, and how their gradients are exchanged.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/units.h"
#include "common/protocol/plan.h"
#include "daemon/engine/pattern/selector.h"

namespace tensorlane::simulator {

struct Variable {
  std::string name;
  std::uint64_t elements = 0;  // float32
};

// What is computed before the next layer can be. A layer may have no variables.
struct Layer {
  std::string name;
  Duration forward, backward;
  std::vector<Variable> variables;
};

enum class Exchange : std::uint8_t {
  // Gradients are pushed to their servers as they come to be; the next iteration begins everywhere once all servers
  // have
  // all, by pulling every parameter (Geryon, section II-C; a synchronous parameter server that updates variables).
  kPushPull,
  // Gradients are allreduced as they come to be; a layer of the next iteration's forward pass waits for its own (data
  // parallel training in PyTorch, Horovod).
  kAllreduce,
};

struct Workload {
  std::vector<Layer> layers;  // in the order of the forward pass
  Duration overhead;          // per iteration, in which nothing is computed or sent

  Duration forward() const;
  Duration compute() const;  // forward and backward, without overhead
  std::uint64_t elements() const;
  std::uint64_t largest() const;  // elements of the largest variable
};

// How the exchange of a workload is set up; what differs between policies.
struct Placement {
  Exchange exchange = Exchange::kAllreduce;
  std::optional<protocol::Pattern> pattern = protocol::Pattern::kRing;  // none: chosen for each batch by `costs`
  engine::PatternCosts costs;
  std::uint32_t slice_elements = 0;
  std::vector<double> thresholds;  // K - 1 of them for K classes
  std::vector<HostIndex> servers;  // kWholeServer: variables are placed on them in turn
  // Neighbouring variables travel together in batches of at most this, unless one is larger: the buckets of data
  // parallel training, Horovod's fusion. 0: every variable by itself.
  Bytes batch;
};

// The tensors in the plan of a variable or a batch of them. kAllreduce: push and pull are the same one.
struct Exchanged {
  TensorId push, pull;
  std::size_t first_layer = 0, last_layer = 0;  // that have a part in it; its urgency is the first one's
};

struct JobPlan {
  protocol::Plan plan;
  std::vector<Exchanged> exchanged;  // in the order of the forward pass
  TensorId barrier;                  // kPushPull: the last tensor
};

// Urgency is layer order, classes are by threshold.
JobPlan plan_of(const Workload& workload, const Placement& placement, std::uint16_t hosts);

// The layer's urgency: 1 - l / L (Geryon, section III-C).
double urgency_of(const Workload& workload, std::size_t layer);

}  // namespace tensorlane::simulator
