// One engine whose peers the test plays, frame by frame.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cluster.h"
#include "daemon/engine/engine.h"

namespace tensorlane::engine::testing {

using protocol::FrameHeader;
using protocol::FrameType;

inline constexpr JobId kJob{77};
inline constexpr Epoch kEpoch{3};
inline constexpr Bytes kMuch = mib(64);

// An engine as host 0, with peers that the test plays.
class OneEngine {
 public:
  explicit OneEngine(const Plan& plan, EngineConfig config = {}, std::uint16_t hosts = 2) : plan_(plan) {
    config.job = kJob;
    config.epoch = kEpoch;
    config.hosts = hosts;
    config.world_size = hosts;
    engine_ = std::make_unique<Engine>(config, Descriptor{0, 0, 0, Engine::staging_bytes(config).value});
    const Status status = engine_->apply_plan(plan);
    EXPECT_TRUE(status.ok()) << status.to_string();
    connect(config.eager_credits);
  }

  // Flows to every neighbour are up, and each has said that it lends so many slots.
  void connect(std::uint32_t slots) {
    const std::vector<HostIndex> neighbours(engine_->neighbours().begin(), engine_->neighbours().end());
    for (const HostIndex peer : neighbours) {
      feed({.kind = Event::Kind::kPeerUp, .up = {peer}});
      pick(kControlClass, peer.value);  // what it is lent itself
      FrameHeader credit{.type = FrameType::kCredit, .job = kJob, .epoch = kEpoch, .aux = slots};
      credit.offset = slots == 0 ? 0 : ~std::uint64_t{0} >> (64 - slots);
      if (slots > 0) {
        EXPECT_EQ(frame(credit, peer.value), "");
      }
    }
  }

  Engine& operator*() { return *engine_; }
  Engine* operator->() { return engine_.get(); }

  // Of the last step or pick; each has its own.
  Time now() const { return Time(now_); }

  std::vector<Action> feed(const Event& event) {
    EXPECT_EQ(engine_->step(Time(++now_), {&event, 1}, actions_), 1u);
    std::vector<Action> all;
    for (; !actions_.empty(); actions_.pop()) all.push_back(actions_.front());
    return all;
  }
  std::vector<Action> ready(std::uint32_t tensor, std::uint64_t sequence = 1) {
    const PlanTensor& t = plan_.tensors[tensor];
    Event e{.kind = Event::Kind::kTensorReady};
    e.tensor_ready = {t.id, Sequence(sequence), {1 + tensor, 0, 0, t.elements * dtype_size(t.dtype)}, {}};
    return feed(e);
  }
  // "" when the engine takes the frame, else the fault.
  std::string frame(const FrameHeader& header, std::uint16_t peer = 1) {
    Event e{.kind = Event::Kind::kFrameArrived};
    e.frame = {HostIndex(peer), header};
    for (const Action& a : feed(e)) {
      if (a.kind == Action::Kind::kProtocolError) return a.error.reason;
      if (a.kind == Action::Kind::kComplete) completed_.push_back(a.complete);
    }
    return "";
  }
  std::vector<Send> pick(ClassId cls, std::uint16_t peer = 1, Bytes credit = kMuch) {
    std::vector<Send> sends(64);
    sends.resize(engine_->pick(Time(++now_), {HostIndex(peer), cls}, credit, sends));
    return sends;
  }
  // (tensor, slice) of what is picked, in order.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> order(ClassId cls) {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> all;
    for (const Send& s : pick(cls)) all.emplace_back(s.header.tensor.value, s.header.slice);
    return all;
  }
  std::vector<Complete> completed_;

 private:
  Plan plan_;
  std::unique_ptr<Engine> engine_;
  ActionRing actions_{16};
  std::int64_t now_ = 0;
};

inline FrameHeader header(FrameType type, std::uint32_t tensor, std::uint64_t sequence, std::uint32_t slice = 0,
                          std::uint32_t grant = 0) {
  return {.type = type,
          .job = kJob,
          .epoch = kEpoch,
          .grant = grant,
          .tensor = TensorId(tensor),
          .sequence = Sequence(sequence),
          .slice = slice};
}

inline FrameHeader data(std::uint32_t tensor, std::uint32_t slice, std::uint32_t grant, std::uint64_t offset,
                        std::uint32_t bytes) {
  FrameHeader h = header(FrameType::kData, tensor, 1, slice, grant);
  h.offset = offset;
  h.payload_bytes = bytes;
  return h;
}

inline FrameHeader eager(std::uint32_t tensor, std::uint32_t slice, std::uint32_t slot, std::uint32_t bytes,
                         std::uint32_t aux, std::uint64_t sequence = 1) {
  FrameHeader h = header(FrameType::kData, tensor, sequence, slice, slot + 1);
  h.flags = protocol::kFlagEager;
  h.payload_bytes = bytes;
  h.aux = aux;
  return h;
}

inline constexpr auto kServer = Pattern::kParameterServer;

inline EngineConfig no_credit() {
  EngineConfig config;
  config.eager_credits = 0;
  return config;
}

// Tensor 0 belongs to host 0, tensor 1 to host 1 (of two); 64 elements in slices of 32.
inline Plan two_tensors() {
  Plan plan;
  add(&plan, allreduce(kServer, Dtype::kFloat32, 64, 32));
  add(&plan, allreduce(kServer, Dtype::kFloat32, 64, 32));
  return plan;
}

}  // namespace tensorlane::engine::testing
