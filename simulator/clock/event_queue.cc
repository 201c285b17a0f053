#include "simulator/clock/event_queue.h"

#include <algorithm>

#include "common/base/assert.h"

namespace tensorlane::simulator {

void EventQueue::at(Time when, Action action) {
  TL_ASSERT(when >= now_);
  heap_.push_back({when, order_++, std::move(action)});
  std::push_heap(heap_.begin(), heap_.end(), later);
}

bool EventQueue::run_next() {
  if (heap_.empty()) return false;
  std::pop_heap(heap_.begin(), heap_.end(), later);
  Entry entry = std::move(heap_.back());
  heap_.pop_back();
  now_ = entry.when;
  ++executed_;
  entry.action();
  return true;
}

}  // namespace tensorlane::simulator
