// One lane of a simulated machine: a host of engines (daemon/host), the same code as in a daemon, driven by the virtual
// clock over simulated ports.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/host/host.h"
#include "daemon/host/notes.h"
#include "simulator/checkers/fairness.h"
#include "simulator/host/executor.h"
#include "simulator/host/memory.h"
#include "simulator/host/transport.h"

namespace tensorlane::simulator {

class SimLane final : public host::Links {
 public:
  struct Context {
    const Scenario& scenario;
    EventQueue& events;
    Findings& findings;
    HostIndex self;
    std::size_t number = 0;
    const host::HostConfig& config;
    host::HostPorts ports;  // without what each lane has for itself
    ports::LaneListener& listener;
    std::function<bool()> runs;  // the machine is neither dead nor frozen
    // Carries out the commands of jobs that live here; how many. And whether some are left, of all or of one.
    std::function<std::size_t()> carry_out;
    std::function<bool()> has_commands;
    std::function<bool(JobId)> has_commands_of;
    std::function<bool()> resolved;                    // nothing will happen any more
    std::function<void(Time now, Time until)> sleeps;  // unless something happens
    std::function<void(SimLane&, const host::JobBlock&)> block_begins;
    std::function<void(std::size_t lane, host::Note)> post;  // a note for another lane
  };
  SimLane(Context context, Random random);
  ~SimLane() override;

  host::Host& host() { return *host_; }
  // Its rails' transports.
  void add(SimTransport& transport) { transports_.push_back(&transport); }
  // How far it is with its work.
  Time now() const { return std::max(local_, context_.events.now()); }
  void wake();
  std::vector<ports::Block*> under_way() const { return executor_.under_way(); }
  FairnessChecker& fairness() { return fairness_; }
  std::size_t number() const { return context_.number; }
  // A note has come.
  void receive(host::Note note);

  // ---- host::Links ----
  void post(std::size_t lane, host::Note note) override { context_.post(lane, std::move(note)); }
  bool take(host::Note* note) override;

 private:
  void turn();
  void sleep();

  const Context context_;
  Random random_;
  SimExecutor executor_;
  ports::LaneMetrics metrics_;
  FairnessChecker fairness_;
  host::HostPorts ports_;
  Time local_;
  std::vector<SimTransport*> transports_;
  std::deque<host::Note> notes_;
  std::unique_ptr<host::Host> host_;
  bool scheduled_ = false;
  std::optional<Time> alarm_;
};

}  // namespace tensorlane::simulator
