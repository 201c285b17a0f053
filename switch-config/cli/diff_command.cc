// `tensorlane-switch diff`: what a running configuration does otherwise than the fabric file asks for.
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>

#include <fmt/format.h>

#include "common/fabric/fabric.h"
#include "common/json/json.h"
#include "switch-config/cli/commands.h"
#include "switch-config/cli/configurations.h"
#include "switch-config/diff/diff.h"
#include "switch-config/diff/wanted.h"
#include "switch-config/policy/policy.h"

namespace tensorlane::switches {
namespace {

namespace fs = std::filesystem;

struct DiffArguments {
  std::string fabric, running, kind, device;
  bool json = false;
};

// By the device's name. Ports of hosts are called like the file that is about them.
using Running = std::map<std::string, lint::Device>;

Status add(const Configuration& file, const std::string& name, Running& running, findings::Report& report) {
  TL_ASSIGN_OR_RETURN(lint::Device device,
                      lint::parse_configuration(file.language, file.text, file.path, name, report));
  if (device.is_host) device.ports.front().name = fs::path(file.path).stem().string();
  const std::string own = device.name;
  const auto found = running.find(own);
  if (found == running.end()) {
    running.emplace(own, std::move(device));
    return Status::ok_status();
  }
  if (!device.is_host || found->second.language != device.language)
    return wrong(fmt::format("two configurations of device '{}'", own), file.path, "give one");
  std::move(device.maps.begin(), device.maps.end(), std::back_inserter(found->second.maps));
  found->second.ports.push_back(std::move(device.ports.front()));
  return Status::ok_status();
}

// One file: it is about --device, else about what it says itself, or is called, or its folder is.
Status read_file(const DiffArguments& args, const fabric::Fabric& fabric, Running& running, findings::Report& report) {
  TL_ASSIGN_OR_RETURN(const Configuration file, load_configuration(args.running, args.kind));
  std::string name = fs::path(args.running).stem().string();
  if (fabric.find_switch(name) == nullptr && fabric.find_host(name) == nullptr)
    name = fs::absolute(args.running).parent_path().filename().string();
  TL_RETURN_IF_ERROR(add(file, args.device.empty() ? name : args.device, running, report));
  if (args.device.empty() || running.begin()->first == args.device) return Status::ok_status();
  auto node = running.extract(running.begin());
  node.key() = node.mapped().name = args.device;
  running.insert(std::move(node));
  return Status::ok_status();
}

// A folder of devices. A switch has one configuration: the first that can be read; a host has one for each NIC.
Status read_folder(const DiffArguments& args, const fabric::Fabric& fabric, Running& running,
                   findings::Report& report) {
  TL_ASSIGN_OR_RETURN(const FilesByDevice devices, files_by_device(args.running));
  for (const auto& [name, files] : devices) {
    TL_ASSIGN_OR_RETURN(const std::vector<Configuration> found, readable(files));
    if (found.empty() && fabric.find_switch(name) != nullptr)
      return wrong("it is in no language that diff reads", files.begin()->string(),
                   "give what SONiC, EOS, NX-OS, Junos or Cumulus shows");
    for (const Configuration& file : found) {
      TL_RETURN_IF_ERROR(add(file, name, running, report));
      if (!lint::is_of_hosts(file.language)) break;
    }
  }
  if (running.empty())
    return wrong("no running configuration in this folder", args.running,
                 "expected DEVICE/FILE, DEVICE.SUFFIX or the name of one file");
  return Status::ok_status();
}

Result<Running> read_running(const DiffArguments& args, const fabric::Fabric& fabric, findings::Report& report) {
  Running running;
  TL_RETURN_IF_ERROR(fs::is_directory(args.running) ? read_folder(args, fabric, running, report)
                                                    : read_file(args, fabric, running, report));
  for (const auto& [name, device] : running) {
    const fabric::Switch* const own = fabric.find_switch(name);
    if (own == nullptr && fabric.find_host(name) == nullptr)
      return wrong(fmt::format("the fabric has no switch or host '{}'", name), device.place,
                   "correct its name, say with --device which one it is, or leave its configuration out");
    if ((own == nullptr) != device.is_host || (own != nullptr && own->nos && nos_name(*own->nos) != device.language))
      return wrong(fmt::format("this is a configuration of {}, which '{}' does not run", device.language, name),
                   device.place, "give its own, or correct the fabric file");
  }
  return running;
}

// The ports of a host's saved settings by their names in the fabric file.
Status name_ports(const DeviceQos& device, lint::Device& running) {
  for (lint::Port& port : running.ports) {
    const bool known = std::any_of(device.ports.begin(), device.ports.end(),
                                   [&](const DevicePort& own) { return own.name == port.name; });
    if (known) continue;
    if (device.ports.size() != 1 || running.ports.size() != 1)
      return wrong(fmt::format("host '{}' has no port '{}'", device.name, port.name), running.place,
                   "call the file like the interface: " + device.name + "/INTERFACE.txt");
    port.name = device.ports.front().name;
  }
  return Status::ok_status();
}

std::string ports_text(const std::vector<std::string>& ports) {
  if (ports.empty()) return "";
  return ports.size() == 1 ? " " + ports.front()
                           : fmt::format(" {} and {} more ports", ports.front(), ports.size() - 1);
}

void print(const std::vector<diff::Change>& all, const findings::Report& report, bool json) {
  if (json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array(), unparsed = list;
    for (const diff::Change& change : all)
      list.push_back({{"device", change.device},
                      {"ports", change.ports},
                      {"class", change.traffic_class},
                      {"what", change.what},
                      {"running", change.running},
                      {"wanted", change.wanted},
                      {"impact", change.impact}});
    for (const findings::Unparsed& line : report.unparsed)
      unparsed.push_back({{"device", line.device}, {"place", line.place}, {"text", line.text}});
    const nlohmann::ordered_json whole = {{"changes", list}, {"unparsed", unparsed}};
    fmt::print("{}\n", whole.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  for (const diff::Change& change : all)
    fmt::print("{}{}: {}{}: {} -> {}: {}\n", change.device, ports_text(change.ports), change.what,
               change.traffic_class.empty() ? "" : fmt::format(" ('{}')", change.traffic_class), change.running,
               change.wanted, change.impact);
  fmt::print("{} differences, {} lines not understood\n", all.size(), report.unparsed.size());
}

Result<std::vector<DeviceQos>> devices_for(const fabric::Fabric& fabric, const Running& running) {
  const auto is_host = [](const auto& device) { return device.second.is_host; };
  std::vector<DeviceQos> devices;
  if (!std::all_of(running.begin(), running.end(), is_host)) {
    TL_ASSIGN_OR_RETURN(devices, devices_of(fabric, Selection{}));
  }
  if (std::any_of(running.begin(), running.end(), is_host)) {
    TL_ASSIGN_OR_RETURN(std::vector<DeviceQos> hosts, devices_of(fabric, {.hosts = true, .nos = {}}));
    std::move(hosts.begin(), hosts.end(), std::back_inserter(devices));
  }
  return devices;
}

Result<int> run(const DiffArguments& args) {
  TL_ASSIGN_OR_RETURN(const fabric::Fabric fabric, fabric::load(args.fabric, fabric::Keys::kOptional));
  findings::Report report;
  TL_ASSIGN_OR_RETURN(Running running, read_running(args, fabric, report));
  TL_ASSIGN_OR_RETURN(const std::vector<DeviceQos> devices, devices_for(fabric, running));
  const bool whole = fs::is_directory(args.running);
  std::vector<diff::Change> all;
  for (const DeviceQos& device : devices) {
    const auto found = running.find(device.name);
    if (found == running.end()) {
      if (whole && !device.is_host)
        all.push_back({device.name, {}, "", "configuration", "none", "as rendered", "nothing is known of the device"});
      continue;
    }
    if (device.is_host) TL_RETURN_IF_ERROR(name_ports(device, found->second));
    TL_ASSIGN_OR_RETURN(const lint::Device wanted, diff::wanted(device, found->second));
    const std::vector<diff::Change> own = diff::changes(found->second, wanted, diff::class_names(device, wanted));
    all.insert(all.end(), own.begin(), own.end());
  }
  print(all, report, args.json);
  return all.empty() && report.unparsed.empty() ? 0 : 1;
}

}  // namespace

void add_diff_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<DiffArguments>();
  CLI::App* command =
      app.add_subcommand("diff", "What running configurations do otherwise than the fabric file asks for");
  command->footer(
      "Example:\n  tensorlane-switch diff --fabric fabric.yaml --running configs\n"
      "Compares what a configuration does with each class, not its text: one line for each difference, with what "
      "changing it\ndoes to traffic. Reads what lint reads: SONiC, EOS, NX-OS, Junos and Cumulus, and of hosts what "
      "mlnx_qos or dcb printed,\nin HOST/INTERFACE.txt. Exit status 1 with differences.");
  command->add_option("--fabric", args->fabric, "The fabric file")->required();
  command->add_option("--running", args->running, "A configuration, or a folder with DEVICE/FILE or DEVICE.SUFFIX")
      ->required();
  command->add_option("--device", args->device, "Whose configuration the one file is; else it says itself")
      ->type_name("NAME");
  command->add_option("--kind", args->kind, "What the one file is, as lint's --kind; else it says itself")
      ->type_name("KIND");
  command->add_flag("--json", args->json, "Print one JSON object");
  command->callback([args, &chosen] { chosen.run = [args] { return run(*args); }; });
}

}  // namespace tensorlane::switches
