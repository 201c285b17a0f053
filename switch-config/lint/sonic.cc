#include "switch-config/lint/sonic.h"

#include <cmath>
#include <fstream>
#include <map>
#include <memory>

#include <fmt/format.h>

#include "switch-config/lint/sonic_schema.h"
#include "switch-config/lint/sonic_tables.h"
#include "switch-config/lint/text.h"

namespace tensorlane::lint {
namespace {

using sonic::Row;
using sonic::Tables;

constexpr std::string_view kLosslessName = "pg_lossless_";

// NVIDIA's platforms and SKUs carry the model: "x86_64-mlnx_msn2700-r0", "ACS-SN5600".
std::optional<headroom::Asic> asic_of(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::size_t at = text.find("sn");
  if (at == std::string::npos || at + 6 > text.size()) return std::nullopt;
  const auto model = sonic::number(std::string_view(text).substr(at + 2, 4));
  if (!model) return std::nullopt;
  if (*model >= 5610 && *model < 5700) return headroom::Asic::kSpectrum5;
  switch (*model / 1000) {
    case 2:
      return headroom::Asic::kSpectrum1;
    case 3:
      return headroom::Asic::kSpectrum2;
    case 4:
      return headroom::Asic::kSpectrum3;
    case 5:
      return headroom::Asic::kSpectrum4;
    default:
      return std::nullopt;
  }
}

class Reader {
 public:
  Reader(const Tables& tables, Device& device) : tables_(tables), device_(device) {}

  void read() {
    read_device();
    read_ports();
    read_port_maps();
    read_queues();
    read_buffers();
    read_watchdogs();
  }

 private:
  void read_device() {
    const Row metadata = tables_.row("DEVICE_METADATA", "localhost");
    if (const auto model = metadata.text("buffer_model")) device_.computes_headroom = *model == "dynamic";
    for (const char* field : {"platform", "hwsku"})
      if (const auto text = metadata.text(field); text && !device_.asic) device_.asic = asic_of(std::string(*text));
    tables_.for_each_row("LOSSLESS_TRAFFIC_PATTERN", [&](const std::string&, const Row& row) {
      if (const auto mtu = row.number("mtu"); mtu && *mtu > 0) device_.lossless_mtu = static_cast<std::uint64_t>(*mtu);
      if (const auto percent = row.number("small_packet_percentage"); percent && *percent >= 0 && *percent <= 100)
        device_.small_packet_percent = static_cast<unsigned>(*percent);
    });
  }

  void read_ports() {
    tables_.for_each_row("PORT", [&](const std::string& name, const Row& row) {
      Port port;
      port.name = name;
      if (const auto mtu = row.number("mtu"); mtu && *mtu > 0) port.mtu = static_cast<std::uint64_t>(*mtu);
      port.mtu_place = row.place("mtu");
      if (const auto speed = row.number("speed"); speed && *speed > 0 && *speed <= 10'000'000)
        port.speed = BitsPerSecond(static_cast<std::uint64_t>(*speed) * 1'000'000);
      if (const auto lanes = row.text("lanes")) port.lanes = static_cast<unsigned>(sonic::split(*lanes, ',').size());
      const Row neighbour = tables_.row("DEVICE_NEIGHBOR", name);
      if (const auto device = neighbour.text("name")) port.peer_device = *device;
      if (const auto peer = neighbour.text("port")) port.peer_port = *peer;
      add_port(std::move(port));
    });
    if (device_.ports.empty()) infer_ports();
    tables_.for_each_row("CABLE_LENGTH", [&](const std::string&, const Row& row) {
      for (Port& port : device_.ports) {
        const auto text = row.text(port.name);
        if (!text) continue;
        port.cable_metres = sonic::length(*text);
        port.cable_place = row.place(port.name);
      }
    });
  }

  void add_port(Port port) {
    if (index_.emplace(port.name, device_.ports.size()).second) device_.ports.push_back(std::move(port));
  }

