// What proves that a packet is of the association, and hides it where that is asked for.
//
// - `none`: a keyed hash (SipHash-2-4, 64 bits) of all but the bytes of the piece. Whoever has not seen packets of the
//   association cannot make one that is taken. The bytes are protected by UDP's checksum, as TCP's are by its own.
// - `authenticate`, `encrypt`: an AEAD of the whole packet, as for the records of a connection (transport/protect). The
//   nonce is the packet's slot and number, which are never used again under a key.
//
// Keys: one secret for each direction, from the handshake. Each 2^20 packets have a key of their own, which is derived
// from the secret, the slot and that count; so packets that overtake each other need no agreement. Data and
// acknowledgements are counted apart.
#pragma once

#include <sodium.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/data_protection.h"
#include "daemon/transport/datagram/packet.h"
#include "daemon/transport/protect/hkdf.h"
#include "daemon/transport/protect/record_cipher.h"

namespace tensorlane::datagram {

// One direction of one association, whose data are all of one slot. Its secret and keys are wiped where it ends. One
// thread. sodium_init() has been called.
class Seal {
 public:
  Seal(DataProtection level, protect::Cipher cipher, const protect::Key& secret);
  ~Seal();
  Seal(const Seal&) = delete;
  Seal& operator=(const Seal&) = delete;

  // What is added to each packet.
  std::size_t tag_bytes() const;
  // How much of it stands before the bytes of a piece: all at `none`, so that the bytes need not lie in the same memory
  // as what stands before them; nothing at the other levels.
  std::size_t tag_before() const { return level_ == DataProtection::kNone ? kHashBytes : 0; }
  // Proves the packet, which is `bytes` long with its tag, for which it has left room. With `encrypt` all but the head
  // is enciphered where it lies. At `none` nothing behind the tag is read of a packet with a piece.
  void close(const Head& head, std::byte* packet, std::size_t bytes);
  // Whether the packet with its tag is right, and where it is enciphered deciphers it. Its length without a tag at its
  // end; 0: it is forged, damaged, or of something else.
  [[nodiscard]] std::size_t open(const Head& head, std::span<std::byte> packet);

  // The same for a packet whose key may be none of those that are kept, and does not replace one of them.
  [[nodiscard]] std::size_t open_far(const Head& head, std::span<std::byte> packet);

  // Whose numbers follow each other.
  static constexpr std::uint64_t kPacketsOfAKey = 1 << 20;

 private:
  static constexpr std::size_t kHashBytes = crypto_shorthash_siphash24_BYTES;
  // Of one slot and one count of packets.
  struct Keys {
    std::uint64_t generation = ~std::uint64_t{0};
    protect::Key key{};
    crypto_aead_aes256gcm_state aes;
  };
  const Keys& keys(const Head& head);
  void derive(Slot slot, std::uint64_t generation, Keys* into) const;
  std::size_t open_with(const Keys& own, const Head& head, std::span<std::byte> packet) const;

  const DataProtection level_;
  const protect::Cipher cipher_;
  protect::Key secret_;
  // The present one and one beside it, of data and of acknowledgements.
  std::array<Keys, 2> data_keys_, ack_keys_;
  Keys far_;
};

}  // namespace tensorlane::datagram
