#include "simulator/orders/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <unordered_map>
#include <utility>

namespace tensorlane::orders {
namespace {

constexpr const char* kKindNames[] = {"compute", "recv", "send"};

// Keys are views of the descriptions' own names.
using Names = std::unordered_map<std::string_view, std::uint32_t>;

std::string quoted(const Description& op) {
  return fmt::format("operation '{}'", op.name);
}

Status check(const Description& op, std::size_t position) {
  if (op.name.empty())
    return Status(Code::kInvalidArgument, "an operation has no name", fmt::format("operation {}", position),
                  "give every operation a name of its own");
  if (op.resource.empty())
    return Status(Code::kInvalidArgument, "an operation has no resource", quoted(op),
                  "name what it occupies, say 'gpu' or 'network'");
  if (op.time < Duration(0))
    return Status(Code::kInvalidArgument, "an operation's time is negative", quoted(op), "times are at least 0");
  return {};
}

Result<Names> index(std::span<const Description> operations) {
  if (operations.size() > Graph::kMostOperations)
    return Status(Code::kResourceExhausted, fmt::format("a graph of {} operations", operations.size()), "",
                  fmt::format("at most {} are possible", Graph::kMostOperations));
  Names names;
  names.reserve(operations.size());
  Duration left = Graph::kLongest;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const Description& op = operations[i];
    TL_RETURN_IF_ERROR(check(op, i));
    if (!names.emplace(op.name, static_cast<std::uint32_t>(i)).second)
      return Status(Code::kInvalidArgument, "two operations have one name", quoted(op),
                    "give every operation a name of its own");
    if (op.time > left)
      return Status(Code::kInvalidArgument, "the times of all operations add up to more than 1e9 s", quoted(op),
                    "give times in seconds");
    left -= op.time;
  }
  return names;
}

Result<std::vector<Dependency>> named_edges(std::span<const Description> operations, const Names& names) {
  std::vector<Dependency> edges;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    for (const std::string& input : operations[i].inputs) {
      const auto found = names.find(input);
      if (found == names.end())
        return Status(Code::kInvalidArgument, fmt::format("the input '{}' is no operation of the graph", input),
                      quoted(operations[i]), "name an operation of the same graph");
      edges.push_back({Operation(found->second), Operation(static_cast<std::uint32_t>(i))});
    }
  }
  return edges;
}

}  // namespace

const char* kind_name(Kind kind) {
  return kKindNames[static_cast<std::size_t>(kind)];
}

std::optional<Kind> kind_from_name(std::string_view name) {
  const auto* found = std::find(std::begin(kKindNames), std::end(kKindNames), name);
  if (found == std::end(kKindNames)) return std::nullopt;
  return static_cast<Kind>(found - std::begin(kKindNames));
}

Result<Graph> Graph::build(std::vector<Description> operations) {
  TL_ASSIGN_OR_RETURN(const Names names, index(operations));
  TL_ASSIGN_OR_RETURN(const std::vector<Dependency> edges, named_edges(operations, names));
  Graph graph;
  graph.nodes_.reserve(operations.size());
  std::unordered_map<std::string, std::uint32_t> resources;
  for (Description& op : operations) {
    const auto [found, is_new] = resources.emplace(op.resource, static_cast<std::uint32_t>(graph.resources_.size()));
    if (is_new) graph.resources_.push_back(op.resource);
    // The names are copied: the views in `names` would not survive a move of short ones.
    graph.nodes_.push_back({op.name, op.time, op.bytes, Resource(found->second), op.kind});
  }
  TL_RETURN_IF_ERROR(graph.connect(edges));
  return graph;
}

Result<Graph> Graph::with(std::span<const Dependency> dependencies) const {
  std::vector<Dependency> edges(dependencies.begin(), dependencies.end());
  for (std::uint32_t i = 0; i < size(); ++i)
    for (const Operation input : inputs(Operation(i))) edges.push_back({input, Operation(i)});
  Graph graph;
  graph.nodes_ = nodes_;
  graph.resources_ = resources_;
  TL_RETURN_IF_ERROR(graph.connect(edges));
  return graph;
}

std::vector<Operation> Graph::of_kind(Kind kind) const {
  std::vector<Operation> found;
  for (std::uint32_t i = 0; i < size(); ++i)
    if (nodes_[i].kind == kind) found.push_back(Operation(i));
  return found;
}

// A counting sort, so that each list keeps the order of `edges`.
Graph::Lists Graph::grouped(std::size_t operations, std::span<const Dependency> edges, bool by_after) {
  Lists lists;
  lists.first.assign(operations + 1, 0);
  for (const Dependency& edge : edges) ++lists.first[(by_after ? edge.after : edge.before).value + 1];
  for (std::size_t i = 0; i < operations; ++i) lists.first[i + 1] += lists.first[i];
  std::vector<std::uint32_t> next(lists.first.begin(), lists.first.end() - 1);
  lists.members.resize(edges.size());
  for (const Dependency& edge : edges) {
    const auto [key, member] = by_after ? std::pair(edge.after, edge.before) : std::pair(edge.before, edge.after);
    lists.members[next[key.value]++] = member;
  }
  return lists;
}

Status Graph::connect(std::span<const Dependency> edges) {
  inputs_ = grouped(size(), edges, true);
  outputs_ = grouped(size(), edges, false);
  return sort();
}

// Kahn's algorithm with the ready operations in a heap, so that the result is a function of the list alone.
Status Graph::sort() {
  std::vector<std::uint32_t> missing(size());
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
  for (std::uint32_t i = 0; i < size(); ++i) {
    missing[i] = static_cast<std::uint32_t>(inputs(Operation(i)).size());
    if (missing[i] == 0) ready.push(i);
  }
  topological_.clear();
  topological_.reserve(size());
  while (!ready.empty()) {
    const Operation next(ready.top());
    ready.pop();
    topological_.push_back(next);
    for (const Operation output : outputs(next))
      if (--missing[output.value] == 0) ready.push(output.value);
  }
  return topological_.size() == size() ? Status() : cycle_error(missing);
}

// Every operation that is still missing inputs has one that is missing some, too: going from input to input ends in a
// cycle.
Status Graph::cycle_error(std::span<const std::uint32_t> missing) const {
  std::vector<bool> seen(size(), false);
  std::vector<Operation> path;
  std::uint32_t at = 0;
  while (missing[at] == 0) ++at;
  while (!seen[at]) {
    seen[at] = true;
    path.push_back(Operation(at));
    for (const Operation input : inputs(Operation(at)))
      if (missing[input.value] > 0) at = input.value;
  }
  const auto start = std::find(path.begin(), path.end(), Operation(at));
  constexpr std::ptrdiff_t kShown = 8;
  std::string waits;
  for (auto op = start; op != path.end() && op - start < kShown; ++op) waits += fmt::format("'{}' -> ", name(*op));
  if (path.end() - start > kShown) waits += "... -> ";
  return Status(Code::kInvalidArgument, "operations wait for each other", waits + fmt::format("'{}'", name(*start)),
                "take out one of these inputs");
}

}  // namespace tensorlane::orders
