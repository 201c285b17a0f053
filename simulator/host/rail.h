// One rail of one host's daemon: the real engine, hosted as daemon/lane hosts it, by a virtual clock, a simulated
// network and real memory. The rails of a host poll each at a time of its own, so they run further apart than one
// thread could let them.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine_log/recorded_engine.h"
#include "daemon/transport/ledger/ledger.h"
#include "simulator/checkers/delivery.h"
#include "simulator/checkers/order.h"
#include "simulator/clock/trace.h"
#include "simulator/host/memory.h"
#include "simulator/host/reducer.h"
#include "simulator/network/network.h"

namespace tensorlane::simulator {

// What the rails of a host share of its fate. The lane's to change.
struct HostState {
  enum class Phase : std::uint8_t { kRunning, kDraining, kClosed } phase = Phase::kRunning;
  bool frozen = false, dead = false;
  bool running() const { return phase == Phase::kRunning; }
};

class Rail final : public NetworkSink {
 public:
  struct Around {
    const Scenario& scenario;
    EventQueue& events;
    Network& network;  // of this rail
    SimMemory& memory;
    DeliveryChecker& delivery;
    Findings& findings;
    const Trace& trace;
    std::uint64_t* progress;  // counts what moved the job on
    const HostState& host;
    std::function<void(const engine::Complete&)> complete;
    std::function<void(const engine::Agreed&)> agreed;
    std::function<bool(TensorId, Sequence)> holds;  // Client::holds()
    std::function<void(HostIndex, RailIndex, const Heartbeat&)> heartbeat;
  };
  Rail(HostIndex self, RailIndex rail, Around around, Random random);

  // Control: the plan has `tensors` tensors now; `then` when the engine has it (a frozen host's: when it thaws).
  void grow_plan(std::size_t tensors, std::function<void()> then);
  // An event for the engine; it is fed in a later poll.
  void submit(const engine::Event& event);
  void wake();

  // NetworkSink.
  void on_packet(const Packet& packet) override;
  void on_arrived(const FramePtr& frame) override;
  void on_acknowledged(const FramePtr& frame) override;
  void on_heartbeat(HostIndex from, const Heartbeat& beat) override;
  void on_reset(HostIndex peer, std::size_t level) override;
  std::optional<ledger::Number> on_reconnect(HostIndex peer, std::size_t level) override;
  void on_resumed(HostIndex peer, std::size_t level, ledger::Number delivered) override;
  void on_told(HostIndex peer, std::size_t level, ledger::Number delivered) override;

  // The job is over: the flows are closed, and the engine is told. Operations that it was not told of fail.
  void abort();
  // Nothing of the transport touches a buffer any more; the host's phase is still kDraining.
  void drain();

  // Some flow has been without a connection for longer than the detection time.
  bool has_lost_flow() const;

  // What must hold when everything is over and quiet. Checkers "bounds", "stale".
  void check_quiet() const;
  std::string describe() const;
  const engine::Engine& engine() const { return engine_->engine(); }
  // Closes the log of this rail's engine, if the scenario records, and replays it. Checker "digest". Nothing comes
  // after it.
  void check_log();
  std::uint64_t resent() const { return resent_; }

 private:
  // A frame of which the header has been read.
  struct Receiving {
    Descriptor place;
    bool stale = false;
    bool open = false;  // more of the frame is to come
  };
  // Both directions of a flow to one peer, across its connections (daemon/transport/ledger).
  struct FlowState {
    explicit FlowState(std::size_t room);
    ledger::SendLedger out;
    ledger::ReceiveLedger in;
    std::vector<FramePtr> kept;   // by slot of `out`
    std::uint64_t in_flight = 0;  // bytes of payload that the peer's kernel has not acknowledged
    std::optional<Time> lost;     // since when there is no connection
    Receiving receiving;
  };
  struct Block {
    engine::Work work;
    bool computed = false;
  };

  void poll();
  void apply_growths();
  void offer_changed_plan(std::size_t tensors);
  void reclassify();
  void receive();
  void receive_packet(const Packet& packet);
  void land(const Packet& packet, Receiving& receiving);
  void frame_complete(const Packet& packet, const Receiving& receiving);
  void step_all();
  void step(std::span<const engine::Event> events);
  void carry_out(const engine::Action& action);
  void start_work();
  void finish_work();
  void compute(const engine::Work& work);
  void send_all();
  void send_level(std::size_t level);
  void check_pick(engine::Flow flow, Bytes room, std::size_t picked, std::span<const engine::Send> sends);
  void send(engine::Flow flow, const engine::Send& send);
  bool flow_has_room(engine::Flow flow) const;
  void give(FlowState& flow, const FramePtr& frame);
  void forget_arrivals(HostIndex peer, std::size_t level);
  void tell_delivered();
  void take_told(FlowState& flow, ledger::Number delivered, bool resumes);
  Bytes credit(std::size_t level) const;
  void send_done(const Frame& frame);
  void check_bounds();
  void remember_for_replay(const Frame& frame);
  void replay();
  // Barriers move numbers that mean nothing through a scratch place of the engine.
  bool is_barrier(TensorId tensor) const {
    return around_.scenario.plan.tensors[tensor.value].operation == Operation::kBarrier;
  }
  std::size_t flow_index(HostIndex peer, std::size_t level) const { return peer.value * kLevels + level; }

  HostIndex self_;
  RailIndex rail_;
  Around around_;
  Random random_;
  ReferenceReducer reducer_;
  std::string log_;  // of the engine, where the scenario records
  std::unique_ptr<engine_log::RecordedEngine> engine_;
  engine::EngineConfig config_;
  Descriptor staging_;
  std::unique_ptr<StagingChecker> staging_checker_;
  LimitChecker limits_;
  OrderChecker order_;
  engine::ActionRing actions_;

  std::deque<Packet> inbox_;
  std::vector<engine::Event> pending_;                                 // arrived, not fed yet
  std::deque<std::pair<std::size_t, std::function<void()>>> growths_;  // told, not applied yet
  std::size_t planned_ = 0;                                            // tensors that the engine has
  std::vector<Block> working_;
  std::vector<FlowState> flows_;                    // by flow
  std::vector<std::uint32_t> sends_unfinished_;     // by tensor: SendDone is still to come
  std::array<std::uint64_t, kLevels> in_flight_{};  // bytes
  std::array<HostIndex, kLevels> last_peer_;
  std::vector<protocol::FrameHeader> replays_;  // granted frames that have landed, with their sender in `replay_from_`
  std::vector<HostIndex> replay_from_;
  std::uint64_t replayed_ = 0, resent_ = 0;
  bool scheduled_ = false;
};

}  // namespace tensorlane::simulator
