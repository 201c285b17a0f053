// One rail of a job on one host: its engine, its flows, and what goes through them (law 12).
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/ledger.h"
#include "common/base/units.h"
#include "daemon/engine/engine.h"
#include "daemon/engine_log/recorded_engine.h"
#include "daemon/host/context.h"
#include "daemon/host/job_block.h"
#include "daemon/host/prepared.h"
#include "daemon/host/rails.h"
#include "daemon/ports/job.h"

namespace tensorlane::host {

// What contributions land in: memory, and its place in the host's region table.
struct Staging {
  std::shared_ptr<ports::Scratch> memory;
  Descriptor region;
};

class JobRail {
 public:
  // The set of rails that it is of. Calls come from inside the calls below.
  class Owner {
   public:
    virtual ~Owner() = default;
    // This rail's part of an operation is over.
    virtual void rail_completed(const engine::Complete& complete, Time now) = 0;
    virtual void rail_placed(const engine::PartInPlace& part, Time now) = 0;
    // All hosts have offered these operations (engine::Offer).
    virtual void rail_agreed(const engine::Agreed& agreed, Time now) = 0;
    // Some messages may be over.
    virtual void rail_messages_moved(Time now) = 0;
    // The peer is asked to make the flows to this host.
    virtual void rail_wants_flows(HostIndex peer) = 0;
    // A peer broke the protocol, or memory cannot be registered.
    virtual void rail_failed(const Status& cause) = 0;
  };

  // `spec`, `metrics`, `owner` and `desk` outlive it. The job has more than one host, and the host has this rail.
  // `desk`: of the job's messages, which go by this rail; null: they do not.
  JobRail(RailIndex rail, const ports::JobSpec& spec, const Context& context, ports::JobMetrics& metrics, Owner& owner,
          Staging staging, std::unique_ptr<engine_log::Observer> observer, MessageDesk* desk);
  ~JobRail();
  JobRail(const JobRail&) = delete;
  JobRail& operator=(const JobRail&) = delete;

  // ---- flows ----
  // The job is known here from now on: peers may make flows to it.
  void open();
  // Begins to make those to at most so many of the engine's neighbours that have none yet, or says why it cannot. All
  // of one neighbour open together, and stay until close(). True when none is left without.
  Result<bool> open_flows(std::size_t most, Time now);
  // Makes the flows to this host, if there are none; or asks for them, where it is the peer who makes them. They stay
  // until close(). Errors: kResourceExhausted, those of Transport::connect().
  Status want(HostIndex peer, Time now);
  // The peer has asked for them. Where it makes them itself, nothing happens.
  Status open_flows_to(HostIndex peer, Time now) { return dials(peer) ? want(peer, now) : Status(); }
  // Opens flows for it where that needs some.
  void post(const MessagePost& post, Time now);
  // A host that was to open its flows to this host, and has not in time; none: no such.
  std::optional<Status> overdue(Time now) const;
  // Those to all neighbours are up, or have been.
  bool connected() const { return connected_ == opened_; }
  // To how many hosts flows are up, or have been.
  std::size_t neighbours() const { return connected_; }
  // Nothing of it is open: once close() has been called, no buffer is touched any more.
  bool closed() const { return flows_open_ == 0; }
  void close();
  // A flow is up, of which `stats` says over what it goes. Returns where its frames go until flow_down().
  ports::FrameSink& flow_up(const ports::FlowKey& key, ports::Flow& flow, const ports::FlowStats& stats, Time now);
  // Tells those who look at the host over what a flow goes, which is up.
  void report_flow(const ports::FlowKey& key, const ports::FlowStats& stats);
  RailsOwner::Lost flow_down(const ports::FlowKey& key);
  // The classes of the flows to the host that are not up: "class 1", "classes 0, 1 and control".
  std::string classes_down(HostIndex host) const;
  // Gives its region back: nothing is called after it.
  void retire();
  // Memory that goes between hosts.
  void map(std::span<std::byte> bytes);
  // Everything is closed: what the flows had goes back.
  void drained() {
    transport().unmap(job());
    flows_.release();
  }
  void unmap(std::span<std::byte> bytes) { transport().unmap(job(), bytes); }

  // ---- the engine ----
  Status extend_plan(const protocol::Plan& plan, protocol::TensorRange added) {
    return engine_.extend_plan(plan, added);
  }
  Status vacate(protocol::TensorRange range) { return engine_.vacate(range); }
  void set_priority(TensorId tensor, float urgency, ClassId cls) { engine_.set_priority(tensor, urgency, cls); }
  void feed(const engine::Event& event, Time now);
  const engine::Engine& engine() const { return engine_.engine(); }

  // ---- the loop: as RailSet says of the same names ----
  std::optional<ClassId> next_work() const { return engine_.next_work(); }
  // Whether send() would give out something now, for a flow that takes it.
  bool has_sends(ClassId cls, Time now) const;
  bool has_sends(engine::Flow flow, Time now) const;
  // Fills `block` with the engine's next one.
  void choose_block(Time now, JobBlock& block);
  void block_done(const JobBlock& block, Time now);
  struct Sent {
    std::size_t operations = 0;
    Bytes bytes;
    std::uint64_t cost = 0;  // bytes, where an operation counts for kLeastCost at least
    bool more = false;  // what is next is larger than the credit that is left; else nothing is left, or flows are full
  };
  // The host's time that a small operation takes, as bytes: jobs share time as they share bytes.
  static constexpr std::uint64_t kLeastCost = 4096;
  Sent send(ClassId cls, Bytes credit, std::uint64_t budget, Time now);
  // What is left of this job's turn in a class: the host's account.
  std::uint64_t& deficit(ClassId cls) { return deficit_[ports::metrics_slot(cls)]; }
  void publish_counts();
  // Looks at how far the flows of a class have come: one that has not moved for half a second stands still, and gets
  // nothing until it moves again. The bytes of those that stand still; they are in Transport::in_flight(). Call it a
  // few times in half a second while somebody waits for the class's window, or something stands. job_standing.cc
  Bytes look_for_standing(ClassId cls, Time now);
  // Appends how far each flow has come.
  void add_progress(Time now, std::vector<ports::FlowState>* flows) const;
  // Writes the engine's log as far as it is, if there is one.
  void flush_log() { engine_.flush(); }

