// The headroom formulas against rows of vendors' tables, and what they refuse.
#include "switch-config/headroom/headroom.h"

#include <gtest/gtest.h>

#include <vector>

namespace tensorlane::headroom {
namespace {

constexpr BitsPerSecond gbits(std::uint64_t n) {
  return BitsPerSecond(n * 1'000'000'000);
}

Parameters parameters(Asic asic, Formula formula, std::uint64_t gigabits, double metres, std::uint64_t lossless,
                      unsigned small) {
  Parameters p;
  p.asic = asic;
  p.formula = formula;
  p.port = {gbits(gigabits), metres, Bytes(9216), Bytes(lossless)};
  p.small_packet_percent = small;
  return p;
}

Headroom computed(const Parameters& p) {
  const auto result = nvidia_headroom(p);
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  return result.ok() ? *result : Headroom{};
}

TEST(Headroom, EqualsTheVendorsTableOfSn5640) {
  struct Row {
    std::uint64_t gigabits;
    double metres;
    std::uint64_t xoff;
  };
  for (const Row& row : {Row{100, 40, 49152}, Row{400, 40, 104448}, Row{400, 300, 243712}, Row{10, 5, 20480}}) {
    Parameters p = parameters(Asic::kSpectrum5, Formula::kCurrent, row.gigabits, row.metres, 4096, 50);
    p.shared_headroom = true;
    EXPECT_EQ(computed(p), (Headroom{Bytes(row.xoff), Bytes(19456), Bytes(19456)}))
        << row.gigabits << "G " << row.metres << " m";
  }
}

TEST(Headroom, EqualsTheVendorsTableOfSn2700InTheOlderFormula) {
  EXPECT_EQ(computed(parameters(Asic::kSpectrum1, Formula::kOlder, 100, 40, 1024, 100)),
            (Headroom{Bytes(38912), Bytes(19456), Bytes(58368)}));
  EXPECT_EQ(computed(parameters(Asic::kSpectrum1, Formula::kOlder, 25, 5, 1024, 100)),
            (Headroom{Bytes(29696), Bytes(19456), Bytes(49152)}));
}

TEST(Headroom, AddsTwoKibibytesWhereSmallPacketsLessenItAndNoPoolIsShared) {
  struct Line {
    std::uint64_t gigabits;
    std::vector<std::uint64_t> xoffs;  // at 5, 40, 100 and 300 m
  };
  const double metres[] = {5, 40, 100, 300};
  const Line lines[] = {{25, {23552, 24576, 26624, 32768}},
                        {100, {46080, 51200, 59392, 86016}},
                        {200, {52224, 62464, 77824, 132096}},
                        {400, {88064, 106496, 139264, 245760}},
                        {800, {97280, 134144, 198656, 413696}}};
  for (const Asic asic : {Asic::kSpectrum4, Asic::kSpectrum5}) {
    for (const Line& line : lines) {
      for (std::size_t i = 0; i < line.xoffs.size(); ++i) {
        const Headroom result = computed(parameters(asic, Formula::kCurrent, line.gigabits, metres[i], 4096, 50));
        EXPECT_EQ(result.xoff.value, line.xoffs[i]) << line.gigabits << "G " << metres[i] << " m";
      }
    }
  }
}

TEST(Headroom, DoublesXonAndAddsAFrameOnPortsOfEightLanes) {
  Parameters p = parameters(Asic::kSpectrum4, Formula::kCurrent, 800, 40, 4096, 50);
  EXPECT_EQ(computed(p), (Headroom{Bytes(134144), Bytes(38912), Bytes(134144 + 38912 + 9216)}));
  p.lanes = 4;
  EXPECT_EQ(computed(p).size, Bytes(134144 + 19456));
  p.shared_headroom = true;
  p.lanes = 8;
  EXPECT_EQ(computed(p).size, Bytes(38912));
  EXPECT_EQ(default_lanes(Asic::kSpectrum3, gbits(400)), 8u);
  EXPECT_EQ(default_lanes(Asic::kSpectrum4, gbits(400)), 4u);
  EXPECT_EQ(default_lanes(Asic::kSpectrum1, gbits(100)), 4u);
  EXPECT_EQ(default_lanes(Asic::kSpectrum5, gbits(10)), 1u);
}

TEST(Headroom, GrowsWithLengthSpeedMtuAndAGearbox) {
  const Parameters base = parameters(Asic::kSpectrum2, Formula::kCurrent, 100, 40, 1024, 100);
  const Bytes xoff = computed(base).xoff;
  Parameters more = base;
  more.port.cable_metres = 80;
  EXPECT_GT(computed(more).xoff, xoff);
  more = base;
  more.port.speed = gbits(200);
  EXPECT_GT(computed(more).xoff, xoff);
  more = base;
  more.port.lossless_mtu = Bytes(9216);
  EXPECT_GT(computed(more).xoff, xoff);
  more = base;
  more.gearbox_nanoseconds = 400;
  EXPECT_GT(computed(more).xoff, xoff);
}

TEST(Headroom, RefusesWhatNoPortHas) {
  const Parameters good = parameters(Asic::kSpectrum4, Formula::kCurrent, 100, 40, 1024, 100);
  const auto refused = [&](auto change) {
    Parameters p = good;
    change(p);
    const auto result = nvidia_headroom(p);
    EXPECT_FALSE(result.ok());
    return result.ok() ? std::string() : result.status().where();
  };
  EXPECT_EQ(refused([](Parameters& p) { p.port.speed = BitsPerSecond(0); }), "speed");
  EXPECT_EQ(refused([](Parameters& p) { p.port.cable_metres = 1e6; }), "cable");
  EXPECT_EQ(refused([](Parameters& p) { p.port.cable_metres = -1; }), "cable");
  EXPECT_EQ(refused([](Parameters& p) { p.port.port_mtu = Bytes(70000); }), "mtu");
  EXPECT_EQ(refused([](Parameters& p) { p.port.lossless_mtu = Bytes(9217); }), "lossless-mtu");
  EXPECT_EQ(refused([](Parameters& p) { p.port.lossless_mtu = Bytes(0); }), "lossless-mtu");
  EXPECT_EQ(refused([](Parameters& p) { p.small_packet_percent = 101; }), "small-packets");
  EXPECT_EQ(refused([](Parameters& p) { p.lanes = 9; }), "lanes");
  EXPECT_EQ(parse_asic("spectrum6").status().fix(), "say spectrum1, spectrum2, spectrum3, spectrum4 or spectrum5");
  EXPECT_FALSE(parse_formula("newest").ok());
}

TEST(Headroom, EstimatesWhatAnySwitchNeeds) {
  const auto at_100g = generic_headroom({gbits(100), 40, Bytes(9216), Bytes(9216)});
  ASSERT_TRUE(at_100g.ok());
  EXPECT_EQ(at_100g->upper, Bytes(4 * 79492));  // in cells of 256 bytes with one packet of 64 each
  // 2 * 40 m * 100G / 198e6 m/s / 8 = 5051 bytes of cable, two frames, 394 quanta of 64 bytes.
  EXPECT_EQ(at_100g->lower, Bytes(5051 + 2 * 9216 + 394 * 64));
}

// Pause quanta of 512 bits: of IEEE 802.3 31B.3.7, and of SONiC above 100G. At other speeds SONiC takes 3.8 KiB.
TEST(Headroom, APeerTakesAsLongAsTheStandardSays) {
  struct Row {
    std::uint64_t gigabits, quanta;
  };
  for (const Row& row : {Row{1, 2}, Row{10, 67}, Row{25, 80}, Row{40, 118}, Row{50, 147}, Row{100, 394}, Row{200, 453},
                         Row{400, 905}, Row{800, 905}}) {
    const auto estimate = generic_headroom({gbits(row.gigabits), 0, Bytes(9216), Bytes(9216)});
    ASSERT_TRUE(estimate.ok());
    EXPECT_EQ(estimate->lower, Bytes(2 * 9216 + row.quanta * 64)) << row.gigabits << "G";
  }
  EXPECT_EQ(generic_headroom({gbits(300), 0, Bytes(9216), Bytes(9216)})->lower, Bytes(2 * 9216 + 3892));
}

// Rows of the tables that SONiC has for Tomahawk5 (7060X6), Jericho2 (7280DR3A) and older chips, with the longest cable
// and the fastest port that each value is given for.
TEST(Headroom, EstimatesMoreThanVendorsTablesHave) {
  struct Row {
    std::uint64_t gigabits;
    double metres;
    std::uint64_t xoff;
  };
  for (const Row& row : {Row{400, 30, 425958}, Row{400, 40, 445770}, Row{400, 150, 612140}, Row{400, 5, 612140},
                         Row{400, 300, 839216}, Row{400, 500, 1136396}, Row{800, 5, 724662}, Row{800, 40, 1621536},
                         Row{800, 300, 1621536}, Row{40, 300, 69632}, Row{100, 2000, 393216}, Row{400, 2000, 1445888},
                         Row{100, 300, 160000}, Row{100, 300, 101088}, Row{10, 5, 20480}, Row{25, 5, 29696}}) {
    const auto estimate = generic_headroom({gbits(row.gigabits), row.metres, Bytes(9216), Bytes(4096)});
    ASSERT_TRUE(estimate.ok());
    EXPECT_GE(estimate->upper.value, row.xoff) << row.gigabits << "G " << row.metres << " m";
    EXPECT_LE(estimate->lower.value, row.xoff) << row.gigabits << "G " << row.metres << " m";
  }
  Bytes before{};
  for (const std::uint64_t gigabits : {10, 25, 40, 50, 56, 100, 200, 400, 800, 1600}) {
    const auto estimate = generic_headroom({gbits(gigabits), 40, Bytes(9216), Bytes(4096)});
    ASSERT_TRUE(estimate.ok());
    EXPECT_GT(estimate->upper, before) << gigabits << "G";
    before = estimate->upper;
  }
}

TEST(Headroom, OfANic) {
  EXPECT_EQ(*nic_headroom(gbits(100), 40, Bytes(9000)), Bytes(63220));
  EXPECT_EQ(*nic_headroom(gbits(400), 40, Bytes(9000)), Bytes(179440));
  EXPECT_EQ(*nic_headroom(gbits(10), 40, Bytes(9000)), *nic_headroom(gbits(40), 40, Bytes(9000)));
  EXPECT_FALSE(nic_headroom(gbits(10), -1, Bytes(9000)).ok());
}

TEST(Headroom, OfAllGroupsMustFitThePort) {
  const Bytes sizes[] = {Bytes(100'000), Bytes(50'000)};
  const std::uint64_t sum = 150'000 + 20 * 1024 + 19 * 1024 + 4096;
  EXPECT_EQ(*check_port(sizes, 4, Bytes(sum + 1)), Bytes(sum));
  const auto full = check_port(sizes, 4, Bytes(sum));
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.status().code(), Code::kResourceExhausted);
  EXPECT_NE(full.status().what().find(std::to_string(sum)), std::string::npos) << full.status().what();
  EXPECT_FALSE(check_port(sizes, 8, Bytes(sum + 1)).ok());
}

TEST(Headroom, MustLeaveHalfOfTheBuffer) {
  EXPECT_EQ(*check_buffer(mib(64), mib(30), mib(2)), mib(32));
  const auto more = check_buffer(mib(64), mib(30), mib(2) + Bytes(1));
  ASSERT_FALSE(more.ok());
  EXPECT_NE(more.status().what().find(std::to_string(mib(64).value)), std::string::npos) << more.status().what();
}

}  // namespace
}  // namespace tensorlane::headroom
