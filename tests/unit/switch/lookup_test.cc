// The reader of pg_profile_lookup.ini.
#include "switch-config/headroom/lookup.h"

#include <gtest/gtest.h>

namespace tensorlane::headroom {
namespace {

constexpr std::string_view kTomahawk2 = R"(# PG lossless profiles.
# speed cable size xon xoff threshold xon_offset
 40000   5m    1248  1248  29536  -3  2496
 40000   40m   1248  1248  31616  -3  2496
 40000   300m  1248  1248  48256  -3  2496
100000   300m  1248  1248  101088 -3  2496
100000   5m    1248  1248  54080  -3  2496

100000   40m   1248  1248  59696  -3  2496   # the usual one
)";
constexpr BitsPerSecond k100G(100'000'000'000);

std::vector<LookupRow> tomahawk2() {
  auto table = parse_lookup(kTomahawk2, "pg.ini");
  EXPECT_TRUE(table.ok()) << table.status().to_string();
  return table.ok() ? *std::move(table) : std::vector<LookupRow>();
}

TEST(Lookup, TakesTheNextLongerCable) {
  const auto table = tomahawk2();
  ASSERT_EQ(table.size(), 6u);
  const LookupRow at_40 = *find_row(table, k100G, 40);
  EXPECT_EQ(at_40.headroom, (Headroom{Bytes(59696), Bytes(1248), Bytes(1248)}));
  EXPECT_EQ(at_40.threshold, -3);
  EXPECT_EQ(at_40.xon_offset, Bytes(2496));
  EXPECT_EQ(find_row(table, k100G, 0.5)->headroom.xoff, Bytes(54080));
  EXPECT_EQ(find_row(table, k100G, 5.1)->headroom.xoff, Bytes(59696));
  EXPECT_EQ(find_row(table, k100G, 41)->headroom.xoff, Bytes(101088));
  EXPECT_EQ(find_row(table, BitsPerSecond(40'000'000'000), 40)->headroom.xoff, Bytes(31616));
}

TEST(Lookup, SaysWhatTheTableLacks) {
  const auto table = tomahawk2();
  EXPECT_EQ(find_row(table, BitsPerSecond(25'000'000'000), 5).status().fix(), "it has 40G, 100G; add a row");
  EXPECT_NE(find_row(table, k100G, 301).status().what().find("300m"), std::string::npos);
}

TEST(Lookup, NamesTheLineThatIsWrong) {
  const auto refused = [](const std::string& row) {
    const auto table = parse_lookup("# head\n" + row + "\n", "pg.ini");
    EXPECT_FALSE(table.ok()) << row;
    if (table.ok()) return std::string();
    EXPECT_EQ(table.status().where(), "pg.ini:2") << row;
    return table.status().what();
  };
  EXPECT_EQ(refused("100000 40m 1248 1248 59696"), "a row of 5 columns");
  EXPECT_EQ(refused("100G 40m 1248 1248 59696 0"), "'100G' is not a speed in Mb/s");
  EXPECT_EQ(refused("100000 40 1248 1248 59696 0"), "'40' is not a length such as 40m");
  EXPECT_EQ(refused("100000 m 1248 1248 59696 0"), "'m' is not a length such as 40m");
  EXPECT_EQ(refused("100000 40m -1 1248 59696 0"), "'-1' is not a number of bytes");
  EXPECT_EQ(refused("100000 40m 1248 1248 59696 9"), "'9' is not a threshold, -8 to 7 or bytes from 64 on");
  EXPECT_EQ(refused("100000 40m 1248 1248 59696 0 x"), "'x' is not a number of bytes");
  const auto doubled = parse_lookup("100000 40m 1 1 1 0\n100000 40m 1 1 1 0\n", "pg.ini");
  EXPECT_EQ(doubled.status().where(), "pg.ini:2");
  EXPECT_EQ(parse_lookup("# nothing\n", "pg.ini").status().what(), "no row");
  EXPECT_EQ(load_lookup("/nonexistent/pg.ini").status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace tensorlane::headroom
