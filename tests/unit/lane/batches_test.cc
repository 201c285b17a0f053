// Small tensors that travel as one, on lanes with real engines and real TCP.
#include <bit>

#include "daemon/engine/batching/plan_batches.h"
#include "lane_fixture.h"

namespace tensorlane::lane {
namespace {

using protocol::Ordering;

// As a leader plans them.
std::vector<protocol::PlanTensor> batched(std::vector<protocol::PlanTensor> tensors, Bytes most) {
  const std::vector<std::uint8_t> asked(tensors.size());
  engine::append_batches(&tensors, asked, most, [](protocol::PlanTensor&, std::size_t) {});
  return tensors;
}

std::uint64_t data_operations(TestHost& host) {
  const ports::LaneMetrics& metrics = host.metrics();
  return metrics.classes[0].operations_sent.value() + metrics.classes[1].operations_sent.value();
}

struct BatchWorld {
  std::size_t hosts, per_host;
  protocol::Pattern pattern;
  std::size_t rails = 1;
  Ordering ordering = Ordering::kTagged;
};
class Batches : public LaneTest, public ::testing::WithParamInterface<BatchWorld> {
 protected:
  static constexpr std::uint32_t kTensors = 24;
  static constexpr std::uint64_t kElements = 100;
  static std::uint64_t at(std::uint32_t tensor) { return std::uint64_t{tensor} * 448; }  // bytes, in every client

  void start_world() {
    const BatchWorld& world = GetParam();
    rails_ = world.rails;
    plan_.ordering = world.ordering;
    std::vector<protocol::PlanTensor> tensors;
    for (std::uint32_t i = 0; i < kTensors; ++i) {
      tensors.push_back(allreduce(kElements, i % 3 == 0 ? Dtype::kBfloat16 : Dtype::kFloat32, world.pattern));
      tensors.back().reduce = i % 3 == 1 ? ReduceOp::kAverage : ReduceOp::kSum;
      tensors.back().fp32_contributions = i % 3 == 0 && world.per_host > 1;
      tensors.back().urgency = static_cast<float>(i % 5) / 5;
    }
    tensors = batched(tensors, kib(2));
    std::vector<std::uint64_t> offsets(tensors.size());
    for (std::uint32_t i = 0; i < kTensors; ++i) offsets[i] = at(i);
    ASSERT_EQ(tensors.size(), kTensors + 5U);
    start(world.hosts, world.per_host, tensors, seconds(10), offsets);
  }
  // Every rank has an order of its own.
  void submit(FakeClient& client, std::uint32_t rank, std::uint64_t sequence) {
    for (std::uint32_t i = 0; i < kTensors; ++i) {
      const std::uint32_t tensor = (i * 5 + rank * 7) % kTensors;
      for (std::uint64_t e = 0; e < kElements; ++e) {
        const auto value = static_cast<float>((rank + 1) * (e % 4 + tensor % 2 + sequence));
        if (tensor % 3 == 0)
          client.data<std::uint16_t>(at(tensor))[e] =
              static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
        else
          client.data<float>(at(tensor))[e] = value;
      }
      client.submit(tensor, sequence);
    }
  }
  void expect_sums(FakeClient& client, std::uint64_t sequence) {
    const auto ranks = static_cast<std::uint32_t>(GetParam().hosts * GetParam().per_host);
    for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) {
      ASSERT_EQ(client.wait(tensor, sequence), Code::kOk) << tensor;
      for (std::uint64_t e = 0; e < kElements; ++e) {
        const auto sum = static_cast<float>(ranks * (ranks + 1) / 2 * (e % 4 + tensor % 2 + sequence));
        const float expected = tensor % 3 == 1 ? sum / static_cast<float>(ranks) : sum;
        const float got = tensor % 3 == 0
                              ? std::bit_cast<float>(std::uint32_t{client.data<std::uint16_t>(at(tensor))[e]} << 16)
                              : client.data<float>(at(tensor))[e];
        ASSERT_EQ(got, expected) << "tensor " << tensor << ", element " << e;
      }
    }
  }
};

TEST_P(Batches, BringEveryRankTheSumsOfItsTensors) {
  start_world();
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    each_client([&](FakeClient& client, std::uint32_t rank) { submit(client, rank, sequence); });
    each_client([&](FakeClient& client, std::uint32_t) { expect_sums(client, sequence); });
  }
}

