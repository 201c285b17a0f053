// Platforms that the tool knows.
#include <algorithm>
#include <array>
#include <cctype>

#include "switch-config/policy/policy.h"

namespace tensorlane::switches {

namespace {

struct Known {
  std::string_view name, asic;
  std::uint64_t buffer;  // bytes; the vendor's data sheets say MB: taken as 10^6, the smaller reading
};

// Eight queues. Two lossless classes: what SONiC's own templates for these platforms configure (TC 3 and 4).
constexpr std::array kKnown{
    Known{"SN2010", "spectrum1", 16'000'000},  Known{"SN2100", "spectrum1", 16'000'000},
    Known{"SN2410", "spectrum1", 16'000'000},  Known{"SN2700", "spectrum1", 16'000'000},
    Known{"SN3420", "spectrum2", 42'000'000},  Known{"SN3700", "spectrum2", 42'000'000},
    Known{"SN3700C", "spectrum2", 42'000'000}, Known{"SN4600C", "spectrum3", 64'000'000},
    Known{"SN4700", "spectrum3", 64'000'000},  Known{"SN5400", "spectrum4", 160'000'000},
    Known{"SN5600", "spectrum4", 160'000'000},
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
  if (known == kKnown.end()) return filled;
  if (filled.asic.empty()) filled.asic = known->asic;
  if (!filled.buffer) filled.buffer = Bytes(known->buffer);
  if (!filled.queues) filled.queues = 8;
  if (!filled.lossless) filled.lossless = 2;
  return filled;
}

}  // namespace tensorlane::switches
