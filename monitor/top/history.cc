#include "monitor/top/history.h"

#include <utility>

#include "monitor/answers/times.h"

namespace tensorlane::top {
namespace {

// A host that misses a round keeps its last report, so that its next one is compared with that.
void follow(std::map<std::string, Reports>* kept, const std::map<std::string, nlohmann::json>& now, bool forget) {
  for (auto at = kept->begin(); at != kept->end();) at = forget && !now.contains(at->first) ? kept->erase(at) : ++at;
  for (const auto& [name, report] : now) {
    Reports& pair = (*kept)[name];
    pair.before = std::move(pair.after);
    pair.after = report;
  }
}

}  // namespace

void History::add(Answers answers) {
  if (answers.job != last_.job) reports_.clear();
  statuses_ = std::move(last_.statuses);
  if (!last_.local.is_null()) statuses_[last_.host] = std::move(last_.local);
  follow(&reports_, answers.reports, false);
  follow(&jobs_, answers.jobs, true);
  last_ = std::move(answers);
}

std::map<std::string, explain::HostTimes> History::job_times(std::map<std::string, std::string>* wrong) const {
  std::map<std::string, explain::HostTimes> all;
  for (const auto& [host, unused] : last_.reports) {
    const Reports& pair = reports_.at(host);
    if (pair.before.is_null()) continue;
    auto times = answers::times_between(host, pair.before, pair.after);
    if (times.ok())
      all.emplace(host, std::move(*times));
    else
      wrong->emplace(host, times.status().what());
  }
  return all;
}

std::map<std::string, explain::HostTimes> History::own_times() const {
  std::map<std::string, explain::HostTimes> all;
  for (const auto& [job, pair] : jobs_) {
    if (pair.before.is_null()) continue;
    if (auto times = answers::times_between(last_.host, pair.before, pair.after); times.ok())
      all.emplace(job, std::move(*times));
  }
  return all;
}

const nlohmann::json& History::status_before(const std::string& host) const {
  static const nlohmann::json nothing;
  const auto found = statuses_.find(host);
  return found == statuses_.end() ? nothing : found->second;
}

}  // namespace tensorlane::top
