// The last spans of one lane: a ring that its lane overwrites and others read while it does.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "daemon/ports/telemetry.h"

namespace tensorlane::telemetry {

class SpanRing {
 public:
  static constexpr std::size_t kSpanBytes = 56;

  // Of so many spans, at least 1; all memory is there when this returns.
  explicit SpanRing(std::size_t capacity)
      : capacity_(capacity), words_(std::make_unique<std::atomic<std::uint64_t>[]>(capacity * kWords)) {}

  // One thread. A span costs a lane these stores and nothing else: no lock, no allocation, no system call.
  void push(const ports::TraceSpan& span) {
    const std::uint64_t written = written_.load(std::memory_order_relaxed);
    std::atomic<std::uint64_t>* const place = words_.get() + next_ * kWords;
    next_ = next_ + 1 == capacity_ ? 0 : next_ + 1;
    // Who sees a word of this span sees that the one in its place has gone (read).
    std::atomic_thread_fence(std::memory_order_release);
    const Words words = pack(span);
    for (std::size_t i = 0; i < kWords; ++i) place[i].store(words[i], std::memory_order_relaxed);
    written_.store(written + 1, std::memory_order_release);
  }

  std::size_t capacity() const { return capacity_; }
  std::uint64_t written() const { return written_.load(std::memory_order_acquire); }

  // Any thread. Copies spans to `out`, from number `*at` on (the first one ever is 0), and moves `*at` behind them.
  // Returns how many. What has been overwritten is passed over and added to `*lost`. 0: there are no more now.
  std::size_t read(std::uint64_t* at, std::span<ports::TraceSpan> out, std::uint64_t* lost) const {
    while (true) {
      const std::uint64_t written = this->written();
      pass_over(written, at, lost);
      const std::uint64_t begin = *at;
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(written - begin, out.size()));
      for (std::size_t i = 0; i < count; ++i) out[i] = copy(begin + i);
      if (count == 0) return 0;
      // What was overwritten meanwhile may be torn.
      std::atomic_thread_fence(std::memory_order_acquire);
      pass_over(written_.load(std::memory_order_relaxed), at, lost);
      const auto torn = static_cast<std::size_t>(std::min<std::uint64_t>(*at - begin, count));
      if (torn == count) continue;
      std::move(out.begin() + static_cast<std::ptrdiff_t>(torn), out.begin() + static_cast<std::ptrdiff_t>(count),
                out.begin());
      *at = begin + count;
      return count - torn;
    }
  }

 private:
  static constexpr std::size_t kWords = kSpanBytes / sizeof(std::uint64_t);
  using Words = std::array<std::uint64_t, kWords>;
  static constexpr std::uint64_t kMaxLength = (std::uint64_t{1} << 48) - 1;  // 78 hours

  static Words pack(const ports::TraceSpan& s) {
    const auto length = static_cast<std::uint64_t>(s.length.value < 0 ? 0 : s.length.value);
    return {static_cast<std::uint64_t>(s.begin.value),
            s.job.value,
            std::min(length, kMaxLength) | (std::uint64_t{s.peer.value} << 48),
            s.tensor.value | (s.sequence.value << 32),
            s.grant | (std::uint64_t{s.offset} << 32),
            s.bytes | (std::uint64_t{s.slice} << 32),
            s.cls.value | (static_cast<std::uint64_t>(s.phase) << 8) | (std::uint64_t{s.rail.value} << 16) |
                (std::uint64_t{s.eager} << 24) | ((s.sequence.value >> 32) << 32)};
  }
  static ports::TraceSpan unpack(const Words& w) {
    const auto low = [](std::uint64_t word) { return static_cast<std::uint32_t>(word); };
    const auto high = [](std::uint64_t word) { return static_cast<std::uint32_t>(word >> 32); };
    return {.begin = Time(static_cast<std::int64_t>(w[0])),
            .length = Duration(static_cast<std::int64_t>(w[2] & kMaxLength)),
            .job = JobId(w[1]),
            .tensor = TensorId(low(w[3])),
            .sequence = Sequence(std::uint64_t{high(w[3])} | (std::uint64_t{high(w[6])} << 32)),
            .cls = ClassId(static_cast<std::uint8_t>(w[6])),
            .phase = static_cast<ports::TraceSpan::Phase>(static_cast<std::uint8_t>(w[6] >> 8)),
            .peer = HostIndex(static_cast<std::uint16_t>(w[2] >> 48)),
            .bytes = low(w[5]),
            .slice = high(w[5]),
            .grant = low(w[4]),
            .offset = high(w[4]),
            .rail = RailIndex(static_cast<std::uint8_t>(w[6] >> 16)),
            .eager = ((w[6] >> 24) & 1) != 0};
  }
  ports::TraceSpan copy(std::uint64_t number) const {
    const std::atomic<std::uint64_t>* const place = words_.get() + number % capacity_ * kWords;
    Words words;
    for (std::size_t i = 0; i < kWords; ++i) words[i] = place[i].load(std::memory_order_relaxed);
    return unpack(words);
  }
  // The oldest that is whole: the lane may be writing number `written`, in the place of the one before that.
  void pass_over(std::uint64_t written, std::uint64_t* at, std::uint64_t* lost) const {
    const std::uint64_t oldest = written < capacity_ ? 0 : written - capacity_ + 1;
    if (*at >= oldest) return;
    *lost += oldest - *at;
    *at = oldest;
  }

  const std::size_t capacity_;
  const std::unique_ptr<std::atomic<std::uint64_t>[]> words_;
  std::size_t next_ = 0;  // the lane's
  std::atomic<std::uint64_t> written_{0};
};

}  // namespace tensorlane::telemetry
