#include "monitor/cli/top_feed.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "monitor/answers/parse.h"
#include "monitor/answers/read.h"
#include "monitor/cli/daemon_call.h"

namespace tensorlane::cli {

using nlohmann::json;
using SteadyClock = std::chrono::steady_clock;

namespace {

// Jobs of this host that are asked for one by one in a round; the others are shown without rates.
constexpr std::size_t kMostJobs = 16;

double now() {
  return std::chrono::duration<double>(SteadyClock::now().time_since_epoch()).count();
}

// Returns what hosts have said; `answers` gets why others have not.
std::map<std::string, json> take_reports(const DaemonAnswers& all, top::Answers* answers) {
  HostReports sorted = sort_out(all);
  for (const auto& [host, why] : sorted.silent) answers->silent[host] = why.to_string();
  return std::move(sorted.reports);
}

Status ask_statuses(const TopQuestions& questions, bool all_hosts, top::Answers* answers) {
  if (!all_hosts) {
    TL_ASSIGN_OR_RETURN(const std::string text, daemon_status(questions.socket));
    answers->local = tensorlane::answers::parse(text);
  } else {
    TL_ASSIGN_OR_RETURN(
        const DaemonAnswers all,
        ask_daemons(questions.socket, {.kind = "status", .all_hosts = true, .patience = questions.patience}));
    answers->statuses = take_reports(all, answers);
    if (answers->statuses.contains(all.host)) answers->local = answers->statuses[all.host];
  }
  answers->host = answers::text(answers->local, "host");
  if (!answers->host.empty()) return {};
  return {Code::kCorrupt, "the daemon's status cannot be read", questions.socket,
          "install the same release of the command and the daemon"};
}

// The ids of this host's jobs that run, the chosen one's among them.
std::vector<std::uint64_t> ids_of(const json& status, const std::string& chosen, std::string* id) {
  std::vector<std::uint64_t> running;
  answers::each(status, "jobs", [&](const json& job) {
    const json& number = answers::member(job, "id");
    if (!number.is_number_unsigned()) return;
    if (answers::text(job, "state") == "running") running.push_back(number.get<std::uint64_t>());
    const std::string text = std::to_string(number.get<std::uint64_t>());
    if (!chosen.empty() && (text == chosen || answers::text(job, "name") == chosen)) *id = text;
  });
  return running;
}

}  // namespace

top::Answers ask_round(const TopQuestions& questions, const std::string& job) {
  top::Answers answers;
  answers.asked = job;
  if (const Status status = ask_statuses(questions, questions.all_hosts && job.empty(), &answers); !status.ok()) {
    answers.error = status.to_string();
    return answers;
  }
  const std::vector<std::uint64_t> running = ids_of(answers.local, job, &answers.job);
  if (!job.empty()) {
    auto all = ask_daemons(questions.socket, {.kind = "job", .job = job, .patience = questions.patience});
    if (all.ok()) {
      answers.reports = take_reports(*all, &answers);
    } else {
      answers.no_job = all.status().to_string();
      answers.job.clear();
    }
  }
  for (std::size_t i = 0; i < std::min(running.size(), kMostJobs); ++i) {
    const std::string id = std::to_string(running[i]);
    if (id == answers.job) {
      if (answers.reports.contains(answers.host)) answers.jobs[id] = answers.reports[answers.host];
      continue;
    }
    auto own = ask_daemons(questions.socket,
                           {.kind = "job", .args = {{"job_id", running[i]}}, .patience = questions.patience});
    HostReports said = own.ok() ? sort_out(*own) : HostReports();
    if (!said.reports.empty()) answers.jobs[id] = std::move(said.reports.begin()->second);
  }
  return answers;
}

struct TopFeed::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::string job;  // guarded by mutex, as all below
  bool ends = false;
  std::optional<top::Picture> news;
  double answered = now();
};

TopFeed::TopFeed(const TopQuestions& questions, const std::string& job) : shared_(std::make_shared<Shared>()) {
  shared_->job = job;
  // It owns what it uses: where a daemon hangs, the thread outlives the object, and ends with the process at the
  // latest.
  std::thread([questions, shared = shared_] {
    top::History history;
    std::unique_lock lock(shared->mutex);
    while (!shared->ends) {
      const std::string asked = shared->job;
      const auto began = SteadyClock::now();
      lock.unlock();
      top::Answers answers = ask_round(questions, asked);
      const bool heard = answers.error.empty();
      history.add(std::move(answers));
      top::Picture picture = top::make_picture(history);
      lock.lock();
      shared->news = std::move(picture);
      if (heard) shared->answered = now();
      shared->changed.wait_until(lock, began + std::chrono::duration<double>(questions.interval),
                                 [&] { return shared->ends || shared->job != asked; });
    }
  }).detach();
}

TopFeed::~TopFeed() {
  const std::lock_guard lock(shared_->mutex);
  shared_->ends = true;
  shared_->changed.notify_all();
}

void TopFeed::want(const std::string& job) {
  const std::lock_guard lock(shared_->mutex);
  if (job == shared_->job) return;
  shared_->job = job;
  shared_->changed.notify_all();
}

bool TopFeed::take(top::Picture* picture) {
  const std::lock_guard lock(shared_->mutex);
  if (!shared_->news) return false;
  *picture = *std::exchange(shared_->news, std::nullopt);
  return true;
}

double TopFeed::age() const {
  const std::lock_guard lock(shared_->mutex);
  return now() - shared_->answered;
}

}  // namespace tensorlane::cli
