#include "daemon/lane/lane.h"

#include <fmt/format.h>

#include <algorithm>

#include "daemon/lane/lane_impl.h"

namespace tensorlane::lane {

std::string lane_name(std::size_t lane) {
  return lane == 0 ? "lane" : fmt::format("lane{}", lane);
}

Status Lanes::Impl::open(std::span<const host::HostPorts> of_lanes) {
  TL_ASSIGN_OR_RETURN(switchboard, Switchboard::create(of_lanes.size()));
  for (std::size_t lane = 0; lane < of_lanes.size(); ++lane) {
    host::HostPorts& p = ports.emplace_back(of_lanes[lane]);
    p.lane = lane;
    p.links = of_lanes.size() == 1 ? nullptr : &switchboard->of(lane);
    loops.push_back(
        std::make_unique<Loop>(config, p, switchboard->of(lane),
                               Loop::Callbacks{[this](std::shared_ptr<void> o) { preparer.dispose(std::move(o)); },
                                               [this](JobId job, Epoch epoch) { forget(job, epoch); }}));
    TL_RETURN_IF_ERROR(loops.back()->open());
  }
  return {};
}

// A job lives on the lane that has fewest of them; the first of equals, which has rail 0.
Lanes::Impl::Entry Lanes::Impl::add(const ports::JobSpec& spec) {
  std::lock_guard lock(specs_mutex);
  std::vector<std::size_t> jobs(loops.size());
  for (const auto& [id, entry] : specs) ++jobs[entry.home];
  Entry& entry = specs[spec.credentials.job];
  entry.spec = std::make_shared<const ports::JobSpec>(spec);
  entry.home = static_cast<std::size_t>(std::ranges::min_element(jobs) - jobs.begin());
  return entry;
}

Lanes::Impl::Entry Lanes::Impl::find(JobId job) {
  std::lock_guard lock(specs_mutex);
  const auto found = specs.find(job);
  return found == specs.end() ? Entry() : found->second;
}

// A later epoch of the job may have begun already.
void Lanes::Impl::forget(JobId job, Epoch epoch) {
  std::lock_guard lock(specs_mutex);
  const auto found = specs.find(job);
  if (found != specs.end() && found->second.spec->credentials.epoch == epoch) specs.erase(found);
}

Status Lanes::Impl::prepare(const ports::JobSpec& spec, Preparer::Step step, Command command) {
  if (preparer.add(spec.owner.user, std::move(step), std::move(command))) return {};
  return {Code::kResourceExhausted, fmt::format("more than {} commands wait for memory", Preparer::kMaxWaiting),
          "tensorlaned", "register fewer groups at once"};
}

Lanes::Lanes(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Lanes::~Lanes() {
  stop();
}

Result<std::unique_ptr<Lanes>> Lanes::create(const LaneConfig& config, std::span<const host::HostPorts> ports) {
  auto impl = std::make_unique<Impl>(config);
  TL_RETURN_IF_ERROR(impl->open(ports));
  return std::unique_ptr<Lanes>(new Lanes(std::move(impl)));
}

void Lanes::start(ports::LaneListener& listener) {
  impl_->preparer.start();
  for (auto& loop : impl_->loops) loop->start(listener);
}

std::uint64_t Lanes::preparer_turns() const {
  return impl_->preparer.turns();
}

void Lanes::stop() {
  impl_->preparer.stop();
  for (auto& loop : impl_->loops) loop->stop();
  for (auto& loop : impl_->loops) loop->finish();
  for (auto& loop : impl_->loops) loop->clear();
}

}  // namespace tensorlane::lane
