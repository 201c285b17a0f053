#include "simulator/network/port.h"

#include <algorithm>
#include <numeric>

namespace tensorlane::simulator {

Port::Port(EventQueue& events, const PortConfig& config, std::function<void(Packet)> deliver,
           std::function<void(const Packet&)> left)
    : events_(events), config_(config), deliver_(std::move(deliver)), left_(std::move(left)) {}

Bytes Port::queued() const {
  return Bytes(std::accumulate(queued_.begin(), queued_.end(), std::uint64_t{0}));
}

bool Port::offer(Packet&& packet) {
  const std::size_t queue = policy_queue(packet.level);
  if (queued_[queue] + packet.bytes.value > config_.buffer.value) return false;
  queued_[queue] += packet.bytes.value;
  peak_ = std::max(peak_, queued());
  queues_[queue].push_back(std::move(packet));
  if (!busy_) transmit_next();
  return true;
}

void Port::set_paused(std::size_t level, bool paused) {
  paused_ = paused ? paused_ | 1u << level : paused_ & ~(1u << level);
  if (!paused && !busy_) transmit_next();
}

void Port::transmit_next() {
  const auto queue = std::find_if(queues_.begin(), queues_.end(), [this](const auto& q) {
    return !q.empty() && (paused_ >> q.front().level & 1) == 0;
  });
  busy_ = queue != queues_.end();
  if (!busy_) return;
  Packet packet = std::move(queue->front());
  queue->pop_front();
  const std::uint64_t bytes = packet.bytes.value;
  const auto nanoseconds = static_cast<std::int64_t>((bytes * 8 * 1'000'000'000ull) / config_.rate.value);
  events_.after(
      Duration(nanoseconds + 1), [this, index = queue - queues_.begin(), packet = std::move(packet)]() mutable {
        queued_[static_cast<std::size_t>(index)] -= packet.bytes.value;
        if (left_) left_(packet);
        events_.after(config_.delay, [this, packet = std::move(packet)]() mutable { deliver_(std::move(packet)); });
        transmit_next();
      });
}

}  // namespace tensorlane::simulator
