#include "monitor/cli/doctor_dpdk.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

#include "common/fabric/fabric.h"
#include "common/files/careful.h"
#include "common/files/place.h"

namespace tensorlane::cli {
namespace {

using files::Place;
using findings::Severity;

constexpr const char* kRule = "P1";
constexpr Bytes kMostConfig = mib(1), kMostFabric = mib(4), kMostLine = kib(64);
constexpr std::uint64_t kLeastPinned = std::uint64_t{256} << 20;  // what the daemon gives DPDK where nobody says it
constexpr std::uint32_t kIfUp = 1, kDefaultMtu = 1500;
constexpr std::string_view kHugePages = "/sys/kernel/mm/hugepages";
// The kernel keeps the device, and DPDK drives it beside the kernel.
constexpr std::array<std::string_view, 4> kBifurcated = {"mlx5_core", "mlx4_core", "mana", "hv_netvsc"};
constexpr std::string_view kMellanox = "0x15b3";
constexpr std::array<std::string_view, 2> kUio = {"igb_uio", "uio_pci_generic"};
// Drivers that leave a device's IOMMU group to others.
constexpr std::array<std::string_view, 3> kLeavesGroup = {"vfio-pci", "pci-stub", "pcieport"};
// With these in `eal`, DPDK wants huge pages, and the daemon does not go without.
constexpr std::array<std::string_view, 4> kWantsHuge = {"--in-memory", "--huge-dir", "--huge-unlink", "--socket-mem"};

template <typename List>
bool holds(const List& list, std::string_view text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

// What daemon.yaml says.
struct Config {
  std::string path, host;
  Place fabric;
  bool insists = false;  // transport: dpdk
  std::vector<std::string> devices, eal;

  // Whether an argument of EAL is this one, with or without a value.
  bool eal_has(std::string_view name) const {
    return std::any_of(eal.begin(), eal.end(), [&](const std::string& argument) {
      return argument == name || argument.starts_with(std::string(name) + "=") ||
             (name.size() == 2 && argument.starts_with(name));
    });
  }
};

std::vector<std::string> texts(const YAML::Node& node) {
  std::vector<std::string> all;
  if (node.IsDefined() && node.IsSequence()) {
    for (const YAML::Node& one : node) all.push_back(one.as<std::string>(""));
  }
  return all;
}

// Nothing where it has no key `dpdk`. It is read for what is looked at here; `tensorlaned --check-config` says what is
// wrong with the file.
Result<std::optional<Config>> read_config(const Place& place) {
  TL_ASSIGN_OR_RETURN(const std::string text,
                      files::read(place, "the daemon's configuration", files::Care::kConfiguration, kMostConfig));
  try {
    const YAML::Node file = YAML::Load(text);
    if (!file.IsMap()) return Status(Code::kInvalidArgument, "it is no mapping", place.path, "give a daemon.yaml");
    const YAML::Node dpdk = file["dpdk"];
    if (!dpdk.IsDefined()) return std::optional<Config>();
    Config config{.path = place.path};
    if (dpdk.IsMap()) {
      config.devices = texts(dpdk["devices"]);
      config.eal = texts(dpdk["eal"]);
    }
    const auto word = [&](const char* key) {
      const YAML::Node value = file[key];
      return value.IsDefined() && value.IsScalar() ? value.as<std::string>("") : std::string();
    };
    config.host = word("host");
    config.insists = word("transport") == "dpdk";
    const std::filesystem::path fabric = word("fabric");
    const std::filesystem::path beside = std::filesystem::path(place.path).parent_path() / fabric;
    if (!fabric.empty()) config.fabric = {place.root, beside.lexically_normal().string()};
    return std::optional(std::move(config));
  } catch (const YAML::Exception& wrong) {
    return Status(Code::kInvalidArgument, wrong.what(), place.path, "correct it: tensorlaned --check-config");
  }
}

// As whom the daemon runs.
struct Who {
  std::uint32_t user = 0;
  std::set<std::uint32_t> groups;

  bool may_use(const struct stat& file) const {  // read and write
    if (user == 0) return true;
    if (file.st_uid == user) return (file.st_mode & 0600) == 0600;
    if (groups.contains(file.st_gid)) return (file.st_mode & 0060) == 0060;
    return (file.st_mode & 0006) == 0006;
  }
};

struct Daemon {
  std::string process;  // "/proc/4711"; empty: none runs
  Who who;
};

class DpdkDoctor {
 public:
  DpdkDoctor(std::string root, Config config, findings::Report& report)
      : root_(std::move(root)), config_(std::move(config)), report_(report), daemon_(find_daemon()) {}

  void examine() {
    check_build();
    if (config_.devices.empty())
      add(Severity::kError, config_.path, "`dpdk` names no devices", "add `devices`, one for each rail");
    bool pinned = false, pci = false;
    for (const std::string& device : config_.devices) {
      const std::size_t comma = device.find(',');
      const std::string name = device.substr(0, comma),
                        arguments = comma == device.npos ? "" : device.substr(comma + 1);
      if (const std::string address = pci_address(name); !address.empty()) {
        check_pci(address);
        pci = pinned = true;
      } else if (name.starts_with("net_af_packet") || name.starts_with("net_af_xdp")) {
        check_interface(device, argument(arguments, "iface"));
        pinned = pinned || name.starts_with("net_af_xdp");
      } else if (name.starts_with("net_memif")) {
        check_memif(device, arguments);
      }
    }
    check_huge_pages(pci);
    if (pinned) check_memlock();
  }

 private:
  void add(Severity severity, const std::string& place, const std::string& message, const std::string& fix,
           const char* rule = kRule) {
    report_.findings.push_back({rule, severity, config_.host, place, message, fix});
  }

  Place at(const std::string& path) const { return {root_, path}; }
  std::optional<std::string> line(const std::string& path) const {
    std::optional<std::string> text = files::read_beginning(at(path), kMostLine);
    if (text) {
      text->resize(std::min(text->size(), text->find('\n')));
      while (!text->empty() && std::isspace(static_cast<unsigned char>(text->back())) != 0) text->pop_back();
    }
    return text;
  }
  std::optional<std::uint64_t> number(const std::string& path) const {
    const std::string text = line(path).value_or("");
    std::uint64_t value = 0;
    const char* const end = text.data() + text.size();
    const bool hex = text.starts_with("0x");
    const auto [stop, error] = std::from_chars(text.data() + (hex ? 2 : 0), end, value, hex ? 16 : 10);
    return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
  }
  std::string link(const std::string& path) const {
    return std::filesystem::path(files::link_target(at(path))).filename().string();
  }

  Daemon find_daemon() const {
    Daemon daemon{.process = "", .who = {.user = geteuid(), .groups = {getegid()}}};
    for (const std::string& name : files::names_in(at("/proc"))) {
      if (name.find_first_not_of("0123456789") != name.npos || line("/proc/" + name + "/comm") != "tensorlaned")
        continue;
      daemon.process = "/proc/" + name;
      std::istringstream status(files::read_beginning(at(daemon.process + "/status"), kMostLine).value_or(""));
      for (std::string row; std::getline(status, row);) {
        std::istringstream words(row);
        std::string key;
        std::uint32_t real = 0, id = 0;
        words >> key;
        if (key == "Uid:" && words >> real >> id) daemon.who = {.user = id, .groups = {}};
        while ((key == "Gid:" || key == "Groups:") && words >> id) daemon.who.groups.insert(id);
      }
      break;
    }
    return daemon;
  }

  void check_build() {
    if (TENSORLANE_DPDK == 0) {
      add(config_.insists ? Severity::kError : Severity::kWarning, config_.path,
          "it asks for DPDK, and this build of tensorlane has none",
          "build it with libdpdk-dev 22.11 or newer, or choose another transport");
    }
  }

  static std::string argument(const std::string& arguments, std::string_view key) {
    std::istringstream words(arguments);
    for (std::string word; std::getline(words, word, ',');) {
      if (word.starts_with(std::string(key) + "=")) return word.substr(key.size() + 1);
    }
    return {};
  }

  // "0000:3b:00.0", also of "3b:00.0"; empty: it is none.
  static std::string pci_address(const std::string& name) {
    const std::string full = name.size() == 7 ? "0000:" + name : name;
    constexpr std::string_view kShape = "xxxx:xx:xx.x";
    if (full.size() != kShape.size()) return {};
    for (std::size_t i = 0; i < full.size(); ++i) {
      const bool fits =
          kShape[i] == 'x' ? std::isxdigit(static_cast<unsigned char>(full[i])) != 0 : full[i] == kShape[i];
      if (!fits) return {};
    }
    return full;
  }

  void check_pci(const std::string& address) {
    const std::string folder = "/sys/bus/pci/devices/" + address;
    if (!files::is_folder(at(folder))) {
      add(Severity::kError, folder, fmt::format("{} names this device, and it is not there", config_.path),
          "take an address that `lspci -D` lists");
      return;
    }
    // A mistyped address may be that of a disk, which nobody should take from the kernel.
    if (const std::string type = line(folder + "/class").value_or(""); !type.empty() && !type.starts_with("0x02")) {
      add(Severity::kError, folder + "/class",
          fmt::format("{} names this device, which is no NIC (class {})", config_.path, type),
          "take an address that `lspci -D` lists as Ethernet controller");
      return;
    }
    const std::string short_name = address.starts_with("0000:") ? address.substr(5) : address;
    const bool allowed = std::any_of(config_.eal.begin(), config_.eal.end(), [&](const std::string& argument) {
      return argument.find(short_name) != argument.npos;
    });
    if (!allowed && !config_.eal_has("-b") && !config_.eal_has("--block"))
      add(Severity::kError, config_.path, fmt::format("`eal` does not let DPDK see {}", address),
          fmt::format("eal: ['-a', '{}']", address));
    check_driver(address, folder);
  }

  void check_driver(const std::string& address, const std::string& folder) {
    const std::string driver = link(folder + "/driver"), place = folder + "/driver";
    const std::string bind = fmt::format("modprobe vfio-pci && dpdk-devbind.py --bind=vfio-pci {}", address);
    if (holds(kBifurcated, driver)) return;
    if (driver == "vfio-pci" && line(folder + "/vendor") == kMellanox) {
      add(Severity::kError, place, "DPDK drives NICs of NVIDIA (Mellanox) beside mlx5_core, and not under vfio-pci",
          fmt::format("echo > {0}/driver_override; echo {1} > /sys/bus/pci/drivers/vfio-pci/unbind; echo {1} > "
                      "/sys/bus/pci/drivers_probe",
                      folder, address));
    } else if (driver == "vfio-pci") {
      check_vfio(folder);
    } else if (holds(kUio, driver)) {
      without_iommu_ = true;
      add(Severity::kWarning, place, fmt::format("with {} the device can write to all memory of the host", driver),
          bind);
    } else {
      add(Severity::kError, place,
          driver.empty() ? "no driver is bound, so DPDK cannot open the device"
                         : fmt::format("'{}', a driver of the kernel, has the device, so DPDK cannot open it", driver),
          bind + "; the kernel then has no interface there");
    }
  }

  void check_vfio(const std::string& folder) {
    const std::string unsafe = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";
    const std::string group = link(folder + "/iommu_group");
    const bool no_iommu = line(unsafe) == "Y";
    if (group.empty()) {
      add(Severity::kError, folder + "/iommu_group",
          "the device is in no IOMMU group, so vfio-pci does not give it out",
          "switch the IOMMU on, in the firmware and by intel_iommu=on or amd_iommu=on for the kernel");
      return;
    }
    std::string file = "/dev/vfio/" + group;
    if (no_iommu) {
      add(Severity::kWarning, unsafe, "vfio works without an IOMMU: the device can write to all memory of the host",
          fmt::format("switch the IOMMU on, and echo 0 > {}", unsafe));
      without_iommu_ = !files::exists(at(file));
      if (without_iommu_) file = "/dev/vfio/noiommu-" + group;
    }
    check_group(group, std::filesystem::path(folder).filename().string());
    struct stat about {};
    const files::Opened found = files::find(at(file));
    if (!found.ok() || fstat(found.get(), &about) != 0) {
      add(Severity::kError, file, "the group of the device has no file there", "modprobe vfio-pci");
    } else if (!daemon_.who.may_use(about)) {
      add(Severity::kError, file, fmt::format("user {} of the daemon may not read and write it", daemon_.who.user),
          fmt::format("chown {} {}, by a rule of udev that does so at each start", daemon_.who.user, file));
    }
  }

  // The kernel gives out a group as a whole, or not at all.
  void check_group(const std::string& group, const std::string& address) {
    const std::string devices = "/sys/kernel/iommu_groups/" + group + "/devices";
    for (const std::string& other : files::names_in(at(devices))) {
      const std::string driver = link("/sys/bus/pci/devices/" + other + "/driver");
      if (other == address || driver.empty() || holds(kLeavesGroup, driver)) continue;
      add(Severity::kError, devices + "/" + other,
          fmt::format("'{}' has this device of the same IOMMU group, so vfio-pci does not give {} out", driver,
                      address),
          "unbind it or bind it to vfio-pci, too, or put the NIC into a slot with a group of its own");
    }
  }

  void check_interface(const std::string& device, const std::string& name) {
    if (name.empty() || name.find('/') != name.npos) {
      add(Severity::kError, config_.path, fmt::format("'{}' names no interface", device), "add iface=INTERFACE");
      return;
    }
    const std::string folder = "/sys/class/net/" + name;
    if (!files::exists(at(folder))) {
      add(Severity::kError, folder, fmt::format("{} names this interface, and it is not there", config_.path),
          "take one that `ip link` lists");
      return;
    }
    const std::string state = line(folder + "/operstate").value_or("unknown");
    const bool up = (number(folder + "/flags").value_or(kIfUp) & kIfUp) != 0;
    if (!up)
      add(Severity::kError, folder + "/flags", "the interface is not up", fmt::format("ip link set dev {} up", name));
    else if (state != "up" && state != "unknown")
      add(Severity::kError, folder + "/operstate", fmt::format("the interface is up, and its link is '{}'", state),
          "look at the cable and at the port of the switch");
    const std::uint32_t wanted = link_mtu();
    const auto mtu = number(folder + "/mtu");
    if (mtu && *mtu < wanted)
      add(Severity::kError, folder + "/mtu",
          fmt::format("{} bytes, but the fabric's link has {}: larger packets are lost", *mtu, wanted),
          fmt::format("ip link set dev {} mtu {}", name, wanted), "L7");
  }

  Result<fabric::Fabric> read_fabric() {
    TL_ASSIGN_OR_RETURN(const std::string text,
                        files::read(config_.fabric, "the fabric file", files::Care::kConfiguration, kMostFabric));
    return fabric::parse(text, config_.fabric.path, fabric::Keys::kOptional);
  }

  // The smallest of the host's links, as the daemon takes it.
  std::uint32_t link_mtu() {
    if (mtu_) return *mtu_;
    mtu_ = kDefaultMtu;
    const Result<fabric::Fabric> fabric = read_fabric();
    if (!fabric.ok()) {
      report_.unchecked.push_back(
          {config_.host, "L7",
           fmt::format("the fabric file cannot be read, so links are taken for ones of {} bytes: {}", kDefaultMtu,
                       fabric.status().to_string())});
      return *mtu_;
    }
    std::optional<std::uint32_t> smallest;
    for (const fabric::Link& link : fabric->links) {
      if (link.from == config_.host || link.to == config_.host)
        smallest = smallest ? std::min(*smallest, link.mtu) : link.mtu;
    }
    mtu_ = smallest.value_or(kDefaultMtu);
    return *mtu_;
  }

  // Who connects to the socket can send packets, and can end the process of a server.
  void check_memif(const std::string& device, const std::string& arguments) {
    const std::string given = argument(arguments, "socket"), socket = given.empty() ? "/run/memif.sock" : given;
    if (argument(arguments, "socket-abstract") != "no") {
      add(Severity::kError, config_.path,
          fmt::format("the socket of '{}' is in no folder, so every process of the host can connect to it", device),
          "add socket-abstract=no and socket=FILE, in a folder of the daemon's user");
      return;
    }
    const std::string folder = std::filesystem::path(socket).parent_path().string();
    struct stat about {};
    const files::Opened found = files::find(at(folder));
    if (!found.ok() || fstat(found.get(), &about) != 0) {
      add(Severity::kError, folder,
          fmt::format("the socket of '{}' is to be in this folder, and it is not there", device),
          fmt::format("install -d -m 0750 -o {} {}", daemon_.who.user, folder));
    } else if ((about.st_mode & 0002) != 0) {
      add(Severity::kError, folder,
          fmt::format("strangers may write where the socket of '{}' is, and can take its place", device),
          fmt::format("take a folder of the daemon's user, mode 0750, or chmod o-rwx {}", folder));
    } else if ((about.st_mode & 0001) != 0) {
      add(Severity::kWarning, folder,
          fmt::format("strangers may look up the socket of '{}': whether they can connect is left to its own mode",
                      device),
          fmt::format("take a folder of the daemon's user, mode 0750, or chmod o-rwx {}", folder));
    }
  }

  void check_huge_pages(bool pci) {
    std::uint64_t all = 0, free = 0;
    for (const std::string& size : files::names_in(at(std::string(kHugePages)))) {
      all += number(fmt::format("{}/{}/nr_hugepages", kHugePages, size)).value_or(0);
      free += number(fmt::format("{}/{}/free_hugepages", kHugePages, size)).value_or(0);
    }
    const std::string place(kHugePages), reserve = "echo 256 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    const std::string no_iommu = without_iommu_ ? ", and a device without an IOMMU cannot use them" : "";
    const bool without = config_.eal_has("--no-huge");
    const bool wants =
        std::any_of(kWantsHuge.begin(), kWantsHuge.end(), [&](auto name) { return config_.eal_has(name); });
    if (without && pci) {
      add(without_iommu_ ? Severity::kError : Severity::kWarning, config_.path,
          "`eal` says --no-huge: the memory of packets is in small pages, which costs time" + no_iommu,
          reserve + ", and leave --no-huge out");
    } else if (!without && all == 0) {
      const Severity small = pci ? Severity::kWarning : Severity::kNote;
      add(wants || without_iommu_ ? Severity::kError : small, place,
          wants ? "`eal` asks for huge pages, and the host has none"
                : "the host has no huge pages: the daemon starts DPDK with --no-huge, its memory is in small pages, "
                  "which costs time" +
                      no_iommu,
          reserve + (wants ? ", or put --no-huge in the place of what asks for them, for a test or a small host"
                           : ", or say --no-huge in `eal` for a test or a small host"));
    } else if (!without && free == 0 && daemon_.process.empty()) {
      add(Severity::kError, place,
          fmt::format("all {} huge pages are in use, and no daemon runs that could have them", all), reserve);
    }
  }

  void check_memlock() {
    if (daemon_.process.empty()) {
      add(Severity::kNote, "tensorlaned", "no daemon runs here: how much memory it may lock was not looked at",
          "start it, and look again");
      return;
    }
    constexpr std::string_view kName = "Max locked memory";
    std::istringstream limits(files::read_beginning(at(daemon_.process + "/limits"), kMostLine).value_or(""));
    for (std::string row; std::getline(limits, row);) {
      if (!row.starts_with(kName)) continue;
      std::istringstream words(row.substr(kName.size()));
      std::uint64_t bytes = 0;
      if (words >> bytes && bytes < kLeastPinned && daemon_.who.user != 0)
        add(Severity::kError, daemon_.process + "/limits",
            fmt::format("the daemon may lock {} bytes, too few for the memory that the device reads", bytes),
            "LimitMEMLOCK=infinity in the unit, or `ulimit -l unlimited`");
    }
  }

  const std::string root_;
  const Config config_;
  findings::Report& report_;
  const Daemon daemon_;
  std::optional<std::uint32_t> mtu_;
  bool without_iommu_ = false;  // a device uses physical addresses
};

}  // namespace

Status examine_dpdk(const DpdkDoctorOptions& options, findings::Report& report) {
  const Place place = options.config.empty() ? Place{options.root, kDefaultConfig} : Place{"", options.config};
  if (options.config.empty() && !files::exists(place)) return {};
  Result<std::optional<Config>> config = read_config(place);
  if (!config.ok() && options.config.empty()) {
    report.unchecked.push_back({"", kRule, config.status().to_string()});
    return {};
  }
  if (!config.ok()) return config.status();
  if (*config) DpdkDoctor(options.root, std::move(**config), report).examine();
  findings::sort(report);
  return {};
}

}  // namespace tensorlane::cli
