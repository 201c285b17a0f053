// One job on one host: its local ranks, and how an operation passes between them and the rails. It lives on one lane;
// its rails may be on others (rails.h).
//
// An operation goes through three phases on a host: every local rank submits; local work brings their buffers together;
// the engines move the leader's buffer between hosts, each rail its slices of it; once all of them are done, local work
// spreads the result; every local rank gets its completion. Where all ranks live on one host the engines have no part
// in it. A batch of the plan is such an operation, too: local work brings its members together in a buffer of the
// daemon's own, and spreads them again (job_batches.cc).
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/units.h"
#include "common/protocol/parts.h"
#include "daemon/engine/batching/batch_gate.h"
#include "daemon/engine/ordering/admission.h"
#include "daemon/engine/urgency/observed_order.h"
#include "daemon/host/job_block.h"
#include "daemon/host/local_work.h"
#include "daemon/host/members.h"
#include "daemon/host/rails.h"
#include "daemon/ports/job.h"

namespace tensorlane::host {

struct Context;

class Job final : public RailsOwner {
 public:
  // Of what was prepared; `metrics` are those of its lane.
  Job(JobStart& start, const Context& context, std::shared_ptr<ports::JobMetrics> metrics);
  ~Job() override;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  JobId id() const { return spec_.credentials.job; }
  Epoch epoch() const { return spec_.credentials.epoch; }
  std::uint32_t user() const { return spec_.owner.user; }
  bool closed() const { return state_ == State::kClosed; }
  // Once it is closed: true when nothing of it is in any table of the daemon. Then any thread may destroy it.
  bool retire();
  // The rails of all lanes are gone.
  bool can_retire() const { return gone_ == sets_.size(); }

  // ---- commands (from LanePort) ----
  // Its rails on a lane: those of every lane that has some, before connect(); first those that rail 0 is of.
  void join(std::size_t lane, Rails& rails) { sets_.push_back({.lane = lane, .rails = &rails}); }
  // It begins: for the timeline.
  void report_begin();
  // The rails of a lane that could not begin.
  void leave(std::size_t lane, const Status& cause, Time now);
  // `rails`: how many this host has for it. Its flows open as its plan comes to need them.
  void connect(std::size_t rails, Time now);
  void attach(Rank rank, std::shared_ptr<ports::ClientSession> session);
  // Takes over the next tensors of the growth. True when all are there, or the job cannot have them (it has failed).
  bool grow(PlanGrowth& growth, Time now);
  // Calls `then` once all rails have done what was asked of them until now, and the flows that the plan needs are up;
  // never, where the job fails or ends before.
  void when_settled(std::function<void()> then);
  // Lets go of the next tensors. True when all are gone, or the job has failed. job_plan.cc
  bool vacate(PlanShrinking& shrinking, Time now);
  void use_thresholds(std::vector<double> thresholds);
  void bind(Rank rank, TensorId tensor, const ports::BufferPlace& place);
  // job_lateness.cc
  void peer_awaits(TensorId tensor, Sequence sequence, Time since);
  // A peer wants to exchange messages with this host, and it is this one that makes the flows. job_messages.cc
  void open_flows_to(HostIndex peer, Time now);
  // A rank of any host.
  void rank_left(Rank rank) { left_.insert(rank); }
  // Of a job of one host; null: the job has more, or no messages.
  const engine::Messages* messages() const { return desk_ != nullptr ? &desk_->messages() : nullptr; }
  void abort(const Status& cause, Time now);
  void detach(Rank rank, Time now);

  // ---- RailsOwner ----
  void rails_settled(std::size_t lane, const Settled& settled, Time now) override;
  void rails_completed(const engine::Complete& complete, Time now) override;
  void rails_placed(const engine::PartInPlace& part, Time now) override;
  void rails_agreed(const engine::Agreed& agreed, Time now) override;
  void rails_message_done(const engine::MessageDone& done, Time now) override;
  void rails_want_flows(HostIndex peer) override;
  void rails_failed(const Status& cause) override { fail(cause); }
  void rails_lost(Lost lost, const Status& cause, Time now) override;
  void rails_closed(Time now) override;
  void rails_drained(Time now) override;
  void rails_gone() override { ++gone_; }
  void rails_await(std::size_t lane, const Awaited& awaited) override;
  void rails_missing(const Missing& missing, Time now) override;
  void rails_messages_wait(const MessagesWait& waiting, Time now) override;
  void rails_progress(std::size_t lane, const ports::LaneProgress& progress) override;

