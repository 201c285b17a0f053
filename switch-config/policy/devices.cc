// Ports of devices, and whether what classes need fits into them.
#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>

#include "switch-config/headroom/headroom.h"
#include "switch-config/headroom/lookup.h"
#include "switch-config/policy/policy.h"

namespace tensorlane::switches {

namespace {

constexpr unsigned kLosslessWithoutEvidence = 2;
constexpr Bytes kQueueReserve{9216};  // one large packet for each queue of a port

struct EcnOfSpeed {
  std::uint64_t gbps, kmin_kb, kmax_kb;
};
// HPCC's map for RDMA simulations ("HPCC: High Precision Congestion Control", artifact), marking up to 20 %.
constexpr std::array kEcnOfSpeed{EcnOfSpeed{25, 100, 400}, EcnOfSpeed{40, 200, 800}, EcnOfSpeed{100, 400, 1600},
                                 EcnOfSpeed{200, 600, 2400}, EcnOfSpeed{400, 800, 3200}};
constexpr std::uint8_t kPmaxPercent = 20;

// The most urgent class marks at half of the queue, for delay. Slower ports in proportion, and not below two packets.
fabric::EcnThresholds default_ecn(BitsPerSecond speed, std::uint32_t mtu, bool most_urgent) {
  const EcnOfSpeed* row = &kEcnOfSpeed.front();
  for (const EcnOfSpeed& next : kEcnOfSpeed) {
    if (next.gbps * 1'000'000'000 <= speed.value) row = &next;
  }
  const double scale = std::min(1.0, static_cast<double>(speed.value) / (static_cast<double>(row->gbps) * 1e9)) *
                       (most_urgent ? 0.5 : 1);
  const auto bytes = [&](std::uint64_t kb) {
    return static_cast<std::uint64_t>(static_cast<double>(kb) * 1000 * scale);
  };
  const std::uint64_t kmin = std::max<std::uint64_t>(bytes(row->kmin_kb), 2ull * mtu);
  return {Bytes(kmin), Bytes(std::max(bytes(row->kmax_kb), 4 * kmin)), kPmaxPercent};
}

// One end of a link, as a device sees it.
struct Attached {
  const fabric::Link* link;
  bool from;

  const std::string& port() const { return from ? link->from_port : link->to_port; }
  const std::string& peer() const { return from ? link->to : link->from; }
  const std::string& peer_port() const { return from ? link->to_port : link->from_port; }
};

class Devices {
 public:
  Devices(const fabric::Fabric& fabric, const Service& service, const Selection& selection)
      : fabric_(fabric), service_(service), selection_(selection) {
    for (const fabric::Link& link : fabric.links) {
      attached_[link.from].push_back({&link, true});
      attached_[link.to].push_back({&link, false});
    }
  }

  Result<std::vector<DeviceQos>> make() {
    TL_RETURN_IF_ERROR(load_lookup());
    std::vector<DeviceQos> devices;
    if (selection_.hosts) {
      for (const fabric::Host& host : fabric_.hosts) {
        TL_ASSIGN_OR_RETURN(DeviceQos device, of_host(host));
        devices.push_back(std::move(device));
      }
      return devices;
    }
    for (const fabric::Switch& sw : fabric_.switches) {
      if (selection_.nos && sw.nos && *sw.nos != *selection_.nos) continue;
      TL_ASSIGN_OR_RETURN(DeviceQos device, of_switch(sw));
      devices.push_back(std::move(device));
    }
    if (!devices.empty()) return devices;
    return Status(Code::kNotFound, "no switch to render", fabric_.path,
                  selection_.nos ? fmt::format("expected a switch with 'nos: {}' or without any",
                                               fabric::nos_name(*selection_.nos))
                                 : "expected 'switches'");
  }

 private:
  Status error(std::string what, int line, std::string fix) const {
    return Status(Code::kInvalidArgument, std::move(what), fmt::format("{}:{}", fabric_.path, line), std::move(fix));
  }

  // The table of the fabric file, beside which its path begins.
  Status load_lookup() {
    const std::string& path = fabric_.qos.headroom.lookup;
    if (path.empty()) return Status::ok_status();
    TL_ASSIGN_OR_RETURN(lookup_, headroom::load_lookup(std::filesystem::path(fabric_.path).parent_path() / path));
    return Status::ok_status();
  }

  DeviceQos start(const std::string& name) const {
    DeviceQos device;
    device.name = name;
    device.queues = service_.queues;
    device.queue_of_dscp = service_.queue_of_dscp;
    device.queue_of_pcp = service_.queue_of_pcp;
    device.cnp_queue = service_.cnp_queue;
    device.cnp_dscp = fabric_.qos.cnp_dscp;
    device.bulk_dscp = fabric_.classes.data.back().dscp;
    device.headroom = fabric_.qos.headroom;
    device.watchdog = fabric_.qos.watchdog;
    return device;
  }

  Result<DeviceQos> of_host(const fabric::Host& host) {
    DeviceQos device = start(host.name);
    device.is_host = true;
    device.rdma_devices = host.rdma_devices;
    const auto links = attached_.find(host.name);
    if (links == attached_.end())
      return error(fmt::format("host '{}' has no link to a switch", host.name), host.line, "add one under 'links'");
    if (selection_.software) use_software(device);
    for (const Attached& end : links->second) TL_RETURN_IF_ERROR(add_linked(device, end, host.line, {}));
    return device;
  }

  Result<DeviceQos> of_switch(const fabric::Switch& sw) {
    DeviceQos device = start(sw.name);
    device.platform = known_platform(sw.platform);
    device.release = sw.release;
    TL_RETURN_IF_ERROR(check_lossless(device, sw));
    std::unordered_map<std::string_view, const Attached*> by_port;
    const std::vector<Attached>& links = attached_[sw.name];
    for (const Attached& end : links) by_port.emplace(end.port(), &end);
    std::uint32_t mtu = 1500;  // of ports without a link: that of the others
    for (const Attached& end : links) mtu = std::max(mtu, end.link->mtu);
    for (const fabric::Port& port : sw.ports) {
      const auto end = by_port.find(port.name);
      if (end != by_port.end()) {
        TL_RETURN_IF_ERROR(add_linked(device, *end->second, sw.line, port));
        continue;
      }
      if (!port.speed)
        return error(fmt::format("port '{}' of switch '{}' has no speed", port.name, sw.name), port.line,
                     "give its 'speed', or a link at it");
      PortKind kind{.speed = *port.speed, .lanes = port.lanes, .mtu = mtu, .trusted = false};
      TL_RETURN_IF_ERROR(add(device, port.name, kind, nullptr, sw.line));
    }
    if (sw.ports.empty()) {
      for (const Attached& end : links) TL_RETURN_IF_ERROR(add_linked(device, end, sw.line, {}));
    }
    TL_RETURN_IF_ERROR(check_memory(device, sw));
    warn(device, sw);
    return device;
  }

  void warn(DeviceQos& device, const fabric::Switch& sw) const {
    if (device.lossless_mask() == 0) return;
    if (std::any_of(lookup_.begin(), lookup_.end(), [](const auto& row) { return row.static_threshold.has_value(); }))
      device.warnings.push_back(
          "thresholds of the table are bytes of a static pool: in the dynamic pool here, each class may take half of "
          "what is free");
    if (sw.platform.buffer && *sw.platform.buffer != *device.platform.buffer)
      device.notes.push_back(fmt::format(
          "the packet memory is taken as {} bytes, which SONiC's templates for {} use, not as the file's {}",
          device.platform.buffer->value, device.platform.asic, sw.platform.buffer->value));
    const bool estimated = std::any_of(device.kinds.begin(), device.kinds.end(), [](const PortKind& kind) {
      return kind.headroom && kind.headroom->source == PortKind::Headroom::Source::kEstimate;
    });
    if (!estimated) return;
    const std::string of = fmt::format("headroom of the ASIC {}", asic_of(device.platform));
    if (device.headroom.accept_estimate)
      device.warnings.push_back(of + " is an estimate and no vendor's number: give its table as 'lookup', or test it");
    else
      device.notes.push_back(of + " is not known: that it fits into the memory was checked with an estimate");
  }

  static std::string asic_of(const fabric::Platform& platform) {
    if (!platform.asic.empty()) return fmt::format("'{}'", platform.asic);
    return platform.name.empty() ? "without a name" : fmt::format("of '{}'", platform.name);
  }

  static void use_software(DeviceQos& device) {
    for (Queue& queue : device.queues) queue.lossless = false;
    device.notes.push_back("software queues: lossless classes are queued without flow control");
  }

  Status check_lossless(DeviceQos& device, const fabric::Switch& sw) {
    if (selection_.software) {
      use_software(device);
      return Status::ok_status();
    }
    unsigned wanted = 0;
    for (const Queue& queue : device.queues) wanted += queue.lossless;
    if (wanted == 0) return Status::ok_status();
    const fabric::Platform& platform = device.platform;
    const std::string shown = platform.name.empty() ? "without a name" : fmt::format("'{}'", platform.name);
    if (!platform.lossless || !platform.buffer)
      return error(
          fmt::format("switch '{}' has lossless classes on a platform {} whose limits are unknown", sw.name, shown),
          sw.line, "give 'platform: {name, asic, buffer, queues, lossless}' as its data sheet has them");
    if (wanted > *platform.lossless)
      return error(fmt::format("{} lossless classes on switch '{}'", wanted, sw.name), sw.line,
                   fmt::format("its platform takes {}", *platform.lossless));
    if (wanted > kLosslessWithoutEvidence && platform.evidence.empty())
      return error(fmt::format("{} lossless classes on switch '{}'", wanted, sw.name), sw.line,
                   fmt::format("expected at most {}, or 'evidence' in its platform that it takes more",
                               kLosslessWithoutEvidence));
    if (platform.queues.value_or(8) < kQueues)
      return error(fmt::format("the platform of switch '{}' has {} queues", sw.name, *platform.queues), sw.line,
                   "expected 8: classes are told apart by queues");
    return Status::ok_status();
  }

  Status add_linked(DeviceQos& device, const Attached& end, int line, const std::optional<fabric::Port>& port) {
    if (end.port().empty())
      return error(fmt::format("a link of '{}' to '{}' without the port's name", device.name, end.peer()),
                   end.link->line, "add 'from_port' and 'to_port'");
    const PortKind kind{.speed = end.link->speed,
                        .lanes = port ? port->lanes : 0u,
                        .cable_metres = end.link->cable_metres,
                        .mtu = end.link->mtu};
    return add(device, end.port(), kind, &end, line);
  }

  using KindKey = std::tuple<std::uint64_t, unsigned, double, std::uint32_t, bool>;

  Status add(DeviceQos& device, const std::string& name, PortKind kind, const Attached* end, int line) {
    if (device.ports.empty()) kinds_.clear();
    const KindKey key{kind.speed.value, kind.lanes, kind.cable_metres, kind.mtu, kind.trusted};
    const auto [found, inserted] = kinds_.emplace(key, device.kinds.size());
    if (inserted) {
      for (const fabric::TrafficClass& cls : fabric_.classes.data) {
        const auto service = fabric_.qos.services.find(cls.name);
        const bool given = service != fabric_.qos.services.end() && service->second.ecn;
        kind.ecn[cls.pcp] = given ? *service->second.ecn
                                  : default_ecn(kind.speed, kind.mtu, cls.rank == fabric_.classes.data.front().rank);
      }
      TL_RETURN_IF_ERROR(add_headroom(device, kind, end == nullptr ? line : end->link->line));
      device.kinds.push_back(kind);
    }
    device.ports.push_back({.name = name,
                            .kind = found->second,
                            .peer = end == nullptr ? "" : end->peer(),
                            .peer_port = end == nullptr ? "" : end->peer_port()});
    return Status::ok_status();
  }

  Status add_headroom(const DeviceQos& device, PortKind& kind, int line) const {
    if (!kind.trusted || device.lossless_mask() == 0) return Status::ok_status();
    const fabric::HeadroomOptions& options = fabric_.qos.headroom;
    if (kind.cable_metres == 0)
      return error(fmt::format("a link of '{}' that carries lossless classes has no cable length", device.name), line,
                   "add 'cable: ... m': headroom depends on it");
    const Bytes port_mtu(options.port_mtu.value_or(kind.mtu));
    headroom::Parameters parameters{.formula = options.formula == fabric::HeadroomOptions::Formula::kOlder
                                                   ? headroom::Formula::kOlder
                                                   : headroom::Formula::kCurrent,
                                    .port = {.speed = kind.speed,
                                             .cable_metres = kind.cable_metres,
                                             .port_mtu = port_mtu,
                                             .lossless_mtu = std::min(port_mtu, Bytes(options.lossless_mtu))},
                                    .small_packet_percent = options.small_packets_percent,
                                    .shared_headroom = options.shared_headroom,
                                    .lanes = {}};
    if (kind.lanes != 0) parameters.lanes = kind.lanes;
    const auto at_line = [&](const Status& bad) { return error(bad.what() + ": " + bad.where(), line, bad.fix()); };
    if (device.is_host) {
      const Result<Bytes> xoff = headroom::nic_headroom(kind.speed, kind.cable_metres, port_mtu);
      if (!xoff.ok()) return at_line(xoff.status());
      // mlx5 lets the peer send again a packet below where it stopped it, and wants room for one beside the headroom.
      kind.headroom = {.xoff = *xoff, .xon = port_mtu, .size = *xoff + port_mtu + port_mtu};
      return Status::ok_status();
    }
    if (!lookup_.empty()) {
      const Result<headroom::LookupRow> row = headroom::find_row(lookup_, kind.speed, kind.cable_metres);
      if (!row.ok()) return at_line(row.status());
      kind.headroom = {.xoff = row->headroom.xoff,
                       .xon = row->headroom.xon,
                       .size = row->headroom.size,
                       .source = PortKind::Headroom::Source::kTable,
                       .least = row->headroom.xoff,
                       .threshold = row->threshold,
                       .xon_offset = row->xon_offset};
      return Status::ok_status();
    }
    const Result<headroom::Asic> asic = headroom::parse_asic(device.platform.asic);
    if (!asic.ok()) {
      const Result<headroom::Estimate> estimate = headroom::generic_headroom(parameters.port);
      if (!estimate.ok()) return at_line(estimate.status());
      const Bytes xon = port_mtu + port_mtu;
      kind.headroom = {.xoff = estimate->upper,
                       .xon = xon,
                       .size = estimate->upper + xon,
                       .source = PortKind::Headroom::Source::kEstimate,
                       .least = estimate->lower};
      return Status::ok_status();
    }
    parameters.asic = *asic;
    if (kind.lanes == 0) kind.lanes = headroom::default_lanes(*asic, kind.speed);
    const Result<headroom::Headroom> exact = headroom::nvidia_headroom(parameters);
    if (!exact.ok()) return at_line(exact.status());
    kind.headroom = {.xoff = exact->xoff, .xon = exact->xon, .size = exact->size, .least = exact->xoff};
    return Status::ok_status();
  }

  Status check_memory(const DeviceQos& device, const fabric::Switch& sw) const {
    if (device.lossless_mask() == 0) return Status::ok_status();
    unsigned lossless = 0;
    for (const Queue& queue : device.queues) lossless += queue.lossless;
    Bytes headroom, reserved;
    for (const DevicePort& port : device.ports) {
      const PortKind& kind = device.kinds[port.kind];
      // With a pool that ports share, the pool is what all of them may need at once. An estimate that nothing is to be
      // written of is not what the switch will reserve by itself: that is its lower bound or more.
      const bool written = device.headroom.accept_estimate;
      if (kind.headroom)
        headroom += ((written ? kind.headroom->xoff : kind.headroom->least) + kind.headroom->xon) * lossless;
      reserved += kQueueReserve * kQueues;
    }
    for (const PortKind& kind : device.kinds) {
      if (!device.platform.port_headroom || !kind.headroom) continue;
      const std::vector<Bytes> sizes(lossless, kind.headroom->size);
      const Result<Bytes> taken = headroom::check_port(sizes, kind.lanes, *device.platform.port_headroom);
      if (!taken.ok())
        return error(fmt::format("ports of switch '{}': {}", device.name, taken.status().what()), sw.line,
                     taken.status().fix());
    }
    const Result<Bytes> left = headroom::check_buffer(*device.platform.buffer, headroom, reserved);
    if (left.ok()) return Status::ok_status();
    return error(fmt::format("switch '{}': {}", device.name, left.status().what()), sw.line, left.status().fix());
  }

  const fabric::Fabric& fabric_;
  const Service& service_;
  const Selection& selection_;
  std::unordered_map<std::string_view, std::vector<Attached>> attached_;
  std::vector<headroom::LookupRow> lookup_;  // empty: by formula
  std::map<KindKey, std::size_t> kinds_;     // of the device that is being made
};

}  // namespace

Result<std::vector<DeviceQos>> devices_of(const fabric::Fabric& fabric, const Selection& selection) {
  TL_ASSIGN_OR_RETURN(const Service service, service_of(fabric));
  return Devices(fabric, service, selection).make();
}

}  // namespace tensorlane::switches
