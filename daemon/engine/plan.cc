#include <fmt/format.h>

#include <algorithm>

#include "daemon/engine/impl.h"

namespace tensorlane::engine {

// Nothing changes unless everything is right: the tables grow at their ends and are cut back on an error.
Status Engine::Impl::apply_plan(const Plan& plan) {
  TL_RETURN_IF_ERROR(check_plan(config_, tables_, plan));
  const bool negotiates = plan.ordering == protocol::Ordering::kNegotiated;
  if (!tables_.tensors.empty() && negotiates != negotiates_) {
    return {Code::kInvalidArgument, "the ordering differs from that of the plan before", "plan of the job",
            "only add tensors"};
  }
  PlanTables& t = tables_;
  const std::array<std::size_t, 7> sizes{t.tensors.size(),     t.slices.size(), t.links.size(),
                                         t.sources.size(),     t.sends.size(),  t.leaf_sources.size(),
                                         t.result_sends.size()};
  const std::uint32_t barriers = t.barriers, messages = t.messages;
  Status status = append(plan);
  if (status.ok()) status = check_capacity();
  if (status.ok()) {
    make_room();
    negotiates_ = negotiates;
    if (negotiates_) negotiation_.grow(t.tensors.size());
    return status;
  }
  t.tensors.resize(sizes[0]);
  t.slices.resize(sizes[1]);
  t.links.resize(sizes[2]);
  t.sources.resize(sizes[3]);
  t.sends.resize(sizes[4]);
  t.leaf_sources.resize(sizes[5]);
  t.result_sends.resize(sizes[6]);
  t.barriers = barriers;
  t.messages = messages;
  return status;
}

Status Engine::Impl::append(const Plan& plan) {
  for (std::size_t i = tables_.tensors.size(); i < plan.tensors.size(); ++i) {
    TL_RETURN_IF_ERROR(append_tensor(config_, plan, plan.tensors[i], &tables_));
  }
  return {};
}

// Pages that each class must always be able to have: those of its largest slice.
std::array<std::uint64_t, kMaxDataClasses> Engine::Impl::reserves() const {
  std::array<std::uint64_t, kMaxDataClasses> pages{};
  for (const Tensor& t : tables_.tensors)
    pages[t.next_cls.value] = std::max(pages[t.next_cls.value], pages_of_largest_slice(tables_, t));
  if (config_.reclassifies && !config_.single_queue)
    std::fill_n(pages.begin(), config_.classes, *std::ranges::max_element(pages));
  return pages;
}

Status Engine::Impl::check_capacity() const {
  std::uint64_t needed = 0;
  for (std::uint64_t pages : reserves()) needed += pages;
  if (needed > pool_.pages()) {
    return {Code::kResourceExhausted,
            fmt::format("the largest slice of every class needs {} bytes of staging together, there are {}",
                        needed * kPageBytes, pool_.pages() * kPageBytes),
            "plan of the job", "raise staging, or cut the slices with fit_slice_elements()"};
  }
  if (tables_.tensors.size() + pool_.pages() > GrantTable::kMaxCapacity) {
    return {Code::kResourceExhausted,
            fmt::format("{} tensors and {} pages of staging", tables_.tensors.size(), pool_.pages()), "plan of the job",
            fmt::format("use at most {} together", GrantTable::kMaxCapacity)};
  }
  return {};
}

// The classes that the tensor can come to be in.
template <typename F>
void Engine::Impl::for_each_class_of(const Tensor& t, F&& f) const {
  if (!config_.reclassifies || config_.single_queue) return f(std::size_t{t.next_cls.value});
  for (std::size_t c = 0; c < config_.classes; ++c) f(c);
}

void Engine::Impl::make_room() {
  const auto pages = reserves();
  for (std::uint8_t c = 0; c < kMaxDataClasses; ++c) {
    if (pages[c] > 0) pool_.reserve(ClassId(c), static_cast<std::uint32_t>(pages[c]));
  }
  // A staging grant has at least one page; an operation has one grant for its results.
  grants_.grow(static_cast<std::uint32_t>(tables_.tensors.size()) + pool_.pages());
  control_.grow(tables_.messages);

  queue_.grow(tables_.sends.size());
  std::vector<std::size_t> most(std::size_t{kMaxDataClasses} * config_.hosts);
  for (const SendItem& item : tables_.sends) {
    for_each_class_of(tables_.tensors[tables_.slices[item.slice].tensor],
                      [&](std::size_t c) { ++most[c * config_.hosts + item.peer.value]; });
  }
  for (std::uint8_t c = 0; c < kMaxDataClasses; ++c) {
    for (std::uint16_t h = 0; h < config_.hosts; ++h) {
      const std::size_t items = most[std::size_t{c} * config_.hosts + h];
      if (items > 0) queue_.allow({HostIndex(h), ClassId(c)}, items);
    }
  }

  slice_positions_.resize(tables_.slices.size(), kNotQueued);
  std::array<std::size_t, kMaxDataClasses> slices{};
  for (const Tensor& t : tables_.tensors)
    for_each_class_of(t, [&](std::size_t c) { slices[c] += t.sums ? t.slices.count : 0; });
  for (std::size_t c = 0; c < kMaxDataClasses; ++c) {
    staging_wait_[c].reserve(slices[c]);
    work_[c].reserve(slices[c]);
  }
}

}  // namespace tensorlane::engine
