#include "simulator/planner/trainer.h"

#include <algorithm>
#include <numeric>

#include "common/base/assert.h"

namespace tensorlane::simulator {

Trainer::Trainer(EventQueue& events, PlannedDaemon& host, std::size_t job, const Workload& workload,
                 const JobPlan& plan, const TrainerOptions& options, Random random)
    : events_(events),
      host_(host),
      job_(job),
      workload_(workload),
      plan_(plan),
      options_(options),
      random_(random),
      complete_with_(workload.layers.size()),
      needed_by_(workload.layers.size()),
      exchanged_of_(plan.plan.tensors.size()),
      missing_(workload.layers.size()),
      asked_(plan.plan.tensors.size()),
      waits_(workload.layers.size()),
      pulled_(workload.layers.size()),
      pushed_(workload.layers.size()) {
  for (std::size_t e = 0; e < plan.exchanged.size(); ++e) {
    const Exchanged& one = plan.exchanged[e];
    complete_with_[one.first_layer].push_back(e);
    for (std::size_t l = one.first_layer; l <= one.last_layer; ++l) needed_by_[l].push_back(e);
    exchanged_of_[one.push.value] = exchanged_of_[one.pull.value] = e;
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
  std::vector<std::size_t> order(plan_.exchanged.size());
  std::iota(order.begin(), order.end(), 0);
  if (options_.pulls == PullOrder::kReverse) std::ranges::reverse(order);
  if (options_.pulls == PullOrder::kRandom) {
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
  }
  for (std::size_t e : order) ask(e, plan_.exchanged[e].pull);
}

void Trainer::submit_pushes(std::size_t layer) {
  for (std::size_t e : complete_with_[layer]) ask(e, plan_.exchanged[e].push);
}

void Trainer::ask(std::size_t exchanged, TensorId tensor) {
  const Exchanged& one = plan_.exchanged[exchanged];
  ++unfinished_;
  if (tensor == one.pull) {
    for (std::size_t l = one.first_layer; l <= one.last_layer; ++l) ++missing_[l];
  }
  asked_[tensor.value] = events_.now();
  host_.submit(job_, tensor);
}

void Trainer::completed(TensorId tensor) {
  if (push_pull() && tensor == plan_.barrier) {
    ends_.push_back(events_.now());
    return next_iteration();
  }
  const Exchanged& one = plan_.exchanged[exchanged_of_[tensor.value]];
  --unfinished_;
  for (std::size_t l = one.first_layer; l <= one.last_layer; ++l) {
    if (tensor == one.push) pushed_[l] = events_.now();
    if (tensor != one.pull) continue;
    pulled_[l] = events_.now();
    waits_[l] += events_.now() - asked_[tensor.value];
    --missing_[l];
  }
  if (waiting_ && missing_[layer_] == 0) forward();
  end_if_done();
}

std::vector<double> Trainer::waits_s() const {
  std::vector<double> means;
  for (std::size_t l = 0; l < waits_.size(); ++l) {
    const std::size_t count = std::max<std::size_t>(1, needed_by_[l].size() * ends_.size());
    means.push_back(to_seconds(waits_[l]) / static_cast<double>(count));
  }
  return means;
}

void Trainer::forward() {
  waiting_ = missing_[layer_] > 0;
  if (waiting_) {
    for (std::size_t e : needed_by_[layer_]) host_.boost(job_, plan_.exchanged[e].pull);
    return;
  }
  events_.after(workload_.layers[layer_].forward, [this] { forward_done(); });
}

void Trainer::forward_done() {
  if (++layer_ < workload_.layers.size()) return forward();
  // Here every sum of the iteration before has been needed: between two such moments lies a whole iteration, with
  // nothing of another, however far its transfers overlap with the passes.
  if (!push_pull()) ends_.push_back(events_.now());
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
  if (!push_pull()) return next_iteration();
  end_if_done();
}

void Trainer::end_if_done() {
  if (push_pull() && !computing_ && unfinished_ == 0) host_.submit(job_, plan_.barrier);
}

void Trainer::next_iteration() {
  if (ends_.size() < options_.iterations) events_.after(workload_.overhead, [this] { begin_iteration(); });
}

}  // namespace tensorlane::simulator
