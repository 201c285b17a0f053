// `tensorlane doctor`: what is wrong with this host.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "common/fabric/fabric.h"
#include "monitor/cli/commands.h"
#include "monitor/cli/doctor.h"
#include "monitor/cli/doctor_dpdk.h"
#include "monitor/cli/doctor_nccl.h"
#include "switch-config/findings/findings.h"
#include "switch-config/policy/policy.h"

namespace tensorlane::cli {
namespace {

struct DoctorArguments {
  std::string fabric, host, root, library, config;
  int pid = 0;
  bool nccl = false, json = false;
};

std::string own_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

// Whether the file says which of the host's ports its links are at.
bool names_ports(const fabric::Fabric& fabric, const fabric::Host& host) {
  return std::ranges::all_of(fabric.links, [&](const fabric::Link& link) {
    return (link.from != host.name || !link.from_port.empty()) && (link.to != host.name || !link.to_port.empty());
  });
}

// Where the file gives no length of a cable, what its headroom is short of even with this one is found, and nothing
// that is right is called wrong.
constexpr double kAssumedMetres = 1;

// Whether a length had to be assumed for links of the host.
bool assume_cables(fabric::Fabric& fabric, const fabric::Host& host) {
  const bool lossless = std::ranges::any_of(fabric.classes.data, &fabric::TrafficClass::lossless);
  bool assumed = false;
  for (fabric::Link& link : fabric.links) {
    if (link.cable_metres != 0 || (link.from != host.name && link.to != host.name)) continue;
    link.cable_metres = kAssumedMetres;
    assumed = lossless;
  }
  return assumed;
}

// What the fabric asks of one host: the file is read with this host alone, so that others' faults are not ours. Nothing
// where the file does not name the host's ports.
Result<std::optional<switches::DeviceQos>> wanted(const DoctorArguments& args, fabric::Fabric& fabric, bool* assumed) {
  TL_ASSIGN_OR_RETURN(fabric, fabric::load(args.fabric, fabric::Keys::kOptional));
  const std::string name = args.host.empty() ? own_name() : args.host;
  const fabric::Host* found = fabric.find_host_by_name_or_address(name);
  if (found == nullptr)
    return Status(Code::kInvalidArgument, fmt::format("the fabric has no host '{}'", name), args.fabric,
                  "name one with --host");
  if (!names_ports(fabric, *found)) return std::optional<switches::DeviceQos>();
  fabric.hosts = {fabric::Host(*found)};
  *assumed = assume_cables(fabric, fabric.hosts.front());
  TL_ASSIGN_OR_RETURN(std::vector<switches::DeviceQos> devices,
                      switches::devices_of(fabric, {.hosts = true, .nos = {}}));
  return std::optional(std::move(devices.front()));
}

int print(const findings::Report& report, bool json) {
  fmt::print("{}", json ? findings::to_json(report) : findings::to_text(report));
  return findings::exit_status(report);
}

Result<int> run_nccl(const DoctorArguments& args) {
  NcclDoctorOptions options{.root = args.root, .pid = args.pid, .library = args.library};
  fabric::Fabric fabric;
  if (!args.fabric.empty()) {
    TL_ASSIGN_OR_RETURN(fabric, fabric::load(args.fabric, fabric::Keys::kOptional));
    options.fabric = &fabric;
  }
  TL_ASSIGN_OR_RETURN(const findings::Report report, examine_nccl(options));
  return print(report, args.json);
}

Result<int> run(const DoctorArguments& args) {
  if (args.nccl) return run_nccl(args);
  DoctorOptions options{.root = args.root, .pid = args.pid};
  fabric::Fabric fabric;
  std::optional<switches::DeviceQos> host;
  bool assumed = false;
  if (!args.fabric.empty()) {
    TL_ASSIGN_OR_RETURN(host, wanted(args, fabric, &assumed));
    options.host = host ? &*host : nullptr;
    for (const fabric::TrafficClass& cls : fabric.classes.data) options.service_levels[cls.pcp] = cls.service_level;
    options.service_levels[fabric.classes.control.pcp] = fabric.classes.control.service_level;
  }
  Result<findings::Report> report = examine(options);
  const Status ports = report.ok() ? examine_dpdk({.root = args.root, .config = args.config}, *report) : Status();
  if (!report.ok() || !ports.ok()) {
    const Status& bad = report.ok() ? ports : report.status();
    return Status(Code::kInvalidArgument, bad.what(), bad.where(), bad.fix());  // exit status 2, whatever it was
  }
  if (!args.fabric.empty() && !host) {
    report->findings.push_back({"L10", findings::Severity::kNote, args.host, args.fabric,
                                "the fabric file does not name the ports of this host's links: they were looked at for "
                                "what is wrong on any fabric",
                                "add 'from_port' to the links, and look again"});
  }
  if (assumed) {
    report->findings.push_back({"L10", findings::Severity::kNote, args.host, args.fabric,
                                fmt::format("links of this host have no cable length: buffers were looked at as for "
                                            "{:.0f} m, so that one that is too small for the cable may be missed",
                                            kAssumedMetres),
                                "add 'cable' to the links, e.g. 'cable: 3 m', and look again"});
  }
  return print(*report, args.json);
}

}  // namespace

void add_doctor_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<DoctorArguments>();
  CLI::App* doctor =
      app.add_subcommand("doctor", "What is wrong with this host for RoCE with classes, or for DPDK; changes nothing");
  doctor->footer(
      "Example:\n  tensorlane doctor --fabric fabric.yaml\n  tensorlane doctor --config daemon.yaml\n  tensorlane "
      "doctor --nccl --fabric fabric.yaml --pid 4711\n"
      "Exit status 1 with an error or a warning, 2 where it cannot look. A note informs. --root takes a copy of "
      "another "
      "host's\nsys and proc, with what `mlnx_qos -i INTERFACE` printed there in ROOT/mlnx_qos/INTERFACE, or `dcb "
      "OBJECT show dev\n"
      "INTERFACE` for dcbx, pfc, app, ets and buffer in ROOT/dcb/INTERFACE.");
  doctor->add_option("--fabric", args->fabric, "What the host is to be like; else only what is wrong on any fabric");
  CLI::Option* host =
      doctor->add_option("--host", args->host, "Its name or address in the fabric file; default: this host's name");
  CLI::Option* config = doctor->add_option(
      "--config", args->config,
      "A daemon.yaml: whether ports that its key `dpdk` names can be driven; default: /etc/tensorlane/daemon.yaml");
  doctor->add_option("--root", args->root, "A folder to take for /");
  doctor
      ->add_option("--pid", args->pid,
                   "Whose environment and limits to look at; default: the command's own environment, and the limits of "
                   "tensorlaned")
      ->check(CLI::Range(1, std::numeric_limits<int>::max()));
  CLI::Option* nccl = doctor->add_flag(
      "--nccl", args->nccl,
      "Look at how NCCL is set up instead, by the rules N1 to N8 of docs/nccl.md: whether its communicators' "
      "classes reach the network");
  doctor
      ->add_option("--nccl-library", args->library,
                   "A libnccl.so.2, for its version; default: that of the process, or what its loader would find")
      ->needs(nccl);
  host->excludes(nccl);
  config->excludes(nccl);
  doctor->add_flag("--json", args->json, "Print one JSON object");
  doctor->callback([args, &chosen] { chosen.run = [args] { return run(*args); }; });
}

}  // namespace tensorlane::cli
