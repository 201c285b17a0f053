#include "daemon/transport/dpdk/port/neighbours.h"

#include <fmt/format.h>

#include <algorithm>

namespace tensorlane::dpdk {
namespace {

constexpr std::size_t kLooks = 64;  // entries that one call looks at
constexpr Duration kRound = milliseconds(1), kFirst = milliseconds(100), kLongest = seconds(5), kFresh = seconds(30),
                   kAnswerTime = seconds(1);
constexpr std::uint8_t kAskedAlone = 3;

Duration pause_after(std::uint8_t asked) {
  return Duration(std::min(kFirst.value << std::min<int>(asked - 1, 6), kLongest.value));
}

}  // namespace

// A question counts as one byte.
Neighbours::Neighbours(const Limits& limits)
    : limits_(limits),
      rate_({.rate = BitsPerSecond(std::uint64_t{limits.questions_per_second} * 8), .burst = Bytes(32)}) {}

void Neighbours::add_static(const IpAddress& address, const MacAddress& mac) {
  TL_ASSERT(!by_address_.contains(address));
  by_address_.emplace(address, static_cast<Index>(entries_.size()));
  entries_.push_back({.address = address, .mac = mac, .is_static = true, .known = true});
}

Result<Neighbours::Index> Neighbours::want(const IpAddress& address) {
  if (const auto found = by_address_.find(address); found != by_address_.end()) {
    ++entries_[found->second].users;
    return found->second;
  }
  if (by_address_.size() >= limits_.entries)
    return Status(Code::kResourceExhausted, fmt::format("there are {} neighbours, and no more may be", limits_.entries),
                  to_string(address), "run fewer jobs on the port at a time, or spread them over rails");
  Index index = static_cast<Index>(entries_.size());
  if (free_.empty()) {
    entries_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  entries_[index] = {.address = address, .users = 1};
  by_address_.emplace(address, index);
  next_round_ = Time{};
  return index;
}

void Neighbours::release(Index index) {
  Entry& entry = entries_[index];
  TL_ASSERT(entry.users > 0);
  if (--entry.users > 0 || entry.is_static) return;
  by_address_.erase(entry.address);
  entry = {};
  free_.push_back(index);
}

bool Neighbours::confirm(Time now, const IpAddress& address, const MacAddress& mac) {
  const auto found = by_address_.find(address);
  if (found == by_address_.end()) return false;
  Entry& entry = entries_[found->second];
  if (entry.is_static || !entry.open || now - entry.asked_at > kAnswerTime) return false;
  // Only this one was asked, and nobody else has heard the question.
  if (entry.known && entry.asked <= kAskedAlone && mac != entry.mac) return false;
  entry.open = false;
  entry.known = true;
  entry.mac = mac;
  entry.asked = 0;
  entry.next = now + kFresh;
  return true;
}

std::optional<Neighbours::Question> Neighbours::next_question(Time now) {
  if (now < next_round_ || entries_.empty() || rate_.empty(now)) return std::nullopt;
  for (std::size_t looks = 0; looks < kLooks; ++looks) {
    if (looked_ >= entries_.size()) {
      looked_ = 0;
      next_round_ = now + kRound;
      return std::nullopt;
    }
    ++looked_;
    at_ = at_ + 1 < entries_.size() ? at_ + 1 : 0;
    Entry& entry = entries_[at_];
    if (entry.is_static || entry.users == 0 || now < entry.next) continue;
    rate_.take(now, Bytes(1));
    entry.open = true;
    entry.asked = static_cast<std::uint8_t>(std::min(entry.asked + 1, 255));
    entry.asked_at = now;
    entry.next = now + (entry.known && entry.asked <= kAskedAlone ? kAnswerTime : pause_after(entry.asked));
    return Question{entry.address, entry.known && entry.asked <= kAskedAlone ? std::optional(entry.mac) : std::nullopt};
  }
  return std::nullopt;
}

}  // namespace tensorlane::dpdk
