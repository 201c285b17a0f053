// One host: its client, its rails, and what joins them, as daemon/lane and control do it in a daemon.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/engine/ordering/admission.h"
#include "simulator/checkers/admission.h"
#include "simulator/host/batches.h"
#include "simulator/host/client.h"
#include "simulator/host/rail.h"

namespace tensorlane::simulator {

class Lane final {
 public:
  struct Around {
    const Scenario& scenario;
    EventQueue& events;
    std::vector<std::unique_ptr<Network>>& networks;  // by rail
    const Values& values;
    Results& results;
    DeliveryChecker& delivery;
    AdmissionChecker& admission;
    Findings& findings;
    const Trace& trace;
    std::uint64_t* progress;  // counts what moved the job on
  };
  Lane(HostIndex self, Around around, Random random);

  void start();
  // Control: the plan has `tensors` tensors now; `then` when this host has it (a frozen one: when it thaws).
  void grow_plan(std::size_t tensors, const std::function<void()>& then);
  // Control: every host has them.
  void allow(std::size_t tensors);

  // Faults.
  void set_frozen(bool frozen);
  void kill();
  void kill_client();
  void freeze_client(bool frozen);

  // The daemon can still speak for itself: not dead, and not frozen for ever.
  bool alive() const { return !state_.dead && !state_.frozen; }
  bool frozen() const { return state_.frozen && !state_.dead; }
  bool aborted() const { return !state_.running(); }
  const std::string& cause() const { return cause_; }
  // Nothing of this host's client is left waiting, and nothing will be.
  bool resolved() const;
  // What must hold when everything is over and quiet. Checkers "bounds", "memory", "stale".
  void check_quiet() const;
  std::string describe() const;

  const std::vector<std::unique_ptr<Rail>>& rails() const { return rails_; }
  const Client& client() const { return *client_; }

 private:
  // An operation of which some rail has not said that its part is complete.
  struct Joined {
    std::size_t rails_left = 0;
    bool ok = true;
  };

  // Submitted, and not with the engines yet.
  struct Held {
    std::optional<engine::Event> ready, raise;
  };

  Rail::Around around_rail(RailIndex rail);
  TensorId operation_of(TensorId tensor) const { return around_.scenario.plan.tensors[tensor.value].operation_id(); }
  bool is_batch(TensorId tensor) const { return around_.scenario.plan.tensors[tensor.value].is_batch(); }
  void submit(const engine::Event& event);
  void submit_member(const engine::Event& ready);
  void offer(const engine::Event& ready);
  void raise(const engine::Event& waits);
  void begin_admitted();
  void begin(TensorId tensor);
  void take_agreed(const engine::Agreed& agreed);
  void rail_completed(const engine::Complete& complete);
  void note_completed(TensorId tensor);
  void tell_client(const engine::Complete& complete, bool ok);
  void fail_held();
  void heard(HostIndex from, RailIndex rail, const Heartbeat& beat);
  void beat();
  void beat(RailIndex rail);
  void abort(std::string cause);
  void drained();

  HostIndex self_;
  Around around_;
  Random random_;
  SimMemory memory_;
  HostState state_;
  std::vector<std::unique_ptr<Rail>> rails_;
  std::unique_ptr<Client> client_;
  engine::Admission admission_{1};
  Batches batches_;
  std::vector<Held> held_;                // by tensor; of a batch that is held, its members, too
  std::vector<Joined> operations_;        // by tensor
  std::vector<std::vector<Time>> heard_;  // by rail and host
  std::string cause_;
  bool client_frozen_ = false;
  Time client_heard_;
};

}  // namespace tensorlane::simulator
