// Watches an engine of a simulated host: every event it takes, every frame it lets go, every block of work, judged by
// the checkers, and recorded where the scenario says so.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "daemon/engine_log/observer.h"
#include "simulator/checkers/admission.h"
#include "simulator/checkers/choice.h"
#include "simulator/checkers/delivery.h"
#include "simulator/checkers/limits.h"
#include "simulator/checkers/order.h"
#include "simulator/host/memory.h"

namespace tensorlane::simulator {

class EngineWatch {
 public:
  struct Context {
    const Scenario& scenario;
    SimMemory& memory;
    AdmissionChecker& admission;
    Findings& findings;
    std::function<void(StagingChecker&)> begun;              // the engine, with this staging
    std::uint64_t* progress;                                 // counts what moved the job on
    std::function<void(const engine::Complete&)> completed;  // this rail's part of an operation
    // Whether the flow has room for an operation, as far as anybody can see, and its window for a whole one.
    std::function<bool(engine::Flow)> can_go;
    std::function<void(Time, ClassId, std::uint64_t)> picks;  // the host has chosen so many bytes of this class
    std::function<void(ClassId)> works;                       // the host has chosen a block of this class
  };
  EngineWatch(HostIndex self, RailIndex rail, Context context);

  // For the engine, once. The watch outlives it.
  std::unique_ptr<engine_log::Observer> observer();

  // A frame broke the protocol: nothing of the engine is judged any more.
  bool broken() const { return broken_; }
  // Of the engine, as long as it lives, and what it left behind.
  const engine::Engine* engine() const { return engine_; }
  engine::EngineCounters counters() const { return engine_ != nullptr ? engine_->counters() : last_counters_; }
  std::uint64_t digest() const { return engine_ != nullptr ? engine_->digest() : last_digest_; }
  // The class of the most urgent block of arithmetic that can be done.
  std::optional<ClassId> next_work() const { return broken_ ? std::nullopt : choice_.next_work(); }
  // A flow of a class more urgent than `cls` for which something granted waits that could go.
  std::optional<engine::Flow> waits_above(Time now, ClassId cls) const;
  // Whether something granted waits that could go in class `cls` now.
  bool waits_in(Time now, ClassId cls) const;
  // The host sleeps until then unless something happens. Checker "order".
  void sleeps(Time now, Time until) const;
  // What must hold when everything is over and quiet. Checkers "bounds", "choice", "stale".
  void check_quiet();
  // Once the engine is gone: replays its log, if the scenario records. Checker "digest".
  void check_log() const;
  std::string describe() const;

 private:
  class Watcher;
  void begin(const engine::EngineConfig& config, const Descriptor& staging, const engine::Engine& engine);
  void events(Time now, std::span<const engine::Event> events);
  void check_bounds();
  void pick(Time now, engine::Flow flow, Bytes credit, std::span<const engine::Send> picked);
  void work(const engine::Work& work);

  const HostIndex self_;
  const RailIndex rail_;
  Context context_;
  Urgencies urgencies_;
  LimitChecker limits_;
  OrderChecker order_;
  ChoiceChecker choice_;
  std::unique_ptr<StagingChecker> staging_;
  std::uint64_t staging_bytes_ = 0;
  engine::EngineConfig config_;
  std::string log_;
  const engine::Engine* engine_ = nullptr;
  engine::EngineCounters last_counters_;
  std::uint64_t last_digest_ = 0;
  bool broken_ = false;  // a frame broke the protocol: what was made of it is not judged
};

}  // namespace tensorlane::simulator
