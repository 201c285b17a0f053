// SONiC: tables of CONFIG_DB. Every value is text; lists inside a value are joined by commas without blanks.
#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "common/json/json.h"
#include "switch-config/render/lines.h"
#include "switch-config/render/render.h"

namespace tensorlane::switches {

namespace {

using Json = nlohmann::json;

constexpr const char* kMap = "FABRIC";        // of ports that lead to hosts and switches of the fabric
constexpr const char* kUntrusted = "OTHERS";  // of all other ports
constexpr std::uint64_t kMegabit = 1'000'000;
constexpr double kBurstSeconds = 0.001;

std::string text(std::uint64_t number) {
  return std::to_string(number);
}

// "Ethernet8" -> 8: a port's number is that of its first lane.
std::uint64_t number_of(const std::string& port) {
  const std::size_t digits = port.find_last_not_of("0123456789") + 1;
  std::uint64_t number = 0;
  std::from_chars(port.data() + digits, port.data() + port.size(), number);
  return number;
}

std::uint64_t megabits(const PortKind& kind) {
  return kind.speed.value / kMegabit;
}

class Sonic {
 public:
  Sonic(const DeviceQos& device, bool dynamic) : device_(device), dynamic_(dynamic) {}

  Result<Json> make() {
    TL_RETURN_IF_ERROR(check());
    add_device();
    add_maps();
    add_pools();
    for (const PortKind& kind : device_.kinds) add_profiles(kind);
    for (const DevicePort& port : device_.ports) add_port(port);
    add_policing();
    return std::move(db_);
  }

 private:
  Status error(std::string what, std::string fix) const {
    return Status(Code::kInvalidArgument, std::move(what), fmt::format("device '{}'", device_.name), std::move(fix));
  }

  // What CONFIG_DB's YANG models do not take.
  Status check() const {
    const auto ms = [](Duration d) { return d.value / 1'000'000; };
    const fabric::Watchdog& watchdog = device_.watchdog;
    if (ms(watchdog.poll) < 100 || ms(watchdog.poll) > 1000 || ms(watchdog.detection) < 100 ||
        ms(watchdog.detection) > 5000 || ms(watchdog.restoration) < 100 || ms(watchdog.restoration) > 60000)
      return error(
          "SONiC does not take the watchdog's times",
          "expected a poll of 100 to 1000 ms, a detection of 100 to 5000 ms, a restoration of 100 to 60000 ms");
    for (const DevicePort& port : device_.ports) {
      if (!port.name.starts_with("Ethernet") || port.name.find_first_not_of("0123456789", 8) != port.name.npos)
        return error(fmt::format("SONiC has no port '{}'", port.name), "expected names such as 'Ethernet0'");
      if (megabits(device_.kinds[port.kind]) == 0)
        return error(fmt::format("port '{}' is slower than 1 Mbit/s", port.name), "expected a speed that SONiC has");
    }
    for (const PortKind& kind : device_.kinds) {
      if (!dynamic_) TL_RETURN_IF_ERROR(refuse_estimate(device_, kind));
      if (kind.mtu < 1312 || kind.mtu > 9216)
        return error(fmt::format("SONiC takes no MTU of {}", kind.mtu), "expected 1312 to 9216");
    }
    return Status::ok_status();
  }

  void add_device() {
    db_["DEVICE_METADATA"]["localhost"] = {{"hostname", device_.name},
                                           {"buffer_model", dynamic_ ? "dynamic" : "traditional"}};
  }

