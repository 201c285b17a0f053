// Linux: egress queues in software (tc). Hierarchical token buckets serve a class below its rate by its priority, so
// strict classes come first and end at their shapers; weighted ones are guaranteed the rest and lend what is left.
#include "switch-config/render/linux/linux.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "switch-config/render/render.h"

namespace tensorlane::switches {

namespace {

constexpr unsigned kFirstLeaf = 0x10;  // 1:10 is queue 0
constexpr unsigned kFrameOverhead = 14;
// Before it is segmented, or after it was put together. HTB sends one packet of a class in each round even if it is
// larger than the quantum: weights hold only where quanta are not smaller.
constexpr unsigned kLargestPacket = 65536;
constexpr unsigned kRedPacket = 1000;      // what RED averages over
constexpr std::size_t kMaxInterface = 15;  // IFNAMSIZ
constexpr int kWeightedPriority = 7;       // HTB's lowest

std::string leaf(std::size_t queue) {
  return fmt::format("1:{:x}", kFirstLeaf + queue);
}

std::uint64_t share(BitsPerSecond speed, double percent) {
  return std::max<std::uint64_t>(1000, static_cast<std::uint64_t>(static_cast<double>(speed.value) * percent / 100));
}

// The commands of one port, as `tc -batch` reads them.
class PortLines {
 public:
  PortLines(const DeviceQos& device, const DevicePort& port)
      : device_(device), kind_(device.kinds[port.kind]), name_(port.name) {}

  std::string make() {
    add("qdisc", fmt::format("root handle 1: htb default {:x}", kFirstLeaf));
    const std::uint64_t burst = std::max<std::uint64_t>(2ull * frame(), kind_.speed.value / 8 / 4000);
    add("class", fmt::format("parent 1: classid 1:1 htb rate {0}bit ceil {0}bit burst {1} cburst {1} quantum {2}",
                             kind_.speed.value, burst, frame()));
    int priority = 0;
    for (std::size_t q = kQueues; q-- > 0;) {
      if (!device_.queues[q].name.empty()) add_queue(q, device_.queues[q].strict ? priority++ : kWeightedPriority);
    }
    add_filters();
    if (!kind_.trusted) add_policing();
    return lines_;
  }

 private:
  unsigned frame() const { return kind_.mtu + kFrameOverhead; }

  void add(std::string_view object, const std::string& rest) {
    lines_ += fmt::format("{} add dev {} {}\n", object, name_, rest);
  }

  void add_queue(std::size_t q, int priority) {
    const Queue& queue = device_.queues[q];
    unsigned strict = 0, least = 100;
    for (const Queue& other : device_.queues) {
      strict += other.strict ? other.shaper : 0;
      if (!other.strict && !other.name.empty()) least = std::min(least, other.weight);
    }
    const std::uint64_t rate =
        queue.strict ? share(kind_.speed, queue.shaper) : share(kind_.speed, queue.weight * (100 - strict) / 100.0);
    const std::uint64_t ceil = queue.shaper != 0 ? share(kind_.speed, queue.shaper) : kind_.speed.value;
    const unsigned quantum = queue.strict ? frame() : kLargestPacket * queue.weight / std::max(least, 1u);
    const std::uint64_t burst = std::max<std::uint64_t>(2ull * frame(), rate / 8 / 1000);
    add("class", fmt::format("parent 1:1 classid {} htb rate {}bit ceil {}bit burst {} cburst {} prio {} quantum {}",
                             leaf(q), rate, ceil, burst, burst, priority, quantum));
    const std::string at = fmt::format("parent {} handle {:x}:", leaf(q), kFirstLeaf + q);
    if (!kind_.ecn[q]) {
      add("qdisc",
          fmt::format("{} bfifo limit {}", at, std::max<std::uint64_t>(64ull * frame(), kind_.speed.value / 8 / 500)));
      return;
    }
    const fabric::EcnThresholds& ecn = *kind_.ecn[q];
    const std::uint64_t red_burst = (2 * ecn.kmin.value + ecn.kmax.value) / (3 * kRedPacket) + 1;
    const std::uint64_t limit = std::max(4 * ecn.kmax.value, ecn.kmax.value + red_burst * kRedPacket);
    add("qdisc", fmt::format("{} red limit {} min {} max {} avpkt {} burst {} probability {:.2f} bandwidth {}bit ecn",
                             at, limit, ecn.kmin.value, ecn.kmax.value, kRedPacket, red_burst, ecn.pmax_percent / 100.0,
                             kind_.speed.value));
  }