 private:
  JobId job() const { return spec_.credentials.job; }
  ports::Transport& transport() const { return *context_.transports[rail_.value]; }
  // Of two hosts the one with the lower index connects (ports/transport.h).
  bool dials(HostIndex peer) const { return spec_.credentials.self < peer; }
  // Data classes, and control.
  std::size_t flows_to_peer() const { return (context_.config->single_queue ? 1u : context_.config->classes) + 1u; }
  ClassId flow_class(std::size_t flow) const {
    return flow + 1 == flows_to_peer() ? kControlClass : ClassId(static_cast<std::uint8_t>(flow));
  }
  Duration patience() const;
  struct Peer;
  class RailFlow;
  Peer& know(HostIndex peer);
  // Null: it is not up.
  ports::Flow* find_flow(HostIndex peer, ClassId cls) const;
  ports::FlowProgress progress(HostIndex peer, ClassId cls) const;
  Result<std::span<std::byte>> landing(HostIndex peer, const protocol::FrameHeader& header);
  void frame_arrived(HostIndex peer, ClassId cls, const protocol::FrameHeader& header, Time now);
  void look_if_connected(HostIndex peer, Time now);
  Status make_flows(HostIndex peer, Time now);
  Status charge_flows(Peer& peer);
  void protocol_error(HostIndex peer, const char* reason, const protocol::FrameHeader& header);
  // The next thing of a class, of the engine or of the desk.
  struct Next {
    HostIndex peer;
    bool message = false;
  };
  // `skipped`: whether to leave out operations, and messages.
  std::optional<Next> next_send(ClassId cls, const std::array<bool, 2>& skipped, Time now);
  std::size_t pick(const Next& next, ClassId cls, Bytes credit, engine::Send* send, Time now);
  std::span<std::byte> payload_of(const engine::Send& send, bool message);
  void sent(std::uint64_t token);
  void carry_out(const engine::Action& action, Time now);
  void count_sent(ClassId cls, const Sent& sent, std::uint64_t payload_bytes);
  void note_wait(const engine::Send& send, const Next& to, ClassId cls, Time now);
  void note_arrival(HostIndex peer, ClassId cls, const protocol::FrameHeader& header);
  ports::TraceSpan span_of(const protocol::FrameHeader& header, HostIndex peer, ClassId cls,
                           ports::TraceSpan::Phase phase, Time begin, Duration length) const;
  bool stands(HostIndex peer, ClassId cls) const;
  std::span<const std::span<std::byte>> granted(HostIndex peer, const protocol::FrameHeader& header);

  const RailIndex rail_;
  const ports::JobSpec& spec_;
  const Context& context_;
  ports::JobMetrics& metrics_;
  Owner& owner_;
  const engine::EngineConfig config_;
  Staging staging_;
  engine_log::RecordedEngine engine_;
  engine::ActionRing actions_;
  MessageDesk* const desk_;
  Time fed_;  // when the engine was told of something last
  // The flows to a host.
  struct Peer {
    bool known = false;                            // it is in known_
    bool wanted = false;                           // they have been dialed, or the host dials
    bool charged = false;                          // their descriptors
    bool neighbour = false;                        // the engine's: it is told when they are up
    bool connected = false;                        // all of them have been up at a time
    std::uint8_t up = 0;                           // how many are up
    Time since;                                    // it is wanted
    std::vector<std::unique_ptr<RailFlow>> flows;  // those, by metrics_slot(); empty: the host is not known
  };
  Ledger::Charge flows_;                    // descriptors of them
  std::vector<HostIndex> known_;            // peers that are wanted, or that have flows to this host
  std::vector<Peer> peers_;                 // by host
  std::size_t opened_ = 0, connected_ = 0;  // of the engine's neighbours
  std::size_t flows_open_ = 0;              // dialed or accepted, and not reported down
  // By metrics_slot(): to which peers an operation and a message went last, and which of the two it was.
  std::array<std::array<HostIndex, 2>, kMaxDataClasses + 1> last_peer_;
  std::array<bool, kMaxDataClasses + 1> last_message_{};
  static constexpr std::size_t kMaxPlaces = 64;           // pages behind one grant: a slice of 16 MiB
  std::array<std::span<std::byte>, kMaxPlaces> places_;   // of the frame that is being sent
  engine::EngineCounters published_;                      // as of the last publish_counts()
  std::array<std::uint64_t, kMaxDataClasses> demoted_{};  // of the job's metrics, what this rail has added
  std::array<std::uint64_t, kMaxDataClasses + 1> deficit_{};

  // What look_for_standing() saw of a flow, and since when it has seen no change.
  struct Look {
    std::uint64_t given = 0, outstanding = 0;
    Time since;
    bool stands = false;
  };
  std::array<std::vector<Look>, kMaxDataClasses> looks_;  // by class, then peer; empty before the first look
  std::array<bool, kMaxDataClasses> any_stands_{};
};

}  // namespace tensorlane::host
