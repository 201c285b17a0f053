// NVIDIA Cumulus Linux: NVUE commands, and the same as qos_features.conf for switches without NVUE. DSCP and PCP make
// a switch priority (SP), which makes a traffic class (TC), its queue; all three have the class's number.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "switch-config/render/lines.h"
#include "switch-config/render/release.h"
#include "switch-config/render/render.h"

namespace tensorlane::switches {

namespace {

// Checks and words that both files share.
class CumulusDevice {
 public:
  explicit CumulusDevice(const DeviceQos& device) : device_(device) {
    ports_.resize(device.kinds.size());
    for (const DevicePort& port : device.ports) {
      std::string& names = ports_[port.kind];
      names += (names.empty() ? "" : ",") + port.name;
    }
  }

  Status check() const {
    TL_RETURN_IF_ERROR(check_ports(device_, "Cumulus", {"swp#", "swp#s#"}));
    TL_RETURN_IF_ERROR(check_mtu(device_, "Cumulus", 9216));
    for (const PortKind& kind : device_.kinds) {
      if (kind.cable_metres > 100'000)
        return Status(Code::kInvalidArgument, fmt::format("a cable of {:g} m", kind.cable_metres),
                      fmt::format("device '{}'", device_.name), "Cumulus takes at most 100000 m");
    }
    return Status::ok_status();
  }

 protected:
  void line(const std::string& text) { text_ += text + '\n'; }

  static std::uint64_t kilobits(const PortKind& kind, const Queue& queue) {
    return kind.speed.value / 100 * queue.shaper / 1000;
  }
  static std::uint64_t metres(const PortKind& kind) {
    return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::ceil(kind.cable_metres)));
  }
  std::string lossless() const { return joined(lossless_queues(device_), ","); }

  const DeviceQos& device_;
  std::vector<std::string> ports_;  // of each kind: "swp1,swp2"
  std::string text_;
};

class Nvue : public CumulusDevice {
 public:
  Nvue(const DeviceQos& device, Release release) : CumulusDevice(device), release_(release) {}

  std::string make() {
    text_ = "#!/bin/sh\n" + heading(device_, "#",
                                    "QoS of the fabric's classes for NVIDIA Cumulus Linux (NVUE), "
                                    "from fabric.yaml");
    line(fmt::format("# Words of Cumulus Linux {}.{}{}.", release_.major, release_.minor,
                     device_.release.empty() ? ", the newest that is known: the file names no release" : ""));
    line(
        "# The RoCE macro ('nv set qos roce') has one lossless class and would overrule this: it is not used.\nset "
        "-eu");
    add_maps();
    add_scheduling();
    if (device_.lossless_mask() != 0) add_pools();
    for (std::size_t i = 0; i < device_.kinds.size(); ++i) add_kind(i);
    line("nv config apply");
    return std::move(text_);
  }

 private:
  void add_maps() {
    const std::string map = "nv set qos mapping default-global ";
    line(map + "trust both");
    for (std::size_t dscp = 0; dscp < kDscps; ++dscp)
      line(fmt::format("{}dscp {} switch-priority {}", map, dscp, device_.queue_of_dscp[dscp]));
    for (std::size_t pcp = 0; pcp < kPcps; ++pcp)
      line(fmt::format("{}pcp {} switch-priority {}", map, pcp, device_.queue_of_pcp[pcp]));
    for (std::size_t q = 0; q < kQueues; ++q)
      line(fmt::format("nv set qos egress-queue-mapping default-global switch-priority {0} traffic-class {0}", q));
  }

  void add_scheduling() {
    const std::string scheduler = "nv set qos egress-scheduler default-global traffic-class ";
    for (std::size_t q = 0; q < kQueues; ++q) {
      const Queue& queue = device_.queues[q];
      line(fmt::format("{}{} mode {}", scheduler, q, queue.strict ? "strict" : "dwrr"));
      if (!queue.strict) line(fmt::format("{}{} bw-percent {}", scheduler, q, queue.weight));
    }
  }

  void add_pools() {
    line("nv set qos traffic-pool default-lossless memory-percent 50");
    line("nv set qos traffic-pool default-lossy memory-percent 50");
    line(fmt::format("nv set qos pfc-watchdog polling-interval {}", milliseconds_of(device_.watchdog.poll)));
    const std::int64_t poll = std::max<std::int64_t>(device_.watchdog.poll.value, 1);
    line(fmt::format("nv set qos pfc-watchdog robustness {}", (device_.watchdog.detection.value + poll - 1) / poll));
    line("# In doubt: Cumulus documents no time of restoration and no other action than to drop.");
  }

