// The daemon's end of a session's rings. See common/protocol/session.h for the memory they live in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/status.h"
#include "common/protocol/session.h"

namespace tensorlane::session {

// Producer of completions, consumer of submissions. One thread uses it, except fail(). The client can write anything
// anywhere in `memory` at any time: our own positions are kept outside of it, an entry is copied exactly once, and an
// index that cannot be is an error.
class DaemonRings {
 public:
  // `memory`: ring_memory_bytes(entries) bytes of zeros, page-aligned; `entries` a power of two.
  DaemonRings(std::span<std::byte> memory, std::uint32_t entries);

  // Copies up to out.size() submissions, oldest first; how many, or Corrupt when the client's index cannot be.
  Result<std::size_t> take(std::span<protocol::SubmissionEntry> out);
  // Gives a completion and wakes waiting clients. Corrupt when the client's index cannot be or it has more operations
  // pending than it may.
  Status complete(const protocol::CompletionEntry& entry);
  // Copies a message's slot, which exists.
  protocol::MessageSlot message(std::uint32_t slot) const;
  // Writes the daemon's part of it.
  void set_outcome(std::uint32_t slot, const protocol::MessageSlot& outcome);
  // Completions that the client has not taken; more than there are entries where its index cannot be.
  std::uint32_t completions_waiting() const { return completed_ - page_->consumed.load(std::memory_order_acquire); }
  // Asks for a write to the eventfd with the next submission. False, and nothing asked, when there is a submission
  // already.
  bool arm_wake();
  void disarm_wake();
  // Asks the client to tell of waits (kFlagWaited), or no longer. Any thread.
  void observe(bool on) { page().observe.store(on ? 1 : 0, std::memory_order_relaxed); }
  // Publishes the error and wakes all waiting clients. The first call counts. Any thread; the caller sees to it that
  // calls do not overlap.
  void fail(const Status& cause);

 private:
  protocol::RingPage& page() { return *page_; }
  void wake_clients();

  protocol::RingPage* const page_;
  std::uint64_t* const submissions_;  // two words an entry
  std::uint64_t* const completions_;
  std::uint64_t* const messages_;  // eight words a slot
  const std::uint32_t entries_;
  std::uint32_t taken_ = 0;
  std::uint32_t completed_ = 0;
};

// Cut to what fits, at a character's border, and terminated.
protocol::ErrorBody to_error_body(const Status& status);

}  // namespace tensorlane::session
