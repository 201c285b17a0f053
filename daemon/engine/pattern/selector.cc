#include "daemon/engine/pattern/selector.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "common/base/assert.h"
#include "common/protocol/exchange.h"
#include "daemon/engine/batching/slicing.h"
#include "daemon/engine/pattern/route.h"
#include "daemon/engine/pattern/shards.h"

namespace tensorlane::engine {
namespace {

using protocol::PlanTensor;

// Of whose shards the ways are looked at.
constexpr std::size_t kMostOwners = 16;

// Times in nanoseconds.
struct Costs {
  double latency, message, per_byte, per_sum, incast;
  Bytes eager_limit;

  explicit Costs(const PatternCosts& c)
      : latency(c.network.overhead_ns()),
        message(static_cast<double>(c.message.value)),
        per_byte(
            std::max(c.network.ns_per_byte(),
                     2 * c.network.overhead_ns() / static_cast<double>(std::max<std::uint64_t>(c.window.value, 1)))),
        per_sum(1e9 / c.sum_bytes_per_second),
        incast(c.incast),
        eager_limit(c.eager_limit) {}

  Costs latency_only() const {
    Costs only = *this;
    only.message = only.per_byte = only.per_sum = 0;
    return only;
  }
  double on_link(double bytes) const { return bytes * per_byte; }
  // Between messages that follow one another: the link carries one while the thread is at the next.
  double gap(double bytes) const { return std::max(message, on_link(bytes)); }
};

// The way of one slice of one owner, with nothing else on the network.
class Path {
 public:
  Path(const Costs& costs, protocol::Pattern pattern, std::uint16_t hosts, HostIndex owner, double contribution,
       double result)
      : costs_(costs),
        pattern_(pattern),
        hosts_(hosts),
        owner_(owner),
        contribution_(contribution),
        result_(result),
        eager_(contribution <= static_cast<double>(costs.eager_limit.value)) {}

  // When the owner has the sum.
  double up() const { return summed(owner_); }
  // When the last host has a result that the owner has at `start`.
  double down(double start) const { return passed_on(owner_, start); }

 private:
  Route route_of(HostIndex host) const { return route(pattern_, hosts_, owner_, host); }

  double summed(HostIndex host) const {
    std::vector<double> ready;
    for (const HostIndex source : route_of(host).sum_order) {
      if (source != host) ready.push_back(summed(source));
    }
    if (ready.empty()) return 0;
    std::ranges::sort(ready);
    const auto sources = static_cast<double>(ready.size());
    const double hop = costs_.latency + costs_.on_link(contribution_), gap = costs_.gap(contribution_);
    double last = ready.front() + hop;
    if (eager_) {
      for (const double at : std::span(ready).subspan(1)) last = std::max(last + gap, at + hop);
    } else {  // nothing is granted before all is announced (law 2)
      const double announced = ready.back() + costs_.latency + (sources - 1) * costs_.message;
      last = announced + costs_.latency + hop + (sources - 1) * gap;
    }
    return last + (sources + 1) * contribution_ * costs_.per_sum;
  }

  double passed_on(HostIndex host, double start) const {
    double last = start, departs = start;
    // As the engine serves its peers: in turn, beginning with the next one (egress/peer_set.h).
    std::vector<HostIndex> served = route_of(host).result_to;
    std::ranges::sort(served, {}, [&](HostIndex to) { return (to.value + hosts_ - host.value) % hosts_; });
    for (const HostIndex to : served) {
      last = std::max(last, passed_on(to, departs + costs_.latency + costs_.on_link(result_)));
      departs += costs_.gap(result_);
    }
    return last;
  }

