// A client's session as its host sees it: queues instead of rings, and buffers of the simulation instead of arenas.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "common/base/descriptor.h"
#include "daemon/ports/memory.h"
#include "daemon/ports/session.h"
#include "simulator/clock/event_queue.h"

namespace tensorlane::simulator {

class SimSession final : public ports::ClientSession {
 public:
  struct Context {
    EventQueue& events;
    ports::Memory& memory;
    std::function<Time()> host_now;  // how far the host is with its work: what it does is seen from then on
    std::function<void()> wake;      // there is a submission
    std::function<void(const protocol::CompletionEntry&)> completed;
    std::function<void(const protocol::CompletionEntry&)> placed;  // parts of a result are in place
    std::function<void(std::uint32_t slot, const protocol::MessageSlot&, Code)> message_over;
    std::function<void(const Status&)> failed;
  };
  // `buffers`: of the client's tensors, by tensor, and behind them that of its messages; empty ones are not its own.
  SimSession(Context context, std::vector<Descriptor> buffers)
      : context_(std::move(context)), buffers_(std::move(buffers)) {}

  // ---- of the client ----
  void submit(const protocol::SubmissionEntry& entry) {
    submitted_.push_back(entry);
    context_.wake();
  }
  void post(std::uint32_t slot, const protocol::MessageSlot& message) {
    slots_[slot] = message;
    submit({slot, protocol::kSubmitMessage, 0});
  }
  void die() { dead_ = true; }
  bool waits_are_observed() const { return observed_; }
  // The place to give to LanePort::bind.
  ports::BufferPlace place(TensorId tensor) const { return {tensor.value, 0, buffers_[tensor.value].length}; }

  // ---- ports::ClientSession ----
  std::size_t take(std::span<protocol::SubmissionEntry> out) override {
    std::size_t count = 0;
    for (; count < out.size() && !submitted_.empty(); ++count) {
      out[count] = submitted_.front();
      submitted_.pop_front();
    }
    return count;
  }
  void complete(const protocol::CompletionEntry& entry) override {
    context_.events.at(context_.host_now(), [this, entry] { context_.completed(entry); });
  }
  bool message(std::uint32_t slot, protocol::MessageSlot* out) override {
    const auto found = slots_.find(slot);
    if (found == slots_.end()) return false;
    *out = found->second;
    return true;
  }
  void complete_message(std::uint32_t slot, const protocol::MessageSlot& outcome, Code code) override {
    context_.events.at(context_.host_now(),
                       [this, slot, outcome, code] { context_.message_over(slot, outcome, code); });
  }
  void parts_in_place(const protocol::CompletionEntry& entry) override {
    context_.events.at(context_.host_now(), [this, entry] { context_.placed(entry); });
  }
  void observe_waits(bool on) override { observed_ = on; }
  void fail(const Status& cause) override {
    context_.events.at(context_.host_now(), [this, cause] { context_.failed(cause); });
  }
  bool arm_wake() override { return submitted_.empty(); }
  void disarm_wake() override {}
  int wake_fd() const override { return -1; }
  std::span<std::byte> map(const ports::BufferPlace& place) override {
    const std::span<std::byte> whole = segment(place);
    if (place.offset > whole.size() || place.bytes > whole.size() - place.offset) return {};
    return whole.subspan(place.offset, place.bytes);
  }
  std::span<std::byte> segment(const ports::BufferPlace& place) override {
    return place.segment < buffers_.size() ? context_.memory.resolve(buffers_[place.segment]) : std::span<std::byte>();
  }
  bool dead() const override { return dead_; }

 private:
  Context context_;
  std::vector<Descriptor> buffers_;
  std::map<std::uint32_t, protocol::MessageSlot> slots_;
  std::deque<protocol::SubmissionEntry> submitted_;
  bool dead_ = false, observed_ = false;
};

}  // namespace tensorlane::simulator
