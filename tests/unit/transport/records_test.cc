// Records against published vectors, and against whatever somebody on the path can do with them.
#include <sodium.h>

#include <string>
#include <vector>

#include "daemon/transport/handshake/handshake.h"
#include "daemon/transport/protect/records.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorlane::protect {
namespace {

using Bytes = std::vector<std::byte>;

std::string to_hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    text += {kDigits[static_cast<unsigned>(byte) >> 4], kDigits[static_cast<unsigned>(byte) & 15]};
  }
  return text;
}

Bytes counting(unsigned first, unsigned last) {
  Bytes bytes;
  for (unsigned i = first; i <= last; ++i) bytes.push_back(static_cast<std::byte>(i));
  return bytes;
}

std::string derived(const Bytes& secret, const Bytes& salt, const Bytes& info, std::size_t length, std::string* key) {
  Key extracted;
  hkdf_extract(salt, secret, extracted);
  *key = to_hex(extracted);
  Bytes out(length);
  hkdf_expand(extracted, info, out);
  return to_hex(out);
}

// RFC 5869, appendix A.
TEST(Hkdf, gives_the_keys_of_its_rfc) {
  std::string key;
  EXPECT_EQ(derived(Bytes(22, std::byte{0x0b}), counting(0x00, 0x0c), counting(0xf0, 0xf9), 42, &key),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865");
  EXPECT_EQ(key, "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5");
  EXPECT_EQ(
      derived(counting(0x00, 0x4f), counting(0x60, 0xaf), counting(0xb0, 0xff), 82, &key),
      "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09da3275600c2f09b8"
      "367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87");
  EXPECT_EQ(key, "06a6b88c5853361a06104c9ceb35b45cef760014904671014a193f40c15fc244");
  EXPECT_EQ(derived(Bytes(22, std::byte{0x0b}), {}, {}, 42, &key),
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8");
  EXPECT_EQ(key, "19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04");
}

struct Way {
  DataProtection level;
  Cipher cipher;
};

class RecordsOf : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    ASSERT_GE(sodium_init(), 0);
    if (!(ciphers_here() & static_cast<unsigned>(GetParam().cipher)))
      GTEST_SKIP() << "this processor has no instructions for AES-256-GCM";
  }
  static Key secret(unsigned seed) {
    Key key;
    key.fill(static_cast<std::byte>(seed));
    return key;
  }
  RecordCipher cipher(unsigned seed = 1, std::uint64_t records_per_key = kRecordsPerKey) const {
    return RecordCipher(GetParam().level, GetParam().cipher, secret(seed), records_per_key);
  }
  struct Record {
    Bytes bytes;
    Tag tag;
  };
  // As it goes over the wire.
  static Record seal(RecordCipher& cipher, const Bytes& clear) {
    Record record{Bytes(clear.size()), {}};
    cipher.seal(clear, record.bytes.data(), record.tag);
    if (!cipher.hides()) record.bytes = clear;
    return record;
  }
  static bool open(RecordCipher& cipher, Record record, const Bytes& clear) {
    return cipher.open(record.bytes, record.tag) && record.bytes == clear;
  }
};

std::string name_of(const ::testing::TestParamInfo<Way>& info) {
  return std::string(data_protection_name(info.param.level)) +
         (info.param.cipher == Cipher::kAes256Gcm ? "_aes" : "_chacha");
}
INSTANTIATE_TEST_SUITE_P(Ways, RecordsOf,
                         ::testing::Values(Way{DataProtection::kAuthenticate, Cipher::kChaCha20Poly1305},
                                           Way{DataProtection::kAuthenticate, Cipher::kAes256Gcm},
                                           Way{DataProtection::kEncrypt, Cipher::kChaCha20Poly1305},
                                           Way{DataProtection::kEncrypt, Cipher::kAes256Gcm}),
                         name_of);

TEST_P(RecordsOf, arrive_in_the_order_in_which_they_were_sealed) {
  RecordCipher sends = cipher(), receives = cipher();
  for (const std::size_t bytes : {1u, 15u, 16u, 64u, 1000u, 65536u}) {
    const Bytes clear(bytes, std::byte{0x5a});
    const Record record = seal(sends, clear);
    if (bytes >= 15) {
      EXPECT_EQ(record.bytes == clear, GetParam().level == DataProtection::kAuthenticate);
    }
    EXPECT_TRUE(open(receives, record, clear)) << bytes;
  }
}