  void add_maps() {
    for (std::size_t dscp = 0; dscp < kDscps; ++dscp) {
      db_["DSCP_TO_TC_MAP"][kMap][text(dscp)] = text(device_.queue_of_dscp[dscp]);
      if (has_untrusted()) db_["DSCP_TO_TC_MAP"][kUntrusted][text(dscp)] = "0";
    }
    for (std::size_t pcp = 0; pcp < kPcps; ++pcp) {
      db_["DOT1P_TO_TC_MAP"][kMap][text(pcp)] = text(device_.queue_of_pcp[pcp]);
      if (has_untrusted()) db_["DOT1P_TO_TC_MAP"][kUntrusted][text(pcp)] = "0";
    }
    for (std::size_t tc = 0; tc < kQueues; ++tc) {
      const bool lossless = device_.queues[tc].lossless;
      db_["TC_TO_QUEUE_MAP"][kMap][text(tc)] = text(tc);
      db_["TC_TO_PRIORITY_GROUP_MAP"][kMap][text(tc)] = text(lossless ? tc : 0);
      db_["MAP_PFC_PRIORITY_TO_QUEUE"][kMap][text(tc)] = text(tc);
      if (lossless) db_["PFC_PRIORITY_TO_PRIORITY_GROUP_MAP"][kMap][text(tc)] = text(tc);
    }
  }

  bool has_untrusted() const {
    return std::any_of(device_.kinds.begin(), device_.kinds.end(), [](const PortKind& kind) { return !kind.trusted; });
  }

  // What ports may use at most, and what the pools are made of. Sizes that the dynamic model computes are left out.
  void add_pools() {
    const std::uint64_t buffer = device_.platform.buffer.value_or(Bytes(0)).value;
    std::uint64_t headroom = 0, shared = 0;  // what the groups reserve, and what they share
    const unsigned lossless = static_cast<unsigned>(std::popcount(device_.lossless_mask()));
    for (const DevicePort& port : device_.ports) {
      const auto& own = device_.kinds[port.kind].headroom;
      if (!own) continue;
      headroom += own->size.value * lossless;
      shared += (own->xon + own->xoff - std::min(own->xon + own->xoff, own->size)).value * lossless;
    }
    const bool sizes = !dynamic_ && buffer > 0;
    Json& pools = db_["BUFFER_POOL"];
    pools["ingress_lossless_pool"] = {{"type", "ingress"}, {"mode", "dynamic"}};
    pools["egress_lossless_pool"] = {{"type", "egress"}, {"mode", "dynamic"}};
    pools["egress_lossy_pool"] = {{"type", "egress"}, {"mode", "dynamic"}};
    if (sizes) pools["ingress_lossless_pool"]["size"] = text(buffer - headroom - shared);
    if (sizes && shared > 0) pools["ingress_lossless_pool"]["xoff"] = text(shared);
    if (buffer > 0) pools["egress_lossless_pool"]["size"] = text(buffer);
    if (sizes) pools["egress_lossy_pool"]["size"] = text((buffer - headroom - shared) / 2);
    Json& profiles = db_["BUFFER_PROFILE"];
    profiles["ingress_lossless_profile"] = {{"pool", "ingress_lossless_pool"}, {"size", "0"}, {"dynamic_th", "7"}};
    profiles["ingress_lossy_profile"] = {{"pool", "ingress_lossless_pool"}, {"size", "0"}, {"dynamic_th", "3"}};
    profiles["egress_lossless_profile"] = {{"pool", "egress_lossless_pool"}, {"size", "0"}, {"dynamic_th", "7"}};
    profiles["egress_lossy_profile"] = {{"pool", "egress_lossy_pool"}, {"size", "9216"}, {"dynamic_th", "7"}};
    if (lossless == 0) return;
    db_["DEFAULT_LOSSLESS_BUFFER_PARAMETER"]["AZURE"] = {{"default_dynamic_th", "0"}};
    if (dynamic_ && device_.headroom.shared_headroom)
      db_["DEFAULT_LOSSLESS_BUFFER_PARAMETER"]["AZURE"]["over_subscribe_ratio"] = "1";
    db_["LOSSLESS_TRAFFIC_PATTERN"]["AZURE"] = {
        {"mtu", text(device_.headroom.lossless_mtu)},
        {"small_packet_percentage", text(device_.headroom.small_packets_percent)}};
    db_["PFC_WD"]["GLOBAL"] = {
        {"POLL_INTERVAL", text(static_cast<std::uint64_t>(device_.watchdog.poll.value) / kMegabit)}};
    db_["FLEX_COUNTER_TABLE"]["PFCWD"] = {{"FLEX_COUNTER_STATUS", "enable"}};
  }

