// One run: the engines of all hosts, their clients, the network and the checkers, from the first submission until
// everybody is done or has failed, and it is quiet.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "simulator/checkers/findings.h"
#include "simulator/host/daemon.h"
#include "simulator/workload/scenario.h"

namespace tensorlane::simulator {

struct Outcome {
  std::optional<Finding> finding;  // the first broken rule
  std::uint64_t operations = 0;    // completed on a host
  std::uint64_t slices = 0;        // that left a host
  std::uint64_t bytes = 0;         // of payload that landed
  std::uint64_t demoted = 0;       // bytes that limits sent to a lower class
  std::uint64_t packets = 0, lost = 0, overflowed = 0, stale = 0, resent = 0, lies = 0;
  Congestion::Counters congestion;  // of all rails
  std::array<std::uint64_t, kFaultKinds> faults{};
  bool aborted = false;
  Time end;                  // virtual
  std::uint64_t digest = 0;  // of the whole run
  std::vector<std::vector<Time>>
      completed;  // when each tensor last completed with the first rank of a host: [host][tensor]
};

class Simulation {
 public:
  // `scenario` is copied. `verbose` prints every event to standard output.
  explicit Simulation(const Scenario& scenario, bool verbose = false);
  Outcome run();

 private:
  void schedule(const Fault& fault);
  void schedule(const Growth& growth);
  void apply(const Fault& fault, bool begins);
  void apply(const Fault& fault, Network& network, bool begins);
  void watch();
  bool all_resolved() const;
  std::optional<std::string> away() const;
  void check_abort();
  void check_progress();
  std::string describe() const;
  Outcome outcome() const;

  const Scenario scenario_;
  EventQueue events_;
  Findings findings_;
  Trace trace_;
  Values values_;
  Results results_;
  DeliveryChecker delivery_;
  AdmissionChecker admission_;
  std::vector<std::unique_ptr<Network>> networks_;  // by rail
  std::vector<std::vector<GivenGrant>> grants_;     // by rail
  std::uint64_t progress_ = 0, progress_seen_ = 0;
  Time progress_at_;
  std::optional<Time> abort_at_;
  std::optional<Time> resolved_at_;
  bool quiet_ = false;
  Outcome outcome_;
  std::vector<std::unique_ptr<SimDaemon>> daemons_;
};

}  // namespace tensorlane::simulator
