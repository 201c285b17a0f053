// Arista EOS: maps of the switch, a QoS profile for each kind of port, and the ports.
#include <array>

#include <fmt/format.h>

#include "switch-config/render/lines.h"
#include "switch-config/render/render.h"

namespace tensorlane::switches {

namespace {

class Eos {
 public:
  explicit Eos(const DeviceQos& device) : device_(device) {}

  Result<std::string> make() {
    TL_RETURN_IF_ERROR(check());
    text_ = heading(device_, "!", "QoS of the fabric's classes for Arista EOS, from fabric.yaml");
    add_doubts();
    add_maps();
    if (device_.lossless_mask() != 0) add_watchdog();
    if (has_untrusted(device_)) add_edge();
    for (std::size_t i = 0; i < device_.kinds.size(); ++i) add_profile(i);
    for (const DevicePort& port : device_.ports) add_port(port);
    return std::move(text_);
  }

 private:
  // EOS puts best effort into traffic class 1, above 0; a class of ours that has number 1 keeps it.
  std::size_t tc(std::size_t queue) const {
    const bool free = device_.queues[1].name.empty();
    return free && queue <= 1 ? 1 - queue : queue;
  }

  // The watchdog's ranges in seconds. EOS takes polls of at most half of the other two, which the policy keeps.
  Status check() const {
    TL_RETURN_IF_ERROR(check_ports(device_, "EOS", {"Ethernet#", "Ethernet#/#", "Ethernet#/#/#"}));
    if (device_.lossless_mask() == 0) return Status::ok_status();
    struct Range {
      const char* name;
      Duration value;
      double least, most;
    };
    const fabric::Watchdog& watchdog = device_.watchdog;
    for (const Range& range :
         {Range{"detection", watchdog.detection, 0.01, 60}, Range{"restoration", watchdog.restoration, 0.01, 60},
          Range{"poll", watchdog.poll, 0.005, 30}}) {
      const double seconds = to_seconds(range.value);
      if (seconds >= range.least && seconds <= range.most) continue;
      return Status(Code::kInvalidArgument, fmt::format("'{}' of the watchdog is {:g} s", range.name, seconds),
                    fmt::format("device '{}'", device_.name),
                    fmt::format("EOS takes {:g} s to {:g} s", range.least, range.most));
    }
    return Status::ok_status();
  }

  // Chips that queue unicast and multicast apart call their queues otherwise.
  bool is_split() const {
    return device_.platform.asic.starts_with("trident") || device_.platform.asic.starts_with("tomahawk");
  }
  bool is_joint() const {
    return device_.platform.asic.starts_with("jericho") || device_.platform.asic.starts_with("arad");
  }
  const char* queue_word() const { return is_split() ? "uc-tx-queue" : "tx-queue"; }

  void line(const std::string& text) { text_ += text + '\n'; }

  void add_doubts() {
    line(
        "! Headroom is EOS's own, by speed and cable: its commands differ from chip to chip and are not written here.");
    if (!is_split() && !is_joint())
      line(
          "! In doubt: chips with separate queues for unicast (Trident, Tomahawk) say 'uc-tx-queue' where a profile "
          "says "
          "'tx-queue'; name the platform's 'asic'.");
    if (!device_.queues[kControlQueue].name.empty())
      line(fmt::format("! In doubt: class '{}' shares traffic class 7 with EOS's own control traffic.",
                       device_.queues[kControlQueue].name));
  }

  void add_maps() {
    for (std::size_t q = 0; q < kQueues; ++q) {
      const std::vector<std::size_t> dscps = dscps_of(device_, q);
      if (!dscps.empty()) line(fmt::format("qos map dscp {} to traffic-class {}", joined(dscps, " "), tc(q)));
    }
    for (std::size_t q = 0; q < kQueues; ++q) {
      const std::vector<std::size_t> pcps = pcps_of(device_, q);
      if (!pcps.empty()) line(fmt::format("qos map cos {} to traffic-class {}", joined(pcps, " "), tc(q)));
    }
    for (std::size_t q = 0; q < kQueues; ++q) {
      if (!device_.queues[q].name.empty()) line(fmt::format("qos map traffic-class {0} to tx-queue {0}", tc(q)));
    }
  }