TEST_P(RecordsOf, are_refused_with_any_bit_changed) {
  const Bytes clear = counting(0, 63);
  for (std::size_t bit = 0; bit < (clear.size() + kTagBytes) * 8; ++bit) {
    RecordCipher sends = cipher(), receives = cipher();
    Record record = seal(sends, clear);
    std::byte& byte = bit / 8 < clear.size() ? record.bytes[bit / 8] : record.tag[bit / 8 - clear.size()];
    byte ^= static_cast<std::byte>(1u << bit % 8);
    EXPECT_FALSE(receives.open(record.bytes, record.tag)) << "bit " << bit;
  }
}

TEST_P(RecordsOf, are_refused_a_second_time_and_out_of_turn) {
  const Bytes first = counting(0, 63), second = counting(64, 127);
  RecordCipher sends = cipher();
  const Record one = seal(sends, first), two = seal(sends, second);
  RecordCipher repeated = cipher(), early = cipher(), right = cipher();
  EXPECT_TRUE(open(repeated, one, first));
  EXPECT_FALSE(open(repeated, one, first));
  EXPECT_FALSE(open(early, two, second));
  EXPECT_FALSE(open(early, two, second)) << "a record was taken in place of the one before it";
  right.skip();
  EXPECT_TRUE(open(right, two, second)) << "a record that nobody looks at counts";
}

TEST_P(RecordsOf, are_refused_shorter_longer_and_under_another_key) {
  const Bytes clear = counting(0, 63);
  RecordCipher sends = cipher();
  const Record whole = seal(sends, clear);
  for (const std::size_t bytes : {1u, 63u, 65u, 80u}) {
    RecordCipher receives = cipher();
    Record cut = whole;
    cut.bytes.resize(bytes);
    EXPECT_FALSE(receives.open(cut.bytes, cut.tag)) << bytes;
  }
  RecordCipher other = cipher(2);
  EXPECT_FALSE(open(other, whole, clear));
}

TEST_P(RecordsOf, the_same_bytes_never_make_the_same_record) {
  RecordCipher sends = cipher();
  const Bytes clear(64, std::byte{0});
  const Record one = seal(sends, clear), two = seal(sends, clear);
  EXPECT_NE(one.tag, two.tag);
  EXPECT_EQ(one.bytes == two.bytes, GetParam().level == DataProtection::kAuthenticate);
}

TEST_P(RecordsOf, go_on_under_the_next_key) {
  RecordCipher sends = cipher(1, 4), receives = cipher(1, 4), never = cipher();
  const Bytes clear = counting(0, 63);
  for (int i = 0; i < 13; ++i) {
    const Record record = seal(sends, clear);
    EXPECT_TRUE(open(receives, record, clear)) << i;
    EXPECT_EQ(open(never, record, clear), i < 4) << i;
  }
}

TEST_P(RecordsOf, of_a_batch_are_a_header_and_pieces_of_its_payload_whatever_the_kernel_takes) {
  const Bytes header = counting(0, 63);
  Bytes payload(3 * kRecordBytes + 7);
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  const std::size_t frame_bytes = header.size() + kTagBytes + payload.size() + tags_of(payload.size());
  for (const std::size_t taken : {std::size_t{1000}, std::size_t{20000}, std::size_t{1} << 20}) {
    RecordCipher sends = cipher(), receives = cipher();
    SealedBatch batch(sends);
    Bytes wire;
    const auto write_all = [&] {
      while (!batch.empty()) {
        std::size_t left = taken;
        for (const iovec& part : batch.parts()) {
          const std::size_t bytes = std::min(left, part.iov_len);
          const auto* from = static_cast<const std::byte*>(part.iov_base);
          wire.insert(wire.end(), from, from + bytes);
          left -= bytes;
        }
        batch.written(taken - left);
      }
    };
    // More than one batch holds.
    const std::size_t frames = 3;
    for (std::size_t frame = 0; frame < frames; ++frame) {
      if (!batch.add_header(header)) {
        write_all();
        ASSERT_TRUE(batch.add_header(header));
      }
      const std::size_t begin = frame * frame_bytes + header.size() + kTagBytes;
      std::size_t sealed = 0;
      while (!batch.add_payload(std::span(payload).subspan(sealed))) {
        write_all();
        sealed = (wire.size() - begin) / (kRecordBytes + kTagBytes) * kRecordBytes;
      }
    }
    write_all();
    ASSERT_EQ(wire.size(), frames * frame_bytes);
    std::size_t at = 0;
    const auto expect_record = [&](std::span<const std::byte> clear) {
      Record record{Bytes(wire.begin() + static_cast<std::ptrdiff_t>(at),
                          wire.begin() + static_cast<std::ptrdiff_t>(at + clear.size())),
                    {}};
      std::copy_n(wire.begin() + static_cast<std::ptrdiff_t>(at + clear.size()), kTagBytes, record.tag.begin());
      ASSERT_TRUE(open(receives, record, Bytes(clear.begin(), clear.end()))) << "at byte " << at;
      at += clear.size() + kTagBytes;
    };
    for (std::size_t frame = 0; frame < frames; ++frame) {
      expect_record(header);
      for (std::size_t sent = 0; sent < payload.size(); sent += kRecordBytes)
        expect_record(std::span(payload).subspan(sent, std::min(kRecordBytes, payload.size() - sent)));
    }
  }
}

