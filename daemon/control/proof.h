// How hosts prove to each other that they know a job's secret (law 14): HMAC-SHA256 over who speaks, both nonces, job,
// epoch and host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/base/units.h"

namespace tensorlane::control {

inline constexpr std::size_t kNonceText =
    64;  // characters: 32 random bytes in hexadecimal; a proof has the same length

// Must be called once before anything else here; false when there is no source of randomness.
bool start_cryptography();

std::string random_nonce();

// Who a proof speaks for: a proof of one role is never accepted for the other, so that none can be reflected.
enum class Role : std::uint8_t { kFollower = 1, kLeader = 2 };

// Hexadecimal. `host` is the follower in both roles. Every text is preceded by its length, so no two inputs run
// together the same way.
std::string prove(std::span<const std::byte> secret, Role role, std::string_view follower_nonce,
                  std::string_view leader_nonce, std::string_view job, Epoch epoch, std::string_view host);

// Equality in a time that does not depend on where they differ; lengths are no secret.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace tensorlane::control