  void add_watchdog() {
    const fabric::Watchdog& watchdog = device_.watchdog;
    const std::string start = "priority-flow-control pause watchdog ";
    line(fmt::format("{}default timeout {:g}", start, to_seconds(watchdog.detection)));
    line(fmt::format("{}default recovery-time {:g}", start, to_seconds(watchdog.restoration)));
    line(fmt::format("{}default polling-interval {:g}", start, to_seconds(watchdog.poll)));
    line(fmt::format("{}action {}", start, watchdog.action == fabric::Watchdog::Action::kDrop ? "drop" : "no-drop"));
  }

  // All that strangers send is default traffic, and marks of ours are taken off.
  void add_edge() {
    line(fmt::format("!\nclass-map type qos match-any {}", kEdgeClasses));
    line("   match dscp " + joined(class_dscps(device_), " "));
    line(fmt::format("!\npolicy-map type quality-of-service {}", kEdge));
    line(fmt::format("   class {}\n      set dscp 0\n      set traffic-class {}", kEdgeClasses, tc(0)));
    line(fmt::format("   !\n   class class-default\n      set traffic-class {}", tc(0)));
  }

  static std::string profile(std::size_t kind) { return fmt::format("FABRIC-{}", kind); }

  void add_profile(std::size_t index) {
    const PortKind& kind = device_.kinds[index];
    line(fmt::format("!\n! {}\nqos profile {}", describe(kind), profile(index)));
    if (kind.trusted)
      line("   qos trust dscp");
    else
      line(fmt::format("   service-policy type qos input {}", kEdge));
    if (lossless_at(device_, kind) != 0) {
      line("   priority-flow-control on");
      for (const std::size_t q : lossless_queues(device_))
        line(fmt::format("   priority-flow-control priority {} no-drop", tc(q)));
      line("   priority-flow-control pause watchdog");
    }
    std::array<std::size_t, kQueues> queue_of{};  // by traffic class
    for (std::size_t q = 0; q < kQueues; ++q) queue_of[tc(q)] = q;
    for (std::size_t n = kQueues; n-- > 0;) {
      if (n == kControlQueue && device_.queues[n].name.empty()) continue;
      add_queue(n, device_.queues[queue_of[n]], kind.ecn[queue_of[n]]);
    }
  }

  // Strict queues are above weighted ones: 'no priority' holds for all queues below, too.
  void add_queue(std::size_t number, const Queue& queue, const std::optional<fabric::EcnThresholds>& ecn) {
    line(fmt::format("   !\n   {} {}", queue_word(), number));
    if (queue.strict)
      line("      priority strict");
    else
      line(fmt::format("      no priority\n      bandwidth percent {}", queue.weight));
    if (queue.shaper != 0) line(fmt::format("      shape rate {} percent", queue.shaper));
    if (ecn)
      line(
          fmt::format("      random-detect ecn minimum-threshold {} bytes maximum-threshold {} bytes "
                      "max-mark-probability {} weight 0",
                      ecn->kmin.value, ecn->kmax.value, ecn->pmax_percent));
  }

  void add_port(const DevicePort& port) {
    const PortKind& kind = device_.kinds[port.kind];
    line(fmt::format("!\ninterface {}", port.name));
    if (kind.mtu > kMostMtu) line(fmt::format("   ! the fabric's {}; EOS counts IP and takes {}", kind.mtu, kMostMtu));
    line(fmt::format("   mtu {}\n   service-profile {}", std::min(kind.mtu, kMostMtu), profile(port.kind)));
  }

  static constexpr std::uint32_t kMostMtu = 9214;  // of IP; frames are larger
  static constexpr std::size_t kControlQueue = 7;  // EOS's own
  static constexpr std::string_view kEdge = "FABRIC-EDGE", kEdgeClasses = "FABRIC-CLASSES";

  const DeviceQos& device_;
  std::string text_;
};

}  // namespace

Result<std::vector<RenderedFile>> render_eos(const DeviceQos& device) {
  TL_ASSIGN_OR_RETURN(std::string text, Eos(device).make());
  return std::vector<RenderedFile>{{.name = "config.txt", .text = std::move(text)}};
}

}  // namespace tensorlane::switches
