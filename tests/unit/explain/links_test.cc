// Whose bytes a link of a host carries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/unit/explain/explained.h"

namespace tensorlane::explain {
namespace {

using nlohmann::json;
using test::MadeUpJob;
using ::testing::HasSubstr;

// RDMA and DPDK pass by the kernel's counts of a NIC, and the daemon knows what it has sent.
TEST(Links, ALinkThatTheKernelDoesNotSeeIsFullOfWhatTheDaemonSends) {
  std::vector<HostTimes> hosts = times_of(MadeUpJob(4));
  for (HostTimes& host : hosts) host.rails[0].nic_sent = host.rails[0].nic_received = 0;
  const Explanation all = explain(hosts).value();
  ASSERT_NE(find(all, Cause::kFullLink), nullptr) << text_of(all);
  EXPECT_THAT(find(all, Cause::kFullLink)->evidence, HasSubstr("carries 73 % of the link's speed, 0 % of that not"));
  EXPECT_THAT(find(all, Cause::kFullLink)->evidence, HasSubstr("as the daemon counts"));
  for (HostTimes& host : hosts) host.rails[0].over_memory = true;
  EXPECT_EQ(find(explain(hosts).value(), Cause::kFullLink), nullptr) << "shared memory is no link";
  for (HostTimes& host : hosts) host.rails[0].nic_sent = host.rails[0].nic_received = std::nullopt;
  const Explanation blind = explain(hosts).value();
  ASSERT_NE(find(blind, Cause::kNetwork), nullptr) << text_of(blind);
  EXPECT_THAT(find(blind, Cause::kNetwork)->evidence, HasSubstr("how full the links are is not known"));
}

// What a NIC of two carries for others is compared with what it carries for the job, and not with both NICs.
TEST(Links, OthersBytesAreOfTheFullestOfTwoLinks) {
  std::vector<HostTimes> hosts = times_of(MadeUpJob(4));
  for (HostTimes& host : hosts) {
    const double full = *host.rails[0].speed / 8 * host.seconds, own = 0.55 * full / 1.08;
    host.classes[0].sent_bytes = host.classes[0].received_bytes = 2 * own;
    host.classes[1].sent_bytes = host.classes[1].received_bytes = 0;
    host.rails.resize(2, host.rails[0]);
    host.rails[1].nic = "eth1";
    for (RailTimes& rail : host.rails) {
      rail.sent = rail.received = own;
      rail.nic_sent = rail.nic_received = 0.55 * full;
    }
    if (host.host == "h1") *host.rails[1].nic_received += 0.35 * full;
  }
  const Explanation all = explain(hosts).value();
  ASSERT_NE(find(all, Cause::kForeignBulk), nullptr) << text_of(all);
  EXPECT_EQ(find(all, Cause::kForeignBulk)->where, "the link to host h1");
  EXPECT_THAT(find(all, Cause::kForeignBulk)->evidence,
              HasSubstr("its NIC eth1 carries 90 % of the link's speed, 39 % of that not this job's"));
  EXPECT_EQ(find(all, Cause::kFullLink), nullptr) << text_of(all);
}

// Each of them reports what the whole NIC has carried.
TEST(Links, TwoRailsOfOneNicAreOneLink) {
  std::vector<HostTimes> hosts = times_of(MadeUpJob(4));
  for (HostTimes& host : hosts) {
    host.rails.resize(2, host.rails[0]);
    for (RailTimes& rail : host.rails) rail.sent /= 2, rail.received /= 2;
  }
  const Explanation all = explain(hosts).value();
  EXPECT_EQ(find(all, Cause::kForeignBulk), nullptr) << text_of(all);
  ASSERT_NE(find(all, Cause::kFullLink), nullptr) << text_of(all);
  EXPECT_THAT(find(all, Cause::kFullLink)->evidence, HasSubstr(" 0 % of that not this job's"));
}

// As a parameter server's host does: what fills its link is the job's all the same.
TEST(Links, BytesThatAHostReceivesAreComparedWithWhatItsJobReceives) {
  std::vector<HostTimes> hosts;
  for (auto& [before, after] : MadeUpJob(4).reports()) {
    for (json* report : {&before, &after}) {
      if ((*report)["host"] != "h0") continue;
      for (json& cls : (*report)["classes"]) cls["sent_bytes"] = cls["sent_bytes"].get<std::uint64_t>() / 10;
      json& rail = (*report)["rails"][0];
      for (const char* key : {"sent_bytes", "nic_sent_bytes"}) rail[key] = rail[key].get<std::uint64_t>() / 10;
    }
    hosts.push_back(difference(before, after).value());
  }
  const Explanation all = explain(hosts).value();
  ASSERT_NE(find(all, Cause::kFullLink), nullptr) << text_of(all);
  EXPECT_THAT(find(all, Cause::kFullLink)->places, ::testing::Contains("the link to host h0")) << text_of(all);
  EXPECT_EQ(find(all, Cause::kForeignBulk), nullptr) << text_of(all);
}

}  // namespace
}  // namespace tensorlane::explain
