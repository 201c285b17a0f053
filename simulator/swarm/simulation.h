// One run: the engines of all hosts, the jobs that share them, their clients, the network and the checkers, from the
// first submission until everybody is done or has failed, and it is quiet.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/hash.h"
#include "simulator/checkers/findings.h"
#include "simulator/host/daemon.h"
#include "simulator/workload/scenario.h"

namespace tensorlane::simulator {

struct Outcome {
  std::optional<Finding> finding;                 // the first broken rule
  std::uint64_t operations = 0;                   // completed on a host
  std::uint64_t slices = 0;                       // that left a host
  std::uint64_t bytes = 0;                        // of payload that landed
  std::uint64_t demoted = 0;                      // bytes that limits sent to a lower class
  std::uint64_t of_sets = 0;                      // operations of process sets
  std::uint64_t in_parts = 0;                     // operations that were begun in parts
  std::uint64_t parts_placed = 0;                 // parts of results that clients were told of
  std::uint64_t messages = 0, message_bytes = 0;  // that receives got
  std::uint64_t packets = 0, lost = 0, overflowed = 0, stale = 0, resent = 0, lies = 0;
  Congestion::Counters congestion;  // of all rails
  std::array<std::uint64_t, kFaultKinds> faults{};
  bool aborted = false;            // the first job
  bool neighbour_aborted = false;  // the other one
  Time neighbour_end;              // when it had nothing left to do
  Time end;                        // virtual
  std::uint64_t digest = 0;        // of the whole run
  std::vector<std::vector<Time>>
      completed;  // when each tensor of the first job last completed with the first rank of a host: [host][tensor]
};

class Simulation {
 public:
  // `scenario` is copied. `verbose` prints every event to standard output.
  explicit Simulation(const Scenario& scenario, bool verbose = false);
  Outcome run();

 private:
  // What one run knows of one of its jobs.
  struct Standing {
    std::uint64_t progress_seen = 0;
    Time progress_at;
    std::optional<Time> abort_at, resolved_at;
    bool left = false;
    std::size_t shrinks = 0, returns = 0;  // hosts that have let go of a registration, and have it again
    bool shrinking = false, settled = false;
  };
  void start(const JobRun& run);
  void schedule(const Fault& fault);
  void schedule(const JobRun& run, const Growth& growth);
  void apply(const Fault& fault, bool begins);
  void apply(const Fault& fault, Network& network, bool begins);
  void watch();
  bool all_resolved() const;
  bool all_resolved(const JobRun& run) const;
  std::optional<std::string> away() const;
  std::optional<std::string> away(const JobRun& run) const;
  void check_messages();
  void want_flows(std::size_t job, HostIndex from, HostIndex to);
  void let_go(const JobRun& run);
  void come_again(const JobRun& run);
  void let_leave(const JobRun& run);
  void check_abort(const JobRun& run);
  void check_progress(const JobRun& run);
  void add_counts(const SimJob& job, Outcome* outcome, Fnv1a* digest) const;
  std::string describe() const;
  Outcome outcome() const;

  const Scenario scenario_;
  EventQueue events_;
  Findings findings_;
  Trace trace_;
  std::vector<std::unique_ptr<JobRun>> runs_;       // by number
  std::vector<std::unique_ptr<Network>> networks_;  // by rail
  std::vector<Standing> standing_;                  // by number of the job
  std::optional<Time> resolved_at_;
  bool quiet_ = false;
  Outcome outcome_;
  std::vector<std::unique_ptr<SimDaemon>> daemons_;
};

}  // namespace tensorlane::simulator
