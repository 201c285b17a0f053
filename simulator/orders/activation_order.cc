#include "simulator/orders/activation_order.h"

#include <algorithm>
#include <bit>

#include "simulator/orders/reach.h"

namespace tensorlane::orders {

namespace {

// What a send operation still waits for. Of two that take the same time, fewer operations come first: else what needs a
// part of another one's operations, where the rest takes no time, could be ready before it and be numbered after it.
struct Cost {
  Duration time;
  std::uint64_t operations = 0;
  auto operator<=>(const Cost&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14's mistake
};

// Compute operations that the same send operations wait for, so that they are marked together.
struct Groups {
  Reach reach;
  std::vector<Cost> all;   // by set of `reach`; nothing once marked
  std::vector<Cost> cost;  // by send: what is not marked of that which it waits for

  template <typename F>
  void for_each_send(std::uint32_t set, F&& f) const {
    const auto bits = reach.bits(set);
    for (std::size_t w = 0; w < bits.size(); ++w)
      for (std::uint64_t word = bits[w]; word != 0; word &= word - 1)
        f(static_cast<std::uint32_t>(w * 64 + std::countr_zero(word)));
  }

  void mark(std::uint32_t send) {
    for (std::uint32_t set = 0; set < all.size(); ++set) {
      if (all[set].operations == 0 || !reach.holds(set, send)) continue;
      for_each_send(set, [&](std::uint32_t s) {
        cost[s].time -= all[set].time;
        cost[s].operations -= all[set].operations;
      });
      all[set] = {};
    }
  }
};

// Walks what an operation waits for, each operation once over all walks.
class Executed {
 public:
  explicit Executed(const Graph& graph) : graph_(graph), done_(graph.size(), false), seen_(graph.size(), false) {}

  // Executes what `send` still needs. The compute operations among it which nothing else that computes held back.
  std::vector<Operation> free_set_of(Operation send) {
    std::vector<Operation> needed;
    std::vector<Operation> open{send};
    while (!open.empty()) {
      const Operation op = open.back();
      open.pop_back();
      if (seen_[op.value]) continue;
      seen_[op.value] = true;
      needed.push_back(op);
      for (const Operation input : graph_.inputs(op)) open.push_back(input);
    }
    std::vector<Operation> free;
    for (const Operation op : needed)
      if (graph_.kind(op) == Kind::kCompute && is_free(op)) free.push_back(op);
    for (const Operation op : needed) done_[op.value] = true;
    std::sort(free.begin(), free.end());
    return free;
  }

 private:
  bool is_free(Operation op) const {
    return std::ranges::none_of(
        graph_.inputs(op), [&](Operation input) { return graph_.kind(input) != Kind::kRecv && !done_[input.value]; });
  }

  const Graph& graph_;
  std::vector<bool> done_, seen_;
};

}  // namespace

Result<Priorities> activation_order(const Graph& graph) {
  const std::vector<Operation> sends = graph.of_kind(Kind::kSend);
  if (sends.empty())
    return Status(Code::kInvalidArgument, "the graph has no send operation", "", "there is nothing to activate");
  TL_ASSIGN_OR_RETURN(Reach reach, Reach::build(graph, sends, Towards::kOutputs));
  Groups groups{std::move(reach), {}, std::vector<Cost>(sends.size())};
  groups.all.resize(groups.reach.sets());
  for (const Operation op : graph.of_kind(Kind::kCompute)) {
    groups.all[groups.reach.set_of(op)].time += graph.time(op);
    ++groups.all[groups.reach.set_of(op)].operations;
  }
  for (std::uint32_t set = 0; set < groups.all.size(); ++set) {
    groups.for_each_send(set, [&](std::uint32_t s) {
      groups.cost[s].time += groups.all[set].time;
      groups.cost[s].operations += groups.all[set].operations;
    });
  }
  Priorities priorities(graph.size(), kNoPriority);
  for (std::uint32_t number = 0; number < sends.size(); ++number) {
    std::uint32_t best = kNoPriority;
    for (std::uint32_t s = 0; s < sends.size(); ++s)
      if (priorities[sends[s].value] == kNoPriority && (best == kNoPriority || groups.cost[s] < groups.cost[best]))
        best = s;
    priorities[sends[best].value] = number;
    groups.mark(best);
  }
  return priorities;
}

std::vector<Dependency> enforce_activation(const Graph& graph, std::span<const Operation> order) {
  std::vector<Dependency> added;
  Executed executed(graph);
  std::vector<Operation> end;
  for (const Operation send : order) {
    const std::vector<Operation> free = executed.free_set_of(send);
    // What send i - 1 and send i both wait for holds nothing back: the end set stays the one before.
    if (free.empty()) continue;
    for (const Operation before : end)
      for (const Operation after : free) added.push_back({before, after});
    end.clear();
    for (const Operation input : graph.inputs(send))
      if (graph.kind(input) != Kind::kRecv) end.push_back(input);
  }
  return added;
}

}  // namespace tensorlane::orders
