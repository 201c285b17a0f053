// A host of engines: the jobs that share the NICs of a machine, and what they share of them.
//
// It has no thread, waits for nothing and asks no kernel for the time: whoever drives it gives it turns, and says what
// time it is. daemon/lane does so with a thread that polls and sleeps.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/log_share.h"
#include "common/base/token_bucket.h"
#include "common/base/units.h"
#include "daemon/host/config.h"
#include "daemon/host/job_part.h"
#include "daemon/host/prepared.h"
#include "daemon/host/users.h"

namespace tensorlane::host {

// All calls by one thread at a time.
class Host {
 public:
  // `clock`: what time it is now; it does not run backwards, and is asked after each block of work. Errors: those of
  // make_transport (a port in use...).
  static Result<std::unique_ptr<Host>> create(const HostConfig& config, const HostPorts& ports,
                                              std::function<Time()> clock);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // What is told goes to `listener`, which outlives the jobs. Before the first job.
  void report_to(ports::LaneListener& listener);

  // ---- jobs ----
  // Begins a job that is prepared: it lives on this lane. Answer: on_job_connected or on_job_failed. What was prepared
  // for a job that cannot begin stays with `start`.
  void begin(const std::shared_ptr<JobStart>& start);
  // To give it commands; null where none of that name lives here, or no more. Valid until reap().
  Job* find(JobId job);
  const std::vector<std::unique_ptr<JobPart>>& jobs() const { return jobs_; }

  // ---- a turn: its parts, in this order; those that return a number return how much they have done ----
  // What has arrived, and what the executor has done. `now` holds for the whole turn, but for the time that work takes.
  std::size_t receive(Time now);
  // Some jobs have closed: call reap().
  bool has_closed() const;
  // Forgets them: their names serve again, and retire() has them. Returns those that lived here.
  std::vector<std::pair<JobId, Epoch>> reap();
  // Takes what clients have submitted, then commands may be given, then submit() begins what was taken, of the jobs
  // that `may` is true of.
  std::size_t collect();
  void submit(const std::function<bool(const Job&)>& may);
  // Gives the transports what is most urgent, as much as the windows have room for, and lets them move it.
  std::size_t send();
  // Gives the executor a block of arithmetic or copying, or a few small ones, if it takes any more.
  std::size_t work();
  // Reports and metrics, every 100 ms. False when it is not time yet.
  bool housekeep();
  // Gives back some of what jobs had that are over. What nothing uses any more goes to the caller, who may destroy it
  // on any thread: that takes long.
  std::shared_ptr<void> retire();
  bool retires() const;  // it has more to do, and need not wait for another lane

  Time now() const { return context_.now; }
  // When something waits for a limit to let it pass, which no transport and no client tells: the first such time that
  // is before `latest`, else `latest`.
  Time next_deadline(Time latest) const;
  // Of this lane's rails.
  const std::vector<ports::Transport*>& transports() const { return transports_; }
  // Drops jobs that run, without ceremony.
  void clear();

 private:
  struct Rail;
  Host(const HostConfig& config, const HostPorts& ports, std::function<Time()> clock);
  Status open();
  std::size_t send(Rail& rail);
  bool has_sends(const Rail& rail, ClassId cls) const;
  std::size_t share(Rail& rail, ClassId cls, std::uint64_t quantum, std::uint64_t most, Bytes* credit);
  void look_for_standing(Rail& rail);
  std::size_t take_notes();
  void take(Note& note);
  void begin_rails(const BeginNote& begin, const Note& note);
  RailSet* rails_of(JobId job) const;
  JobPart* find_part(JobId job) const;
  JobPart* addressee(const Note& note) const;
  std::size_t finish_blocks();
  void end_block(JobBlock& block);
  bool work_stands_still() const;

  const HostConfig& config_;
  const HostPorts& ports_;
  LogShare log_share_;
  Context context_;
  std::vector<std::size_t> lanes_;             // by rail: whose it is
  std::vector<ports::Transport*> transports_;  // of rails_
  std::vector<std::unique_ptr<JobPart>> jobs_;
  std::vector<std::unique_ptr<JobPart>> ended_;   // that still have regions
  std::vector<std::shared_ptr<void>> discarded_;  // for retire()
  std::vector<JobBlock> blocks_;                  // as many as may be under way
  std::vector<JobBlock*> free_blocks_;            // of them
  Users users_;                                   // of jobs_
  Time next_housekeeping_;
  std::vector<std::unique_ptr<Rail>> rails_;  // this lane's. No transport is called any more once clear() has been
};

}  // namespace tensorlane::host
