#include "daemon/memory/leftovers.h"

#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <utility>

namespace tensorlane::memory {

Leftovers::~Leftovers() {
  if (inotify_ >= 0) close(inotify_);
}

// A memory file has no name, so it is "deleted" when the last that refers to it is gone: descriptors (also of the path
// alone, and those under way in a socket) and mappings. The watch keeps nothing.
Result<int> Leftovers::watch(int fd) {
  const auto cannot = [](const char* call, const char* limit) {
    return Status(Code::kResourceExhausted, "cannot watch a segment of shared memory",
                  std::string(call) + ": " + std::strerror(errno), std::string("raise ") + limit + " on this host");
  };
  std::lock_guard lock(mutex_);
  // Other programs of this user may have all that there are; later perhaps not.
  if (inotify_ < 0) inotify_ = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  if (inotify_ < 0) return cannot("inotify_init1", "fs.inotify.max_user_instances");
  const int watch = inotify_add_watch(inotify_, ("/proc/self/fd/" + std::to_string(fd)).c_str(), IN_DELETE_SELF);
  if (watch < 0) return cannot("inotify_add_watch", "fs.inotify.max_user_watches");
  return watch;
}

void Leftovers::add(int watch, int fd, std::vector<Ledger::Charge> charges) {
  {
    std::lock_guard lock(mutex_);
    segments_.emplace(watch, std::move(charges));
    count_.store(segments_.size(), std::memory_order_relaxed);
  }
  close(fd);
  sweep();
}

void Leftovers::sweep() {
  std::lock_guard lock(mutex_);
  for (const int watch : gone()) segments_.erase(watch);
  count_.store(segments_.size(), std::memory_order_relaxed);
}

// Also watches of segments that never were shared.
std::vector<int> Leftovers::gone() {
  std::vector<int> watches;
  std::array<char, 16 * 1024> events;
  for (ssize_t bytes; (bytes = read(inotify_, events.data(), events.size())) > 0;) {
    for (ssize_t at = 0; at < bytes;) {
      inotify_event event;
      std::memcpy(&event, events.data() + at, sizeof event);
      at += static_cast<ssize_t>(sizeof event) + event.len;
      missed_ = missed_ || (event.mask & IN_Q_OVERFLOW) != 0;
      if ((event.mask & IN_DELETE_SELF) != 0) watches.push_back(event.wd);
    }
  }
  return missed_ ? gone_by_list() : watches;
}

// The kernel had more to say than fs.inotify.max_queued_events. It lists the watches that there are still.
std::vector<int> Leftovers::gone_by_list() {
  std::set<int> there;
  std::ifstream list("/proc/self/fdinfo/" + std::to_string(inotify_));
  if (!list) return {};  // no descriptor is free: the next sweep looks again
  missed_ = false;
  for (std::string line; std::getline(list, line);) {
    int watch = 0;
    if (std::sscanf(line.c_str(), "inotify wd:%x", &watch) == 1) there.insert(watch);
  }
  std::vector<int> watches;
  for (const auto& [watch, charges] : segments_) {
    if (!there.contains(watch)) watches.push_back(watch);
  }
  return watches;
}

}  // namespace tensorlane::memory
