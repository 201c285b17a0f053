// Logs in memory, and two engines that write one each.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "daemon/engine_log/reader.h"
#include "daemon/engine_log/recorded_engine.h"
#include "daemon/engine_log/recorder.h"
#include "daemon/engine_log/replay.h"

namespace tensorlane::engine_log {

using engine::Event;

inline constexpr Bytes kMuch = mib(64);

struct TestLog {
  std::string bytes;
  std::vector<Status> stopped;
  std::size_t writes_left = ~std::size_t{0};
};

class TestSink final : public Sink {
 public:
  explicit TestSink(std::shared_ptr<TestLog> log) : log_(std::move(log)) {}
  Status write(std::span<const std::byte> bytes) override {
    if (log_->writes_left == 0) return {Code::kUnavailable, "the disk is full", "disk", "buy another"};
    --log_->writes_left;
    log_->bytes.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  }
  void stopped(const Status& why) override { log_->stopped.push_back(why); }

 private:
  std::shared_ptr<TestLog> log_;
};

inline std::unique_ptr<Recorder> recorder_to(const std::shared_ptr<TestLog>& log, Bytes limit = kMuch) {
  return std::make_unique<Recorder>(std::make_unique<TestSink>(log), limit, "job", "h0");
}

inline Result<Replay> replay_text(const std::string& log) {
  std::istringstream in(log);
  return replay(in, "test.tllog");
}

inline engine::EngineConfig config_of(std::uint16_t self) {
  engine::EngineConfig config;
  config.job = JobId(0xfedcba9876543210);
  config.epoch = Epoch(0x90000001);
  config.hosts = 2;
  config.self = HostIndex(self);
  config.world_size = 2;
  config.staging = mib(4);
  config.reclassifies = true;
  config.limits[0] = {BitsPerSecond(1'000'000'000), kib(256)};
  return config;
}

inline protocol::Plan plan_of(std::uint32_t tensors, protocol::Ordering ordering = {}) {
  protocol::Plan plan{.version = tensors, .ordering = ordering};
  for (std::uint32_t i = 0; i < tensors; ++i) {
    plan.tensors.push_back({.id = TensorId(i),
                            .cls = ClassId(static_cast<std::uint8_t>(i % 2)),
                            .urgency = i % 2 == 0 ? 1.0F : 0.25F,
                            .elements = i % 2 == 0 ? 100u : 100'000u,
                            .slice_elements = 16384,
                            .name = "tensor " + std::to_string(i)});
  }
  plan.rank_hosts = {HostIndex(0), HostIndex(1)};
  return plan;
}

// Two hosts' engines around an ideal network without bytes: what one picks arrives at the other.
class Pair {
 public:
  explicit Pair(Bytes limit = kMuch) {
    for (std::uint16_t h = 0; h < 2; ++h) {
      const engine::EngineConfig config = config_of(h);
      const Descriptor staging{0, 0, 0, engine::Engine::staging_bytes(config).value};
      logs[h] = std::make_shared<TestLog>();
      engines[h] = std::make_unique<RecordedEngine>(config, staging,
                                                    std::make_unique<RecordingObserver>(recorder_to(logs[h], limit)));
    }
  }

  void apply_plan(const protocol::Plan& plan) {
    plan_ = plan;
    sequences_.resize(plan.tensors.size());
    for (auto& engine : engines) EXPECT_TRUE(engine->apply_plan(plan).ok());
    if (!std::exchange(connected_, true)) {
      for (std::uint16_t h = 0; h < 2; ++h)
        feed(h, {.kind = Event::Kind::kPeerUp, .up = {HostIndex(static_cast<std::uint16_t>(1 - h))}});
      carry();
    }
  }
  void vacate(protocol::TensorRange range) {
    plan_.vacate(range);
    for (auto& engine : engines) EXPECT_TRUE(engine->vacate(range).ok());
  }
  void place(protocol::TensorRange range, std::vector<protocol::PlanTensor> tensors) {
    for (std::uint32_t i = range.first; i < range.end(); ++i) {
      if (i < sequences_.size()) tensors[i - range.first].base = sequences_[i];
    }
    plan_.place(range, tensors);
    sequences_.resize(plan_.tensors.size());
    for (auto& engine : engines) EXPECT_TRUE(engine->extend_plan(plan_, range).ok());
  }
  void feed(std::size_t host, const Event& event) {
    now_ = Time(now_.value + 1000);
    EXPECT_EQ(engines[host]->step(now_, {&event, 1}, actions_), 1u);
    for (; !actions_.empty(); actions_.pop()) {
      ASSERT_NE(actions_.front().kind, engine::Action::Kind::kProtocolError) << actions_.front().error.reason;
      if (actions_.front().kind == engine::Action::Kind::kComplete) ++completed;
    }
  }
  void begin(std::size_t host, std::uint32_t tensor, std::uint64_t sequence) {
    const protocol::PlanTensor& t = plan_.tensors[tensor];
    Event event{.kind = Event::Kind::kTensorReady};
    event.tensor_ready = {t.id, Sequence(sequence), {1 + tensor, 7, 64, t.elements * dtype_size(t.dtype)}, {}};
    feed(host, event);
  }
  // Every tensor once on both hosts, to the end.
  void run() {
    for (std::uint32_t t = 0; t < plan_.tensors.size(); ++t) {
      if (plan_.tensors[t].vacant) continue;
      ++sequences_[t];
      for (std::size_t h = 0; h < 2; ++h) begin(h, t, sequences_[t]);
    }
    carry();
  }
  void carry() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t h = 0; h < 2; ++h) moved = pick(h) || work(h) || moved;
    }
  }
  void end() {
    for (auto& engine : engines) engine->end_log();
  }

  std::array<std::shared_ptr<TestLog>, 2> logs;
  std::array<std::unique_ptr<RecordedEngine>, 2> engines;
  std::size_t completed = 0;

 private:
  bool pick(std::size_t h) {
    const HostIndex peer(static_cast<std::uint16_t>(1 - h));
    bool moved = false;
    for (const ClassId cls : {kControlClass, ClassId(0), ClassId(1)}) {
      std::array<engine::Send, 3> sends;
      const std::size_t picked = engines[h]->pick(now_, {peer, cls}, kMaxOperation * 2, sends);
      for (std::size_t i = 0; i < picked; ++i) {
        feed(peer.value, {.kind = Event::Kind::kFrameArrived,
                          .frame = {HostIndex(static_cast<std::uint16_t>(h)), sends[i].header}});
        if (sends[i].token != 0) feed(h, {.kind = Event::Kind::kSendDone, .token = sends[i].token});
      }
      moved = moved || picked > 0;
    }
    return moved;
  }
  bool work(std::size_t h) {
    if (!engines[h]->pick_work(now_, &work_)) return false;
    feed(h, {.kind = Event::Kind::kWorkDone, .token = work_.token});
    return true;
  }

  protocol::Plan plan_;
  std::vector<std::uint64_t> sequences_;
  bool connected_ = false;
  engine::ActionRing actions_{64};
  engine::Work work_;
  Time now_{5'000'000'000};
};

}  // namespace tensorlane::engine_log
