#include "simulator/checkers/credits.h"

#include <bit>

namespace tensorlane::simulator {

std::optional<std::string> credits_away(HostIndex a, const engine::Engine& from, HostIndex b,
                                        const engine::Engine& to) {
  const engine::Engine::Lent lent = from.lent(b), back = to.lent(a);
  if (lent.grants > 0) return fmt::format("host {}: {} grants are left", a.value, lent.grants);
  if (lent.slots_out != back.slots_owed) {
    return fmt::format("host {} lacks the slots {:#x} of host {}, which owes it {:#x}", a.value, lent.slots_out,
                       b.value, back.slots_owed);
  }
  const auto owed = static_cast<std::uint32_t>(std::popcount(back.slots_owed));
  if (owed > 0 && owed * 2 >= back.slots) {
    return fmt::format("host {} has read {} of {} slots of host {} and gives them not back", b.value, owed, back.slots,
                       a.value);
  }
  return std::nullopt;
}

}  // namespace tensorlane::simulator
