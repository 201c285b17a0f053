// What lanes have counted together.
//
// Every metric is visited by structured bindings, which name all members of a struct: a member that is new does not
// compile here. Add it to the binding and to the visits below it. The test then fails until AllLanes adds it up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/ports/all_lanes.h"

namespace tensorlane::ports {
namespace {

using ::testing::ElementsAre;

// Calls `counter` with every counter and `histogram` with every histogram, always in the same order, and `oldest` with
// those of which the lanes' maximum counts.
template <typename OnCounter, typename OnHistogram>
void visit_class(ClassMetrics& metrics, OnCounter counter, OnHistogram histogram) {
  auto& [sent, received, operations_sent, operations_received, completed, failed, wait, straggler, completion, full] =
      metrics;
  for (Counter* c : {&sent, &received, &operations_sent, &operations_received, &completed, &failed, &full}) counter(*c);
  for (DurationHistogram* h : {&wait, &straggler, &completion}) histogram(*h);
}

template <typename OnCounter>
void visit_transport(TransportMetrics& metrics, OnCounter counter) {
  auto& [accepted, refused, unauthenticated, dropped, resumed, resent, placed, copied, down, retries, not_ready,
         access] = metrics;
  for (Counter* c : {&accepted, &refused, &unauthenticated, &dropped, &resumed, &resent, &placed, &copied, &down,
                     &retries, &not_ready, &access})
    counter(*c);
}

template <typename OnCounter, typename OnOldest, typename OnHistogram>
void visit(LaneMetrics& metrics, OnCounter counter, OnOldest oldest, OnHistogram histogram) {
  auto& [classes, rails, slices_sent, slices_reduced, bytes_reduced, bytes_copied, stale, errors, late, started, failed,
         transport, cpu, work_cpu, work_turns, loops, sleeps, jobs, sessions, pending, staging, staging_limit, messages,
         oldest_message, ages, flows, paths, job_list] = metrics;
  for (ClassMetrics& cls : classes) visit_class(cls, counter, histogram);
  for (RailMetrics& rail : rails) {
    auto& [sent, received] = rail;
    for (auto* of_classes : {&sent, &received}) std::ranges::for_each(*of_classes, counter);
  }
  visit_transport(transport, counter);
  for (Counter* c : {&slices_sent, &slices_reduced, &bytes_reduced, &bytes_copied, &stale,         &errors,  &late,
                     &started,     &failed,         &cpu,           &work_cpu,     &work_turns,    &loops,   &sleeps,
                     &jobs,        &sessions,       &pending,       &staging,      &staging_limit, &messages})
    counter(*c);
  oldest(oldest_message);
  std::ranges::for_each(ages, oldest);
  // The tests below have these.
  static_cast<void>(flows);
  static_cast<void>(paths);
  static_cast<void>(job_list);
}

// The n-th metric of lane l has the value n * kStep^l, or as many records in its buckets, so that no two sums are
// equal.
constexpr std::uint64_t kStep = 10'000;

void fill(LaneMetrics& metrics, std::uint64_t scale) {
  std::uint64_t n = 0;
  visit(
      metrics, [&](Counter& c) { c.set(++n * scale); }, [&](Counter& c) { c.set(++n * scale); },
      [&](DurationHistogram& h) { h.record(microseconds(static_cast<std::int64_t>(++n * scale))); });
}

TEST(AllLanes, AddUpEverything) {
  std::array<LaneMetrics, 2> lanes;
  fill(lanes[0], 1);
  fill(lanes[1], kStep);
  const std::unique_ptr<const LaneMetrics> sum = AllLanes({&lanes[0], &lanes[1]}).sum();
  std::uint64_t n = 0, counters = 0, histograms = 0;
  visit(
      const_cast<LaneMetrics&>(*sum),
      [&](Counter& c) {
        ++n;
        ++counters;
        EXPECT_EQ(c.value(), n + n * kStep) << "metric " << n;
      },
      [&](Counter& c) {
        ++n;
        EXPECT_EQ(c.value(), n * kStep) << "metric " << n << ", of which the larger one counts";
      },
      [&](DurationHistogram& h) {
        ++n;
        ++histograms;
        DurationHistogram expected;
        expected.record(microseconds(static_cast<std::int64_t>(n)));
        expected.record(microseconds(static_cast<std::int64_t>(n * kStep)));
        EXPECT_EQ(h.sum_ns(), expected.sum_ns()) << "metric " << n;
        for (std::size_t i = 0; i < DurationHistogram::kBuckets; ++i)
          EXPECT_EQ(h.bucket(i), expected.bucket(i)) << "metric " << n << ", bucket " << i;
      });
  // Nothing is left unvisited: metrics are counters, histograms of counters, and the three boards.
  const std::size_t visited =
      (counters + kMaxDataClasses + 1) * sizeof(Counter) + histograms * sizeof(DurationHistogram);
  EXPECT_EQ(visited + sizeof(FlowBoard) + sizeof(PathBoard) + sizeof(JobMetricsList), sizeof(LaneMetrics));
}

TEST(AllLanes, AreReadAsTheyAreNow) {
  LaneMetrics first, second;
  const AllLanes all({&first, &second});
  first.oldest_operation_ns[1].set(30);
  second.oldest_operation_ns[1].set(20);
  first.jobs.set(1);
  EXPECT_EQ(all.sum()->oldest_operation_ns[1].value(), 30u);
  first.oldest_operation_ns[1].set(0);
  first.jobs.set(0);
  EXPECT_EQ(all.sum()->oldest_operation_ns[1].value(), 20u);
  EXPECT_EQ(all.sum()->jobs.value(), 0u);
  EXPECT_THAT(all.each(), ElementsAre(&first, &second));
  EXPECT_THAT(AllLanes(second).each(), ElementsAre(&second));
}

std::shared_ptr<JobMetrics> part_of_job(JobId id, std::uint64_t scale) {
  auto job = std::make_shared<JobMetrics>();
  auto& [name, job_id, user, began, iterations, ranks, classes, members] = *job;  // all that there is, as above
  name = "train";
  job_id = id;
  user = 1000;
  began = Time(77);
  iterations.set(scale);
  for (std::uint64_t c = 0; c < classes.size(); ++c) {
    auto& [sent, received, met, demoted, operations, completion, sends, queue] = classes[c];
    std::uint64_t n = 0;
    for (Counter* counter : {&sent, &received, &met, &demoted, &operations, &completion, &sends, &queue})
      counter->set((8 * c + ++n) * scale);
  }
  members.set(900 * scale);
  ranks = std::vector<JobMetrics::PerRank>(2);
  for (std::uint64_t r = 0; r < ranks.size(); ++r) {
    auto& [number, operations, wait, late, blocked, streams, process, waiter] = ranks[r];
    number = Rank(static_cast<std::uint32_t>(4 + r));
    std::uint64_t n = 0;
    for (Counter* counter : {&operations, &wait, &late, &blocked, &streams, &process, &waiter})
      counter->set((7 * r + ++n) * scale);
  }
  return job;
}

TEST(AllLanes, AJobOfTwoLanesIsOne) {
  LaneMetrics first, second;
  first.job_list.add(part_of_job(JobId(5), 7));
  second.job_list.add(part_of_job(JobId(5), 100));
  second.job_list.add(part_of_job(JobId(6), 3));  // has the same name
  const std::unique_ptr<const LaneMetrics> sum = AllLanes({&first, &second}).sum();
  const auto jobs = sum->job_list.all();
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0]->id, JobId(5));
  EXPECT_EQ(jobs[0]->name, "train");
  EXPECT_EQ(jobs[0]->user, 1000u);
  EXPECT_EQ(jobs[0]->began, Time(77));
  EXPECT_EQ(jobs[0]->iterations.value(), 100u) << "the larger one: both lanes count the same operations";
  for (std::uint64_t c = 0; c < kMaxDataClasses; ++c) {
    const auto& [sent, received, met, demoted, operations, completion, sends, queue] = jobs[0]->classes[c];
    std::uint64_t n = 0;
    for (const Counter* counter : {&sent, &received, &met, &demoted, &operations, &completion, &sends, &queue})
      EXPECT_EQ(counter->value(), (8 * c + ++n) * 107) << n;
  }
  EXPECT_EQ(jobs[0]->members.value(), 900u * 107);
  ASSERT_EQ(jobs[0]->ranks.size(), 2u);
  for (std::uint64_t r = 0; r < 2; ++r) {
    const auto& [number, operations, wait, late, blocked, streams, process, waiter] = jobs[0]->ranks[r];
    EXPECT_EQ(number, Rank(static_cast<std::uint32_t>(4 + r)));
    std::uint64_t n = 0;
    for (const Counter* counter : {&operations, &wait, &late, &blocked, &streams, &process, &waiter})
      EXPECT_EQ(counter->value(), (7 * r + ++n) * 107) << n;
  }
  EXPECT_EQ(jobs[1]->id, JobId(6));
  EXPECT_EQ(jobs[1]->classes[0].bytes_sent.value(), 3u);
  EXPECT_EQ(first.job_list.all()[0]->classes[0].bytes_sent.value(), 7u) << "the lanes' own stay as they are";
}

