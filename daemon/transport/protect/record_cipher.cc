#include "daemon/transport/protect/record_cipher.h"

#include <cstring>
#include <string_view>

#include "common/base/assert.h"

namespace tensorlane::protect {
namespace {

constexpr std::string_view kKeyInfo = "tensorlane record key";
constexpr std::string_view kSecretInfo = "tensorlane next secret";

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

unsigned char* raw(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

}  // namespace

Ciphers ciphers_here() {
  const bool aes = crypto_aead_aes256gcm_is_available() == 1;
  return static_cast<Ciphers>(static_cast<unsigned>(Cipher::kChaCha20Poly1305) |
                              (aes ? static_cast<unsigned>(Cipher::kAes256Gcm) : 0u));
}

Cipher best_of(Ciphers ciphers) {
  for (const Cipher cipher : {Cipher::kAes256Gcm, Cipher::kChaCha20Poly1305}) {
    if (ciphers & static_cast<unsigned>(cipher)) return cipher;
  }
  return Cipher::kNone;
}

const char* cipher_name(Cipher cipher) {
  switch (cipher) {
    case Cipher::kNone:
      return "none";
    case Cipher::kChaCha20Poly1305:
      return "ChaCha20-Poly1305";
    case Cipher::kAes256Gcm:
      return "AES-256-GCM";
  }
  return "unknown";
}

std::string RecordCipher::describe() const {
  return std::string(data_protection_name(level_)) + ", " + cipher_name(cipher_);
}

RecordCipher::RecordCipher(DataProtection level, Cipher cipher, const Key& secret, std::uint64_t records_per_key)
    : level_(level), cipher_(cipher), records_per_key_(records_per_key), secret_(secret) {
  TL_ASSERT(level != DataProtection::kNone && cipher != Cipher::kNone);
  static_assert(sizeof(Key) == crypto_aead_aes256gcm_KEYBYTES &&
                sizeof(Key) == crypto_aead_chacha20poly1305_ietf_KEYBYTES);
  static_assert(kTagBytes == crypto_aead_aes256gcm_ABYTES && kTagBytes == crypto_aead_chacha20poly1305_ietf_ABYTES);
  static_assert(sizeof(Nonce) == crypto_aead_aes256gcm_NPUBBYTES &&
                sizeof(Nonce) == crypto_aead_chacha20poly1305_ietf_NPUBBYTES);
  derive_key();
}

RecordCipher::~RecordCipher() {
  sodium_memzero(secret_.data(), secret_.size());
  sodium_memzero(key_.data(), key_.size());
  sodium_memzero(&aes_, sizeof aes_);
}

void RecordCipher::derive_key() {
  hkdf_expand(secret_, bytes_of(kKeyInfo), key_);
  if (cipher_ == Cipher::kAes256Gcm) crypto_aead_aes256gcm_beforenm(&aes_, raw(key_.data()));
}

RecordCipher::Nonce RecordCipher::next() {
  if (number_ > 0 && number_ % records_per_key_ == 0) {
    Key secret;
    hkdf_expand(secret_, bytes_of(kSecretInfo), secret);
    secret_ = secret;
    sodium_memzero(secret.data(), secret.size());
    derive_key();
  }
  Nonce nonce{};
  for (std::size_t i = 0; i < sizeof number_; ++i) nonce[4 + i] = static_cast<unsigned char>(number_ >> (8 * i));
  ++number_;
  TL_ASSERT(number_ != 0);
  return nonce;
}

void RecordCipher::seal(std::span<const std::byte> clear, std::byte* sealed, Tag& tag) {
  const Nonce nonce = next();
  unsigned char nothing = 0;
  const unsigned char* message = hides() ? raw(clear.data()) : &nothing;
  const unsigned char* in_clear = hides() ? &nothing : raw(clear.data());
  unsigned char* out = hides() ? raw(sealed) : &nothing;
  const std::size_t message_bytes = hides() ? clear.size() : 0, clear_bytes = clear.size() - message_bytes;
  if (cipher_ == Cipher::kAes256Gcm) {
    crypto_aead_aes256gcm_encrypt_detached_afternm(out, raw(tag.data()), nullptr, message, message_bytes, in_clear,
                                                   clear_bytes, nullptr, nonce.data(), &aes_);
  } else {
    crypto_aead_chacha20poly1305_ietf_encrypt_detached(out, raw(tag.data()), nullptr, message, message_bytes, in_clear,
                                                       clear_bytes, nullptr, nonce.data(), raw(key_.data()));
  }
}

bool RecordCipher::open(std::span<std::byte> record, const Tag& tag) {
  if (failed_) return false;
  const Nonce nonce = next();
  unsigned char nothing = 0;
  unsigned char* message = hides() ? raw(record.data()) : &nothing;
  const unsigned char* in_clear = hides() ? &nothing : raw(record.data());
  const std::size_t message_bytes = hides() ? record.size() : 0, clear_bytes = record.size() - message_bytes;
  if (cipher_ == Cipher::kAes256Gcm) {
    failed_ = crypto_aead_aes256gcm_decrypt_detached_afternm(message, nullptr, message, message_bytes, raw(tag.data()),
                                                             in_clear, clear_bytes, nonce.data(), &aes_) != 0;
  } else {
    failed_ =
        crypto_aead_chacha20poly1305_ietf_decrypt_detached(message, nullptr, message, message_bytes, raw(tag.data()),
                                                           in_clear, clear_bytes, nonce.data(), raw(key_.data())) != 0;
  }
  return !failed_;
}

void RecordCipher::skip() {
  next();
}

}  // namespace tensorlane::protect
