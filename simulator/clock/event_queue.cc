#include "simulator/clock/event_queue.h"

#include <algorithm>

#include "common/base/assert.h"

namespace tensorlane::simulator {

void EventQueue::at(Time when, Action action) {
  TL_ASSERT(when >= now_);
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(actions_.size()));
    actions_.emplace_back();
  }
  const std::uint32_t place = free_.back();
  free_.pop_back();
  actions_[place] = std::move(action);
  heap_.push_back({when, order_++, place});
  std::push_heap(heap_.begin(), heap_.end(), Later());
}

bool EventQueue::run_next() {
  if (heap_.empty()) return false;
  std::pop_heap(heap_.begin(), heap_.end(), Later());
  const Entry entry = heap_.back();
  heap_.pop_back();
  now_ = entry.when;
  ++executed_;
  const Action action = std::move(actions_[entry.action]);
  free_.push_back(entry.action);
  action();
  return true;
}

}  // namespace tensorlane::simulator
