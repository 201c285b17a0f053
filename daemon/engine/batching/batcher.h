// Which gradients travel together: Caramel's parameter batcher (section 4.2).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/units.h"
#include "daemon/engine/batching/network_model.h"

namespace tensorlane::engine {

// A gradient, and when its backward pass is expected to have it, from the beginning of the iteration.
struct Update {
  TensorId tensor;
  Bytes size;
  Duration ready;
};

// Gradients that are transferred as one.
struct Batch {
  std::vector<TensorId> members;
  Bytes size;
  Duration sent;  // when it joins the queue of the network: when its last member is ready
};

// Every update in one batch, batches in the order in which they join the queue. A function of its arguments, so that
// all hosts plan the same batches (law 1). In ascending order of `ready` (of equal ones as given):
//   - what is larger than `threshold` travels by itself, at once;
//   - everything else joins the open batch, which is sent when it is larger than `threshold`, or when the transfers in
//     the queue will be done before the next update: the network is never idle while something waits;
//   - the last update sends what is open.
// How long the queue lasts is what `model` says.
std::vector<Batch> batch_updates(std::span<const Update> updates, const NetworkModel& model, Bytes threshold);

}  // namespace tensorlane::engine
