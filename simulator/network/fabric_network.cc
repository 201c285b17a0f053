#include "simulator/network/fabric_network.h"

#include <algorithm>

#include "common/base/assert.h"

namespace tensorlane::simulator {

FabricNetwork::FabricNetwork(EventQueue& events, const Topology& topology, const FabricNetworkOptions& options)
    : events_(events),
      topology_(topology),
      options_(options),
      routes_(topology),
      sinks_(topology.hosts),
      flows_of_hosts_(topology.hosts),
      ports_(topology.cables.size() * 2),
      by_flow_(options.marking || options.buffer),
      random_(options.seed) {
  TL_ASSERT(options_.train.value > 0 && options_.goodput > 0);
  if (options_.buffer || options_.flow_control) memory_.emplace(topology, options_.buffer, options_.flow_control);
  if (by_flow_) leaving_.resize(ports_.size(), kNone);
  for (std::size_t c = 0; c < topology_.cables.size(); ++c) {
    const Cable& cable = topology_.cables[c];
    const auto rate = static_cast<std::uint64_t>(static_cast<double>(cable.rate.value) * options_.goodput);
    TL_ASSERT(rate > 0);
    for (std::size_t end : {0u, 1u}) {
      Port& port = ports_[2 * c + end];
      port.to = end == 0 ? cable.b : cable.a;
      port.rate = BitsPerSecond(rate);
      port.delay = cable.delay;
    }
  }
}

std::uint32_t FabricNetwork::new_train() {
  if (free_trains_.empty()) {
    trains_.emplace_back();
    return static_cast<std::uint32_t>(trains_.size() - 1);
  }
  const std::uint32_t train = free_trains_.back();
  free_trains_.pop_back();
  return train;
}

// The port of `node` that the message's flow leaves by.
std::uint32_t FabricNetwork::route(NodeIndex node, const Message& m) const {
  const std::span<const std::uint32_t> ports = routes_.ports(node, m.to);
  TL_ASSERT(!ports.empty());
  if (ports.size() == 1) return ports.front();
  // A flow keeps its way, so that it stays in order.
  const std::uint64_t flow = std::uint64_t{m.from.value} << 24 | std::uint64_t{m.to.value} << 8 | m.level;
  return ports[mix(flow ^ std::uint64_t{node} << 48) % ports.size()];
}

void FabricNetwork::open(HostIndex from, HostIndex to, std::uint8_t job, std::size_t level) {
  ++flows_of_hosts_[from.value];
  ++flows_of_hosts_[to.value];
  sinks_[to.value]->on_opened(from, job, level);
}

void FabricNetwork::send(const Message& message) {
  ++operations_;
  std::uint32_t index = 0;
  if (free_messages_.empty()) {
    index = static_cast<std::uint32_t>(messages_.size());
    messages_.push_back(message);
  } else {
    index = free_messages_.back();
    free_messages_.pop_back();
    messages_[index] = message;
  }
  if (by_flow_) outstanding_.resize(messages_.size());
  const bool pausable = options_.flow_control && (options_.flow_control->levels & 1) != 0;
  if (message.level == 0 && options_.discipline == Discipline::kStrict && !pausable) return send_ahead(index);
  if (by_flow_) return send_by_flow(index);
  const std::uint32_t port = route(message.from.value, message);
  std::uint64_t left = message.header.payload_bytes + options_.header_bytes;
  do {
    const std::uint32_t train = new_train();
    const std::uint64_t bytes = std::min(left, options_.train.value);
    left -= bytes;
    trains_[train] = {
        .message = index, .bytes = static_cast<std::uint32_t>(bytes), .whole = events_.now(), .last = left == 0};
    enqueue(port, train);
  } while (left > 0);
}

// Control is one packet that goes first everywhere. A real port lets it pass after a packet, and not after a train.
void FabricNetwork::send_ahead(std::uint32_t index) {
  const Message& message = messages_[index];
  const std::uint64_t bytes = message.header.payload_bytes + options_.header_bytes;
  const std::uint32_t train = new_train();
  trains_[train] = {.message = index, .bytes = static_cast<std::uint32_t>(bytes), .last = true};
  Time whole = events_.now();
  for (NodeIndex node = message.from.value; node != message.to.value;) {
    Port& port = ports_[route(node, message)];
    const Duration taken = length(port, bytes);
    port.counters.busy += taken;
    whole = whole + port.delay + taken;
    node = port.to;
  }
  events_.at(whole, [this, train] { deliver(train); });
}

void FabricNetwork::enqueue(std::uint32_t index, std::uint32_t train) {
  Port& port = ports_[index];
  const std::uint8_t level = messages_[trains_[train].message].level;
  Queue& queue = port.queues[options_.discipline == Discipline::kFifo ? 0 : level];
  trains_[train].next = kNone;
  (queue.last == kNone ? queue.first : trains_[queue.last].next) = train;
  queue.last = train;
  queue.bytes += trains_[train].bytes;
  std::uint64_t queued = 0;
  for (const Queue& q : port.queues) queued += q.bytes;
  port.counters.peak_bytes = std::max(port.counters.peak_bytes, queued);
  if (!port.sending) start(index);
}

// The queue that is served next, or kLevels. A level that is paused waits; in a single queue it holds up the others.
std::uint32_t FabricNetwork::next_level(const Port& port) const {
  for (std::uint32_t level = 0; level < kLevels; ++level) {
    const Queue& queue = port.queues[level];
    if (queue.first == kNone) continue;
    const std::uint8_t of = messages_[trains_[queue.first].message].level;
    if ((port.paused >> of & 1) == 0) return level;
  }
  return kLevels;
}

void FabricNetwork::start(std::uint32_t index) {
  Port& port = ports_[index];
  const std::uint32_t level = next_level(port);
  if (level == kLevels) return;
  Queue& queue = port.queues[level];
  const std::uint32_t train = queue.first;
  Train& t = trains_[train];
  queue.first = t.next;
  if (queue.first == kNone) queue.last = kNone;
  port.sending = true;
  port.sending_bytes = t.bytes;
  port.sending_ingress = t.ingress;
  port.sending_level = messages_[t.message].level;
  if (by_flow_) leaving_[index] = t.ingress == kNone ? outstanding_[t.message].flow : kNone;
  const Time now = events_.now(), end = now + length(port, t.bytes);
  port.counters.busy += end - now;
  events_.at(end, [this, index, level] { sent(index, level); });
  t.whole = end + port.delay;
  if (port.to < topology_.hosts) {
    events_.at(t.whole, [this, train] { deliver(train); });
    return;
  }
  // The next port begins when it has the first packet, but no sooner than that the last one is there in time.
  const std::uint32_t onward = route(port.to, messages_[t.message]);
  t.ingress = index;
  const Time first = std::max(now + port.delay, t.whole + length(ports_[onward], t.bytes) * -1);
  const std::uint64_t key = std::uint64_t{onward} << 32 | train;
  events_.at(first, [this, key] { arrive(static_cast<std::uint32_t>(key >> 32), static_cast<std::uint32_t>(key)); });
}

Duration FabricNetwork::length(const Port& port, std::uint64_t bytes) {
  const auto rate = port.rate.value;
  return Duration(
      static_cast<std::int64_t>((static_cast<unsigned __int128>(bytes) * 8'000'000'000u + rate / 2) / rate));
}

void FabricNetwork::arrive(std::uint32_t port, std::uint32_t train) {
  if (memory_ && !is_kept(port, train)) return train_refused(train);
  if (options_.marking) mark(port, train);
  enqueue(port, train);
}

void FabricNetwork::sent(std::uint32_t index, std::uint32_t level) {
  Port& port = ports_[index];
  port.queues[level].bytes -= port.sending_bytes;
  port.sending = false;
  if (memory_ && port.sending_ingress != kNone) {
    for (const SwitchMemory::Resumed& one :
         memory_->give(port.sending_ingress, port.sending_level, port.sending_bytes)) {
      const std::uint64_t key = std::uint64_t{one.ingress} << 32 | one.level;
      events_.after(ports_[one.ingress].delay, [this, key] {
        set_paused(static_cast<std::uint32_t>(key >> 32), static_cast<std::uint32_t>(key), false);
      });
    }
  }
  if (by_flow_ && leaving_[index] != kNone) train_left(leaving_[index]);
  if (!port.sending) start(index);
}

void FabricNetwork::deliver(std::uint32_t train) {
  const Train t = trains_[train];
  free_trains_.push_back(train);
  if (by_flow_ && outstanding_[t.message].flow != kNone) return train_arrived(t);
  if (t.last) hand_over(t.message);
}

void FabricNetwork::hand_over(std::uint32_t index) {
  // A copy: what the sink sends in answer may move the list.
  const Message message = messages_[index];
  if (message.job == kForeignJob) {
    free_messages_.push_back(index);
    return foreign_->on_delivered(message);
  }
  sinks_[message.to.value]->on_delivered(message);
  if (message.token == 0 && message.header.payload_bytes == 0) return free_messages_.push_back(index);
  events_.after(way_back(message), [this, index] {
    const Message acknowledged = messages_[index];
    free_messages_.push_back(index);
    sinks_[acknowledged.from.value]->on_acknowledged(acknowledged);
  });
}

// Acknowledgements are small and go first everywhere: they take the cables' delays.
Duration FabricNetwork::way_back(const Message& message) const {
  Duration delay;
  for (NodeIndex node = message.from.value; node != message.to.value;) {
    const Port& port = ports_[route(node, message)];
    delay += port.delay;
    node = port.to;
  }
  return delay;
}

// ---- flow control ----

bool FabricNetwork::is_kept(std::uint32_t index, std::uint32_t train) {
  const Train& t = trains_[train];
  const std::uint8_t level = messages_[t.message].level;
  const Queue& queue = ports_[index].queues[options_.discipline == Discipline::kFifo ? 0 : level];
  const SwitchMemory::Verdict verdict = memory_->take(t.ingress, level, t.bytes, queue.bytes);
  if (verdict == SwitchMemory::Verdict::kKeptAndPause) {
    const std::uint64_t key = std::uint64_t{t.ingress} << 32 | level;
    events_.after(ports_[t.ingress].delay, [this, key] {
      set_paused(static_cast<std::uint32_t>(key >> 32), static_cast<std::uint32_t>(key), true);
    });
  }
  return verdict != SwitchMemory::Verdict::kRefused;
}

void FabricNetwork::set_paused(std::uint32_t index, std::uint32_t level, bool paused) {
  Port& port = ports_[index];
  const bool was = port.paused != 0;
  port.paused = paused ? port.paused | 1u << level : port.paused & ~(1u << level);
  if (paused) ++port.counters.pauses;
  if (!was && paused) port.paused_since = events_.now();
  if (was && port.paused == 0) port.counters.paused += events_.now() - port.paused_since;
  if (!paused && !port.sending) start(index);
}

FabricNetwork::Totals FabricNetwork::totals() const {
  Totals all{.marked = marked_,
             .notified = notified_,
             .refused = refused_,
             .sent_again = sent_again_,
             .discarded = discarded_};
  if (memory_) all.peak_bytes = memory_->peak_bytes();
  if (memory_) all.peak_headroom = memory_->peak_headroom();
  return all;
}

std::vector<FabricNetwork::PortCounters> FabricNetwork::counters() const {
  std::vector<PortCounters> all;
  for (const Port& port : ports_) all.push_back(port.counters);
  return all;
}

}  // namespace tensorlane::simulator
