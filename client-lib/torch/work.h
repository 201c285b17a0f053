// One operation under way.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "tensorlane/tensorlane.h"

namespace tensorlane::torch_backend {

class Group;

// What a rank calls: ranks that call something else at the same place in the order are told so.
struct Description {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* name = "";
  std::uint64_t count = 0;  // elements that must be the same on all ranks, 0: none have to
  at::ScalarType dtype = at::ScalarType::Undefined;
  const char* op = nullptr;  // the reduction
  int root = -1;
  int peer = -1, tag = 0;      // of a message
  std::uint64_t sequence = 0;  // of the group's collectives, from 1; 0: point to point

  std::string text() const;  // "all_reduce of 4 float (sum)"
  bool is_message() const {
    return type == c10d::OpType::SEND || type == c10d::OpType::RECV || type == c10d::OpType::RECVANYSOURCE;
  }
};

// Waited for from any thread. While nobody waits and nobody has asked for a future, nothing runs for it: a thread that
// waits does so in the C interface itself, which costs no change of threads. Group::watch() sees to the others.
class OperationWork final : public c10d::Work {
 public:
  using Clock = std::chrono::steady_clock;

  // `inputs` are what torch's profiler is told. `kept` lives until the operation is done. `results` are the value of
  // the future. `after` runs once when the operation has succeeded, before anybody is told, on whichever thread finds
  // out; it brings results to their places.
  OperationWork(std::shared_ptr<Group> group, Description description, std::chrono::milliseconds timeout,
                const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> kept, std::vector<at::Tensor> results,
                std::function<void()> after);

  // Where the C interface writes who has sent a message from any source, until the request is over.
  int* source() { return &source_; }
  // By the group, before it is shared: it is done in steps by the worker, which completes it.
  void set_steps() { in_steps_ = true; }
  // By the group, once: this request of the C interface, which belongs to the work now.
  void set_request(tl_request_t* request);
  // The operation is over. Empty: it has succeeded. Only the first call counts. Runs callbacks of the future.
  void complete(const std::string& error);
  // complete() on a thread that runs callbacks. The C interface is done with the memory.
  void complete_soon(const std::string& error);
  // Lets a thread of the library complete it. Where a thread waits for it, that will, unless it stops waiting before.
  void arm();
  // As arm(), where no thread waits for it.
  void arm_if_nobody_waits();
  // It has failed, whatever the C interface says later. Whoever waits is told within 100 ms, of steps when
  // the one under way has ended. The memory is kept until the C interface is done with it.
  void give_up(const std::string& error);

  const Description& description() const { return description_; }
  Clock::time_point begun() const { return begun_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return description_.sequence; }

 private:
  // Who finds out that it is done. kNobody: whoever comes first. kElsewhere: its group calls complete().
  enum class Owner : std::uint8_t { kNobody, kWaiter, kLibrary, kElsewhere };

  void wait_in_library(std::unique_lock<std::mutex>& lock, double seconds);
  void arm_locked(std::unique_lock<std::mutex>& lock);
  void leave_to_library_locked(std::unique_lock<std::mutex>& lock);
  // complete_soon() with the error that a thread that runs callbacks finds out.
  void complete_by(std::function<std::string()> error);
  static void on_done(tl_status_t status, void* work);

  const std::shared_ptr<Group> group_;
  const Description description_;
  const std::chrono::milliseconds timeout_;
  const Clock::time_point begun_ = Clock::now();
  std::vector<at::Tensor> kept_, results_;
  std::function<void()> after_;

  std::mutex owner_mutex_;  // of what follows; never held in a call that waits, or that runs callbacks
  std::condition_variable owner_changed_;
  Owner owner_ = Owner::kElsewhere;
  bool wants_arming_ = false, in_steps_ = false;
  bool completing_ = false, told_ = false;  // complete() has begun; it has told whoever had asked
  std::string given_up_;                    // why
  bool keeps_ = false;                      // the memory, until on_done()
  int source_ = -1;
  tl_request_t* request_ = nullptr;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace tensorlane::torch_backend