  // Of a file without PORT, such as a rendered template, those that its rows about QoS name.
  void infer_ports() {
    device_.lists_ports = false;
    const auto add = [&](std::string_view names) {
      for (const std::string_view name : sonic::split(names, ',')) {
        if (name.empty() || sonic::is_no_port(name)) continue;
        Port port;
        port.name = name;
        port.pfc_place = port.mtu_place = port.name;
        add_port(std::move(port));
      }
    };
    for (const std::string_view table : sonic::kTablesOfPorts)
      tables_.for_each_row(table, [&](const std::string& key, const Row&) { add(sonic::port_of(key)); });
    tables_.for_each_row("CABLE_LENGTH", [&](const std::string&, const Row& row) {
      for (const std::string& name : row.names()) add(name);
    });
  }

  // Calls `see` with every port that a key names: "Ethernet0" or, in old files, "Ethernet0,Ethernet4".
  template <typename See>
  void for_ports(std::string_view names, See see) {
    for (const std::string_view name : sonic::split(names, ',')) {
      const auto found = index_.find(std::string(name));
      if (found != index_.end()) see(device_.ports[found->second]);
    }
  }

  // And with every number of "PORT|3-4" below kPriorities.
  template <typename See>
  void for_indices(const std::string& key, See see) {
    auto parts = sonic::split(key, '|');
    if (parts.size() == 4) parts.erase(parts.begin(), parts.begin() + 2);  // a chassis: host, ASIC, port, queue
    if (parts.size() != 2) return;
    const auto range = sonic::split(parts[1], '-');
    const auto low = sonic::number(range.front()), high = sonic::number(range.back());
    if (!low || !high || *low < 0) return;
    for (std::int64_t i = *low; i <= *high && i < static_cast<std::int64_t>(kPriorities); ++i)
      for_ports(parts[0], [&](Port& port) { see(port, static_cast<std::size_t>(i)); });
  }

  const Map* map(std::string_view table, std::string_view name) {
    const Row row = tables_.row(table, name);
    if (!row) return nullptr;
    const Map*& known = maps_[row.place()];
    if (known != nullptr) return known;
    Map map;
    map.place = row.place();
    map.size = sonic::find_map_table(table)->keys;
    for (std::size_t from = 0; from < map.size; ++from) {
      const auto to = row.number(std::to_string(from));
      if (to && *to >= 0 && *to < 64) map.to[from] = static_cast<std::uint8_t>(*to);
    }
    device_.maps.push_back(std::make_unique<Map>(std::move(map)));
    return known = device_.maps.back().get();
  }

  void read_port_maps() {
    const Row global = tables_.row("PORT_QOS_MAP", std::string(sonic::kGlobal));
    const Map* everywhere = map("DSCP_TO_TC_MAP", global.reference("dscp_to_tc_map"));
    tables_.for_each_row("PORT_QOS_MAP", [&](const std::string& key, const Row& row) {
      for_ports(key, [&](Port& port) {
        port.dscp_to_class = map("DSCP_TO_TC_MAP", row.reference("dscp_to_tc_map"));
        if (port.dscp_to_class == nullptr) port.dscp_to_class = everywhere;
        port.dscp_place = row.place("dscp_to_tc_map");
        port.pcp_to_class = map("DOT1P_TO_TC_MAP", row.reference("dot1p_to_tc_map"));
        port.class_to_queue = map("TC_TO_QUEUE_MAP", row.reference("tc_to_queue_map"));
        port.class_to_group = map("TC_TO_PRIORITY_GROUP_MAP", row.reference("tc_to_pg_map"));
        port.pfc_to_queue = map("MAP_PFC_PRIORITY_TO_QUEUE", row.reference("pfc_to_queue_map"));
        port.pfc = sonic::priorities(row.text("pfc_enable").value_or(""));
        port.pfc_place = row.place("pfc_enable");
        if (const auto watched = row.text("pfcwd_sw_enable")) port.watched = sonic::priorities(*watched);
        device_.names_watched |= port.watched.has_value();
        port.watched_place = row.place("pfcwd_sw_enable");
      });
    });
  }

