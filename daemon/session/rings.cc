#include "daemon/session/rings.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>
#include <new>
#include <string>

#include "common/base/assert.h"

namespace tensorlane::session {
namespace {

using protocol::CompletionEntry;
using protocol::SubmissionEntry;

// Entries move as two words, each loaded or stored once: what is validated afterwards is what was read, whatever the
// client does meanwhile.
static_assert(sizeof(SubmissionEntry) == 16 && sizeof(CompletionEntry) == 16);

// Slots of messages likewise, as words.
constexpr std::size_t kSlotWords = sizeof(protocol::MessageSlot) / sizeof(std::uint64_t);
constexpr std::size_t kOutcomeWord = offsetof(protocol::MessageSlot, other_count) / sizeof(std::uint64_t);

void copy_text(char* to, std::size_t room, const std::string& from) {
  std::size_t n = std::min(from.size(), room - 1);
  if (n < from.size()) {
    while (n > 0 && (static_cast<unsigned char>(from[n]) & 0xc0) == 0x80) --n;  // not through a UTF-8 character
  }
  std::memcpy(to, from.data(), n);
  to[n] = '\0';
}

}  // namespace

protocol::ErrorBody to_error_body(const Status& status) {
  protocol::ErrorBody body;
  body.code = status.code();
  copy_text(body.what, sizeof body.what, status.what());
  copy_text(body.where, sizeof body.where, status.where());
  copy_text(body.fix, sizeof body.fix, status.fix());
  return body;
}

DaemonRings::DaemonRings(std::span<std::byte> memory, std::uint32_t entries)
    : page_(new (memory.data()) protocol::RingPage{}),
      submissions_(reinterpret_cast<std::uint64_t*>(memory.data() + protocol::kRingPageBytes)),
      completions_(submissions_ + std::size_t{entries} * 2),
      messages_(reinterpret_cast<std::uint64_t*>(memory.data() + protocol::message_slots_offset(entries))),
      entries_(entries) {
  TL_ASSERT(std::has_single_bit(entries) && memory.size() >= protocol::ring_memory_bytes(entries));
}

Result<std::size_t> DaemonRings::take(std::span<SubmissionEntry> out) {
  const std::uint32_t submitted = page().submitted.load(std::memory_order_acquire);
  const std::uint32_t ready = submitted - taken_;
  if (ready > entries_) {
    return Status(Code::kCorrupt, "an impossible index in the submission ring",
                  "submitted " + std::to_string(submitted) + ", taken " + std::to_string(taken_) + ", " +
                      std::to_string(entries_) + " entries");
  }
  const std::size_t count = std::min<std::size_t>(ready, out.size());
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t* entry =
        submissions_ + std::size_t{(taken_ + static_cast<std::uint32_t>(i)) & (entries_ - 1)} * 2;
    const std::uint64_t words[2] = {__atomic_load_n(entry, __ATOMIC_RELAXED),
                                    __atomic_load_n(entry + 1, __ATOMIC_RELAXED)};
    std::memcpy(&out[i], words, sizeof words);
  }
  if (count > 0) {
    taken_ += static_cast<std::uint32_t>(count);
    page().taken.store(taken_, std::memory_order_release);
  }
  return count;
}

Status DaemonRings::complete(const CompletionEntry& entry) {
  const std::uint32_t consumed = page().consumed.load(std::memory_order_acquire);
  if (completed_ - consumed >= entries_) {
    return Status(Code::kCorrupt, "an impossible index in the completion ring",
                  "completed " + std::to_string(completed_) + ", consumed " + std::to_string(consumed) + ", " +
                      std::to_string(entries_) + " entries");
  }
  std::uint64_t words[2];
  std::memcpy(words, &entry, sizeof words);
  std::uint64_t* slot = completions_ + std::size_t{completed_ & (entries_ - 1)} * 2;
  __atomic_store_n(slot, words[0], __ATOMIC_RELAXED);
  __atomic_store_n(slot + 1, words[1], __ATOMIC_RELAXED);
  ++completed_;
  // The client says that it waits, then looks at `completed`; we move `completed`, then look whether it waits. Both in
  // one total order, so at least one of us sees the other.
  page().completed.store(completed_, std::memory_order_seq_cst);
  if (page().waiters.load(std::memory_order_seq_cst) != 0) wake_clients();
  return {};
}

protocol::MessageSlot DaemonRings::message(std::uint32_t slot) const {
  TL_ASSERT(slot < protocol::kMessageSlots);
  std::uint64_t words[kSlotWords];
  for (std::size_t i = 0; i < kSlotWords; ++i)
    words[i] = __atomic_load_n(messages_ + slot * kSlotWords + i, __ATOMIC_RELAXED);
  protocol::MessageSlot message;
  std::memcpy(&message, words, sizeof message);
  return message;
}

void DaemonRings::set_outcome(std::uint32_t slot, const protocol::MessageSlot& outcome) {
  TL_ASSERT(slot < protocol::kMessageSlots);
  std::uint64_t words[kSlotWords];
  std::memcpy(words, &outcome, sizeof words);
  for (std::size_t i = kOutcomeWord; i < kSlotWords; ++i)
    __atomic_store_n(messages_ + slot * kSlotWords + i, words[i], __ATOMIC_RELAXED);
}

bool DaemonRings::arm_wake() {
  // The mirror image: we say that we sleep, then look at `submitted`; the client moves it, then looks whether we sleep.
  page().daemon_sleeping.store(1, std::memory_order_seq_cst);
  if (page().submitted.load(std::memory_order_seq_cst) == taken_) return true;
  disarm_wake();
  return false;
}

void DaemonRings::disarm_wake() {
  page().daemon_sleeping.store(0, std::memory_order_relaxed);
}

void DaemonRings::fail(const Status& cause) {
  page().error = to_error_body(cause);
  page().failed.store(1, std::memory_order_seq_cst);
  wake_clients();
}

void DaemonRings::wake_clients() {
  static_assert(sizeof page_->completed == sizeof(std::uint32_t));
  syscall(SYS_futex, &page().completed, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace tensorlane::session
