#include "daemon/transport/datagram/seal.h"

#include <cstring>
#include <string_view>

#include "common/base/assert.h"

namespace tensorlane::datagram {
namespace {

using protect::Cipher;

constexpr std::string_view kKeyInfo = "tensorlane packet key";

unsigned char* raw(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

std::array<unsigned char, 12> nonce_of(const Head& head) {
  std::array<unsigned char, 12> nonce{};
  nonce[0] = head.slot;
  for (std::size_t i = 0; i < sizeof head.number; ++i)
    nonce[4 + i] = static_cast<unsigned char>(head.number >> (8 * i));
  return nonce;
}

}  // namespace

Seal::Seal(DataProtection level, Cipher cipher, const protect::Key& secret)
    : level_(level), cipher_(cipher), secret_(secret) {
  TL_ASSERT((level == DataProtection::kNone) == (cipher == Cipher::kNone));
  static_assert(crypto_shorthash_siphash24_KEYBYTES <= sizeof(protect::Key));
}

Seal::~Seal() {
  sodium_memzero(secret_.data(), secret_.size());
  sodium_memzero(data_keys_.data(), sizeof data_keys_);
  sodium_memzero(ack_keys_.data(), sizeof ack_keys_);
  sodium_memzero(&far_, sizeof far_);
}

std::size_t Seal::tag_bytes() const {
  return level_ == DataProtection::kNone ? kHashBytes : protect::kTagBytes;
}

const Seal::Keys& Seal::keys(const Head& head) {
  const std::uint64_t generation = head.number / kPacketsOfAKey;
  Keys& one = (head.slot == kAckSlot ? ack_keys_ : data_keys_)[generation & 1];
  if (one.generation != generation) derive(head.slot, generation, &one);
  return one;
}

void Seal::derive(Slot slot, std::uint64_t generation, Keys* into) const {
  std::array<std::byte, kKeyInfo.size() + 1 + sizeof generation> info{};
  std::memcpy(info.data(), kKeyInfo.data(), kKeyInfo.size());
  info[kKeyInfo.size()] = std::byte{slot};
  std::memcpy(info.data() + kKeyInfo.size() + 1, &generation, sizeof generation);
  protect::hkdf_expand(secret_, info, into->key);
  if (cipher_ == Cipher::kAes256Gcm) crypto_aead_aes256gcm_beforenm(&into->aes, raw(into->key.data()));
  into->generation = generation;
}

void Seal::close(const Head& head, std::byte* packet, std::size_t bytes) {
  bytes -= tag_bytes();
  if (level_ == DataProtection::kNone) {
    const std::size_t clear = clear_bytes(head, bytes);
    crypto_shorthash_siphash24(raw(packet + clear), raw(packet), clear, raw(keys(head).key.data()));
    return;
  }
  std::byte* const tag = packet + bytes;
  const bool hides = level_ == DataProtection::kEncrypt;
  const std::size_t in_clear = hides ? sizeof(Head) : bytes;
  unsigned char nothing = 0;
  unsigned char* const message = hides ? raw(packet + in_clear) : &nothing;
  const auto nonce = nonce_of(head);
  const Keys& own = keys(head);
  if (cipher_ == Cipher::kAes256Gcm) {
    crypto_aead_aes256gcm_encrypt_detached_afternm(message, raw(tag), nullptr, message, bytes - in_clear, raw(packet),
                                                   in_clear, nullptr, nonce.data(), &own.aes);
  } else {
    crypto_aead_chacha20poly1305_ietf_encrypt_detached(message, raw(tag), nullptr, message, bytes - in_clear,
                                                       raw(packet), in_clear, nullptr, nonce.data(),
                                                       raw(own.key.data()));
  }
}

std::size_t Seal::open(const Head& head, std::span<std::byte> packet) {
  return open_with(keys(head), head, packet);
}

std::size_t Seal::open_far(const Head& head, std::span<std::byte> packet) {
  derive(head.slot, head.number / kPacketsOfAKey, &far_);
  return open_with(far_, head, packet);
}

std::size_t Seal::open_with(const Keys& own, const Head& head, std::span<std::byte> packet) const {
  if (packet.size() < sizeof(Head) + tag_bytes()) return 0;
  const std::size_t bytes = packet.size() - tag_bytes();
  if (level_ == DataProtection::kNone) {
    const std::size_t clear = clear_bytes(head, bytes);
    if (bytes < clear) return 0;
    std::array<std::byte, kHashBytes> expected{};
    crypto_shorthash_siphash24(raw(expected.data()), raw(packet.data()), clear, raw(own.key.data()));
    if (sodium_memcmp(expected.data(), packet.data() + clear, expected.size()) != 0) return 0;
    return head.slot == kAckSlot ? bytes : packet.size();
  }
  const std::byte* const tag = packet.data() + bytes;
  const bool hides = level_ == DataProtection::kEncrypt;
  const std::size_t in_clear = hides ? sizeof(Head) : bytes;
  unsigned char nothing = 0;
  unsigned char* const message = hides ? raw(packet.data() + in_clear) : &nothing;
  const auto nonce = nonce_of(head);
  const int wrong =
      cipher_ == Cipher::kAes256Gcm
          ? crypto_aead_aes256gcm_decrypt_detached_afternm(message, nullptr, message, bytes - in_clear, raw(tag),
                                                           raw(packet.data()), in_clear, nonce.data(), &own.aes)
          : crypto_aead_chacha20poly1305_ietf_decrypt_detached(message, nullptr, message, bytes - in_clear, raw(tag),
                                                               raw(packet.data()), in_clear, nonce.data(),
                                                               raw(own.key.data()));
  return wrong == 0 ? bytes : 0;
}

}  // namespace tensorlane::datagram
