// One client's session: its rings and its arenas.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "common/base/ledger.h"
#include "daemon/ports/session.h"
#include "daemon/ports/shared_memory.h"
#include "daemon/session/rings.h"

namespace tensorlane::session {

inline constexpr std::size_t kMaxSegments = 256;  // of one session

// What sessions take of a daemon beside memory, and users share.
enum Account : std::uint8_t { kSessions, kDescriptors, kSegments, kTensors, kAccounts };

// Shared by the session thread, which adds segments and ends it, and by the lane, which uses it through
// ports::ClientSession. Its memory goes with the last shared_ptr, so a lane that still has buffers in flight keeps them
// mapped.
class Session final : public ports::ClientSession {
 public:
  // Its rings are charged to `owner`. `broken` is called at most once, on the thread that found the client breaking the
  // protocol; it only queues. Errors: ResourceExhausted.
  static Result<std::shared_ptr<Session>> create(ports::SharedMemoryPool& pool, const Owner& owner,
                                                 std::uint32_t ring_entries, std::function<void(Status)> broken);
  ~Session() override;
  // Before anybody else has it.
  void set_process(std::uint32_t pid) { process_ = pid; }

  // ports::ClientSession: the lane's thread.
  std::size_t take(std::span<protocol::SubmissionEntry> out) override;
  void complete(const protocol::CompletionEntry& entry) override;
  bool message(std::uint32_t slot, protocol::MessageSlot* out) override;
  void complete_message(std::uint32_t slot, const protocol::MessageSlot& outcome, Code code) override;
  bool arm_wake() override;
  void disarm_wake() override;
  void parts_in_place(const protocol::CompletionEntry& entry) override;
  void observe_waits(bool on) override { rings_.observe(on); }
  ports::ClientTimes times() const override;
  // The first call counts. Any thread.
  void fail(const Status& cause) override;
  int wake_fd() const override { return wake_fd_; }
  std::span<std::byte> map(const ports::BufferPlace& place) override;
  std::span<std::byte> segment(const ports::BufferPlace& place) override;
  bool is_sealed(std::uint32_t segment) override;
  bool dead() const override { return dead_.load(std::memory_order_acquire); }

  // The session thread.
  // Number of the new segment, or ResourceExhausted when there are kMaxSegments.
  Result<std::uint32_t> add_segment(std::shared_ptr<ports::SharedMemory> segment);
  std::uint64_t arena_bytes() const;
  ports::SharedMemory& ring_memory() { return *ring_memory_; }
  std::uint32_t ring_entries() const { return ring_entries_; }
  // How often the client's helper thread has said that it lives.
  std::uint64_t beats() const;
  // Tells the client that the daemon lives.
  void beat();
  // Of a segment of this session: see ports::SharedMemory.
  Status check_sealed(std::uint32_t segment);
  // Whether pages of the rings or of an arena are gone.
  bool damaged() const;
  // What the session has taken of the daemon, which goes back with its memory.
  void hold(Account account, Ledger::Charge charge) { charges_[account].add(std::move(charge)); }
  // Some of it goes back before.
  void give_back(Account account, std::uint64_t amount) { charges_[account].release(amount); }
  // The client is gone: the lane takes nothing more from it. Idempotent.
  void mark_dead() { dead_.store(true, std::memory_order_release); }

 private:
  Session(std::shared_ptr<ports::SharedMemory> ring_memory, std::uint32_t ring_entries, int wake_fd,
          std::function<void(Status)> broken);
  void break_with(const Status& why);
  protocol::RingPage& page() const;

  std::array<Ledger::Charge, kAccounts> charges_;  // the session thread; the last to go
  const std::shared_ptr<ports::SharedMemory> ring_memory_;
  const std::uint32_t ring_entries_;
  const int wake_fd_;
  std::uint32_t process_ = 0;
  const std::function<void(Status)> broken_;
  DaemonRings rings_;
  std::atomic<bool> dead_{false};
  std::mutex fail_mutex_;
  bool failed_ = false;  // under fail_mutex_

  // Written by the session thread: an entry first, then the count. Never removed.
  std::array<std::shared_ptr<ports::SharedMemory>, kMaxSegments> segments_;
  std::atomic<std::uint32_t> segment_count_{0};
  std::bitset<kMaxSegments> sealed_;       // the session thread
  std::bitset<kMaxSegments> lane_sealed_;  // the same, of the lane
};

}  // namespace tensorlane::session
