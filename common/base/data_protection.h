// How data is protected between hosts: `data_protection` of fabric.yaml.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tensorlane {

// Numbers are stable: they are on the wire.
enum class DataProtection : std::uint8_t {
  kNone = 0,          // in clear, and nobody checks that it arrives as it was sent
  kAuthenticate = 1,  // in clear; what is changed, inserted, repeated or left out on the way is noticed
  kEncrypt = 2,       // the same, and nobody on the way can read it
};
inline constexpr std::array<std::string_view, 3> kDataProtectionNames{"none", "authenticate", "encrypt"};

// "unknown" for a number that a peer made up.
constexpr std::string_view data_protection_name(DataProtection level) {
  const auto position = static_cast<std::size_t>(level);
  return position < kDataProtectionNames.size() ? kDataProtectionNames[position] : "unknown";
}

}  // namespace tensorlane
