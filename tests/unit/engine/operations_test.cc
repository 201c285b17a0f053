// Every operation, pattern, dtype and size, on clusters of 1 to 6 hosts, under random interleavings: the right numbers,
// the same on all hosts.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "arithmetic.h"
#include "cluster.h"
#include "daemon/engine/pattern/route.h"
#include "daemon/engine/pattern/shards.h"

namespace tensorlane::engine::testing {
namespace {

// Small integers: what becomes of them is exact in every dtype, whatever the order.
double small_number(std::size_t host, TensorId tensor, Sequence sequence, std::uint64_t element) {
  return static_cast<double>((host * 7 + tensor.value * 5 + sequence.value * 3 + element * 11 + element / 97) % 8);
}
// Mostly 1, so that products stay below 128.
double small_factor(std::size_t host, TensorId tensor, Sequence sequence, std::uint64_t element) {
  const double number = small_number(host, tensor, sequence, element);
  return number == 5 ? 2 : number == 0 && element % 3 == 0 ? 0 : 1;
}
double contribution(const PlanTensor& t, std::size_t host, Sequence sequence, std::uint64_t element) {
  const bool product = reduces(t.operation) && t.reduce == ReduceOp::kProduct;
  return (product ? small_factor : small_number)(host, t.id, sequence, element);
}

void fill_small(Cluster& c, const Plan& plan, std::size_t h, TensorId id, Sequence sequence) {
  const PlanTensor& t = plan.tensors[id.value];
  const bool wide = t.fp32_contributions && dtype_size(t.dtype) == 2;
  const Dtype dtype = wide ? Dtype::kFloat32 : t.dtype;
  const std::span<std::byte> to = wide ? c.fp32_scratch(h, id) : c.buffer(h, id);
  for (std::uint64_t e = 0; e < to.size() / dtype_size(dtype); ++e) {
    store(to.data() + e * dtype_size(dtype), dtype, contribution(t, h, sequence, e));
  }
  if (wide) std::ranges::fill(c.buffer(h, id), std::byte{0x7f});  // not to be read
}

double expected(const Plan& plan, const ClusterOptions& o, const PlanTensor& t, Sequence sequence, std::uint64_t e) {
  if (t.operation == Operation::kBroadcast) return small_number(t.root.value, t.id, sequence, e);
  if (t.operation == Operation::kAllgather) {
    return small_number(plan.rank_hosts[e / (t.elements / plan.rank_hosts.size())].value, t.id, sequence, e);
  }
  double all = contribution(t, 0, sequence, e);
  for (std::size_t h = 1; h < o.hosts; ++h) all = combine(all, contribution(t, h, sequence, e), combining(t.reduce));
  return t.reduce == ReduceOp::kAverage ? all / (o.hosts * o.ranks_per_host) : all;
}

// Whether a rank of this host gets this element of a reduce-scatter.
bool gets(const Plan& plan, const PlanTensor& t, std::size_t host, std::uint64_t element) {
  const std::uint64_t rows = t.elements / t.row, ranks = plan.rank_hosts.size();
  std::uint64_t rank = 0;
  for (std::uint64_t end = 0; rank < ranks; ++rank) {
    end += rows / ranks + (rank < rows % ranks ? 1 : 0);
    if (element / t.row < end) break;
  }
  return plan.rank_hosts[rank].value == host;
}

void check_numbers(Cluster& c, const Plan& plan, const ClusterOptions& o, std::size_t h, TensorId id,
                   Sequence sequence) {
  const PlanTensor& t = plan.tensors[id.value];
  const std::size_t size = dtype_size(t.dtype);
  std::vector<std::byte> right(size);
  for (std::uint64_t e = 0; e < c.buffer(h, id).size() / size; ++e) {
    if (t.operation == Operation::kReduceScatter && !gets(plan, t, h, e)) continue;
    store(right.data(), t.dtype, expected(plan, o, t, sequence, e));
    ASSERT_EQ(std::memcmp(right.data(), c.buffer(h, id).data() + e * size, size), 0)
        << "host " << h << " tensor " << id.value << " element " << e << ": "
        << load(c.buffer(h, id).data() + e * size, t.dtype) << ", expected " << load(right.data(), t.dtype);
  }
}

void run_and_check(const ClusterOptions& o, const Plan& plan, int times) {
  Cluster c(o, plan);
  std::mt19937_64 random(o.seed);
  c.fill = [&](std::size_t h, TensorId id, Sequence s) {
    fill_small(c, plan, h, id, s);
    // Some other tensor, which may be in the middle of anything here and elsewhere.
    if (o.config.reclassifies) {
      const TensorId other(static_cast<std::uint32_t>(random() % plan.tensors.size()));
      c.host(h).engine->set_priority(other, static_cast<float>(random() % 8) / 8,
                                     ClassId(static_cast<std::uint8_t>(random() % o.config.classes)));
    }
  };
  c.check = [&](std::size_t h, TensorId id, Sequence s) { check_numbers(c, plan, o, h, id, s); };
  c.submit_all(times);
  ASSERT_TRUE(c.run());
  for (std::size_t h = 0; h < o.hosts; ++h) {
    for (const std::string& error : c.host(h).errors) ADD_FAILURE() << "host " << h << ": " << error;
  }
  ASSERT_TRUE(c.all_done());
  for (std::size_t h = 0; h < o.hosts; ++h) {
    EXPECT_EQ(c.host(h).engine->counters().staging_bytes, 0u);
    EXPECT_EQ(c.host(h).engine->counters().operations_pending, 0u);
    EXPECT_EQ(c.host(h).engine->counters().queued_slices, 0u);
    EXPECT_EQ(c.host(h).engine->counters().stale_grants, 0u);
  }
}

struct Case {
  Pattern pattern;
  std::uint16_t hosts;
};

class Operations : public ::testing::TestWithParam<Case> {};

// Every dtype and reduction, plain and float32 contributions, around the edges of alignment units, slices and shards.
Plan plan_of_everything(const Case& which) {
  Plan plan;
  const std::uint64_t sizes[] = {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000};
  std::uint32_t n = 0;
  for (std::uint8_t d = 0; d < kDtypeCount; ++d) {
    const auto dtype = static_cast<Dtype>(d);
    const std::uint64_t large = kWholeTensor.value / dtype_size(dtype) + 1;  // the smallest that is cut into shards
    for (std::uint64_t elements : sizes) add(&plan, allreduce(which.pattern, dtype, elements, 64));
    for (std::uint64_t elements : {large, large + 15, large + 16, std::uint64_t{which.hosts} * 4096 - 1,
                                   std::uint64_t{which.hosts} * 4096 + 1}) {
      add(&plan, allreduce(which.pattern, dtype, elements, 1024));
    }
  }
  for (PlanTensor& t : plan.tensors) {
    t.reduce = static_cast<ReduceOp>(n % kReduceOpCount);
    if (!can_reduce(t.reduce, t.dtype)) t.reduce = ReduceOp::kSum;
    t.fp32_contributions = n % 4 == 1;
    t.cls = ClassId(n % 2);
    t.urgency = static_cast<float>(n % 7) / 7;
    ++n;
  }
  return plan;
}

TEST_P(Operations, AllreduceIsRightForAllDtypesAndSizes) {
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    ClusterOptions o;
    o.hosts = GetParam().hosts;
    o.ranks_per_host = 2;
    o.seed = seed;
    // The second seed allows little on credit, so that most goes by announcement and grant.
    o.config.eager_limit = seed == 1 ? kib(32) : Bytes(256);
    o.config.eager_credits = seed == 1 ? 16 : 2;
    o.in_parts = seed == 1 ? 0 : 2;
    run_and_check(o, plan_of_everything(GetParam()), seed == 1 ? 2 : 1);
  }
}

TEST_P(Operations, SlicesOfSeveralOperationsAndBlocks) {
  const std::uint64_t page = kMaxOperation.value / sizeof(float);
  Plan plan;
  add(&plan, allreduce(GetParam().pattern, Dtype::kFloat32, 4 * page + 5, static_cast<std::uint32_t>(2 * page + 3)));
  add(&plan, allreduce(GetParam().pattern, Dtype::kBfloat16, 4 * page + 5, static_cast<std::uint32_t>(2 * page + 3)));
  add(&plan, allreduce(GetParam().pattern, Dtype::kFloat64, 2 * page + 5, static_cast<std::uint32_t>(page - 1)));
  for (int in_parts : {0, 3}) run_and_check({.hosts = GetParam().hosts, .in_parts = in_parts}, plan, 1);
}

TEST_P(Operations, ClassesAndUrgenciesChangeWhileTheJobRuns) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    ClusterOptions o{.hosts = GetParam().hosts, .seed = seed, .in_parts = static_cast<int>(seed % 3)};
    o.config.reclassifies = true;
    o.config.eager_credits = seed % 2 == 0 ? 2 : 0;
    o.config.staging = Bytes(2 * kMaxOperation.value * GetParam().hosts);  // one slice of every class at a time
    Plan plan;
    for (std::uint64_t elements : {10u, 300u, 20'000u, 9'000u}) {
      PlanTensor t = allreduce(GetParam().pattern, Dtype::kFloat32, elements, 1024);
      t.cls = ClassId(static_cast<std::uint8_t>(elements / 10 % 2));
      add(&plan, t);
    }
    run_and_check(o, plan, 6);
  }
}