  // ---- the loop ----
  // Takes up to `most` entries of what the local ranks have submitted, unless some that it took before wait to begin.
  // Returns how many it took.
  std::size_t collect(std::size_t most);
  // Begins what was collected. Between the two the lane takes over its commands, and carries out all of this job's: the
  // client of a submission has been told that its tensor is registered, so the command that binds it is there by then.
  void submit_collected(Time now);
  // Whether what was collected is of tensors that are bound. Else the command that binds one may still be with other
  // threads.
  bool has_bound_collected() const;
  // The class of the most urgent block of local work that waits, if any.
  std::optional<ClassId> next_work() const;
  // Fills `block`, which is empty, with that block. It is under way until block_done().
  void choose_block(Time now, JobBlock& block);
  // It is done. Where the job is being closed, the last one closes it.
  void block_done(const JobBlock& block, Time now);
  // Reports ranks that keep others waiting, and connections that are lost. Call about every 100 ms.
  void report_late(Time now);
  // Tells the listener how far the flows have come, when that is due again. Call about every 100 ms. job_progress.cc
  void tell_progress(Time now);
  // Of each class the age of the oldest operation that every local rank has submitted and that is not complete, as of
  // the last tell_progress(), where it is more than what `ages` says.
  void raise_ages(std::array<Duration, kMaxDataClasses>* ages) const;
  // Sends and receives that are not over, and the age of the oldest; zero: there are none. job_messages.cc
  std::uint64_t messages_open() const { return messages_open_; }
  Duration oldest_message(Time now) const;

  const std::vector<std::shared_ptr<ports::ClientSession>>& sessions() const { return sessions_; }
  // Between hosts; none in a job of one host.
  std::uint64_t operations_pending() const { return on_rails_; }

 private:
  enum class State { kNew, kRunning, kClosing, kClosed };

  // The local side of a planned tensor. Of a batch: `buffers` and what is told of single ranks is its members'.
  struct LocalTensor {
    std::shared_ptr<const Members> members;  // whose it is
    std::vector<bool> bound;                 // by local index
    std::vector<Buffer> buffers;             // by place among the members; empty for a barrier
    std::vector<std::uint64_t> sequence;     // by local index: last submitted; counts from the registration on
    std::vector<Time> submitted;             // by local index: when `sequence` was
    std::vector<std::uint64_t> early;        // by local index: of the operation that was last waited for before that
    engine::Iteration iteration;             // of the operation that all have submitted last
    std::uint64_t completed = 0;             // last sequence that all local ranks were told of
    std::uint64_t base = 0;                  // operations of tensors that were here before: between hosts counts go on
    std::uint32_t arrived = 0;               // members here that have submitted completed + 1
    float urgency = 0;                       // these two: as the plan came
    ClassId cls;
    OwnMemory own;
    LocalTask task;
    std::size_t sets_left = 0;  // whose rails have not done their part of the operation that runs
    bool rails_ok = true;
    // Of the operation that runs, if it was begun in parts: what exists of it here, by part, and of the result how many
    // elements of each part are in place (job_parts.cc).
    bool in_parts = false, parts_over = false;
    bool awaits_rest = false;  // all else is done
    std::uint64_t parts = 0;
    using Placed = std::array<std::uint32_t, protocol::kMaxParts>;
    std::unique_ptr<Placed> placed;  // of tensors that go in parts
    bool boosted = false;            // a client waits for the operation that runs
    std::optional<Time> waited;      // since when a client waits for it, from its side of the next operation on
    Time first_peer, last_peer;      // as engine::Complete
    Time first_arrival, ready;
    Duration reported{};                  // lateness already reported
    std::uint32_t pending = kNotPending;  // where it stands in pending_

    bool all_arrived() const { return arrived == members->here(); }
    // Between hosts, of the operation that is not complete yet.
    Sequence next_sequence() const { return Sequence(base + completed + 1); }
  };
  static constexpr std::uint32_t kNotPending = 0xffffffff;

  // The rails on a lane, and what they said last.
  struct Set {
    std::size_t lane = 0;
    Rails* rails = nullptr;
    bool has_begun = false;
    Settled settled{};
    Awaited awaited{};
    ports::LaneProgress progress{};
    Time told{};  // the progress that the listener has heard of
  };
  // What waits until all rails have settled.
  struct Waiting {
    std::uint64_t number = 0;
    std::function<void()> then;
  };