  static std::string scheduler_name(const Queue& queue, std::size_t tc, const PortKind& kind) {
    if (!queue.strict) return fmt::format("scheduler.weight{}", queue.weight);
    if (queue.shaper == 0) return "scheduler.strict";
    return fmt::format("scheduler.strict{}.{}", tc, megabits(kind));
  }

  static std::string ecn_name(std::size_t tc, const PortKind& kind) {
    return fmt::format("ECN_TC{}_{}_{}", tc, megabits(kind), kind.mtu);
  }

  static std::string pg_name(const PortKind& kind) {
    return fmt::format("pg_lossless_{}_{}m_{}_{}_profile", megabits(kind), std::ceil(kind.cable_metres), kind.mtu,
                       kind.lanes);
  }

  // Schedulers with rates in bytes per second, WRED profiles, and headroom in the traditional model.
  void add_profiles(const PortKind& kind) {
    for (std::size_t tc = 0; tc < kQueues; ++tc) {
      const Queue& queue = device_.queues[tc];
      Json& scheduler = db_["SCHEDULER"][scheduler_name(queue, tc, kind)];
      scheduler = {{"type", queue.strict ? "STRICT" : "DWRR"}};
      if (!queue.strict) scheduler["weight"] = text(queue.weight);
      if (queue.shaper != 0) {
        const std::uint64_t rate = kind.speed.value / 800 * queue.shaper;
        const auto burst = std::max<std::uint64_t>(
            2ull * kind.mtu, static_cast<std::uint64_t>(static_cast<double>(rate) * kBurstSeconds));
        scheduler.update({{"meter_type", "bytes"},
                          {"cir", text(rate)},
                          {"pir", text(rate)},
                          {"cbs", text(burst)},
                          {"pbs", text(burst)}});
      }
      if (kind.ecn[tc]) db_["WRED_PROFILE"][ecn_name(tc, kind)] = wred(*kind.ecn[tc]);
    }
    if (dynamic_ || !kind.headroom) return;
    Json& profile = db_["BUFFER_PROFILE"][pg_name(kind)];
    profile = {{"pool", "ingress_lossless_pool"},
               {"size", text(kind.headroom->size.value)},
               {"xon", text(kind.headroom->xon.value)},
               {"xoff", text(kind.headroom->xoff.value)},
               {"dynamic_th", std::to_string(kind.headroom->threshold)}};
    if (kind.headroom->xon_offset.value > 0) profile["xon_offset"] = text(kind.headroom->xon_offset.value);
  }

  static Json wred(const fabric::EcnThresholds& ecn) {
    Json profile = {{"ecn", "ecn_all"}};
    for (const char* colour : {"green", "yellow", "red"}) {
      profile[fmt::format("wred_{}_enable", colour)] = "true";
      profile[fmt::format("{}_min_threshold", colour)] = text(ecn.kmin.value);
      profile[fmt::format("{}_max_threshold", colour)] = text(ecn.kmax.value);
      profile[fmt::format("{}_drop_probability", colour)] = text(ecn.pmax_percent);
    }
    return profile;
  }