TEST_P(Operations, BroadcastAllgatherReduceScatterAndBarrierMixedWithAllreduce) {
  const std::uint16_t hosts = GetParam().hosts;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    ClusterOptions o;
    o.hosts = hosts;
    o.ranks_per_host = 2;
    o.seed = seed;
    o.in_parts = seed == 1 ? 0 : 2;
    Plan plan;
    // Ranks alternate, or lie in blocks: both exist in the field.
    for (std::uint16_t r = 0; r < hosts * 2; ++r)
      plan.rank_hosts.emplace_back(static_cast<std::uint16_t>(seed == 1 ? r % hosts : r / 2));
    std::uint32_t n = 0;
    for (std::uint64_t elements : {std::uint64_t{1}, std::uint64_t{64}, std::uint64_t{65}, std::uint64_t{1000}}) {
      PlanTensor t = allreduce(GetParam().pattern, static_cast<Dtype>(n % kDtypeCount), elements, 64);
      add(&plan, t);
      t.operation = Operation::kBroadcast;
      t.root = HostIndex(static_cast<std::uint16_t>(n % hosts));
      add(&plan, t);
      t.operation = Operation::kAllgather;
      t.elements *= hosts * 2u;
      add(&plan, t);
      t.operation = Operation::kReduceScatter;
      t.reduce = n % 2 == 0 ? ReduceOp::kSum : ReduceOp::kMax;
      for (std::uint64_t rows : {std::uint64_t{1}, hosts + std::uint64_t{1}, 5 * std::uint64_t{hosts}}) {
        t.row = elements;
        t.elements = rows * elements;
        add(&plan, t);
      }
      add(&plan, {.operation = Operation::kBarrier, .pattern = GetParam().pattern, .urgency = 1});
      ++n;
    }
    run_and_check(o, plan, 4);
  }
}