  // A host that has not said that its ranks have submitted an operation: when it was told so, of which, and of which
  // it is to be told next.
  struct Missed {
    Time told;
    TensorId last;
    std::optional<TensorId> next;
  };
  // A peer has said that it waits for an operation.
  struct Asked {
    Sequence sequence;  // between hosts
    Time since;
  };

  void look_at_ages(Time now);
  void begin_pending(LocalTensor& t, TensorId tensor);
  void end_pending(LocalTensor& t);
  std::size_t look_at_lateness(TensorId operation, Time now);
  void report_missing(Time now);
  void report_if_late(TensorId tensor, Time now);
  void set_priority(const protocol::PlanTensor& tensor);
  void tell_priorities();
  void classify(protocol::TensorRange range);
  void begin(const Review& review);
  bool go_on(Review& review);
  void waited(std::uint32_t local, TensorId tensor, std::uint64_t sequence);
  void take_observed_order();
  void note_iteration(TensorId tensor, Time now);
  std::uint32_t local_index(Rank rank) const;
  const Members& members_of(const protocol::PlanTensor& tensor) const { return *tensors_[tensor.id.value].members; }
  engine::Admission::Gate gate_of(const protocol::PlanTensor& tensor) const;
  std::uint32_t leader_of(const protocol::PlanTensor& tensor) const;
  std::optional<protocol::HostExchange> exchange_of(const protocol::PlanTensor& tensor) const;
  std::uint64_t buffer_bytes(const protocol::PlanTensor& tensor, std::uint32_t place) const;
  void submit(std::uint32_t local, const protocol::SubmissionEntry& entry, Time now);
  bool take_over(PlanGrowth& growth, std::size_t count);
  bool let_go(PlanShrinking& shrinking, std::uint32_t count);
  bool give_up(Time now);
  Status check_unused(protocol::TensorRange range) const;
  void give_back_vacant_tables();
  const char* submit_message(std::uint32_t local, const protocol::SubmissionEntry& entry, Time now);
  bool goes_abroad(const engine::Message& message) const;
  void tell_messages(Time now);
  void open_message(std::uint64_t request, const OpenMessage& message);
  void close_message(std::uint64_t request);
  bool has_gone(const OpenMessage& message) const;
  void report_waiting_messages(Time now);
  void submit_member(std::uint32_t local, const protocol::PlanTensor& member, Time now);
  Moved add_block(LocalTensor& t, const protocol::PlanTensor& tensor, ports::Block& block);
  void complete_members(const LocalTensor& t, TensorId batch, bool ok, Time now);
  void arrived(std::uint32_t local, LocalTensor& t, const protocol::PlanTensor& planned, Time now);
  bool goes_in_parts(const protocol::PlanTensor& tensor) const;
  const char* submit_parts(std::uint32_t local, const protocol::SubmissionEntry& entry, Time now);
  void submit_rest(LocalTensor& t, const protocol::PlanTensor& tensor, Time now);
  void tell_parts(const LocalTensor& t, const protocol::PlanTensor& tensor, std::uint64_t parts, Time now);
  LocalStep first_step(const protocol::PlanTensor& tensor) const;
  bool spreads(const protocol::PlanTensor& tensor) const;
  void raise(std::uint32_t local, LocalTensor& t, const protocol::PlanTensor& tensor, std::uint64_t sequence, Time now);
  void all_arrived(LocalTensor& local, const protocol::PlanTensor& tensor, Time now);
  void start(LocalTensor& local, const protocol::PlanTensor& tensor, Time now);
  void start_local(LocalTensor& local, const protocol::PlanTensor& tensor, LocalStep step, Time now);
  void to_network(LocalTensor& local, const protocol::PlanTensor& tensor, Time now);
  void begin_admitted(Time now);
  void to_rails(LocalTensor& local, const protocol::PlanTensor& tensor, Time now);
  void finish_step(LocalTensor& local, const protocol::PlanTensor& tensor, Time now);
  void complete(LocalTensor& local, const protocol::PlanTensor& tensor, bool ok, Time now);
  void note_ranks(const LocalTensor& local, Time now);
  void read_clients();
  void note_complete(const LocalTensor& local, const protocol::PlanTensor& tensor, bool ok, Time now);
  void report_lost(Time now);
  void look_whose_turn_it_is(Time now);
  bool awaited(const protocol::PlanTensor& tensor, Time* since) const;
  void fail(const Status& cause);
  void log(const std::string& line) const;
  Set& set_of(std::size_t lane);
  bool between_hosts() const { return !sets_.empty(); }
  void settle(Time now);
  bool settled() const;
  void look_if_settled();
  void report_connected();
  void report_end();
  void close(Time now);
  void drain_if_closed(Time now);
  void look_if_drained();

