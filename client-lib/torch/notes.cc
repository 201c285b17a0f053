#include "client-lib/torch/notes.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>

#include "client-lib/torch/executor.h"

namespace tensorlane::torch_backend {

// The thread's, too, which ends when there is nothing to do.
struct Notes::Shared {
  const c10::intrusive_ptr<c10d::Store> store;
  std::mutex mutex;
  std::deque<Use> uses;
  bool runs = false, hangs = false;
};

Notes::Notes(c10::intrusive_ptr<c10d::Store> store) : shared_(std::make_shared<Shared>(std::move(store))) {}

// What is under way goes on until the store answers; what has not begun is lost.
Notes::~Notes() {
  std::deque<Use> lost;
  std::lock_guard lock(shared_->mutex);
  lost.swap(shared_->uses);
}

void Notes::post(Use use) {
  std::lock_guard lock(shared_->mutex);
  if (shared_->uses.size() >= kMostAhead) return;
  if (!shared_->runs) shared_->runs = detach([shared = shared_] { run(shared); });
  if (shared_->runs) shared_->uses.push_back(std::move(use));
}

bool Notes::hangs() const {
  std::lock_guard lock(shared_->mutex);
  return shared_->hangs;
}

void Notes::set_hangs() {
  std::lock_guard lock(shared_->mutex);
  shared_->hangs = shared_->runs;
}

void Notes::settle(std::chrono::milliseconds most) {
  {
    std::lock_guard lock(shared_->mutex);
    if (!shared_->runs) return;
  }
  (void)ask_for<bool>(most, [](c10d::Store&) { return true; });
}

void Notes::run(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  while (!shared->uses.empty()) {
    {
      const Use use = std::move(shared->uses.front());
      shared->uses.pop_front();
      lock.unlock();
      try {
        use(*shared->store);
      } catch (const std::exception&) {
        // The store has ended, or somebody has taken back what was there.
      }
    }
    lock.lock();
    shared->hangs = false;
  }
  shared->runs = false;
}

}  // namespace tensorlane::torch_backend
