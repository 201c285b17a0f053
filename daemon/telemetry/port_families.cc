#include "daemon/telemetry/port_families.h"

#include <string>
#include <utility>

namespace tensorlane::telemetry {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;
using Port = ports::PortMetrics;

class Families {
 public:
  explicit Families(const ExporterConfig& config) : config_(config) {}

  // One value for each port.
  template <typename Read>
  void each_port(const char* name, const char* help, Read read) {
    begin(name, help);
    visit([&](const std::string& rail, const Port& port) { add({{"rail", rail}}, static_cast<double>(read(port))); });
  }
  // One for each class of each port.
  void each_queue(const char* name, const char* help, ports::Counter Port::Queue::*counter) {
    begin(name, help);
    visit([&](const std::string& rail, const Port& port) {
      const auto one = [&](std::size_t slot, const ClassLabel& label) {
        add({{"rail", rail}, {"class", label.name}}, static_cast<double>((port.sent[slot].*counter).value()));
      };
      for (std::size_t c = 0; c < config_.classes.size(); ++c) one(c, config_.classes[c]);
      one(ports::kControlSlot, config_.control);
    });
  }
  void drops(const char* name, const char* help) {
    begin(name, help);
    visit([&](const std::string& rail, const Port& port) {
      for (std::size_t i = 0; i < port.drops.size(); ++i)
        add({{"rail", rail}, {"reason", port.drop_reasons[i]}}, static_cast<double>(port.drops[i].value()));
    });
  }
  void device_counters(const char* name, const char* help) {
    begin(name, help);
    visit([&](const std::string& rail, const Port& port) {
      for (const auto& [counter, value] : port.device_counters.read())
        add({{"rail", rail}, {"counter", counter}}, static_cast<double>(value));
    });
  }
  std::vector<MetricFamily> take() { return std::move(families_); }

 private:
  void begin(const char* name, const char* help) {
    MetricFamily& family = families_.emplace_back();
    family.name = std::string("tensorlane_port_") + name;
    family.help = help;
    family.type = family.name.ends_with("_total") ? MetricType::Counter : MetricType::Gauge;
  }
  void add(Labels labels, double value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.counter.value = metric.gauge.value = value;
    families_.back().metric.push_back(std::move(metric));
  }
  template <typename F>
  void visit(F one) const {
    for (std::size_t r = 0; r < config_.ports.size(); ++r) {
      if (config_.ports[r] != nullptr) one(std::to_string(r), *config_.ports[r]);
    }
  }

  const ExporterConfig& config_;
  std::vector<MetricFamily> families_;
};

void add_flows(Families& families) {
  struct Row {
    const char* name;
    const char* help;
    ports::Counter Port::Datagrams::*counter;
  };
  using D = Port::Datagrams;
  static constexpr Row kRows[] = {
      {"lost_packets_total", "Packets of flows that were taken for lost", &D::lost},
      {"resent_packets_total", "Packets with what had been sent before, after a loss or a time-out", &D::resent},
      {"spurious_losses_total", "Packets that were taken for lost and arrived after all", &D::spurious},
      {"duplicate_packets_total", "Packets of flows that had come before", &D::duplicates},
      {"forged_packets_total", "Packets that nobody who has a flow's keys has made, or that were damaged", &D::forged},
      {"marked_packets_total", "Packets of flows that came with a mark of congestion (ECN)", &D::marked},
      {"flow_timeouts_total", "Times that a flow waited for acknowledgements in vain", &D::timeouts}};
  for (const Row& row : kRows)
    families.each_port(row.name, row.help, [&](const Port& port) { return (port.datagrams.*row.counter).value(); });
}

}  // namespace

std::vector<MetricFamily> port_families(const ExporterConfig& config) {
  Families families(config);
  families.each_queue("packets_total", "Packets that the device has taken from the queue of a class",
                      &Port::Queue::packets);
  families.each_queue("bytes_total", "Bytes of their frames", &Port::Queue::bytes);
  families.each_queue("queue_full_total", "Times that the device took fewer packets than it was given",
                      &Port::Queue::full);
  families.each_queue("refused_packets_total", "Packets that the device cannot send, and that were dropped",
                      &Port::Queue::refused);
  families.each_port("received_packets_total", "Packets that were handed to flows",
                     [](const Port& port) { return port.received_packets.value(); });
  families.each_port("received_bytes_total", "Bytes of their payload",
                     [](const Port& port) { return port.received_bytes.value(); });
  families.drops("drops_total", "Packets that arrived and were dropped");
  families.device_counters("device_total", "What the device and its driver have counted, under the driver's names");
  families.each_port("no_buffer_total", "Times that there was no packet buffer to send with",
                     [](const Port& port) { return port.no_memory.value(); });
  families.each_port("neighbour_questions_total", "Questions for the MAC address of a neighbour",
                     [](const Port& port) { return port.neighbour_questions.value(); });
  families.each_port("neighbour_answers_total", "Answers to such questions of neighbours",
                     [](const Port& port) { return port.neighbour_answers.value(); });
  families.each_port("link_up", "1 while the link of the port is up, else 0",
                     [](const Port& port) { return port.link_up.value(); });
  families.each_port("link_changes_total", "Times that the link went up or down",
                     [](const Port& port) { return port.link_changes.value(); });
  families.each_port("polled_seconds_total", "Time since a lane first polled the port",
                     [](const Port& port) { return static_cast<double>(port.polled_ns.value()) * 1e-9; });
  families.each_port("busy_seconds_total", "Of it, turns of the lane that had packets",
                     [](const Port& port) { return static_cast<double>(port.busy_ns.value()) * 1e-9; });
  add_flows(families);
  return families.take();
}

}  // namespace tensorlane::telemetry
