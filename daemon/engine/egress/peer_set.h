// A set of hosts that finds its next member in round-robin order.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "common/base/units.h"

namespace tensorlane::engine {

class PeerSet {
 public:
  explicit PeerSet(std::uint16_t hosts) : words_((hosts + 63u) / 64) {}

  void insert(HostIndex host) { words_[host.value / 64] |= bit(host); }
  void erase(HostIndex host) { words_[host.value / 64] &= ~bit(host); }
  bool contains(HostIndex host) const { return (words_[host.value / 64] & bit(host)) != 0; }
  bool empty() const {
    for (std::uint64_t word : words_) {
      if (word != 0) return false;
    }
    return true;
  }
  // The first member behind `after`, going round; `after` itself comes last. False when the set is empty.
  bool next(HostIndex after, HostIndex* found) const {
    const std::size_t n = words_.size();
    const std::size_t start = after.value / 64;
    const std::uint64_t up_to_after = after.value % 64 == 63 ? ~std::uint64_t{0} : (bit(after) << 1) - 1;
    for (std::size_t i = 0; i <= n; ++i) {
      const std::size_t w = (start + i) % n;
      std::uint64_t word = words_[w];
      if (i == 0) word &= ~up_to_after;
      if (i == n) word &= up_to_after;
      if (word == 0) continue;
      *found = HostIndex(static_cast<std::uint16_t>(w * 64 + static_cast<std::size_t>(std::countr_zero(word))));
      return true;
    }
    return false;
  }

 private:
  static std::uint64_t bit(HostIndex host) { return std::uint64_t{1} << host.value % 64; }
  std::vector<std::uint64_t> words_;
};

}  // namespace tensorlane::engine
