// Blocks of work on the thread that gives them.
#pragma once

#include <utility>

#include "daemon/ports/executor.h"

namespace tensorlane::ports {

// `reducer` outlives it.
class InlineExecutor final : public Executor {
 public:
  explicit InlineExecutor(Reducer& reducer) : reducer_(reducer) {}

  std::size_t capacity() const override { return 1; }
  void submit(Block& block) override {
    TL_ASSERT(done_ == nullptr);
    block.run(reducer_);
    done_ = &block;
  }
  Block* done() override { return std::exchange(done_, nullptr); }
  void finish() override {}

 private:
  Reducer& reducer_;
  Block* done_ = nullptr;
};

}  // namespace tensorlane::ports