// ---- keys ----

handshake::Job job_of(HostIndex self, std::uint8_t secret = 1, RailIndex rail = RailIndex(0)) {
  ports::JobCredentials credentials{JobId(5), Epoch(7), self, ports::PairKeys(2), rail};
  for (ports::PairKey& key : credentials.keys) key.fill(static_cast<std::byte>(secret));
  return handshake::Job(credentials);
}

handshake::Hello hello_of(DataProtection level, ClassId cls, RailIndex rail = RailIndex(0)) {
  return handshake::make_hello(job_of(HostIndex(0), 1, rail), HostIndex(1), cls, 0, {level, ciphers_here()});
}

TEST(RecordSecretsOf, a_connection_are_the_same_at_both_ends_and_different_for_each_direction) {
  ASSERT_GE(sodium_init(), 0);
  const handshake::Hello hello = hello_of(DataProtection::kEncrypt, ClassId(1));
  const handshake::Nonce nonce = handshake::random_nonce();
  const RecordSecrets a = record_secrets(job_of(HostIndex(0)), hello, nonce, Cipher::kChaCha20Poly1305),
                      b = record_secrets(job_of(HostIndex(1)), hello, nonce, Cipher::kChaCha20Poly1305);
  EXPECT_EQ(a.send, b.receive);
  EXPECT_EQ(a.receive, b.send);
  EXPECT_NE(a.send, a.receive);
  EXPECT_EQ(a.level, DataProtection::kEncrypt);
}

TEST(RecordSecretsOf, connections_that_differ_in_anything_are_different) {
  ASSERT_GE(sodium_init(), 0);
  const handshake::Nonce nonce = handshake::random_nonce();
  handshake::Hello hello = hello_of(DataProtection::kEncrypt, ClassId(1));
  const auto send = [&](const handshake::Hello& said, std::uint8_t secret = 1,
                        Cipher cipher = Cipher::kChaCha20Poly1305, const handshake::Nonce* other = nullptr) {
    return record_secrets(job_of(HostIndex(0), secret), said, other != nullptr ? *other : nonce, cipher).send;
  };
  const auto like = [&](handshake::Hello changed) {
    changed.nonce = hello.nonce;
    return changed;
  };
  std::vector<Key> keys{send(hello), send(hello, 2), send(hello, 1, Cipher::kAes256Gcm)};
  const handshake::Nonce other = handshake::random_nonce();
  keys.push_back(send(hello, 1, Cipher::kChaCha20Poly1305, &other));
  keys.push_back(send(like(hello_of(DataProtection::kAuthenticate, ClassId(1)))));
  keys.push_back(send(like(hello_of(DataProtection::kEncrypt, ClassId(0)))));
  keys.push_back(send(like(hello_of(DataProtection::kEncrypt, ClassId(1), RailIndex(1)))));
  keys.push_back(send(hello_of(DataProtection::kEncrypt, ClassId(1))));  // another nonce of the connecting end
  for (std::size_t i = 0; i < keys.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(keys[i], keys[j]) << i << " and " << j;
  }
}

TEST(Ciphers, the_fastest_that_both_hosts_have_is_used) {
  EXPECT_EQ(best_of(3), Cipher::kAes256Gcm);
  EXPECT_EQ(best_of(1), Cipher::kChaCha20Poly1305);
  EXPECT_EQ(best_of(0), Cipher::kNone);
  EXPECT_NE(ciphers_here() & 1, 0);
}

}  // namespace
}  // namespace tensorlane::protect