// A batch begins when all of its members exist: parts of them are only hints.
TEST_P(Batches, AwaitAllOfTheirMembers) {
  start_world();
  for (std::uint64_t sequence = 1; sequence <= 2; ++sequence) {
    each_client([&](FakeClient& client, std::uint32_t) {
      for (std::uint32_t i = 0; i < kTensors; ++i) client.submit_parts(i, sequence, {0, 1});
    });
    std::this_thread::sleep_for(20ms);
    each_client([&](FakeClient& client, std::uint32_t rank) { submit(client, rank, sequence); });
    each_client([&](FakeClient& client, std::uint32_t) { expect_sums(client, sequence); });
  }
}

// Batches of other sizes are made of what is registered next, in the same places.
TEST_P(Batches, ComeAnewInThePlacesOfOthers) {
  start_world();
  std::vector<std::uint64_t> offsets(kTensors);
  for (std::uint32_t i = 0; i < kTensors; ++i) offsets[i] = at(i);
  std::vector<protocol::PlanTensor> tensors;
  for (std::uint32_t i = 0; i < kTensors; ++i) {
    tensors.push_back(plan_.tensors[i]);
    tensors.back().batch = protocol::kNoBatch;
    tensors.back().batch_offset = 0;
  }
  auto count = static_cast<std::uint32_t>(plan_.tensors.size());
  for (const Bytes most : {kib(1), kib(100), kib(2)}) {
    for (std::uint64_t sequence = 1; sequence <= 2; ++sequence) {
      each_client([&](FakeClient& client, std::uint32_t rank) { submit(client, rank, sequence); });
      each_client([&](FakeClient& client, std::uint32_t) { expect_sums(client, sequence); });
    }
    vacate({0, count});
    const std::vector<protocol::PlanTensor> others = batched(tensors, most);
    count = static_cast<std::uint32_t>(others.size());
    offsets.resize(count);
    place(0, others, offsets);
  }
  each_client([&](FakeClient& client, std::uint32_t rank) { submit(client, rank, 1); });
  each_client([&](FakeClient& client, std::uint32_t) { expect_sums(client, 1); });
}