  void add_port(const DevicePort& port) {
    const PortKind& kind = device_.kinds[port.kind];
    Json& row = db_["PORT"][port.name];
    const std::uint64_t first = number_of(port.name);
    std::string lanes = text(first);
    for (unsigned lane = 1; lane < kind.lanes; ++lane) lanes += fmt::format(",{}", first + lane);
    row = {{"lanes", lanes}, {"speed", text(megabits(kind))}, {"mtu", text(kind.mtu)}, {"admin_status", "up"}};
    std::string lossless;
    const auto row_of = [&](std::size_t tc) { return fmt::format("{}|{}", port.name, tc); };
    for (std::size_t tc = 0; tc < kQueues; ++tc) {
      const Queue& queue = device_.queues[tc];
      Json& served = db_["QUEUE"][row_of(tc)];
      served["scheduler"] = scheduler_name(queue, tc, kind);
      if (kind.ecn[tc]) served["wred_profile"] = ecn_name(tc, kind);
      db_["BUFFER_QUEUE"][row_of(tc)]["profile"] = queue.lossless ? "egress_lossless_profile" : "egress_lossy_profile";
      if (!queue.lossless || !kind.trusted) continue;
      lossless += fmt::format("{}{}", lossless.empty() ? "" : ",", tc);
      db_["BUFFER_PG"][row_of(tc)]["profile"] = dynamic_ ? "NULL" : pg_name(kind);
    }
    db_["BUFFER_PG"][row_of(0)]["profile"] = "ingress_lossy_profile";
    db_["BUFFER_PORT_INGRESS_PROFILE_LIST"][port.name]["profile_list"] =
        "ingress_lossless_profile,ingress_lossy_profile";
    db_["BUFFER_PORT_EGRESS_PROFILE_LIST"][port.name]["profile_list"] = "egress_lossless_profile,egress_lossy_profile";
    const char* map = kind.trusted ? kMap : kUntrusted;
    Json& binding = db_["PORT_QOS_MAP"][port.name];
    binding = {{"dscp_to_tc_map", map}, {"dot1p_to_tc_map", map}, {"tc_to_queue_map", kMap}, {"tc_to_pg_map", kMap}};
    if (device_.lossless_mask() == 0) return;
    if (kind.trusted) db_["CABLE_LENGTH"]["AZURE"][port.name] = fmt::format("{}m", std::ceil(kind.cable_metres));
    binding.update({{"pfc_to_queue_map", kMap}, {"pfc_to_pg_map", kMap}});
    if (lossless.empty()) return;
    binding.update({{"pfc_enable", lossless}, {"pfcwd_sw_enable", lossless}});
    const auto ms = [](Duration d) { return text(static_cast<std::uint64_t>(d.value) / kMegabit); };
    db_["PFC_WD"][port.name] = {
        {"action", device_.watchdog.action == fabric::Watchdog::Action::kDrop ? "drop" : "forward"},
        {"detection_time", ms(device_.watchdog.detection)},
        {"restoration_time", ms(device_.watchdog.restoration)}};
  }

  // What strangers mark as one of our classes would be trusted by the next switch: it is dropped.
  void add_policing() {
    Json ports = Json::array();
    for (const DevicePort& port : device_.ports) {
      if (!device_.kinds[port.kind].trusted) ports.push_back(port.name);
    }
    if (ports.empty()) return;
    for (const auto& [name, type] : {std::pair("FABRIC_EDGE", "L3"), std::pair("FABRIC_EDGE6", "L3V6")}) {
      db_["ACL_TABLE"][name] = {{"policy_desc", name}, {"type", type}, {"stage", "ingress"}, {"ports", ports}};
      for (std::size_t dscp = 0; dscp < kDscps; ++dscp) {
        if (!device_.is_class_dscp(dscp)) continue;
        db_["ACL_RULE"][fmt::format("{}|DSCP{}", name, dscp)] = {
            {"PRIORITY", text(1000 + dscp)}, {"DSCP", text(dscp)}, {"PACKET_ACTION", "DROP"}};
      }
    }
  }

  const DeviceQos& device_;
  bool dynamic_;
  Json db_;
};

}  // namespace

Result<std::vector<RenderedFile>> render_sonic(const DeviceQos& device, BufferModel model) {
  const bool nvidia = device.platform.asic.starts_with("spectrum"), table = !device.headroom.lookup.empty();
  if (table && model == BufferModel::kDynamic)
    return Status(Code::kInvalidArgument, "'lookup' in 'headroom' and the dynamic buffer model exclude each other",
                  fmt::format("device '{}'", device.name), "leave one out: that model computes headroom itself");
  const bool dynamic = model == BufferModel::kDynamic || (model == BufferModel::kByPlatform && nvidia && !table);
  TL_ASSIGN_OR_RETURN(const Json db, Sonic(device, dynamic).make());
  return std::vector<RenderedFile>{{.name = "config_db.json", .text = db.dump(1) + "\n"}};
}

}  // namespace tensorlane::switches
