#include "daemon/transport/dpdk/port_report.h"

#include "common/base/assert.h"

namespace tensorlane::dpdk {
namespace {

constexpr Duration kWindow = seconds(1);  // of the share of busy turns
// Of a device, that other threads are shown: drivers may have thousands.
constexpr std::size_t kMostCounters = 512;

ports::DeviceCounters::Values read_counters(const PacketPort& port) {
  ports::DeviceCounters::Values values;
  for (DeviceCount& count : port.device_counts()) {
    if (values.size() == kMostCounters) break;
    values.emplace_back(std::move(count.name), count.value);
  }
  return values;
}

std::uint64_t count(Duration duration) {
  return static_cast<std::uint64_t>(duration.value);
}

}  // namespace

std::shared_ptr<ports::PortMetrics> make_port_metrics(const PacketPort& port) {
  std::vector<std::string> reasons;
  for (std::size_t i = 0; i < kDrops; ++i) reasons.emplace_back(drop_name(static_cast<Drop>(i)));
  reasons.emplace_back("unknown_flow");
  return std::make_shared<ports::PortMetrics>(port.config().device, to_string(port.mac()), std::move(reasons));
}

void PortReport::open(const PacketPort& port, std::shared_ptr<ports::PortMetrics> metrics,
                      std::vector<ClassId> classes) {
  port_ = &port;
  metrics_ = std::move(metrics);
  classes_ = std::move(classes);
  if (metrics_ != nullptr) metrics_->device_counters.set([&port] { return read_counters(port); });
}

PortReport::~PortReport() {
  if (metrics_ != nullptr) metrics_->device_counters.set(nullptr);
}

void PortReport::turn(Time now, bool worked) {
  if (std::exchange(started_, true) && now > last_turn_) {
    polled_ = polled_ + (now - last_turn_);
    if (worked) busy_ = busy_ + (now - last_turn_);
  }
  last_turn_ = now;
}

void PortReport::publish(Time now, const datagram::AssociationCounters& flows, const Strangers& strangers) {
  next_ = now + kReportInterval;
  ports::PortMetrics& m = *metrics_;
  const PortCounts& counts = port_->counts();
  TL_ASSERT(classes_.size() <= counts.sent.size() && m.drops.size() == kDrops + 1);
  for (std::size_t i = 0; i < classes_.size(); ++i) {
    ports::PortMetrics::Queue& queue = m.sent[ports::metrics_slot(classes_[i])];
    queue.packets.set(counts.sent[i].packets);
    queue.bytes.set(counts.sent[i].bytes);
    queue.full.set(counts.sent[i].full);
    queue.refused.set(counts.sent[i].refused);
  }
  m.received_packets.set(counts.received_packets - strangers.packets);
  m.received_bytes.set(counts.received_bytes - strangers.bytes);
  for (std::size_t i = 0; i < kDrops; ++i) m.drops[i].set(counts.dropped[i]);
  m.drops[kDrops].set(strangers.packets);
  m.no_memory.set(counts.no_memory);
  m.neighbour_questions.set(counts.neighbour_questions);
  m.neighbour_answers.set(counts.neighbour_answers);
  const LinkState link = port_->link();
  m.link_up.set(link.up ? 1 : 0);
  m.link_bits_per_second.set(link.speed.value);
  m.link_changes.set(counts.link_changes);
  m.polled_ns.set(count(polled_));
  m.busy_ns.set(count(busy_));
  if (const Duration window = polled_ - window_polled_; window >= kWindow) {
    m.busy_permille.set(count((busy_ - window_busy_) * 1000) / count(window));
    window_polled_ = polled_;
    window_busy_ = busy_;
  }
  m.datagrams.lost.set(flows.packets_lost);
  m.datagrams.resent.set(flows.packets_resent);
  m.datagrams.spurious.set(flows.spurious);
  m.datagrams.duplicates.set(flows.duplicates);
  m.datagrams.forged.set(flows.forged);
  m.datagrams.marked.set(flows.marked);
  m.datagrams.timeouts.set(flows.timeouts);
}

}  // namespace tensorlane::dpdk
