// Which probes of `tensorlane verify` the listeners of data ports answer, or hand over to who does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "common/base/units.h"

namespace tensorlane::ports {

// Tokens that daemons of the fabric have told this one over the control plane. Any thread; a lane asks once for each
// connection that begins as a probe.
class ProbeTokens {
 public:
  using Token = std::array<std::uint8_t, 16>;
  static constexpr std::size_t kMaxTokens = 16;

  // Takes a connection over that is more than one answer: a socket, which stays the caller's, and what it has said
  // first. Called by a lane, under the lock of this object: it must not block. False: it does not take it.
  using TakeOver = std::function<bool(int socket, std::span<const std::byte> hello)>;

  // Probes that carry the token are answered until then, so many at most. Of too many tokens the one that ends first
  // goes.
  void allow(const Token& token, Time until, std::uint64_t answers, TakeOver take_over = {}) {
    const std::lock_guard lock(mutex_);
    while (!tokens_.contains(token) && tokens_.size() >= kMaxTokens) {
      auto first = tokens_.begin();
      for (auto it = tokens_.begin(); it != tokens_.end(); ++it)
        if (it->second.until < first->second.until) first = it;
      tokens_.erase(first);
    }
    tokens_[token] = {until, answers, std::move(take_over)};
  }
  // Nothing is handed over for the token afterwards.
  void forget(const Token& token) {
    const std::lock_guard lock(mutex_);
    tokens_.erase(token);
  }
  // Whether to answer one more.
  bool take(const Token& token, Time now) {
    const std::lock_guard lock(mutex_);
    Right* const right = find(token, now);
    if (right != nullptr) count(*right);
    return right != nullptr;
  }
  // One that is to be taken over: an answer more where it is. kNobody: the token is known, and nobody takes it now.
  enum class Handed : std::uint8_t { kTaken, kUnknown, kNobody };
  Handed hand_over(const Token& token, Time now, int socket, std::span<const std::byte> hello) {
    const std::lock_guard lock(mutex_);
    Right* const right = find(token, now);
    if (right == nullptr) return Handed::kUnknown;
    if (!right->take_over || !right->take_over(socket, hello)) return Handed::kNobody;
    count(*right);
    return Handed::kTaken;
  }
  // Since the start.
  std::uint64_t answered() const {
    const std::lock_guard lock(mutex_);
    return answered_;
  }

 private:
  struct Right {
    Time until;
    std::uint64_t answers = 0;
    TakeOver take_over;
  };

  // Null: it is not answered.
  Right* find(const Token& token, Time now) {
    const auto found = tokens_.find(token);
    const bool good = found != tokens_.end() && now < found->second.until && found->second.answers > 0;
    return good ? &found->second : nullptr;
  }
  void count(Right& right) {
    --right.answers;
    ++answered_;
  }

  mutable std::mutex mutex_;
  std::map<Token, Right> tokens_;
  std::uint64_t answered_ = 0;
};

}  // namespace tensorlane::ports
