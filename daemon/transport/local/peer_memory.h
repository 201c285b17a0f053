// Reading payloads where they lie in the peer's memory ("cross memory attach": one copy, made by the kernel, as Open
// MPI and UCX do between processes).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/status.h"

namespace tensorlane::local {

// What an end tells of itself, so that the other one can find out whether it can read its memory.
struct MemoryProbe {
  std::uint64_t address = 0, value = 0;
};
MemoryProbe own_probe();

// The peer at the other end of a Unix socket: whose process connected, or listened. Errors: kPermissionDenied when it
// is neither root's nor this process's user's.
struct PeerProcess {
  pid_t id = 0;  // 0: not visible from here
};
Result<PeerProcess> peer_process(int socket);

// One thread.
class PeerMemory {
 public:
  // Reads nothing.
  PeerMemory() = default;
  // Where the probe does not read as told, nothing can be read: other namespaces, or ptrace is restricted.
  PeerMemory(PeerProcess process, const MemoryProbe& probe);

  bool readable() const { return process_.id != 0; }
  // Copies `into.size()` bytes from `address` of the peer. False, with errno, when not all could be read. What was read
  // counts only if the process still lives afterwards.
  bool read(std::uint64_t address, std::span<std::byte> into) const;

 private:
  PeerProcess process_;
};

}  // namespace tensorlane::local
