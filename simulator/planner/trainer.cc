#include "simulator/planner/trainer.h"

#include <algorithm>
#include <numeric>

#include "common/base/assert.h"

namespace tensorlane::simulator {

Trainer::Trainer(EventQueue& events, PlannedHost& host, std::size_t job, const Workload& workload, const JobPlan& plan,
                 const TrainerOptions& options, Random random)
    : events_(events),
      host_(host),
      job_(job),
      workload_(workload),
      plan_(plan),
      options_(options),
      random_(random),
      variables_of_(workload.layers.size()),
      variable_of_(plan.plan.tensors.size()),
      missing_(workload.layers.size()),
      asked_(plan.plan.tensors.size()),
      waits_(workload.layers.size()),
      pulled_(workload.layers.size()),
      pushed_(workload.layers.size()) {
  for (std::size_t v = 0; v < plan.variables.size(); ++v) {
    variables_of_[plan.variables[v].layer].push_back(v);
    variable_of_[plan.variables[v].push.value] = variable_of_[plan.variables[v].pull.value] = v;
  }
}

void Trainer::begin_iteration() {
  layer_ = 0;
  computing_ = options_.computes;
  if (push_pull()) {
    submit_pulls();
    if (!options_.computes) {
      for (std::size_t l = workload_.layers.size(); l-- > 0;) submit_pushes(l);
    }
  }
  if (options_.computes) forward();
}

void Trainer::submit_pulls() {
  std::vector<std::size_t> order(plan_.variables.size());
  std::iota(order.begin(), order.end(), 0);
  if (options_.pulls == PullOrder::kReverse) std::ranges::reverse(order);
  if (options_.pulls == PullOrder::kRandom) {
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
  }
  for (std::size_t v : order) {
    const TensorId tensor = plan_.variables[v].pull;
    ++missing_[plan_.variables[v].layer];
    ++unfinished_;
    asked_[tensor.value] = events_.now();
    host_.submit(job_, tensor);
  }
}

void Trainer::submit_pushes(std::size_t layer) {
  for (std::size_t v : variables_of_[layer]) {
    const TensorId tensor = plan_.variables[v].push;
    ++unfinished_;
    if (!push_pull()) ++missing_[layer];
    asked_[tensor.value] = events_.now();
    host_.submit(job_, tensor);
  }
}

void Trainer::completed(TensorId tensor) {
  if (tensor == plan_.barrier) return end_iteration();
  const Exchanged& exchanged = plan_.variables[variable_of_[tensor.value]];
  --unfinished_;
  if (tensor == exchanged.push) pushed_[exchanged.layer] = events_.now();
  if (tensor == exchanged.pull) {
    pulled_[exchanged.layer] = events_.now();
    waits_[exchanged.layer] += events_.now() - asked_[tensor.value];
    --missing_[exchanged.layer];
    if (waiting_ && exchanged.layer == layer_ && missing_[layer_] == 0) forward();
  }
  end_if_done();
}

void Trainer::forward() {
  waiting_ = missing_[layer_] > 0;
  if (waiting_) {
    for (std::size_t v : variables_of_[layer_]) host_.raise(job_, plan_.variables[v].pull);
    return;
  }
  events_.after(workload_.layers[layer_].forward, [this] { forward_done(); });
}

void Trainer::forward_done() {
  if (++layer_ < workload_.layers.size()) return forward();
  backward();
}

// From here `layer_` is one more than the layer whose backward pass runs.
void Trainer::backward() {
  events_.after(workload_.layers[layer_ - 1].backward, [this] { backward_done(); });
}

void Trainer::backward_done() {
  submit_pushes(--layer_);
  if (layer_ > 0) return backward();
  computing_ = false;
  if (!push_pull()) return end_iteration();
  end_if_done();
}

void Trainer::end_if_done() {
  if (push_pull() && !computing_ && unfinished_ == 0) host_.submit(job_, plan_.barrier);
}

void Trainer::end_iteration() {
  ends_.push_back(events_.now());
  if (ends_.size() < options_.iterations) events_.after(workload_.overhead, [this] { begin_iteration(); });
}

}  // namespace tensorlane::simulator
