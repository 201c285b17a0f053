// Segments of shared memory, within a budget.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "common/base/available_memory.h"
#include "common/base/units.h"
#include "daemon/ports/shared_memory.h"

namespace tensorlane::memory {

struct ArenaLimits {
  Bytes total = mib(std::uint64_t{64} << 10);  // of all segments that live
  Bytes keep_free = mib(256);                  // of the host's memory, for everybody else
};

// Makes sealed memfd segments (law 16): sized once, populated at once and zeroed, with transparent huge pages where the
// kernel offers them. Faults inside them are survived (fault_guard.h). Segments keep the pool's account alive; the pool
// itself may go before them.
class ArenaPool final : public ports::SharedMemoryPool {
 public:
  // `available` answers how much memory the host can spare; tests replace it.
  explicit ArenaPool(ArenaLimits limits, std::function<Bytes()> available = available_memory);

  // Errors: see the port. A failed call leaves nothing behind.
  Result<std::shared_ptr<ports::SharedMemory>> create(std::uint64_t bytes) override;

  // Bytes of all segments that live.
  Bytes in_use() const { return Bytes(account_->load()); }

 private:
  const ArenaLimits limits_;
  const std::function<Bytes()> available_;
  const std::shared_ptr<std::atomic<std::uint64_t>> account_;
};

}  // namespace tensorlane::memory
