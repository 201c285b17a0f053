// One job on one host: its local ranks, its rails, and how an operation passes between them.
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
#include <string>
#include <vector>

#include "common/base/units.h"
#include "daemon/engine/batching/batch_gate.h"
#include "daemon/engine/ordering/admission.h"
#include "daemon/engine/urgency/observed_order.h"
#include "daemon/host/job_rail.h"
#include "daemon/host/local_work.h"
#include "daemon/ports/job.h"

namespace tensorlane::host {

class Job final : private JobRail::Owner {
 public:
  // Of what was prepared. Errors: that of the preparation; kResourceExhausted, when the table of tensors is full or
  // there is no memory for tables. On an error its memory stays with `start`, which gives it back elsewhere.
  static Result<std::unique_ptr<Job>> begin(JobStart& start, const Context& context);
  ~Job() override;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  JobId id() const { return spec_.credentials.job; }
  Epoch epoch() const { return spec_.credentials.epoch; }
  std::uint32_t user() const { return spec_.owner.user; }
  bool closed() const { return state_ == State::kClosed; }
  // Once it is closed: gives back up to `most` of its regions. True when all are given back, and nothing of the lane is
  // used any more: then any thread may destroy it.
  bool retire(std::size_t most);

  // ---- commands (from LanePort) ----
  // Its flows open as its plan comes to need them.
  void connect();
  void attach(Rank rank, std::shared_ptr<ports::ClientSession> session);
  // Takes over the next tensors of the growth. True when all are there, or the job cannot have them (it has failed).
  bool grow(PlanGrowth& growth, Time now);
  // Calls `then` once the flows that the plan needs are up; never, where the job fails or ends before.
  void when_connected(std::function<void()> then);
  // Lets go of the next tensors. True when all are gone, or the job has failed. job_plan.cc
  bool vacate(PlanShrinking& shrinking, Time now);
  void use_thresholds(std::vector<double> thresholds);
  void bind(Rank rank, TensorId tensor, const ports::BufferPlace& place);
  // job_lateness.cc
  void peer_awaits(TensorId tensor, Sequence sequence, Time since);
  void abort(const Status& cause, Time now);
  void detach(Rank rank, Time now);

  // ---- from a rail's transport ----
  Result<std::span<std::byte>> landing(RailIndex rail, const ports::FlowKey& flow,
                                       const protocol::FrameHeader& header) {
    return rails_[rail.value]->landing(flow, header);
  }
  void frame_arrived(RailIndex rail, const ports::FlowKey& flow, const protocol::FrameHeader& header, Time now) {
    rails_[rail.value]->frame_arrived(flow, header, now);
  }
  void sent(RailIndex rail, std::uint64_t token, Time now) {
    rails_[rail.value]->feed({.kind = engine::Event::Kind::kSendDone, .token = token}, now);
  }
  void flow_up(RailIndex rail, const ports::FlowKey& flow, Time now);
  void flow_down(RailIndex rail, const ports::FlowKey& flow, const Status& cause, Time now);

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
  // The class of the most urgent block of arithmetic or copying that waits, if any.
  std::optional<ClassId> next_work() const;
  // Fills `block`, which is empty, with that block. It is under way until block_done().
  void choose_block(Time now, JobBlock& block);
  // It is done. Where the job is being closed, the last one closes it.
  void block_done(const JobBlock& block, Time now);
  // Gives a rail's transport operations of one class, of `credit` bytes at most (control frames count with their
  // headers, data with its payload), and of a cost of `budget` at most.
  JobRail::Sent send(RailIndex rail, ClassId cls, Bytes credit, std::uint64_t budget, Time now);
  bool has_sends(RailIndex rail, ClassId cls, Time now) const {
    return rail.value < rails_.size() && rails_[rail.value]->engine().has_sends(now, cls);
  }
  // When something may go in a more urgent class than now (engine.h).
  std::optional<Time> promotion(Time now) const;
  // What is left of this job's turn in a class: the lane's account. Only of a rail that the job has.
  std::uint64_t& deficit(RailIndex rail, ClassId cls) { return rails_[rail.value]->deficit(cls); }
  // As deficit(), of arithmetic and copying: bytes.
  std::int64_t& work_account() { return work_account_; }
  bool uses(RailIndex rail) const { return rail.value < rails_.size(); }
  // As JobRail says of it; nothing where the job has no part in the rail.
  Bytes look_for_standing(RailIndex rail, ClassId cls, Time now) {
    return uses(rail) ? rails_[rail.value]->look_for_standing(cls, now) : Bytes();
  }
  // Reports ranks that keep others waiting, and connections that are lost. Call about every 100 ms.
  void report_late(Time now);
  // Adds what the engines have counted since the last call to the lane's metrics. Call about every 100 ms.
  void publish_counts();
  // Tells the listener how far the flows have come, when that is due again. Call about every 100 ms. job_progress.cc
  void tell_progress(Time now);
  // Of each class the age of the oldest operation that every local rank has submitted and that is not complete, as of
  // the last tell_progress(), where it is more than what `ages` says.
  void raise_ages(std::array<Duration, kMaxDataClasses>* ages) const;
  // Writes the engines' logs as far as they are, where there are any. Call about every 100 ms.
  void flush_logs();