  const Ecn* ecn(std::string_view name) {
    const Row row = tables_.row("WRED_PROFILE", name);
    if (!row) return nullptr;
    const Ecn*& known = ecns_[row.place()];
    if (known != nullptr) return known;
    Ecn ecn;
    ecn.place = row.place();
    ecn.marks = row.text("ecn").value_or("ecn_none") != "ecn_none";
    for (const std::string colour : {"green", "yellow", "red"}) {
      if (row.text("wred_" + colour + "_enable") != "true") continue;
      ecn.drops = true;
      read_thresholds(row, colour, ecn);
    }
    device_.ecns.push_back(std::make_unique<Ecn>(std::move(ecn)));
    return known = device_.ecns.back().get();
  }

  // Of the colours, the thresholds that are worst: those that are the wrong way round, else green's.
  static void read_thresholds(const Row& row, const std::string& colour, Ecn& ecn) {
    const auto low = row.number(colour + "_min_threshold"), high = row.number(colour + "_max_threshold");
    const bool first = !ecn.kmin && !ecn.kmax;
    const bool wrong = low && high && *low > *high;
    if (!first && !wrong) return;
    if (low && *low >= 0) ecn.kmin = static_cast<std::uint64_t>(*low);
    if (high && *high >= 0) ecn.kmax = static_cast<std::uint64_t>(*high);
    if (const auto percent = row.number(colour + "_drop_probability"); percent && *percent >= 0 && *percent <= 100)
      ecn.percent = static_cast<unsigned>(*percent);
  }

  std::optional<Scheduling> scheduling(std::string_view name) {
    const Row row = tables_.row("SCHEDULER", name);
    const auto type = row.text("type");
    if (!type) return std::nullopt;
    Scheduling result;
    result.strict = *type == "STRICT";
    if (const auto weight = row.number("weight"); weight && *weight > 0) result.weight = static_cast<unsigned>(*weight);
    return result;
  }

  // Rates are in bytes per second.
  std::optional<Shaper> shaper(std::string_view name) {
    const auto rate = tables_.row("SCHEDULER", name).number("pir");
    if (!rate || *rate <= 0 || *rate > 10'000'000'000'000) return std::nullopt;
    return Shaper{.percent = {}, .rate = BitsPerSecond(static_cast<std::uint64_t>(*rate) * 8)};
  }

  void read_queues() {
    tables_.for_each_row("QUEUE", [&](const std::string& key, const Row& row) {
      for_indices(key, [&](Port& port, std::size_t i) {
        Queue& queue = port.queues[i];
        queue.place = row.place();
        if (row.text("scheduler")) {
          queue.scheduling = scheduling(row.reference("scheduler"));
          queue.shaper = shaper(row.reference("scheduler"));
        }
        if (row.text("wred_profile")) queue.ecn = ecn(row.reference("wred_profile"));
      });
    });
  }

  // A queue may grow to alpha times what is left of the pool: alpha / (1 + alpha) of it when nothing else is there.
  std::optional<Bytes> stops_at(const Row& profile) {
    const Row pool = tables_.row("BUFFER_POOL", profile.reference("pool"));
    const auto size = pool.number("size"), exponent = profile.number("dynamic_th");
    if (!size || *size <= 0 || !exponent || *exponent < -8 || *exponent > 7) return std::nullopt;
    const double alpha = std::ldexp(1.0, static_cast<int>(*exponent));
    return Bytes(static_cast<std::uint64_t>(static_cast<double>(*size) * alpha / (1 + alpha)));
  }

  Buffer buffer(const Row& row) {
    Buffer result;
    result.place = row.place();
    const std::string name(row.reference("profile"));
    if (name == "NULL") {
      result.kind = Buffer::Kind::kComputed;
      return result;
    }
    const Row profile = tables_.row("BUFFER_PROFILE", name);
    if (!profile) return result;
    const auto xoff = profile.number("xoff");
    const bool by_device = profile.text("headroom_type") == "dynamic";
    result.kind = xoff ? Buffer::Kind::kLossless : by_device ? Buffer::Kind::kComputed : Buffer::Kind::kLossy;
    result.profile = profile.place("xoff");
    if (xoff && *xoff >= 0) result.xoff = Bytes(static_cast<std::uint64_t>(*xoff));
    result.stops_at = stops_at(profile);
    if (const auto size = profile.number("size"); size && *size >= 0)
      result.reserved = Bytes(static_cast<std::uint64_t>(*size));
    result.pool = profile.reference("pool");
    if (!name.starts_with(kLosslessName)) return result;
    const auto parts = sonic::split(std::string_view(name).substr(kLosslessName.size()), '_');
    if (parts.size() < 2) return result;
    if (const auto speed = sonic::number(parts[0]); speed && *speed > 0 && *speed <= 10'000'000)
      result.made_for_speed = BitsPerSecond(static_cast<std::uint64_t>(*speed) * 1'000'000);
    result.made_for_metres = sonic::length(parts[1]);
    return result;
  }

