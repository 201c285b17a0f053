// The clients of a lane, and control as far as it sees it: played by the test.
#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/protocol/parts.h"
#include "daemon/ports/job.h"
#include "daemon/ports/session.h"

namespace tensorlane::lane {

using namespace std::chrono_literals;

// By the system's clock: the thread sanitizer of Clang 14 does not know how libstdc++ waits by the steady one.
inline std::chrono::system_clock::time_point patience() {
  return std::chrono::system_clock::now() + 10s;
}

// A client with its memory, in this process.
class FakeClient final : public ports::ClientSession {
 public:
  FakeClient() : memory_(16 << 20), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~FakeClient() override { close(wake_); }

  std::size_t take(std::span<protocol::SubmissionEntry> out) override {
    std::lock_guard lock(mutex_);
    std::size_t n = 0;
    for (; n < out.size() && !submitted_.empty(); ++n) {
      out[n] = submitted_.front();
      submitted_.pop_front();
    }
    return n;
  }
  void complete(const protocol::CompletionEntry& entry) override {
    std::lock_guard lock(mutex_);
    completed_[{entry.tensor, entry.sequence}] = entry.status;
    changed_.notify_all();
  }
  bool message(std::uint32_t slot, protocol::MessageSlot* out) override {
    std::lock_guard lock(mutex_);
    if (slot >= protocol::kMessageSlots) return false;
    *out = messages_[slot];
    return true;
  }
  void complete_message(std::uint32_t slot, const protocol::MessageSlot& outcome, Code code) override {
    std::lock_guard lock(mutex_);
    outcomes_[slot].emplace_back(code, outcome);
    changed_.notify_all();
  }
  void fail(const Status& cause) override {
    std::lock_guard lock(mutex_);
    failure_ = cause;
    changed_.notify_all();
  }
  bool arm_wake() override {
    std::lock_guard lock(mutex_);
    return submitted_.empty();
  }
  void disarm_wake() override {}
  void parts_in_place(const protocol::CompletionEntry& entry) override {
    std::lock_guard lock(mutex_);
    in_place_.push_back(entry);
  }
  void observe_waits(bool on) override { observed_ = on; }
  int wake_fd() const override { return wake_; }
  std::span<std::byte> map(const ports::BufferPlace& place) override {
    if (place.offset > memory_.size() || place.bytes > memory_.size() - place.offset) return {};
    return std::span(memory_).subspan(place.offset, place.bytes);
  }
  std::span<std::byte> segment(const ports::BufferPlace&) override { return memory_; }
  bool dead() const override { return false; }

  void submit(std::uint32_t tensor, std::uint64_t sequence) { put({tensor, 0, sequence}); }
  // These parts of the contribution exist.
  void submit_parts(std::uint32_t tensor, std::uint64_t sequence, const protocol::PartRun& run) {
    put({tensor, protocol::kFlagParts, protocol::with_parts(sequence, run)});
  }
  // What it was told of results in parts.
  std::vector<protocol::CompletionEntry> in_place() {
    std::lock_guard lock(mutex_);
    return in_place_;
  }
  // A send or a receive, in this slot.
  void post(std::uint32_t slot, const protocol::MessageSlot& message, std::uint64_t sequence = 0) {
    {
      std::lock_guard lock(mutex_);
      if (slot < protocol::kMessageSlots) messages_[slot] = message;
    }
    put({slot, protocol::kSubmitMessage, sequence});
  }
  // How it ended; kTimedOut after ten seconds.
  using Outcome = std::pair<Code, protocol::MessageSlot>;
  Outcome wait_message(std::uint32_t slot) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, patience(), [&] { return !outcomes_[slot].empty(); })) return {Code::kTimedOut, {}};
    const Outcome first = outcomes_[slot].front();
    outcomes_[slot].pop_front();
    return first;
  }
  std::size_t messages_over() {
    std::lock_guard lock(mutex_);
    std::size_t all = 0;
    for (const auto& [slot, outcomes] : outcomes_) all += outcomes.size();
    return all;
  }
  // A wait for it blocks.
  void boost(std::uint32_t tensor, std::uint64_t sequence) { put({tensor, protocol::kFlagBoost, sequence}); }
  // It waits, blocked or not.
  void tell_of_wait(std::uint32_t tensor, std::uint64_t sequence) { put({tensor, protocol::kFlagWaited, sequence}); }
  bool observed() const { return observed_; }
  // That nobody has read; it waits for the next one.
  std::uint64_t unread_wake_ups() {
    std::uint64_t count = 0;
    return read(wake_, &count, sizeof count) == sizeof count ? count : 0;
  }
  void put(const protocol::SubmissionEntry& entry) {
    {
      std::lock_guard lock(mutex_);
      submitted_.push_back(entry);
    }
    const std::uint64_t one = 1;
    ASSERT_EQ(write(wake_, &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }
  // The status of the operation, kTimedOut after ten seconds.
  Code wait(std::uint32_t tensor, std::uint64_t sequence) {
    std::unique_lock lock(mutex_);
    const bool done = changed_.wait_until(lock, patience(), [&] { return completed_.contains({tensor, sequence}); });
    return done ? completed_[{tensor, sequence}] : Code::kTimedOut;
  }
  // It is unregistered: another one in its place begins with sequence 1. Returns how many of its operations were
  // complete.
  std::uint64_t forget(std::uint32_t tensor) {
    std::lock_guard lock(mutex_);
    return std::erase_if(completed_, [&](const auto& operation) { return operation.first.first == tensor; });
  }
  // The lane has what was submitted.
  bool all_taken() {
    std::lock_guard lock(mutex_);
    return submitted_.empty();
  }
  bool pending(std::uint32_t tensor, std::uint64_t sequence) {
    std::lock_guard lock(mutex_);
    return !completed_.contains({tensor, sequence});
  }
  Status wait_failure() {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, patience(), [&] { return !failure_.ok(); });
    return failure_;
  }
  template <typename T>
  T* data(std::uint64_t offset) {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }

 private:
  std::vector<std::byte> memory_;
  int wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<protocol::SubmissionEntry> submitted_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, Code> completed_;
  std::vector<protocol::CompletionEntry> in_place_;
  std::array<protocol::MessageSlot, protocol::kMessageSlots> messages_;
  std::map<std::uint32_t, std::deque<Outcome>> outcomes_;  // by slot
  Status failure_;
  std::atomic<bool> observed_{false};
};