// Groups and batches are never more than places, or the daemon ends.
TEST_F(LaneTest, GroupsAndBatchesThatLeaveAreForgotten) {
  plan_.ordering = Ordering::kFunnel;
  const std::vector<protocol::PlanTensor> tensors = batched({allreduce(100), allreduce(100)}, kib(2));
  const std::vector<std::uint64_t> offsets = {0, 448, 896};
  ASSERT_EQ(tensors.size(), offsets.size());
  start(2, 1, tensors, seconds(10), offsets);
  for (int turn = 0; turn < 5; ++turn) {
    vacate({0, 3});
    place(0, tensors, offsets);
  }
  each_client([](FakeClient& client, std::uint32_t) {
    client.submit(0, 1);
    client.submit(1, 1);
  });
  each_client([](FakeClient& client, std::uint32_t) {
    EXPECT_EQ(client.wait(0, 1), Code::kOk);
    EXPECT_EQ(client.wait(1, 1), Code::kOk);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Batches,
                         ::testing::Values(BatchWorld{2, 1, protocol::Pattern::kRing},
                                           BatchWorld{3, 2, protocol::Pattern::kRing},
                                           BatchWorld{2, 3, protocol::Pattern::kParameterServer, 2},
                                           BatchWorld{4, 1, protocol::Pattern::kHalvingDoubling},
                                           BatchWorld{3, 1, protocol::Pattern::kTree, 2},
                                           BatchWorld{2, 2, protocol::Pattern::kTree, 1, Ordering::kFunnel},
                                           BatchWorld{2, 2, protocol::Pattern::kTree, 1, Ordering::kChained},
                                           BatchWorld{2, 2, protocol::Pattern::kTree, 1, Ordering::kCounters},
                                           BatchWorld{3, 1, protocol::Pattern::kTree, 1, Ordering::kNegotiated}),
                         [](const auto& info) {
                           return std::to_string(info.param.hosts) + "x" + std::to_string(info.param.per_host) +
                                  protocol::pattern_name(info.param.pattern) + std::to_string(info.param.rails) +
                                  protocol::ordering_name(info.param.ordering);
                         });

using Batch = LaneTest;

TEST_F(Batch, MakesFewOperationsOfManyTensors) {
  start(2, 1, batched(std::vector<protocol::PlanTensor>(200, allreduce(256)), kib(100)));
  ASSERT_EQ(plan_.tensors.size(), 202U);
  each_client([](FakeClient& client, std::uint32_t) {
    for (std::uint32_t tensor = 0; tensor < 200; ++tensor) client.submit(tensor, 1);
  });
  each_client([](FakeClient& client, std::uint32_t) {
    for (std::uint32_t tensor = 0; tensor < 200; ++tensor) ASSERT_EQ(client.wait(tensor, 1), Code::kOk);
  });
  for (auto& host : hosts_) {
    host->lane.reset();
    EXPECT_LE(data_operations(*host), 20U);
    EXPECT_EQ(host->metrics().classes[0].tensors_completed.value(), 200U);
  }
}

// A member that is larger than a block of local work, of several ranks.
TEST_F(Batch, MayBeLargerThanABlock) {
  start(2, 2, batched({allreduce(100), allreduce(200'000, Dtype::kFloat32), allreduce(70'001)}, mib(4)));
  const std::uint64_t large = 448, last = large + 800'000;
  ASSERT_EQ(plan_.tensors.size(), 4U);
  each_client([&](FakeClient& client, std::uint32_t rank) {
    for (std::uint64_t i = 0; i < 200'000; ++i) client.data<float>(large)[i] = static_cast<float>(rank * (i % 100));
    for (std::uint64_t i = 0; i < 70'001; ++i) client.data<float>(last)[i] = static_cast<float>(rank + i);
    for (std::uint32_t tensor : {2U, 0U, 1U}) client.submit(tensor, 1);
  });
  each_client([&](FakeClient& client, std::uint32_t) {
    for (std::uint32_t tensor : {0U, 1U, 2U}) ASSERT_EQ(client.wait(tensor, 1), Code::kOk);
    for (std::uint64_t i = 0; i < 200'000; ++i)
      ASSERT_EQ(client.data<float>(large)[i], static_cast<float>(6 * (i % 100))) << i;
    for (std::uint64_t i = 0; i < 70'001; ++i) ASSERT_EQ(client.data<float>(last)[i], static_cast<float>(6 + 4 * i));
  });
}

// Both ranks wait for what cannot begin: each is told what it has not submitted.
TEST_F(Batch, WhoWaitsForAMemberAndLeavesOutAnotherIsReported) {
  start(2, 1, batched({allreduce(100), allreduce(100)}, kib(4)), milliseconds(200));
  each_client([](FakeClient& client, std::uint32_t) {
    client.submit(1, 1);
    client.boost(1, 1);
  });
  EXPECT_EQ(hosts_[0]->listener.wait_late(), std::pair(Rank(0), TensorId(0)));
  EXPECT_EQ(hosts_[1]->listener.wait_late(), std::pair(Rank(1), TensorId(0)));
  each_client([](FakeClient& client, std::uint32_t) { client.submit(0, 1); });
  each_client([](FakeClient& client, std::uint32_t) {
    EXPECT_EQ(client.wait(0, 1), Code::kOk);
    EXPECT_EQ(client.wait(1, 1), Code::kOk);
  });
}

TEST_F(Batch, WhoKeepsAnotherHostWaitingIsReported) {
  start(2, 1, batched({allreduce(100), allreduce(100)}, kib(4)), milliseconds(200));
  for (std::uint32_t tensor : {0U, 1U}) hosts_[0]->clients[0]->submit(tensor, 1);
  hosts_[1]->clients[0]->submit(0, 1);
  EXPECT_EQ(hosts_[1]->listener.wait_late(), std::pair(Rank(1), TensorId(1)));
}

TEST_F(Batch, OfAJobThatEndsLeavesNothingBehind) {
  start(2, 2, batched({allreduce(100), allreduce(100), allreduce(100), allreduce(100)}, Bytes(800)));
  for (std::uint32_t tensor : {0U, 1U, 2U}) {
    hosts_[0]->clients[0]->submit(tensor, 1);
    hosts_[0]->clients[1]->submit(tensor, 1);
  }
  hosts_[0]->clients[0]->boost(2, 1);
  std::this_thread::sleep_for(50ms);
  const Status cause(Code::kAborted, "the test says so", "here", "nothing");
  for (auto& host : hosts_) ASSERT_TRUE(host->lane->abort_job(kJob, cause).ok());
  each_client([](FakeClient& client, std::uint32_t) { EXPECT_EQ(client.wait_failure().code(), Code::kAborted); });
  for (auto& host : hosts_) EXPECT_TRUE(host->listener.wait_closed());
}

TEST_F(Batch, NobodySubmitsIt) {
  start(2, 1, batched({allreduce(100), allreduce(100)}, kib(4)));
  hosts_[0]->clients[0]->submit(2, 1);
  EXPECT_THAT(hosts_[0]->listener.wait_failed().what(), ::testing::HasSubstr("has not registered"));
}

}  // namespace
}  // namespace tensorlane::lane