  void add_kind(std::size_t index) {
    const PortKind& kind = device_.kinds[index];
    const std::string port = fmt::format("nv set interface {} ", ports_[index]);
    line(fmt::format("# {}\n{}link mtu {}", describe(kind), port, kind.mtu));
    add_shapers(index);
    add_marking(index);
    if (!kind.trusted) {
      add_edge(index);
      return;
    }
    if (lossless_at(device_, kind) == 0) return;
    const std::string pfc = fmt::format("nv set qos pfc FABRIC-{} ", index);
    line(fmt::format("{}switch-priority {}", pfc, lossless()));
    line(fmt::format("{0}tx enable\n{0}rx enable\n{0}cable-length {1}", pfc, metres(kind)));
    line(fmt::format("{}qos pfc profile FABRIC-{}", port, index));
    // "enable" in all releases, also in those from 5.15 on, in which `nv set qos roce state` says "enabled".
    line(fmt::format("# In doubt: some releases say 'pfc-watchdog' alone.\n{}qos pfc-watchdog state enable", port));
  }

  void add_shapers(std::size_t index) {
    for (std::size_t q = 0; q < kQueues; ++q) {
      if (device_.queues[q].shaper == 0) continue;
      const std::string shaper = fmt::format("nv set qos egress-shaper FABRIC-{} traffic-class {} ", index, q);
      line(fmt::format("{}max-rate {}", shaper, kilobits(device_.kinds[index], device_.queues[q])));
    }
    line(fmt::format("nv set interface {} qos egress-shaper profile FABRIC-{}", ports_[index], index));
  }

  void add_marking(std::size_t index) {
    const PortKind& kind = device_.kinds[index];
    for (std::size_t q = 0; q < kQueues; ++q) {
      if (!kind.ecn[q]) continue;
      const std::string tc = fmt::format("nv set qos congestion-control FABRIC-{} traffic-class {} ", index, q);
      line(fmt::format("{0}ecn enable\n{0}red disable\n{0}min-threshold {1}\n{0}max-threshold {2}\n{0}probability {3}",
                       tc, kind.ecn[q]->kmin.value, kind.ecn[q]->kmax.value, kind.ecn[q]->pmax_percent));
    }
    line(fmt::format("nv set interface {} qos congestion-control profile FABRIC-{}", ports_[index], index));
  }

  // All that strangers send is default traffic; marks of ours, which the next switch would trust, are dropped.
  void add_edge(std::size_t index) {
    if (!edge_written_) {
      line("nv set qos mapping FABRIC-EDGE trust port\nnv set qos mapping FABRIC-EDGE port-default-sp 0");
      for (const auto& [acl, type] : {std::pair("FABRIC-EDGE4", "ipv4"), std::pair("FABRIC-EDGE6", "ipv6")}) {
        line(fmt::format("# In doubt: whether this release matches the DSCP of IPv6.\nnv set acl {0} type {1}", acl,
                         type));
        for (const std::size_t dscp : class_dscps(device_)) {
          const std::string rule = fmt::format("nv set acl {} rule {} ", acl, 100 + dscp);
          line(fmt::format("{0}match ip dscp {1}\n{0}action deny", rule, dscp));
        }
        line(fmt::format("nv set acl {} rule 999 action permit", acl));
      }
      edge_written_ = true;
    }
    const std::string port = fmt::format("nv set interface {} ", ports_[index]);
    line(port + "qos mapping profile FABRIC-EDGE");
    line(fmt::format("{0}acl FABRIC-EDGE4 inbound\n{0}acl FABRIC-EDGE6 inbound", port));
  }

  Release release_;
  bool edge_written_ = false;
};

class QosFeatures : public CumulusDevice {
 public:
  using CumulusDevice::CumulusDevice;

  std::string make() {
    text_ =
        heading(device_, "#", "QoS of the fabric's classes for NVIDIA Cumulus Linux without NVUE, from fabric.yaml");
    line(
        "# Use nvue.sh or this file, /etc/cumulus/datapath/qos/qos_features.conf, not both. Not in this file: the map "
        "of\n# priorities to queues (qos_infra.conf; its default is the identity, as needed here), MTUs, and times of "
        "the "
        "watchdog\n# (switchd.conf: pfc_wd.poll_interval, pfc_wd.robustness).");
    add_maps();
    for (std::size_t q = 0; q < kQueues; ++q) {
      const Queue& queue = device_.queues[q];
      line(fmt::format("default_egress_sched.egr_queue_{}.bw_percent = {}", q, queue.strict ? 0 : queue.weight));
    }
    add_flow_control();
    add_marking();
    add_shapers();
    return std::move(text_);
  }

 private:
  // The groups of ports that `is_in` takes, "[fabric0,fabric1]"; empty where none is.
  template <typename Takes>
  std::string groups(Takes&& takes) const {
    std::string names;
    for (std::size_t i = 0; i < ports_.size(); ++i) {
      if (takes(device_.kinds[i])) names += fmt::format("{}fabric{}", names.empty() ? "" : ",", i);
    }
    return names;
  }

