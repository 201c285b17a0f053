// What `tensorlane status` shows of the control plane.
#include <unistd.h>

#include <set>
#include <string>

#include "daemon/control/control.h"

namespace tensorlane::control {

using nlohmann::json;

namespace {

json describe_class(const fabric::TrafficClass& cls) {
  return {{"name", cls.name}, {"dscp", cls.dscp}, {"pcp", cls.pcp}, {"sl", cls.service_level}, {"rank", cls.rank}};
}

// Files of jobs that have failed: everybody sees those of his own jobs, root and the daemon's own user those of all,
// and nobody on another host any.
void keep_saved_spans(json& lane, std::uint32_t uid, bool here) {
  const auto found = lane.find("spans_saved");
  if (found == lane.end()) return;
  json kept = json::array();
  for (json& saved : *found) {
    if (here && (uid == 0 || uid == geteuid() || saved["user"] == uid)) kept.push_back(std::move(saved));
  }
  *found = std::move(kept);
}

}  // namespace

json Job::describe(Time now) const {
  json hosts = json::array();
  for (const RosterHost& member : roster_.hosts) {
    json host{{"name", member.name}, {"ranks", member.ranks}, {"last_heard_s", nullptr}};
    if (const auto silence = liveness_ ? liveness_->silence(member.name, now) : std::nullopt)
      host["last_heard_s"] = to_seconds(*silence);
    hosts.push_back(std::move(host));
  }
  json late = json::array();
  for (const auto& [key, report] : late_) {
    late.push_back({{"rank", key.first},
                    {"host", roster_.host_of(key.first)},
                    {"what", key.second},
                    {"seconds", to_seconds(report.waited)},
                    {"reported_s_ago", to_seconds(now - report.at)}});
  }
  json job{{"name", name_},
           {"id", id_.value},
           {"user", key_.uid},
           {"leader_port", key_.leader_port},
           {"epoch", epoch_.value},
           {"state", state_name(state_)},
           {"leader", leader_},
           {"hosts", std::move(hosts)},
           {"late", std::move(late)},
           {"error", nullptr},
           {"standing", describe_standstills()},
           {"plan", nullptr},
           {"tuning", tuner_ ? tuner_->describe() : nullptr}};
  if (state_ == State::kGathering)
    job["waiting_for"] = i_lead() ? ranks_text(gathering_.missing()) : "the leader " + leader_;
  if (!cause_.ok()) job["error"] = cause_.to_string();
  if (registrar_) {
    const protocol::Plan& plan = registrar_->plan();
    const Registrar::Totals& totals = registrar_->totals();
    job["plan"] = {{"version", plan.version},
                   {"hash", fmt::format("{:016x}", totals.hash)},
                   {"tensors", totals.tensors - totals.batches},
                   {"batches", totals.batches},
                   {"batched_tensors", totals.batched},
                   {"ordering", protocol::ordering_name(plan.ordering)}};
    if (plan.ordering == protocol::Ordering::kConcurrent) job["plan"]["concurrent"] = plan.concurrent;
  }
  return job;
}

std::vector<std::string> Job::host_names() const {
  std::vector<std::string> names;
  for (const RosterHost& member : roster_.hosts) names.push_back(member.name);
  if (names.empty()) names.push_back(rules_.host);
  return names;
}

// Of a job that the asking user has no part in.
json Job::describe_to_others() const {
  return {{"user", key_.uid}, {"id", id_.value}, {"state", state_name(state_)}, {"hosts", roster_.hosts.size()}};
}

bool Control::shows(const Job& job, std::uint32_t uid, const std::string& from) const {
  const bool all = uid == 0 || uid == geteuid();
  return (all || job.key().uid == uid) && (from == config_.host || job.listens_to(from));
}

// Root and the daemon's own user see everything. Everybody else sees his own jobs, and of those of others whose they
// are and what state they are in: names, tensors, hosts and errors are their own affair.
json Control::describe(std::uint32_t uid, const std::string& from) const {
  bool all = uid == 0 || uid == geteuid();
  json status = config_.more_status ? config_.more_status() : json::object();
  json jobs = json::array(), others = json::array();
  std::set<std::uint64_t> seen;
  for (const auto& [id, job] : jobs_) {
    const bool whole = shows(*job, uid, from);
    all = all && whole;
    if (whole) {
      seen.insert(id.value);
      jobs.push_back(job->describe(now_));
    } else {
      others.push_back(job->describe_to_others());
    }
  }
  if (json* lane = status.contains("lane") ? &status["lane"] : nullptr; lane != nullptr && !all) {
    const auto keep = [&](const char* list, const char* key, const auto& known) {
      json kept = json::array();
      for (json& item : (*lane)[list]) {
        if (known.contains(item[key])) kept.push_back(std::move(item));
      }
      (*lane)[list] = std::move(kept);
    };
    keep("flows", "job_id", seen);
    keep("jobs", "id", seen);
    keep("pattern_choices", "job_id", seen);
    keep("urgency_choices", "job_id", seen);
  }
  if (status.contains("lane")) keep_saved_spans(status["lane"], uid, from == config_.host);
  json classes = json::array();
  for (const auto& cls : config_.fabric->classes.data) classes.push_back(describe_class(cls));
  classes.push_back(describe_class(config_.fabric->classes.control));
  status["host"] = config_.host;
  status["version"] = TENSORLANE_VERSION;
  status["pid"] = getpid();
  status["uptime_s"] = to_seconds(now_ - started_);
  status["jobs"] = std::move(jobs);
  status["jobs_of_others"] = std::move(others);
  status["settings"] = {{"hash", settings_hash(config_.settings)}, {"values", config_.settings}};
  status["fabric"] = {{"path", config_.fabric->path},
                      {"classes", std::move(classes)},
                      {"thresholds", config_.fabric->classes.thresholds}};
  return status;
}

// What control itself answers, and what the other modules do.
ports::Answerers Control::answerers() {
  ports::Answerers all = config_.answerers;
  all["status"] = [this](const ports::Question& question, const ports::Answered& done) {
    done(describe(question.uid, question.from).dump(-1, ' ', false, json::error_handler_t::replace));
  };
  return all;
}

std::vector<std::string> Control::hosts() const {
  std::vector<std::string> names;
  for (const fabric::Host& host : config_.fabric->hosts) names.push_back(host.name);
  return names;
}

std::vector<JobId> Control::jobs_shown(std::uint32_t uid, const std::string& from) const {
  std::vector<JobId> shown;
  for (const auto& [id, job] : jobs_) {
    if (shows(*job, uid, from)) shown.push_back(id);
  }
  return shown;
}

Result<std::pair<std::uint64_t, std::vector<std::string>>> Control::hosts_of_job(std::uint32_t uid,
                                                                                 const std::string& text) const {
  const Job* found = nullptr;
  std::string names;
  for (const auto& [id, job] : jobs_) {
    if (!shows(*job, uid, config_.host)) continue;
    names += (names.empty() ? "" : ", ") + job->name();
    if (job->name() != text && std::to_string(id.value) != text) continue;
    if (found != nullptr) {
      return Status(Code::kInvalidArgument, fmt::format("several jobs are called '{}'", text), config_.host,
                    "name one by its id, as `tensorlane status --json` shows it");
    }
    found = job.get();
  }
  if (found != nullptr) return std::pair(found->id().value, found->host_names());
  return Status(Code::kNotFound, fmt::format("no job '{}' of yours is on this host", text), config_.host,
                names.empty() ? "ask on a host of the job, while it runs" : "name one of " + names);
}

void Control::reply(ports::SessionId session, std::uint32_t request, std::string json) {
  session_events_->status(session, request, std::move(json));
}

// One answer for all who ask as one user, and one user a turn: between two answers the jobs of the others say that they
// live.
void Control::answer_questions() {
  if (status_questions_.empty()) return;
  auto next = status_questions_.upper_bound(last_asked_);
  if (next == status_questions_.end()) next = status_questions_.begin();
  last_asked_ = next->first;
  const std::vector<StatusQuestion> askers = std::move(next->second);
  status_questions_.erase(next);
  const std::string text = describe(last_asked_, config_.host).dump(-1, ' ', false, json::error_handler_t::replace);
  for (const StatusQuestion& asker : askers) session_events_->status(asker.session, asker.request, text);
}

}  // namespace tensorlane::control
