// Where blocks of arithmetic and copying are done: on the thread that gives them, or on others beside it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/assert.h"
#include "common/base/dtype.h"
#include "common/base/units.h"
#include "daemon/ports/reducer.h"

namespace tensorlane::ports {

// A bounded piece of work on memory that nobody else touches until it is done: sums and copies, one after the other.
// Plain pointers, so that any thread can do it. Whoever gives it derives from it what it wants to know when it is done.
class Block {
 public:
  // A sum of as many ranks as a host can have and a copy to each takes 64 steps and 127 sources. Batches of small
  // tensors take the rest: with less, more of a block's time would go into beginning and ending it.
  static constexpr std::size_t kMaxSources = 1024, kMaxSteps = 512;

  void clear() { steps_ = sources_ = 0; }
  bool empty() const { return steps_ == 0; }
  // Whether `steps` more with `sources` sources together fit.
  bool has_room(std::size_t steps, std::size_t sources) const {
    return steps_ + steps <= kMaxSteps && sources_ + sources <= kMaxSources;
  }
  // Adds a sum as Reducer::reduce() makes it; there is room. The caller fills in its sources, in order.
  std::span<ReduceSource> add_sum(std::byte* out, Dtype out_dtype, std::size_t sources, std::uint64_t elements,
                                  ReduceOp op, double divisor) {
    TL_ASSERT(sources > 0 && has_room(1, sources));
    all_[steps_++] = {out, elements, divisor, static_cast<std::uint32_t>(sources), out_dtype, op, false};
    sources_ += static_cast<std::uint32_t>(sources);
    return std::span(all_sources_).subspan(sources_ - sources, sources);
  }
  // Adds a copy between buffers that do not overlap; there is room.
  void add_copy(std::byte* out, const std::byte* source, std::uint64_t bytes) {
    TL_ASSERT(has_room(1, 1));
    all_[steps_++] = {out, bytes, 1, 1, Dtype::kUint8, ReduceOp::kSum, true};
    all_sources_[sources_++] = {source, Dtype::kUint8};
  }
  // Does it. One thread.
  void run(Reducer& reducer) const {
    std::span<const ReduceSource> left = std::span(all_sources_).first(sources_);
    for (const Step& step : std::span(all_).first(steps_)) {
      if (step.copies) {
        reducer.copy(step.out, left[0].data, step.elements);
      } else {
        reducer.reduce(step.out, step.out_dtype, left.first(step.sources), step.elements, step.op, step.divisor);
      }
      left = left.subspan(step.sources);
    }
  }

 private:
  struct Step {
    std::byte* out = nullptr;
    std::uint64_t elements = 0;
    double divisor = 1;
    std::uint32_t sources = 0;
    Dtype out_dtype{};
    ReduceOp op{};
    bool copies = false;
  };
  std::uint32_t steps_ = 0, sources_ = 0;
  std::array<Step, kMaxSteps> all_;
  std::array<ReduceSource, kMaxSources> all_sources_;
};

// One thread calls it. A block belongs to the executor from submit() until done() has returned it.
class Executor {
 public:
  virtual ~Executor() = default;
  // How many blocks may be under way at once; at least 1. Few more than are done at the same time: the later a block is
  // chosen, the more is known of what is urgent.
  virtual std::size_t capacity() const = 0;
  // Begins a block; fewer than capacity() are under way.
  virtual void submit(Block& block) = 0;
  // One that is done, or null when there is none now. In any order.
  virtual Block* done() = 0;
  // Waits until all that is under way is done; done() returns it.
  virtual void finish() = 0;
  // Processor time of the executor's own threads.
  virtual Duration cpu_time() const { return {}; }

  // For whoever sleeps until something is done: a descriptor to watch edge-triggered, which is never read, or -1 where
  // nothing is ever under way between two calls. arm() asks for a wake-up and returns false when something is done
  // already; after disarm() nobody is woken any more.
  virtual int wake_fd() const { return -1; }
  virtual bool arm() { return true; }
  virtual void disarm() {}
};

}  // namespace tensorlane::ports
