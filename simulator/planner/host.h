// One host for planning: the real engines of its jobs, hosted by a virtual clock as daemon/lane hosts them, without
// bytes. The jobs share the NIC's windows and one thread for arithmetic.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/engine/engine.h"
#include "simulator/clock/event_queue.h"
#include "simulator/network/fabric_network.h"

namespace tensorlane::simulator {

struct HostOptions {
  std::array<Bytes, kLevels> windows{};  // by level: operations in flight until acknowledged (law 8)
  Duration wake;                         // from an event until the engine sees it
  double sum_bytes_per_second = 5e9;     // of what is read to be added
  std::uint32_t ranks = 1;               // whose tensors are added before the host sends any
};

class PlannedHost final : public FabricSink {
 public:
  using Completed = std::function<void(TensorId)>;

  PlannedHost(HostIndex self, EventQueue& events, FabricNetwork& network, const HostOptions& options);

  // Errors as of Engine::apply_plan(). Jobs are added in the same order on all hosts.
  Status add_job(engine::EngineConfig config, const protocol::Plan& plan, Completed completed);
  // The next operation on the tensor, by all ranks at once. The one before must be complete.
  void submit(std::size_t job, TensorId tensor);
  // The job waits for the operation that runs on the tensor (law 9).
  void raise(std::size_t job, TensorId tensor);

  void on_delivered(const Message& message) override;
  void on_acknowledged(const Message& message) override;

  const engine::Engine& engine(std::size_t job) const { return jobs_[job].engine; }

 private:
  struct Job {
    engine::Engine engine;
    std::vector<std::uint64_t> bytes;  // by tensor
    std::vector<bool> sums;            // by tensor: ranks add theirs first
    std::vector<Sequence> sequences;
    std::vector<engine::Event> pending;
    Completed completed;
    std::array<HostIndex, kLevels> last_peer;
  };
  // What the ranks of this host have submitted and nobody has added yet.
  struct LocalSum {
    std::size_t job = 0;
    TensorId tensor;
    std::uint64_t bytes_left = 0;  // of one rank
  };
  // What the host's thread for arithmetic is at.
  struct Working {
    std::size_t job = 0;
    std::uint64_t token = 0;
    bool local = false;  // at the first of local_sums_
  };
  void wake();
  void poll();
  void step(Job& job);
  void ready(std::size_t job, TensorId tensor);
  void start_work();
  void work_on(const Working& working, std::uint64_t bytes);
  void work_done();
  void send_level(std::size_t level);
  bool send_one(std::size_t job, std::size_t level);
  Bytes credit(std::size_t level) const;

  const HostIndex self_;
  EventQueue& events_;
  FabricNetwork& network_;
  const HostOptions options_;
  std::vector<Job> jobs_;
  engine::ActionRing actions_;
  std::vector<engine::Event> stepping_;
  std::deque<LocalSum> local_sums_;
  std::array<std::uint64_t, kLevels> in_flight_{};
  std::array<std::size_t, kLevels> last_job_{};
  bool scheduled_ = false;
  std::optional<Working> working_;
};

}  // namespace tensorlane::simulator
