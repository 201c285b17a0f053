// One simulated machine: a daemon's host of engines (daemon/host), the same code as in a daemon, driven by the virtual
// clock over simulated ports; the clients of its ranks; and what control does beside it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/host/host.h"
#include "simulator/checkers/admission.h"
#include "simulator/host/client.h"
#include "simulator/host/engine_watch.h"
#include "simulator/host/executor.h"
#include "simulator/host/session.h"
#include "simulator/host/transport.h"

namespace tensorlane::simulator {

class SimDaemon final : private ports::LaneListener {
 public:
  struct Context {
    const Scenario& scenario;
    EventQueue& events;
    std::vector<std::unique_ptr<Network>>& networks;  // by rail
    const Values& values;
    Results& results;
    DeliveryChecker& delivery;
    AdmissionChecker& admission;
    Findings& findings;
    const Trace& trace;
    std::uint64_t* progress;                       // counts what moved the job on
    std::vector<std::vector<GivenGrant>>* grants;  // by rail, where somebody lies
  };
  SimDaemon(HostIndex self, Context context, Random random);
  ~SimDaemon() override;

  // `planned`: when this host has what the plan has at the start.
  void start(std::function<void()> planned);
  // Control: every host has that, so that clients may begin once the job is connected.
  void begin();
  // Control: the plan has `tensors` tensors now; `then` when this host has it (a frozen one: when it thaws).
  void grow_plan(std::size_t tensors, std::function<void()> then);
  // Control: every host has them.
  void allow(std::size_t tensors);

  // Faults.
  void set_frozen(bool frozen);
  void kill();
  void kill_client();
  void freeze_client(bool frozen);

  // It can still speak for itself: not dead, and not frozen for ever.
  bool alive() const { return !dead_ && !frozen_; }
  bool frozen() const { return frozen_ && !dead_; }
  bool aborted() const { return phase_ != Phase::kRunning; }
  const std::string& cause() const { return cause_; }
  // Nothing of this host's clients is left waiting, and nothing will be.
  bool resolved() const;
  // What must hold when everything is over and quiet. Checkers "bounds", "choice", "memory", "stale".
  void check_quiet();
  // Ends the engines, and checks their logs. Nothing comes after it.
  void check_logs();
  std::string describe() const;

  const std::vector<std::unique_ptr<EngineWatch>>& engines() const { return watches_; }
  const std::vector<std::unique_ptr<Client>>& clients() const { return clients_; }
  std::uint64_t resent() const;
  std::uint64_t replayed() const;  // stale frames that were sent to it
  std::uint64_t lies() const;      // that it has told

 private:
  enum class Phase : std::uint8_t { kRunning, kDraining, kClosed };
  // A command for the host: true when it is done, false when it goes on in another turn.
  using Command = std::function<bool()>;

  host::HostConfig host_config() const;
  host::HostPorts host_ports();
  ports::JobSpec spec() const;
  std::unique_ptr<SimTransport> make_transport(RailIndex rail, ports::FrameSink& sink);
  void make_clients(Random& random);
  host::Job* job() const;
  void command(Command command);
  void bind(std::size_t from, std::size_t to);
  void wake();
  void turn();
  bool can_go(RailIndex rail, engine::Flow flow) const;
  void works(ClassId cls) const;
  bool holds(TensorId tensor, Sequence sequence) const;
  void start_clients();
  bool is_batch(TensorId tensor) const { return context_.scenario.plan.tensors[tensor.value].is_batch(); }

  // ---- clients ----
  void submit(std::size_t local, const protocol::SubmissionEntry& entry);
  void completed(std::size_t local, const protocol::CompletionEntry& entry);
  void rail_completed(const engine::Complete& complete);
  void reclassify();
  std::size_t parts(TensorId operation) const;

  // ---- ports::LaneListener ----
  void on_job_connected(JobId job) override;
  void on_job_failed(JobId job, const Status& cause) override;
  void on_job_closed(JobId job) override;

  // ---- control (daemon_control.cc) ----
  void heard(HostIndex from, RailIndex rail, const Heartbeat& beat);
  void beat();
  void beat(RailIndex rail);
  void abort(std::string cause);

  // An operation on this host, as one sees it from outside.
  struct Seen {
    std::size_t submitted = 0;  // of its parts()
    std::size_t rails = 0;      // that have done their part of the one that runs
    bool ok = true;
  };

  const HostIndex self_;
  Context context_;
  Random random_;
  SimMemory memory_;
  SimExecutor executor_;
  ports::LaneMetrics metrics_;
  ports::NoTimeline timeline_;
  host::HostConfig config_;
  host::HostPorts ports_;
  Time local_;                                         // how far the host is with its work
  std::vector<std::unique_ptr<EngineWatch>> watches_;  // by rail
  std::vector<SimTransport*> transports_;              // by rail
  std::vector<std::unique_ptr<Liar>> liars_;           // by rail, where it lies
  std::vector<std::unique_ptr<Client>> clients_;       // by local rank
  std::vector<std::shared_ptr<SimSession>> sessions_;
  std::unique_ptr<host::Host> host_;
  std::vector<Seen> seen_;  // by operation
  std::deque<Command> commands_;
  std::size_t planned_ = 0, allowed_ = 0;  // tensors
  bool scheduled_ = false;
  std::optional<Time> alarm_;
  Phase phase_ = Phase::kRunning;
  bool frozen_ = false, dead_ = false, connected_ = false, may_begin_ = false, accuses_ = false;
  std::vector<std::vector<Time>> heard_;  // by rail and host
  std::string cause_;
  bool client_frozen_ = false;
  Time client_heard_;
};

}  // namespace tensorlane::simulator
