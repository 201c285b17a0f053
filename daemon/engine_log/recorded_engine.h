// An engine, and who observes it, if anybody does: what keeps its log. Whoever hosts an engine hosts this, so that no
// call that changes the engine can miss the log; without an observer each costs a branch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "daemon/engine/engine.h"
#include "daemon/engine_log/observer.h"

namespace tensorlane::engine_log {

// Threads, arguments and results are the engine's (engine.h).
class RecordedEngine : private engine::Engine {
 public:
  // `observer` may be null.
  RecordedEngine(const engine::EngineConfig& config, const Descriptor& staging, std::unique_ptr<Observer> observer)
      : Engine(config, staging), observer_(std::move(observer)) {
    if (observer_) observer_->begin(config, staging, *this);
  }
  ~RecordedEngine() { end_log(); }
  RecordedEngine(const RecordedEngine&) = delete;
  RecordedEngine& operator=(const RecordedEngine&) = delete;

  // ---- what changes it ----
  Status apply_plan(const protocol::Plan& plan) {
    const std::uint32_t before = known_tensors_;
    Status status = Engine::apply_plan(plan);
    if (status.ok()) known_tensors_ = std::max(before, static_cast<std::uint32_t>(plan.tensors.size()));
    if (observer_ && status.ok()) observer_->plan(plan, {before, known_tensors_ - before}, *this);
    return status;
  }
  Status extend_plan(const protocol::Plan& plan, protocol::TensorRange added) {
    Status status = Engine::extend_plan(plan, added);
    if (status.ok()) known_tensors_ = std::max(known_tensors_, added.end());
    if (observer_ && status.ok()) observer_->plan(plan, added, *this);
    return status;
  }
  Status vacate(protocol::TensorRange range) {
    Status status = Engine::vacate(range);
    if (observer_ && status.ok()) observer_->vacate(range, *this);
    return status;
  }
  void set_priority(TensorId tensor, float urgency, ClassId cls) {
    Engine::set_priority(tensor, urgency, cls);
    if (observer_) observer_->priority(tensor, urgency, cls, *this);
  }
  std::size_t step(Time now, std::span<const engine::Event> events, engine::ActionRing& out) {
    const std::size_t before = out.size(), taken = Engine::step(now, events, out);
    if (observer_) [[unlikely]] {
      observer_->events(now, events.first(taken), *this);
      for (std::size_t i = before; i < out.size(); ++i) observer_->action(out[i], *this);
    }
    return taken;
  }
  std::size_t pick(Time now, engine::Flow flow, Bytes credit, std::span<engine::Send> out) {
    const std::size_t picked = Engine::pick(now, flow, credit, out);
    if (observer_) [[unlikely]]
      observer_->pick(now, flow, credit, out.size(), out.first(picked), *this);
    return picked;
  }
  bool pick_work(Time now, engine::Work* out) {
    const bool picked = Engine::pick_work(now, out);
    if (observer_ && picked) [[unlikely]]
      observer_->work(now, *out, *this);
    return picked;
  }
  // Writes the log as far as it is. Call a few times a second.
  void flush() {
    if (observer_) observer_->flush(*this);
  }
  // Nobody is told anything after it; the destructor does it, too.
  void end_log() {
    if (observer_) observer_->end(*this);
    observer_.reset();
  }

  // ---- what does not ----
  const engine::Engine& engine() const { return *this; }
  using Engine::counters;
  using Engine::digest;
  using Engine::granted;
  using Engine::has_sends;
  using Engine::landing;
  using Engine::missing;
  using Engine::neighbours;
  using Engine::next_flow;
  using Engine::next_work;
  using Engine::oldest;
  using Engine::promotion;

 private:
  std::unique_ptr<Observer> observer_;
  std::uint32_t known_tensors_ = 0;
};

}  // namespace tensorlane::engine_log
