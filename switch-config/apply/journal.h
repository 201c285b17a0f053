// What an apply has set out to do, on disk: a folder from which any later process can bring back the old state. The
// name of the one file that is there says how far it has come, and a step is one rename, so that of two processes that
// want to take a step only one does.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"

namespace tensorlane::switches::apply {

// The queues of a port, as commands (LinuxPort::lines) and as read_port() says them.
struct Queues {
  std::string lines, state;
};

struct PortChange {
  std::string device, port;
  std::string ns;      // as in Namespaces::enter()
  ino_t ns_inode = 0;  // what enter() answered
  Queues before, after;

  bool changes() const { return before.state != after.state; }
  // "s0 eth1"
  std::string label() const { return device + " " + port; }
};

struct Record {
  std::vector<PortChange> ports;  // those that are changed first in front
  std::size_t canary = 0;         // how many of them are the pair that is tried first
  Time confirm_by{};              // of CLOCK_BOOTTIME
};

enum class Phase {
  kNone,
  kChanging,   // some ports may be new
  kWaiting,    // all are new; they go back unless somebody confirms
  kReverting,  // some ports may be old again
};

class Journal {
 public:
  // Makes the folder where it is missing; only to look at it, leaves it missing: then nothing was ever applied. A
  // relative name is taken from where this process is now. kPermissionDenied unless it belongs to this user alone.
  enum class Purpose { kLook, kChange };
  static Result<Journal> open(const std::string& folder, Purpose purpose);
  ~Journal();
  Journal(Journal&& other) noexcept;
  Journal& operator=(Journal&&) = delete;

  // One apply at a time. Children of a fork hold the lock, too: it is free when all of them have gone. False where
  // somebody else has it.
  bool lock();

  Phase phase() const;
  // Of an apply that is under way. kCorrupt, with the file.
  Result<Record> read() const;
  // What was confirmed last, or brought back: for each port `after`. Empty where nothing was.
  Result<Record> read_applied() const;

  // kNone -> kChanging. Also writes rollback.sh, with which a person can bring back the old state by hand.
  Status begin(const Record& record) const;
  // False where the journal is not in `from` any more. To kNone: kWaiting is confirmed.
  bool move(Phase from, Phase to) const;
  // kReverting -> kNone: the old state runs.
  Status reverted() const;
  // The last confirmed apply, to be brought back: kNone -> kReverting. False where nothing was confirmed.
  bool reopen() const;

  const std::string& folder() const { return folder_; }

 private:
  explicit Journal(std::string folder) : folder_(std::move(folder)) {}
  std::string path(Phase phase) const;
  Result<Record> read_file(const std::string& path) const;
  Status write(const std::string& path, const std::string& text, mode_t mode) const;

  std::string folder_;
  int lock_ = -1;
};

}  // namespace tensorlane::switches::apply
