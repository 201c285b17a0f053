// Records: what authenticates the bytes of a connection, and hides them where that is asked for.
//
// On the wire, a frame of a protected connection is
//
//   header (64 bytes), tag (16)                                      the first record
//   and its payload in pieces of kRecordBytes, of which the last may be shorter:
//   piece, tag (16)                                                  a record each
//
// A record carries no length. That of the first one is fixed, and the header in it, which is looked at only when it has
// proved to be right, says how long the payload is. So nobody on the path can move a border.
//
// Each record is one message of an AEAD (RFC 5116): AES-256-GCM (NIST SP 800-38D) where the processors of both hosts
// have instructions for it, else ChaCha20-Poly1305 (RFC 8439). With `encrypt` the bytes are its plaintext, and as many
// bytes of ciphertext take their place. With `authenticate` its plaintext is empty and the bytes are its additional
// data: they go in clear, from where they lie.
//
// Nonce: 4 zero bytes, then the record's number in its direction of the connection, little-endian, from 0. Numbers are
// not on the wire: both ends count. A record that was changed, left out, repeated, moved, cut off, or that belongs to
// another connection or direction is therefore not right, and neither is any after it. Keys are of one connection and
// one direction, so no nonce is used twice under a key; what is sent again after a connection was lost is sealed anew.
//
// Keys: the handshake derives one secret for each direction (handshake::record_secrets). From it comes the key, and
// after kRecordsPerKey records the next secret, as in TLS 1.3 (RFC 8446, sections 5.5 and 7.2). That bounds what is
// sealed under one key of AES-GCM to 64 GiB, and old keys cannot be found from newer ones; from the pair's key they
// can.
#pragma once

#include <sodium.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/base/data_protection.h"
#include "daemon/transport/protect/hkdf.h"

namespace tensorlane::protect {

inline constexpr std::size_t kTagBytes = 16;
inline constexpr std::size_t kRecordBytes = 65536;
inline constexpr std::uint64_t kRecordsPerKey = std::uint64_t{1} << 20;

using Tag = std::array<std::byte, kTagBytes>;

// Numbers are on the wire, and bits of a set. The highest that both hosts have is used.
enum class Cipher : std::uint8_t { kNone = 0, kChaCha20Poly1305 = 1, kAes256Gcm = 2 };
// As the RFCs name it: "AES-256-GCM".
const char* cipher_name(Cipher cipher);
using Ciphers = std::uint8_t;
// What this host can use. Who asks has called sodium_init().
Ciphers ciphers_here();
// kNone where two hosts have nothing in common.
Cipher best_of(Ciphers ciphers);

// What the tags of a payload add to it, in bytes.
constexpr std::size_t tags_of(std::size_t payload_bytes) {
  return (payload_bytes + kRecordBytes - 1) / kRecordBytes * kTagBytes;
}

// What a connection's keys come from. Wiped where it ends.
struct RecordSecrets {
  DataProtection level = DataProtection::kNone;
  Cipher cipher = Cipher::kNone;
  Key send{}, receive{};

  RecordSecrets() = default;
  RecordSecrets(const RecordSecrets&) = default;
  RecordSecrets& operator=(const RecordSecrets&) = delete;
  ~RecordSecrets() {
    sodium_memzero(send.data(), send.size());
    sodium_memzero(receive.data(), receive.size());
  }
};

// One direction of one connection. Its memory is wiped where it ends. One thread.
class RecordCipher {
 public:
  RecordCipher(DataProtection level, Cipher cipher, const Key& secret, std::uint64_t records_per_key = kRecordsPerKey);
  ~RecordCipher();
  RecordCipher(const RecordCipher&) = delete;
  RecordCipher& operator=(const RecordCipher&) = delete;

  bool hides() const { return level_ == DataProtection::kEncrypt; }
  // For people: "encrypt, AES-256-GCM".
  std::string describe() const;
  // The next record of this direction; no record is empty. With `encrypt`, `sealed` gets as many bytes as `clear` has
  // and does not overlap it; with `authenticate` it is not touched.
  void seal(std::span<const std::byte> clear, std::byte* sealed, Tag& tag);
  // Whether this is the next record of this direction; with `encrypt`, deciphers it where it lies. After a false, what
  // lies there is of no use, and no record is right any more.
  [[nodiscard]] bool open(std::span<std::byte> record, const Tag& tag);
  // Passes over a record that nobody looks at.
  void skip();

 private:
  using Nonce = std::array<unsigned char, 12>;
  Nonce next();
  void derive_key();

  const DataProtection level_;
  const Cipher cipher_;
  const std::uint64_t records_per_key_;
  std::uint64_t number_ = 0;
  bool failed_ = false;
  Key secret_;
  Key key_;
  crypto_aead_aes256gcm_state aes_;  // key_, expanded
};

}  // namespace tensorlane::protect