  // By DSCP, with a VLAN tag or without: u32 looks behind the tag.
  void add_filters() {
    for (std::size_t dscp = 0; dscp < kDscps; ++dscp) {
      const std::uint8_t q = device_.queue_of_dscp[dscp];
      if (q == 0) continue;  // HTB's default
      const std::size_t tos = dscp << 2;
      add("filter",
          fmt::format("parent 1: protocol ip prio 4 u32 match ip dsfield {:#x} 0xfc flowid {}", tos, leaf(q)));
      add("filter",
          fmt::format("parent 1: protocol ipv6 prio 5 u32 match ip6 priority {:#x} 0xfc flowid {}", tos, leaf(q)));
      add("filter", fmt::format("parent 1: protocol 802.1Q prio 6 u32 match u16 {:#x} 0xf0fc at 0 flowid {}",
                                0x4000 | tos, leaf(q)));
      add("filter", fmt::format("parent 1: protocol 802.1Q prio 6 u32 match u16 {:#x} 0xffc0 at 0 flowid {}",
                                0x6000 | tos << 4, leaf(q)));
    }
  }

  // What strangers mark as one of our classes would be trusted by the next switch: it is dropped.
  void add_policing() {
    add("qdisc", "clsact");
    for (std::size_t dscp = 0; dscp < kDscps; ++dscp) {
      if (!device_.is_class_dscp(dscp)) continue;
      const std::size_t tos = dscp << 2;
      add("filter", fmt::format("ingress protocol ip prio 4 u32 match ip dsfield {:#x} 0xfc action drop", tos));
      add("filter", fmt::format("ingress protocol ipv6 prio 5 u32 match ip6 priority {:#x} 0xfc action drop", tos));
    }
  }

  const DeviceQos& device_;
  const PortKind& kind_;
  const std::string& name_;
  std::string lines_;
};

Status check(const DeviceQos& device) {
  for (const DevicePort& port : device.ports) {
    if (port.name.size() <= kMaxInterface && port.name.find('/') == port.name.npos && !port.name.starts_with('-'))
      continue;
    return Status(Code::kInvalidArgument, fmt::format("Linux has no interface '{}'", port.name),
                  fmt::format("device '{}'", device.name), "expected at most 15 letters, digits, '.', '_' or '-'");
  }
  return Status::ok_status();
}

// "#!/bin/sh" and what is said of the device. Names hold nothing that a shell would take for more than a word.
std::string heading(const DeviceQos& device, const std::string& what) {
  std::string text = fmt::format("#!/bin/sh\n# {}: {}\n", device.name, what);
  for (const std::string& note : device.notes) text += fmt::format("# {}\n", note);
  return text + "set -eu\n";
}

}  // namespace

Result<std::vector<LinuxPort>> linux_ports(const DeviceQos& device) {
  TL_RETURN_IF_ERROR(check(device));
  std::vector<LinuxPort> ports;
  for (const DevicePort& port : device.ports) ports.push_back({port.name, PortLines(device, port).make()});
  return ports;
}

void leave_out_ecn(DeviceQos& device) {
  for (PortKind& kind : device.kinds) kind.ecn.fill(std::nullopt);
}

Result<std::vector<RenderedFile>> render_linux(const DeviceQos& device) {
  TL_ASSIGN_OR_RETURN(const std::vector<LinuxPort> ports, linux_ports(device));
  std::string apply = heading(device, "egress queues of every port, from fabric.yaml");
  std::string rollback = heading(device, "the kernel's own egress queue at every port");
  apply += "# Traffic is classified by DSCP; PCP is not looked at.\n";
  for (const LinuxPort& port : ports) {
    const std::string clear = fmt::format(
        "tc qdisc del dev {0} root 2>/dev/null || true\ntc qdisc del dev {0} clsact 2>/dev/null || true\n", port.name);
    apply += fmt::format("{}tc -batch - <<'END'\n{}END\n", clear, port.lines);
    rollback += clear;
  }
  return std::vector<RenderedFile>{{.name = "apply.sh", .text = std::move(apply), .program = true},
                                   {.name = "rollback.sh", .text = std::move(rollback), .program = true}};
}

}  // namespace tensorlane::switches
