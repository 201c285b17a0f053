// What a job takes of its host is counted, and running out ends nobody else's work (laws 19, 20).
#include <thread>

#include "daemon/host/prepared.h"
#include "daemon/ports/reducer.h"
#include "lane_fixture.h"

namespace tensorlane::lane {
namespace {

using host::need_of;
using host::PlanGrowth;

using ::testing::HasSubstr;

class Resources : public LaneTest {
 protected:
  // A job of one host and one rank, beside that of the fixture. Tensors of one element, all at the same place.
  ports::JobSpec other_job(std::uint64_t id) {
    ports::JobSpec spec;
    spec.name = "other";
    spec.owner = {3002, "other"};
    spec.hosts.push_back({"h0", hosts_[0]->addresses, TestHost::port(), {Rank(0)}});
    spec.credentials = {JobId(id), Epoch(1), HostIndex(0), {}};
    return spec;
  }
  static protocol::Plan small_tensors(std::uint32_t count) {
    protocol::Plan plan;
    plan.version = 1;
    plan.rank_hosts = {HostIndex(0)};
    for (std::uint32_t i = 0; i < count; ++i) {
      protocol::PlanTensor& tensor = plan.tensors.emplace_back(allreduce(1));
      tensor.id = TensorId(i);
      tensor.slice_elements = 16384;
      tensor.name = "t" + std::to_string(i);
    }
    return plan;
  }
  void sums_go_on(std::uint64_t* sequence) {
    ++*sequence;
    each_client([&](FakeClient& client, std::uint32_t) { client.submit(0, *sequence); });
    each_client([&](FakeClient& client, std::uint32_t) { ASSERT_EQ(client.wait(0, *sequence), Code::kOk); });
  }
};

TEST_F(Resources, AUserWhoseShareOfTheTableIsUsedUpIsToldAndNobodyElseNotices) {
  start(2, 1, {allreduce(1000)});
  std::uint64_t sequence = 0;
  sums_go_on(&sequence);
  const ports::JobSpec other = other_job(78);
  Lanes& lane = *hosts_[0]->lane;
  ASSERT_TRUE(lane.start_job(other).ok());
  put_in_force(lane, JobId(78), small_tensors(500));
  EXPECT_EQ(hosts_[0]->region_ledger.in_use_by(3002), 500u);

  const std::vector<protocol::TensorBody> more(20);
  EXPECT_EQ(
      lane.admit(other, more).to_string(),
      "tensors over the limit of one user: 20 needed, 500 of the table of tensors for one user = 512 in use by user "
      "3002: job 'other' on host h0: raise the table of tensors for one user or register fewer");
  protocol::Plan added = small_tensors(520);
  added.version = 2;
  ASSERT_TRUE(lane.apply_plan(JobId(78), added.since(500), nullptr).ok());
  const Status failed = hosts_[0]->listener.wait_failed();
  EXPECT_EQ(failed.code(), Code::kResourceExhausted);
  EXPECT_THAT(failed.to_string(), HasSubstr("tensors over the limit of one user: 20 needed"));
  sums_go_on(&sequence);
  ASSERT_TRUE(lane.abort_job(JobId(78), failed).ok());
  ASSERT_TRUE(hosts_[0]->listener.wait_closed());
  for (int i = 0; i < 1000 && hosts_[0]->region_ledger.in_use_by(3002) > 0; ++i) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(hosts_[0]->region_ledger.in_use_by(3002), 0u) << "all of it comes back";
  sums_go_on(&sequence);
}

// The sums of 16-bit tensors lie in memory of the daemon's own, four bytes for each element.
TEST_F(Resources, SumsForWhichThereIsNoMemoryFailTheirJobByName) {
  start(2, 2, {allreduce(1000, Dtype::kFloat16)});
  EXPECT_GE(hosts_[0]->budget->ledger().in_use(), mib(8).value + 4000) << "staging and sums";
  std::uint64_t sequence = 0;
  sums_go_on(&sequence);
  protocol::PlanTensor large = plan_.tensors.front();
  large.id = TensorId(1);
  large.name = "large";
  large.elements = std::uint64_t{2} << 30;  // 8 GiB of sums, of 4 GiB
  large.slice_elements = 1 << 20;
  plan_.tensors.push_back(large);
  ++plan_.version;
  for (auto& host : hosts_) ASSERT_TRUE(host->lane->apply_plan(kJob, plan_.since(1), nullptr).ok());
  for (std::size_t h = 0; h < 2; ++h) {
    const Status failed = hosts_[h]->listener.wait_failed();
    EXPECT_EQ(failed.code(), Code::kResourceExhausted);
    EXPECT_EQ(failed.what(), "memory over the daemon's limit");
    EXPECT_THAT(failed.where(),
                HasSubstr("8192 MiB needed, memory_limit is 4096 MiB: job 'test' on host h" + std::to_string(h)));
  }
}

// Each has wide sums of its own, of its own size, also of those that join the plan in a later step.
TEST_F(Resources, SumsOf16BitTensorsThatJoinInSeveralStepsAreTheirOwn) {
  constexpr std::uint32_t kCount = 40;
  constexpr std::uint16_t kOne = 0x3c00, kFour = 0x4400;  // of float16
  const auto elements = [](std::uint32_t t) { return std::uint64_t{1000} + (t >= 32 ? 5000 : 0); };
  std::vector<protocol::PlanTensor> tensors;
  std::vector<std::uint64_t> offsets;
  for (std::uint32_t t = 0; t < kCount; ++t) {
    tensors.push_back(allreduce(elements(t), Dtype::kFloat16));
    offsets.push_back(t * 16384);
  }
  start(2, 2, tensors, seconds(10), offsets);
  each_client([&](FakeClient& client, std::uint32_t) {
    for (std::uint32_t t = 0; t < kCount; ++t) {
      std::fill_n(client.data<std::uint16_t>(offsets[t]), elements(t), kOne);
      client.submit(t, 1);
    }
  });
  each_client([&](FakeClient& client, std::uint32_t) {
    for (std::uint32_t t = 0; t < kCount; ++t) {
      ASSERT_EQ(client.wait(t, 1), Code::kOk) << t;
      EXPECT_EQ(std::count(client.data<std::uint16_t>(offsets[t]), client.data<std::uint16_t>(offsets[t]) + elements(t),
                           kFour),
                static_cast<std::ptrdiff_t>(elements(t)))
          << t;
    }
  });
  for (auto& host : hosts_) {
    EXPECT_EQ(host->regions.size(), 1 + 2 * kCount) << "staging, buffers and sums";
    host->lane->stop();
    EXPECT_EQ(host->regions.size(), 0u) << "all of it comes back";
  }
}

// Sums, tables and entries of the table of tensors; and what comes in its place begins anew.
TEST_F(Resources, WhatLeavesThePlanIsGivenBackBeforeItIsSaidToBeGone) {
  constexpr std::uint64_t kOffset = 65536;
  constexpr std::uint16_t kOne = 0x3c00, kFour = 0x4400;  // of float16
  start(2, 2, {allreduce(1000)});
  std::uint64_t sequence = 0;
  sums_go_on(&sequence);
  const std::uint64_t bytes = hosts_[0]->budget->ledger().in_use();
  const std::size_t entries = hosts_[0]->regions.size();
  std::vector<std::uint64_t> tables;  // which stay for those who come
  for (const std::uint64_t elements : {5000u, 70000u, 300u, 5000u, 70000u}) {
    protocol::PlanTensor other = allreduce(elements, Dtype::kFloat16);
    other.fp32_contributions = true;
    place(1, {other}, {kOffset});
    EXPECT_GT(hosts_[0]->budget->ledger().in_use(), bytes + elements * sizeof(float));
    for (std::uint64_t operation = 1; operation <= 2; ++operation) {
      each_client([&](FakeClient& client, std::uint32_t) {
        std::fill_n(client.data<std::uint16_t>(kOffset), elements, kOne);
        client.submit(1, operation);
      });
      each_client([&](FakeClient& client, std::uint32_t) {
        ASSERT_EQ(client.wait(1, operation), Code::kOk);
        const std::uint16_t* sums = client.data<std::uint16_t>(kOffset);
        EXPECT_EQ(std::count(sums, sums + elements, kFour), static_cast<std::ptrdiff_t>(elements));
      });
    }
    vacate({1, 1});
    for (auto& host : hosts_) {
      tables.push_back(host->budget->ledger().in_use() - bytes);
      EXPECT_LT(tables.back(), 40000u);
      if (tables.size() > 4) {
        EXPECT_LE(tables.back(), tables[2] + 512) << "they were this large before, but for a slice that is not whole";
      }
      EXPECT_EQ(host->regions.size(), entries);
      EXPECT_EQ(host->scratch.given_back_by_lane.load(), 0u);
    }
    sums_go_on(&sequence);
  }
}

// Two tensors leave places that are too small for the one that comes: tables grow for it, and stay charged for both.
TEST_F(Resources, WhatDoesNotFitIntoVacantPlacesIsChargedBesideThem) {
  start(2, 1, {allreduce(1000)});
  const auto in_use = [&] { return hosts_[0]->budget->ledger().in_use(); };
  const protocol::PlanTensor small = allreduce(16, Dtype::kFloat32), large = allreduce(1 << 20, Dtype::kFloat32);
  place(1, {small, small}, {65536, 65536});
  place(3, {small}, {65536});
  place(4, {large}, {65536});
  const std::uint64_t all = in_use();
  vacate({1, 2});
  EXPECT_EQ(in_use(), all) << "the tables have not shrunk";
  place(5, {large}, {65536});
  const std::uint64_t with_two = in_use();
  vacate({5, 1});
  place(5, {large}, {65536});
  EXPECT_EQ(in_use(), with_two) << "its own places fit it";
  vacate({4, 1});
  vacate({5, 1});
  EXPECT_EQ(in_use(), with_two);
  place(1, {small, small}, {65536, 65536});
  EXPECT_EQ(in_use(), with_two);
}

TEST(Need, IsWhatAHostKeepsForTheTensorsAtMost) {
  ports::JobSpec one, two;
  one.hosts.resize(1);
  two.hosts.resize(2);
  std::vector<protocol::TensorBody> narrow(1), wide(1);
  narrow[0].elements = wide[0].elements = 1'000'000;
  narrow[0].dtype = wide[0].dtype = Dtype::kBfloat16;
  narrow[0].operation = Operation::kBroadcast;
  EXPECT_EQ(need_of(narrow, two).regions, 1u);
  EXPECT_EQ(need_of(wide, two).regions, 2u) << "its float32 sums";
  EXPECT_EQ(need_of(wide, two).bytes - need_of(narrow, two).bytes, 4'000'000u);
  EXPECT_EQ(need_of(wide, one).regions, 1u) << "nothing is summed between hosts";
  EXPECT_EQ(need_of(wide, one).bytes, need_of(narrow, one).bytes);
}

// A tensor that is cut small takes more of the tables than one of the same size that is not.
TEST(PlanGrowth, TablesAreChargedByTensorsAndSlices) {
  const auto budget = std::make_shared<memory::MemoryBudget>(memory::MemoryLimits{mib(4096), mib(0)});
  memory::ScratchPool scratch(budget);
  host::HostPorts ports;
  ports.scratch = &scratch;
  const auto spec = std::make_shared<ports::JobSpec>();
  spec->world_size = 2;
  spec->hosts.resize(2);
  for (std::uint32_t host = 0; host < 2; ++host) spec->hosts[host].ranks = {Rank(host)};
  const auto charged = [&](std::uint32_t tensors, std::uint32_t slice_elements) {
    protocol::Plan plan;
    plan.tensors.assign(tensors, allreduce(1 << 20));
    for (protocol::PlanTensor& tensor : plan.tensors) tensor.slice_elements = slice_elements;
    PlanGrowth growth(plan, spec, ports);
    EXPECT_TRUE(growth.step());
    EXPECT_TRUE(growth.status.ok()) << growth.status.to_string();
    return growth.memory.tables.amount();
  };
  const std::uint64_t coarse = charged(1, 1 << 20), fine = charged(1, 1 << 10);
  EXPECT_GT(coarse, 1000u);
  EXPECT_GT(fine, 100 * coarse) << "1,024 slices";
  EXPECT_EQ(charged(7, 1 << 10), 7 * fine);
  EXPECT_EQ(budget->ledger().in_use(), 0u) << "what does not begin gives it back";
}

// A registration of thousands of tensors comes to the lane in pieces, between which others work.
TEST_F(Resources, APlanThatGrowsByManyTensorsIsInForceOnceAllAreThere) {
  start(2, 1, {allreduce(1000)});
  std::uint64_t sequence = 0;
  const std::uint32_t first = 1, count = 400;
  for (std::uint32_t i = 0; i < count; ++i) {
    protocol::PlanTensor more = plan_.tensors.front();
    more.id = TensorId(first + i);
    more.name = "late " + std::to_string(i);
    plan_.tensors.push_back(more);
  }
  ++plan_.version;
  for (auto& host : hosts_) put_in_force(*host->lane, kJob, plan_.since(first));
  for (std::size_t h = 0; h < 2; ++h) {
    ASSERT_TRUE(
        hosts_[h]->lane->bind(kJob, Rank(static_cast<std::uint32_t>(h)), TensorId(count), {0, 8000, 4000}).ok());
  }
  barrier();
  each_client([&](FakeClient& client, std::uint32_t) { client.submit(count, 1); });
  each_client([&](FakeClient& client, std::uint32_t) { ASSERT_EQ(client.wait(count, 1), Code::kOk); });
  sums_go_on(&sequence);
}

// A plan that does not go on where the last one ended is control's mistake, and still ends only its job.
TEST_F(Resources, APlanWithAGapFailsItsJobAlone) {
  start(1, 1, {allreduce(1000)});
  const ports::JobSpec other = other_job(78);
  Lanes& lane = *hosts_[0]->lane;
  ASSERT_TRUE(lane.start_job(other).ok());
  ASSERT_TRUE(lane.apply_plan(JobId(78), small_tensors(3).since(1), nullptr).ok());
  EXPECT_EQ(hosts_[0]->listener.wait_failed().code(), Code::kInternal);
  std::uint64_t sequence = 0;
  sums_go_on(&sequence);
}

// A sum has so many sources at most. Control refuses such a job before; if something else lets it through, it is
// refused here, by name.
TEST_F(Resources, MoreRanksOnAHostThanASumHasSourcesAreRefused) {
  start(1, 1, {allreduce(1000)});
  ports::JobSpec other = other_job(78);
  other.world_size = ports::kMaxLocalRanks + 1;
  for (std::uint32_t rank = 1; rank < other.world_size; ++rank) other.hosts[0].ranks.push_back(Rank(rank));
  Lanes& lane = *hosts_[0]->lane;
  ASSERT_TRUE(lane.start_job(other).ok());
  EXPECT_EQ(hosts_[0]->listener.wait_failed().to_string(),
            "65 ranks on one host, a job has at most 64: local ranks: job 'other' on host h0: start fewer processes on "
            "each host");
  std::uint64_t sequence = 0;
  sums_go_on(&sequence);
}

// Every rail's engine has tables of every tensor, and of its slices.
TEST_F(Resources, TheTablesOfAllRailsAreCharged) {
  rails_ = 4;
  start(2, 1, {allreduce(1000)});
  const std::uint64_t before = hosts_[0]->budget->ledger().in_use();
  for (std::uint32_t i = 1; i <= 100; ++i) {
    protocol::PlanTensor& more = plan_.tensors.emplace_back(allreduce(std::uint64_t{64} * 16384));
    more.id = TensorId(i);
    more.name = "late " + std::to_string(i);
    more.slice_elements = 16384;
  }
  ++plan_.version;
  for (auto& host : hosts_) put_in_force(*host->lane, kJob, plan_.since(1));
  EXPECT_GE(hosts_[0]->budget->ledger().in_use() - before, 100u * (4 * 1536 + 64 * 256));

  // Sixty-four gigabytes in slices of 16 KiB, before it is known how long they will be.
  ports::JobSpec large = other_job(78);
  large.hosts.push_back(large.hosts[0]);
  std::vector<protocol::TensorBody> tensors(20);
  EXPECT_TRUE(hosts_[0]->lane->admit(large, tensors).ok());
  for (protocol::TensorBody& tensor : tensors) tensor.elements = std::uint64_t{1} << 32;
  EXPECT_EQ(hosts_[0]->lane->admit(large, tensors).code(), Code::kResourceExhausted);
}

// Memory runs out while the lane takes over what was prepared for a job.
TEST_F(Resources, AJobWithoutMemoryForItsTablesIsRefusedAndTheLaneUnmapsNothing) {
  start(1, 1, {allreduce(1000)});
  TestHost& host = *hosts_[0];
  host.timeline.no_memory = true;
  ports::JobSpec other = other_job(78);
  other.hosts.push_back(other.hosts[0]);
  other.hosts[1].name = "h1";
  other.hosts[1].ranks = {Rank(1)};
  other.world_size = 2;
  ASSERT_TRUE(host.lane->start_job(other).ok());
  const Status failed = host.listener.wait_failed();
  EXPECT_EQ(
      failed.to_string(),
      "the daemon has no memory left for the tables of a job: memory: job 'other' on host h0: free memory on this "
      "host or register less");
  for (int i = 0; i < 1000 && host.scratch.given_back == 0; ++i) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(host.scratch.given_back, 1u);
  EXPECT_EQ(host.scratch.given_back_by_lane, 0u);
  EXPECT_EQ(host.budget->ledger().in_use_by(3002), 0u);
  ASSERT_TRUE(host.lane->abort_job(JobId(78), failed).ok());
  ASSERT_TRUE(host.listener.wait_closed());
  // Nothing is known of it any more: whoever waits for a plan of it is told at once.
  const auto done = std::make_shared<std::promise<void>>();
  ASSERT_TRUE(host.lane->apply_plan(JobId(78), plan_, [done] { done->set_value(); }).ok());
  EXPECT_EQ(done->get_future().wait_until(patience()), std::future_status::ready);
  std::uint64_t sequence = 0;
  sums_go_on(&sequence);
}

}  // namespace
}  // namespace tensorlane::lane
