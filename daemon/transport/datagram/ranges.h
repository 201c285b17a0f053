// Sets of numbers as ranges: bytes of a stream that have come, packets that were received. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace tensorlane::datagram {

// [begin, end)
struct Range {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t length() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Ranges in ascending order, of which no two touch. Memory grows to the most ranges there ever were, and stays.
class RangeSet {
 public:
  RangeSet() { ranges_.reserve(kFirst); }

  void add(Range range) {
    if (range.begin >= range.end) return;
    const auto first = std::ranges::lower_bound(ranges_, range.begin, {}, &Range::end);  // touches it, or lies behind
    auto last = first;
    for (; last != ranges_.end() && last->begin <= range.end; ++last) {
      range.begin = std::min(range.begin, last->begin);
      range.end = std::max(range.end, last->end);
    }
    if (first == last) {
      ranges_.insert(first, range);
    } else {
      *first = range;
      ranges_.erase(first + 1, last);
    }
  }

  void remove(Range range) {
    if (range.begin >= range.end) return;
    for (std::size_t i = 0; i < ranges_.size();) {
      const Range old = ranges_[i];
      if (old.end <= range.begin || old.begin >= range.end) {
        ++i;
        continue;
      }
      const Range before{old.begin, std::min(old.end, range.begin)}, behind{std::max(old.begin, range.end), old.end};
      const bool keeps_before = before.begin < before.end, keeps_behind = behind.begin < behind.end;
      if (keeps_before) ranges_[i++] = before;
      if (keeps_behind && keeps_before)
        ranges_.insert(ranges_.begin() + static_cast<std::ptrdiff_t>(i++), behind);
      else if (keeps_behind)
        ranges_[i++] = behind;
      else if (!keeps_before)
        ranges_.erase(ranges_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  bool contains(std::uint64_t number) const {
    const auto found = std::ranges::upper_bound(ranges_, number, {}, &Range::end);
    return found != ranges_.end() && found->begin <= number;
  }
  // The first of `range` that is not in the set; range.end where all are.
  std::uint64_t first_missing(Range range) const {
    const auto found = std::ranges::upper_bound(ranges_, range.begin, {}, &Range::end);
    if (found == ranges_.end() || found->begin > range.begin) return range.begin;
    return std::min(found->end, range.end);
  }
  // The part of [from, end) up to the next number that is in the set.
  Range gap(std::uint64_t from, std::uint64_t end) const {
    const std::uint64_t begin = first_missing({from, end});
    const auto next = std::ranges::lower_bound(ranges_, begin, {}, &Range::begin);
    return {begin, next == ranges_.end() ? end : std::min(end, next->begin)};
  }

  bool empty() const { return ranges_.empty(); }
  std::span<const Range> ranges() const { return ranges_; }
  // The lowest ranges go until at most so many are left.
  void keep_last(std::size_t count) {
    if (ranges_.size() > count) ranges_.erase(ranges_.begin(), ranges_.end() - static_cast<std::ptrdiff_t>(count));
  }

 private:
  static constexpr std::size_t kFirst = 128;

  std::vector<Range> ranges_;
};

}  // namespace tensorlane::datagram
