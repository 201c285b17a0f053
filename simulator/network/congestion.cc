#include "simulator/network/congestion.h"

#include <algorithm>
#include <utility>

namespace tensorlane::simulator {
namespace {
constexpr Bytes kForeignPacket = kib(4);

// Others are one more host: theirs is the last port.
Topology with_others(std::size_t hosts) {
  return star(static_cast<std::uint16_t>(hosts + 1), BitsPerSecond(1), Duration());
}
}  // namespace

Congestion::Congestion(EventQueue& events, const CongestionConfig& config, std::vector<Duration> delays,
                       const std::vector<BitsPerSecond>& rates, Random random, Callbacks callbacks)
    : events_(events),
      config_(config),
      delays_(std::move(delays)),
      random_(random),
      callbacks_(std::move(callbacks)),
      foreign_paused_(kLevels) {
  if (config_.pauses || config_.buffer) memory_.emplace(with_others(hosts()), config_.buffer, config_.pauses);
  if (config_.marking) {
    for (const BitsPerSecond rate : rates)
      limiters_.insert(limiters_.end(), hosts() * kLevels, Limiter{.rate = DcqcnRate(rate)});
  }
  if (config_.foreign_burst.value > 0 && hosts() > 0) burst();
}

std::uint32_t Congestion::ingress(const Packet& p) const {
  return static_cast<std::uint32_t>(2 * (p.foreign ? hosts() : p.from.value));
}

void Congestion::leave(Packet packet) {
  if (limiters_.empty() || packet.frame == nullptr || packet.level == 0) return callbacks_.leave(std::move(packet));
  Limiter& of_flow = limiter(packet);
  of_flow.waiting.push_back(std::move(packet));
  pump(of_flow);
}

void Congestion::pump(Limiter& l) {
  while (!l.waiting.empty() && !l.scheduled) {
    if (events_.now() < l.next) {
      l.scheduled = true;
      return events_.at(l.next, [this, &l] {
        l.scheduled = false;
        pump(l);
      });
    }
    Packet packet = std::move(l.waiting.front());
    l.waiting.pop_front();
    const DcqcnParameters& reaction = config_.marking->reaction;
    const double rate = l.rate.rate(events_.now(), reaction);
    if (l.rate.limited())
      l.next =
          events_.now() + Duration(static_cast<std::int64_t>(static_cast<double>(packet.bytes.value) * 8e9 / rate));
    l.rate.sent(events_.now(), packet.bytes, reaction);
    callbacks_.leave(std::move(packet));
  }
}

bool Congestion::arrive(Packet& packet, Bytes queued) {
  if (packet.frame == nullptr && !packet.foreign) return true;  // a heartbeat
  if (config_.marking && (config_.marking->levels >> packet.level & 1) != 0 && !packet.foreign) {
    packet.marked =
        packet.marked || random_.chance(mark_probability(*config_.marking, queued.value, packet.bytes.value));
    counters_.marked += packet.marked ? 1 : 0;
  }
  if (!memory_) return true;
  const SwitchMemory::Verdict verdict = memory_->take(ingress(packet), packet.level, packet.bytes.value, queued.value);
  if (verdict == SwitchMemory::Verdict::kKeptAndPause) set_paused(ingress(packet), packet.level, true);
  counters_.refused += verdict == SwitchMemory::Verdict::kRefused ? 1 : 0;
  return verdict != SwitchMemory::Verdict::kRefused;
}

void Congestion::left(const Packet& packet) {
  if (!memory_ || (packet.frame == nullptr && !packet.foreign)) return;
  for (const SwitchMemory::Resumed& one : memory_->give(ingress(packet), packet.level, packet.bytes.value))
    set_paused(one.ingress, one.level, false);
}

void Congestion::set_paused(std::uint32_t port, std::size_t level, bool paused) {
  counters_.pauses += paused ? 1 : 0;
  const std::size_t host = port / 2;
  if (host == hosts()) {
    foreign_paused_[level] = paused;
    return;
  }
  events_.after(delays_[host], [this, host, level, paused] {
    callbacks_.set_paused(HostIndex(static_cast<std::uint16_t>(host)), level, paused);
  });
}

void Congestion::received(const Packet& packet) {
  if (!packet.marked) return;
  Limiter& l = limiter(packet);
  const Time now = events_.now();
  if (l.notified && now - *l.notified < config_.marking->reaction.notification) return;
  l.notified = now;
  ++counters_.notified;
  events_.after(delays_[packet.to.value] + delays_[packet.from.value],
                [this, &l] { l.rate.notified(events_.now(), config_.marking->reaction); });
}

void Congestion::burst() {
  events_.after(random_.between(Duration(1), config_.foreign_gap * 2), [this] {
    if (events_.now() > config_.foreign_until) return;
    const HostIndex to(static_cast<std::uint16_t>(foreign_to_++ % hosts()));
    for (std::uint64_t left = config_.foreign_burst.value; left > 0 && !foreign_paused_[config_.foreign_level];) {
      Packet packet;
      packet.to = to;
      packet.level = config_.foreign_level;
      packet.foreign = true;
      packet.bytes = Bytes(std::min(left, kForeignPacket.value));
      left -= packet.bytes.value;
      ++counters_.foreign;
      callbacks_.burst(std::move(packet));
    }
    burst();
  });
}

}  // namespace tensorlane::simulator