  // Of the detection time: what a lost connection waits for its cause, and a message of a rank that has left for what
  // is still on its way.
  static constexpr std::int64_t kSymptomShare = 5;

  ports::JobSpec spec_;
  const Context& context_;
  State state_ = State::kNew;
  std::vector<Rank> local_ranks_;
  std::shared_ptr<const Members> everyone_;
  std::vector<std::shared_ptr<ports::ClientSession>>
      sessions_;  // by local index; empty until attached, kept until closed
  std::vector<bool> detached_;
  std::vector<std::pair<std::uint32_t, protocol::SubmissionEntry>> collected_;  // local index and entry
  std::vector<Set> sets_;                                                       // none in a job of one host
  std::uint64_t settling_ = 0;                                                  // asked of them: settle()
  std::vector<Waiting> waiting_;                                                // until they have
  bool reported_ = false;                                                       // its begin, to the timeline
  bool connected_ = false;                                                      // told the listener
  std::size_t neighbours_ = 0;                                                  // that the log has been told of
  std::uint64_t on_rails_ = 0;                                                  // operations that they have
  std::unique_ptr<MessageDesk> desk_;                                           // of a job of one host
  std::vector<OpenMessage> messages_;                                           // by MessageDesk::request_of()
  std::uint64_t messages_abroad_ = 0;                                           // that are open, with other hosts
  std::uint64_t messages_open_ = 0;                                             // of all
  std::uint32_t oldest_message_ = OpenMessage::kNone, newest_message_ = OpenMessage::kNone;  // of these
  std::set<Rank> left_;                                                                      // ranks, of all hosts
  std::size_t closed_ = 0, drained_ = 0, gone_ = 0;                                          // sets
  bool draining_ = false;
  protocol::Plan plan_;                            // its classes are those in use here
  std::vector<Rails::Priority> priorities_;        // that have changed: tell_priorities()
  std::optional<std::vector<double>> thresholds_;  // none: the plan's
  std::optional<engine::ObservedOrder> observed_;  // while it learns
  std::optional<TensorId> largest_;                // of what is summed: an iteration begins whenever it is submitted
  std::optional<Time> largest_since_;
  std::vector<LocalTensor> tensors_;
  std::map<std::uint32_t, Taken> taken_;         // by registrations, which are known by their first tensor
  Ledger::Charge regions_;                       // of the rails
  Ledger::Charge message_tables_;                // of messages_, and of the desk
  Ledger::Charge vacant_tables_;                 // they do not shrink: what registrations left is there for others
  std::size_t vacant_places_ = 0;                // of plan_
  std::vector<TensorId> pending_;                // some rank here has submitted (a member of) it
  std::size_t late_scan_ = 0;                    // where in them report_late() goes on
  std::size_t missing_scan_ = 0;                 // the same of report_missing()
  std::size_t message_scan_ = 0;                 // and in messages_
  std::vector<std::uint64_t> waiting_messages_;  // what report_waiting_messages() asks for: its memory serves again
  std::vector<TensorId> late_;                   // what it asks for; and whom the rails name: their memory serves again
  std::vector<HostIndex> missing_;
  std::vector<Missed> missed_;       // by host
  TensorId late_asked_;              // the last of asked_ that report_late() looked at
  std::map<TensorId, Asked> asked_;  // by operation
  std::uint32_t first_rank_ = 0;     // whose submissions are taken first
  engine::BatchGate gate_;
  // Between hosts, where the plan has an order. Of a job of one host every operation starts when it is ready.
  engine::Admission admission_;
  bool admitting_ = false;
  std::uint64_t offered_ = 0;                      // operations, and not agreed on
  std::optional<std::pair<TensorId, Time>> turn_;  // operations are held for this tensor, since
  engine::Iterations iterations_;
  LocalQueue local_queue_;
  std::size_t under_way_ = 0;  // blocks of local work
  bool failed_ = false;        // told the listener
  std::optional<Status> abort_cause_;
  std::optional<std::pair<Status, Time>> lost_;      // a connection that went, and when
  std::optional<std::pair<Status, Time>> departed_;  // a peer went, perhaps in peace
  std::shared_ptr<ports::JobMetrics> metrics_;
  Time next_progress_;                            // when tell_progress() is due
  ports::LaneProgress progress_;                  // its memory serves again
  std::array<Duration, kMaxDataClasses> ages_{};  // see raise_ages()
};

}  // namespace tensorlane::host
