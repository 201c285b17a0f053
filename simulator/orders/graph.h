// The computation graph of one iteration on one worker: operations, the resource that each one occupies, how long it
// takes, and what it waits for.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"

namespace tensorlane::orders {

enum class Kind : std::uint8_t { kCompute, kRecv, kSend };

// "compute", "recv", "send". Never null.
const char* kind_name(Kind kind);
// Nothing for any other name.
std::optional<Kind> kind_from_name(std::string_view name);

// An operation of a graph: its position in the list that the graph was built from.
using Operation = Strong<struct OperationTag, std::uint32_t>;

// A resource of a graph, which carries out one operation at a time.
using Resource = Strong<struct ResourceTag, std::uint32_t>;

// An operation before its graph exists: others are named.
struct Description {
  std::string name;  // unique in its graph, not empty
  Kind kind = Kind::kCompute;
  std::string resource;             // what it occupies, say "gpu" or "network"; not empty
  Duration time;                    // with the resource to itself (TicTac, section 3.1: the time oracle); not negative
  Bytes bytes;                      // of a transfer; 0: unknown
  std::vector<std::string> inputs;  // the names of what must be complete before it may start
};

// `after` may start only when `before` is complete.
struct Dependency {
  Operation before, after;
  bool operator==(const Dependency&) const = default;
};

// A directed graph without cycles. Immutable, so that any thread may read it.
class Graph {
 public:
  // No operations.
  Graph() = default;

  // Takes time and memory in proportion to operations and inputs. kInvalidArgument, naming the operation, for an empty
  // or doubled name, an empty resource, a negative time, an input that is none of the names, and operations that wait
  // for each other; also when all times together exceed kLongest. kResourceExhausted for more than kMostOperations.
  static Result<Graph> build(std::vector<Description> operations);

  // The same operations with further dependencies. kInvalidArgument if operations would then wait for each other.
  Result<Graph> with(std::span<const Dependency> dependencies) const;

  static constexpr std::size_t kMostOperations = 100'000'000;
  static constexpr Duration kLongest = seconds(1'000'000'000);

  std::size_t size() const { return nodes_.size(); }
  const std::string& name(Operation op) const { return nodes_[op.value].name; }
  Kind kind(Operation op) const { return nodes_[op.value].kind; }
  Resource resource(Operation op) const { return nodes_[op.value].resource; }
  Duration time(Operation op) const { return nodes_[op.value].time; }
  Bytes bytes(Operation op) const { return nodes_[op.value].bytes; }

  // What `op` waits for, and what waits for it. Valid as long as the graph.
  std::span<const Operation> inputs(Operation op) const { return inputs_.of(op); }
  std::span<const Operation> outputs(Operation op) const { return outputs_.of(op); }

  // Every operation after all of its inputs; of those that could come next, the first in the list.
  std::span<const Operation> topological() const { return topological_; }

  // The operations of one kind, in the order of the list.
  std::vector<Operation> of_kind(Kind kind) const;

  // By Resource, in the order in which the list names them first.
  std::span<const std::string> resources() const { return resources_; }

 private:
  struct Node {
    std::string name;
    Duration time;
    Bytes bytes;
    Resource resource;
    Kind kind = Kind::kCompute;
  };
  // One list per operation, end to end.
  struct Lists {
    std::vector<std::uint32_t> first;  // size() + 1 positions in `members`
    std::vector<Operation> members;
    std::span<const Operation> of(Operation op) const {
      return std::span(members).subspan(first[op.value], first[op.value + 1] - first[op.value]);
    }
  };

  static Lists grouped(std::size_t operations, std::span<const Dependency> edges, bool by_after);
  Status connect(std::span<const Dependency> edges);
  Status sort();
  Status cycle_error(std::span<const std::uint32_t> missing) const;

  std::vector<Node> nodes_;
  std::vector<std::string> resources_;
  Lists inputs_, outputs_;
  std::vector<Operation> topological_;
};

}  // namespace tensorlane::orders
