#include "simulator/host/watched_traffic.h"

namespace tensorlane::simulator {

WatchedTraffic::WatchedTraffic(EventQueue& events, const Config& config)
    : events_(events), config_(config), network_(events, config.network, Random(1)) {
  const std::size_t hosts = config_.network.hosts.size();
  const auto load = [&](const PortConfig& port) {
    return progress::PortLoad(config_.links_known ? port.rate : BitsPerSecond());
  };
  for (std::uint16_t h = 0; h < hosts; ++h) {
    Host& host = *hosts_.emplace_back(std::make_unique<Host>(*this, HostIndex(h)));
    host.sending = load(config_.network.hosts[h].uplink);
    for (const HostPorts& peer : config_.network.hosts) host.receiving.push_back(load(peer.downlink));
    network_.attach(HostIndex(h), &host);
  }
  events_.after(config_.heartbeat, [this] { beat(); });
}

void WatchedTraffic::fill(HostIndex from, HostIndex to, ClassId cls, bool on) {
  const Key key{from, to, cls};
  flows_[key].on = on;
  send_more(key, flows_[key]);
}

void WatchedTraffic::send_more(const Key& key, Flow& flow) {
  const auto [from, to, cls] = key;
  while (flow.on && flow.given - flow.delivered < config_.window) {
    auto frame = std::make_shared<Frame>();
    frame->from = from;
    frame->to = to;
    frame->cls = cls;
    frame->payload.resize(config_.frame.value);
    hosts_[from.value]->sent[cls.value] += config_.frame.value;
    ++flow.given;
    network_.send(std::move(frame));
  }
}

void WatchedTraffic::Host::on_packet(const Packet& packet) {
  if (!packet.last) return;
  received[packet.frame->cls.value] += packet.frame->payload.size();
  ++traffic.flows_[{packet.from, self, packet.frame->cls}].delivered;
}

// The window has room again.
void WatchedTraffic::Host::on_acknowledged(const FramePtr& frame) {
  const Key key{self, frame->to, frame->cls};
  traffic.send_more(key, traffic.flows_[key]);
}

void WatchedTraffic::Host::on_heartbeat(HostIndex from, const Heartbeat& beat) {
  if (!beat.delivered) return;
  receiving[from.value].sample(beat.delivered->at, traffic.events_.now(), beat.delivered->received);
  for (auto& [key, flow] : traffic.flows_) {
    const auto [sender, to, cls] = key;
    if (sender != self || to != from) continue;
    if (const auto said = beat.delivered->frames.find({self, cls}); said != beat.delivered->frames.end())
      flow.heard = said->second;
  }
}

// Every host says what it has, and looks at the flows that it sends on.
void WatchedTraffic::beat() {
  const Time now = events_.now();
  events_.after(config_.heartbeat, [this] { beat(); });
  for (const auto& host : hosts_) {
    host->sending.sample(now, now, host->sent);
    auto delivered = std::make_shared<Delivered>(Delivered{now, host->received, {}});
    for (const auto& [key, flow] : flows_) {
      const auto [from, to, cls] = key;
      if (to == host->self) delivered->frames[{from, cls}] = flow.delivered;
    }
    for (const auto& peer : hosts_) {
      if (peer != host) network_.send(host->self, peer->self, Heartbeat{0, delivered});
    }
  }
  for (auto& [key, flow] : flows_) {
    const auto [from, to, cls] = key;
    const Host& sender = *hosts_[from.value];
    const bool filled = sender.sending.filled_above(cls, now) || sender.receiving[to.value].filled_above(cls, now);
    const Verdict verdict = flow.watch.look({flow.given, flow.heard, false}, filled, now, config_.limits);
    Given& given = flow.verdicts[verdict];
    ++given.count;
    given.last = now;
  }
}

WatchedTraffic::Given WatchedTraffic::given(HostIndex from, HostIndex to, ClassId cls, Verdict verdict) const {
  const auto flow = flows_.find({from, to, cls});
  if (flow == flows_.end()) return {};
  const auto found = flow->second.verdicts.find(verdict);
  return found == flow->second.verdicts.end() ? Given() : found->second;
}

std::uint64_t WatchedTraffic::delivered(HostIndex from, HostIndex to, ClassId cls) const {
  const auto flow = flows_.find({from, to, cls});
  return flow == flows_.end() ? 0 : flow->second.delivered;
}

}  // namespace tensorlane::simulator
