#include "simulator/network/network.h"

#include <algorithm>

namespace tensorlane::simulator {
namespace {
constexpr Bytes kHeartbeatBytes{128};
// Between attempts to make a lost connection anew: doubles from the first to the last.
constexpr Duration kFirstBackoff = microseconds(100), kLastBackoff = milliseconds(32);

BitsPerSecond scaled(BitsPerSecond rate, double factor) {
  return BitsPerSecond(
      std::max<std::uint64_t>(1, static_cast<std::uint64_t>(static_cast<double>(rate.value) * factor)));
}
}  // namespace

Network::Network(EventQueue& events, const NetworkConfig& config, Random random, std::vector<std::uint16_t> jobs)
    : events_(events),
      config_(config),
      random_(random),
      attached_(config.hosts.size()),
      cut_(config.hosts.size() * config.hosts.size()),
      dropped_(config.hosts.size() * config.hosts.size() * kLevels) {
  if (jobs.empty()) jobs.push_back(static_cast<std::uint16_t>(config.hosts.size()));
  for (const std::uint16_t hosts : jobs) {
    jobs_.push_back({hosts, flows_.size()});
    flows_.resize(flows_.size() + std::size_t{hosts} * hosts * kLevels);
  }
  connections_.resize(flows_.size());
  for (Attached& host : attached_) host.open.assign(jobs_.size(), true);
  for (const HostPorts& ports : config.hosts) {
    // A NIC never drops what its own host gives it: the host's windows bound this queue.
    PortConfig uplink = ports.uplink;
    uplink.buffer = Bytes(~std::uint64_t{0} / 2);
    uplinks_.push_back(std::make_unique<Port>(events_, uplink, [this](Packet p) { at_switch(std::move(p)); }));
    PortConfig downlink = ports.downlink;
    std::function<void(const Packet&)> left;
    if (config.congestion.pauses || config.congestion.buffer) {
      downlink.buffer = uplink.buffer;
      left = [this](const Packet& p) { congestion_->left(p); };
    }
    const auto deliver = [this](Packet p) { at_host(std::move(p)); };
    downlinks_.push_back(std::make_unique<Port>(events_, downlink, deliver, std::move(left)));
  }
  // A fork only where it is needed: elsewhere a seed means what it meant.
  if (config.congestion.any()) make_congestion(random_.fork(1));
}

void Network::make_congestion(Random random) {
  std::vector<Duration> delays;
  std::vector<BitsPerSecond> rates;
  for (const HostPorts& ports : config_.hosts) {
    delays.push_back(ports.uplink.delay);
    rates.push_back(ports.uplink.rate);
  }
  Congestion::Callbacks callbacks{
      .leave = [this](Packet p) { TL_ASSERT(uplinks_[p.from.value]->offer(std::move(p))); },
      .burst = [this](Packet p) { enqueue(std::move(p)); },
      .set_paused = [this](HostIndex h, std::size_t level, bool on) { uplinks_[h.value]->set_paused(level, on); }};
  congestion_ =
      std::make_unique<Congestion>(events_, config_.congestion, std::move(delays), rates, random, std::move(callbacks));
}

void Network::attach(HostIndex host, NetworkSink* sink) {
  at(host).sink = sink;
}

void Network::send(FramePtr frame) {
  const std::uint64_t payload = frame->payload.size();
  std::uint64_t begin = 0;
  do {
    Packet packet;
    packet.from = frame->from;
    packet.to = frame->to;
    packet.level = level_of(frame->cls);
    packet.frame = frame;
    packet.connection = connection(packet);
    packet.order = flow(packet).sent++;
    packet.begin = begin;
    packet.end = std::min(payload, begin + config_.packet.value);
    packet.last = packet.end == payload;
    packet.bytes = Bytes(packet.end - begin + (begin == 0 ? protocol::kFrameHeaderBytes : 0));
    begin = packet.end;
    transmit(std::move(packet));
  } while (begin < payload);
}

void Network::send(HostIndex from, HostIndex to, const Heartbeat& beat) {
  Packet packet;
  packet.from = from;
  packet.to = to;
  packet.bytes = kHeartbeatBytes;
  packet.beat = beat;
  transmit(std::move(packet));
}

void Network::close(std::size_t job, HostIndex host) {
  at(host).open[job] = false;
}
void Network::remove(HostIndex host) {
  at(host).open.assign(jobs_.size(), false);
  at(host).present = false;
}
void Network::set_cut(HostIndex from, HostIndex to, bool cut) {
  cut_[index(from, to)] = cut;
}
void Network::scale_downlink(HostIndex host, double factor) {
  downlinks_[host.value]->set_rate(scaled(config_.hosts[host.value].downlink.rate, factor));
}
void Network::scale_uplink(HostIndex host, double factor) {
  uplinks_[host.value]->set_rate(scaled(config_.hosts[host.value].uplink.rate, factor));
}

void Network::transmit(Packet packet) {
  ++packets_;
  if (congestion_) return congestion_->leave(std::move(packet));
  const HostIndex from = packet.from;
  TL_ASSERT(uplinks_[from.value]->offer(std::move(packet)));
}

void Network::at_switch(Packet packet) {
  const Duration extra = config_.jitter.value > 0 ? random_.between(Duration(0), config_.jitter) : Duration(0);
  if (extra.value == 0) return forward(std::move(packet));
  events_.after(extra, [this, packet = std::move(packet)]() mutable { forward(std::move(packet)); });
}

void Network::forward(Packet packet) {
  const bool dropped = packet.frame != nullptr && dropped_[index(packet.from, packet.to) * kLevels + packet.level];
  if (cut_[index(packet.from, packet.to)] || dropped || random_.chance(config_.loss)) return lose(std::move(packet));
  enqueue(std::move(packet));
}

void Network::enqueue(Packet packet) {
  Port& port = *downlinks_[packet.to.value];
  const bool kept = !congestion_ || congestion_->arrive(packet, port.queued(packet.level));
  if (kept && port.offer(std::move(packet))) return;
  ++overflowed_;
  lose(std::move(packet));
}

void Network::lose(Packet packet) {
  ++lost_;
  if (packet.frame == nullptr || !is_open(packet.frame->job, packet.from)) return;
  const Duration timeout{
      std::min(config_.first_timeout.value << std::min(packet.attempts, 20u), config_.last_timeout.value)};
  ++packet.attempts;
  events_.after(timeout, [this, packet = std::move(packet)]() mutable {
    const bool current = packet.connection == connection(packet);
    if (is_open(packet.frame->job, packet.from) && current) transmit(std::move(packet));
  });
}

void Network::at_host(Packet packet) {
  if (packet.foreign) return;
  if (congestion_) congestion_->received(packet);
  Attached& host = at(packet.to);
  if (packet.frame == nullptr) {
    if (host.present && at(packet.from).present) host.sink->on_heartbeat(packet.from, packet.beat);
    return;
  }
  if (!host.open[packet.frame->job]) return;  // nobody listens; the sender finds out by heartbeats
  if (packet.connection != connection(packet)) return;
  ReceivingFlow& receiving = flow(packet);
  if (packet.order != receiving.expected) {
    receiving.held.emplace(packet.order, std::move(packet));
    return;
  }
  for (;;) {
    ++receiving.expected;
    host.sink->on_packet(packet);
    if (packet.last) {
      at(packet.from).sink->on_arrived(packet.frame);
      acknowledge(packet.frame, packet.connection);
    }
    const auto next = receiving.held.find(receiving.expected);
    if (next == receiving.held.end()) return;
    packet = std::move(next->second);
    receiving.held.erase(next);
  }
}

void Network::acknowledge(FramePtr frame, std::uint64_t on) {
  // Acknowledgements are small and go first everywhere: they take the way back's delay and wait for a cut to heal.
  const Duration back = config_.hosts[frame->to.value].uplink.delay + config_.hosts[frame->from.value].downlink.delay;
  events_.after(back, [this, on, frame = std::move(frame)] {
    const Channel channel{frame->job, frame->to, level_of(frame->cls)};
    if (!is_open(frame->job, frame->from) || on != connection(frame->from, channel)) return;
    if (is_cut(frame->to, frame->from)) {
      events_.after(config_.first_timeout, [this, on, frame] { acknowledge(frame, on); });
      return;
    }
    at(frame->from).sink->on_acknowledged(frame);
  });
}

// ---- connections ----

void Network::tell(HostIndex from, const Channel& channel, ledger::Number delivered) {
  // As small as an acknowledgement, and as quick.
  const HostIndex to = channel.peer;
  const Duration there = config_.hosts[from.value].uplink.delay + config_.hosts[to.value].downlink.delay;
  events_.after(there, [this, from, to, channel, delivered, on = connection(from, channel)] {
    if (!is_open(channel.job, to) || !is_open(channel.job, from) || on != connection(from, channel)) return;
    if (is_cut(from, to)) {
      events_.after(config_.first_timeout, [this, from, channel, delivered, on] {
        if (on == connection(from, channel)) tell(from, channel, delivered);
      });
      return;
    }
    // One that waited for a cut to heal may have been overtaken.
    const Channel back{channel.job, from, channel.level};
    ledger::Number& told = flows_[flow_index(to, back)].told;
    if (delivered < told) return;
    told = delivered;
    at(to).sink->on_acknowledged(back, delivered);
  });
}

void Network::reset(HostIndex host, const Channel& channel) {
  const HostIndex peer = channel.peer;
  if (!is_open(channel.job, host) || !is_open(channel.job, peer)) return;
  const Channel back{channel.job, host, channel.level};
  const std::uint64_t on = ++connection(host, channel);
  flows_[flow_index(host, channel)] = {};
  at(peer).sink->on_reset(back);
  flows_[flow_index(peer, back)] = {};
  at(host).sink->on_reset(channel);
  reconnect(host, channel, on, kFirstBackoff);
}

void Network::reconnect(HostIndex host, const Channel& channel, std::uint64_t on, Duration backoff) {
  events_.after(backoff, [this, host, channel, on, backoff] {
    const HostIndex peer = channel.peer;
    const bool open = is_open(channel.job, host) && is_open(channel.job, peer);
    if (!open || on != connection(host, channel)) return;
    const Channel back{channel.job, host, channel.level};
    std::optional<ledger::Number> here, there;
    if (!is_cut(host, peer) && !is_cut(peer, host)) {
      here = at(host).sink->on_reconnect(channel);
      there = at(peer).sink->on_reconnect(back);
    }
    if (!here || !there) return reconnect(host, channel, on, std::min(Duration(backoff.value * 2), kLastBackoff));
    at(host).sink->on_resumed(channel, *there);
    at(peer).sink->on_resumed(back, *here);
  });
}

}  // namespace tensorlane::simulator