  const std::vector<std::shared_ptr<ports::ClientSession>>& sessions() const { return sessions_; }
  // Over all rails; none in a job of one host.
  std::uint64_t operations_pending() const;
  std::uint64_t staging_bytes() const;

 private:
  // `staging`: of each of its rails on this host.
  Job(JobStart& start, const std::vector<Staging>& staging, const Context& context);

  enum class State { kNew, kRunning, kClosing, kClosed };

  // The local side of a planned tensor. Of a batch: `buffers` and what is told of single ranks is its members'.
  struct LocalTensor {
    std::vector<bool> bound;              // by local index
    std::vector<Buffer> buffers;          // by local index; empty for a barrier
    std::vector<std::uint64_t> sequence;  // by local index: last submitted; counts from the registration on
    engine::Iteration iteration;          // of the operation that all have submitted last
    std::uint64_t completed = 0;          // last sequence that all local ranks were told of
    std::uint64_t base = 0;               // operations of tensors that were here before: between hosts counts go on
    std::uint32_t arrived = 0;            // local ranks that have submitted completed + 1
    Descriptor buffer;                    // the leader's, for the engines
    float urgency = 0;                    // these two: as the plan came
    ClassId cls;
    Buffer storage;  // of a batch: its buffer
    Buffer wide_storage;
    Descriptor wide;
    LocalTask task;
    std::size_t rails_left = 0;  // that have not done their part of the operation that runs
    bool rails_ok = true;
    bool boosted = false;        // a client waits for the operation that runs
    std::optional<Time> waited;  // since when a client waits for it, from its side of the next operation on
    Time first_peer, last_peer;  // as engine::Complete
    Time first_arrival, ready;
    Duration reported{};                  // lateness already reported
    std::uint32_t pending = kNotPending;  // where it stands in pending_

    // Between hosts, of the operation that is not complete yet.
    Sequence next_sequence() const { return Sequence(base + completed + 1); }
  };
  static constexpr std::uint32_t kNotPending = 0xffffffff;

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
  std::size_t look_for_missing(TensorId tensor, Time now);
  void report_if_late(TensorId tensor, Time now);
  void set_priority(const protocol::PlanTensor& tensor);
  void classify(protocol::TensorRange range);
  void begin(const Review& review);
  bool go_on(Review& review);
  void waited(std::uint32_t local, TensorId tensor, std::uint64_t sequence);
  void take_observed_order();
  void note_iteration(TensorId tensor, Time now);
  std::uint32_t local_index(Rank rank) const;
  std::uint32_t leader_of(const protocol::PlanTensor& tensor) const;
  void submit(std::uint32_t local, const protocol::SubmissionEntry& entry, Time now);
  bool take_over(PlanGrowth& growth, std::size_t count);
  bool let_go(PlanShrinking& shrinking, std::uint32_t count);
  bool give_up(Time now);
  Status check_unused(protocol::TensorRange range) const;
  void give_back_vacant_tables();
  void forget_regions(LocalTensor& local);
  Descriptor add_region(std::span<std::byte> bytes);
  void submit_member(std::uint32_t local, const protocol::PlanTensor& member, Time now);
  Moved add_block(LocalTensor& t, const protocol::PlanTensor& tensor, ports::Block& block);
  void complete_members(const LocalTensor& t, TensorId batch, bool ok, Time now);
  void raise(std::uint32_t local, LocalTensor& t, const protocol::PlanTensor& tensor, std::uint64_t sequence, Time now);
  void all_arrived(LocalTensor& local, const protocol::PlanTensor& tensor, Time now);
  void start(LocalTensor& local, const protocol::PlanTensor& tensor, Time now);
  void start_local(LocalTensor& local, const protocol::PlanTensor& tensor, LocalStep step, Time now);
  void to_network(LocalTensor& local, const protocol::PlanTensor& tensor, Time now);
  void begin_admitted(Time now);
  void to_rails(LocalTensor& local, const protocol::PlanTensor& tensor, Time now);
  void feed_all(const engine::Event& event, Time now);
  void rail_completed(const engine::Complete& complete, Time now) override;
  void rail_agreed(const engine::Agreed& agreed, Time now) override;
  void rail_failed(const Status& cause) override { fail(cause); }
  void finish_step(LocalTensor& local, const protocol::PlanTensor& tensor, Time now);
  void complete(LocalTensor& local, const protocol::PlanTensor& tensor, bool ok, Time now);
  void note_complete(const LocalTensor& local, const protocol::PlanTensor& tensor, bool ok, Time now);
  void choose_local_block(Time now, JobBlock& block);
  JobRail* most_urgent_rail(std::optional<ClassId>* cls) const;
  void report_lost(Time now);
  void look_whose_turn_it_is(Time now);
  bool awaited(const protocol::PlanTensor& tensor, Time* since) const;
  void fail(const Status& cause);
  void log(const std::string& line) const;
  void report_begin();
  void look_if_connected();
  bool connected() const;
  void report_connected();
  void report_end();
  void drain_if_closed(Time now);
  void close_flows();
  void map(std::span<std::byte> bytes);

