#include <fmt/format.h>

#include <algorithm>

#include "daemon/engine/impl.h"

namespace tensorlane::engine {

// Nothing changes unless everything is right: the tables grow at their ends and are cut back on an error.
Status Engine::Impl::extend_plan(const Plan& plan) {
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
  const Pages pages = reserves(sizes[0]);
  if (status.ok()) status = check_capacity(pages);
  if (status.ok()) {
    reserves_ = pages;
    make_room(sizes[0]);
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

// Pages that each class must always be able to have: those of its largest slice. Of the plan so far and what follows
// the `known` first tensors.
Engine::Impl::Pages Engine::Impl::reserves(std::size_t known) const {
  Pages pages = reserves_;
  for (std::size_t i = known; i < tables_.tensors.size(); ++i) {
    std::uint64_t& most = pages[tables_.tensors[i].cls.value];
    most = std::max(most, pages_of_largest_slice(tables_, tables_.tensors[i]));
  }
  if (config_.reclassifies && !config_.single_queue)
    std::fill_n(pages.begin(), config_.classes, *std::ranges::max_element(pages));
  return pages;
}

Status Engine::Impl::check_capacity(const Pages& reserves) const {
  std::uint64_t needed = 0;
  for (std::uint64_t pages : reserves) needed += pages;
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

// For what follows the `known` first tensors.
void Engine::Impl::make_room(std::size_t known) {
  for (std::uint8_t c = 0; c < kMaxDataClasses; ++c) {
    if (reserves_[c] > 0) pool_.reserve(ClassId(c), static_cast<std::uint32_t>(reserves_[c]));
  }
  // A staging grant has at least one page; an operation has one grant for its results.
  grants_.grow(static_cast<std::uint32_t>(tables_.tensors.size()) + pool_.pages());
  control_.grow(tables_.messages);
  queue_.grow(tables_.sends.size());
  slice_positions_.resize(tables_.slices.size(), kNotQueued);
  if (awaited_.capacity() < tables_.tensors.size()) awaited_.reserve(2 * tables_.tensors.size());

  most_sends_.resize(std::size_t{kMaxDataClasses} * config_.hosts);
  for (std::size_t i = known; i < tables_.tensors.size(); ++i) {
    const Tensor& t = tables_.tensors[i];
    for_each_class_of(t, [&](std::size_t c) { most_slices_[c] += t.sums ? t.slices.count : 0; });
    for (std::uint32_t s = t.sends.first; s < t.sends.end(); ++s) {
      const HostIndex peer = tables_.sends[s].peer;
      for_each_class_of(t, [&](std::size_t c) { ++most_sends_[c * config_.hosts + peer.value]; });
    }
  }
  for (std::uint8_t c = 0; c < kMaxDataClasses; ++c) {
    for (std::uint16_t h = 0; h < config_.hosts; ++h) {
      const std::size_t items = most_sends_[std::size_t{c} * config_.hosts + h];
      if (items > 0) queue_.allow({HostIndex(h), ClassId(c)}, items);
    }
    staging_wait_[c].reserve(most_slices_[c]);
    work_[c].reserve(most_slices_[c]);
  }
}

}  // namespace tensorlane::engine
