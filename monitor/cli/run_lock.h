// Tells the runtime folders of runs that go on from those that a killed run has left.
#pragma once

#include <string>
#include <utility>

#include "common/base/status.h"

namespace tensorlane::cli {

// Held while a run goes on; the kernel lets go of it however the process ends.
class RunLock {
 public:
  // Of a runtime folder that nobody else has. Error as cannot_write().
  static Result<RunLock> hold(const std::string& folder);
  ~RunLock();
  RunLock(RunLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RunLock& operator=(RunLock&&) = delete;

 private:
  explicit RunLock(int fd) : fd_(fd) {}
  int fd_;
};

// Removes the folders in `root` (runtime_root()) whose runs have ended without removing them: they hold secret keys.
// Folders of labs, and logs that are kept, stay.
void remove_ended_runs(const std::string& root);

}  // namespace tensorlane::cli
