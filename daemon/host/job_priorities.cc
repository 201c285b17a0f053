// Urgencies and classes that change while a job runs: thresholds that its leader searches for, and the order in which
// its ranks here wait for tensors.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <span>

#include "daemon/engine/classify/thresholds.h"
#include "daemon/host/context.h"
#include "daemon/host/job.h"

namespace tensorlane::host {
namespace {

constexpr std::uint32_t kReviewedAtOnce = 1024;

}  // namespace

void Job::use_thresholds(std::vector<double> thresholds) {
  if (!context_.config->tunes || thresholds.size() >= context_.config->classes) return;
  thresholds_ = std::move(thresholds);
  classify({0, static_cast<std::uint32_t>(plan_.tensors.size())});
}

void Job::set_priority(const protocol::PlanTensor& tensor) {
  priorities_.push_back({tensor.id, tensor.urgency, tensor.cls});
}

// All that set_priority() was called for, at once.
void Job::tell_priorities() {
  if (priorities_.empty()) return;
  for (const Set& set : sets_) set.rails->set_priorities(priorities_);
  priorities_.clear();
}

void Job::classify(protocol::TensorRange range) {
  const std::optional<TensorId> before = largest_;
  std::uint64_t most = largest_ ? plan_.tensors[largest_->value].bytes() : 0;
  for (std::uint32_t i = range.first; i < range.end(); ++i) {
    protocol::PlanTensor& tensor = plan_.tensors[i];
    const std::uint64_t bytes = tensor.bytes();
    if (reduces(tensor.operation) && !tensor.in_batch() && tensor.world == nullptr && bytes > most) {
      largest_ = tensor.id;
      most = bytes;
    }
    if (!thresholds_) continue;
    // Fewer classes than there are leave out the most urgent ones, which others may need more.
    const auto unused = static_cast<std::uint8_t>(context_.config->classes - thresholds_->size() - 1);
    tensor.cls = ClassId(unused + engine::class_by_thresholds(*thresholds_, tensor.urgency).value);
    set_priority(tensor);
  }
  tell_priorities();
  if (largest_ != before) largest_since_.reset();
}

// The largest tensor is a gradient, and those are submitted once an iteration.
void Job::note_iteration(TensorId tensor, Time now) {
  if (!context_.config->tunes || !between_hosts() || tensor != largest_) return;
  if (largest_since_) context_.listener->on_iteration(id(), now - *largest_since_);
  largest_since_ = now;
}

// ---- the plan has changed ----

// Another tensor than the largest says from now on when an iteration begins. The order is learned anew with every plan:
// what it has added may be waited for before everything else; until then the plan counts.
void Job::begin(const Review& review) {
  if (review.largest) largest_.reset();
  if (review.relearns) observed_.reset();
}

// True when it is done.
bool Job::go_on(Review& review) {
  if (!review.largest && !review.relearns) return true;
  const auto all = static_cast<std::uint32_t>(plan_.tensors.size());
  const protocol::TensorRange next{review.done, std::min(kReviewedAtOnce, all - review.done)};
  for (std::uint32_t i = next.first; review.relearns && i < next.end(); ++i) {
    protocol::PlanTensor& tensor = plan_.tensors[i];
    tensor.urgency = tensors_[i].urgency;
    tensor.cls = tensors_[i].cls;
    set_priority(tensor);
  }
  tell_priorities();
  if (review.largest) classify(next);
  review.done = next.end();
  if (review.done < all) return false;
  if (!review.relearns) return true;
  observed_.emplace(all, static_cast<std::uint32_t>(local_ranks_.size()), context_.config->observation);
  for (const auto& session : sessions_) {
    if (session) session->observe_waits(true);
  }
  return true;
}

// ---- the order in which ranks here wait ----

void Job::waited(std::uint32_t local, TensorId tensor, std::uint64_t sequence) {
  if (!observed_ || plan_.tensors[tensor.value].world != nullptr)
    return;  // or it had not heard yet that nobody asks any more
  observed_->wait(local, plan_.tensors[tensor.value].operation_id(), Sequence(sequence));
  if (observed_->learned()) take_observed_order();
}

// What nobody waits for (a barrier, what is broadcast once) keeps the urgency that it was registered with.
void Job::take_observed_order() {
  std::vector<float> urgencies(observed_->tensors());  // process sets may have brought more since
  observed_->urgencies(urgencies);
  std::vector<const protocol::PlanTensor*> order;
  for (protocol::PlanTensor& tensor : std::span(plan_.tensors).first(urgencies.size())) {
    if (tensor.world != nullptr || !observed_->waited_for(tensor.id)) continue;
    tensor.urgency = urgencies[tensor.id.value];
    tensor.cls = engine::class_by_thresholds(context_.config->thresholds, tensor.urgency);
    set_priority(tensor);
    order.push_back(&tensor);
  }
  tell_priorities();
  std::ranges::sort(order, std::greater(), &protocol::PlanTensor::urgency);
  log(fmt::format("job '{}': urgency is the order in which its ranks here wait: {} first, {} last, {} tensors",
                  spec_.name, order.front()->name, order.back()->name, order.size()));
  observed_.reset();
  for (const auto& session : sessions_) {
    if (session) session->observe_waits(false);
  }
}

}  // namespace tensorlane::host
