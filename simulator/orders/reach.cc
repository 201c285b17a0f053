#include "simulator/orders/reach.h"

#include <algorithm>

#include "common/base/hash.h"

namespace tensorlane::orders {
namespace {

constexpr std::uint32_t kFree = ~0u;
constexpr std::uint32_t kNotMember = ~0u;

std::uint64_t hash(std::span<const std::uint64_t> bits) {
  Fnv1a h;
  for (const std::uint64_t word : bits) h.add(word);
  return h.value();
}

}  // namespace

Result<Reach> Reach::build(const Graph& graph, std::span<const Operation> members, Towards towards) {
  Reach reach;
  reach.words_ = std::max<std::size_t>(1, (members.size() + 63) / 64);
  reach.set_of_.resize(graph.size());
  reach.slots_.assign(1024, kFree);
  std::vector<std::uint32_t> member_of(graph.size(), kNotMember);
  for (std::uint32_t m = 0; m < members.size(); ++m) member_of[members[m].value] = m;
  std::vector<std::uint64_t> bits(reach.words_);
  const auto topological = graph.topological();
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const bool inwards = towards == Towards::kInputs;
    const Operation op = inwards ? topological[i] : topological[graph.size() - 1 - i];
    std::fill(bits.begin(), bits.end(), 0);
    for (const Operation next : inwards ? graph.inputs(op) : graph.outputs(op)) {
      const auto its = reach.bits(reach.set_of(next));
      for (std::size_t w = 0; w < bits.size(); ++w) bits[w] |= its[w];
    }
    const std::uint32_t member = member_of[op.value];
    if (member != kNotMember) bits[member / 64] |= std::uint64_t{1} << (member % 64);
    TL_ASSIGN_OR_RETURN(reach.set_of_[op.value], reach.intern(bits));
  }
  return reach;
}

Result<std::uint32_t> Reach::intern(std::span<const std::uint64_t> wanted) {
  std::size_t slot = hash(wanted) & (slots_.size() - 1);
  for (; slots_[slot] != kFree; slot = (slot + 1) & (slots_.size() - 1))
    if (std::ranges::equal(bits(slots_[slot]), wanted)) return slots_[slot];
  if ((sets_.size() + words_) * sizeof(std::uint64_t) > kMostBytes.value)
    return Status(Code::kResourceExhausted, "the dependencies of the graph's operations take more than 1 GiB", "",
                  "leave out operations that take no time, or transfer fewer parameters");
  const auto set = static_cast<std::uint32_t>(sets());
  sets_.insert(sets_.end(), wanted.begin(), wanted.end());
  slots_[slot] = set;
  if (sets() * 2 > slots_.size()) grow();
  return set;
}

void Reach::grow() {
  slots_.assign(slots_.size() * 2, kFree);
  for (std::uint32_t set = 0; set < sets(); ++set) {
    std::size_t slot = hash(bits(set)) & (slots_.size() - 1);
    while (slots_[slot] != kFree) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = set;
  }
}

}  // namespace tensorlane::orders
