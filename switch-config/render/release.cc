#include "switch-config/render/release.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include <fmt/format.h>

namespace tensorlane::switches {

namespace {

struct Known {
  fabric::Nos nos;
  std::string_view name;
  Release first, last;
};

// SONiC: references without brackets since 202106. Cumulus: profiles for PFC, ECN and shapers since 5.4. EOS, NX-OS,
// Junos and Onyx: our judgement of the releases that the written words hold for; vendors state no such range.
constexpr std::array kKnown{
    Known{fabric::Nos::kSonic, "SONiC", {202106, 0}, {202612, 0}},
    Known{fabric::Nos::kCumulus, "Cumulus", {5, 4}, {5, 17}},
    Known{fabric::Nos::kEos, "EOS", {4, 26}, {4, 36}},
    Known{fabric::Nos::kNxos, "NX-OS", {9, 2}, {10, 6}},
    Known{fabric::Nos::kJunos, "Junos", {19, 1}, {25, 4}},
    Known{fabric::Nos::kOnyx, "Onyx", {3, 8}, {3, 10}},
};

// "4.32.1F": the number before the first dot, and the one behind it.
std::optional<Release> parse(std::string_view text) {
  Release release;
  const char* end = text.data() + text.size();
  const auto major = std::from_chars(text.data(), end, release.major);
  if (major.ec != std::errc()) return std::nullopt;
  if (major.ptr == end) return release;
  if (*major.ptr != '.') return std::nullopt;
  return std::from_chars(major.ptr + 1, end, release.minor).ec == std::errc() ? std::optional(release) : std::nullopt;
}

std::string shown(const Release& release) {
  return release.minor == 0 ? std::to_string(release.major) : fmt::format("{}.{}", release.major, release.minor);
}

}  // namespace

Result<Release> release_of(const DeviceQos& device, fabric::Nos nos) {
  for (const Known& known : kKnown) {
    if (known.nos != nos) continue;
    if (device.release.empty()) return known.last;
    const std::optional<Release> release = parse(device.release);
    if (release && *release >= known.first) return std::min(*release, known.last);
    return Status(Code::kInvalidArgument, fmt::format("release '{}' of {} is not known", device.release, known.name),
                  fmt::format("device '{}'", device.name),
                  fmt::format("expected one from {} to {}, or a newer one", shown(known.first), shown(known.last)));
  }
  return Release{};
}

void warn_of_release(DeviceQos& device, fabric::Nos nos) {
  for (const Known& known : kKnown) {
    const std::optional<Release> release = known.nos == nos ? parse(device.release) : std::nullopt;
    if (release && *release > known.last)
      device.warnings.push_back(fmt::format("release {} of {} is newer than {}, the last whose words are known",
                                            device.release, known.name, shown(known.last)));
  }
}

}  // namespace tensorlane::switches
