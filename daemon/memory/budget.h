// How much memory a daemon may take for its clients and their jobs, and who has it.
#pragma once

#include <cstdint>
#include <functional>

#include "common/base/available_memory.h"
#include "common/base/ledger.h"
#include "common/base/status.h"
#include "common/base/units.h"

namespace tensorlane::memory {

struct MemoryLimits {
  Bytes total = mib(std::uint64_t{64} << 10);  // of everything that lives: arenas, staging, scratch, tables
  Bytes keep_free = mib(256);                  // of the host's memory, for everybody else
};

// "12 MiB", rounded up.
std::string mebibytes(std::uint64_t bytes);

// The rules of a ledger of bytes; whoever knows the users completes them.
Ledger::Rules memory_rules(Bytes total);

// Any thread.
class MemoryBudget {
 public:
  // `available` answers how much memory the host can spare; tests replace it.
  MemoryBudget(Ledger::Rules rules, Bytes keep_free, std::function<Bytes()> available = available_memory)
      : keep_free_(keep_free), available_(std::move(available)), ledger_(std::move(rules)) {}
  explicit MemoryBudget(MemoryLimits limits, std::function<Bytes()> available = available_memory)
      : MemoryBudget(memory_rules(limits.total), limits.keep_free, std::move(available)) {}

  // Before the memory is taken from the host. Errors: kResourceExhausted, which names the limit, its value, what is
  // needed and who has what is in use.
  Result<Ledger::Charge> take(const Owner& owner, std::uint64_t bytes);
  // Whether take() would succeed now.
  Status check(const Owner& owner, std::uint64_t bytes) const;
  // Whether the host can spare so much more and keep what it shall keep.
  Status check_host(std::uint64_t bytes) const;

  const Ledger& ledger() const { return ledger_; }

 private:
  const Bytes keep_free_;
  const std::function<Bytes()> available_;
  Ledger ledger_;
};

}  // namespace tensorlane::memory
