// Every operation on hosts with one rank and with several: the right numbers, in every rank's memory.
#include <bit>

#include "common/protocol/exchange.h"
#include "lane_fixture.h"

namespace tensorlane::lane {
namespace {

struct World {
  std::size_t hosts, per_host;
  protocol::Pattern pattern;
  std::size_t rails = 1;
};
class Operations : public LaneTest, public ::testing::WithParamInterface<World> {};

TEST_P(Operations, IntegersAndOtherReductions) {
  const auto [hosts, per_host, pattern, rails] = GetParam();
  rails_ = rails;
  protocol::PlanTensor least = allreduce(5000, Dtype::kInt64, pattern), most = allreduce(64, Dtype::kFloat16, pattern),
                       product = allreduce(64, Dtype::kInt8, pattern);
  least.reduce = ReduceOp::kMin;
  most.reduce = ReduceOp::kMax;
  product.reduce = ReduceOp::kProduct;
  start(hosts, per_host, {least, most, product});
  const std::size_t at_most = 5000 * 8, at_product = at_most + 128;
  each_client([&](FakeClient& client, std::uint32_t rank) {
    for (int i = 0; i < 5000; ++i) client.data<std::int64_t>(0)[i] = (1LL << 40) * (i % 7) - rank;
    const std::uint16_t halves[] = {0x3c00, 0x4000, 0x4200, 0x4400, 0x4500};  // 1, 2, 3, 4, 5
    for (int i = 0; i < 64; ++i) client.data<std::uint16_t>(at_most)[i] = halves[rank % 5];
    for (int i = 0; i < 64; ++i) client.data<std::int8_t>(at_product)[i] = static_cast<std::int8_t>(-100 + i);
    for (std::uint32_t tensor : {2, 0, 1}) client.submit(tensor, 1);
  });
  const auto world = static_cast<std::uint32_t>(hosts * per_host);
  each_client([&](FakeClient& client, std::uint32_t) {
    for (std::uint32_t tensor : {0, 1, 2}) ASSERT_EQ(client.wait(tensor, 1), Code::kOk);
    for (int i = 0; i < 5000; ++i)
      ASSERT_EQ(client.data<std::int64_t>(0)[i], (1LL << 40) * (i % 7) - static_cast<std::int64_t>(world - 1));
    const std::uint16_t halves[] = {0x3c00, 0x4000, 0x4200, 0x4400, 0x4500};
    for (int i = 0; i < 64; ++i) ASSERT_EQ(client.data<std::uint16_t>(at_most)[i], halves[std::min(world, 5U) - 1]);
    for (int i = 0; i < 64; ++i) {
      std::int64_t wide = 1;
      for (std::uint32_t rank = 0; rank < world; ++rank) wide *= -100 + i;
      ASSERT_EQ(client.data<std::int8_t>(at_product)[i], static_cast<std::int8_t>(wide));
    }
  });
}

// What is pushed is everybody's after a pull, however many ranks a host has; the two have one buffer.
TEST_P(Operations, PushAndPullAreTheHalvesOfAnAllreduce) {
  const auto [hosts, per_host, pattern, rails] = GetParam();
  rails_ = rails;
  const auto world = static_cast<std::uint32_t>(hosts * per_host);
  protocol::PlanTensor push = allreduce(30'000, Dtype::kFloat32, pattern), pull = push;
  push.operation = Operation::kPush;
  pull.operation = Operation::kPull;
  push.root = pull.root = HostIndex(static_cast<std::uint16_t>(hosts - 1));
  start(hosts, per_host, {push, pull}, seconds(10), {0, 0});
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    each_client([&](FakeClient& client, std::uint32_t rank) {
      for (int i = 0; i < 30'000; ++i) client.data<float>(0)[i] = static_cast<float>((rank + sequence) * (i % 11U));
      client.submit(0, sequence);
    });
    each_client([&](FakeClient& client, std::uint32_t) {
      ASSERT_EQ(client.wait(0, sequence), Code::kOk);
      client.submit(1, sequence);
    });
    const std::uint64_t sum = world * (world - 1) / 2 + world * sequence;
    each_client([&](FakeClient& client, std::uint32_t) {
      ASSERT_EQ(client.wait(1, sequence), Code::kOk);
      for (int i = 0; i < 30'000; ++i) ASSERT_EQ(client.data<float>(0)[i], static_cast<float>(sum * (i % 11U)));
    });
  }
}

// Uneven rows: 3 of 5 elements for each rank, and a fourth for the first.
TEST_P(Operations, ReduceScatterGivesEveryRankItsRows) {
  const auto [hosts, per_host, pattern, rails] = GetParam();
  rails_ = rails;
  const auto world = static_cast<std::uint32_t>(hosts * per_host);
  protocol::PlanTensor scatter = allreduce((3 * world + 1) * 5, Dtype::kFloat32, pattern), wide = scatter;
  scatter.operation = wide.operation = Operation::kReduceScatter;
  scatter.row = wide.row = 5;
  scatter.reduce = ReduceOp::kAverage;
  wide.dtype = Dtype::kBfloat16;
  start(hosts, per_host, {scatter, wide});
  const std::size_t at_wide = (scatter.elements * 4 + 63) / 64 * 64;
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    each_client([&](FakeClient& client, std::uint32_t rank) {
      for (std::uint64_t i = 0; i < scatter.elements; ++i) {
        client.data<float>(0)[i] = static_cast<float>((rank + 1) * world * i);
        client.data<std::uint16_t>(at_wide)[i] = rank == 0 ? 0x4380 : 0x3f80;  // 256 and 1
      }
      client.submit(0, sequence);
      client.submit(1, sequence);
    });
    each_client([&](FakeClient& client, std::uint32_t rank) {
      ASSERT_EQ(client.wait(0, sequence), Code::kOk);
      ASSERT_EQ(client.wait(1, sequence), Code::kOk);
      const std::uint64_t first = (3 * rank + (rank > 0 ? 1 : 0)) * 5, end = (3 * rank + 4) * 5;
      const float exact = 256.0F + static_cast<float>(world - 1);
      const auto bits = std::bit_cast<std::uint32_t>(exact);
      for (std::uint64_t i = first; i < end; ++i) {
        ASSERT_EQ(client.data<float>(0)[i], static_cast<float>(world * (world + 1) / 2 * i));
        ASSERT_EQ(client.data<std::uint16_t>(at_wide)[i], (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
      }
    });
  }
}

// Blocks of which a rank's, and a host's, are one or several slices; and a reduce to a rank that is not its host's
// first.
TEST_P(Operations, PartsGoFromRankToRank) {
  const auto [hosts, per_host, pattern, rails] = GetParam();
  rails_ = rails;
  const auto world = static_cast<std::uint32_t>(hosts * per_host);
  const std::uint32_t root = world - 1;
  constexpr std::uint64_t kBlock = 20'001;
  std::vector<protocol::PlanTensor> tensors;
  for (const Operation operation :
       {Operation::kGather, Operation::kScatter, Operation::kAlltoall, Operation::kReduce}) {
    protocol::PlanTensor t = allreduce(kBlock, Dtype::kInt32, pattern);
    if (operation != Operation::kReduce) t.elements *= protocol::Exchange::unit(operation, world);
    t.operation = operation;
    t.root_rank = Rank(root);
    t.root = HostIndex(static_cast<std::uint16_t>(hosts - 1));
    tensors.push_back(t);
  }
  start(hosts, per_host, tensors);
  const auto number = [](std::uint32_t from, std::uint32_t to, std::uint64_t sequence, std::uint64_t e) {
    return static_cast<std::int32_t>(from * 1'000'003 + to * 10'007 + sequence * 101 + e);
  };
  std::size_t offset = 0;
  for (std::uint32_t id = 0; id < tensors.size(); offset += (tensors[id++].bytes() + 63) / 64 * 64) {
    const bool sums = tensors[id].operation == Operation::kReduce;
    const protocol::Exchange exchange = protocol::exchange_of(plan_.tensors[id], world);
    // What the rank's buffer holds before an operation and after it.
    const auto contents = [&](std::uint32_t rank, std::uint64_t sequence, bool after) {
      std::vector<std::int32_t> all(sums ? kBlock : exchange.buffer(rank), -77);
      for (std::uint32_t other = 0; other < world; ++other) {
        const bool sends = exchange.sends(rank, other), gets = exchange.sends(other, rank) && after;
        for (std::uint64_t e = 0; e < kBlock && sends; ++e)
          all[exchange.sent_from(rank, other) + e] = number(rank, other, sequence, e);
        for (std::uint64_t e = 0; e < kBlock && gets; ++e)
          all[exchange.lands_at(other, rank) + e] = number(other, rank, sequence, e);
      }
      return all;
    };
    for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
      each_client([&](FakeClient& client, std::uint32_t rank) {
        if (sums) {
          for (std::uint64_t e = 0; e < kBlock; ++e)
            client.data<std::int32_t>(offset)[e] = number(rank, 0, sequence, e);
        } else {
          std::ranges::copy(contents(rank, sequence, false), client.data<std::int32_t>(offset));
        }
        client.submit(id, sequence);
      });
      each_client([&](FakeClient& client, std::uint32_t rank) {
        ASSERT_EQ(client.wait(id, sequence), Code::kOk);
        const std::int32_t* got = client.data<std::int32_t>(offset);
        if (!sums) {
          const std::vector<std::int32_t> right = contents(rank, sequence, true);
          ASSERT_TRUE(std::ranges::equal(right, std::span(got, right.size()))) << "tensor " << id << " rank " << rank;
        }
        for (std::uint64_t e = 0; e < kBlock && sums && rank == root; ++e) {
          std::int32_t sum = 0;
          for (std::uint32_t from = 0; from < world; ++from) sum += number(from, 0, sequence, e);
          ASSERT_EQ(got[e], sum);
        }
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Operations,
                         ::testing::Values(World{1, 1, protocol::Pattern::kRing}, World{1, 3, protocol::Pattern::kRing},
                                           World{2, 2, protocol::Pattern::kParameterServer},
                                           World{3, 2, protocol::Pattern::kRing},
                                           World{4, 1, protocol::Pattern::kHalvingDoubling},
                                           World{4, 1, protocol::Pattern::kTree},
                                           World{3, 2, protocol::Pattern::kRing, 2}),
                         [](const auto& info) {
                           return std::to_string(info.param.hosts) + "x" + std::to_string(info.param.per_host) +
                                  protocol::pattern_name(info.param.pattern) + std::to_string(info.param.rails);
                         });

}  // namespace
}  // namespace tensorlane::lane
