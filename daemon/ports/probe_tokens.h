// Which probes of `tensorlane verify` the listeners of data ports answer.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>

#include "common/base/units.h"

namespace tensorlane::ports {

// Tokens that daemons of the fabric have told this one over the control plane. Any thread; a lane asks once for each
// connection that begins as a probe.
class ProbeTokens {
 public:
  using Token = std::array<std::uint8_t, 16>;
  static constexpr std::size_t kMaxTokens = 16;

  // Probes that carry the token are answered until then, so many at most. Of too many tokens the one that ends first
  // goes.
  void allow(const Token& token, Time until, std::uint64_t answers) {
    const std::lock_guard lock(mutex_);
    while (!tokens_.contains(token) && tokens_.size() >= kMaxTokens) {
      auto first = tokens_.begin();
      for (auto it = tokens_.begin(); it != tokens_.end(); ++it)
        if (it->second.until < first->second.until) first = it;
      tokens_.erase(first);
    }
    tokens_[token] = {until, answers};
  }
  void forget(const Token& token) {
    const std::lock_guard lock(mutex_);
    tokens_.erase(token);
  }
  // Whether to answer one more.
  bool take(const Token& token, Time now) {
    const std::lock_guard lock(mutex_);
    const auto found = tokens_.find(token);
    if (found == tokens_.end() || now >= found->second.until || found->second.answers == 0) return false;
    --found->second.answers;
    ++answered_;
    return true;
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
  };
  mutable std::mutex mutex_;
  std::map<Token, Right> tokens_;
  std::uint64_t answered_ = 0;
};

}  // namespace tensorlane::ports
