#include "common/base/hash.h"

#include <gtest/gtest.h>

namespace tensorlane {
namespace {

// Vectors of the FNV reference: http://www.isthe.com/chongo/tech/comp/fnv/
TEST(Fnv1a, MatchesTheReference) {
  EXPECT_EQ(Fnv1a().value(), 0xcbf29ce484222325ull);
  Fnv1a a;
  a.add_byte('a');
  EXPECT_EQ(a.value(), 0xaf63dc4c8601ec8cull);
  Fnv1a foobar;
  for (char c : {'f', 'o', 'o', 'b', 'a', 'r'}) foobar.add_byte(static_cast<std::uint8_t>(c));
  EXPECT_EQ(foobar.value(), 0x85944171f73967e8ull);
}

TEST(Fnv1a, TextsDoNotRunIntoEachOther) {
  Fnv1a one, other;
  one.add_text("ab");
  one.add_text("c");
  other.add_text("a");
  other.add_text("bc");
  EXPECT_NE(one.value(), other.value());
  EXPECT_NE(fnv1a("job"), fnv1a("jobs"));
}

TEST(Fnv1a, ANumberIsItsBytes) {
  Fnv1a number, bytes;
  number.add(std::uint32_t{0x01020304});
  for (std::uint8_t byte : {4, 3, 2, 1}) bytes.add_byte(byte);
  EXPECT_EQ(number.value(), bytes.value());
}

}  // namespace
}  // namespace tensorlane