// Jobs are told apart by all that they are known by.
TEST(AllLanes, JobsOfTwoUsersAreTwoWhateverTheirNames) {
  LaneMetrics first, second;
  const auto of_another = part_of_job(JobId(5), 100);
  of_another->user = 2000;
  first.job_list.add(part_of_job(JobId(5), 7));
  second.job_list.add(of_another);
  const auto jobs = AllLanes({&first, &second}).sum()->job_list.all();
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0]->user + jobs[1]->user, 3000u);
}

TEST(AllLanes, HaveTheFlowsAndPathsOfAll) {
  LaneMetrics first, second;
  const FlowKey flow{JobId(9), HostIndex(1), ClassId(1)};
  first.flows.up(RailIndex(0), flow, {"train", "h1", ClassId(1), RailIndex(0), 27, 3, "tcp", "one"});
  second.flows.up(RailIndex(1), flow, {"train", "h1", ClassId(1), RailIndex(1), 27, 3, "tcp", "another"});
  first.paths.set("h1", RailIndex(0), {Time(5), {{"rdma", true, microseconds(3), BitsPerSecond(40), "fastest"}}});
  second.paths.set("h1", RailIndex(1), {Time(), {{"tcp", true, {}, {}, "the only one"}}});
  const std::unique_ptr<const LaneMetrics> sum = AllLanes({&first, &second}).sum();
  const std::vector<FlowReport> flows = sum->flows.all();
  ASSERT_EQ(flows.size(), 2u);
  EXPECT_EQ(flows[0].path, "one");
  EXPECT_EQ(flows[1].path, "another");
  EXPECT_EQ(flows[1].rail, RailIndex(1));
  EXPECT_EQ(flows[1].id, JobId(9));
  EXPECT_EQ(flows[1].host, HostIndex(1));
  const std::vector<PathBoard::Entry> paths = sum->paths.all();
  ASSERT_EQ(paths.size(), 2u);
  EXPECT_EQ(paths[0].report.candidates[0].transport, "rdma");
  EXPECT_EQ(paths[0].report.measured, Time(5));
  EXPECT_EQ(paths[1].rail, RailIndex(1));
  EXPECT_EQ(paths[1].report.candidates[0].transport, "tcp");
}

}  // namespace
}  // namespace tensorlane::ports