INSTANTIATE_TEST_SUITE_P(Clusters, Operations,
                         ::testing::Values(Case{Pattern::kRing, 1}, Case{Pattern::kRing, 2}, Case{Pattern::kRing, 3},
                                           Case{Pattern::kRing, 4}, Case{Pattern::kRing, 5}, Case{Pattern::kRing, 6},
                                           Case{Pattern::kParameterServer, 1}, Case{Pattern::kParameterServer, 2},
                                           Case{Pattern::kParameterServer, 3}, Case{Pattern::kParameterServer, 4},
                                           Case{Pattern::kParameterServer, 5}, Case{Pattern::kParameterServer, 6},
                                           Case{Pattern::kHalvingDoubling, 4}, Case{Pattern::kHalvingDoubling, 6},
                                           Case{Pattern::kHalvingDoubling, 7}, Case{Pattern::kTree, 4},
                                           Case{Pattern::kTree, 6}, Case{Pattern::kTree, 7}),
                         [](const auto& info) {
                           return protocol::pattern_name(info.param.pattern) + std::to_string(info.param.hosts);
                         });

// ---- the order of summation: numbers whose sum depends on it ----

double awkward_number(std::size_t host, std::uint64_t element, Dtype dtype) {
  const auto x = static_cast<float>(std::sin(static_cast<double>(host * 131 + element * 17 + 1)) *
                                    std::pow(10.0, static_cast<double>(host % 4)));
  std::byte bytes[8];
  store(bytes, dtype, x);
  return load(bytes, dtype);
}

