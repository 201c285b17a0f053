// Survives SIGBUS on memory that is shared with clients (law 16).
//
// A client that holds a memfd can take pages away from under the daemon, and the kernel may find no page to put back.
// The process-wide handler knows the guarded mappings, puts a page of zeros where the fault was and remembers the
// mapping as damaged; its owner then ends the session. A fault anywhere else goes on to whoever handled SIGBUS before,
// which by default ends the process.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace tensorlane::memory {

// Guards one mapping for as long as it lives. Any thread.
class FaultGuard {
 public:
  static constexpr std::size_t kMaxGuards = 8192;

  // Installs the handler with the first guard. `mapping` starts and ends on page boundaries. Null when kMaxGuards live
  // already.
  static std::unique_ptr<FaultGuard> make(std::span<std::byte> mapping);
  // Before the mapping goes.
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

  // True once an access inside the mapping has faulted.
  bool faulted() const;

 private:
  explicit FaultGuard(std::size_t slot) : slot_(slot) {}
  const std::size_t slot_;
};

}  // namespace tensorlane::memory
