// HKDF with SHA-256 (RFC 5869): keys from a secret. libsodium 1.0.18 has the HMAC and not the rest.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace tensorlane::protect {

// A key or secret of 256 bits. Who holds one wipes it.
using Key = std::array<std::byte, 32>;

// Section 2.2. The key that secrets are expanded from.
void hkdf_extract(std::span<const std::byte> salt, std::span<const std::byte> secret, Key& pseudorandom_key);

// Section 2.3. At most 255 * 32 bytes. Whoever uses a key for two things gives each its own `info`.
void hkdf_expand(const Key& pseudorandom_key, std::span<const std::byte> info, std::span<std::byte> out);

}  // namespace tensorlane::protect
