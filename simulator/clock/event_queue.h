// The virtual clock: time jumps from one scheduled action to the next. Actions at the same time run in the order they
// were scheduled, so a run depends on nothing but its seed. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "common/base/units.h"

namespace tensorlane::simulator {

class EventQueue {
 public:
  using Action = std::function<void()>;

  Time now() const { return now_; }
  // `when` not before now().
  void at(Time when, Action action);
  void after(Duration delay, Action action) { at(now_ + delay, std::move(action)); }
  // Runs the next action; false when there is none.
  bool run_next();
  std::uint64_t executed() const { return executed_; }

 private:
  // Actions lie still while the heap is sorted: moving them was a fifth of a large simulation's time.
  struct Entry {
    Time when;
    std::uint64_t order;
    std::uint32_t action;
  };
  struct Later {
    bool operator()(const Entry& a, const Entry& b) const {
      return a.when != b.when ? a.when > b.when : a.order > b.order;
    }
  };
  std::vector<Entry> heap_;
  std::vector<Action> actions_;
  std::vector<std::uint32_t> free_;  // places in actions_
  Time now_{0};
  std::uint64_t order_ = 0;
  std::uint64_t executed_ = 0;
};

}  // namespace tensorlane::simulator
