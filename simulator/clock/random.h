// Random numbers that are the same on every machine and compiler: nothing of <random> is used, whose distributions may
// differ.
#pragma once

#include <cstdint>

#include "common/base/assert.h"
#include "common/base/units.h"

namespace tensorlane::simulator {

// SplitMix64 (Steele, Lea, Flood 2014): turns a counter into well mixed bits. Used for seeding and for stateless
// values.
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// xoshiro256** (Blackman, Vigna 2018). One thread.
class Random {
 public:
  explicit Random(std::uint64_t seed) {
    for (std::uint64_t& s : state_) s = seed = mix(seed);
  }

  std::uint64_t next() {
    const std::uint64_t result = rotate(state_[1] * 5, 7) * 9;
    const std::uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = rotate(state_[3], 45);
    return result;
  }
  // In [0, n); n > 0. The bias of the multiplication is below n / 2^64.
  std::uint64_t below(std::uint64_t n) {
    TL_ASSERT(n > 0);
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(next()) * n) >> 64);
  }
  // In [low, high].
  std::uint64_t between(std::uint64_t low, std::uint64_t high) { return low + below(high - low + 1); }
  Duration between(Duration low, Duration high) {
    return Duration(static_cast<std::int64_t>(
        between(static_cast<std::uint64_t>(low.value), static_cast<std::uint64_t>(high.value))));
  }
  bool chance(double probability) { return static_cast<double>(next() >> 11) * 0x1p-53 < probability; }
  // A stream of its own, so that drawing more in one place does not change what another place draws.
  Random fork(std::uint64_t stream) { return Random(next() ^ mix(stream)); }

 private:
  static constexpr std::uint64_t rotate(std::uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }
  std::uint64_t state_[4];
};

}  // namespace tensorlane::simulator
