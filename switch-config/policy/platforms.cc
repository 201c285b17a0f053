// Platforms that the tool knows.
#include <algorithm>
#include <array>
#include <cctype>

#include "switch-config/policy/policy.h"

namespace tensorlane::switches {

namespace {

// What SONiC's templates for NVIDIA's platforms give to the pool of lossless classes at the egress: all of the packet
// memory that can be used. Data sheets say more.
struct Memory {
  std::string_view asic;
  std::uint64_t bytes;
};
constexpr std::array kMemory{Memory{"spectrum1", 13'945'824}, Memory{"spectrum2", 34'287'552},
                             Memory{"spectrum3", 60'817'392}, Memory{"spectrum4", 158'229'504},
                             Memory{"spectrum5", 136'210'432}};

struct Known {
  std::string_view name, asic;
};

// Eight queues. Two lossless classes: what SONiC's own templates for these platforms configure (TC 3 and 4).
constexpr std::array kKnown{
    Known{"SN2010", "spectrum1"},  Known{"SN2100", "spectrum1"},  Known{"SN2410", "spectrum1"},
    Known{"SN2700", "spectrum1"},  Known{"SN3420", "spectrum2"},  Known{"SN3700", "spectrum2"},
    Known{"SN3700C", "spectrum2"}, Known{"SN4600C", "spectrum3"}, Known{"SN4700", "spectrum3"},
    Known{"SN5400", "spectrum4"},  Known{"SN5600", "spectrum4"},  Known{"SN5640", "spectrum5"},
};

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

}  // namespace

fabric::Platform known_platform(const fabric::Platform& platform) {
  fabric::Platform filled = platform;
  const std::string name = upper(platform.name);
  const auto known = std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& k) { return k.name == name; });
  if (known != kKnown.end() && filled.asic.empty()) filled.asic = known->asic;
  const auto memory =
      std::find_if(kMemory.begin(), kMemory.end(), [&](const Memory& m) { return m.asic == filled.asic; });
  if (memory != kMemory.end() && (filled.buffer ? filled.buffer->value > memory->bytes : known != kKnown.end()))
    filled.buffer = Bytes(memory->bytes);
  if (known == kKnown.end()) return filled;
  if (!filled.queues) filled.queues = 8;
  if (!filled.lossless) filled.lossless = 2;
  return filled;
}

}  // namespace tensorlane::switches
