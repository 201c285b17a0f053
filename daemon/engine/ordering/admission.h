// Which of a job's operations this host begins, and when, where the plan says an order (protocol::Ordering): between
// the local ranks' submissions and the engine. The daemon and the simulator run this code (law 6).
//
// The order: tensors that were registered together (PlanTensor::group), by urgency and then in order of registration,
// round after round, one operation of each tensor in a round. It follows from the plan, so every host has the same
// without a word. Groups do not wait for each other: a tensor that is registered while others run has no place among
// them that all hosts could agree on without stopping.
//
//   funnel      one operation of a group at a time, from the first local sum to the last local copy (MXNet-MPI, 4.1)
//   concurrent  the next `concurrent` operations of the order at once (MXNet-MPI, 4.2)
//   chained     one at a time between the hosts; the sums and copies inside the host overlap with it (MXNet-MPI, 4.3)
//   counters    any number at once, but the k-th is handed over only when the k before it have been (TicTac, 5.1: there
//               the counter is a sender's, per worker; here an operation is handed over to all of its peers at once)
//
// Why no host waits for ever, as long as every rank goes on to submit: the host that is furthest back in the order
// waits either for an operation that all hosts have begun, or for one that a rank of its own has yet to submit. A rank
// that *waits* will not submit it: then its iteration has left that tensor out. Such a tensor loses its place: on this
// host it is not waited for again, and begins as soon as it is ready, as under kTagged, beside those that run in their
// turn. It need not lose its place everywhere: where it is in its turn, this host is ready for it at any time.
//
// A pull has no place: it follows its push, and a push that waited for the pull before it in the order would wait for
// what nobody can submit yet. It begins as soon as it is ready, beside the operations in their turn, and holds none.
//
// A member of a batch has no place either: it is no operation (BatchGate is in front of this class), its batch is.
//
// So a rank may submit an iteration's tensors in any order, if it waits for none before it has submitted all, or if all
// ranks wait at the same places. kNegotiated (negotiation.h) works with every program that works under kTagged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/units.h"
#include "common/protocol/plan.h"

namespace tensorlane::engine {

// For one job on one host. One thread; allocates in grow() only, and the work of a call is bounded by the tensors of a
// group.
class Admission {
 public:
  // Where on its way through a host an operation waits for its turn.
  enum class Gate : std::uint8_t {
    kNone,           // nowhere: this class has no part in it
    kBeforeLocal,    // before the local ranks' buffers are brought together
    kBeforeNetwork,  // before it begins between the hosts
  };
  static Gate gate_of(protocol::Ordering ordering);

  // `ranks`: of this host.
  explicit Admission(std::uint32_t ranks) : ranks_(ranks) {}

  // The plan in force from now on: `added`, whole groups, is new. It lies behind the last tensor, or where tensors were
  // vacated.
  void grow(const protocol::Plan& plan, protocol::TensorRange added);
  // As grow(), of a plan that was appended to; an older one, which others have overtaken, adds nothing.
  void grow(const protocol::Plan& plan) {
    const auto known = static_cast<std::uint32_t>(tensors_.size());
    if (plan.tensors.size() < known) return;
    grow(plan, {known, static_cast<std::uint32_t>(plan.tensors.size()) - known});
  }
  // Whole groups are gone. Nothing of them is under way.
  void vacate(protocol::TensorRange range);
  Gate gate() const { return gate_of(ordering_); }

  // The calls below are for a gate other than kNone, and for tensors of the plan; after each of them comes next().

  // A rank, by its local index, has submitted its part of the tensor's next operation.
  void submitted(std::uint32_t rank, TensorId tensor);
  // A rank blocks until the tensor's operation completes.
  void waits(std::uint32_t rank, TensorId tensor);
  // All ranks have submitted it and it stands before its gate.
  void ready(TensorId tensor);
  // It is over between the hosts.
  void left_network(TensorId tensor);
  // It is over, and the ranks are told.
  void completed(TensorId tensor);
  // What begins now: one operation at a time, until false.
  bool next(TensorId* tensor);

  // The tensor whose turn it is while operations behind it are held, if some rank has not submitted it.
  std::optional<TensorId> missing() const;
  // Operations that are ready and have not begun.
  std::uint64_t held() const { return held_; }
  // Tensors that have lost their place.
  std::uint64_t loose() const { return loose_; }

 private:
  struct Tensor {
    std::uint32_t group = 0;
    bool ready = false;
    bool loose = false;    // has no place: a pull, a member of a batch, or it has lost it
    bool runs = false;     // begun and not completed
    bool counted = false;  // runs in its turn, and takes the room of another
  };
  struct Group {
    std::uint32_t first = 0, count = 0;  // of order_; without a tensor it is free for another group
    std::uint32_t turn = 0;              // position of the next one
    std::uint32_t held = 0;              // in their places and ready
    std::uint32_t running = 0;           // counted
    bool queued = false;                 // in due_
  };

  std::uint32_t new_group(std::uint32_t first);
  std::uint32_t most_running() const;
  void look_at(std::uint32_t group);
  bool next_of(Group& group, TensorId* tensor);
  bool left_out(TensorId tensor) const;
  void begin(TensorId tensor);
  void release(TensorId tensor);
  std::size_t of_rank(std::uint32_t rank, std::size_t index) const { return index * ranks_ + rank; }

  std::uint32_t ranks_;
  protocol::Ordering ordering_ = protocol::Ordering::kTagged;
  std::uint32_t concurrent_ = 1;
  std::vector<Tensor> tensors_;
  std::vector<Group> groups_;
  std::vector<std::uint32_t> free_groups_;  // without a tensor
  std::vector<TensorId> order_;             // by place, group after group
  std::vector<bool> submitted_;             // by tensor and rank: its operation, which has not begun
  std::vector<bool> waiting_;               // by tensor and rank
  std::vector<std::uint32_t> waits_;        // by group and rank: how many operations it waits for
  std::vector<TensorId> at_once_;           // ready, without a place
  std::vector<std::uint32_t> due_;          // groups in which something may begin
  std::uint64_t held_ = 0, loose_ = 0;
};

}  // namespace tensorlane::engine
