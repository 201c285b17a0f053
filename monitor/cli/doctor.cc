#include "monitor/cli/doctor.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

#include "common/nccl/preflight.h"
#include "monitor/cli/doctor_nic.h"
#include "monitor/cli/doctor_process.h"

namespace tensorlane::cli {
namespace {

namespace fs = std::filesystem;
using findings::Severity;
using switches::DevicePort;
using switches::DeviceQos;
using switches::PortKind;

constexpr unsigned kEct0 = 2, kEcnBits = 3;
constexpr std::uint64_t kLeastMemlock = std::uint64_t{1} << 30;  // what a job of one NIC pins, about
constexpr std::uint64_t kRoceMtu = 4096 + 100;                   // the largest path MTU and its headers
constexpr const char* kPrefixes[] = {"NCCL_IB_", "UCX_IB_"};

// The first line of a file; unset where it cannot be read.
std::optional<std::string> read_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line)) return std::nullopt;
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())) != 0) line.pop_back();
  return line;
}

// The whole text as a number, as strtoul reads it with base 0.
std::optional<std::uint64_t> number(const std::string& text) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0])) == 0) return std::nullopt;
  char* end = nullptr;
  const std::uint64_t value = std::strtoull(text.c_str(), &end, 0);
  return *end == 0 ? std::optional(value) : std::nullopt;
}

class Doctor {
 public:
  explicit Doctor(const DoctorOptions& options) : options_(options), root_(options.root.empty() ? "/" : options.root) {}

  Result<findings::Report> examine() {
    std::error_code error;
    if (!fs::is_directory(root_ / "sys/class", error))
      return Status(Code::kInvalidArgument, "there is no sys/class in it", root_.string(),
                    "give a folder with copies of sys and proc");
    name_ = options_.host != nullptr ? options_.host->name : "";
    TL_ASSIGN_OR_RETURN(ProcessEnvironment environment, process_environment(options_.root, options_.pid));
    environment_ = std::move(environment.variables);
    if (!environment.cut.empty()) report_.unchecked.push_back({name_, "L10", environment.cut});
    if (options_.host != nullptr) {
      for (std::size_t i = 0; i < options_.host->ports.size(); ++i) TL_RETURN_IF_ERROR(check_port(i));
    } else {
      TL_RETURN_IF_ERROR(check_all_ports());
    }
    check_variables();
    TL_RETURN_IF_ERROR(check_memlock());
    findings::sort(report_);
    return report_;
  }

 private:
  void add(const char* rule, Severity severity, const std::string& place, const std::string& message,
           const std::string& fix) {
    report_.findings.push_back({rule, severity, name_, place, message, fix});
  }

  fs::path process() const { return root_ / "proc" / (options_.pid == 0 ? "self" : std::to_string(options_.pid)); }

