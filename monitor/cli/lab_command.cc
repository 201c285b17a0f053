// `tensorlane lab up|exec|policy|show|down`.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "common/fabric/fabric.h"
#include "common/json/json.h"
#include "common/process/process.h"
#include "monitor/cli/commands.h"
#include "monitor/cli/lab.h"

namespace tensorlane::cli {

namespace {

// What the options of all subcommands fill.
struct LabArguments {
  std::string name = kDefaultLab;
  std::string config;
  int hosts = 4;
  int rails = 1;
  std::string speed;   // empty: kSpeed, or kRdmaSpeed with --rdma
  std::string buffer;  // empty: kBuffer, or kRdmaBuffer with --rdma
  std::string policy = "strict";
  std::string port;  // of `policy`; empty: all
  bool routed = false;
  int owner = 0;
  std::string node;
  std::vector<std::string> command;
  bool all = false;
  bool json = false;
  bool rdma = false;
  Guests guests;
};

constexpr const char* kSpeed = "500 Mbit/s";
constexpr const char* kBuffer = "512 KiB";
// Emulated hosts move some 200 Mbit/s in all, so a port must be slower to be where packets queue; and Soft-RoCE sends
// half a MiB ahead on each queue pair, knowing nothing of queues.
constexpr const char* kRdmaSpeed = "40 Mbit/s";
constexpr const char* kRdmaBuffer = "4 MiB";

nlohmann::json describe_rail(const Port& port) {
  nlohmann::json rail{{"address", port.address}, {"device", port.device}};
  if (!port.rdma_address.empty()) rail["rdma_address"] = port.rdma_address;
  if (!port.both.v4.empty()) rail["addresses"] = {port.both.v4, port.both.v6};
  return rail;
}

nlohmann::json describe(const Lab& lab) {
  nlohmann::json hosts = nlohmann::json::array(), switches = hosts, ports = hosts;
  for (const Node& node : lab.plan.nodes) {
    if (node.is_switch) switches.push_back({{"name", node.name}, {"namespace", node.ns}});
    if (!node.loopback.v4.empty()) switches.back()["addresses"] = {node.loopback.v4, node.loopback.v6};
    if (!node.is_switch) hosts.push_back({{"name", node.name}, {"address", node.address}, {"namespace", node.ns}});
    for (const Port& port : node.ports) {
      if (!node.is_switch) hosts.back()["rails"].push_back(describe_rail(port));
      ports.push_back({{"node", node.name},
                       {"device", port.device},
                       {"towards", port.peer},
                       {"policy", policy_name(port.policy)},
                       {"bits_per_second", port.speed.value},
                       {"buffer_bytes", port.buffer.value}});
    }
  }
  nlohmann::json text{{"name", lab.name},
                      {"policy", policy_name(lab.policy)},
                      {"routed", lab.switching == Switching::kRouted},
                      {"fabric_file", lab.runtime.fabric_file()},
                      {"runtime", lab.runtime.path},
                      {"hosts", hosts},
                      {"switches", switches},
                      {"ports", ports}};
  if (lab.guests)
    text["guests"] = {{"memory_mib", lab.guests->memory_mib}, {"vlan", lab.guests->vlan}, {"iommu", lab.guests->iommu}};
  return text;
}

void print_port(const Lab& lab, const Node& node, const Port& port) {
  std::string more;
  if (!node.is_switch && node.ports.size() > 1) more = " " + port.address;
  if (!port.both.v4.empty()) more = fmt::format(" {} {}", port.both.v4, port.both.v6);
  if (!port.rdma_address.empty()) more += ", rdma " + port.rdma_address;
  std::printf("    %s%s -> %s: %s, buffer %s%s\n", port.device.c_str(), more.c_str(), port.peer.c_str(),
              fabric::format_rate(port.speed).c_str(), fabric::format_bytes(port.buffer).c_str(),
              port.policy == lab.policy ? "" : fmt::format(", {}", policy_name(port.policy)).c_str());
}

void print_lab(const Lab& lab) {
  std::printf("lab '%s': %s ports, %s%s\n", lab.name.c_str(), policy_name(lab.policy).data(),
              lab.switching == Switching::kRouted ? "switches are routers, " : "", lab.runtime.fabric_file().c_str());
  for (const Node& node : lab.plan.nodes) {
    if (node.is_switch) {
      const bool routed = !node.loopback.v4.empty();
      const std::string own = routed ? fmt::format(" {} {}", node.loopback.v4, node.loopback.v6) : "";
      std::printf("  switch %s%s\n", node.name.c_str(), own.c_str());
    } else {
      std::printf("  host %s %s%s\n", node.name.c_str(), node.address.c_str(),
                  node.is_guest ? ", a virtual machine with Soft-RoCE" : "");
    }
    for (const Port& port : node.ports) print_port(lab, node, port);
  }
}

// An option's text that its parser refused: the option is the place.
template <typename T>
Result<T> option(const char* name, Result<T> parsed) {
  if (parsed.ok()) return parsed;
  return Status(Code::kInvalidArgument, parsed.status().what(), name, parsed.status().fix());
}

Result<fabric::Fabric> fabric_of(const LabArguments& arguments, Bytes buffer) {
  if (!arguments.config.empty()) return fabric::load(arguments.config, fabric::Keys::kOptional);
  LocalFabric what;
  what.hosts = arguments.hosts;
  what.rails = arguments.rails;
  what.place = Place::kLab;
  what.buffer = buffer;
  std::string speed = arguments.speed;
  if (speed.empty()) speed = arguments.rdma ? kRdmaSpeed : kSpeed;
  TL_ASSIGN_OR_RETURN(what.speed, option("--speed", fabric::parse_rate(speed)));
  if (arguments.rdma) {
    what.mtu = kRdmaMtu;
    what.rdma = arguments.guests.vlan != 0 ? LocalFabric::Rdma::kVlan : LocalFabric::Rdma::kShared;
  }
  return make_local_fabric(what);
}

Result<int> up(const LabArguments& arguments) {
  LabOptions options;
  options.name = arguments.name;
  options.owner = arguments.owner;
  TL_ASSIGN_OR_RETURN(options.policy, parse_policy(arguments.policy));
  if (arguments.routed) options.switching = Switching::kRouted;
  std::string buffer = arguments.buffer;
  if (buffer.empty()) buffer = arguments.rdma ? kRdmaBuffer : kBuffer;
  TL_ASSIGN_OR_RETURN(options.buffer, option("--buffer", fabric::parse_bytes(buffer)));
  TL_ASSIGN_OR_RETURN(fabric::Fabric fabric, fabric_of(arguments, options.buffer));
  if (arguments.rdma) {
    options.guests = arguments.guests;
    TL_RETURN_IF_ERROR(process::start_detached(
        {"/proc/self/exe", "lab", "guard", "--name", options.name, "--owner", std::to_string(::getpid())}));
  }
  TL_ASSIGN_OR_RETURN(const Lab lab, lab_up(std::move(fabric), options));
  if (arguments.json) {
    std::printf("%s\n", describe(lab).dump(2).c_str());
  } else {
    print_lab(lab);
  }
  return 0;
}

// Becomes the command, or stands for it where it runs in a guest.
Result<int> exec(const LabArguments& arguments) {
  TL_ASSIGN_OR_RETURN(const Lab lab, open_lab(arguments.name));
  TL_ASSIGN_OR_RETURN(const Node* node, node_of(lab, arguments.node));
  if (node->is_guest) {
    TL_RETURN_IF_ERROR(process::find_program(arguments.command.at(0)).status());  // the guest sees our files
    return run_in_guest(lab.runtime.path, *node, arguments.command);
  }
  TL_ASSIGN_OR_RETURN(const std::vector<std::string> command, command_on(lab, arguments.node, arguments.command));
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  return Status(Code::kNotFound, fmt::format("cannot run '{}'", command[0]), std::strerror(errno), "install iproute2");
}

Result<int> policy(const LabArguments& arguments) {
  TL_ASSIGN_OR_RETURN(const Policy wanted, option("tensorlane lab policy", parse_policy(arguments.policy)));
  TL_ASSIGN_OR_RETURN(Lab lab, open_lab(arguments.name));
  TL_RETURN_IF_ERROR(arguments.port.empty() ? set_lab_policy(lab, wanted)
                                            : set_port_policy(lab, arguments.port, wanted));
  return 0;
}

Result<int> show(const LabArguments& arguments) {
  nlohmann::json labs = nlohmann::json::array();
  for (const std::string& name : lab_names()) {
    const Result<Lab> lab = open_lab(name);
    if (!lab.ok() && arguments.json) {
      labs.push_back({{"name", name}, {"error", lab.status().to_string()}});
    } else if (!lab.ok()) {
      std::printf("lab '%s': %s\n", name.c_str(), lab.status().to_string().c_str());
    } else if (arguments.json) {
      labs.push_back(describe(*lab));
    } else {
      print_lab(*lab);
    }
  }
  if (arguments.json) std::printf("%s\n", labs.dump(2).c_str());
  return 0;
}

Result<int> down(const LabArguments& arguments) {
  if (!arguments.all) {
    const std::vector<std::string> there = lab_names();
    if (std::ranges::find(there, arguments.name) == there.end())
      std::fprintf(stderr, "tensorlane: there was no lab '%s'\n", arguments.name.c_str());
    TL_RETURN_IF_ERROR(lab_down(arguments.name));
    return 0;
  }
  for (const std::string& name : lab_names()) TL_RETURN_IF_ERROR(lab_down(name));
  return 0;
}

Result<int> guard(const LabArguments& arguments) {
  TL_RETURN_IF_ERROR(guard_lab(arguments.name, arguments.owner));
  return 0;
}

void add_guest_options(CLI::App& command, LabArguments& arguments) {
  Guests& guests = arguments.guests;
  guests.image = default_guest_image();
  auto* rdma = command.add_flag("--rdma", arguments.rdma, "2 to 4 hosts as virtual machines with Soft-RoCE")
                   ->excludes(command.get_option("--routed"));
  const auto add = [&](const char* name, auto& value, const char* purpose) {
    command.add_option(name, value, purpose)->needs(rdma)->capture_default_str();
  };
  add("--guest", guests.image, "Folder of their vmlinux and initrd");
  add("--memory", guests.memory_mib, "MiB of each");
  add("--vlan", guests.vlan, "802.1Q id of the hosts' rdma addresses; 0: no VLAN");
  command
      .add_flag("--iommu", guests.iommu, "They have an IOMMU and a queue for each class, so vfio can have their NICs")
      ->needs(rdma);
}

}  // namespace

void add_lab_command(CLI::App& app, Invocation& chosen) {
  const auto arguments = std::make_shared<LabArguments>();
  CLI::App* lab = app.add_subcommand("lab", "The fabric of a fabric.yaml in network namespaces on this machine (root)");
  lab->require_subcommand(1);
  lab->footer(
      "Example:\n  tensorlane lab up --hosts 4 && tensorlane lab exec h0 -- ping -c 1 10.77.0.2; tensorlane lab down");
  const auto add = [&](const char* name, const char* purpose, const char* example,
                       Result<int> (*run)(const LabArguments&)) {
    CLI::App* command = lab->add_subcommand(name, purpose);
    command->footer(std::string("Example:\n  ") + example);
    command->callback([&chosen, arguments, run] { chosen.run = [arguments, run] { return run(*arguments); }; });
    return command;
  };
  const auto with_name = [&](CLI::App* command) {
    command->add_option("--name", arguments->name, "The lab's name")->capture_default_str();
  };

  CLI::App* command =
      add("up", "Build a lab", "tensorlane lab up --hosts 4 --speed \"500 Mbit/s\" --policy strict", up);
  with_name(command);
  auto* config = command->add_option("--config", arguments->config, "fabric.yaml; its keys are replaced by fresh ones");
  command->add_option("--hosts", arguments->hosts, "Without a file: hosts on one switch")
      ->capture_default_str()
      ->excludes(config);
  command->add_option("--rails", arguments->rails, "Without a file: NICs of each host, each on a switch of its own")
      ->capture_default_str()
      ->excludes(config);
  command
      ->add_option("--speed", arguments->speed,
                   fmt::format("Without a file: speed of every link [{}; with --rdma {}]", kSpeed, kRdmaSpeed))
      ->excludes(config);
  command
      ->add_option("--policy", arguments->policy,
                   "fifo, strict, or service: as tensorlane-switch configures Linux ports")
      ->capture_default_str();
  command->add_option("--buffer", arguments->buffer,
                      fmt::format("Of ports whose link states none [{}; with --rdma {}]", kBuffer, kRdmaBuffer));
  command->add_flag("--routed", arguments->routed,
                    "Switches are routers: they count the time to live down, answer by ICMP and share flows among "
                    "equal paths. Each has an IPv4 and an IPv6 address, and so has each host on each rail");
  command->add_option("--owner", arguments->owner, "Process that the lab belongs to: stale when that is gone");
  command->add_flag("--json", arguments->json, "Print JSON");
  add_guest_options(*command, *arguments);

  command = add("exec", "Run a command on a host or switch", "tensorlane lab exec h0 -- ping -c 1 10.77.0.2", exec);
  with_name(command);
  command->add_option("host", arguments->node, "Host or switch")->required();
  command->add_option("command", arguments->command, "What to run, after --")->required();

  command = add("policy", "Switch all ports in place, or one", "tensorlane lab policy fifo --port s0:h1", policy);
  with_name(command);
  command->add_option("--port", arguments->port,
                      "This one alone, strict or fifo: NODE:DEVICE, or NODE:NEIGHBOUR where one port leads there");
  command->add_option("policy", arguments->policy, "fifo, strict or service")->required();

  command = add("show", "Describe the labs of this machine", "tensorlane lab show --json", show);
  command->add_flag("--json", arguments->json, "Print JSON");

  command = add("down", "Remove a lab and every process in it", "tensorlane lab down --name lab", down);
  with_name(command);
  command->add_flag("--all", arguments->all, "Every lab of this machine");

  command =
      add("guard", "Take a lab down when its owner is gone", "tensorlane lab guard --name lab --owner 4711", guard);
  with_name(command);
  command->add_option("--owner", arguments->owner, "Process that builds it")->required();
  command->group("");  // `lab up --rdma` starts it
}

}  // namespace tensorlane::cli
