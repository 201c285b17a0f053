#include "simulator/network/port.h"

#include <algorithm>
#include <numeric>

namespace tensorlane::simulator {

Port::Port(EventQueue& events, const PortConfig& config, std::function<void(Packet)> deliver)
    : events_(events), config_(config), deliver_(std::move(deliver)) {}

Bytes Port::queued() const {
  return Bytes(std::accumulate(queued_.begin(), queued_.end(), std::uint64_t{0}));
}

bool Port::offer(Packet&& packet) {
  const std::size_t queue = queue_of(packet);
  if (queued_[queue] + packet.bytes.value > config_.buffer.value) return false;
  queued_[queue] += packet.bytes.value;
  peak_ = std::max(peak_, queued());
  queues_[queue].push_back(std::move(packet));
  if (!busy_) transmit_next();
  return true;
}

void Port::transmit_next() {
  const auto queue = std::find_if(queues_.begin(), queues_.end(), [](const auto& q) { return !q.empty(); });
  busy_ = queue != queues_.end();
  if (!busy_) return;
  Packet packet = std::move(queue->front());
  queue->pop_front();
  const std::uint64_t bytes = packet.bytes.value;
  const auto nanoseconds = static_cast<std::int64_t>((bytes * 8 * 1'000'000'000ull) / config_.rate.value);
  events_.after(
      Duration(nanoseconds + 1), [this, index = queue - queues_.begin(), packet = std::move(packet)]() mutable {
        queued_[static_cast<std::size_t>(index)] -= packet.bytes.value;
        events_.after(config_.delay, [this, packet = std::move(packet)]() mutable { deliver_(std::move(packet)); });
        transmit_next();
      });
}

}  // namespace tensorlane::simulator
