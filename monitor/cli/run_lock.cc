#include "monitor/cli/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "monitor/cli/local_fabric.h"

namespace tensorlane::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "run.lock";

}  // namespace

// Locked before it has its name, so that nobody finds it unlocked while this process lives.
Result<RunLock> RunLock::hold(const std::string& folder) {
  const std::string path = folder + "/" + kName, unnamed = path + ".new";
  const int fd = ::open(unnamed.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) return cannot_write(unnamed);
  RunLock lock(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 || ::rename(unnamed.c_str(), path.c_str()) != 0) return cannot_write(path);
  return lock;
}

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
}

void remove_ended_runs(const std::string& root) {
  std::error_code failure;
  for (const fs::directory_entry& entry : fs::directory_iterator(root, failure)) {
    const int fd = ::open((entry.path() / kName).c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) continue;
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) fs::remove_all(entry.path(), failure);
    ::close(fd);
  }
}

}  // namespace tensorlane::cli
