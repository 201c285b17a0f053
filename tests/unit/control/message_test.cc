#include "daemon/control/message.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "daemon/control/proof.h"

namespace tensorlane::control {
namespace {

using nlohmann::json;

Result<Message> decode(const std::vector<std::uint8_t>& bytes) {
  return control::decode(std::as_bytes(std::span(bytes)));
}

TEST(Message, comes_back_as_it_went) {
  const Message sent{MessageType::kLate, JobId(~0ull), Epoch(7), 12345678901ull, json::array({3, "x", 1.5, true})};
  const auto got = decode(encode(sent));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->type, sent.type);
  EXPECT_EQ(got->job, sent.job);
  EXPECT_EQ(got->epoch, sent.epoch);
  EXPECT_EQ(got->number, sent.number);
  EXPECT_EQ(got->body, sent.body);
}

TEST(Message, of_another_version_says_so) {
  const auto got = decode(json::to_cbor(json::array({1, 1, 0, 0, 0, json::array()})));
  EXPECT_EQ(got.status().to_string(), "control protocol version 1 is not " + std::to_string(kWireVersion) +
                                          ": control message: run the same version of tensorlaned on all hosts");
}

TEST(Message, that_is_none_is_refused) {
  EXPECT_EQ(decode({}).status().code(), Code::kCorrupt);
  EXPECT_EQ(decode(json::to_cbor(json::array())).status().code(), Code::kCorrupt);
  EXPECT_EQ(decode(json::to_cbor(json::object({{"a", 1}}))).status().code(), Code::kCorrupt);
  EXPECT_EQ(decode(json::to_cbor(json::array({kWireVersion, 0, 0, 0, 0, json::array()}))).status().code(),
            Code::kCorrupt)
      << "type 0";
  const int unknown = static_cast<int>(kLastMessageType) + 1;
  EXPECT_EQ(decode(json::to_cbor(json::array({kWireVersion, unknown, 0, 0, 0, json::array()}))).status().code(),
            Code::kCorrupt)
      << "type " << unknown;
  EXPECT_EQ(decode(json::to_cbor(json::array({kWireVersion, 1, 0, 1ull << 32, 0, json::array()}))).status().code(),
            Code::kCorrupt)
      << "epoch";
  EXPECT_EQ(decode(json::to_cbor(json::array({kWireVersion, 1, 0, 0, 0, json::array(), 1}))).status().code(),
            Code::kCorrupt)
      << "one item more";
  EXPECT_EQ(decode(json::to_cbor(json::array({kWireVersion, 1, -1, 0, 0, json::array()}))).status().code(),
            Code::kCorrupt)
      << "negative";
}

// The first numbers are read alone, whatever comes behind them, or does not.
TEST(Message, its_envelope_is_read_without_its_body) {
  Message message;
  message.type = MessageType::kHeartbeat;
  message.job = JobId(0x7766554433221100u);
  const auto whole = encode(message);
  for (const std::size_t missing : {0, 1, 2}) {
    const auto got = read_envelope(std::as_bytes(std::span(whole)).first(whole.size() - missing));
    ASSERT_TRUE(got);
    EXPECT_EQ(got->version, kWireVersion);
    EXPECT_EQ(got->type, static_cast<std::uint64_t>(MessageType::kHeartbeat));
    EXPECT_EQ(got->job, message.job);
  }
  for (std::size_t bytes = 0; bytes < 12; ++bytes)
    EXPECT_FALSE(read_envelope(std::as_bytes(std::span(whole)).first(bytes))) << bytes;
  const auto text = json::to_cbor(json::array({"5", 8, 1}));
  EXPECT_FALSE(read_envelope(std::as_bytes(std::span(text))));
}

// What a peer says reaches logs, status pages and labels: names are refused, error texts are shown without it.
TEST(Message, names_that_steer_a_terminal_are_not_read) {
  for (const char* name : {"a\x1b[2J", "a\xc2\x9b\x33\x31m", "\xff\xfe"}) {
    const json array = json::array({name, "next"});
    ItemReader in(array);
    EXPECT_EQ(in.text(64), "");
    EXPECT_FALSE(in.ok());
  }
  const Status told = status_from_json(status_to_json(Status(Code::kMismatch, "a\xc2\x9b\x33", "\x1b[2J", "c")));
  EXPECT_EQ(told.to_string(), "a??3: ?[2J: c");
}

TEST(Message, survives_every_truncation_and_many_flipped_bits) {
  const auto whole = encode({MessageType::kRoster, JobId(1), Epoch(2), 3,
                             json::array({"nonce", json::array({json::array({"h0", {0, 1}})})})});
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(decode({whole.begin(), whole.begin() + static_cast<long>(size)}).ok());
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    auto bytes = whole;
    for (int flips = 0; flips < 3; ++flips)
      bytes[random() % bytes.size()] ^= static_cast<std::uint8_t>(1u << random() % 8);
    (void)decode(bytes).ok();
  }
}

