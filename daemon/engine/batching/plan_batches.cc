#include "daemon/engine/batching/plan_batches.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "common/base/assert.h"

namespace tensorlane::engine {
namespace {

using protocol::PlanTensor;
using Members = std::vector<std::size_t>;  // positions

Bytes size_of(const PlanTensor& t) {
  return Bytes(t.bytes());
}

// Batches of any number of members, in the order of their first ones.
std::vector<Members> neighbours(std::span<const PlanTensor> tensors, std::span<const std::uint8_t> asked, Bytes most) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return tensors[a].urgency > tensors[b].urgency; });
  struct Open {
    std::size_t batch;
    Bytes size;
  };
  std::map<std::tuple<Dtype, ReduceOp, bool, ClassId, std::uint8_t>, Open> open;  // by kind
  std::vector<Members> batches;
  for (std::size_t i : order) {
    const PlanTensor& t = tensors[i];
    if (t.operation != Operation::kAllreduce || size_of(t) > most) continue;
    const auto [it, fresh] = open.try_emplace({t.dtype, t.reduce, t.fp32_contributions, t.cls, asked[i]});
    Open& last = it->second;
    if (fresh || last.size + size_of(t) > most) {
      last = {batches.size(), Bytes()};
      batches.emplace_back();
    }
    batches[last.batch].push_back(i);
    last.size += size_of(t);
  }
  return batches;
}

}  // namespace

void append_batches(std::vector<PlanTensor>* tensors, std::span<const std::uint8_t> asked, Bytes most,
                    const BatchPlanner& plan) {
  TL_ASSERT(asked.size() == tensors->size());
  for (const Members& members : neighbours(*tensors, asked, most)) {
    if (members.size() < 2) continue;
    PlanTensor batch = (*tensors)[members.front()];
    batch.elements = 0;
    batch.members = static_cast<std::uint32_t>(members.size());
    batch.name = "batch of " + std::to_string(members.size());
    for (std::size_t i : members) {
      PlanTensor& member = (*tensors)[i];
      member.batch = static_cast<std::uint32_t>(tensors->size());
      member.batch_offset = batch.elements;
      batch.elements += member.elements;
    }
    plan(batch, members.front());
    tensors->push_back(std::move(batch));
  }
}

}  // namespace tensorlane::engine
