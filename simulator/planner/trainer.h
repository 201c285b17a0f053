// The training loop of one job on one host: it computes layer by layer, submits what is exchanged and waits for it.
#pragma once

#include <cstdint>
#include <vector>

#include "simulator/clock/event_queue.h"
#include "simulator/clock/random.h"
#include "simulator/planner/daemon.h"
#include "simulator/planner/workload.h"

namespace tensorlane::simulator {

enum class PullOrder : std::uint8_t {
  kForward,  // as the forward pass needs them
  kReverse,
  kRandom,  // another one on every host and in every iteration, as a framework's concurrent graph has it
};

struct TrainerOptions {
  Exchange exchange = Exchange::kAllreduce;
  PullOrder pulls = PullOrder::kForward;
  std::uint64_t iterations = 1;
  bool computes = true;  // false: a server only
};

class Trainer {
 public:
  // What is referred to outlives the trainer. `job` is the host's number of it.
  Trainer(EventQueue& events, PlannedDaemon& host, std::size_t job, const Workload& workload, const JobPlan& plan,
          const TrainerOptions& options, Random random);

  void start() { begin_iteration(); }
  // The host's job has completed an operation on this tensor.
  void completed(TensorId tensor);

  // When each iteration ended here: its barrier, or its forward pass, which has waited for the sums of the one before.
  const std::vector<Time>& ends() const { return ends_; }
  // By layer: how long its parameters or sums were awaited after they were asked for, the mean.
  std::vector<double> waits_s() const;
  // By layer, in the last iteration: when its parameters were here, and its gradients with the server.
  const std::vector<Time>& pulled() const { return pulled_; }
  const std::vector<Time>& pushed() const { return pushed_; }

 private:
  void begin_iteration();
  void submit_pulls();
  void submit_pushes(std::size_t layer);
  void ask(std::size_t exchanged, TensorId tensor);
  void forward();
  void forward_done();
  void backward();
  void backward_done();
  void end_if_done();
  void next_iteration();
  bool push_pull() const { return options_.exchange == Exchange::kPushPull; }

  EventQueue& events_;
  PlannedDaemon& host_;
  const std::size_t job_;
  const Workload& workload_;
  const JobPlan& plan_;
  const TrainerOptions options_;
  Random random_;

  std::vector<std::vector<std::size_t>> complete_with_;  // by layer: what is exchanged once its backward pass is done
  std::vector<std::vector<std::size_t>> needed_by_;      // by layer: what its forward pass waits for
  std::vector<std::size_t> exchanged_of_;                // by tensor
  std::vector<std::uint32_t> missing_;                   // by layer: of needed_by_, what is not here
  std::vector<Time> asked_;                              // by tensor
  std::vector<Duration> waits_;
  std::vector<Time> pulled_, pushed_, ends_;
  std::size_t layer_ = 0;       // that is computed, or waited for
  bool waiting_ = false;        // for the parameters of layer_
  bool computing_ = false;      // some of this iteration is still to be computed
  std::size_t unfinished_ = 0;  // operations
};

}  // namespace tensorlane::simulator
