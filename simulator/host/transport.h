// A simulated NIC as its host sees it: the transport port over a Network, under the virtual clock, for every job of the
// host. Frames are numbered,
// kept until the receiver has said that it has them, and sent again from its count when a connection was lost (law 7).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/ports/transport.h"
#include "daemon/transport/ledger/ledger.h"
#include "simulator/checkers/delivery.h"
#include "simulator/checkers/messages.h"
#include "simulator/clock/random.h"
#include "simulator/clock/trace.h"
#include "simulator/host/liar.h"
#include "simulator/network/network.h"

namespace tensorlane::simulator {

class SimTransport final : public ports::Transport, public NetworkSink {
 public:
  struct Context {
    const LaneConfig& lane;
    EventQueue& events;
    Network& network;  // of this rail
    Findings& findings;
    const Trace& trace;
    std::function<bool()> dead;    // the machine
    std::function<bool()> frozen;  // the daemon, while its kernel goes on
    std::function<void()> wake;    // poll() has work
    std::function<void(HostIndex, const Heartbeat&)> heartbeat;
  };
  // A job whose flows it carries.
  struct JobContext {
    const Scenario& scenario;
    DeliveryChecker& delivery;
    MessageChecker& messages;
    std::uint64_t* progress;                    // counts what moved the job on
    std::function<bool()> accused;              // the job has failed here because of a frame, or is over
    Liar* liar = nullptr;                       // of this host, if it lies
    std::vector<GivenGrant>* grants = nullptr;  // where somebody lies: of this rail
    // What the frame of `from` is of is not over here.
    std::function<bool(HostIndex from, const protocol::FrameHeader&)> holds;
    std::function<void(ClassId, std::uint64_t bytes)> message_goes;  // a frame of a message was given to it
  };
  SimTransport(HostIndex self, ports::FlowOwner& owner, Context context, Random random);
  // In the order of the jobs' numbers; before the run.
  void carry(JobContext job);
  // What the staging of the job's engine on this rail holds: landings are told to it. Outlives the flows.
  void watch(std::size_t job, StagingChecker* staging) { jobs_[job].staging = staging; }

  // These tensors have left the job's plan: nothing of them comes again.
  void forget(std::size_t job, protocol::TensorRange range);

  // ---- ports::Transport ----
  void add_job(const ports::JobCredentials& credentials) override;
  void remove_job(JobId job) override;
  Status connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                 Time deadline) override;
  void close(const ports::FlowKey& flow) override;
  Bytes in_flight(ClassId cls) override { return Bytes(in_flight_[level_of(cls)]); }
  std::size_t poll(Time now) override;
  int wake_fd() const override { return -1; }

  // ---- NetworkSink ----
  void on_packet(const Packet& packet) override;
  void on_arrived(const FramePtr& frame) override;
  void on_acknowledged(const FramePtr& frame) override;
  void on_heartbeat(HostIndex from, const Heartbeat& beat) override { context_.heartbeat(from, beat); }
  void on_reset(const Channel& channel) override;
  std::optional<ledger::Number> on_reconnect(const Channel& channel) override;
  void on_resumed(const Channel& channel, ledger::Number delivered) override;
  void on_acknowledged(const Channel& channel, ledger::Number delivered) override;

  bool writable(const Channel& channel) const;
  // Payloads of the job's operation that may still be read.
  std::uint32_t unfinished(std::size_t job, TensorId tensor) const { return jobs_[job].unfinished[tensor.value]; }
  // When the flow last came on, or has had nothing to do.
  Time moved(std::size_t job, HostIndex peer, ClassId cls) const {
    return jobs_[job].flows[index(peer, level_of(cls))].moved;
  }
  // What it was given of a class since begin_turn(), by its payload.
  std::uint64_t given(ClassId cls) const { return given_[level_of(cls)]; }
  void begin_turn() { given_.fill(0); }
  std::uint64_t resent() const { return resent_; }
  std::uint64_t replayed() const { return replayed_; }
  std::uint64_t lies() const { return lies_; }  // that it has sent

