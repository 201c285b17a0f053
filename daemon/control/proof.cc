#include "daemon/control/proof.h"

#include <sodium.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace tensorlane::control {
namespace {

std::string to_hex(std::span<const unsigned char> bytes) {
  std::string text(bytes.size() * 2 + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  text.pop_back();
  return text;
}

void add(crypto_auth_hmacsha256_state& state, std::string_view text) {
  const std::uint64_t length = text.size();
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(&length), sizeof length);
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(text.data()), text.size());
}

}  // namespace

bool start_cryptography() {
  return sodium_init() >= 0;
}

std::string random_nonce() {
  std::array<unsigned char, kNonceText / 2> bytes{};
  randombytes_buf(bytes.data(), bytes.size());
  return to_hex(bytes);
}

std::string prove(std::span<const std::byte> secret, Role role, std::string_view follower_nonce,
                  std::string_view leader_nonce, std::string_view job, Epoch epoch, std::string_view host) {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, reinterpret_cast<const unsigned char*>(secret.data()), secret.size());
  const auto role_byte = static_cast<unsigned char>(role);
  crypto_auth_hmacsha256_update(&state, &role_byte, 1);
  add(state, follower_nonce);
  add(state, leader_nonce);
  add(state, job);
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(&epoch.value), sizeof epoch.value);
  add(state, host);
  std::array<unsigned char, crypto_auth_hmacsha256_BYTES> proof{};
  crypto_auth_hmacsha256_final(&state, proof.data());
  sodium_memzero(&state, sizeof state);
  return to_hex(proof);
}

Secret random_root() {
  Secret root(crypto_auth_hmacsha256_KEYBYTES);
  randombytes_buf(root.data(), root.size());
  return root;
}

ports::PairKeys pair_keys(const Secret& root, HostIndex self, std::size_t hosts) {
  static_assert(ports::kPairKeyBytes == crypto_auth_hmacsha256_BYTES);
  ports::PairKeys keys(hosts);
  for (std::size_t peer = 0; peer < hosts; ++peer) {
    const auto other = static_cast<std::uint16_t>(peer);
    const std::array<std::uint16_t, 2> pair{std::min(self.value, other), std::max(self.value, other)};
    std::array<unsigned char, sizeof pair> text;
    std::memcpy(text.data(), pair.data(), text.size());
    if (other == self.value) continue;
    crypto_auth_hmacsha256(reinterpret_cast<unsigned char*>(keys[peer].data()), text.data(), text.size(),
                           reinterpret_cast<const unsigned char*>(root.data()));
  }
  return keys;
}

bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  return equal_in_constant_time(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

}  // namespace tensorlane::control
