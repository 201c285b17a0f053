#include "daemon/telemetry/span_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tensorlane::telemetry {

void SpanNames::begin(const ports::TraceJob& job, Time now) {
  const std::lock_guard lock(mutex_);
  if (kept_jobs_ >= kMostJobs) return;
  ++kept_jobs_;
  std::deque<Job>& of_id = jobs_[job.id.value];
  of_id.push_back({job, now, {}, {}, 0});
  Job& begun = of_id.back();
  begun.job.name.resize(std::min(begun.job.name.size(), kMostNameBytes));
  std::size_t bytes = 0;
  for (const std::string& host : job.hosts) bytes += host.size() + sizeof host;
  if (!charge(begun, bytes)) begun.job.hosts.clear();
}

void SpanNames::end(JobId job, Epoch epoch, Time now) {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(job.value);
  if (found == jobs_.end()) return;
  for (Job& one : found->second) {
    if (one.job.epoch == epoch && !one.ended) one.ended = now;
  }
}

// False where there is no room.
bool SpanNames::charge(Job& job, std::size_t bytes) {
  std::size_t& of_user = users_[job.job.user];
  if (bytes_ + bytes > kMostBytes || of_user + bytes > kMostBytesOfUser) return false;
  bytes_ += bytes;
  of_user += bytes;
  job.bytes += bytes;
  return true;
}

void SpanNames::give_back(Job& job, std::size_t bytes) {
  bytes_ -= bytes;
  job.bytes -= bytes;
  if ((users_[job.job.user] -= bytes) == 0) users_.erase(job.job.user);
}

// The name as it is kept: nothing where there is no room.
std::string SpanNames::keep(Job& job, std::string_view name) {
  name = name.substr(0, kMostNameBytes);
  return charge(job, name.size() + kOverhead) ? std::string(name) : std::string();
}

void SpanNames::name(JobId job, TensorId tensor, std::string_view name, Time now) {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(job.value);
  if (found == jobs_.end()) return;
  Job& of = found->second.back();
  const auto [place, fresh] = of.tensors.try_emplace(tensor.value);
  Tensor& named = place->second;
  std::string kept = keep(of, name);
  if (!fresh) {
    named.former.push_back({std::move(named.name), now});
    replaced_.push_back({job, of.job.epoch, tensor, now});
    if (named.former.size() > kMostFormerOfTensor) drop_former(of, named);
    if (replaced_.size() > kMostFormer) drop_oldest_former();
  }
  named.name = std::move(kept);
}

void SpanNames::forget(Time then) {
  while (true) {
    Job gone;  // goes when the lock is open again
    const std::lock_guard lock(mutex_);
    const auto over = [then](const Job& job) { return job.ended && *job.ended < then; };
    const auto found =
        std::ranges::find_if(jobs_, [&](const auto& of) { return std::ranges::any_of(of.second, over); });
    if (found == jobs_.end()) break;
    const auto job = std::ranges::find_if(found->second, over);
    give_back(*job, job->bytes);
    --kept_jobs_;
    gone = std::move(*job);
    found->second.erase(job);
    if (found->second.empty()) jobs_.erase(found);
  }
  constexpr int kAtOnce = 64;
  for (bool more = true; more;) {
    const std::lock_guard lock(mutex_);
    for (int i = 0; i < kAtOnce && (more = !replaced_.empty() && replaced_.front().until < then); ++i)
      drop_oldest_former();
  }
}

void SpanNames::drop_oldest_former() {
  const Replaced oldest = replaced_.front();
  replaced_.pop_front();
  const auto of_id = jobs_.find(oldest.job.value);
  if (of_id == jobs_.end()) return;
  const auto job = std::ranges::find_if(of_id->second, [&](const Job& j) { return j.job.epoch == oldest.epoch; });
  if (job == of_id->second.end()) return;
  const auto tensor = job->tensors.find(oldest.tensor.value);
  if (tensor == job->tensors.end()) return;
  const std::vector<Former>& former = tensor->second.former;
  if (!former.empty() && former.front().until <= oldest.until) drop_former(*job, tensor->second);
}

// The oldest one of a tensor.
void SpanNames::drop_former(Job& job, Tensor& tensor) {
  const std::string& name = tensor.former.front().name;
  if (!name.empty()) give_back(job, name.size() + kOverhead);
  tensor.former.erase(tensor.former.begin());
}

void SpanNames::clear() {
  std::map<std::uint64_t, std::deque<Job>> gone;
  const std::lock_guard lock(mutex_);
  gone.swap(jobs_);
  replaced_.clear();
  users_.clear();
  kept_jobs_ = bytes_ = 0;
}

// The last one that had begun; a span that is older than all of them belongs to the first.
const SpanNames::Job* SpanNames::find(JobId job, Time then) const {
  const auto found = jobs_.find(job.value);
  if (found == jobs_.end()) return nullptr;
  const Job* last = &found->second.front();
  for (const Job& one : found->second) {
    if (one.began <= then) last = &one;
  }
  return last;
}

SpanNames::Of SpanNames::of(const ports::TraceSpan& span, const std::string& host) const {
  Of names{fmt::format("{:016x}", span.job.value),
           fmt::format("tensor {}", span.tensor.value),
           fmt::format("host {}", span.peer.value),
           Epoch(0),
           {},
           host.empty()};
  const Job* const job = find(span.job, span.begin);
  if (job == nullptr) return names;
  names.job = job->job.name;
  names.epoch = job->job.epoch;
  names.user = job->job.user;
  names.shown = host.empty() || std::ranges::find(job->job.hosts, host) != job->job.hosts.end();
  if (span.peer.value < job->job.hosts.size()) names.peer = job->job.hosts[span.peer.value];
  const auto tensor = job->tensors.find(span.tensor.value);
  if (tensor == job->tensors.end()) return names;
  const std::string* name = &tensor->second.name;
  const auto& former = tensor->second.former;
  const auto then = std::ranges::find_if(former, [&](const Former& f) { return span.begin < f.until; });
  if (then != former.end()) name = &then->name;
  if (!name->empty()) names.tensor = *name;
  return names;
}

std::vector<SpanNames::Of> SpanNames::of(std::span<const ports::TraceSpan> spans, const std::string& host) const {
  std::vector<Of> names;
  names.reserve(spans.size());
  const std::lock_guard lock(mutex_);
  for (const ports::TraceSpan& span : spans) names.push_back(of(span, host));
  return names;
}

std::optional<std::uint32_t> SpanNames::user_of(JobId job, Epoch epoch) const {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(job.value);
  if (found == jobs_.end()) return {};
  const auto one = std::ranges::find_if(found->second, [&](const Job& j) { return j.job.epoch == epoch; });
  return one == found->second.end() ? std::optional<std::uint32_t>() : one->job.user;
}

std::size_t SpanNames::names() const {
  const std::lock_guard lock(mutex_);
  std::size_t all = 0;
  for (const auto& [id, jobs] : jobs_) {
    for (const Job& job : jobs) {
      for (const auto& [number, tensor] : job.tensors) {
        all += tensor.name.empty() ? 0 : 1;
        all += static_cast<std::size_t>(
            std::ranges::count_if(tensor.former, [](const auto& f) { return !f.name.empty(); }));
      }
    }
  }
  return all;
}

std::size_t SpanNames::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace tensorlane::telemetry
