#include "client-lib/src/rings.h"

#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <cstring>

namespace tensorlane::client {

using protocol::CompletionEntry;
using protocol::SubmissionEntry;

ClientRings::ClientRings(std::span<std::byte> memory, std::uint32_t entries, int wake_fd)
    : page_(reinterpret_cast<protocol::RingPage*>(memory.data())),
      submissions_(reinterpret_cast<std::uint64_t*>(memory.data() + protocol::kRingPageBytes)),
      completions_(submissions_ + std::size_t{entries} * 2),
      messages_(reinterpret_cast<protocol::MessageSlot*>(memory.data() + protocol::message_slots_offset(entries))),
      entries_(entries),
      wake_fd_(wake_fd) {}

std::uint32_t ClientRings::space() const {
  return entries_ - (submitted_ - page_->taken.load(std::memory_order_acquire));
}

bool ClientRings::submit(const SubmissionEntry& entry) {
  std::uint64_t words[2];
  static_assert(sizeof words == sizeof entry);
  std::memcpy(words, &entry, sizeof words);
  std::uint64_t* slot = submissions_ + std::size_t{submitted_ & (entries_ - 1)} * 2;
  __atomic_store_n(slot, words[0], __ATOMIC_RELAXED);
  __atomic_store_n(slot + 1, words[1], __ATOMIC_RELAXED);
  // We move `submitted`, then look whether the daemon sleeps; it says that it sleeps, then looks at `submitted`. Both
  // in one total order, so at least one of us sees the other. Whoever takes the flag down wakes, so that a burst of
  // submissions costs one system call.
  page_->submitted.store(++submitted_, std::memory_order_seq_cst);
  return page_->daemon_sleeping.load(std::memory_order_seq_cst) != 0 &&
         page_->daemon_sleeping.exchange(0, std::memory_order_seq_cst) != 0;
}

// The rings' indices say whose a slot is, and order what is in it.
void ClientRings::set_message(std::uint32_t slot, const protocol::MessageSlot& message) {
  messages_[slot] = message;
}

protocol::MessageSlot ClientRings::message(std::uint32_t slot) const {
  return messages_[slot];
}

void ClientRings::wake_daemon() const {
  eventfd_write(wake_fd_, 1);
}

bool ClientRings::next(CompletionEntry& entry) {
  if (page_->completed.load(std::memory_order_acquire) == consumed_) return false;
  const std::uint64_t* slot = completions_ + std::size_t{consumed_ & (entries_ - 1)} * 2;
  const std::uint64_t words[2] = {__atomic_load_n(slot, __ATOMIC_RELAXED), __atomic_load_n(slot + 1, __ATOMIC_RELAXED)};
  static_assert(sizeof words == sizeof entry);
  std::memcpy(&entry, words, sizeof words);
  page_->consumed.store(++consumed_, std::memory_order_release);
  return true;
}

void ClientRings::wait(std::uint32_t seen, Duration longest) {
  if (longest.value <= 0) return;
  const timespec time{static_cast<time_t>(longest.value / 1'000'000'000),
                      static_cast<long>(longest.value % 1'000'000'000)};
  page_->waiters.fetch_add(1, std::memory_order_seq_cst);
  // The kernel compares again, so nothing that came since is missed.
  if (page_->completed.load(std::memory_order_seq_cst) == seen && !failed()) {
    syscall(SYS_futex, &page_->completed, FUTEX_WAIT, seen, &time, nullptr, 0);
  }
  page_->waiters.fetch_sub(1, std::memory_order_seq_cst);
}

void ClientRings::note_thread() {
  if (page_ == nullptr) return;  // without a daemon nobody looks
  thread_local const auto self = static_cast<std::uint32_t>(syscall(SYS_gettid));
  page_->waiter.store(self, std::memory_order_relaxed);
}

void ClientRings::note_blocked(Duration time) {
  if (page_ == nullptr) return;
  note_thread();
  page_->blocked_ns.fetch_add(static_cast<std::uint64_t>(std::max<std::int64_t>(time.value, 0)),
                              std::memory_order_relaxed);
}

void ClientRings::note_stream_wait() {
  if (page_ == nullptr) return;
  note_thread();
  page_->stream_waits.fetch_add(1, std::memory_order_relaxed);
}

void ClientRings::wake_all() {
  if (page_ == nullptr) return;  // the session failed before it had rings, so nobody waits at them
  syscall(SYS_futex, &page_->completed, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

Status ClientRings::error() const {
  const auto text = [](const char* field, std::size_t size) { return std::string(field, strnlen(field, size)); };
  const protocol::ErrorBody& e = page_->error;
  return Status(e.code == Code::kOk ? Code::kInternal : e.code, text(e.what, sizeof e.what),
                text(e.where, sizeof e.where), text(e.fix, sizeof e.fix));
}

}  // namespace tensorlane::client
