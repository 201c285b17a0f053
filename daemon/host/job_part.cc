#include "daemon/host/job_part.h"

#include <new>

namespace tensorlane::host {

JobPart::JobPart(const ports::JobSpec& spec, const Context& context)
    : id_(spec.credentials.job),
      epoch_(spec.credentials.epoch),
      user_(spec.owner.user),
      context_(context),
      metrics_(std::make_shared<ports::JobMetrics>()) {
  metrics_->name = spec.name;
  metrics_->id = id_;
  metrics_->user = user_;
  metrics_->began = context_.clock();
  const std::vector<Rank>& here = spec.hosts[spec.credentials.self.value].ranks;
  metrics_->ranks = std::vector<ports::JobMetrics::PerRank>(here.size());
  for (std::size_t r = 0; r < here.size(); ++r) metrics_->ranks[r].rank = here[r];
  context_.metrics->job_list.add(metrics_);
}

JobPart::~JobPart() {
  if (metrics_ != nullptr) context_.metrics->job_list.remove(metrics_);
}

Result<std::unique_ptr<JobPart>> JobPart::begin(const std::shared_ptr<JobStart>& start, const Context& context,
                                                const std::vector<std::size_t>& lanes, Links* links) {
  TL_RETURN_IF_ERROR(start->status);
  std::unique_ptr<JobPart> part;
  try {
    part.reset(new JobPart(start->spec, context));
    TL_RETURN_IF_ERROR(part->make(*start, lanes, links));
  } catch (const std::bad_alloc&) {
    return on_host(no_memory(), start->spec);
  }
  for (const std::size_t lane : lanes) {
    if (lane != context.lane) Way{*links, part->id_, part->epoch_, context.lane, lane}.post(BeginNote{start});
  }
  return part;
}

Status JobPart::make(JobStart& start, const std::vector<std::size_t>& lanes, Links* links) {
  home_ = std::make_unique<Job>(start, context_, metrics_);
  for (const std::size_t lane : lanes) {
    if (lane == context_.lane) {
      TL_ASSIGN_OR_RETURN(rails_, RailSet::begin(start, context_, metrics_, *home_));
      home_->join(lane, *rails_);
    } else {
      remotes_.push_back(std::make_unique<RemoteRails>(Way{*links, id_, epoch_, context_.lane, lane}));
      home_->join(lane, *remotes_.back());
    }
  }
  home_->report_begin();
  return {};
}

std::unique_ptr<JobPart> JobPart::begin_rails(JobStart& start, const Context& context, const Way& home) {
  const auto refused = [&](const Status& why) {
    RemoteOwner(home).left(why);
    return nullptr;
  };
  try {
    std::unique_ptr<JobPart> part(new JobPart(start.spec, context));
    part->owner_ = std::make_unique<RemoteOwner>(home);
    Result<std::unique_ptr<RailSet>> rails = RailSet::begin(start, context, part->metrics_, *part->owner_);
    if (!rails.ok()) return refused(rails.status());
    part->rails_ = std::move(*rails);
    return part;
  } catch (const std::bad_alloc&) {
    return refused(on_host(no_memory(), start.spec));
  }
}

void JobPart::extend(const protocol::Plan& chunk, protocol::TensorRange added, std::span<const OwnMemory> memory) {
  try {
    plan_.version = chunk.version;
    plan_.rails = chunk.rails;
    plan_.ordering = chunk.ordering;
    plan_.concurrent = chunk.concurrent;
    plan_.rank_hosts = chunk.rank_hosts;
    plan_.place(added, chunk.tensors);
  } catch (const std::bad_alloc&) {
    return rails_->break_off(no_memory());
  }
  rails_->extend(plan_, added, memory);
}

void JobPart::vacate(protocol::TensorRange range) {
  plan_.vacate(range);
  rails_->vacate(range);
}

const engine::Messages* JobPart::messages() const {
  const engine::Messages* of_rails = rails_ != nullptr ? rails_->messages() : nullptr;
  return of_rails == nullptr && home_ != nullptr ? home_->messages() : of_rails;
}

std::optional<ClassId> JobPart::next_work() const {
  const std::optional<ClassId> sums = rails_ != nullptr ? rails_->next_work() : std::nullopt;
  const std::optional<ClassId> local = home_ != nullptr ? home_->next_work() : std::nullopt;
  return !sums || (local && *local < *sums) ? local : sums;
}

void JobPart::choose_block(Time now, JobBlock& block) {
  const std::optional<ClassId> local = home_ != nullptr ? home_->next_work() : std::nullopt;
  block.part = this;
  block.rail.reset();
  block.message = false;
  block.reduced = block.copied = 0;
  if (rails_ == nullptr || !rails_->choose_block(now, local, block)) home_->choose_block(now, block);
}

void JobPart::block_done(const JobBlock& block, Time now) {
  context_.metrics->bytes_reduced.add(block.reduced);
  context_.metrics->bytes_copied.add(block.copied);
  if (block.rail) return rails_->block_done(block, now);
  home_->block_done(block, now);
}

bool JobPart::retire(std::size_t most) {
  if (rails_ != nullptr && !rails_gone_) {
    if (!rails_->retire(most)) return false;
    rails_gone_ = true;
    (home_ != nullptr ? static_cast<RailsOwner&>(*home_) : *owner_).rails_gone();
  }
  if (home_ != nullptr && !home_->retire()) return false;
  context_.metrics->job_list.remove(metrics_);
  metrics_.reset();
  return true;
}

}  // namespace tensorlane::host
