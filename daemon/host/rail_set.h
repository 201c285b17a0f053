// The rails of a job that one lane has, with the lane's own table of the job's memory.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/host/job_rail.h"
#include "daemon/host/rails.h"

namespace tensorlane::host {

// All calls by the lane's thread. What goes through it by name is for the job's lane, see Rails; the rest is for this
// lane's host.
class RailSet final : public Rails, private JobRail::Owner {
 public:
  // The rails of `context`'s lane, of what was prepared; the others' are left alone. `owner` outlives it.
  // Errors: kResourceExhausted, when the table of regions is full or there is no memory for tables; what was prepared
  // then stays with `start`.
  static Result<std::unique_ptr<RailSet>> begin(JobStart& start, const Context& context,
                                                std::shared_ptr<ports::JobMetrics> metrics, RailsOwner& owner);
  ~RailSet() override;

  // ---- from a rail's transport ----
  ports::FrameSink& flow_up(RailIndex rail, const ports::FlowKey& key, ports::Flow& flow, Time now);
  void flow_resumed(RailIndex rail, const ports::FlowKey& key, const ports::Flow& flow);
  void flow_down(RailIndex rail, const ports::FlowKey& key, const Status& cause, Time now);

  // ---- the loop ----
  // Opens more of the flows that are to be opened. Returns 0 when there is nothing to do.
  std::size_t open_more(Time now);
  bool has(RailIndex rail) const { return rail.value < by_index_.size() && by_index_[rail.value] != nullptr; }
  bool has_sends(RailIndex rail, ClassId cls, Time now) const { return has(rail) && at(rail).has_sends(cls, now); }
  // As JobRail says; nothing where it does not have the rail.
  JobRail::Sent send(RailIndex rail, ClassId cls, Bytes credit, std::uint64_t budget, Time now);
  std::uint64_t& deficit(RailIndex rail, ClassId cls) { return at(rail).deficit(cls); }
  Bytes look_for_standing(RailIndex rail, ClassId cls, Time now) {
    return has(rail) ? at(rail).look_for_standing(cls, now) : Bytes();
  }
  // When something may go in a more urgent class than now (engine.h).
  std::optional<Time> promotion(Time now) const;
  // The class of the most urgent block of arithmetic that waits, if any.
  std::optional<ClassId> next_work() const;
  // Fills `block`, which is empty, with it: it is under way until block_done(). False, and nothing is done, where there
  // is none, or `other` is more urgent.
  bool choose_block(Time now, std::optional<ClassId> other, JobBlock& block);
  void block_done(const JobBlock& block, Time now);
  // Tells the job how far it has come, and metrics what was counted. About every 100 ms.
  void report(Time now);
  std::uint64_t staging_bytes() const;
  std::uint64_t staging_limit() const { return rails_.size() * context_.config->staging.value; }
  // Null: the job has none, or they are another lane's.
  const engine::Messages* messages() const { return desk_ != nullptr ? &desk_->messages() : nullptr; }
  bool drained() const { return drained_; }
  // They cannot go on: tells the job, and does nothing more but close.
  void break_off(const Status& cause);
  // Once it is drained: gives back up to `most` of its regions. True when all are given back, and any thread may
  // destroy it.
  bool retire(std::size_t most);

  // ---- Rails ----
  void open(Time now) override;
  void extend(const protocol::Plan& plan, protocol::TensorRange added, std::span<const OwnMemory> memory) override;
  void vacate(protocol::TensorRange range) override;
  void map(std::span<std::byte> bytes) override;
  void unmap(std::span<std::byte> bytes) override;
  void settle(std::uint64_t number, Time now) override;
  void bind(TensorId tensor, std::span<std::byte> buffer, std::span<std::byte> segment) override;
  void set_priorities(std::span<const Priority> priorities) override;
  void start(TensorId tensor, Sequence sequence, bool in_parts, Time now) override;
  void part_ready(const engine::PartReady& part, Time now) override;
  void boost(TensorId tensor, Sequence sequence, Time now) override;
  void offer(TensorId tensor, Time now) override;
  void post(const MessagePost& post, Time now) override;
  void open_flows_to(HostIndex peer, Time now) override;
  void look_at_messages(std::span<const std::uint64_t> requests, Time now) override;
  void look_for_missing(std::span<const TensorId> operations, Time now) override;
  void close(bool abort, Time now) override;
  void drain(Time now) override;

 private:
  RailSet(JobStart& start, std::vector<Staging> staging, const Context& context,
          std::shared_ptr<ports::JobMetrics> metrics, RailsOwner& owner);

  // Where a tensor lies, in this lane's table.
  struct Place {
    Descriptor buffer;            // the leader's, or the batch's own
    Descriptor wide;              // float32 scratch
    std::uint8_t rails_left = 0;  // that have not done their part of the operation that runs
    bool ok = true;
    Time first_peer, last_peer;  // as engine::Complete
  };

  JobRail& at(RailIndex rail) const { return *by_index_[rail.value]; }
  void feed_all(const engine::Event& event, Time now);
  JobRail* most_urgent(std::optional<ClassId>* cls) const;
  std::optional<ClassId> next_copy() const;
  Descriptor add_region(std::span<std::byte> bytes);
  void forget_regions(Place& place);
  void look_if_settled(Time now);
  void look_if_closed(Time now);
  void tell_messages(Time now);
  void report_awaited();
  void report_progress(Time now);

  // ---- JobRail::Owner ----
  void rail_completed(const engine::Complete& complete, Time now) override;
  void rail_placed(const engine::PartInPlace& part, Time now) override { owner_.rails_placed(part, now); }
  void rail_agreed(const engine::Agreed& agreed, Time now) override { owner_.rails_agreed(agreed, now); }
  void rail_messages_moved(Time now) override { tell_messages(now); }
  void rail_wants_flows(HostIndex peer) override { owner_.rails_want_flows(peer); }
  void rail_failed(const Status& cause) override { break_off(cause); }

  const ports::JobSpec spec_;
  const Context& context_;
  const std::shared_ptr<ports::JobMetrics> metrics_;
  RailsOwner& owner_;
  std::unique_ptr<MessageDesk> desk_;  // with rail 0: messages go by it alone; null: another lane's
  std::vector<std::unique_ptr<JobRail>> rails_;
  std::vector<JobRail*> by_index_;  // of the job's rails; null: another lane's
  std::vector<Place> places_;       // by tensor
  std::set<std::string> transports_;
  std::uint64_t asked_ = 0;                 // settle()
  std::optional<std::uint64_t> settled_;    // and answered
  bool broken_ = false;                     // its tables are not those of the plan: it only closes
  bool opening_ = false;                    // flows are to be opened
  bool closing_ = false, aborted_ = false;  // close()
  bool closed_ = false, drained_ = false;   // and answered
  std::size_t under_way_ = 0;               // blocks of work
  std::size_t retired_ = 0;                 // places whose regions are given back
  bool gone_ = false;                       // all are, and those of staging
  // Reports: their memory serves again.
  Time next_progress_;
  ports::LaneProgress progress_;
  RailsOwner::Awaited awaited_;
  RailsOwner::Missing missing_;
  bool told_awaited_ = false;  // the last ones were not none
};

}  // namespace tensorlane::host
