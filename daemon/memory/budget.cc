#include "daemon/memory/budget.h"

#include <string>

namespace tensorlane::memory {

std::string mebibytes(std::uint64_t bytes) {
  return std::to_string(bytes / (1 << 20) + (bytes % (1 << 20) != 0 ? 1 : 0)) + " MiB";
}

Ledger::Rules memory_rules(Bytes total) {
  return {.what = "memory",
          .key = "memory_limit",
          .user_key = "memory_limit for one user",
          .fix = "register less",
          .total = total.value,
          .amount_text = mebibytes};
}

Result<Ledger::Charge> MemoryBudget::take(const Owner& owner, std::uint64_t bytes) {
  TL_ASSIGN_OR_RETURN(Ledger::Charge charge, ledger_.take(owner, bytes));
  // The kernel would grant it and then kill somebody for it.
  TL_RETURN_IF_ERROR(check_host(bytes));
  return charge;
}

Status MemoryBudget::check(const Owner& owner, std::uint64_t bytes) const {
  TL_RETURN_IF_ERROR(ledger_.check(owner, bytes));
  return check_host(bytes);
}

Status MemoryBudget::check_host(std::uint64_t bytes) const {
  const std::uint64_t free = available_().value, keep = keep_free_.value;
  if (free >= bytes && free - bytes >= keep) return {};
  return {Code::kResourceExhausted, "this host is short of memory",
          mebibytes(bytes) + " needed, " + mebibytes(free) + " available, memory_keep_free is " + mebibytes(keep),
          "free memory on this host or lower memory_keep_free"};
}

}  // namespace tensorlane::memory
