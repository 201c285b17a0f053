// Blocks of work on threads of their own, so that the lane goes on receiving and sending while they add.
#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/crossing.h"
#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/ports/executor.h"
#include "daemon/reduce/work_queue.h"

namespace tensorlane::reduce {

// Each thread has its own queue of two blocks: the one that it does, and the next, which it finds when it is done. So
// what is most urgent waits for at most two blocks, as it waits for one where the lane does them. Neither a lock nor a
// system call between the giving thread and a worker that is awake.
class Workers final : public ports::Executor {
 public:
  static constexpr std::size_t kMaxThreads = 64;

  // `threads`: 1 to kMaxThreads. A worker with nothing to do polls for `spin` before it sleeps, and no longer than a
  // quarter of the time (law 17). `reducer` outlives it. Errors: kResourceExhausted (threads, descriptors).
  static Result<std::unique_ptr<Workers>> create(ports::Reducer& reducer, std::size_t threads, Duration spin);
  ~Workers() override;

  std::size_t capacity() const override { return WorkQueue<ports::Block>::kDepth * workers_.size(); }
  void submit(ports::Block& block) override;
  ports::Block* done() override;
  void finish() override;
  Duration cpu_time() const override;
  int wake_fd() const override { return event_; }
  bool arm() override;
  void disarm() override;

 private:
  struct alignas(64) Worker {
    WorkQueue<ports::Block> queue;  // null: end
    std::thread thread;
  };

  Workers(ports::Reducer& reducer, Duration spin) : reducer_(reducer), spin_(spin) {}
  Status open(std::size_t threads);
  void run(Worker& worker);

  ports::Reducer& reducer_;
  const Duration spin_;
  int event_ = -1;
  Bell bell_;  // the giving thread's
  std::vector<std::unique_ptr<Worker>> workers_;
  std::size_t next_ = 0;  // whose queue done() looks at first
};

// What a host is given: Workers, or with 0 threads a ports::InlineExecutor. Errors as Workers::create().
Result<std::unique_ptr<ports::Executor>> make_executor(ports::Reducer& reducer, std::size_t threads, Duration spin);

}  // namespace tensorlane::reduce