  const Costs& costs_;
  protocol::Pattern pattern_;
  std::uint16_t hosts_;
  HostIndex owner_;
  double contribution_, result_;
  bool eager_;
};

struct Halves {
  bool contributions, results;
};

Halves halves_of(Operation operation) {
  switch (operation) {
    case Operation::kAllreduce:
    case Operation::kBarrier:
      return {true, true};
    case Operation::kPush:
    case Operation::kReduceScatter:
    case Operation::kReduce:
      return {true, false};
    case Operation::kBroadcast:
    case Operation::kAllgather:
    case Operation::kPull:
    case Operation::kGather:
    case Operation::kScatter:
    case Operation::kAlltoall:
      return {false, true};
  }
  TL_ASSERT(false && "unknown operation");
}

double adders(protocol::Pattern pattern, std::uint16_t hosts) {
  double count = 0;
  for (std::uint16_t h = 0; h < hosts; ++h) count += is_leaf(pattern, hosts, HostIndex(0), HostIndex(h)) ? 0 : 1;
  return count;
}

// What all shards together cost the busiest host: its link by bytes, its thread by messages and by additions.
struct Load {
  double link = 0, messages = 0, sums = 0;
};

// `slices`: of each of `shards`.
Load load_of(const Costs& costs, const PlanTensor& tensor, std::uint16_t hosts, Halves halves, std::size_t shards,
             double slices, double contribution, double result) {
  const double own = static_cast<double>(shards) * (hosts - 1.0) / hosts;
  const double most = std::max<double>(own, most_received(tensor.pattern, hosts, static_cast<std::uint16_t>(shards)));
  // Its thread, where some owners are missing: on average. The way of a single shard has been counted by itself.
  const double handled = shards == hosts ? own + most : 2 * own;
  Load load;
  if (halves.contributions) {
    load.link += most * contribution;
    load.messages += handled * (contribution <= static_cast<double>(costs.eager_limit.value) ? 1 : 3);
    load.sums = (own + adders(tensor.pattern, hosts) * static_cast<double>(shards) / hosts) * contribution;
  }
  if (halves.results) {
    load.link += most * result;
    load.messages += handled;
  }
  const double meeting = 1 + costs.incast * (1 - 1.0 / std::max<double>(1, most_sources(tensor.pattern, hosts)));
  return {costs.on_link(load.link * slices) * meeting, load.messages * slices * costs.message,
          load.sums * slices * costs.per_sum};
}

// Blocks go straight from rank to rank, whatever the pattern. For the model one rank is on each host: the busiest host
// hears from all others, or sends to them, when they have said where that may land.
Duration exchange_time(const Costs& costs, const PlanTensor& tensor, std::uint16_t hosts) {
  const auto unit = static_cast<double>(protocol::Exchange::unit(tensor.operation, hosts));
  const double bytes = static_cast<double>(tensor.elements * dtype_size(tensor.dtype)) / unit;
  const double slices = std::max(1.0, std::ceil(static_cast<double>(tensor.elements) / unit / tensor.slice_elements));
  const double peers = hosts - 1.0;
  const double meeting = 1 + costs.incast * (1 - 1.0 / peers);
  return Duration(std::llround(2 * costs.latency +
                               std::max(costs.on_link(bytes) * peers * meeting, peers * (slices + 1) * costs.message)));
}

}  // namespace

Duration predict(const PatternCosts& given, const PlanTensor& tensor, std::uint16_t hosts) {
  TL_ASSERT(hosts > 0 && tensor.slice_elements > 0);
  if (hosts == 1) return Duration(0);
  const Costs costs(given);
  if (exchanges(tensor.operation)) return exchange_time(costs, tensor, hosts);
  const Halves halves = halves_of(tensor.operation);
  // A rank's block of an allgather is on its host: for the model one of each host.
  std::vector<HostIndex> one_rank_each;
  for (std::uint16_t h = 0; h < hosts; ++h) one_rank_each.push_back(HostIndex(h));
  PlanTensor divisible = tensor;
  if (tensor.operation == Operation::kAllgather) divisible.elements = (tensor.elements + hosts - 1) / hosts * hosts;
  const std::vector<Shard> all = shards(divisible, hosts, one_rank_each);
  std::uint64_t longest = 0;
  for (const Shard& shard : all) longest = std::max(longest, shard.elements);
  const auto slice = static_cast<double>(std::min<std::uint64_t>(longest, tensor.slice_elements));
  const double slices = static_cast<double>(longest) / slice;
  const double result = slice * static_cast<double>(dtype_size(tensor.dtype));
  const double contribution = slice * static_cast<double>(dtype_size(contribution_dtype(tensor)));

  // Without contributions a result waits for the announcement that says where it may land. Where every host owns a
  // shard, what all of them move together takes longer than the slowest way of one.
  const auto owners = std::span(all).first(all.size() == hosts ? 1 : std::min(all.size(), kMostOwners));
  const auto alone = [&](const Costs& with) {
    double slowest = 0;
    for (const Shard& shard : owners) {
      const Path path(with, tensor.pattern, hosts, shard.owner, contribution, result);
      const double summed = halves.contributions ? path.up() : with.latency;
      slowest = std::max(slowest, halves.results ? path.down(summed) : summed);
    }
    return slowest;
  };
  const Load load = load_of(costs, tensor, hosts, halves, all.size(), slices, contribution, result);
  const double in_turn = std::max(load.link, load.messages) + load.sums;
  const double at_once = std::max(load.link, load.messages + load.sums);
  const double busy = alone(costs.latency_only()) + at_once + (in_turn - at_once) / std::ceil(slices);
  return Duration(std::llround(std::max(alone(costs), busy)));
}

std::array<Prediction, kSelectable.size()> compare_patterns(const PatternCosts& costs, PlanTensor tensor,
                                                            std::uint16_t hosts) {
  std::array<Prediction, kSelectable.size()> all;
  const std::uint32_t wanted = tensor.slice_elements;
  for (std::size_t i = 0; i < all.size(); ++i) {
    tensor.pattern = kSelectable[i];
    tensor.slice_elements = fit_slice_elements(wanted, tensor, hosts, costs.classes, costs.staging);
    all[i] = {tensor.pattern, predict(costs, tensor, hosts)};
  }
  std::ranges::stable_sort(all, {}, &Prediction::time);
  return all;
}

}  // namespace tensorlane::engine
