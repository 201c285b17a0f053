#include "daemon/progress/pulse.h"

#include <algorithm>

namespace tensorlane::progress {

void Pulse::look(const std::string& thread, std::uint64_t count, Time now) {
  const auto known = std::ranges::find(threads_, thread, &Thread::name);
  if (known == threads_.end()) {
    threads_.push_back({thread, count, now});
  } else if (known->count != count) {
    known->count = count;
    known->moved = now;
  }
}

std::vector<std::string> Pulse::still(Time now) const {
  std::vector<std::string> names;
  for (const Thread& thread : threads_) {
    if (now - thread.moved > patience_) names.push_back(thread.name);
  }
  return names;
}

}  // namespace tensorlane::progress