// The sum as the plan defines it: from the leaf to the owner in a ring, by host at a parameter server; rounded once.
double sum_in_plan_order(const PlanTensor& t, std::uint16_t hosts, std::uint64_t element) {
  HostIndex owner;
  for (const Shard& shard : shards(t, hosts, {})) {
    if (element >= shard.offset && element < shard.offset + shard.elements) owner = shard.owner;
  }
  std::vector<double> terms;
  for (std::uint16_t i = 0; i < hosts; ++i) {
    const std::size_t host = t.pattern == Pattern::kRing ? (owner.value + 1u + i) % hosts : i;
    terms.push_back(awkward_number(host, element, t.dtype));
  }
  return reduce(terms, t.dtype, t.reduce, 1);
}

// The tensors come after `padding` others that nobody submits, which moves their owners.
void check_order(Pattern pattern, std::uint16_t hosts, std::uint64_t elements, std::uint32_t slice,
                 bool fp32_contributions, std::uint32_t padding = 0, int in_parts = 0) {
  Plan plan;
  for (std::uint32_t i = 0; i < padding; ++i) add(&plan, allreduce(pattern, Dtype::kFloat32, 1, 1));
  for (Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBfloat16})  // integers have no order
    add(&plan, allreduce(pattern, dtype, elements, slice));
  for (PlanTensor& t : plan.tensors) t.fp32_contributions = fp32_contributions;
  ClusterOptions o;
  o.hosts = hosts;
  o.seed = hosts;
  o.in_parts = in_parts;
  Cluster c(o, plan);
  c.fill = [&](std::size_t h, TensorId id, Sequence) {
    const PlanTensor& t = plan.tensors[id.value];
    const Dtype dtype = contribution_dtype(t);
    std::byte* to = (dtype == t.dtype ? c.buffer(h, id) : c.fp32_scratch(h, id)).data();
    for (std::uint64_t e = 0; e < elements; ++e)
      store(to + e * dtype_size(dtype), dtype, awkward_number(h, e, t.dtype));
  };
  for (std::size_t h = 0; h < hosts; ++h) {
    for (std::uint32_t i = padding; i < plan.tensors.size(); ++i) c.submit(h, TensorId(i));
  }
  ASSERT_TRUE(c.run());
  ASSERT_TRUE(c.all_done());
  for (const PlanTensor& t : std::span(plan.tensors).subspan(padding)) {
    const std::size_t size = dtype_size(t.dtype);
    std::vector<std::byte> right(elements * size);
    for (std::uint64_t e = 0; e < elements; ++e)
      store(right.data() + e * size, t.dtype, sum_in_plan_order(t, hosts, e));
    for (std::size_t h = 0; h < hosts; ++h) {
      ASSERT_TRUE(std::ranges::equal(c.buffer(h, t.id), right))
          << "host " << h << " " << dtype_name(t.dtype) << " of " << hosts << " hosts";
    }
  }
}

