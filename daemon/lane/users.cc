#include "daemon/lane/users.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace tensorlane::lane {

void Users::add(Job& job) {
  auto user = std::ranges::find(users_, job.user(), &User::id);
  if (user == users_.end()) {
    user = users_.insert(users_.end(), User());
    user->id = job.user();
    user->shares.resize(rails_);
  }
  user->jobs.push_back(&job);
}

void Users::remove(Job& job) {
  for (User& user : users_) std::erase(user.jobs, &job);
  std::erase_if(users_, [](const User& user) { return user.jobs.empty(); });
}

std::size_t Users::collect(std::size_t most) {
  std::size_t count = 0;
  for (User& user : users_) {
    std::size_t left = users_.size() == 1 ? std::numeric_limits<std::size_t>::max() : most;
    const std::size_t first = user.submission_turn++;
    for (std::size_t i = 0; i < user.jobs.size() && left > 0; ++i) {
      const std::size_t taken = user.jobs[(first + i) % user.jobs.size()]->collect(left);
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
      return user.jobs[j]->uses(rail) ? user.jobs[j]->deficit(rail, cls) : nowhere;
    };
    const auto serve_job = [&](std::size_t j, std::uint64_t budget) {
      const JobRail::Sent sent = user.jobs[j]->send(rail, cls, *credit, budget, now);
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

Job* Users::next_to_work() {
  std::optional<ClassId> best_class;
  std::size_t best_user = 0, best_job = 0;
  for (std::size_t i = 0; i < users_.size(); ++i) {
    const std::size_t u = (work_turn_ + i) % users_.size();
    const User& user = users_[u];
    for (std::size_t k = 0; k < user.jobs.size(); ++k) {
      const std::size_t j = (user.work_turn + k) % user.jobs.size();
      const std::optional<ClassId> cls = user.jobs[j]->next_work();
      if (!cls || (best_class && *best_class <= *cls)) continue;
      best_class = cls;
      best_user = u;
      best_job = j;
    }
  }
  if (!best_class) return nullptr;
  work_turn_ = best_user + 1;
  users_[best_user].work_turn = best_job + 1;
  return users_[best_user].jobs[best_job];
}

}  // namespace tensorlane::lane
