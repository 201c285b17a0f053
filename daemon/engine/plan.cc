#include <fmt/format.h>

#include <algorithm>

#include "daemon/engine/impl.h"

namespace tensorlane::engine {

// Nothing changes unless everything is right: what was placed before an error goes again.
Status Engine::Impl::extend_plan(const Plan& plan, protocol::TensorRange added) {
  TL_RETURN_IF_ERROR(check_plan(config_, tables_, plan, added));
  const bool negotiates = plan.ordering == protocol::Ordering::kNegotiated;
  if (!tables_.tensors.empty() && negotiates != negotiates_) {
    return {Code::kInvalidArgument, "the ordering differs from that of the plan before", "plan of the job",
            "only add tensors"};
  }
  const std::size_t known = tables_.tensors.size();
  const std::uint32_t barriers = tables_.barriers;
  std::uint32_t placed = added.first;
  Status status;
  for (; placed < added.end() && status.ok(); ++placed)
    status = place_tensor(config_, plan, plan.tensors[placed], &tables_);
  if (!status.ok()) --placed;  // of the last one there is nothing
  const Pages pages = reserves({added.first, placed - added.first});
  if (status.ok()) status = check_capacity(pages);
  if (status.ok()) {
    reserves_ = pages;
    make_room(added);
    negotiates_ = negotiates;
    if (negotiates_) negotiation_.grow(tables_.tensors.size());
    meet(added);
    return status;
  }
  while (placed > added.first) vacate_tensor(--placed, &tables_);
  tables_.tensors.resize(known);
  tables_.barriers = barriers;
  return status;
}

Status Engine::Impl::vacate(protocol::TensorRange range) {
  if (range.end() > tables_.tensors.size())
    return {Code::kInvalidArgument, "tensors that the plan does not have are to leave it", "plan of the job",
            "report this"};
  for (std::uint32_t i = range.first; i < range.end(); ++i) {
    if (is_idle(tables_, tables_.tensors[i])) continue;
    return {Code::kCorrupt, "an operation is under way on a tensor that every rank has unregistered",
            fmt::format("tensor {} '{}' of the plan", i, tables_.tensors[i].plan.name),
            "a client broke the session protocol: use the client library of the daemons' version on every host"};
  }
  for (std::uint32_t i = range.first; i < range.end(); ++i) {
    count_room(tables_.tensors[i], false);
    vacate_tensor(i, &tables_);
  }
  return {};
}

// Pages that each class must always be able to have: those of its largest slice. Of the plan so far, tensors that are
// gone included, and what is added.
Engine::Impl::Pages Engine::Impl::reserves(protocol::TensorRange added) const {
  Pages pages = reserves_;
  for (std::uint32_t i = added.first; i < added.end(); ++i) {
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

// Hosts that the plan has not needed before.
void Engine::Impl::meet(protocol::TensorRange added) {
  const std::size_t known = neighbours_.size();
  const auto meet_one = [this](HostIndex host) {
    if (host == config_.self || is_neighbour_[host.value]) return;
    is_neighbour_[host.value] = true;
    neighbours_.push_back(host);
  };
  for (std::uint32_t i = added.first; i < added.end(); ++i) {
    const Range& links = tables_.tensors[i].links;
    for (std::uint32_t l = links.first; l < links.end(); ++l) meet_one(tables_.links[l].peer);
  }
  if (negotiates_ && config_.rail == RailIndex(0)) {  // which carries the words (job.cc)
    meet_one(Negotiation::kLeader);
    for (std::uint16_t h = 0; h < config_.hosts && config_.self == Negotiation::kLeader; ++h) meet_one(HostIndex(h));
  }
  std::sort(neighbours_.begin() + static_cast<std::ptrdiff_t>(known), neighbours_.end());
}

// What the tensor can have in the queues at a time.
void Engine::Impl::count_room(const Tensor& t, bool comes) {
  const auto change = [comes](std::size_t& count, std::size_t by) { comes ? count += by : count -= by; };
  for_each_class_of(t, [&](std::size_t c) { change(most_slices_[c], t.sums ? t.slices.count : 0); });
  for (std::uint32_t s = t.sends.first; s < t.sends.end(); ++s) {
    const HostIndex peer = tables_.sends[s].peer;
    for_each_class_of(t, [&](std::size_t c) { change(most_sends_[c * config_.hosts + peer.value], 1); });
  }
}

void Engine::Impl::make_room(protocol::TensorRange added) {
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
  for (std::uint32_t i = added.first; i < added.end(); ++i) count_room(tables_.tensors[i], true);
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
