#include "common/base/ledger.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <utility>

namespace tensorlane {

struct Ledger::Charge::Books {
  explicit Books(Rules r) : rules(std::move(r)) {}

  std::string text(std::uint64_t amount) const {
    return rules.amount_text != nullptr ? rules.amount_text(amount) : fmt::format("{}", amount);
  }
  Status check_limit(std::uint64_t amount, std::uint64_t used, std::uint64_t limit, const std::string& key,
                     const std::string& whose, const std::string& by) const {
    if (used <= limit && amount <= limit - used) return {};
    const std::string how = amount > limit ? fmt::format("{} needed, {} is {}", text(amount), key, text(limit))
                                           : fmt::format("{} needed, {} of {} = {} in use{}", text(amount), text(used),
                                                         key, text(limit), by);
    return {Code::kResourceExhausted, fmt::format("{} over {}", rules.what, whose), how,
            rules.fixed ? rules.fix : fmt::format("raise {} or {}", key, rules.fix)};
  }
  // Under the lock.
  Status check(std::uint32_t user, std::uint64_t amount) const {
    const auto found = by_user.find(user);
    const std::uint64_t of_user = found == by_user.end() ? 0 : found->second;
    TL_RETURN_IF_ERROR(check_limit(amount, used, rules.total, rules.key, "the daemon's limit", ""));
    TL_RETURN_IF_ERROR(check_limit(amount, of_user, rules.per_user, rules.user_key, "the limit of one user",
                                   fmt::format(" by user {}", user)));
    const std::uint64_t kept = kept_for_others(user);
    if (kept <= rules.total - used - amount) return {};
    return {Code::kResourceExhausted, fmt::format("{} over what one user may have now", rules.what),
            fmt::format("{} needed, user {} has {} of {} = {}, {} are kept for other users", text(amount), user,
                        text(of_user), rules.key, text(rules.total), text(kept)),
            rules.fixed ? fmt::format("{} or lower {}", rules.fix, rules.kept_key)
                        : fmt::format("{}, raise {} or lower {}", rules.fix, rules.key, rules.kept_key)};
  }
  // What they have not taken yet.
  std::uint64_t kept_for_others(std::uint32_t user) const {
    std::uint64_t kept = 0;
    for (const auto& [other, amount] : rules.kept) {
      const auto found = by_user.find(other);
      const std::uint64_t has = found == by_user.end() ? 0 : found->second;
      if (other != user && has < amount) kept += amount - has;
    }
    return kept;
  }

  Rules rules;  // under the lock, as what follows
  mutable std::mutex mutex;
  std::uint64_t used = 0;
  std::map<std::uint32_t, std::uint64_t> by_user;
  std::map<std::pair<std::uint32_t, std::string>, std::uint64_t> by_job;
};

Ledger::Charge::Charge(Charge&& other) noexcept
    : books_(std::move(other.books_)), owner_(std::move(other.owner_)), amount_(std::exchange(other.amount_, 0)) {}

Ledger::Charge& Ledger::Charge::operator=(Charge&& other) noexcept {
  if (this == &other) return *this;
  release();
  books_ = std::move(other.books_);
  owner_ = std::move(other.owner_);
  amount_ = std::exchange(other.amount_, 0);
  return *this;
}

void Ledger::Charge::release() {
  const std::shared_ptr<Books> books = std::move(books_);
  if (books == nullptr) return;
  const std::uint64_t amount = std::exchange(amount_, 0);
  std::lock_guard lock(books->mutex);
  const auto take_off = [&](auto& table, const auto& key) {
    const auto at = table.find(key);
    TL_ASSERT(at != table.end() && at->second >= amount);
    if ((at->second -= amount) == 0) table.erase(at);
  };
  books->used -= amount;
  if (amount == 0) return;
  take_off(books->by_user, owner_.user);
  take_off(books->by_job, std::pair(owner_.user, owner_.job));
}

void Ledger::Charge::release(std::uint64_t amount) {
  if (books_ == nullptr) return;
  const Charge part(books_, owner_, std::min(amount, amount_));
  amount_ -= part.amount_;
}

void Ledger::Charge::add(Charge&& other) {
  if (books_ == nullptr) {
    *this = std::move(other);
    return;
  }
  TL_ASSERT(other.books_ == books_ && other.owner_.user == owner_.user && other.owner_.job == owner_.job);
  amount_ += std::exchange(other.amount_, 0);
  other.books_.reset();
}

Ledger::Ledger(Rules rules) : books_(std::make_shared<Charge::Books>(std::move(rules))) {}

Result<Ledger::Charge> Ledger::take(const Owner& owner, std::uint64_t amount) {
  std::lock_guard lock(books_->mutex);
  if (const Status status = books_->check(owner.user, amount); !status.ok()) return status;
  books_->used += amount;
  if (amount > 0) {
    books_->by_user[owner.user] += amount;
    books_->by_job[{owner.user, owner.job}] += amount;
  }
  return Charge(books_, owner, amount);
}

void Ledger::change(Rules rules) {
  std::lock_guard lock(books_->mutex);
  books_->rules = std::move(rules);
}

Status Ledger::check(const Owner& owner, std::uint64_t amount) const {
  std::lock_guard lock(books_->mutex);
  return books_->check(owner.user, amount);
}

std::uint64_t Ledger::in_use() const {
  std::lock_guard lock(books_->mutex);
  return books_->used;
}

std::uint64_t Ledger::in_use_by(std::uint32_t user) const {
  std::lock_guard lock(books_->mutex);
  const auto found = books_->by_user.find(user);
  return found == books_->by_user.end() ? 0 : found->second;
}

std::vector<Ledger::Row> Ledger::rows() const {
  std::lock_guard lock(books_->mutex);
  std::vector<Row> rows;
  for (const auto& [key, amount] : books_->by_job) rows.push_back({{key.first, key.second}, amount});
  return rows;
}

}  // namespace tensorlane
