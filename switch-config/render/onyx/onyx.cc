// NVIDIA Onyx (MLNX-OS), end of life: commands for each port. The number of a class is its switch priority and its
// traffic class.
#include <charconv>

#include <fmt/format.h>

#include "switch-config/render/lines.h"
#include "switch-config/render/render.h"

namespace tensorlane::switches {

namespace {

class Onyx {
 public:
  explicit Onyx(const DeviceQos& device) : device_(device) {}

  Result<std::string> make() {
    TL_RETURN_IF_ERROR(check_ports(device_, "Onyx", {"1/#", "1/#/#"}));
    TL_RETURN_IF_ERROR(check_mtu(device_, "Onyx", 9216));
    text_ = heading(device_, "##", "QoS of the fabric's classes for NVIDIA Onyx, from fabric.yaml");
    line(
        "## Onyx documents no watchdog for PFC: none is written. The RoCE macro has one lossless class: it is not "
        "used.");
    line("## Headroom is Onyx's own, by speed: 'advanced buffer management' would take its place.");
    line("## In doubt: 'qos map', seen in configurations of others only, and 'bandwidth shape'.");
    if (has_untrusted(device_)) add_access_lists();
    if (device_.lossless_mask() != 0) {
      line("dcb priority-flow-control enable force");
      for (const std::size_t q : lossless_queues(device_))
        line(fmt::format("dcb priority-flow-control priority {} enable", q));
    }
    add_ports();
    return std::move(text_);
  }

 private:
  void line(const std::string& text) { text_ += text + '\n'; }

  // What strangers mark as one of our classes would be trusted by the next switch: it is dropped.
  void add_access_lists() {
    line("## In doubt: how access lists match DSCP in this release.");
    for (const auto& [family, name] : {std::pair("ipv4", "FABRIC-EDGE4"), std::pair("ipv6", "FABRIC-EDGE6")}) {
      line(fmt::format("{} access-list {}", family, name));
      for (const std::size_t dscp : class_dscps(device_)) line(fmt::format("  deny ip any any dscp {}", dscp));
      line("  permit ip any any\n  exit");
    }
  }

  // "1/4" -> {"1/", 4}
  static std::pair<std::string_view, unsigned> parts(std::string_view name) {
    const std::size_t digits = name.rfind('/') + 1;
    unsigned number = 0;
    std::from_chars(name.data() + digits, name.data() + name.size(), number);
    return {name.substr(0, digits), number};
  }

  static bool follows(const DevicePort& port, const DevicePort& before) {
    const auto [here, number] = parts(port.name);
    const auto [there, previous] = parts(before.name);
    return port.kind == before.kind && here == there && number == previous + 1;
  }

  // Ports of one kind that follow each other are a range: "1/1-1/32".
  void add_ports() {
    const std::vector<DevicePort>& ports = device_.ports;
    for (std::size_t first = 0, last = 0; first < ports.size(); first = ++last) {
      while (last + 1 < ports.size() && follows(ports[last + 1], ports[last])) ++last;
      add_range(first == last ? ports[first].name : fmt::format("{}-{}", ports[first].name, ports[last].name),
                device_.kinds[ports[first].kind]);
    }
  }

  void add_range(const std::string& names, const PortKind& kind) {
    const std::string start = fmt::format("interface ethernet {} ", names);
    line(fmt::format("## {}\n{}mtu {} force", describe(kind), start, kind.mtu));
    add_maps(start);
    if (!kind.trusted) {
      line(fmt::format("{0}qos trust port\n{0}qos default switch-priority 0", start));
      line(fmt::format("{0}ipv4 port access-group FABRIC-EDGE4\n{0}ipv6 port access-group FABRIC-EDGE6", start));
    } else {
      line(start + "qos trust both");
      if (lossless_at(device_, kind) != 0) line(start + "dcb priority-flow-control mode on force");
    }
    for (std::size_t q = 0; q < kQueues; ++q) add_queue(fmt::format("{}traffic-class {} ", start, q), q, kind);
  }

  // Onyx' own map is DSCP/8, so that neighbours of our marks would fall into our classes: all 64 are set.
  void add_maps(const std::string& start) {
    for (std::size_t q = 0; q < kQueues; ++q) {
      const std::vector<std::size_t> dscps = dscps_of(device_, q), pcps = pcps_of(device_, q);
      for (const std::size_t dscp : dscps) line(fmt::format("{}qos map dscp {} to switch-priority {}", start, dscp, q));
      for (const std::size_t pcp : pcps) {
        for (const unsigned dei : {0u, 1u})
          line(fmt::format("{}qos map pcp {} dei {} to switch-priority {}", start, pcp, dei, q));
      }
    }
    for (std::size_t q = 0; q < kQueues; ++q)
      line(fmt::format("{}traffic-class {} bind switch-priority {}", start, q, q));
  }

  void add_queue(const std::string& start, std::size_t q, const PortKind& kind) {
    constexpr std::uint64_t kKilo = 1000;
    const Queue& queue = device_.queues[q];
    line(start + (queue.strict ? std::string("dcb ets strict") : fmt::format("dcb ets wrr {}", queue.weight)));
    if (queue.shaper != 0)
      line(fmt::format("{}bandwidth shape {}M", start, kind.speed.value / 100 * queue.shaper / (kKilo * kKilo)));
    // In kB, to the next one: it has no words for the probability.
    if (kind.ecn[q])
      line(fmt::format("{}congestion-control ecn minimum-absolute {} maximum-absolute {}", start,
                       (kind.ecn[q]->kmin.value + kKilo - 1) / kKilo, (kind.ecn[q]->kmax.value + kKilo - 1) / kKilo));
  }

  const DeviceQos& device_;
  std::string text_;
};

}  // namespace

Result<std::vector<RenderedFile>> render_onyx(const DeviceQos& device) {
  TL_ASSIGN_OR_RETURN(std::string text, Onyx(device).make());
  return std::vector<RenderedFile>{{.name = "config.txt", .text = std::move(text)}};
}

}  // namespace tensorlane::switches