  Status check_all_ports() {
    std::vector<std::string> names;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(root_ / "sys/class/net", error)) {
      std::error_code absent;
      if (fs::is_directory(entry.path() / "device/infiniband", absent)) names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) TL_RETURN_IF_ERROR(check_interface(name, nullptr, ""));
    if (names.empty())
      add("L10", Severity::kNote, "/sys/class/net", "no network interface has an RDMA device",
          "nothing to do where TCP is what you want");
    return {};
  }

  Status check_port(std::size_t index) {
    const DevicePort& port = options_.host->ports[index];
    const std::vector<std::string>& devices = options_.host->rdma_devices;
    return check_interface(port.name, &options_.host->kinds[port.kind],
                           devices.size() == options_.host->ports.size() ? devices[index] : "");
  }

  // `kind` is null where no fabric says what it is to be.
  Status check_interface(const std::string& name, const PortKind* kind, std::string device) {
    const fs::path net = root_ / "sys/class/net" / name;
    const std::string place = "/sys/class/net/" + name;
    std::error_code error;
    if (!fs::exists(net, error)) {
      add("L10", Severity::kError, place, "the fabric file names this interface, and it is not there",
          "correct 'from_port' or 'to_port' of the host's link");
      return {};
    }
    check_mtu(net, place, kind);
    TL_RETURN_IF_ERROR(check_qos(name, kind));
    check_ecn(net, place, kind);
    if (device.empty()) {
      for (const auto& entry : fs::directory_iterator(net / "device/infiniband", error))
        device = entry.path().filename();
    }
    if (device.empty())
      add("L10", Severity::kNote, place, "it has no RDMA device", "nothing to do where TCP is what you want");
    else
      check_rdma(device);
    return {};
  }

  void check_mtu(const fs::path& net, const std::string& place, const PortKind* kind) {
    const auto mtu = number(read_line(net / "mtu").value_or(""));
    if (!mtu) return;
    if (kind != nullptr && *mtu != kind->mtu)
      add("L7", *mtu > kind->mtu ? Severity::kError : Severity::kWarning, place + "/mtu",
          fmt::format("{} bytes, but the fabric's link has {}{}", *mtu, kind->mtu,
                      *mtu > kind->mtu ? ": larger packets are dropped" : ""),
          fmt::format("ip link set dev {} mtu {}", net.filename().string(), kind->mtu));
    else if (kind == nullptr && *mtu < kRoceMtu)
      add("L7", Severity::kWarning, place + "/mtu",
          fmt::format("{} bytes are too few for RoCE packets of 4096 and their headers", *mtu),
          "set an MTU of 9000 where the switches take it");
  }

  Status check_qos(const std::string& name, const PortKind* kind) {
    const std::optional<NicQos> nic = read_nic_qos(options_.root, name);
    if (!nic) {
      add("L10", Severity::kNote, "/sys/class/net/" + name,
          "neither mlnx_qos nor dcb shows its QoS: trust, maps and PFC are not looked at",
          "install the vendor's mlnx-tools, or iproute2 for a driver with DCB");
      return {};
    }
    const std::string place = nic->place();
    const auto within = [&](const std::string& part) { return part.starts_with(place) ? part : place + ": " + part; };
    findings::Report found;
    TL_ASSIGN_OR_RETURN(const lint::Device device,
                        lint::parse_configuration(nic->language, nic->text, place, name, found));
    const lint::Port& port = device.ports.front();
    bool trust_reported = false;
    for (findings::Finding& finding : found.findings) {
      trust_reported = trust_reported || finding.message.find("trust") != std::string::npos;
      finding.device = name_;
      finding.place = within(finding.place);
      report_.findings.push_back(std::move(finding));
    }
    for (findings::Unparsed& unparsed : found.unparsed)
      report_.unparsed.push_back({name_, unparsed.place, unparsed.text});
    if (kind == nullptr) return {};
    const unsigned wanted = options_.host->lossless_mask();
    if (!port.pfc) report_.unchecked.push_back({name_, "L3", place + " does not say for which priorities PFC is on"});
    if (port.pfc && *port.pfc != wanted)
      add("L3", Severity::kError, within(port.pfc_place),
          fmt::format("PFC is on for priorities {}, and the fabric's lossless ones are {}", priorities(*port.pfc),
                      priorities(wanted)),
          nic->pfc_command(wanted));
    if (port.dscp_to_class == nullptr && !nic->trusts_dscp().value_or(false)) {
      if (wanted != 0 && !trust_reported)
        add("L10", Severity::kWarning, within(nic->by_dcb() ? nic->map_name() : "Priority trust state"),
            "the NIC does not trust DSCP", nic->trust_command());
      return {};
    }
    check_map(*nic, port.dscp_to_class);
    return {};
  }

  void check_map(const NicQos& nic, const lint::Map* map) {
    if (map == nullptr) return;
    for (std::size_t dscp = 0; dscp < switches::kDscps; ++dscp) {
      const unsigned wanted = options_.host->queue_of_dscp[dscp];
      // What is not ours may be anything but a class of ours.
      const auto is = map->to[dscp];
      if (!is || *is == wanted || (wanted == 0 && options_.host->queues[*is & 7].name.empty())) continue;
      add("L1", wanted != 0 ? Severity::kError : Severity::kWarning,
          fmt::format("{}: {} {}", nic.place(), nic.map_name(), dscp),
          fmt::format("DSCP {} has priority {}, in the fabric {} ('{}')", dscp, *is, wanted,
                      options_.host->queues[wanted].name),
          nic.map_command(static_cast<unsigned>(dscp), wanted));
    }
  }

  static std::string priorities(unsigned mask) {
    std::string text;
    for (unsigned p = 0; p < 8; ++p)
      if ((mask >> p & 1) != 0) text += fmt::format("{}{}", text.empty() ? "" : ",", p);
    return text.empty() ? "none" : text;
  }

  void check_ecn(const fs::path& net, const std::string& place, const PortKind* kind) {
    std::error_code error;
    if (!fs::is_directory(net / "ecn", error)) return check_upstream_ecn(net, place, kind);
    if (kind == nullptr) return;
    for (unsigned p = 0; p < switches::kQueues; ++p) {
      if (!kind->ecn[p]) continue;
      for (const auto& [end, what] : {std::pair{"np", "sends no notifications of marked packets"},
                                      std::pair{"rp", "does not slow down when it is notified"}}) {
        const std::string file = fmt::format("ecn/roce_{}/enable/{}", end, p);
        const auto on = read_line(net / file);
        if (on && *on != "1")
          add("L5", Severity::kWarning, fmt::format("{}/{}", place, file),
              fmt::format("class '{}' {}: congestion ends in pauses", options_.host->queues[p].name, what),
              fmt::format("echo 1 > {}/{}", place, file));
      }
    }
    check_cnp(place + "/ecn/roce_np/cnp_dscp", options_.host->cnp_dscp);
    check_cnp(place + "/ecn/roce_np/cnp_802p_prio", options_.host->cnp_queue);
  }

  // Upstream's mlx5 shows marks of CNP, and no switch for each priority, in debugfs, which root alone may read.
  void check_upstream_ecn(const fs::path& net, const std::string& place, const PortKind* kind) {
    std::error_code error;
    const std::string pci = fs::weakly_canonical(net / "device", error).filename().string();
    const std::string folder = fmt::format("/sys/kernel/debug/mlx5/{}/cc_params", pci);
    if (!fs::is_directory(root_ / folder.substr(1), error))
      add("L5", Severity::kNote, place + "/ecn", "the driver shows no ECN settings: reaction points are not looked at",
          "the vendor's driver package has them; upstream's are in debugfs, for root");
    else if (kind != nullptr) {
      check_cnp(folder + "/np_cnp_dscp", options_.host->cnp_dscp);
      check_cnp(folder + "/np_cnp_prio", options_.host->cnp_queue);
    }
  }

  void check_cnp(const std::string& path, unsigned wanted) {
    const auto is = read_line(root_ / path.substr(1));
    if (is && number(*is) != wanted)
      add("L10", Severity::kWarning, path,
          fmt::format("congestion notifications go out with {}, and the fabric expects {}", *is, wanted),
          fmt::format("echo {} > {}", wanted, path));
  }

  void check_rdma(const std::string& device) {
    devices_.push_back(device);
    std::string path = fmt::format("/sys/class/infiniband/{}/tc/1/traffic_class", device);
    if (const unsigned forced = nccl::forced_traffic_class(options_.root, device); forced != 0)
      add("L10", Severity::kError, path,
          fmt::format("a device-wide traffic class {} (DSCP {}) puts all queue pairs into one class", forced,
                      forced >> 2),
          fmt::format("echo 0 > {}", path));
    path = fmt::format("/sys/kernel/config/rdma_cm/{}/ports/1/default_roce_tos", device);
    const auto tos = number(read_line(root_ / path.substr(1)).value_or(""));
    if (tos) check_tos(path, *tos, true);
  }

  // A TOS byte that somebody sets for RoCE. `is_default`: for what asks for no class, so that it is to be bulk.
  void check_tos(const std::string& place, std::uint64_t tos, bool is_default) {
    if (tos > 255) {
      add("L9", Severity::kError, place, fmt::format("{} is no TOS byte", tos), "expected DSCP * 4 + 2, at most 254");
      return;
    }
    const DeviceQos* host = options_.host;
    const unsigned bulk = host == nullptr ? 0 : host->bulk_dscp;
    if (is_default && host != nullptr && tos >> 2 != bulk) {
      add("L10", Severity::kWarning, place,
          fmt::format("RoCE without a class of its own is sent with DSCP {}, not with bulk's {}", tos >> 2, bulk),
          fmt::format("echo {} > {}", bulk << 2 | kEct0, place));
      return;
    }
    if (!is_default && host != nullptr && host->queue_of_dscp[tos >> 2] == 0)
      add("L10", Severity::kWarning, place,
          fmt::format("{} is DSCP {}, which is no class of the fabric{}", tos, tos >> 2,
                      tos < 64 && host->queue_of_dscp[tos] != 0
                          ? fmt::format("; {} would be the DSCP of class '{}', but this is the whole TOS byte", tos,
                                        host->queues[host->queue_of_dscp[tos]].name)
                          : ""),
          fmt::format("expected DSCP * 4 + 2, for bulk {}", bulk << 2 | kEct0));
    else if ((tos & kEcnBits) != kEct0 && tos >> 2 != 0)
      add("L10", Severity::kWarning, place,
          fmt::format("{} is DSCP {} without ECN: switches drop or pause where they could mark", tos, tos >> 2),
          fmt::format("{}", (tos & ~std::uint64_t{kEcnBits}) | kEct0));
  }

  const std::string* variable(const std::string& name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() ? nullptr : &found->second;
  }

  void check_variables() {
    for (const std::string prefix : kPrefixes) {
      const std::string tos = prefix + (prefix[0] == 'N' ? "TC" : "TRAFFIC_CLASS");
      std::optional<std::uint64_t> tc;
      if (const std::string* text = variable(tos); text != nullptr && *text != "auto") {
        tc = number(*text);
        if (tc)
          check_tos(tos, *tc, false);
        else
          add("L9", Severity::kError, tos, fmt::format("'{}' is no number", *text), "expected DSCP * 4 + 2");
      }
      check_service_level(prefix + "SL", tc);
      check_gid(prefix + "GID_INDEX");
    }
  }

  void check_service_level(const std::string& name, std::optional<std::uint64_t> tc) {
    const std::string* text = variable(name);
    if (text == nullptr || *text == "auto") return;
    const auto level = number(*text);
    if (!level || *level > 15) {
      add("L9", Severity::kError, name, fmt::format("'{}' is no service level", *text), "expected 0 to 15");
      return;
    }
    const DeviceQos* host = options_.host;
    if (host == nullptr) return;
    const std::size_t queue = tc && *tc < 256 ? host->queue_of_dscp[*tc >> 2] : host->queue_of_dscp[host->bulk_dscp];
    if (*level != options_.service_levels[queue])
      add("L10", Severity::kWarning, name,
          fmt::format(
              "service level {}, but class '{}', whose DSCP is in force, has {}: by PCP and by DSCP packets go to "
              "different classes",
              *level, host->queues[queue].name, options_.service_levels[queue]),
          fmt::format("{}={}", name, options_.service_levels[queue]));
  }

  void check_gid(const std::string& name) {
    const std::string* text = variable(name);
    if (text == nullptr || *text == "auto" || *text == "-1") return;  // their own choice
    const auto index = number(*text);
    if (!index) {
      add("L9", Severity::kError, name, fmt::format("'{}' is no number", *text), "expected an index of the GID table");
      return;
    }
    for (const std::string& device : devices_) {
      const std::string path = fmt::format("/sys/class/infiniband/{}/ports/1/gid_attrs/types/{}", device, *index);
      const auto type = read_line(root_ / path.substr(1));
      if (type == "RoCE v2") continue;
      add("L10", Severity::kError, name,
          type ? fmt::format("GID {} of {} is of type {}, which carries no DSCP", *index, device, *type)
               : fmt::format("{} has no GID {}", device, *index),
          fmt::format("unset it, or name an index whose type in /sys/class/infiniband/{}/ports/1/gid_attrs/types is "
                      "'RoCE v2'",
                      device));
    }
  }

  // Of the process that was named, else of the daemons here: what they may lock is their unit's affair, not the
  // caller's. TCP locks nothing.
  Status check_memlock() {
    if (options_.pid != 0) {
      if (!fs::exists(process() / "limits"))
        return Status(Code::kInvalidArgument, "there is no such process", process().string(), "name one that runs");
      check_limits(process() / "limits");
      return {};
    }
    if (devices_.empty()) return {};
    bool found = false;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(root_ / "proc", error)) {
      if (read_line(entry.path() / "comm") != "tensorlaned") continue;
      check_limits(entry.path() / "limits");
      found = true;
    }
    if (!found) {
      add("L10", Severity::kNote, "tensorlaned", "no daemon runs here: how much memory it may lock was not looked at",
          "start it, and look again");
    }
    return {};
  }

  void check_limits(const fs::path& limits) {
    std::ifstream file(limits);
    constexpr std::string_view kName = "Max locked memory";
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with(kName)) continue;
      std::istringstream words(line.substr(kName.size()));
      std::string soft;
      words >> soft;
      const auto bytes = number(soft);
      if (bytes && *bytes < kLeastMemlock)
        add("L10", Severity::kError, "Max locked memory",
            fmt::format("{} bytes may be locked: RDMA cannot register its buffers", *bytes),
            "LimitMEMLOCK=infinity in the unit, or `ulimit -l unlimited`");
    }
  }

  const DoctorOptions& options_;
  fs::path root_;
  std::string name_;  // of the host
  nccl::Environment environment_;
  std::vector<std::string> devices_;  // RDMA devices that were looked at
  findings::Report report_;
};

}  // namespace

Result<findings::Report> examine(const DoctorOptions& options) {
  return Doctor(options).examine();
}

}  // namespace tensorlane::cli
