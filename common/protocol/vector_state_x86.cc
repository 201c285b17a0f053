#include "common/protocol/vector_state.h"

namespace tensorlane::protocol {

void clear_upper_halves() {
  static const bool has_upper_halves = __builtin_cpu_supports("avx");
  if (has_upper_halves) asm volatile("vzeroupper");
}

}  // namespace tensorlane::protocol
