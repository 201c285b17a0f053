// Segments of shared memory, within a budget.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "common/base/units.h"
#include "daemon/memory/budget.h"
#include "daemon/memory/leftovers.h"
#include "daemon/ports/shared_memory.h"

namespace tensorlane::memory {

// Makes sealed memfd segments (law 16): sized once, populated at once and zeroed, with transparent huge pages where the
// kernel offers them. Faults inside them are survived (fault_guard.h). Segments keep the pool's account alive; the pool
// itself may go before them.
class ArenaPool final : public ports::SharedMemoryPool {
 public:
  explicit ArenaPool(std::shared_ptr<MemoryBudget> budget) : budget_(std::move(budget)) {}
  // With a budget of its own.
  explicit ArenaPool(MemoryLimits limits, std::function<Bytes()> available = available_memory)
      : ArenaPool(std::make_shared<MemoryBudget>(limits, std::move(available))) {}

  // Errors: see the port. A failed call leaves nothing behind.
  Result<std::shared_ptr<ports::SharedMemory>> make(const Owner& owner, std::uint64_t bytes) override;

  // Segments that are charged though no session has them: some process still has them open or mapped.
  std::size_t leftovers() const { return leftovers_->count(); }
  bool has_leftovers() const override { return !leftovers_->empty(); }
  void reclaim() override { leftovers_->sweep(); }

  // Bytes of all that the budget is charged with.
  Bytes in_use() const { return Bytes(budget_->ledger().in_use()); }

 private:
  Result<Ledger::Charge> take(const Owner& owner, std::uint64_t bytes);

  const std::shared_ptr<MemoryBudget> budget_;
  const std::shared_ptr<Leftovers> leftovers_ = std::make_shared<Leftovers>();
};

}  // namespace tensorlane::memory