// Control, as far as a lane sees it.
class FakeListener final : public ports::LaneListener {
 public:
  void on_job_connected(JobId) override {
    set([this] { connected_ = true; });
  }
  void on_job_failed(JobId, const Status& cause) override {
    set([&] { cause_ = cause; });
  }
  void on_late(JobId, Rank rank, TensorId tensor, Duration waited) override {
    set([&] {
      late_.emplace_back(rank, tensor);
      longest_late_ = std::max(longest_late_, waited);
    });
  }
  void on_missing(JobId, HostIndex peer, TensorId tensor, Sequence sequence, Duration waited) override {
    set([&] { missing_.push_back({peer, tensor, sequence, waited}); });
  }
  void on_iteration(JobId, Duration time) override {
    set([&] { iterations_.push_back(time); });
  }
  void on_progress(JobId, const ports::LaneProgress& progress) override {
    set([&] { progress_.push_back(progress); });
  }
  void on_flows_wanted(JobId, HostIndex peer) override {
    if (wants_flows) wants_flows(peer);
  }
  void on_message_waits(JobId, Rank rank, std::optional<Rank> peer, ports::MessageWait why, Duration waited) override {
    set([&] { waiting_.push_back({rank, peer, why, waited}); });
  }
  void on_job_closed(JobId) override {
    set([this] { closed_ = true; });
  }
  // What control does then: it asks the peer.
  std::function<void(HostIndex peer)> wants_flows;
  struct Waiting {
    Rank rank;
    std::optional<Rank> peer;
    ports::MessageWait why;
    Duration waited;
  };
  // Messages that wait, once there are so many reports.
  std::vector<Waiting> wait_waiting(std::size_t most) {
    return wait([&] { return waiting_.size() >= most; }, [this] { return waiting_; });
  }

  // Each waits, and reads under the lane's lock: the lane may go on reporting.
  std::size_t wait_iterations(std::size_t most) {
    return wait([&] { return iterations_.size() >= most; }, [this] { return iterations_.size(); });
  }
  bool wait_connected() { return wait_flag(connected_); }
  // Waits anew for the next job's.
  void forget() {
    set([this] { connected_ = closed_ = false; });
  }
  bool wait_closed() { return wait_flag(closed_); }
  Status wait_failed() {
    return wait([this] { return !cause_.ok(); }, [this] { return cause_; });
  }
  // The last one, once there are so many.
  ports::LaneProgress wait_progress(std::size_t most) {
    return wait([&] { return progress_.size() >= most; },
                [this] { return progress_.empty() ? ports::LaneProgress() : progress_.back(); });
  }
  std::pair<Rank, TensorId> wait_late() {
    return wait([this] { return !late_.empty(); },
                [this] { return late_.empty() ? std::pair(Rank(99), TensorId(99)) : late_.front(); });
  }
  struct Missing {
    HostIndex peer;
    TensorId tensor;
    Sequence sequence;
    Duration waited;
  };
  // The first; none in time.
  std::optional<Missing> wait_missing() {
    return wait([this] { return !missing_.empty(); },
                [this] { return missing_.empty() ? std::nullopt : std::optional(missing_.front()); });
  }
  std::size_t late() {
    std::lock_guard lock(mutex_);
    return late_.size();
  }
  std::vector<Missing> all_missing() {
    std::lock_guard lock(mutex_);
    return missing_;
  }
  Duration longest_late() {
    std::lock_guard lock(mutex_);
    return longest_late_;
  }
  std::size_t missing() {
    std::lock_guard lock(mutex_);
    return missing_.size();
  }

 private:
  template <typename F>
  void set(F change) {
    std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }
  template <typename Condition, typename Value>
  std::invoke_result_t<Value> wait(Condition condition, Value value) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, patience(), condition);
    return value();
  }
  bool wait_flag(const bool& flag) {
    return wait([&] { return flag; }, [&] { return flag; });
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool connected_ = false, closed_ = false;
  Status cause_;
  std::vector<std::pair<Rank, TensorId>> late_;
  Duration longest_late_;
  std::vector<Missing> missing_;
  std::vector<Waiting> waiting_;
  std::vector<Duration> iterations_;
  std::vector<ports::LaneProgress> progress_;
};

}  // namespace tensorlane::lane
