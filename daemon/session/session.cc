#include "daemon/session/session.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tensorlane::session {

Result<std::shared_ptr<Session>> Session::create(ports::SharedMemoryPool& pool, const Owner& owner,
                                                 std::uint32_t ring_entries, std::function<void(Status)> broken) {
  TL_ASSIGN_OR_RETURN(auto memory, pool.create(owner, protocol::ring_memory_bytes(ring_entries)));
  const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0) {
    return Status(Code::kResourceExhausted, "cannot make an eventfd", std::strerror(errno),
                  "raise the daemon's limit of open files");
  }
  return std::shared_ptr<Session>(new Session(std::move(memory), ring_entries, wake_fd, std::move(broken)));
}

Session::Session(std::shared_ptr<ports::SharedMemory> ring_memory, std::uint32_t ring_entries, int wake_fd,
                 std::function<void(Status)> broken)
    : ring_memory_(std::move(ring_memory)),
      ring_entries_(ring_entries),
      wake_fd_(wake_fd),
      broken_(std::move(broken)),
      rings_(ring_memory_->bytes(), ring_entries) {}

Session::~Session() {
  close(wake_fd_);
}

void Session::break_with(const Status& why) {
  if (!dead_.exchange(true, std::memory_order_acq_rel)) broken_(why);
}

std::size_t Session::take(std::span<protocol::SubmissionEntry> out) {
  if (dead()) return 0;
  const Result<std::size_t> taken = rings_.take(out);
  if (taken.ok()) return *taken;
  break_with(taken.status());
  return 0;
}

void Session::complete(const protocol::CompletionEntry& entry) {
  if (dead()) return;
  const Status status = rings_.complete(entry);
  if (!status.ok()) break_with(status);
}

bool Session::message(std::uint32_t slot, protocol::MessageSlot* out) {
  if (slot >= protocol::kMessageSlots) return false;
  *out = rings_.message(slot);
  return true;
}

void Session::complete_message(std::uint32_t slot, const protocol::MessageSlot& outcome, Code code) {
  if (dead()) return;
  rings_.set_outcome(slot, outcome);
  complete({slot | protocol::kMessageBit, code, 0});
}

// Half of the ring is kept for completions, which may not fail for want of room.
void Session::parts_in_place(const protocol::CompletionEntry& entry) {
  if (!dead() && rings_.completions_waiting() < ring_entries_ / 2) complete(entry);
}

// A dead client's submissions are not awaited: the lane learns of its end from control.
bool Session::arm_wake() {
  return dead() || rings_.arm_wake();
}

void Session::disarm_wake() {
  if (!dead()) rings_.disarm_wake();
}

void Session::fail(const Status& cause) {
  std::lock_guard lock(fail_mutex_);
  if (failed_) return;
  failed_ = true;
  rings_.fail(cause);
}

std::span<std::byte> Session::segment(const ports::BufferPlace& place) {
  if (place.segment >= segment_count_.load(std::memory_order_acquire)) return {};
  return segments_[place.segment]->bytes();
}

std::span<std::byte> Session::map(const ports::BufferPlace& place) {
  const std::span<std::byte> whole = segment(place);
  if (place.offset > whole.size() || place.bytes > whole.size() - place.offset) return {};
  return whole.subspan(place.offset, place.bytes);
}

bool Session::is_sealed(std::uint32_t segment) {
  if (!lane_sealed_.test(segment)) lane_sealed_.set(segment, segments_[segment]->check_sealed().ok());
  return lane_sealed_.test(segment);
}

Status Session::check_sealed(std::uint32_t segment) {
  if (sealed_.test(segment)) return {};
  TL_RETURN_IF_ERROR(segments_[segment]->check_sealed());
  sealed_.set(segment);
  return {};
}

Result<std::uint32_t> Session::add_segment(std::shared_ptr<ports::SharedMemory> segment) {
  const std::uint32_t number = segment_count_.load(std::memory_order_relaxed);
  if (number == kMaxSegments) {
    return Status(Code::kResourceExhausted, "too many arena segments in this session",
                  "the limit is " + std::to_string(kMaxSegments), "allocate larger segments");
  }
  segments_[number] = std::move(segment);
  segment_count_.store(number + 1, std::memory_order_release);
  return number;
}

std::uint64_t Session::arena_bytes() const {
  std::uint64_t bytes = 0;
  const std::uint32_t count = segment_count_.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < count; ++i) bytes += segments_[i]->bytes().size();
  return bytes;
}

protocol::RingPage& Session::page() const {
  return *reinterpret_cast<protocol::RingPage*>(ring_memory_->bytes().data());
}

std::uint64_t Session::beats() const {
  return page().client_beats.load(std::memory_order_relaxed);
}

ports::ClientTimes Session::times() const {
  return {process_, page().waiter.load(std::memory_order_relaxed), page().blocked_ns.load(std::memory_order_relaxed),
          page().stream_waits.load(std::memory_order_relaxed)};
}

void Session::beat() {
  page().daemon_beats.fetch_add(1, std::memory_order_relaxed);
}

bool Session::damaged() const {
  if (ring_memory_->damaged()) return true;
  const std::uint32_t count = segment_count_.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (segments_[i]->damaged()) return true;
  }
  return false;
}

}  // namespace tensorlane::session
