#include "simulator/orders/properties.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "common/base/assert.h"

namespace tensorlane::orders {

namespace {

template <typename F>
void for_each_bit(std::uint64_t word, std::size_t index, F&& f) {
  for (; word != 0; word &= word - 1) f(static_cast<std::uint32_t>(index * 64 + std::countr_zero(word)));
}

Status check_roots(const Graph& graph, std::span<const Operation> recvs, const Reach& reach) {
  for (std::uint32_t r = 0; r < recvs.size(); ++r) {
    std::size_t reached = 0;
    for (const std::uint64_t word : reach.bits(reach.set_of(recvs[r]))) reached += std::popcount(word);
    if (reached > 1)
      return Status(Code::kInvalidArgument, "a recv operation waits for another one",
                    fmt::format("operation '{}'", graph.name(recvs[r])),
                    "give the graph of one iteration, which begins with its recv operations");
  }
  return {};
}

}  // namespace

Result<Properties> Properties::build(const Graph& graph, std::vector<Duration> times) {
  TL_ASSERT(times.size() == graph.size());
  Properties p;
  p.recvs_ = graph.of_kind(Kind::kRecv);
  if (p.recvs_.empty())
    return Status(Code::kInvalidArgument, "the graph has no recv operation", "", "there is nothing to order");
  p.times_ = std::move(times);
  TL_ASSIGN_OR_RETURN(p.reach_, Reach::build(graph, p.recvs_, Towards::kInputs));
  TL_RETURN_IF_ERROR(check_roots(graph, p.recvs_, p.reach_));
  p.direct_load_.resize(p.recvs_.size());
  p.impending_load_.resize(p.recvs_.size());
  p.outstanding_.assign((p.recvs_.size() + 63) / 64, 0);
  for (std::uint32_t r = 0; r < p.recvs_.size(); ++r) p.outstanding_[r / 64] |= std::uint64_t{1} << (r % 64);
  p.count_sets(graph);
  p.update_impending_load();
  return p;
}

void Properties::count_sets(const Graph& graph) {
  set_time_.resize(reach_.sets());
  set_count_.resize(reach_.sets());
  set_load_.resize(reach_.sets());
  std::vector<bool> waits(reach_.sets(), false);
  for (const Operation op : graph.topological()) {
    if (graph.kind(op) == Kind::kRecv) continue;
    waits[reach_.set_of(op)] = true;
    set_load_[reach_.set_of(op)] += times_[op.value];
  }
  for (std::uint32_t set = 0; set < reach_.sets(); ++set) {
    const auto bits = reach_.bits(set);
    for (std::size_t w = 0; w < bits.size(); ++w)
      for_each_bit(bits[w], w, [&](std::uint32_t recv) {
        set_time_[set] += times_[recvs_[recv].value];
        ++set_count_[set];
      });
    if (set_count_[set] == 1) add_direct_load(set);
    if (set_count_[set] > 1 && waits[set]) impending_.push_back(set);
  }
}

// Algorithm 1, lines 11 to 13. A set stays at one outstanding transfer until that completes: it is added once.
void Properties::add_direct_load(std::uint32_t set) {
  const auto bits = reach_.bits(set);
  for (std::size_t w = 0; w < bits.size(); ++w)
    for_each_bit(bits[w] & outstanding_[w], w, [&](std::uint32_t recv) { direct_load_[recv] += set_load_[set]; });
}

// Algorithm 1, lines 14 to 16: in ascending order of M, the first set that holds a transfer is its minimum.
void Properties::update_impending_load() {
  std::erase_if(impending_, [&](std::uint32_t set) { return set_count_[set] < 2; });
  std::sort(impending_.begin(), impending_.end(),
            [&](std::uint32_t a, std::uint32_t b) { return std::pair(set_time_[a], a) < std::pair(set_time_[b], b); });
  std::fill(impending_load_.begin(), impending_load_.end(), kNoImpending);
  std::vector<std::uint64_t> open = outstanding_;
  for (const std::uint32_t set : impending_) {
    const auto bits = reach_.bits(set);
    for (std::size_t w = 0; w < bits.size(); ++w) {
      for_each_bit(bits[w] & open[w], w, [&](std::uint32_t recv) { impending_load_[recv] = set_time_[set]; });
      open[w] &= ~bits[w];
    }
  }
}

void Properties::complete(std::uint32_t recv) {
  TL_ASSERT(outstanding(recv));
  outstanding_[recv / 64] &= ~(std::uint64_t{1} << (recv % 64));
  for (std::uint32_t set = 0; set < reach_.sets(); ++set) {
    if (!reach_.holds(set, recv)) continue;
    set_time_[set] -= times_[recvs_[recv].value];
    if (--set_count_[set] == 1) add_direct_load(set);
  }
  update_impending_load();
}

}  // namespace tensorlane::orders
