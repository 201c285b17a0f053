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
// object goes. Until check_sealed() is Ok a client may punch holes into it.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  // Valid as long as the object. Any thread; what a client does to it cannot make an access crash.
  virtual std::span<std::byte> bytes() const = 0;
  // Takes up to `most` more bytes of it from the host. True once all of it is there: then others may have it. Error:
  // ResourceExhausted. One thread at a time.
  virtual Result<bool> populate(std::uint64_t most) = 0;
  // A descriptor for the client, which the caller closes once the client has it: as long as the client has it open or
  // mapped, what the segment takes stays charged, also when the object is gone. Error: ResourceExhausted.
  virtual Result<int> share() const = 0;
  // What else is charged as long as the segment is there. Before it is shared.
  virtual void hold(Ledger::Charge charge) = 0;
  // The same for the descriptor that this process has of it: charged until that is closed, whoever else has the
  // segment.
  virtual void hold_descriptor(Ledger::Charge charge) = 0;
  // True once pages were taken away from it: holes were punched and nobody has written there since, or an access found
  // nothing there. Any thread.
  virtual bool damaged() const = 0;
  // Whether the client, having mapped it, has sealed it against being mapped for writing once more and against losing
  // pages (F_SEAL_FUTURE_WRITE): a hole that is punched and filled again between two looks at damaged() would go
  // unnoticed. A seal cannot be taken back. It is the client's to set, because that waits for whatever else the client
  // has the kernel do with the file. Where the kernel knows no such seal (Linux before 5.1), holes stay possible. Never
  // waits. Any thread. Error: Corrupt, when it is not sealed, or pages are gone already.
  virtual Status check_sealed() const = 0;
};

// Makes segments. Any thread.
class SharedMemoryPool {
 public:
  virtual ~SharedMemoryPool() = default;
  // What populate() takes at once, so that nobody waits long for the address space of the daemon, or for a turn.
  static constexpr std::uint64_t kAtOnce = std::uint64_t{4} << 20;

  // At least `bytes` (more than zero), rounded up to pages, charged to `owner`; populate() takes the memory. Errors:
  // ResourceExhausted (names the limit, its value and the need), InvalidArgument (zero).
  virtual Result<std::shared_ptr<SharedMemory>> make(const Owner& owner, std::uint64_t bytes) = 0;
  // Whether clients have segments whose objects are gone; reclaim() gives back what is charged for those that
  // they have let go of since.
  virtual bool has_leftovers() const { return false; }
  virtual void reclaim() {}
  // As make(), populated, which may take some seconds for each gigabyte. Errors: of make() and populate().
  Result<std::shared_ptr<SharedMemory>> create(const Owner& owner, std::uint64_t bytes) {
    TL_ASSIGN_OR_RETURN(std::shared_ptr<SharedMemory> segment, make(owner, bytes));
    for (bool there = false; !there;) {
      TL_ASSIGN_OR_RETURN(there, segment->populate(kAtOnce));
    }
    return segment;
  }
};

}  // namespace tensorlane::ports
