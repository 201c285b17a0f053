// TicTac's enforcement of an order at the sender (section 5.1): a counter per receiver and iteration lets transfer
// number k go only when the k transfers before it have been handed to the transport.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/assert.h"

namespace tensorlane::engine {

// For one sender, whose transfers of an iteration are numbered 0 to n - 1 (sequence_of()) for every receiver. Allocates
// in its constructor only. One thread.
class SenderCounters {
 public:
  SenderCounters(std::uint32_t receivers, std::uint32_t transfers)
      : transfers_(transfers),
        words_((static_cast<std::size_t>(transfers) + 63) / 64),
        next_(receivers, 0),
        waiting_(receivers * words_, 0) {}

  // Transfer `number` for `receiver` is ready. Calls hand_over(k) for every transfer that may go now, in order: none
  // while an earlier one is missing, else this one and those that waited for it. After the last one of an iteration the
  // counter is back at 0, for the next iteration. Each transfer is ready once per iteration; a transfer of the next
  // iteration is ready only when all of this one are (TicTac's iterations are synchronized).
  template <typename HandOver>
  void ready(std::uint32_t receiver, std::uint32_t number, HandOver&& hand_over) {
    TL_ASSERT(receiver < next_.size() && number < transfers_);
    std::uint32_t& next = next_[receiver];
    TL_ASSERT(number >= next && !test(receiver, number));
    bit_word(receiver, number) |= bit(number);
    while (next < transfers_ && test(receiver, next)) {
      bit_word(receiver, next) &= ~bit(next);
      hand_over(next++);
    }
    if (next == transfers_) next = 0;
  }

  // How many transfers of this iteration `receiver` has been handed.
  std::uint32_t counter(std::uint32_t receiver) const { return next_[receiver]; }

 private:
  static std::uint64_t bit(std::uint32_t number) { return std::uint64_t{1} << (number % 64); }
  std::uint64_t& bit_word(std::uint32_t receiver, std::uint32_t number) {
    return waiting_[receiver * words_ + number / 64];
  }
  bool test(std::uint32_t receiver, std::uint32_t number) { return (bit_word(receiver, number) & bit(number)) != 0; }

  std::uint32_t transfers_;
  std::size_t words_;                   // per receiver
  std::vector<std::uint32_t> next_;     // by receiver: the counter
  std::vector<std::uint64_t> waiting_;  // by receiver, a bit per transfer that is ready too early
};

}  // namespace tensorlane::engine
