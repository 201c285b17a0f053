// Every operation, pattern, dtype and size, on clusters of 1 to 6 hosts, under random interleavings: the right numbers,
// the same on all hosts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "arithmetic.h"
#include "cluster.h"
#include "daemon/engine/pattern/route.h"
#include "daemon/engine/pattern/shards.h"

namespace tensorlane::engine::testing {
namespace {

// Small integers: their sums are exact in every dtype, whatever the order.
double small_number(std::size_t host, TensorId tensor, Sequence sequence, std::uint64_t element) {
  return static_cast<double>((host * 7 + tensor.value * 5 + sequence.value * 3 + element * 11 + element / 97) % 8);
}

void fill_small(Cluster& c, const Plan& plan, std::size_t h, TensorId id, Sequence sequence) {
  const PlanTensor& t = plan.tensors[id.value];
  const bool wide = t.wide_contributions && dtype_size(t.dtype) == 2;
  const Dtype dtype = wide ? Dtype::kFloat32 : t.dtype;
  const std::span<std::byte> to = wide ? c.wide(h, id) : c.buffer(h, id);
  for (std::uint64_t e = 0; e < to.size() / dtype_size(dtype); ++e) {
    store(to.data() + e * dtype_size(dtype), dtype, small_number(h, id, sequence, e));
  }
  if (wide) std::ranges::fill(c.buffer(h, id), std::byte{0x7f});  // not to be read
}

double expected(const Plan& plan, const ClusterOptions& o, const PlanTensor& t, Sequence sequence, std::uint64_t e) {
  if (t.operation == Operation::kBroadcast) return small_number(t.root.value, t.id, sequence, e);
  if (t.operation == Operation::kAllgather) {
    return small_number(plan.rank_hosts[e / (t.elements / plan.rank_hosts.size())].value, t.id, sequence, e);
  }
  double all = 0;
  for (std::size_t h = 0; h < o.hosts; ++h) all += small_number(h, t.id, sequence, e);
  return t.reduce == ReduceOp::kAverage ? all / (o.hosts * o.ranks_per_host) : all;
}

void check_numbers(Cluster& c, const Plan& plan, const ClusterOptions& o, std::size_t h, TensorId id,
                   Sequence sequence) {
  const PlanTensor& t = plan.tensors[id.value];
  const std::size_t size = dtype_size(t.dtype);
  std::vector<std::byte> right(size);
  for (std::uint64_t e = 0; e < c.buffer(h, id).size() / size; ++e) {
    store(right.data(), t.dtype, expected(plan, o, t, sequence, e));
    ASSERT_EQ(std::memcmp(right.data(), c.buffer(h, id).data() + e * size, size), 0)
        << "host " << h << " tensor " << id.value << " element " << e << ": "
        << load(c.buffer(h, id).data() + e * size, t.dtype) << ", expected " << load(right.data(), t.dtype);
  }
}

void run_and_check(const ClusterOptions& o, const Plan& plan, int times) {
  Cluster c(o, plan);
  c.fill = [&](std::size_t h, TensorId id, Sequence s) { fill_small(c, plan, h, id, s); };
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

TEST(Allreduce, SumsOnTwoHosts) {
  for (Pattern pattern : {Pattern::kRing, Pattern::kParameterServer}) {
    ClusterOptions o;
    o.hosts = 2;
    run_and_check(o, plan_of(allreduce(pattern, Dtype::kFloat32, 1000, 100)), 3);
  }
}

TEST(Allreduce, SumsOnFourHosts) {
  for (Pattern pattern : {Pattern::kRing, Pattern::kParameterServer}) {
    ClusterOptions o;
    o.hosts = 4;
    run_and_check(o, plan_of(allreduce(pattern, Dtype::kFloat32, 100'000, 10'000)), 3);
  }
}

}  // namespace
}  // namespace tensorlane::engine::testing
