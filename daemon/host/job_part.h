// What one lane has of a job: the job itself, with its ranks; rails of it; or both.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "daemon/host/job.h"
#include "daemon/host/rail_set.h"
#include "daemon/host/remote.h"

namespace tensorlane::host {

// The lane's thread.
class JobPart {
 public:
  // A job that lives here. `lanes`: all that have rails of it, first that of rail 0. `links` may be null where no other
  // lane has any. Errors: that of the preparation; kResourceExhausted, when the table of tensors is full or there is no
  // memory for tables. What was prepared then stays with `start`, which gives it back elsewhere.
  static Result<std::unique_ptr<JobPart>> begin(const std::shared_ptr<JobStart>& start, const Context& context,
                                                const std::vector<std::size_t>& lanes, Links* links);
  // Rails of a job that lives on another lane. Null, and that has been told why, when they cannot begin.
  static std::unique_ptr<JobPart> begin_rails(JobStart& start, const Context& context, const Way& home);
  ~JobPart();
  JobPart(const JobPart&) = delete;
  JobPart& operator=(const JobPart&) = delete;

  JobId id() const { return id_; }
  Epoch epoch() const { return epoch_; }
  std::uint32_t user() const { return user_; }
  Job* home() const { return home_.get(); }        // null: it lives on another lane
  RailSet* rails() const { return rails_.get(); }  // null: none of its rails is this lane's
  // What its ranks' messages wait in; null: another lane's, or the job has none.
  const engine::Messages* messages() const;

  // Of a job that lives on another lane, whose plan is not here as a whole.
  void extend(const protocol::Plan& chunk, protocol::TensorRange added, std::span<const OwnMemory> memory);
  void vacate(protocol::TensorRange range);

  // ---- the loop ----
  // The class of the most urgent block of arithmetic or copying that waits, if any.
  std::optional<ClassId> next_work() const;
  // Fills `block`, which is empty, with that block. It is under way until block_done().
  void choose_block(Time now, JobBlock& block);
  void block_done(const JobBlock& block, Time now);
  // What is left of the job's turn in arithmetic and copying: bytes, the lane's account.
  std::int64_t& work_account() { return work_account_; }
  bool has(RailIndex rail) const { return rails_ != nullptr && rails_->has(rail); }
  bool has_sends(RailIndex rail, ClassId cls, Time now) const {
    return rails_ != nullptr && rails_->has_sends(rail, cls, now);
  }

  // ---- the end ----
  // It takes no more part in turns.
  bool closed() const { return home_ != nullptr ? home_->closed() : rails_->drained(); }
  // Once it is closed: gives back some of its regions. True when nothing of it is in any table of the daemon; then any
  // thread may destroy it, which takes long.
  bool retire(std::size_t most);
  // It has something to give back, or nothing is left; it does not wait for rails on other lanes.
  bool can_retire() const { return (rails_ != nullptr && !rails_gone_) || home_ == nullptr || home_->can_retire(); }

 private:
  JobPart(const ports::JobSpec& spec, const Context& context);
  Status make(JobStart& start, const std::vector<std::size_t>& lanes, Links* links);

  const JobId id_;
  const Epoch epoch_;
  const std::uint32_t user_;
  const Context& context_;
  std::shared_ptr<ports::JobMetrics> metrics_;
  std::int64_t work_account_ = 0;
  protocol::Plan plan_;                                // where the job lives on another lane
  std::vector<std::unique_ptr<RemoteRails>> remotes_;  // its rails that are on others
  std::unique_ptr<RemoteOwner> owner_;                 // of rails_, where the job lives on another lane
  std::unique_ptr<Job> home_;
  std::unique_ptr<RailSet> rails_;
  bool rails_gone_ = false;
};

}  // namespace tensorlane::host