  void read_buffers() {
    tables_.for_each_row("BUFFER_POOL", [&](const std::string& name, const Row& row) {
      if (const auto size = row.number("size"); size && *size > 0)
        device_.pools[name] = {row.place("size"), Bytes(static_cast<std::uint64_t>(*size))};
    });
    tables_.for_each_row("BUFFER_PG", [&](const std::string& key, const Row& row) {
      if (!row.text("profile")) return;
      for_indices(key, [&](Port& port, std::size_t i) { port.buffers[i] = buffer(row); });
    });
    tables_.for_each_row("BUFFER_QUEUE", [&](const std::string& key, const Row& row) {
      const std::string name(row.reference("profile"));
      const auto lossless = is_lossless(name);
      for_indices(key, [&](Port& port, std::size_t i) {
        port.queues[i].buffer_place = row.place("profile");
        port.queues[i].lossless_buffer = lossless;
      });
    });
  }

  // By the name of the profile, else by that of its pool: SONiC's templates say it nowhere else.
  std::optional<bool> is_lossless(const std::string& profile) const {
    const std::string pool(tables_.row("BUFFER_PROFILE", profile).reference("pool"));
    for (const std::string& name : {profile, pool}) {
      if (name.find("lossless") != std::string::npos) return true;
      if (name.find("lossy") != std::string::npos) return false;
    }
    return std::nullopt;
  }

  static std::optional<Duration> milliseconds_of(const Row& row, std::string_view field) {
    const auto value = row.number(field);
    if (!value || *value < 0 || *value > 1'000'000) return std::nullopt;
    return milliseconds(*value);
  }

  void read_watchdogs() {
    tables_.for_each_row("PFC_WD", [&](const std::string& key, const Row& row) {
      if (key == "GLOBAL") {
        device_.watchdog_poll = milliseconds_of(row, "POLL_INTERVAL");
        device_.watchdog_poll_place = row.place("POLL_INTERVAL");
        return;
      }
      for_ports(key, [&](Port& port) {
        device_.has_watchdogs = true;
        port.watchdog =
            Watchdog{row.place(), milliseconds_of(row, "detection_time"), milliseconds_of(row, "restoration_time")};
      });
    });
  }

  const Tables& tables_;
  Device& device_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::map<std::string, const Map*> maps_;
  std::map<std::string, const Ecn*> ecns_;
};

}  // namespace

Result<std::string> read_configuration(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto size = file ? static_cast<std::streamoff>(file.tellg()) : -1;
  if (size < 0) return Status(Code::kNotFound, "cannot be read", path, "name a file that you may read");
  if (static_cast<std::size_t>(size) > kMaxConfiguration)
    return Status(Code::kInvalidArgument, fmt::format("{} MiB are too many for a configuration", size >> 20), path,
                  fmt::format("give a file of at most {} MiB", kMaxConfiguration >> 20));
  std::string text(static_cast<std::size_t>(size), '\0');
  file.seekg(0);
  file.read(text.data(), size);
  if (!file) return Status(Code::kNotFound, "cannot be read", path, "name a file that you may read");
  return text;
}

Result<Device> parse_sonic(std::string_view text, const std::string& path, const std::string& name,
                           findings::Report& report) {
  TL_ASSIGN_OR_RETURN(const Tables tables, Tables::parse(text, path));
  const auto hostname = tables.row("DEVICE_METADATA", "localhost").text("hostname");
  Device device = new_device(std::string(hostname.value_or(name)), path, "sonic");
  sonic::check_tables(tables, device.name, report);
  Reader(tables, device).read();
  return device;
}

}  // namespace tensorlane::lint