TEST(Order, RingSumsFromTheLeafToTheOwner) {
  for (std::uint16_t hosts : {2, 3, 4, 6}) check_order(Pattern::kRing, hosts, 20'000, 1000, false);
  check_order(Pattern::kRing, 4, 20'000, 1000, true);
}

TEST(Order, IsTheSameWhereContributionsComeToExistInParts) {
  for (bool wide : {false, true}) {
    check_order(Pattern::kRing, 4, 20'000, 1000, wide, 0, 4);
    check_order(Pattern::kParameterServer, 4, 20'000, 1000, wide, 0, 4);
    check_order(Pattern::kRing, 3, 20'000, 1000, wide, 0, 2);
  }
}

TEST(Order, ParameterServerSumsByHost) {
  for (std::uint16_t hosts : {2, 3, 4, 6}) check_order(Pattern::kParameterServer, hosts, 20'000, 1000, false);
  check_order(Pattern::kParameterServer, 4, 20'000, 1000, true);
}

// More contributions than one Work holds: several passes, the same order, the same single rounding.
TEST(Order, ParameterServerSumsMoreThanSixtyFourHosts) {
  for (std::uint16_t hosts : {64, 65, 130}) check_order(Pattern::kParameterServer, hosts, 40, 16, false);
  check_order(Pattern::kParameterServer, 66, 40, 16, true);
  // The owner's own data comes in a later pass, and lies where the result goes.
  check_order(Pattern::kParameterServer, 66, 40, 16, false, 64);
  check_order(Pattern::kParameterServer, 66, 40, 16, true, 62);
}

// ---- determinism and bandwidth ----

std::uint64_t digest_of_run(std::uint64_t seed, std::string* trace) {
  const Plan plan = plan_of_everything({Pattern::kRing, 3});
  ClusterOptions o;
  o.hosts = 3;
  o.ranks_per_host = 2;
  o.seed = seed;
  Cluster c(o, plan);
  c.fill = [&](std::size_t h, TensorId id, Sequence s) { fill_small(c, plan, h, id, s); };
  c.on_send = [&](HostIndex from, HostIndex, Send& s) {
    *trace += static_cast<char>('a' + from.value);
    *trace += static_cast<char>(s.header.tensor.value + 32);
  };
  c.submit_all();
  EXPECT_TRUE(c.run());
  EXPECT_TRUE(c.all_done());
  return c.digest();
}

TEST(Digest, TwoRunsOfOneSeedAgreeAndOtherSeedsDiffer) {
  std::string first, again, other;
  const std::uint64_t digest = digest_of_run(7, &first);
  EXPECT_EQ(digest_of_run(7, &again), digest);
  EXPECT_EQ(first, again);
  EXPECT_NE(digest_of_run(8, &other), digest);
  EXPECT_NE(first, other);
}

// A reduce-scatter is the first half of that: every host sends what it does not keep, once.
TEST(Bandwidth, AReduceScatterSendsHalfOfThat) {
  for (std::uint16_t hosts : {2, 3, 4, 8}) {
    for (Pattern pattern : {Pattern::kRing, Pattern::kParameterServer, Pattern::kHalvingDoubling}) {
      if (pattern == Pattern::kHalvingDoubling && !std::has_single_bit(hosts)) continue;
      PlanTensor t = allreduce(pattern, Dtype::kFloat32, std::uint64_t{hosts} * 10'000, 1024);
      t.operation = Operation::kReduceScatter;
      Plan plan = plan_of(t);
      for (std::uint16_t h = 0; h < hosts; ++h) plan.rank_hosts.emplace_back(h);
      ClusterOptions o;
      o.hosts = hosts;
      Cluster c(o, plan);
      c.submit_all();
      ASSERT_TRUE(c.run());
      ASSERT_TRUE(c.all_done());
      for (std::size_t h = 0; h < hosts; ++h) EXPECT_EQ(c.bytes_sent(h), (hosts - 1u) * 10'000 * sizeof(float));
    }
  }
}

// No pattern sends more than it must: every host 2 (N-1)/N of the tensor (Horovod's ring, analysed in section 2 of its
// paper). Halving and doubling only where nobody must join through another.
TEST(Bandwidth, EveryHostSendsTwiceItsShareOfTheTensor) {
  for (std::uint16_t hosts : {2, 3, 4, 6, 8}) {
    const std::uint64_t elements = std::uint64_t{hosts} * 16 * 1024;
    for (Pattern pattern : {Pattern::kRing, Pattern::kParameterServer, Pattern::kHalvingDoubling, Pattern::kTree}) {
      if (pattern == Pattern::kHalvingDoubling && !std::has_single_bit(hosts)) continue;
      ClusterOptions o;
      o.hosts = hosts;
      Cluster c(o, plan_of(allreduce(pattern, Dtype::kFloat32, elements, 1024)));
      c.submit_all();
      ASSERT_TRUE(c.run());
      ASSERT_TRUE(c.all_done());
      for (std::size_t h = 0; h < hosts; ++h)
        EXPECT_EQ(c.bytes_sent(h), 2 * (hosts - 1) * elements / hosts * sizeof(float));
    }
  }
}

// One to four tensors of one registration.
std::vector<PlanTensor> registration(std::mt19937_64& random, Pattern pattern, std::uint16_t hosts,
                                     protocol::TensorRange range) {
  constexpr std::array kOperations = {Operation::kAllreduce, Operation::kAllreduce, Operation::kBroadcast,
                                      Operation::kAllgather, Operation::kBarrier};
  std::vector<PlanTensor> tensors;
  for (std::uint32_t i = range.first; i < range.end(); ++i) {
    const std::uint64_t elements = std::uint64_t{hosts} * (1 + random() % 1500);
    PlanTensor t = allreduce(pattern, static_cast<Dtype>(random() % kDtypeCount), elements, 64 + random() % 200);
    t.id = TensorId(i);
    t.operation = kOperations[random() % kOperations.size()];
    t.root = HostIndex(static_cast<std::uint16_t>(random() % hosts));
    t.root_rank = Rank(t.root.value);
    t.cls = ClassId(static_cast<std::uint8_t>(random() % 2));
    t.urgency = static_cast<float>(random() % 7) / 7;
    tensors.push_back(t);
  }
  return tensors;
}

// Registrations of all shapes come and go between operations: places, and what the tables had there, are used again.
TEST_P(Operations, AreRightOnTensorsInThePlaceOfOthers) {
  const auto [pattern, hosts] = GetParam();
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    std::mt19937_64 random(seed);
    ClusterOptions o{.hosts = hosts, .seed = seed};
    o.config.eager_limit = Bytes(seed % 2 == 0 ? 64 : 4096);
    o.config.reclassifies = seed == 3;
    o.config.max_queued_slices = 4000;  // without what has left, there is room for all
    Plan nothing;
    for (std::uint16_t h = 0; h < hosts; ++h) nothing.rank_hosts.push_back(HostIndex(h));
    Cluster c(o, nothing);
    c.fill = [&](std::size_t h, TensorId id, Sequence s) {
      if (c.plan().tensors[id.value].operation != Operation::kBarrier) fill_small(c, c.plan(), h, id, s);
    };
    c.check = [&](std::size_t h, TensorId id, Sequence s) {
      if (c.plan().tensors[id.value].operation != Operation::kBarrier) check_numbers(c, c.plan(), o, h, id, s);
    };
    std::vector<protocol::TensorRange> live;
    for (int turn = 0; turn < 20; ++turn) {
      if (live.size() == 4 || (!live.empty() && random() % 3 == 0)) {
        const auto leaves = live.begin() + static_cast<std::ptrdiff_t>(random() % live.size());
        const Status status = c.vacate(*leaves);
        ASSERT_TRUE(status.ok()) << status.to_string();
        live.erase(leaves);
      } else {
        const protocol::TensorRange range = c.plan().room_for(static_cast<std::uint32_t>(1 + random() % 4));
        const Status status = c.place(range, registration(random, pattern, hosts, range));
        ASSERT_TRUE(status.ok()) << status.to_string();
        live.push_back(range);
      }
      c.submit_all(1 + static_cast<int>(random() % 2));
      ASSERT_TRUE(c.run());
      for (std::size_t h = 0; h < hosts; ++h) ASSERT_TRUE(c.host(h).errors.empty()) << c.host(h).errors.front();
      ASSERT_TRUE(c.all_done()) << "turn " << turn;
    }
    ASSERT_LE(c.plan().tensors.size(), 32u);  // of four registrations of four, with gaps
  }
}

TEST(Vacating, IsRefusedWhileAnOperationIsUnderWay) {
  ClusterOptions o{.hosts = 2};
  Cluster c(o, plan_of(allreduce(Pattern::kRing, Dtype::kFloat32, 1000, 64)));
  c.submit(0, TensorId(0));
  ASSERT_TRUE(c.run());  // as far as it goes without the other host
  EXPECT_EQ(c.host(0).engine->vacate({0, 1}).what(),
            "an operation is under way on a tensor that every rank has unregistered");
  c.submit(1, TensorId(0));
  ASSERT_TRUE(c.run());
  EXPECT_TRUE(c.vacate({0, 1}).ok());
  EXPECT_FALSE(c.vacate({0, 2}).ok());
}

}  // namespace
}  // namespace tensorlane::engine::testing
