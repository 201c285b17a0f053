// Cisco NX-OS, Nexus 9000: classification (type qos), PFC (type network-qos) and scheduling (type queuing), and the
// ports that use them.
#include <algorithm>

#include <fmt/format.h>

#include "switch-config/render/lines.h"
#include "switch-config/render/render.h"

namespace tensorlane::switches {

namespace {

const char* source_text(PortKind::Headroom::Source source) {
  switch (source) {
    case PortKind::Headroom::Source::kFormula:
      return "by the vendor's formula";
    case PortKind::Headroom::Source::kTable:
      return "from the fabric file's table";
    case PortKind::Headroom::Source::kEstimate:
      return "an estimate, no vendor's number";
  }
  return "";
}

class Nxos {
 public:
  explicit Nxos(const DeviceQos& device) : device_(device), weights_(used_weights(device)) {
    // Several strict queues have to be the highest groups, without a gap, in the order of their levels; the group is
    // the queue. All other classes keep their numbers, which are below.
    std::size_t next = kQueues;
    for (std::size_t q = kQueues; q-- > 0;) {
      const Queue& queue = device.queues[q];
      group_[q] = queue.strict && !queue.name.empty() ? --next : q;
    }
  }

  Result<std::string> make() {
    TL_RETURN_IF_ERROR(check());
    text_ = heading(device_, "!", "QoS of the fabric's classes for Cisco NX-OS, from fabric.yaml");
    line("! The group of a class is its queue; strict classes have the highest ones, whatever their PFC priority is.");
    add_classification();
    add_network_qos();
    for (std::size_t i = 0; i < device_.kinds.size(); ++i) {
      add_scheduling(i);
      if (needs_pause_buffer(device_.kinds[i])) add_pause_buffer(i);
    }
    line("system qos\n  service-policy type network-qos FABRIC-NQ");
    if (device_.lossless_mask() != 0) add_watchdog();
    for (const DevicePort& port : device_.ports) add_port(port);
    return std::move(text_);
  }

 private:
  Status check() const {
    TL_RETURN_IF_ERROR(check_ports(device_, "NX-OS", {"Ethernet#/#", "Ethernet#/#/#"}));
    TL_RETURN_IF_ERROR(check_mtu(device_, "NX-OS", kMostMtu));
    for (const PortKind& kind : device_.kinds) {
      if (needs_pause_buffer(kind)) TL_RETURN_IF_ERROR(refuse_estimate(device_, kind));
      for (const auto& ecn : kind.ecn) {
        if (ecn && ecn->kmax.value > kMostThreshold)
          return Status(Code::kInvalidArgument, fmt::format("an ECN threshold of {} bytes", ecn->kmax.value),
                        fmt::format("device '{}'", device_.name),
                        fmt::format("NX-OS takes at most {}", kMostThreshold));
      }
    }
    return Status::ok_status();
  }

  void line(const std::string& text) { text_ += text + '\n'; }

  bool is_used(std::size_t queue) const { return !device_.queues[queue].name.empty(); }

  // "c-out-8q-q6", or the default class of group 0.
  static std::string of_group(std::string_view start, std::size_t group) {
    return group == 0 ? fmt::format("{}-default", start) : fmt::format("{}{}", start, group);
  }

  // By number: classes may be called anything. DSCP or PCP; what no class matches is default traffic.
  void add_classification() {
    for (std::size_t q = kQueues; q-- > 1;) {
      if (!is_used(q)) continue;
      line(fmt::format("! {}\nclass-map type qos match-any FABRIC-TC{}", device_.queues[q].name, q));
      const std::vector<std::size_t> dscps = dscps_of(device_, q), pcps = pcps_of(device_, q);
      if (!dscps.empty()) line("  match dscp " + joined(dscps, ","));
      if (!pcps.empty()) line("  match cos " + joined(pcps, ","));
    }
    line("policy-map type qos FABRIC-IN");
    for (std::size_t q = kQueues; q-- > 1;) {
      if (is_used(q)) line(fmt::format("  class FABRIC-TC{}\n    set qos-group {}", q, group_[q]));
    }
    if (!has_untrusted(device_)) return;
    line("! What enters ports without a link is default traffic, and marks of ours are taken off.");
    line("class-map type qos match-any FABRIC-CLASSES\n  match dscp " + joined(class_dscps(device_), ","));
    line("policy-map type qos FABRIC-EDGE\n  class FABRIC-CLASSES\n    set qos-group 0\n    set dscp 0");
  }

  void add_network_qos() {
    std::uint32_t mtu = 1500;
    for (const PortKind& kind : device_.kinds) mtu = std::max(mtu, kind.mtu);
    line("policy-map type network-qos FABRIC-NQ");
    for (std::size_t q = kQueues; q-- > 0;) {
      if (!is_used(q)) continue;
      line(fmt::format("  class type network-qos {}\n    mtu {}", of_group("c-8q-nq", group_[q]), mtu));
      if (device_.queues[q].lossless) line(fmt::format("    pause pfc-cos {}", q));
    }
  }

