// How hosts prove to each other that they know a job's secret (law 14), and the keys that they get for it (law 23).
//
// The secret may be a word that a person has chosen, so nobody may learn anything to try words against. It is used on
// the control plane alone, inside connections that CURVE has encrypted, and in this order:
//   - A host of the fabric file asks the leader, and gets a random nonce: nothing that depends on the secret.
//   - It proves the secret first: HMAC-SHA256 over who speaks, both nonces, job, epoch and host. A wrong proof costs it
//   a
//     pause, so it tries a word in seconds, not millions a second.
//   - Only then the leader proves it, too, and sends the pair's keys.
// So the proof of a follower is seen by the one daemon that the job's MASTER_ADDR names, whose host gets the secret
// from rank 0 anyway. That is why this is no password-authenticated key exchange, which would hide the proof even from
// there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/base/secret.h"
#include "common/base/units.h"
#include "daemon/ports/transport.h"

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

// What the keys of all pairs of hosts of one epoch of a job come from: 32 random bytes, which stay with its leader.
Secret random_root();
// The keys of one host of `hosts`, by the peer's index: HMAC-SHA256 under the root over the pair, so both hosts have
// the same, and no host can tell the key of two others.
ports::PairKeys pair_keys(const Secret& root, HostIndex self, std::size_t hosts);

// Equality in a time that does not depend on where they differ; lengths are no secret.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace tensorlane::control