  void add_maps() {
    line("traffic.packet_priority_source_set = [802.1p,dscp]\ntraffic.port_default_priority = 0");
    for (std::size_t q = 0; q < kQueues; ++q) {
      const std::vector<std::size_t> dscps = dscps_of(device_, q), pcps = pcps_of(device_, q);
      if (!dscps.empty()) line(fmt::format("traffic.cos_{}.priority_source.dscp = [{}]", q, joined(dscps, ",")));
      if (!pcps.empty()) line(fmt::format("traffic.cos_{}.priority_source.8021p = [{}]", q, joined(pcps, ",")));
    }
    const std::string edge = groups([](const PortKind& kind) { return !kind.trusted; });
    if (edge.empty()) return;
    line(fmt::format(
        "# Ports without a link. This file cannot drop DSCPs {} from them: cl-acltool can, and nvue.sh does.",
        joined(class_dscps(device_), ", ")));
    line(fmt::format("source.port_group_list = [{}]", edge));
    for (std::size_t i = 0; i < ports_.size(); ++i) {
      if (device_.kinds[i].trusted) continue;
      line(
          fmt::format("source.fabric{0}.packet_priority_source_set = [port]\nsource.fabric{0}.port_set = {1}\n"
                      "source.fabric{0}.port_default_priority = 0",
                      i, ports_[i]));
    }
  }

  void add_flow_control() {
    const std::string names = groups([&](const PortKind& kind) { return lossless_at(device_, kind) != 0; });
    if (names.empty()) return;
    line(fmt::format("pfc.port_group_list = [{0}]\npfc_watchdog.port_group_list = [{0}]", names));
    for (std::size_t i = 0; i < ports_.size(); ++i) {
      const PortKind& kind = device_.kinds[i];
      if (lossless_at(device_, kind) == 0) continue;
      line(fmt::format("# {}\npfc.fabric{}.port_set = {}", describe(kind), i, ports_[i]));
      line(
          fmt::format("pfc.fabric{0}.cos_list = [{1}]\npfc.fabric{0}.tx_enable = true\npfc.fabric{0}.rx_enable = true\n"
                      "pfc.fabric{0}.cable_length = {2}\npfc_watchdog.fabric{0}.port_set = {3}",
                      i, lossless(), metres(kind), ports_[i]));
    }
  }

  // A group has one pair of thresholds: one for each class of each kind of port.
  void add_marking() {
    std::string names, groups;
    for (std::size_t i = 0; i < ports_.size(); ++i) {
      for (std::size_t q = 0; q < kQueues; ++q) {
        if (!device_.kinds[i].ecn[q]) continue;
        const fabric::EcnThresholds& ecn = *device_.kinds[i].ecn[q];
        names += fmt::format("{}fabric{}q{}", names.empty() ? "" : ",", i, q);
        groups += fmt::format(
            "ecn_red.fabric{0}q{1}.port_set = {2}\necn_red.fabric{0}q{1}.egress_queue_list = [{1}]\n"
            "ecn_red.fabric{0}q{1}.ecn_enable = true\necn_red.fabric{0}q{1}.red_enable = false\n"
            "ecn_red.fabric{0}q{1}.min_threshold_bytes = {3}\necn_red.fabric{0}q{1}.max_threshold_bytes = {4}\n"
            "ecn_red.fabric{0}q{1}.probability = {5}\n",
            i, q, ports_[i], ecn.kmin.value, ecn.kmax.value, ecn.pmax_percent);
      }
    }
    line("# In doubt: whether a port may be in several groups, of different queues.");
    text_ += fmt::format("ecn_red.port_group_list = [{}]\n{}", names, groups);
  }

  // [min, max] in kbit/s.
  void add_shapers() {
    line(fmt::format("shaping.port_group_list = [{}]", groups([](const PortKind&) { return true; })));
    for (std::size_t i = 0; i < ports_.size(); ++i) {
      line(fmt::format("shaping.fabric{}.port_set = {}", i, ports_[i]));
      for (std::size_t q = 0; q < kQueues; ++q) {
        if (device_.queues[q].shaper != 0)
          line(fmt::format("shaping.fabric{}.egr_queue_{}.shaper = [0, {}]", i, q,
                           kilobits(device_.kinds[i], device_.queues[q])));
      }
    }
  }
};

}  // namespace

Result<std::vector<RenderedFile>> render_cumulus(const DeviceQos& device) {
  TL_ASSIGN_OR_RETURN(const Release release, release_of(device, fabric::Nos::kCumulus));
  TL_RETURN_IF_ERROR(CumulusDevice(device).check());
  return std::vector<RenderedFile>{{.name = "nvue.sh", .text = Nvue(device, release).make(), .program = true},
                                   {.name = "qos_features.conf", .text = QosFeatures(device).make()}};
}

}  // namespace tensorlane::switches
