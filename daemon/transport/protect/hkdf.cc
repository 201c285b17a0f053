#include "daemon/transport/protect/hkdf.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>

#include "common/base/assert.h"

namespace tensorlane::protect {
namespace {

const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

void hkdf_extract(std::span<const std::byte> salt, std::span<const std::byte> secret, Key& pseudorandom_key) {
  static_assert(sizeof(Key) == crypto_auth_hmacsha256_BYTES);
  static constexpr Key kNoSalt{};
  if (salt.empty()) salt = kNoSalt;
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, raw(salt), salt.size());
  crypto_auth_hmacsha256_update(&state, raw(secret), secret.size());
  crypto_auth_hmacsha256_final(&state, reinterpret_cast<unsigned char*>(pseudorandom_key.data()));
  sodium_memzero(&state, sizeof state);
}

void hkdf_expand(const Key& pseudorandom_key, std::span<const std::byte> info, std::span<std::byte> out) {
  TL_ASSERT(out.size() <= 255 * sizeof(Key));
  crypto_auth_hmacsha256_state state;
  std::array<unsigned char, sizeof(Key)> block;
  for (unsigned char number = 1; !out.empty(); ++number) {
    crypto_auth_hmacsha256_init(&state, raw(pseudorandom_key), pseudorandom_key.size());
    if (number > 1) crypto_auth_hmacsha256_update(&state, block.data(), block.size());
    crypto_auth_hmacsha256_update(&state, raw(info), info.size());
    crypto_auth_hmacsha256_update(&state, &number, 1);
    crypto_auth_hmacsha256_final(&state, block.data());
    const std::size_t taken = std::min(out.size(), block.size());
    std::memcpy(out.data(), block.data(), taken);
    out = out.subspan(taken);
  }
  sodium_memzero(&state, sizeof state);
  sodium_memzero(block.data(), block.size());
}

}  // namespace tensorlane::protect
