// A class of which the network delivers nothing, as strict priority may have it: law 10.
#include "dpdk_kinds.h"

namespace tensorlane::conformance {
namespace {

class DpdkStarved : public ::testing::Test {
 protected:
  // The classes that nothing comes of from now on.
  void starve(std::initializer_list<std::uint8_t> dscps) {
    *held = 0;
    for (const std::uint8_t dscp : dscps) *held |= std::uint64_t{1} << dscp;
  }
  // So many times the detection time, in steps in which both ends poll. Frames of another class go on.
  void wait_detections(int count) {
    for (int step = 0; step < 10 * count; ++step) {
      pair.clock.skip(seconds(1));
      pair.send(pair.a, pair.to_b(kUrgent), urgent);
      run_for(pair.clock, {&pair.a, &pair.b}, std::chrono::milliseconds(2));
    }
  }

  const std::vector<std::byte> urgent = pattern(1000, 5), bulk = pattern(200'000, 9);  // read until the peer has them
  const std::shared_ptr<std::uint64_t> held = std::make_shared<std::uint64_t>(0);
  Pair pair{dpdk_kind("starved", false, DataProtection::kNone, {.held = held})};
};

TEST_F(DpdkStarved, BulkWaitsForAsLongAsUrgentLikes) {
  starve({27});
  pair.send(pair.a, pair.to_b(kBulk), bulk);
  wait_detections(3);
  EXPECT_TRUE(pair.a.sink->downs.empty()) << pair.a.sink->downs.front().second.to_string();
  EXPECT_GT(pair.a.progress(pair.to_b(kBulk)).outstanding_bytes, 0u);
  starve({});
  const auto came = [&] {
    return std::ranges::any_of(pair.b.sink->frames, [&](const auto& frame) { return frame.payload == bulk; });
  };
  EXPECT_TRUE(pair.run_until(came));
}

// Nothing waits in the control class: it is asked for the sake of what waits elsewhere.
TEST_F(DpdkStarved, AHostOfWhichNothingComesIsGoneThoughOnlyBulkWaits) {
  starve({27, 43, 51});
  pair.send(pair.a, pair.to_b(kBulk), bulk);
  for (int step = 0; step < 9; ++step) {
    pair.clock.skip(seconds(1));
    run_for(pair.clock, {&pair.a, &pair.b}, std::chrono::milliseconds(2));
  }
  EXPECT_TRUE(pair.a.sink->downs.empty()) << pair.a.sink->downs.front().second.to_string();
  for (int step = 0; step < 11 && pair.a.sink->downs.empty(); ++step) {
    pair.clock.skip(seconds(1));
    run_for(pair.clock, {&pair.a, &pair.b}, std::chrono::milliseconds(2));
  }
  ASSERT_FALSE(pair.a.sink->downs.empty()) << "after twice the detection time";
  EXPECT_EQ(pair.a.sink->downs.front().first, pair.to_b(kControlClass));
}

TEST_F(DpdkStarved, AHostThatIsSilentInTheControlClassIsGone) {
  starve({27, 51});
  pair.a.send(pair.to_b(kControlClass), {.header = data_header(), .payload = {}, .token = 0});
  run_for(pair.clock, {&pair.a, &pair.b}, std::chrono::milliseconds(2));
  pair.clock.skip(seconds(9));
  run_for(pair.clock, {&pair.a, &pair.b}, std::chrono::milliseconds(2));
  EXPECT_TRUE(pair.a.sink->downs.empty()) << pair.a.sink->downs.front().second.to_string();
  pair.clock.skip(seconds(2));
  ASSERT_TRUE(pair.run_until([&] { return !pair.a.sink->downs.empty(); }));
  EXPECT_EQ(pair.a.sink->downs.front().first, pair.to_b(kControlClass));
  EXPECT_EQ(pair.a.sink->downs.front().second.code(), Code::kUnavailable);
  EXPECT_THAT(pair.a.sink->downs.front().second.to_string(), ::testing::HasSubstr("no packet of the peer has come"));
}

}  // namespace
}  // namespace tensorlane::conformance
