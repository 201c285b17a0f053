// Memory that a daemon shares with one client process: segments of arenas, and rings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/base/ledger.h"
#include "common/base/status.h"

namespace tensorlane::ports {

// One segment in the daemon's own mapping: fixed in size, populated, zeroed and sealed (law 16). Unmapped when the
// object goes. Until close_holes() a client may punch holes into it.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  // Valid as long as the object. Any thread; what a client does to it cannot make an access crash.
  virtual std::span<std::byte> bytes() const = 0;
  // The descriptor to hand to the client. Belongs to the object.
  virtual int fd() const = 0;
  // True once pages were taken away from it: holes were punched and nobody has written there since, or an access found
  // nothing there. Any thread.
  virtual bool damaged() const = 0;
  // From now on nobody can map it for writing any more, or take pages away: a hole that is punched and filled again
  // between two looks at damaged() would go unnoticed. For when the client has mapped it. Where the kernel cannot
  // (Linux before 5.1), holes stay possible. Idempotent. Error: Corrupt, when pages are gone already or the client has
  // kept it from being sealed.
  virtual Status close_holes() = 0;
};

// Makes segments. Any thread; create() may take about half a second for each gigabyte.
class SharedMemoryPool {
 public:
  virtual ~SharedMemoryPool() = default;
  // At least `bytes` (more than zero), rounded up to pages, charged to `owner`. Errors: ResourceExhausted (names the
  // limit, its value and the need), InvalidArgument (zero).
  virtual Result<std::shared_ptr<SharedMemory>> create(const Owner& owner, std::uint64_t bytes) = 0;
};

}  // namespace tensorlane::ports