  ports::JobSpec spec_;
  const Context& context_;
  State state_ = State::kNew;
  std::vector<Rank> local_ranks_;
  std::vector<std::uint32_t> rank_numbers_;
  std::vector<std::shared_ptr<ports::ClientSession>>
      sessions_;  // by local index; empty until attached, kept until closed
  std::vector<bool> detached_;
  std::vector<std::pair<std::uint32_t, protocol::SubmissionEntry>> collected_;  // local index and entry
  std::vector<std::unique_ptr<JobRail>> rails_;                                 // none in a job of one host
  std::size_t neighbours_ = 0;                                                  // that the log has been told of
  std::vector<std::function<void()>> when_connected_;
  protocol::Plan plan_;                            // its classes are those in use here
  std::optional<std::vector<double>> thresholds_;  // none: the plan's
  std::optional<engine::ObservedOrder> observed_;  // while it learns
  std::optional<TensorId> largest_;                // of what is summed: an iteration begins whenever it is submitted
  std::optional<Time> largest_since_;
  std::vector<LocalTensor> tensors_;
  std::map<std::uint32_t, Taken> taken_;  // by registrations, which are known by their first tensor
  Ledger::Charge regions_;                // of the rails
  Ledger::Charge vacant_tables_;          // they do not shrink: what registrations left is there for others
  std::size_t vacant_places_ = 0;         // of plan_
  std::size_t retired_ = 0;               // tensors whose regions are given back
  std::vector<TensorId> pending_;         // some rank here has submitted (a member of) it
  std::size_t late_scan_ = 0;             // where in them report_late() goes on
  std::size_t missing_scan_ = 0;          // the same of report_missing()
  std::vector<HostIndex> missing_;        // whom it has found: its memory serves again
  std::vector<Missed> missed_;            // by host
  TensorId late_asked_;                   // the last of asked_ that report_late() looked at
  std::map<TensorId, Asked> asked_;       // by operation
  std::uint32_t first_rank_ = 0;          // whose submissions are taken first
  engine::BatchGate gate_;
  // Between hosts, where the plan has an order. Of a job of one host every operation starts when it is ready.
  engine::Admission admission_;
  bool admitting_ = false;
  std::uint64_t offered_ = 0;                      // operations, and not agreed on
  std::optional<std::pair<TensorId, Time>> turn_;  // operations are held for this tensor, since
  engine::Iterations iterations_;
  LocalQueue local_queue_;
  std::int64_t work_account_ = 0;
  std::size_t under_way_ = 0;  // blocks of work
  bool failed_ = false;        // told the listener
  std::optional<Status> abort_cause_;
  std::optional<std::pair<Status, Time>> lost_;  // a connection that went, and when
  std::optional<Status> departed_;               // a peer went while nothing was pending
  std::shared_ptr<ports::JobMetrics> metrics_;
  Time next_progress_;                            // when tell_progress() is due
  ports::LaneProgress progress_;                  // what it said last: its memory serves again
  std::array<Duration, kMaxDataClasses> ages_{};  // see raise_ages()
};

}  // namespace tensorlane::host
