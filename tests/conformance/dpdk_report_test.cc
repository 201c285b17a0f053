// What the transport over packet ports tells other threads of its port and its flows.
#include "daemon/transport/dpdk/port_report.h"
#include "dpdk_kinds.h"

namespace tensorlane::conformance {
namespace {

std::uint64_t packets_of(const ports::PortMetrics& metrics, ClassId cls) {
  return metrics.sent[ports::metrics_slot(cls)].packets.value();
}

void send_some(Pair& pair) {
  const auto payload = pattern(100'000, 3);
  const std::size_t before = pair.b.sink->frames.size();
  for (std::uint64_t i = 0; i < 20; ++i) pair.send(pair.a, pair.to_b(kBulk), payload, 0, i);
  ASSERT_TRUE(pair.run_until([&] { return pair.b.sink->frames.size() == before + 20; }));
}

TEST(DpdkReport, SaysWhatEachClassHasSent) {
  PortMetricsList metrics;
  Pair pair(dpdk_kind("told", false, DataProtection::kNone, {}, &metrics));
  ASSERT_EQ(metrics.size(), 2u);
  EXPECT_EQ(metrics[0]->device, "network");
  EXPECT_EQ(metrics[0]->mac, "02:00:00:00:00:00");
  send_some(pair);
  run_for(pair.clock, {&pair.a, &pair.b}, std::chrono::milliseconds(250));
  EXPECT_GT(packets_of(*metrics[0], kBulk), 1000u);
  EXPECT_GT(packets_of(*metrics[1], kControlClass), 10u) << "acknowledgements";
  EXPECT_LT(packets_of(*metrics[0], kUrgent), 10u) << "nothing was sent in it";
  EXPECT_EQ(metrics[0]->link_up.value(), 1u);
  EXPECT_EQ(metrics[0]->datagrams.lost.value(), 0u);
}

TEST(DpdkReport, PacketsOfFlowsThatHaveEndedStayCounted) {
  PortMetricsList metrics;
  Pair pair(dpdk_kind("lossy", false, DataProtection::kNone, {.lost = 0.05, .doubled = 0.02}, &metrics));
  send_some(pair);
  run_for(pair.clock, {&pair.a, &pair.b}, std::chrono::milliseconds(250));
  const std::uint64_t lost = metrics[0]->datagrams.lost.value(), resent = metrics[0]->datagrams.resent.value();
  EXPECT_GT(lost, 10u);
  EXPECT_GT(resent, 10u);
  EXPECT_GT(metrics[1]->datagrams.duplicates.value(), 5u);
  pair.a->remove_job(kJob);
  pair.b->remove_job(kJob);
  run_for(pair.clock, {&pair.a, &pair.b}, std::chrono::milliseconds(250));
  EXPECT_GE(metrics[0]->datagrams.lost.value(), lost);
  EXPECT_GE(metrics[0]->datagrams.resent.value(), resent);
}

// Of a port that counts nothing: what turns are busy is the report's own.
TEST(DpdkReport, TheShareOfBusyTurnsIsThatOfTheLastSecond) {
  dpdk::PortConfig config{.device = "network", .addresses = {{.address = *dpdk::parse_ip("10.255.0.1"), .prefix = 8}}};
  config.queues.resize(1);
  const auto port = make_network_port(config);
  const auto metrics = dpdk::make_port_metrics(*port);
  dpdk::PortReport report;
  EXPECT_FALSE(report.due(Time(1))) << "nobody wants to know";
  report.open(*port, metrics, {kControlClass});
  Time now(tensorlane::seconds(5).value);
  const auto turns = [&](int count, int busy) {
    for (int i = 0; i < count; ++i) {
      now = now + tensorlane::milliseconds(1);
      report.turn(now, i % 10 < busy);
      if (report.due(now)) report.publish(now, {}, {});
    }
  };
  turns(1, 0);
  turns(1100, 3);
  EXPECT_EQ(metrics->busy_permille.value(), 300u);
  turns(2200, 0);
  EXPECT_EQ(metrics->busy_permille.value(), 0u);
  EXPECT_NEAR(static_cast<double>(metrics->busy_ns.value()), 330e6, 35e6);
  EXPECT_NEAR(static_cast<double>(metrics->polled_ns.value()), 3300e6, 110e6);
  const Time last = now;
  report.publish(now, {.packets_lost = 7}, {});
  EXPECT_EQ(metrics->datagrams.lost.value(), 7u);
  EXPECT_FALSE(report.due(last + tensorlane::milliseconds(99)));
  EXPECT_TRUE(report.due(last + tensorlane::milliseconds(100)));
}

}  // namespace
}  // namespace tensorlane::conformance
