// The completions of one class: an owned queue that is polled without a system call and armed only before blocking.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "common/base/status.h"
#include "daemon/transport/rdma/device.h"

namespace tensorlane::rdma {

// Completions handled in one poll of one class, before others get their turn.
inline constexpr std::size_t kCompletionsPerPoll = 64;

// One thread.
class CompletionQueue {
 public:
  // Events go to `channel`, with this object as their context. Errors: kResourceExhausted.
  static Result<std::unique_ptr<CompletionQueue>> create(Device& device, ibv_comp_channel* channel);
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  ibv_cq* get() const { return cq_; }
  // Makes room for so many completions more; release() gives it back. Errors: kResourceExhausted.
  Status reserve(int completions);
  void release(int completions) { reserved_ -= completions; }

  // Up to kCompletionsPerPoll of what has completed; valid until the next call.
  std::span<const ibv_wc> poll();
  // Asks for an event for whatever completes from now on. False: something has completed already (poll() will bring
  // it).
  bool arm();
  // The event has come.
  void disarm();

 private:
  CompletionQueue(Device& device, ibv_cq* cq) : device_(device), cq_(cq), capacity_(cq->cqe) {}

  Device& device_;
  ibv_cq* cq_;
  int capacity_, reserved_ = 0;
  bool armed_ = false;
  std::array<ibv_wc, kCompletionsPerPoll> completions_;
  std::size_t waiting_ = 0;  // found by arm()
};

}  // namespace tensorlane::rdma
