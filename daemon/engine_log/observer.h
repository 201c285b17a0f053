// Who is told of every call that changes an engine.
#pragma once

#include <cstdint>
#include <span>

#include "common/base/descriptor.h"
#include "common/protocol/plan.h"
#include "daemon/engine/engine.h"

namespace tensorlane::engine_log {

// The recorder of a log, or a test's. Called by the engine's thread, after the call; `engine` is the one that was
// called, and does not move.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void begin(const engine::EngineConfig& config, const Descriptor& staging, const engine::Engine& engine) = 0;
  // A plan that the engine has taken, with what it has `added` to the one before.
  virtual void plan(const protocol::Plan& plan, protocol::TensorRange added, const engine::Engine& engine) = 0;
  virtual void vacate(protocol::TensorRange range, const engine::Engine& engine) = 0;
  virtual void priority(TensorId tensor, float urgency, ClassId cls, const engine::Engine& engine) = 0;
  // Those that the engine has taken.
  virtual void events(Time now, std::span<const engine::Event> events, const engine::Engine& engine) = 0;
  // What those have brought about.
  virtual void action(const engine::Action&, const engine::Engine&) {}
  // `room`: how many were asked for.
  virtual void pick(Time now, engine::Flow flow, Bytes credit, std::size_t room, std::span<const engine::Send> picked,
                    const engine::Engine& engine) = 0;
  virtual void work(Time now, const engine::Work& work, const engine::Engine& engine) = 0;
  // A few times a second.
  virtual void flush(const engine::Engine& engine) = 0;
  // The engine goes. Nothing comes after it.
  virtual void end(const engine::Engine& engine) = 0;
};

}  // namespace tensorlane::engine_log
