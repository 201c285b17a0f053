// The client's end of a session's rings. See common/protocol/session.h for the memory they live in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "client-lib/src/channel.h"
#include "common/base/status.h"
#include "common/base/units.h"
#include "common/protocol/session.h"

namespace tensorlane::client {

// Producer of submissions, consumer of completions. submit(), next() and their like need one caller at a time (the
// context's mutex); what is marked "any thread" does not.
class ClientRings {
 public:
  ClientRings() = default;
  // `memory`: the mapping of the ring memory of `entries` entries; `wake_fd`: the eventfd. Both outlive the object.
  ClientRings(std::span<std::byte> memory, std::uint32_t entries, int wake_fd);

  // Entries that could be submitted now.
  std::uint32_t space() const;
  // Writes an entry; call only with space(). True: the daemon sleeps and wants wake_daemon().
  [[nodiscard]] bool submit(const protocol::SubmissionEntry& entry);
  // Writes a message's slot, which the daemon does not have; submit() it afterwards.
  void set_message(std::uint32_t slot, const protocol::MessageSlot& message);
  // The slot with the daemon's part, once it is completed.
  protocol::MessageSlot message(std::uint32_t slot) const;
  // Any thread. A system call.
  void wake_daemon() const;

  // The next completion. False when there is none.
  bool next(protocol::CompletionEntry& entry);
  // Counts completions. Any thread.
  std::uint32_t completed() const { return page_->completed.load(std::memory_order_acquire); }
  // Sleeps until completed() is not `seen`, wake_all() or `longest` has passed; may return early. Any thread.
  void wait(std::uint32_t seen, Duration longest);
  // Wakes all who wait(). Any thread.
  void wake_all();

  // Whether the daemon has published the job's error, and that. Any thread.
  bool failed() const { return page_->failed.load(std::memory_order_acquire) != 0; }
  Status error() const;

  // Whether the daemon wants to be told of waits. Any thread.
  bool waits_observed() const { return page_->observe.load(std::memory_order_relaxed) != 0; }

  // Says that we live. One thread.
  void beat() { page_->client_beats.fetch_add(1, std::memory_order_relaxed); }
  // It is this thread that submits and waits.
  void note_thread();
  // This thread has been blocked for so long.
  void note_blocked(Duration time);
  // A stream of a GPU waits for an operation from now on, and this thread does not.
  void note_stream_wait();
  std::uint64_t daemon_beats() const { return page_->daemon_beats.load(std::memory_order_relaxed); }

 private:
  protocol::RingPage* page_ = nullptr;
  std::uint64_t* submissions_ = nullptr;  // two words an entry
  const std::uint64_t* completions_ = nullptr;
  protocol::MessageSlot* messages_ = nullptr;
  std::uint32_t entries_ = 0;
  int wake_fd_ = -1;
  std::uint32_t submitted_ = 0;
  std::uint32_t consumed_ = 0;
};

// Notes how long a thread is blocked.
class BlockedNote {
 public:
  explicit BlockedNote(ClientRings& rings) : rings_(rings), since_(now()) {}
  ~BlockedNote() { rings_.note_blocked(now() - since_); }
  BlockedNote(const BlockedNote&) = delete;
  BlockedNote& operator=(const BlockedNote&) = delete;

 private:
  ClientRings& rings_;
  const Time since_;
};

}  // namespace tensorlane::client
