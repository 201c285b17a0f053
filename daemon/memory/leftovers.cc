#include "daemon/memory/leftovers.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

namespace tensorlane::memory {
namespace {

// The kernel leases a file for writing only to its sole user, and a mapping is a use. Where it gives no leases
// (fs.leases-enable is 0), nobody can tell. A descriptor of the path alone (O_PATH) is no use, so who keeps one keeps
// memory that is not charged any more, as with memory of its own. Whoever opens the file while it is leased has the kernel send a signal: of
// the default one, SIGIO, a process dies.
bool others_have(int fd) {
  fcntl(fd, F_SETSIG, SIGURG);
  if (fcntl(fd, F_SETLEASE, F_WRLCK) != 0) return errno == EAGAIN;
  fcntl(fd, F_SETLEASE, F_UNLCK);
  return false;
}

// The memory goes before its charge does.
void give_back(Leftovers::Segment& segment) {
  close(segment.fd);
  segment.charges.clear();
}

}  // namespace

Leftovers::~Leftovers() {
  for (Segment& segment : segments_) give_back(segment);
}

void Leftovers::add(Segment segment) {
  if (!others_have(segment.fd)) return give_back(segment);
  std::lock_guard lock(mutex_);
  segments_.push_back(std::move(segment));
  count_.fetch_add(1, std::memory_order_relaxed);
}

void Leftovers::sweep() {
  std::vector<Segment> free;
  {
    std::lock_guard lock(mutex_);
    const auto begin = std::partition(segments_.begin(), segments_.end(),
                                      [](const Segment& segment) { return others_have(segment.fd); });
    free.assign(std::make_move_iterator(begin), std::make_move_iterator(segments_.end()));
    segments_.erase(begin, segments_.end());
  }
  for (Segment& segment : free) give_back(segment);
  count_.fetch_sub(free.size(), std::memory_order_relaxed);
}

}  // namespace tensorlane::memory