 private:
  // A frame of which the header has been read.
  struct Receiving {
    std::span<std::byte> place;
    FramePtr frame;
    std::uint64_t landed = 0;  // bytes
    bool stale = false;
    bool open = false;  // more of the frame is to come
  };
  // Both directions of a flow, across its connections.
  struct Flow {
    explicit Flow(std::size_t room);
    bool wanted = false;  // dialed, or known to the job that a peer dials
    bool up = false;
    bool over = false;     // it was given up: no connection takes it up again
    bool refused = false;  // closed by this host, for what the peer has sent
    ledger::SendLedger out;
    ledger::ReceiveLedger in;
    std::vector<FramePtr> kept;   // by slot of `out`; empty before the first
    std::uint64_t in_flight = 0;  // bytes of payload that the peer's kernel has not acknowledged
    std::optional<Time> lost;     // since when there is no connection
    Time moved;
    Receiving receiving;
  };
  // A flow that the host has heard of: what it sends by, and where its frames go.
  class Line final : public ports::Flow {
   public:
    Line(SimTransport& of, const Channel& channel) : of_(of), channel_(channel) {}
    bool writable() const override { return of_.writable(channel_); }
    void send(const ports::Outgoing& operation) override { of_.send(channel_, operation); }
    ports::FlowStats stats() const override;
    ports::FlowProgress progress() const override;
    ports::FrameSink* sink = nullptr;

   private:
    SimTransport& of_;
    const Channel channel_;
  };
  struct Notice {
    enum class Kind : std::uint8_t { kUp, kDown, kSent } kind;
    ports::FlowKey flow;
    std::uint64_t token = 0;
    Status cause = {};
  };

  struct Job {
    JobContext context;
    std::vector<Flow> flows;                   // by peer and level
    std::vector<std::unique_ptr<Line>> lines;  // likewise
    std::vector<std::uint32_t> unfinished;     // by tensor
    std::optional<ports::JobCredentials> credentials = {};
    StagingChecker* staging = nullptr;
    std::vector<std::pair<HostIndex, protocol::FrameHeader>> replays = {};  // granted frames that have landed
  };

  static std::size_t index(HostIndex peer, std::size_t level) { return peer.value * kLevels + level; }
  std::size_t number_of(JobId job) const;
  bool active(std::size_t job) const { return jobs_[job].credentials.has_value() && !context_.dead(); }
  Flow& flow(const Channel& channel) { return jobs_[channel.job].flows[index(channel.peer, channel.level)]; }
  const Flow& flow(const Channel& channel) const {
    return jobs_[channel.job].flows[index(channel.peer, channel.level)];
  }
  Channel channel_of(const ports::FlowKey& key) const { return {number_of(key.job), key.peer, level_of(key.cls)}; }
  static Channel channel_of(const Packet& packet) { return {packet.frame->job, packet.from, packet.level}; }
  static Channel channel_of(std::size_t job, std::size_t index) {
    return {job, HostIndex(static_cast<std::uint16_t>(index / kLevels)), index % kLevels};
  }
  ports::FlowKey key_of(const Channel& channel) const;
  // Null: the host has not heard of it, or has heard that it is down.
  ports::FrameSink* sink_of(const Channel& channel) const {
    const auto& line = jobs_[channel.job].lines[index(channel.peer, channel.level)];
    return line == nullptr ? nullptr : line->sink;
  }
  void send(const Channel& channel, const ports::Outgoing& operation);
  Flow new_flow() const { return Flow(context_.lane.flow_room); }
  // Barriers move numbers that mean nothing through a scratch place of the engine.
  bool is_of_barrier(std::size_t job, const protocol::FrameHeader& h) const {
    const auto& tensors = jobs_[job].context.scenario.plan.tensors;
    const bool known = !protocol::is_of_message(h) && h.tensor.value < tensors.size();
    return known && tensors[h.tensor.value].operation == Operation::kBarrier;
  }
  void note(Notice notice);
  void take_down(const ports::FlowKey& flow, const Receiving& receiving);
  void write_late(FramePtr frame, std::span<std::byte> place, std::uint64_t from, Duration within);
  std::size_t tell_notices();
  void receive_packet(const Packet& packet);
  struct Arrived {
    Packet packet;
    std::span<std::byte> place;  // of a frame that begins with it, where the NIC may write it by itself
  };
  void land(const Packet& packet, const Receiving& receiving);
  void frame_complete(const Packet& packet, const Receiving& receiving);
  void give(Flow& flow, const FramePtr& frame);
  void lie(std::size_t job, const Liar::Told& told);
  void refuse(const Channel& channel, const Status& cause);
  void forget_arrivals(const Channel& channel);
  void tell_delivered(std::size_t job);
  void take_told(const Channel& channel, ledger::Number delivered, bool resumes);
  void look_for_lost(std::size_t job, Time now);
  void sent(const Frame& frame);
  void replay(std::size_t job);

  HostIndex self_;
  ports::FlowOwner& owner_;
  Context context_;
  Random random_;
  std::vector<Job> jobs_;
  std::deque<Arrived> inbox_;
  std::deque<Notice> notices_;
  std::array<std::uint64_t, kLevels> in_flight_{}, given_{};  // bytes
  std::uint64_t replayed_ = 0, resent_ = 0, lies_ = 0;
};

}  // namespace tensorlane::simulator
