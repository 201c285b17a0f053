#include "daemon/host/users.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace tensorlane::host {
namespace {

constexpr auto kWorkQuantum = static_cast<std::int64_t>(kMaxOperation.value);  // bytes of work in a turn
constexpr std::uint64_t kLeastWork = kib(64).value;

}  // namespace

std::uint64_t work_cost(const JobBlock& block) {
  return std::max<std::uint64_t>(block.span.bytes, kLeastWork);
}

void Users::add(JobPart& job) {
  auto user = std::ranges::find(users_, job.user(), &User::id);
  if (user == users_.end()) {
    user = users_.insert(users_.end(), User());
    user->id = job.user();
    user->shares.resize(rails_);
  }
  user->jobs.push_back(&job);
}

void Users::remove(JobPart& job) {
  for (User& user : users_) std::erase(user.jobs, &job);
  std::erase_if(users_, [](const User& user) { return user.jobs.empty(); });
}

std::size_t Users::collect(std::size_t most) {
  std::size_t count = 0;
  for (User& user : users_) {
    std::size_t left = users_.size() == 1 ? std::numeric_limits<std::size_t>::max() : most;
    const std::size_t first = user.submission_turn++;
    for (std::size_t i = 0; i < user.jobs.size() && left > 0; ++i) {
      Job* home = user.jobs[(first + i) % user.jobs.size()]->home();
      const std::size_t taken = home == nullptr ? 0 : home->collect(left);
      left -= taken;
      count += taken;
    }
  }
  return count;
}

Users::Sent Users::send(Turn& turn, RailIndex rail, ClassId cls, std::uint64_t quantum, std::uint64_t most,
                        Bytes* credit, Time now) {
  const std::size_t slot = ports::metrics_slot(cls);
  Sent all;
  std::uint64_t nowhere = 0;  // the account of a job that has no part in this rail
  const auto serve_user = [&](std::size_t u, std::uint64_t of_user) {
    User& user = users_[u];
    const auto account = [&](std::size_t j) -> std::uint64_t& {
      return user.jobs[j]->has(rail) ? user.jobs[j]->rails()->deficit(rail, cls) : nowhere;
    };
    const auto serve_job = [&](std::size_t j, std::uint64_t budget) {
      if (!user.jobs[j]->has(rail)) return Served{};
      const JobRail::Sent sent = user.jobs[j]->rails()->send(rail, cls, *credit, budget, now);
      all.operations += sent.operations;
      *credit -= sent.bytes;
      return Served{sent.cost, sent.more, sent.more && credit->value < budget - sent.cost};
    };
    return take_turns(user.shares[rail.value][slot].jobs, user.jobs.size(), quantum, of_user, account, serve_job);
  };
  const auto account = [&](std::size_t u) -> std::uint64_t& { return users_[u].shares[rail.value][slot].deficit; };
  all.blocked = take_turns(turn, users_.size(), quantum, most, account, serve_user).blocked;
  return all;
}

bool Users::choose_block(Time now, JobBlock& block) {
  std::optional<ClassId> best;
  for (const User& user : users_) {
    for (const JobPart* job : user.jobs) {
      const std::optional<ClassId> cls = job->next_work();
      if (cls && (!best || *cls < *best)) best = cls;
    }
  }
  if (!best) return false;
  const bool only = users_.size() == 1 && users_.front().jobs.size() == 1;
  const auto has_it = [&](const JobPart* job) { return only || job->next_work() == best; };
  User& user = users_[next_in_turn(
      &work_turn_, users_.size(), kWorkQuantum, [&](std::size_t u) -> std::int64_t& { return users_[u].work_account; },
      [&](std::size_t u) { return std::ranges::any_of(users_[u].jobs, has_it); })];
  JobPart& job = *user.jobs[next_in_turn(
      &user.work_turn, user.jobs.size(), kWorkQuantum,
      [&](std::size_t j) -> std::int64_t& { return user.jobs[j]->work_account(); },
      [&](std::size_t j) { return has_it(user.jobs[j]); })];
  job.choose_block(now, block);
  const auto cost = static_cast<std::int64_t>(work_cost(block));
  user.work_account -= cost;
  job.work_account() -= cost;
  return true;
}

}  // namespace tensorlane::host
