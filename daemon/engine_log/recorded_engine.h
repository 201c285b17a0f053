// An engine, and what keeps its log if there is one. Whoever hosts an engine hosts this, so that no call that changes
// the engine can miss the log; without a recorder each costs a branch.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "daemon/engine/engine.h"
#include "daemon/engine_log/recorder.h"

namespace tensorlane::engine_log {

// Threads, arguments and results are the engine's (engine.h).
class RecordedEngine : private engine::Engine {
 public:
  // `recorder` may be null.
  RecordedEngine(const engine::EngineConfig& config, const Descriptor& staging, std::unique_ptr<Recorder> recorder)
      : Engine(config, staging), recorder_(std::move(recorder)) {
    if (recorder_) recorder_->begin(config, staging, digest());
  }
  ~RecordedEngine() { end_log(); }
  RecordedEngine(const RecordedEngine&) = delete;
  RecordedEngine& operator=(const RecordedEngine&) = delete;

  // ---- what changes it ----
  Status apply_plan(const protocol::Plan& plan) {
    Status status = Engine::apply_plan(plan);
    if (recorder_ && status.ok()) recorder_->plan(plan, digest());
    return status;
  }
  Status extend_plan(const protocol::Plan& plan, protocol::TensorRange added) {
    Status status = Engine::extend_plan(plan, added);
    if (recorder_ && status.ok()) recorder_->plan(plan, added, digest());
    return status;
  }
  Status vacate(protocol::TensorRange range) {
    Status status = Engine::vacate(range);
    if (recorder_ && status.ok()) recorder_->vacate(range, digest());
    return status;
  }
  void set_priority(TensorId tensor, float urgency, ClassId cls) {
    Engine::set_priority(tensor, urgency, cls);
    if (recorder_) recorder_->priority(tensor, urgency, cls, digest());
  }
  std::size_t step(Time now, std::span<const engine::Event> events, engine::ActionRing& out) {
    const std::size_t taken = Engine::step(now, events, out);
    if (recorder_) [[unlikely]]
      recorder_->events(now, events.first(taken), digest());
    return taken;
  }
  std::size_t pick(Time now, engine::Flow flow, Bytes credit, std::span<engine::Send> out) {
    const std::size_t picked = Engine::pick(now, flow, credit, out);
    if (recorder_) [[unlikely]]
      recorder_->pick(now, flow, credit, out.size(), picked, digest());
    return picked;
  }
  bool pick_work(Time now, engine::Work* out) {
    const bool picked = Engine::pick_work(now, out);
    if (recorder_ && picked) [[unlikely]]
      recorder_->work(now, digest());
    return picked;
  }
  // Writes the log as far as it is. Call a few times a second.
  void flush() {
    if (recorder_) recorder_->flush(digest());
  }
  // Nothing is recorded after it; the destructor does it, too.
  void end_log() {
    if (recorder_) recorder_->end(digest());
    recorder_.reset();
  }

  // ---- what does not ----
  const engine::Engine& engine() const { return *this; }
  using Engine::counters;
  using Engine::digest;
  using Engine::granted;
  using Engine::has_sends;
  using Engine::landing;
  using Engine::missing;
  using Engine::next_flow;
  using Engine::next_work;
  using Engine::oldest;
  using Engine::promotion;

 private:
  std::unique_ptr<Recorder> recorder_;
};

}  // namespace tensorlane::engine_log
