#include "common/protocol/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <type_traits>

#include "common/base/hash.h"
#include "common/protocol/plan_fields.h"
#include "common/protocol/plan_hash.h"

namespace tensorlane::protocol {
namespace {

constexpr std::array<const char*, kPatternCount> kPatternNames = {"ring", "parameter_server", "halving_doubling",
                                                                  "tree", "whole_server"};
constexpr std::array<const char*, kOrderingCount> kOrderingNames = {"tagged",  "funnel",   "concurrent",
                                                                    "chained", "counters", "negotiated"};

class HashedFields {
 public:
  explicit HashedFields(Fnv1a& hash) : hash_(hash) {}
  template <typename T>
  void number(const T& value) {
    if constexpr (std::is_enum_v<T>) {
      hash_.add(static_cast<std::underlying_type_t<T>>(value));
    } else {
      hash_.add(value);
    }
  }
  void real(float value) { hash_.add(value); }
  void text(const std::string& text) { hash_.add_text(text); }
  void world(const SharedWorld& world) {
    if (world == nullptr) return;
    hash_.add(world->size());
    for (std::uint32_t rank = 0; rank < world->size(); ++rank) {
      hash_.add(world->ranks()[rank]);
      hash_.add(world->host(world->places().host(rank)).value);
    }
  }

 private:
  Fnv1a& hash_;
};

std::uint64_t hash_of(const PlanTensor& tensor) {
  Fnv1a hash;
  HashedFields fields(hash);
  describe_tensor(fields, tensor);
  return hash.value();
}

Status misplaced(const PlanTensor& t, std::string what) {
  return {Code::kInvalidArgument, std::move(what), fmt::format("tensor {} '{}' of the plan", t.id.value, t.name),
          "run the same version of tensorlaned on all hosts"};
}

// What both a batch and its members are.
bool is_alike(const PlanTensor& a, const PlanTensor& b) {
  return a.operation == Operation::kAllreduce && b.operation == Operation::kAllreduce && a.dtype == b.dtype &&
         a.reduce == b.reduce && a.fp32_contributions == b.fp32_contributions && a.group == b.group &&
         is_same(a.world, b.world);
}

}  // namespace

const char* pattern_name(Pattern pattern) {
  const auto number = static_cast<std::size_t>(pattern);
  return number < kPatternCount ? kPatternNames[number] : "unknown";
}

std::optional<Pattern> pattern_from_name(std::string_view name) {
  if (name == "shuffle") return Pattern::kParameterServer;
  for (std::size_t i = 0; i < kPatternCount; ++i) {
    if (name == kPatternNames[i]) return static_cast<Pattern>(i);
  }
  return std::nullopt;
}

const char* ordering_name(Ordering ordering) {
  const auto number = static_cast<std::size_t>(ordering);
  return number < kOrderingCount ? kOrderingNames[number] : "unknown";
}

std::optional<Ordering> ordering_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kOrderingCount; ++i) {
    if (name == kOrderingNames[i]) return static_cast<Ordering>(i);
  }
  return std::nullopt;
}

Plan Plan::since(std::size_t known) const {
  Plan added{version, rails, ordering, concurrent, {}, rank_hosts};
  if (known < tensors.size()) added.tensors.assign(tensors.begin() + static_cast<std::ptrdiff_t>(known), tensors.end());
  return added;
}

Plan Plan::part(TensorRange range) const {
  const auto begin = tensors.begin() + range.first;
  return {version, rails, ordering, concurrent, {begin, begin + range.count}, rank_hosts};
}

bool Plan::has_room(TensorRange range) const {
  if (range.first > tensors.size()) return false;
  const auto covered = std::min<std::size_t>(range.count, tensors.size() - range.first);
  return std::ranges::all_of(std::span(tensors).subspan(range.first, covered), &PlanTensor::vacant);
}

TensorRange Plan::room_for(std::uint32_t count) const {
  std::uint32_t first = 0;  // of the vacant places in a row that end here
  for (std::uint32_t i = 0; i < tensors.size() && i - first < count; ++i) {
    if (!tensors[i].vacant) first = i + 1;
  }
  return {first, count};
}

void Plan::place(TensorRange range, std::vector<PlanTensor> placed) {
  tensors.resize(std::max<std::size_t>(tensors.size(), range.end()));
  std::ranges::move(placed, tensors.begin() + range.first);
}

void Plan::vacate(TensorRange range) {
  for (std::uint32_t i = range.first; i < range.end(); ++i) {
    tensors[i] = {.id = TensorId(i)};
    tensors[i].vacant = true;
  }
}

std::uint64_t Plan::hash() const {
  PlanHash hash(*this);
  for (const PlanTensor& tensor : tensors) {
    if (!tensor.vacant) hash.add(tensor);
  }
  return hash.value(*this);
}

PlanHash::PlanHash(const Plan& plan) {
  job_.add(plan.rails);
  for (HostIndex host : plan.rank_hosts) job_.add(host.value);
}

void PlanHash::add(const PlanTensor& tensor) {
  tensors_ += hash_of(tensor);
}

void PlanHash::remove(const PlanTensor& tensor) {
  tensors_ -= hash_of(tensor);
}

std::uint64_t PlanHash::value(const Plan& plan) const {
  Fnv1a whole = job_;
  whole.add(tensors_);
  whole.add(plan.version);
  whole.add(static_cast<std::uint8_t>(plan.ordering));
  whole.add(plan.concurrent);
  return whole.value();
}

Status check_batches(const Plan& plan, TensorRange added) {
  std::vector<const PlanTensor*> members;
  std::size_t batches = 0;
  for (std::uint32_t i = added.first; i < added.end(); ++i) {
    if (plan.tensors[i].is_batch()) ++batches;
    if (plan.tensors[i].in_batch()) members.push_back(&plan.tensors[i]);
  }
  std::ranges::sort(members, [](const PlanTensor* a, const PlanTensor* b) {
    return a->batch != b->batch ? a->batch < b->batch : a->batch_offset < b->batch_offset;
  });
  for (auto member = members.begin(); member != members.end(); --batches) {
    const std::uint32_t id = (*member)->batch;
    if (!added.contains(TensorId(id)) || !plan.tensors[id].is_batch() || plan.tensors[id].in_batch())
      return misplaced(**member, fmt::format("tensor {}, in which it should travel, is no batch of this plan", id));
    const PlanTensor& batch = plan.tensors[id];
    std::uint64_t filled = 0;
    std::uint32_t count = 0;
    for (; member != members.end() && (*member)->batch == id; ++member, ++count) {
      const PlanTensor& t = **member;
      if (!is_alike(t, batch)) return misplaced(t, fmt::format("it is of another kind than its batch, tensor {}", id));
      if (t.batch_offset != filled || t.elements == 0 || t.elements > batch.elements - filled)
        return misplaced(t, fmt::format("its place in its batch, tensor {}, is not behind the one before", id));
      filled += t.elements;
    }
    if (filled != batch.elements || count != batch.members)
      return misplaced(batch, fmt::format("{} members with {} elements are in a batch of {} with {}", count, filled,
                                          batch.members, batch.elements));
  }
  if (batches > 0) {
    return {Code::kInvalidArgument, fmt::format("{} batches without members", batches), "plan of the job",
            "run the same version of tensorlaned on all hosts"};
  }
  return {};
}

}  // namespace tensorlane::protocol
