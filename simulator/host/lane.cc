#include "simulator/host/lane.h"

#include <algorithm>

namespace tensorlane::simulator {

using engine::Event;

Lane::Lane(HostIndex self, Around around, Random random)
    : self_(self),
      around_(around),
      random_(random),
      batches_(self, around.scenario, memory_, around.findings),
      held_(around.scenario.plan.tensors.size()),
      operations_(around.scenario.plan.tensors.size()),
      heard_(around.scenario.rails(), std::vector<Time>(around.scenario.hosts())) {
  for (std::uint8_t r = 0; r < around_.scenario.rails(); ++r) {
    const RailIndex rail{r};
    rails_.push_back(std::make_unique<Rail>(self, rail, around_rail(rail), random_.fork(2u + r)));
  }
  admission_.grow(around_.scenario.plan_of(around_.scenario.tensors_at_start));
  client_ = std::make_unique<Client>(
      self,
      Client::Around{around_.scenario, around_.events, memory_, around_.values, around_.results, around_.findings,
                     around_.trace, [this](const Event& event) { submit(event); }},
      random_.fork(1));
}

Rail::Around Lane::around_rail(RailIndex rail) {
  return {.scenario = around_.scenario,
          .events = around_.events,
          .network = *around_.networks[rail.value],
          .memory = memory_,
          .delivery = around_.delivery,
          .findings = around_.findings,
          .trace = around_.trace,
          .progress = around_.progress,
          .host = state_,
          .complete = [this](const engine::Complete& complete) { rail_completed(complete); },
          .agreed = [this](const engine::Agreed& agreed) { take_agreed(agreed); },
          .holds =
              [this](TensorId tensor, Sequence sequence) {
                return client_->holds(is_batch(tensor) ? batches_.members(tensor).front().tensor : tensor, sequence);
              },
          .heartbeat = [this](HostIndex from, RailIndex r, const Heartbeat& beat) { heard(from, r, beat); }};
}

void Lane::start() {
  client_->start();
  around_.events.after(random_.between(Duration(0), around_.scenario.heartbeat), [this] { beat(); });
}

void Lane::grow_plan(std::size_t tensors, const std::function<void()>& then) {
  const auto missing = std::make_shared<std::size_t>(rails_.size());
  for (auto& rail : rails_) {
    rail->grow_plan(tensors, [this, tensors, missing, then] {
      if (--*missing > 0) return;
      admission_.grow(around_.scenario.plan_of(tensors));
      then();
    });
  }
}

void Lane::allow(std::size_t tensors) {
  if (!state_.dead) client_->allow(tensors);
}

// ---- operations ----

void Lane::submit(const Event& event) {
  if (state_.dead) return;
  const bool begins = event.kind == Event::Kind::kTensorReady;
  if (state_.running()) return begins ? submit_member(event) : raise(event);
  // The job has failed: so does every later operation (ports/job.h), without the engines.
  if (begins) client_->completed(event.tensor_ready.tensor, event.tensor_ready.sequence, false);
}

void Lane::rail_completed(const engine::Complete& complete) {
  Joined& operation = operations_[complete.tensor.value];
  if (operation.rails_left == 0) {
    around_.findings.fail("delivery", "host {}: tensor {}, sequence {} completes more often than it has rails",
                          self_.value, complete.tensor.value, complete.sequence.value);
    return;
  }
  operation.ok = operation.ok && complete.ok;
  if (--operation.rails_left > 0) return;
  if (operation.ok) {
    around_.delivery.completed(complete.tensor, complete.sequence);
    note_completed(complete.tensor);
  }
  tell_client(complete, operation.ok);
}

void Lane::tell_client(const engine::Complete& complete, bool ok) {
  if (!is_batch(complete.tensor)) return client_->completed(complete.tensor, complete.sequence, ok);
  batches_.completed(complete.tensor, ok);
  for (const auto& member : batches_.members(complete.tensor)) client_->completed(member.tensor, complete.sequence, ok);
}

// ---- checks ----

void Lane::check_quiet() const {
  client_->check_buffers();
  batches_.check_idle();
  if (const int region = memory_.broken_canary(); region >= 0) {
    around_.findings.fail("memory", "host {}: the canary around region {} is overwritten", self_.value, region);
  }
  if (aborted() || !alive()) return;
  for (const auto& rail : rails_) rail->check_quiet();
  if (admission_.held() > 0)
    around_.findings.fail("bounds", "host {}: all is over, but {} operations are held back", self_.value,
                          admission_.held());
}

std::string Lane::describe() const {
  std::string text = fmt::format("host {}: {}{}{}, pending:{}, held: {}", self_.value,
                                 aborted() ? "aborted (" + cause_ + ")" : "running", state_.dead ? ", dead" : "",
                                 state_.frozen ? ", frozen" : "", client_->describe_pending(), admission_.held());
  for (const auto& rail : rails_) text += rail->describe();
  return text;
}

bool Lane::resolved() const {
  if (!alive()) return true;
  if (state_.running()) return client_->finished();
  return state_.phase == HostState::Phase::kClosed && client_->pending() == 0;
}

}  // namespace tensorlane::simulator
