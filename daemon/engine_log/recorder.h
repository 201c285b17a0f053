// Writes the log of one engine (format.h): a record for each call that changes it, blocks to a sink.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "common/protocol/plan.h"
#include "daemon/engine/engine.h"
#include "daemon/engine_log/codec.h"
#include "daemon/engine_log/format.h"
#include "daemon/engine_log/observer.h"

namespace tensorlane::engine_log {

// Where a log goes. Called by the recorder's thread.
class Sink {
 public:
  virtual ~Sink() = default;
  // All of it, or an error: nothing is written any more after one.
  virtual Status write(std::span<const std::byte> bytes) = 0;
  // The log ends before its engine does: an error of write(), or kResourceExhausted at the limit.
  virtual void stopped(const Status& why) = 0;
};

// One owner thread: that of the engine. `digest` is always the engine's, after the call that is recorded. Nothing is
// allocated after begin(), except by plan(). Blocks are written as they fill, which is when write() is called.
class Recorder {
 public:
  // The log has at most `limit` bytes, and then a block more that says so (some 50 bytes).
  Recorder(std::unique_ptr<Sink> sink, Bytes limit, std::string job, std::string host);

  void begin(const engine::EngineConfig& config, const Descriptor& staging, std::uint64_t digest);
  // A plan that the engine has taken, with what it has `added` to the one before; without it, what follows that.
  void plan(const protocol::Plan& plan, protocol::TensorRange added, std::uint64_t digest);
  void plan(const protocol::Plan& whole, std::uint64_t digest) {
    plan(whole, {known_tensors_, static_cast<std::uint32_t>(whole.tensors.size()) - known_tensors_}, digest);
  }
  void vacate(protocol::TensorRange range, std::uint64_t digest);
  void priority(TensorId tensor, float urgency, ClassId cls, std::uint64_t digest);
  // Those that the engine has taken.
  void events(Time now, std::span<const engine::Event> events, std::uint64_t digest);
  // Calls that returned nothing have changed nothing, and need no record.
  void pick(Time now, engine::Flow flow, Bytes credit, std::size_t room, std::size_t picked, std::uint64_t digest);
  void work(Time now, std::uint64_t digest);
  // Writes what there is, with a checkpoint: so much survives the daemon.
  void flush(std::uint64_t digest);
  // The job is over. Nothing comes after it.
  void end(std::uint64_t digest);

 private:
  void start_record(RecordKind kind) { start_record(static_cast<std::uint8_t>(kind)); }
  void start_record(std::uint8_t kind);
  void seal_if_full(std::uint64_t digest);
  void seal(std::uint64_t digest);
  void write_block(std::uint64_t digest);
  void write_end(EndReason reason, std::uint64_t digest);
  void write(std::span<const std::byte> bytes);

  const std::unique_ptr<Sink> sink_;
  const std::uint64_t limit_;
  const std::string job_, host_;
  std::vector<std::byte> block_;  // the header's place, then records
  Encoder encoder_;
  bool open_ = true;
  std::uint64_t written_ = 0;        // bytes
  std::uint64_t first_ = 0;          // number of the block's first record
  std::uint32_t records_ = 0;        // of the block
  std::uint64_t sealed_digest_ = 0;  // of the checkpoint before
  std::uint32_t known_tensors_ = 0;
  std::vector<HostIndex> known_rank_hosts_;
};

// Records an engine.
class RecordingObserver final : public Observer {
 public:
  explicit RecordingObserver(std::unique_ptr<Recorder> recorder) : recorder_(std::move(recorder)) {}

  void begin(const engine::EngineConfig& config, const Descriptor& staging, const engine::Engine& engine) override {
    recorder_->begin(config, staging, engine.digest());
  }
  void plan(const protocol::Plan& plan, protocol::TensorRange added, const engine::Engine& engine) override {
    recorder_->plan(plan, added, engine.digest());
  }
  void vacate(protocol::TensorRange range, const engine::Engine& engine) override {
    recorder_->vacate(range, engine.digest());
  }
  void priority(TensorId tensor, float urgency, ClassId cls, const engine::Engine& engine) override {
    recorder_->priority(tensor, urgency, cls, engine.digest());
  }
  void events(Time now, std::span<const engine::Event> events, const engine::Engine& engine) override {
    recorder_->events(now, events, engine.digest());
  }
  void pick(Time now, engine::Flow flow, Bytes credit, std::size_t room, std::span<const engine::Send> picked,
            const engine::Engine& engine) override {
    recorder_->pick(now, flow, credit, room, picked.size(), engine.digest());
  }
  void work(Time now, const engine::Work&, const engine::Engine& engine) override {
    recorder_->work(now, engine.digest());
  }
  void flush(const engine::Engine& engine) override { recorder_->flush(engine.digest()); }
  void end(const engine::Engine& engine) override { recorder_->end(engine.digest()); }

 private:
  const std::unique_ptr<Recorder> recorder_;
};

}  // namespace tensorlane::engine_log
