#include "switch-config/intent/intent.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

namespace tensorlane::switches {
namespace {

using findings::Report;
using findings::Severity;

constexpr double kRounding = 0.02;  // devices count rates in coarse units

// EOS and Junos count other parts of a frame than the file does.
constexpr std::uint32_t kMtuSlack = 18;

bool near(double found, double wanted) {
  return std::abs(found - wanted) <= wanted * kRounding;
}

void compare_ecn(const Treatment& found, const fabric::EcnThresholds& wanted, std::vector<Difference>& all) {
  if (found.ecn == nullptr || !found.ecn->marks) {
    all.push_back({"L5", "it does not mark, where the file asks for ECN"});
    return;
  }
  if (std::string_view(found.ecn->unit) != "bytes" || !found.ecn->kmin || !found.ecn->kmax) return;
  const bool same = near(static_cast<double>(*found.ecn->kmin), static_cast<double>(wanted.kmin.value)) &&
                    near(static_cast<double>(*found.ecn->kmax), static_cast<double>(wanted.kmax.value)) &&
                    found.ecn->percent.value_or(wanted.pmax_percent) == wanted.pmax_percent;
  if (same) return;
  all.push_back(
      {"L5", fmt::format("it marks from {} to {} bytes with {} percent, where the file asks for {} to {} with {}",
                         *found.ecn->kmin, *found.ecn->kmax, found.ecn->percent.value_or(0), wanted.kmin.value,
                         wanted.kmax.value, wanted.pmax_percent)});
}

void compare_shaper(const Treatment& found, const Queue& queue, const PortKind& out, std::vector<Difference>& all) {
  const double wanted = static_cast<double>(out.speed.value) / 100 * queue.shaper;
  if (queue.shaper == 0 || queue.name.empty()) return;
  double rate = 0;
  if (found.shaper && found.shaper->rate) rate = static_cast<double>(found.shaper->rate->value);
  if (found.shaper && found.shaper->percent) rate = static_cast<double>(out.speed.value) / 100 * *found.shaper->percent;
  if (rate == 0)
    all.push_back(
        {"L4", fmt::format("it has no shaper, where the file asks for {} percent of the port", queue.shaper)});
  else if (!near(rate, wanted))
    all.push_back(
        {"L4", fmt::format("it may have {:.3f} Gbit/s, where the file asks for {:.3f}", rate / 1e9, wanted / 1e9)});
}

class Check {
 public:
  Check(const lint::Device& found, const DeviceQos& device, Report& report)
      : found_(found), device_(device), report_(report) {}

  void run() {
    std::map<std::string_view, const lint::Port*> ports;
    for (const lint::Port& port : found_.ports) ports[port.name] = &port;
    for (const DevicePort& wanted : device_.ports) {
      const PortKind& kind = device_.kinds[wanted.kind];
      const auto port = ports.find(wanted.name);
      if (port != ports.end())
        check_port(*port->second, kind);
      else if (kind.trusted)
        add("L3", found_.place, fmt::format("port {} of the file has no QoS here", wanted.name), "configure it");
    }
  }

 private:
  void add(const char* rule, const std::string& place, const std::string& message, const std::string& fix) {
    report_.findings.push_back({rule, Severity::kError, found_.name, place, message, fix});
  }

  // A packet that turns round: the port's maps where it enters, and its queues where it leaves.
  void check_port(const lint::Port& port, const PortKind& kind) {
    if (kind.trusted) {
      check_link(port, kind);
      check_queues(port);
    }
    for (std::size_t dscp = 0; dscp < kDscps; ++dscp) {
      const auto number = static_cast<std::uint8_t>(dscp);
      const bool of_class =
          device_.queues[device_.queue_of_dscp[dscp]].dscp == dscp && device_.queue_of_dscp[dscp] != 0;
      if (!of_class && dscp != 0) continue;
      for (const Difference& difference : differences(treatment(port, port, {number, {}}), device_, kind, kind, number))
        add(difference.rule, fmt::format("{}: DSCP {}", port.name, dscp), difference.what,
            "render the file, or correct it");
    }
  }

  void check_link(const lint::Port& port, const PortKind& kind) {
    if (port.mtu && *port.mtu + kMtuSlack < kind.mtu)
      add("L7", port.mtu_place, fmt::format("{} bytes, where the file asks for {}", *port.mtu, kind.mtu),
          "set its MTU");
    if (port.cable_metres && *port.cable_metres + 1 < kind.cable_metres)
      add("L6", port.cable_place,
          fmt::format("headroom for {} m, where the file has a cable of {} m", *port.cable_metres, kind.cable_metres),
          "give its length");
  }

  // DSCPs of one class of the file are together, and those of two classes apart.
  void check_queues(const lint::Port& port) {
    std::map<unsigned, unsigned> here, there;
    for (std::size_t dscp = 0; dscp < kDscps; ++dscp) {
      const auto queue = treatment(port, port, {static_cast<std::uint8_t>(dscp), {}}).queue;
      if (!queue) continue;
      const unsigned wanted = device_.queue_of_dscp[dscp];
      const bool same = here.try_emplace(wanted, *queue).first->second == *queue;
      const bool alone = there.try_emplace(*queue, wanted).first->second == wanted;
      if (same && alone) continue;
      add("L1", port.dscp_to_class == nullptr ? port.name : port.dscp_to_class->entry(dscp),
          fmt::format("DSCP {} of class '{}' is in queue {} of {}, {}", dscp, name_of(wanted), *queue, port.name,
                      same ? "which is another class's" : "and others of its class are not"),
          "map it as the file does");
    }
  }

  std::string name_of(unsigned queue) const {
    return device_.queues[queue].name.empty() ? "default" : device_.queues[queue].name;
  }

  const lint::Device& found_;
  const DeviceQos& device_;
  Report& report_;
};

}  // namespace

std::vector<Difference> differences(const Treatment& found, const DeviceQos& device, const PortKind& in,
                                    const PortKind& out, std::uint8_t dscp) {
  std::vector<Difference> all;
  const Queue& arrives = device.queues[in.trusted ? device.queue_of_dscp[dscp] : 0];
  const bool paused = arrives.lossless && in.trusted;
  if (found.paused && *found.paused != paused)
    all.push_back({"L3", paused ? "PFC does not stop its sender, where the file asks for a lossless class"
                                : "PFC stops its sender, where the file asks for a lossy class"});
  const std::size_t number = in.trusted ? device.queue_of_dscp[dscp] : 0;
  if (found.pfc_priority && paused && *found.pfc_priority != number)
    all.push_back({"L3", fmt::format("priority {} is in its pause frames, where the file asks for {}",
                                     *found.pfc_priority, number)});
  if (found.scheduling && found.scheduling->strict != arrives.strict)
    all.push_back({"L4", arrives.strict ? "its queue is weighted, where the file asks for strict"
                                        : "its queue is strict, where the file asks for weighted"});
  if (out.ecn[number])
    compare_ecn(found, *out.ecn[number], all);
  else if (found.ecn != nullptr && found.ecn->marks)
    all.push_back({"L5", "it marks, where the file asks for no ECN"});
  compare_shaper(found, arrives, out, all);
  return all;
}

void check_intent(const lint::Device& found, const DeviceQos& device, Report& report) {
  Check(found, device, report).run();
}

}  // namespace tensorlane::switches
