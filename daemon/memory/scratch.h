// Memory of the daemon's own for jobs, within the budget.
#pragma once

#include <memory>

#include "daemon/memory/budget.h"
#include "daemon/ports/scratch.h"

namespace tensorlane::memory {

// Anonymous mappings, with transparent huge pages where the kernel offers them.
class ScratchPool final : public ports::ScratchPool {
 public:
  explicit ScratchPool(std::shared_ptr<MemoryBudget> budget) : budget_(std::move(budget)) {}

  Result<std::unique_ptr<ports::Scratch>> make(const Owner& owner, std::uint64_t bytes) override;
  Result<Ledger::Charge> charge(const Owner& owner, std::uint64_t bytes) override;
  Status check(const Owner& owner, std::uint64_t bytes) const override;

 private:
  const std::shared_ptr<MemoryBudget> budget_;
};

}  // namespace tensorlane::memory
