#include <gtest/gtest.h>

#include "common/fabric/fabric.h"

namespace tensorlane::fabric {
namespace {

TEST(Rate, AsPeopleWriteIt) {
  for (const auto& [text, rate] : std::initializer_list<std::pair<const char*, std::uint64_t>>{
           {"500 Mbit/s", 500'000'000},
           {"10Gbit/s", 10'000'000'000},
           {"100G", 100'000'000'000},
           {"2.5 Gbit", 2'500'000'000},
           {"1.1 Gbps", 1'100'000'000},
           {"64 kbit/s", 64'000},
           {"64 Kb/s", 64'000},
           {"1.6 Tbit/s", 1'600'000'000'000},
           {"9600 bit/s", 9600},
       }) {
    const auto parsed = parse_rate(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(parsed->value, rate) << text;
  }
}

TEST(Rate, WhatIsNone) {
  for (const char* text : {"", "500", "fast", "500 MB/s", "-5 Gbit/s", "0 Gbit/s", "5 mbit", "5 Gbit/s/s", "1e3 Mbit/s",
                           " 5G", "5G ", "1.2.3 G", "nan G", "0.5 bit/s", "99999999999 Gbit/s"}) {
    const auto parsed = parse_rate(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(
        parsed.status().to_string(),
        std::string("'").append(text) + "' is not a rate: expected a rate such as '500 Mbit/s', '10 Gbit/s' or '100G'");
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
  }
}

TEST(Size, AsPeopleWriteIt) {
  for (const auto& [text, bytes] : std::initializer_list<std::pair<const char*, std::uint64_t>>{{"1500", 1500},
                                                                                                {"1500 B", 1500},
                                                                                                {"256 KiB", 256 << 10},
                                                                                                {"4MiB", 4 << 20},
                                                                                                {"0.5 GiB", 512 << 20},
                                                                                                {"1TiB", 1ull << 40}}) {
    const auto parsed = parse_bytes(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(parsed->value, bytes) << text;
  }
}

TEST(Size, WhatIsNone) {
  for (const char* text : {"", "big", "64 KB", "64 kB", "4M", "0", "1.5", "-1", "4 Mbit", "0x10"}) {
    const auto parsed = parse_bytes(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().to_string(),
              std::string("'").append(text) + "' is not a size: expected a size such as '1500', '256 KiB' or '4 MiB'");
  }
}

TEST(Format, ReadsBackExactly) {
  EXPECT_EQ(format_rate(BitsPerSecond(500'000'000)), "500 Mbit/s");
  EXPECT_EQ(format_rate(BitsPerSecond(2'500'000'000)), "2500 Mbit/s");
  EXPECT_EQ(format_rate(BitsPerSecond(400'000'000'000)), "400 Gbit/s");
  EXPECT_EQ(format_rate(BitsPerSecond(1)), "1 bit/s");
  EXPECT_EQ(format_bytes(kib(512)), "512 KiB");
  EXPECT_EQ(format_bytes(mib(4)), "4 MiB");
  EXPECT_EQ(format_bytes(Bytes(1500)), "1500 B");
  for (std::uint64_t n : {1ull, 999ull, 1000ull, 1024ull, 123456789ull, 1ull << 40, 25'000'000'000ull}) {
    EXPECT_EQ(parse_rate(format_rate(BitsPerSecond(n))).value().value, n);
    EXPECT_EQ(parse_bytes(format_bytes(Bytes(n))).value().value, n);
  }
}

}  // namespace
}  // namespace tensorlane::fabric