TEST(Message, nested_without_end_or_longer_than_memory_is_refused) {
  EXPECT_FALSE(decode(std::vector<std::uint8_t>(kMaxWireMessage, 0x81)).ok());
  EXPECT_FALSE(decode(std::vector<std::uint8_t>(kMaxWireMessage, 0x9f)).ok());
  EXPECT_FALSE(decode(std::vector<std::uint8_t>(kMaxWireMessage, 0xa1)).ok());
  EXPECT_FALSE(decode({0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}).ok());
  EXPECT_FALSE(decode({0x7b, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}).ok());
  EXPECT_FALSE(decode(std::vector<std::uint8_t>(kMaxWireMessage + 1, 0x80)).ok());
  EXPECT_FALSE(decode(std::vector<std::uint8_t>(kMaxWireMessage, 0x7f)).ok()) << "text in chunks in chunks";
  EXPECT_FALSE(decode(std::vector<std::uint8_t>(kMaxWireMessage, 0x5f)).ok()) << "bytes in chunks in chunks";
}

TEST(ItemReader, stops_at_the_first_item_that_is_wrong) {
  const json body = json::array({1, "text", 3});
  ItemReader in(body);
  EXPECT_EQ(in.u32(), 1u);
  EXPECT_EQ(in.u32(), 0u);
  EXPECT_FALSE(in.ok());
  EXPECT_EQ(in.u32(), 0u) << "the 3 is not read any more";
  ItemReader left_over(body);
  left_over.u32();
  EXPECT_TRUE(left_over.ok());
  EXPECT_FALSE(left_over.done());
  ItemReader too_long(body);
  too_long.u32();
  EXPECT_EQ(too_long.text(3), "");
  EXPECT_FALSE(too_long.ok());
}

TEST(ItemReader, reads_fractions_that_a_float_can_hold) {
  const auto fraction = [](double value) {
    const json items = json::array({value});
    ItemReader in(items);
    const float read = in.fraction();
    return in.ok() ? read : -1;
  };
  EXPECT_EQ(fraction(0.75), 0.75f);
  EXPECT_EQ(fraction(1), 1);
  EXPECT_EQ(fraction(-0.01), -1);
  EXPECT_EQ(fraction(1e300), -1);
}

TEST(StatusOnTheWire, comes_back_as_it_went) {
  const Status status(Code::kMismatch, "what", "where", "fix");
  EXPECT_EQ(status_from_json(status_to_json(status)), status);
  EXPECT_TRUE(status_from_json(status_to_json({})).ok());
  EXPECT_EQ(status_from_json(json::array({99, "a", "b", "c"})).code(), Code::kInternal);
  EXPECT_EQ(status_from_json(json::array()).code(), Code::kInternal);
}

TEST(Proof, depends_on_everything_it_speaks_for) {
  ASSERT_TRUE(start_cryptography());
  const std::vector<std::byte> secret(8, std::byte{1}), other(8, std::byte{2});
  const std::string proof = prove(secret, Role::kFollower, "aa", "bb", "job", Epoch(1), "h1");
  EXPECT_EQ(proof.size(), kNonceText);
  EXPECT_EQ(proof, prove(secret, Role::kFollower, "aa", "bb", "job", Epoch(1), "h1"));
  EXPECT_NE(proof, prove(other, Role::kFollower, "aa", "bb", "job", Epoch(1), "h1"));
  EXPECT_NE(proof, prove(secret, Role::kLeader, "aa", "bb", "job", Epoch(1), "h1"));
  EXPECT_NE(proof, prove(secret, Role::kFollower, "ab", "bb", "job", Epoch(1), "h1"));
  EXPECT_NE(proof, prove(secret, Role::kFollower, "aa", "ba", "job", Epoch(1), "h1"));
  EXPECT_NE(proof, prove(secret, Role::kFollower, "aa", "bb", "jo", Epoch(1), "h1"));
  EXPECT_NE(proof, prove(secret, Role::kFollower, "aa", "bb", "job", Epoch(2), "h1"));
  EXPECT_NE(proof, prove(secret, Role::kFollower, "aa", "bb", "job", Epoch(1), "h2"));
  EXPECT_NE(prove(secret, Role::kFollower, "aab", "b", "job", Epoch(1), "h1"),
            prove(secret, Role::kFollower, "aa", "bb", "job", Epoch(1), "h1"));
  EXPECT_TRUE(equal_in_constant_time(proof, proof));
  EXPECT_FALSE(equal_in_constant_time(proof, std::string_view(proof).substr(1)));
  EXPECT_EQ(random_nonce().size(), kNonceText);
  EXPECT_NE(random_nonce(), random_nonce());
}

TEST(Keys, both_hosts_of_a_pair_have_the_same_and_no_other_pair_has_it) {
  ASSERT_TRUE(start_cryptography());
  constexpr std::size_t kHosts = 5;
  const Secret root = random_root();
  std::set<ports::PairKey> all;
  for (std::uint16_t self = 0; self < kHosts; ++self) {
    const ports::PairKeys keys = pair_keys(root, HostIndex(self), kHosts);
    ASSERT_EQ(keys.size(), kHosts);
    EXPECT_EQ(keys[self], ports::PairKey{}) << "none with itself";
    for (std::uint16_t peer = 0; peer < kHosts; ++peer) {
      EXPECT_EQ(keys[peer], pair_keys(root, HostIndex(peer), kHosts)[self]);
      all.insert(keys[peer]);
    }
  }
  EXPECT_EQ(all.size(), kHosts * (kHosts - 1) / 2 + 1);
  EXPECT_NE(pair_keys(root, HostIndex(0), 2), pair_keys(random_root(), HostIndex(0), 2))
      << "another job, another start";
}

}  // namespace
}  // namespace tensorlane::control
