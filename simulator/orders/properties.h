// The properties of operations by which TicTac orders transfers (section 4.1), kept up to date while transfers
// complete.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "simulator/orders/graph.h"
#include "simulator/orders/reach.h"

namespace tensorlane::orders {

// "+infinity" of M+: no operation waits for this transfer and another one.
inline constexpr Duration kNoImpending{std::numeric_limits<std::int64_t>::max()};

// Algorithm 1 (UpdateProperties), for a set R of outstanding recv operations that starts as all of them. Recv
// operations are named by their position in recvs(). One thread.
class Properties {
 public:
  // `times` is the time oracle, by operation. `graph` outlives this. kInvalidArgument if the graph has no recv
  // operation, or one that waits for another (section 2.2: recv operations are roots); as Reach::build() else.
  static Result<Properties> build(const Graph& graph, std::vector<Duration> times);

  std::span<const Operation> recvs() const { return recvs_; }
  bool outstanding(std::uint32_t recv) const { return (outstanding_[recv / 64] >> (recv % 64) & 1) != 0; }

  // Takes an outstanding recv out of R. In O(sets log sets + sets * recvs / 64).
  void complete(std::uint32_t recv);

  // op.M: the time of the outstanding transfers that `op` waits for, of a recv its own.
  Duration communication_time(Operation op) const { return set_time_[reach_.set_of(op)]; }
  // recvOp.P: the time of the operations that wait for this outstanding transfer only.
  Duration direct_load(std::uint32_t recv) const { return direct_load_[recv]; }
  // recvOp.M+: the least M of the operations that wait for this outstanding transfer and another one.
  Duration impending_load(std::uint32_t recv) const { return impending_load_[recv]; }

 private:
  void count_sets(const Graph& graph);
  void add_direct_load(std::uint32_t set);
  void update_impending_load();

  std::vector<Operation> recvs_;
  std::vector<Duration> times_;  // by operation
  Reach reach_;
  std::vector<std::uint64_t> outstanding_;              // R, as bits
  std::vector<Duration> set_time_;                      // by set: M of its operations
  std::vector<std::uint32_t> set_count_;                // by set: |D|
  std::vector<Duration> set_load_;                      // by set: the time of its operations that are no recv
  std::vector<std::uint32_t> impending_;                // sets of such operations with |D| > 1
  std::vector<Duration> direct_load_, impending_load_;  // by recv
};

}  // namespace tensorlane::orders