  void add_scheduling(std::size_t index) {
    const PortKind& kind = device_.kinds[index];
    line(fmt::format("! {}\npolicy-map type queuing FABRIC-OUT-{}", describe(kind), index));
    std::array<std::size_t, kQueues> of{};  // group -> queue; an unused one has the number of the default class
    for (std::size_t q = 0; q < kQueues; ++q) {
      if (is_used(q)) of[group_[q]] = q;
    }
    unsigned level = 0;
    for (std::size_t group = kQueues; group-- > 0;) {
      const std::size_t q = of[group];
      const Queue& queue = device_.queues[q];
      line(fmt::format("  class type queuing {}", of_group("c-out-8q-q", group)));
      if (q == 0 && group != 0) {
        line("    bandwidth remaining percent 0");
        continue;
      }
      if (queue.strict && ++level == 2) line("    ! In doubt: some chips take one level of priority only.");
      line(queue.strict ? fmt::format("    priority level {}", level)
                        : fmt::format("    bandwidth remaining percent {}", weights_[q]));
      if (queue.shaper != 0) {
        if (level <= 1) line("    ! In doubt: whether this chip shapes a priority queue.");
        line(fmt::format("    shape min 0 mbps max {} mbps", kind.speed.value / 100 * queue.shaper / kMegabit));
      }
      if (kind.ecn[q])
        line(
            fmt::format("    random-detect minimum-threshold {} bytes maximum-threshold {} bytes drop-probability {} "
                        "weight 0 ecn",
                        kind.ecn[q]->kmin.value, kind.ecn[q]->kmax.value, kind.ecn[q]->pmax_percent));
    }
  }

  bool needs_pause_buffer(const PortKind& kind) const {
    return kind.headroom && kind.trusted && kind.cable_metres > kAutomaticMetres;
  }

  void add_pause_buffer(std::size_t index) {
    const PortKind::Headroom& headroom = *device_.kinds[index].headroom;
    const std::uint64_t pause = std::max(headroom.xon.value, kLeastPauseThreshold);
    const std::uint64_t size = std::max(pause + headroom.xoff.value, kLeastPauseBuffer);
    line(fmt::format("! Headroom of cables over {:g} m, {}. In doubt: the names of input queues on this chip.",
                     kAutomaticMetres, source_text(headroom.source)));
    line(fmt::format("policy-map type queuing FABRIC-PAUSE-{}", index));
    for (const std::size_t q : lossless_queues(device_))
      line(fmt::format("  class type queuing {}\n    pause buffer-size {} pause-threshold {} resume-threshold {}",
                       of_group("c-in-q", group_[q]), size, pause, pause));
  }

  void add_watchdog() {
    const fabric::Watchdog& watchdog = device_.watchdog;
    const auto polls = [&](Duration time) {
      return (time.value + watchdog.poll.value - 1) / std::max<std::int64_t>(watchdog.poll.value, 1);
    };
    line("priority-flow-control watch-dog-interval on");
    line(fmt::format("priority-flow-control watch-dog interval {}", milliseconds_of(watchdog.poll)));
    line(fmt::format("priority-flow-control watch-dog shutdown-multiplier {}", polls(watchdog.detection)));
    line("! In doubt: how this line is spelled; the multiplier counts polls.");
    line(fmt::format("priority-flow-control auto-restore multiplier {}", polls(watchdog.restoration)));
  }

  void add_port(const DevicePort& port) {
    const PortKind& kind = device_.kinds[port.kind];
    line(fmt::format("interface {}\n  mtu {}", port.name, kind.mtu));
    if (lossless_at(device_, kind) != 0) {
      const bool drop = device_.watchdog.action == fabric::Watchdog::Action::kDrop;
      line("  priority-flow-control mode on");
      line(fmt::format("  priority-flow-control watch-dog-interval on{}", drop ? "" : " disable-action"));
    } else {
      line("  priority-flow-control mode off");
    }
    line(fmt::format("  service-policy type qos input {}", kind.trusted ? "FABRIC-IN" : "FABRIC-EDGE"));
    if (needs_pause_buffer(kind)) line(fmt::format("  service-policy type queuing input FABRIC-PAUSE-{}", port.kind));
    line(fmt::format("  service-policy type queuing output FABRIC-OUT-{}", port.kind));
  }

  static constexpr std::uint32_t kMostMtu = 9216;
  static constexpr double kAutomaticMetres = 100;  // up to here the switch sizes the headroom of no-drop classes itself
  static constexpr std::uint64_t kLeastPauseBuffer = 27456, kLeastPauseThreshold = 12480;  // of a 93180YC-EX
  static constexpr std::uint64_t kMegabit = 1'000'000;
  static constexpr std::uint64_t kMostThreshold = 52'000'000;  // bytes, of ECN

  const DeviceQos& device_;
  std::array<unsigned, kQueues> weights_;
  std::array<std::size_t, kQueues> group_{};
  std::string text_;
};

}  // namespace

Result<std::vector<RenderedFile>> render_nxos(const DeviceQos& device) {
  TL_ASSIGN_OR_RETURN(std::string text, Nxos(device).make());
  return std::vector<RenderedFile>{{.name = "config.txt", .text = std::move(text)}};
}

}  // namespace tensorlane::switches
