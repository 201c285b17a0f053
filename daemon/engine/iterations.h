// Which iteration of training an operation belongs to, as this host sees it: older ones go first inside a class (law
// 9).
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/units.h"

namespace tensorlane::engine {

using Iteration = Strong<struct IterationTag, std::uint64_t>;

// A tensor's own count of operations would not do: one that is registered late, or used now and then, is behind for
// ever, and one that is used several times in an iteration runs ahead. So the job has a count, and what begins takes
// part in it. The next iteration is the current one from when more than half as many tensors have begun in it; until
// then what begins again belongs to it already, and what begins twice more to the one after.
//
// A local order, which shapes no sums (law 1). Nothing is allocated; the same calls give the same answers.
class Iterations {
 public:
  // An operation on a tensor begins; the one before on it was of iteration `last`, 0 when this is its first one. Never
  // less than `last`.
  Iteration begin(Iteration last) {
    if (last.value > current_ + 1) return last;  // counted already
    if (last.value == current_ + 1) {
      ++beyond_;
      if (kFew * beyond_ > size()) advance();
      return Iteration(last.value + 1);
    }
    // Who was not here lately, or never, takes part in the newest iteration: else it would go before all of it.
    const bool behind = current_ > 1 && (last.value == 0 || last.value + 1 < current_);
    const bool begun = kFew * in_next_ > size();
    const Iteration of(last.value == current_ || (behind && begun) ? current_ + 1 : current_);
    ++(of.value > current_ ? in_next_ : in_current_);
    if (2 * in_next_ > size()) advance();
    return of;
  }

 private:
  // A quarter of the tensors has begun in the next iteration: so it has begun. A quarter is two iterations ahead: so
  // the others came only once, as in a broadcast before training, and are not awaited.
  static constexpr std::uint64_t kFew = 4;
  std::uint64_t size() const { return std::max(in_current_, before_); }
  void advance() {
    ++current_;
    before_ = in_current_;
    in_current_ = in_next_;
    in_next_ = beyond_;
    beyond_ = 0;
  }

  std::uint64_t current_ = 1;
  // Tensors that have begun in the one before, in it, in the next, and in the one after that.
  std::uint64_t before_ = 0, in_current_ = 0, in_next_ = 0, beyond_ = 0;
};

}  // namespace tensorlane::engine
