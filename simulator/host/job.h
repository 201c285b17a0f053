// One job on one simulated machine: the clients of its ranks there, what control does for it, and who watches its
// engines.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/host/host.h"
#include "simulator/host/client.h"
#include "simulator/host/engine_watch.h"
#include "simulator/host/job_run.h"
#include "simulator/host/session.h"
#include "simulator/host/transport.h"

namespace tensorlane::simulator {

class SimDaemon;

class SimJob {
 public:
  SimJob(SimDaemon& machine, JobRun& run, Random random);
  ~SimJob();

  // ---- control ----
  // Unless it has heard that the job has failed. `planned`: when this host has what the plan has at the start.
  void start(std::function<void()> planned);
  // Every host has that, so that clients may begin once the job is connected.
  void begin();
  // The plan has `tensors` tensors now; `then` when this host has it (a frozen one: when it thaws).
  void grow_plan(std::size_t tensors, std::function<void()> then);
  // Every host has them.
  void allow(std::size_t tensors);
  // Every rank has completed what it has submitted of these tensors: they leave the plan. `then` when they have on this
  // host.
  void vacate(protocol::TensorRange range, std::function<void()> then);
  // They have on every host, and come again. `then` when they are there.
  void grow_again(protocol::TensorRange range, std::function<void()> then);
  // They are on every host.
  void allow_again(protocol::TensorRange range);
  // A heartbeat is due: looks whether a host was silent for too long, or a client.
  void look(RailIndex rail, const std::vector<Time>& heard);
  void look_at_clients();
  void abort(std::string cause);
  // A peer has messages for this host, which makes the flows between them.
  void open_flows_to(HostIndex peer);
  // Every rank of the job is done, on all hosts: they detach, and the job closes.
  void leave();

  // Faults.
  void kill_clients();
  void freeze_clients(bool frozen);

  // ---- the machine's ----
  // Carries out the commands that are there, in order; how many.
  std::size_t carry_out();
  bool has_commands() const { return !commands_.empty(); }
  std::unique_ptr<engine_log::Observer> observer(RailIndex rail) { return watches_[rail.value]->observer(); }
  void connected();
  void failed(const Status& cause);
  void closed();
  bool runs() const { return phase_ == Phase::kRunning && connected_; }

  bool aborted() const { return aborted_; }
  // Its clients have completed all that they have to do.
  bool done() const;
  // All that they were to do with these tensors before they leave the plan.
  bool is_done_with(protocol::TensorRange range) const;
  const std::string& cause() const { return cause_; }
  // Nothing of this host's clients is left waiting, and nothing will be.
  bool resolved() const;
  // What must hold when everything is over and quiet. Checkers "bounds", "choice", "memory", "stale".
  void check_quiet();
  void check_logs() const;
  std::string describe() const;

  JobRun& run() const { return run_; }
  host::Job* job() const;
  // What its sends and receives wait in; null where it has none.
  const engine::Messages* messages() const;
  const std::vector<std::unique_ptr<EngineWatch>>& engines() const { return watches_; }
  const std::vector<std::unique_ptr<Client>>& clients() const { return clients_; }

 private:
  enum class Phase : std::uint8_t { kRunning, kLeaving, kDraining, kClosed };
  // A command for the host: true when it is done, false when it goes on in another turn.
  using Command = std::function<bool()>;
  // An operation on this host, as one sees it from outside.
  struct Seen {
    std::size_t submitted = 0;  // of its parts()
    bool in_parts = false;      // begun, and the rest of its contribution is to come
    std::size_t rails = 0;      // that have done their part of the one that runs
    bool ok = true;
  };

  ports::JobSpec spec() const;
  void make_rail(RailIndex rail);
  void grow(protocol::Plan added, protocol::TensorRange range, std::function<void()> then);
  void make_clients(Random& random);
  void command(Command command);
  void bind(std::size_t from, std::size_t to);
  bool holds(HostIndex from, const protocol::FrameHeader& header) const;
  void start_clients();
  void vacated(protocol::TensorRange gone);
  void check_given_back(TensorId tensor) const;
  bool is_batch(TensorId tensor) const { return scenario_.plan.tensors[tensor.value].is_batch(); }

  // ---- clients ----
  void submit(std::size_t local, const protocol::SubmissionEntry& entry);
  bool begins(const protocol::SubmissionEntry& entry);
  void completed(std::size_t local, const protocol::CompletionEntry& entry);
  void placed(std::size_t local, const protocol::CompletionEntry& entry);
  void rail_completed(const engine::Complete& complete);
  void reclassify();
  void post(std::size_t local, std::uint32_t slot, const protocol::MessageSlot& message);
  void message_over(std::size_t local, std::uint32_t slot, const protocol::MessageSlot& outcome, Code code);
  void check_messages() const;
  std::size_t parts(TensorId operation) const;

  SimDaemon& machine_;
  JobRun& run_;
  const Scenario& scenario_;
  Findings& findings_;
  Random random_, room_;
  std::vector<std::unique_ptr<EngineWatch>> watches_;  // by rail
  std::vector<std::unique_ptr<Liar>> liars_;           // by rail, where it lies
  std::vector<std::unique_ptr<Client>> clients_;       // by local rank
  std::vector<std::shared_ptr<SimSession>> sessions_;
  std::vector<Seen> seen_;  // by operation
  std::deque<Command> commands_;
  std::size_t planned_ = 0, allowed_ = 0;  // tensors
  Phase phase_ = Phase::kRunning;
  bool aborted_ = false, connected_ = false, may_begin_ = false, accuses_ = false;
  std::string cause_;
  bool client_frozen_ = false;
  Time client_heard_;
};

}  // namespace tensorlane::simulator
