#include "simulator/orders/timetable.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "common/base/assert.h"

namespace tensorlane::orders {
namespace {

template <typename T>
using SmallestFirst = std::priority_queue<T, std::vector<T>, std::greater<>>;

// What waits for one resource.
class Ready {
 public:
  bool empty() const { return numbered_.empty() && unnumbered_.empty(); }

  void push(Operation op, std::uint32_t priority) {
    if (priority == kNoPriority)
      unnumbered_.push(op.value);
    else
      numbered_.push({priority, op.value});
  }

  Operation pop() {
    if (numbered_.empty() || (!unnumbered_.empty() && unnumbered_.top() < numbered_.top().second)) {
      const Operation op(unnumbered_.top());
      unnumbered_.pop();
      return op;
    }
    const Operation op(numbered_.top().second);
    numbered_.pop();
    return op;
  }

 private:
  SmallestFirst<std::pair<std::uint32_t, std::uint32_t>> numbered_;  // priority, operation
  SmallestFirst<std::uint32_t> unnumbered_;
};

class Player {
 public:
  Player(const Graph& graph, const Priorities& priorities)
      : graph_(graph), priorities_(priorities), ready_(graph.resources().size()), busy_(ready_.size(), false) {
    result_.start.resize(graph.size());
    result_.end.resize(graph.size());
    missing_.resize(graph.size());
  }

  Timetable play() {
    for (std::uint32_t i = 0; i < graph_.size(); ++i) {
      missing_[i] = static_cast<std::uint32_t>(graph_.inputs(Operation(i)).size());
      if (missing_[i] == 0) ready_[graph_.resource(Operation(i)).value].push(Operation(i), priorities_[i]);
    }
    for (std::uint32_t r = 0; r < ready_.size(); ++r) take_next(r);
    while (!running_.empty()) {
      now_ = running_.top().first;
      // All that ends now ends before anything starts: what becomes ready competes with what was.
      std::vector<std::uint32_t> touched;
      while (!running_.empty() && running_.top().first == now_) {
        const Operation op(running_.top().second);
        running_.pop();
        complete(op, touched);
      }
      for (const std::uint32_t r : touched)
        if (!busy_[r]) take_next(r);
    }
    result_.makespan = now_;
    return std::move(result_);
  }

 private:
  void take_next(std::uint32_t resource) {
    if (ready_[resource].empty()) return;
    const Operation op = ready_[resource].pop();
    busy_[resource] = true;
    result_.start[op.value] = now_;
    result_.end[op.value] = now_ + graph_.time(op);
    running_.push({result_.end[op.value], op.value});
  }

  void complete(Operation op, std::vector<std::uint32_t>& touched) {
    const std::uint32_t resource = graph_.resource(op).value;
    busy_[resource] = false;
    touched.push_back(resource);
    for (const Operation output : graph_.outputs(op)) {
      if (--missing_[output.value] > 0) continue;
      touched.push_back(graph_.resource(output).value);
      ready_[graph_.resource(output).value].push(output, priorities_[output.value]);
    }
  }

  const Graph& graph_;
  const Priorities& priorities_;
  std::vector<Ready> ready_;                                   // by resource
  std::vector<bool> busy_;                                     // by resource
  std::vector<std::uint32_t> missing_;                         // by operation: inputs that are not complete
  SmallestFirst<std::pair<Duration, std::uint32_t>> running_;  // end, operation
  Duration now_;
  Timetable result_;
};

}  // namespace

std::vector<Operation> sequence_of(const Priorities& priorities) {
  std::vector<Operation> sequence;
  for (std::uint32_t i = 0; i < priorities.size(); ++i)
    if (priorities[i] != kNoPriority) sequence.push_back(Operation(i));
  std::stable_sort(sequence.begin(), sequence.end(),
                   [&](Operation a, Operation b) { return priorities[a.value] < priorities[b.value]; });
  return sequence;
}

Timetable timetable(const Graph& graph, const Priorities& priorities) {
  TL_ASSERT(priorities.size() == graph.size());
  return Player(graph, priorities).play();
}

}  // namespace tensorlane::orders
