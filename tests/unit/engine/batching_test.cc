// Caramel, sections 4.2 to 4.4, and Horovod's fusion, on the papers' formulas.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "daemon/engine/batching/batcher.h"
#include "daemon/engine/batching/fusion.h"
#include "daemon/engine/batching/network_model.h"
#include "daemon/engine/batching/transfer_windows.h"

namespace tensorlane::engine {
namespace {

using testing::ElementsAre;

// 10 us, then 1 ns per byte: 8 Gbit/s.
const NetworkModel kNetwork = NetworkModel::of(microseconds(10), BitsPerSecond(8'000'000'000));

// ---- the network model and the threshold (4.2) ----

TEST(NetworkModel, IsTheLineThroughTheTwoSizes) {
  const std::vector<TransferSample> samples{{kSmallSample, kNetwork.time(kSmallSample)},
                                            {kLargeSample, kNetwork.time(kLargeSample)}};
  const auto model = NetworkModel::fit(samples);
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_NEAR(model->overhead_ns(), 10'000, 1);
  EXPECT_NEAR(model->ns_per_byte(), 1, 1e-6);
  EXPECT_EQ(model->time(mib(100)), kNetwork.time(mib(100)));
  EXPECT_EQ(kNetwork.time(Bytes(1000)), microseconds(11));
}

TEST(NetworkModel, FitsNoisySamplesByLeastSquares) {
  std::vector<TransferSample> samples;
  for (const std::int64_t noise : {-500, 0, 500}) {
    samples.push_back({kSmallSample, kNetwork.time(kSmallSample) + nanoseconds(noise)});
    samples.push_back({kLargeSample, kNetwork.time(kLargeSample) + nanoseconds(noise)});
  }
  const auto model = NetworkModel::fit(samples);
  ASSERT_TRUE(model.ok());
  EXPECT_NEAR(model->overhead_ns(), 10'000, 1);
  EXPECT_NEAR(model->ns_per_byte(), 1, 1e-6);
}

TEST(NetworkModel, RefusesWhatIsNoLine) {
  EXPECT_EQ(NetworkModel::fit({}).status().code(), Code::kInvalidArgument);
  const std::vector<TransferSample> one_size{{kSmallSample, Duration(5)}, {kSmallSample, Duration(9)}};
  EXPECT_EQ(NetworkModel::fit(one_size).status().code(), Code::kInvalidArgument);
  const std::vector<TransferSample> falling{{kSmallSample, Duration(9)}, {kLargeSample, Duration(5)}};
  EXPECT_EQ(NetworkModel::fit(falling).status().code(), Code::kInvalidArgument);
  // Faster than proportional: no overhead, not a negative one.
  const std::vector<TransferSample> steep{{kSmallSample, Duration(0)}, {kLargeSample, milliseconds(5)}};
  const auto model = NetworkModel::fit(steep);
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->overhead_ns(), 0);
  EXPECT_EQ(model->threshold(), Bytes(1));
}

// The formula as the paper prints it, f(2x) / (2 f(x)), tried for every x.
TEST(Threshold, IsTheLeastThatFulfilsTheFormula) {
  for (const std::int64_t overhead : {0, 1, 7, 100, 999, 12'345}) {
    for (const std::uint64_t rate : {1'000'000'000ull, 8'000'000'000ull, 100'000'000'000ull}) {
      const NetworkModel model = NetworkModel::of(nanoseconds(overhead), BitsPerSecond(rate));
      const auto f = [&](std::uint64_t x) {
        return static_cast<long double>(overhead) + static_cast<long double>(x) * 8e9L / static_cast<long double>(rate);
      };
      std::uint64_t x = 1;
      // A product, so that equality is exact: f(2x) > 0.8 * 2 f(x) <=> 5 f(2x) > 8 f(x).
      while (!(5 * f(2 * x) > 8 * f(x) + 1e-9L)) ++x;
      EXPECT_EQ(model.threshold(), Bytes(x)) << overhead << " ns, " << rate << " bit/s";
    }
  }
}

TEST(Threshold, OfThisNetwork) {
  EXPECT_EQ(kNetwork.threshold(), Bytes(15'001));  // 1.5 * 10 us * 1 byte/ns, and more
}

// ---- the batcher (4.2) ----

Update update(std::uint32_t tensor, std::uint64_t size, std::int64_t ready_us) {
  return {TensorId(tensor), Bytes(size), microseconds(ready_us)};
}

std::vector<std::vector<std::uint32_t>> members(const std::vector<Batch>& batches) {
  std::vector<std::vector<std::uint32_t>> all;
  for (const Batch& batch : batches) {
    all.emplace_back();
    for (const TensorId tensor : batch.members) all.back().push_back(tensor.value);
  }
  return all;
}

TEST(Batcher, LargeOnesTravelAlone) {
  const std::vector<Update> updates{update(0, 20'000, 0), update(1, 20'000, 1)};
  const auto batches = batch_updates(updates, kNetwork, Bytes(15'000));
  EXPECT_THAT(members(batches), ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_EQ(batches[1].sent, microseconds(1));
}

TEST(Batcher, SmallOnesWaitWhileTheNetworkIsBusy) {
  // Tensor 0 keeps the network busy until 10 + 100 = 110 us; 1 to 3 are ready in the meantime.
  const std::vector<Update> updates{update(0, 100'000, 0), update(1, 4'000, 10), update(2, 4'000, 20),
                                    update(3, 4'000, 30), update(4, 4'000, 500)};
  const auto batches = batch_updates(updates, kNetwork, Bytes(15'000));
  // Before update 4 the queue would run dry: the batch goes as soon as its last member is there.
  EXPECT_THAT(members(batches), ElementsAre(ElementsAre(0), ElementsAre(1, 2, 3), ElementsAre(4)));
  EXPECT_EQ(batches[1].sent, microseconds(30));
  EXPECT_EQ(batches[1].size, Bytes(12'000));
}

TEST(Batcher, ABatchThatIsLargerThanTheThresholdGoes) {
  const std::vector<Update> updates{update(0, 1'000'000, 0), update(1, 9'000, 10), update(2, 9'000, 20),
                                    update(3, 9'000, 30), update(4, 9'000, 40)};
  const auto batches = batch_updates(updates, kNetwork, Bytes(15'000));
  EXPECT_THAT(members(batches), ElementsAre(ElementsAre(0), ElementsAre(1, 2), ElementsAre(3, 4)));
  EXPECT_EQ(batches[1].sent, microseconds(20));
}

TEST(Batcher, AnIdleNetworkGetsEverythingAtOnce) {
  const std::vector<Update> updates{update(0, 100, 0), update(1, 100, 100), update(2, 100, 200)};
  EXPECT_THAT(members(batch_updates(updates, kNetwork, Bytes(15'000))),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
}

// A large one overtakes the open batch, which keeps waiting behind it.
TEST(Batcher, ALargeOneLeavesTheBatchOpen) {
  const std::vector<Update> updates{update(0, 100'000, 0), update(1, 4'000, 10), update(2, 50'000, 20),
                                    update(3, 4'000, 30)};
  EXPECT_THAT(members(batch_updates(updates, kNetwork, Bytes(15'000))),
              ElementsAre(ElementsAre(0), ElementsAre(2), ElementsAre(1, 3)));
}

TEST(Batcher, SortsByTimeAndHoldsEveryTensorOnce) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 50; ++round) {
    std::vector<Update> updates;
    for (std::uint32_t i = 0; i < 60; ++i)
      updates.push_back(update(i, 1 + random() % 40'000, static_cast<std::int64_t>(random() % 1000)));
    const auto batches = batch_updates(updates, kNetwork, kNetwork.threshold());
    std::vector<bool> seen(60, false);
    Duration before;
    for (const Batch& batch : batches) {
      EXPECT_GE(batch.sent, before);
      before = batch.sent;
      Bytes size;
      for (const TensorId t : batch.members) {
        EXPECT_FALSE(seen[t.value]);
        seen[t.value] = true;
        size += updates[t.value].size;
        EXPECT_LE(updates[t.value].ready, batch.sent);
      }
      EXPECT_EQ(size, batch.size);
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 60);
  }
}

// ---- transfer windows (4.3) ----

TransferWindow window(std::int64_t time, std::int64_t updated, std::int64_t read) {
  return {Bytes(static_cast<std::uint64_t>(time)), Duration(time), Duration(updated), Duration(read)};
}

TEST(TransferWindows, BackwardFirstThenForward) {
  // 10 backward, 6 forward. The largest fills the backward pass from 2 to 9; the next does not fit there any more.
  const std::vector<TransferWindow> windows{window(3, 4, 5), window(7, 2, 6), window(1, 0, 1)};
  const TransferSchedule s = schedule_transfers(windows, Duration(10), Duration(6));
  EXPECT_EQ(s.placements[1].pass, Pass::kBackward);
  EXPECT_EQ(s.placements[1].start, Duration(2));
  EXPECT_EQ(s.placements[0].pass, Pass::kForward);
  EXPECT_EQ(s.placements[0].start, Duration(2));  // as late as its read at 5 allows
  EXPECT_EQ(s.placements[2].pass, Pass::kBackward);
  EXPECT_EQ(s.placements[2].start, Duration(0));
  EXPECT_EQ(s.tail, Duration(0));
  EXPECT_EQ(s.lead, Duration(0));
  EXPECT_EQ(s.iteration, Duration(16));
}

// Gaps are filled to the brim, on both sides, and a gap that is one too short is not.
TEST(TransferWindows, GapsAreFilledExactly) {
  // Backward: 8 from 4 to 12 leaves 0 to 4 for the 4. Forward: the 7 and 3 are updated too late for the backward pass.
  const std::vector<TransferWindow> windows{window(8, 4, 0), window(7, 12, 10), window(4, 0, 0), window(3, 12, 10)};
  TransferSchedule s = schedule_transfers(windows, Duration(12), Duration(10));
  EXPECT_EQ(s.placements[0].start, Duration(4));
  EXPECT_EQ(s.placements[1].start, Duration(3));
  EXPECT_EQ(s.placements[2].pass, Pass::kBackward);
  EXPECT_EQ(s.placements[2].start, Duration(0));
  EXPECT_EQ(s.placements[3].pass, Pass::kForward);
  EXPECT_EQ(s.placements[3].start, Duration(0));
  EXPECT_EQ(s.iteration, Duration(22));
  // Between two that are there, a gap of 2: first one of 2, then one of 1 that finds it taken.
  const std::vector<TransferWindow> between{window(4, 20, 10), window(4, 20, 4), window(2, 20, 7), window(1, 20, 6)};
  s = schedule_transfers(between, Duration(20), Duration(10));
  EXPECT_EQ(s.placements[0].start, Duration(6));
  EXPECT_EQ(s.placements[1].start, Duration(0));
  EXPECT_EQ(s.placements[2].start, Duration(4));
  EXPECT_EQ(s.placements[3].pass, Pass::kBackward);
  EXPECT_EQ(s.tail, Duration(1));
}

TEST(TransferWindows, WhatFitsNowhereGoesWhereItCostsLeast) {
  // Updated at the very end, read at the very beginning (the first layer's gradients).
  const std::vector<TransferWindow> first_layer{window(4, 10, 0)};
  TransferSchedule s = schedule_transfers(first_layer, Duration(10), Duration(6));
  EXPECT_EQ(s.placements[0].pass, Pass::kBackward);  // both cost 4
  EXPECT_EQ(s.tail, Duration(4));
  EXPECT_EQ(s.iteration, Duration(20));
  // With a read at 3, only 1 of its 4 is before the forward pass.
  const std::vector<TransferWindow> later_read{window(4, 10, 3)};
  s = schedule_transfers(later_read, Duration(10), Duration(6));
  EXPECT_EQ(s.placements[0].pass, Pass::kForward);
  EXPECT_EQ(s.placements[0].start, Duration(-1));
  EXPECT_EQ(s.lead, Duration(1));
  EXPECT_EQ(s.iteration, Duration(17));
}

// Only what follows the first layer's gradient on the network costs again.
TEST(TransferWindows, AnExtensionIsPaidOnce) {
  const std::vector<TransferWindow> windows{window(5, 10, 0), window(2, 8, 0)};
  const TransferSchedule s = schedule_transfers(windows, Duration(10), Duration(6));
  EXPECT_EQ(s.placements[1].start, Duration(8));
  EXPECT_EQ(s.placements[0].start, Duration(10));
  EXPECT_EQ(s.iteration, Duration(21));
}

TEST(TransferWindows, NeverOverlapAndStayInTheirBoundaries) {
  std::mt19937_64 random(9);
  for (int round = 0; round < 100; ++round) {
    std::vector<TransferWindow> windows;
    for (int i = 0; i < 30; ++i)
      windows.push_back(window(1 + static_cast<std::int64_t>(random() % 12), static_cast<std::int64_t>(random() % 101),
                               static_cast<std::int64_t>(random() % 51)));
    const TransferSchedule s = schedule_transfers(windows, Duration(100), Duration(50));
    for (std::size_t i = 0; i < windows.size(); ++i) {
      const Placement& p = s.placements[i];
      const Duration end = p.start + windows[i].time;
      if (p.pass == Pass::kBackward) {
        EXPECT_GE(p.start, windows[i].updated);
        EXPECT_LE(end, Duration(100) + s.tail);
      } else {
        EXPECT_LE(end, windows[i].read);
        EXPECT_GE(p.start, Duration(0) - s.lead);
      }
      for (std::size_t j = 0; j < i; ++j) {
        if (s.placements[j].pass != p.pass) continue;
        EXPECT_TRUE(end <= s.placements[j].start || s.placements[j].start + windows[j].time <= p.start);
      }
    }
    EXPECT_EQ(s.iteration, Duration(150) + s.tail + s.lead);
  }
}

// ---- depth (4.4) ----

static_assert(adaptive_depth(Bytes(0), Bytes(100)) == 1);
static_assert(adaptive_depth(Bytes(199), Bytes(100)) == 1);
static_assert(adaptive_depth(Bytes(200), Bytes(100)) == 2);
static_assert(adaptive_depth(Bytes(799), Bytes(100)) == 7);
static_assert(adaptive_depth(Bytes(800), Bytes(100)) == 8);
static_assert(adaptive_depth(mib(100), Bytes(100)) == 8);

TEST(Depth, GrowsFromOneToEightAndKeepsPiecesAtTheThreshold) {
  const Bytes threshold = kNetwork.threshold();
  std::uint32_t before = 1;
  for (std::uint64_t size = 1; size < mib(1).value; size += 997) {
    const std::uint32_t depth = adaptive_depth(Bytes(size), threshold);
    EXPECT_GE(depth, before);
    before = depth;
    EXPECT_TRUE(depth == 1 || size / depth >= threshold.value);
  }
  EXPECT_EQ(before, kDeepest);
}

// ---- Horovod ----

using Groups = std::vector<std::vector<std::uint32_t>>;

Groups run_cycle(Fusion& fusion, Time now) {
  Groups groups;
  fusion.cycle(now, [&](std::span<const TensorId> group) {
    groups.emplace_back();
    for (const TensorId t : group) groups.back().push_back(t.value);
  });
  return groups;
}

TEST(Fusion, SameTypeAndTogetherInTheBuffer) {
  Fusion fusion({Bytes(100), milliseconds(5), 16});
  EXPECT_FALSE(fusion.due());
  const Time start(1000), due = start + milliseconds(5);
  EXPECT_EQ(fusion.push(start, TensorId(0), Dtype::kFloat32, Bytes(60)), due);
  EXPECT_EQ(fusion.push(start + milliseconds(1), TensorId(1), Dtype::kFloat16, Bytes(10)), due);
  fusion.push(start, TensorId(2), Dtype::kFloat32, Bytes(50));
  fusion.push(start, TensorId(3), Dtype::kFloat32, Bytes(40));
  fusion.push(start, TensorId(4), Dtype::kFloat16, Bytes(90));
  fusion.push(start, TensorId(5), Dtype::kFloat32, Bytes(500));
  fusion.push(start, TensorId(6), Dtype::kFloat32, Bytes(50));
  EXPECT_THAT(run_cycle(fusion, Time(due.value - 1)), ElementsAre());
  EXPECT_EQ(fusion.due(), due);
  EXPECT_THAT(run_cycle(fusion, due),
              ElementsAre(ElementsAre(0, 3), ElementsAre(1, 4), ElementsAre(2, 6), ElementsAre(5)));
  EXPECT_FALSE(fusion.due());
  EXPECT_EQ(fusion.push(due, TensorId(0), Dtype::kFloat32, Bytes(60)), due + milliseconds(5));
}

TEST(Fusion, ABufferIsFilledToTheBrimAndNoFurther) {
  Fusion fusion({Bytes(100), milliseconds(5), 16});
  fusion.push(Time(0), TensorId(0), Dtype::kFloat32, Bytes(60));
  fusion.push(Time(0), TensorId(1), Dtype::kFloat32, Bytes(40));
  fusion.push(Time(0), TensorId(2), Dtype::kFloat32, Bytes(1));
  EXPECT_THAT(run_cycle(fusion, Time(milliseconds(5).value)), ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
}

}  // namespace
}  // namespace tensorlane::engine
