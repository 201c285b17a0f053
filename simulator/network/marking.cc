#include "simulator/network/marking.h"

namespace tensorlane::simulator {

double mark_probability(const Marking& m, std::uint64_t waits, std::uint64_t bytes) {
  if (waits <= m.k_min.value) return 0;
  if (waits >= m.k_max.value) return 1;
  const double share = static_cast<double>(waits - m.k_min.value) / static_cast<double>((m.k_max - m.k_min).value);
  double none = 1;
  for (std::uint64_t done = 0; done < bytes; done += m.packet.value) none *= 1 - share * m.p_max;
  return 1 - none;
}

}  // namespace tensorlane::simulator
