// Which of some operations can be reached from each operation of a graph: what it depends on, or what depends on it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "simulator/orders/graph.h"

namespace tensorlane::orders {

enum class Towards : std::uint8_t { kInputs, kOutputs };

// For every operation the set of `members` that it reaches along inputs (or outputs), itself included. Equal sets are
// held once: graphs of thousands of operations have about as many sets as members.
class Reach {
 public:
  // "op.dep" of TicTac, section 4.1, for members = recv operations and Towards::kInputs. In O((operations + inputs) *
  // members / 64). kResourceExhausted when the sets would take more than kMostBytes.
  static Result<Reach> build(const Graph& graph, std::span<const Operation> members, Towards towards);

  static constexpr Bytes kMostBytes = mib(1024);

  std::size_t sets() const { return sets_.size() / words_; }
  std::uint32_t set_of(Operation op) const { return set_of_[op.value]; }

  // Bit m of word m / 64: whether members[m] is in the set.
  std::span<const std::uint64_t> bits(std::uint32_t set) const {
    return std::span(sets_).subspan(set * words_, words_);
  }
  bool holds(std::uint32_t set, std::uint32_t member) const {
    return (bits(set)[member / 64] >> (member % 64) & 1) != 0;
  }

 private:
  Result<std::uint32_t> intern(std::span<const std::uint64_t> bits);
  void grow();

  std::size_t words_ = 1;              // per set
  std::vector<std::uint64_t> sets_;    // end to end
  std::vector<std::uint32_t> set_of_;  // by operation
  std::vector<std::uint32_t> slots_;   // an open hash table of sets
};

}  // namespace tensorlane::orders
