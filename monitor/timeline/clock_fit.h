// How far the clocks of hosts are apart, from when transport operations left and arrived.
//
// An operation from A to B takes some time that is not negative. So what B's clock is ahead of A's is at most the least
// of (received - sent) over all operations from A to B, and at least minus the least of those from B to A. These bounds
// add up along chains of hosts. An offset is the middle between a host's bounds, and its error half their distance; of
// two hosts that is (min(A to B) - min(B to A)) / 2, and half the sum. By such offsets nothing arrives before it left.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tensorlane::timeline {

// What tells a transport operation from all others: a hash of what both ends say of it.
struct OperationKey {
  std::uint64_t first = 0, second = 0;
  bool operator==(const OperationKey&) const = default;
};
struct OperationKeyHash {
  std::size_t operator()(const OperationKey& key) const { return key.first; }
};

struct Offset {
  bool matched = false;          // else nothing is known, and offset and error are 0
  std::size_t reference = 0;     // the clock that this one was compared with
  std::int64_t offset = 0;       // nanoseconds that it is ahead of the reference
  std::int64_t error = 0;        // nanoseconds by which the offset may be wrong
  std::uint64_t operations = 0;  // that both ends told of, to or from this host
};

// Memory is bounded: beyond kMostKept operations it goes on with every second one, then with every fourth, and so on.
class ClockFit {
 public:
  static constexpr std::size_t kMostKept = std::size_t{1} << 17;

  // One end of an operation, by this clock.
  void add(const OperationKey& key, bool sent, std::size_t clock, std::int64_t time);
  // Of so many clocks. A reference has offset and error 0; there are several where no operations join some hosts.
  std::vector<Offset> fit(std::size_t clocks);
  // Of how many operations one was looked at.
  std::uint64_t one_in() const { return mask_ + 1; }
  // After fit(): more than 0 where no offsets agree with all operations, because the clocks have moved against each
  // other meanwhile: so many nanoseconds an operation may seem to arrive too early.
  std::int64_t moved() const { return moved_; }

 private:
  struct End {
    bool known = false, doubtful = false;
    std::uint32_t clock = 0;
    std::int64_t time = 0;
  };
  struct Operation {
    std::array<End, 2> ends;  // received, sent
  };
  using Bounds = std::map<std::pair<std::size_t, std::size_t>, std::int64_t>;  // (from, to): the least difference

  void thin();
  Bounds bounds(std::vector<Offset>* offsets) const;

  std::unordered_map<OperationKey, Operation, OperationKeyHash> kept_;
  std::uint64_t mask_ = 0;  // of `second`: those bits are 0 in what is kept
  std::int64_t moved_ = 0;
};

}  // namespace tensorlane::timeline
