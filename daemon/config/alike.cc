#include "daemon/config/alike.h"

#include <fmt/format.h>

namespace tensorlane::config {
namespace {

std::string describe(const fabric::TrafficClass& cls) {
  return fmt::format("{}: DSCP {}, PCP {}, SL {}{}", cls.name, cls.dscp, cls.pcp, cls.service_level,
                     cls.lossless ? ", lossless" : "");
}

std::string yes_or_no(bool value) {
  return value ? "true" : "false";
}

}  // namespace

std::map<std::string, std::string> must_be_alike(const DaemonConfig& config) {
  std::map<std::string, std::string> keys;
  const fabric::ClassTable& classes = config.fabric.classes;
  keys["fabric.yaml data classes"] = fmt::format("{}", classes.data.size());
  keys["fabric.yaml class control"] = describe(classes.control);
  for (std::size_t c = 0; c < classes.data.size(); ++c)
    keys[fmt::format("fabric.yaml class {}", c)] = describe(classes.data[c]);
  keys["fabric.yaml data_protection"] = data_protection_name(config.fabric.data_protection);
  keys["daemon.yaml priorities"] = yes_or_no(config.priorities);
  keys["daemon.yaml tags"] = yes_or_no(config.tags);
  keys["daemon.yaml search_thresholds"] = yes_or_no(config.search_thresholds);
  keys["daemon.yaml on_lost_flow"] = config.on_lost_flow == DaemonConfig::OnLostFlow::kResume ? "resume" : "abort";
  using Choice = DaemonConfig::Transport;
  // `auto` finds out what the other end has.
  if (config.transport != Choice::kAuto) keys["daemon.yaml transport"] = transport_name(config.transport);
  const bool automatic = config.transport == Choice::kAuto;
  if ((automatic || config.transport == Choice::kDpdk) && config.self().addresses.contains("dpdk")) {
    keys["daemon.yaml dpdk.port"] = fmt::format("{}", config.dpdk.port);
    keys["daemon.yaml dpdk.vlan"] = config.dpdk.vlan < 0 ? "none" : fmt::format("{}", config.dpdk.vlan);
  }
  if ((automatic || config.transport == Choice::kRdma) && config.self().addresses.contains("rdma")) {
    keys["daemon.yaml rdma.queue_pairs"] = fmt::format("{}", config.rdma.queue_pairs);
    keys["daemon.yaml rdma.connect"] = config.rdma.connect_by_cm ? "cm" : "verbs";
  }
  return keys;
}

}  // namespace tensorlane::config
