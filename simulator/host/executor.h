// The swarm's executor: blocks of work take time, on cores that differ, and end in any order.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "daemon/ports/executor.h"
#include "simulator/clock/event_queue.h"
#include "simulator/clock/random.h"
#include "simulator/host/reducer.h"

namespace tensorlane::simulator {

// With no workers a block is done at once, as ports::InlineExecutor does it. Else it is done when its time is over:
// what lies in its memory *then* is summed, so that a source that is given back too early makes a wrong sum.
class SimExecutor final : public ports::Executor {
 public:
  struct Context {
    EventQueue& events;
    std::size_t workers;
    Duration block_time;         // of a block, at most
    std::function<void()> done;  // one is done, later than in submit()
    std::function<void(const ports::Block&)> begins;
  };
  SimExecutor(Context context, Random random) : context_(std::move(context)), random_(random) {}

  // Blocks that are under way.
  const std::vector<ports::Block*>& under_way() const { return under_way_; }

  std::size_t capacity() const override { return std::max<std::size_t>(2 * context_.workers, 1); }
  void submit(ports::Block& block) override;
  ports::Block* done() override;
  void finish() override;

 private:
  void run(ports::Block& block);

  const Context context_;
  Random random_;
  ReferenceReducer reducer_;
  std::vector<ports::Block*> under_way_;
  std::deque<ports::Block*> done_;
};

}  // namespace tensorlane::simulator
