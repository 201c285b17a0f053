#include "simulator/host/executor.h"

#include <algorithm>

#include "common/base/assert.h"

namespace tensorlane::simulator {

void SimExecutor::submit(ports::Block& block) {
  TL_ASSERT(under_way_.size() + done_.size() < capacity());
  under_way_.push_back(&block);
  context_.begins(block);
  if (context_.workers == 0) return run(block);
  context_.events.after(random_.between(Duration(0), context_.block_time), [this, &block] {
    if (std::ranges::find(under_way_, &block) == under_way_.end()) return;  // finish() was faster
    run(block);
    context_.done();
  });
}

ports::Block* SimExecutor::done() {
  if (done_.empty()) return nullptr;
  ports::Block* block = done_.front();
  done_.pop_front();
  return block;
}

void SimExecutor::finish() {
  while (!under_way_.empty()) run(*under_way_.front());
}

void SimExecutor::run(ports::Block& block) {
  block.run(reducer_);
  std::erase(under_way_, &block);
  done_.push_back(&block);
}

}  // namespace tensorlane::simulator
