#include "daemon/transport/ledger/ledger.h"

#include "common/base/assert.h"

namespace tensorlane::ledger {

Number SendLedger::push() {
  TL_ASSERT(!full());
  return pushed_++;
}

void SendLedger::written() {
  TL_ASSERT(next_ < pushed_);
  ++next_;
}

bool SendLedger::acknowledge(Number count) {
  if (count < delivered_ || count > next_) return false;
  delivered_ = count;
  return true;
}

std::optional<std::uint64_t> SendLedger::resume(Number count) {
  if (count < delivered_ || count > next_) return std::nullopt;
  const std::uint64_t again = next_ - count;
  delivered_ = count;
  next_ = count;
  return again;
}

}  // namespace tensorlane::ledger
