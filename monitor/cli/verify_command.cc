// `tensorlane verify`: whether the network honours the classes, on every path.
#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "common/base/text.h"
#include "common/fabric/fabric.h"
#include "monitor/answers/parse.h"
#include "monitor/answers/read.h"
#include "monitor/cli/commands.h"
#include "monitor/cli/daemon_call.h"
#include "monitor/cli/output_file.h"
#include "monitor/cli/verify_agents.h"
#include "monitor/cli/verify_daemons.h"
#include "monitor/cli/verify_run.h"
#include "monitor/verify/render.h"
#include "monitor/verify/verdict.h"

namespace tensorlane::cli {
namespace {

struct VerifyArguments {
  std::vector<std::string> pairs{"all"}, agents, hosts, classes;
  std::string socket, fabric, shell = kDefaultShell, junit, family = "both";
  std::uint64_t seed = 1;
  std::size_t source_ports = 8;
  int patience = 20;
  bool load = false, json = false, all = false, beside_jobs = false;
};

Status read_pairs(const VerifyArguments& args, VerifyOptions& options) {
  const std::string& kind = args.pairs.front();
  const bool counts = kind == "sample";
  if (counts != (args.pairs.size() == 2) || (kind != "all" && kind != "ring" && !counts))
    return Status(Code::kInvalidArgument, "these are no pairs", "--pairs", "write all, ring, or sample and a number");
  options.pairs = kind == "all" ? Pairs::kAll : kind == "ring" ? Pairs::kRing : Pairs::kSample;
  if (!counts) return {};
  const std::string& number = args.pairs[1];
  const bool is_number =
      !number.empty() && number.size() < 6 && std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; });
  options.sample = is_number ? std::stoul(number) : 0;
  if (options.sample == 0)
    return Status(Code::kInvalidArgument, fmt::format("'{}' is no number of pairs", number), "--pairs sample");
  return {};
}

// Leaves the classes that were asked for.
Status read_classes(const VerifyArguments& args, VerifyOptions& options) {
  for (const std::string& name : args.classes)
    if (std::ranges::none_of(options.classes, [&](const auto& cls) { return cls.name == name; }))
      return Status(Code::kInvalidArgument, fmt::format("there is no class '{}'", name), "--classes");
  options.all_classes = args.classes.empty();
  if (!options.all_classes)
    std::erase_if(options.classes, [&](const auto& cls) { return std::ranges::count(args.classes, cls.name) == 0; });
  return {};
}

// What stands behind the user's name is the host's.
std::string host_of(const std::string& agent) {
  const std::size_t at = agent.rfind('@');
  return at == std::string::npos ? agent : agent.substr(at + 1);
}

Result<VerifyHost> described_host(const fabric::Fabric& fabric, const std::string& agent) {
  const fabric::Host* found = fabric.find_host_by_name_or_address(host_of(agent));
  if (found == nullptr)
    return Status(Code::kInvalidArgument, fmt::format("the fabric has no host '{}'", host_of(agent)), fabric.path,
                  "name hosts of the file, or leave the file out");
  VerifyHost host{found->name, {}, found->data_port};
  for (const std::string& address : found->addresses.at("tcp")) {
    TL_ASSIGN_OR_RETURN(std::string numeric, fabric::resolve_address(address));
    host.addresses.push_back(std::move(numeric));
  }
  return host;
}

Result<VerifyOptions> options_of(const VerifyArguments& args, const fabric::Fabric& fabric) {
  VerifyOptions options;
  options.classes = probed_classes(args.fabric.empty() ? fabric::preset(fabric::Preset::kGreenfield) : fabric.classes);
  options.seed = args.seed;
  options.source_ports = args.source_ports;
  options.load = args.load;
  options.patience = seconds(args.patience);
  options.ipv4 = args.family != "6";
  options.ipv6 = args.family != "4";
  TL_RETURN_IF_ERROR(read_pairs(args, options));
  TL_RETURN_IF_ERROR(read_classes(args, options));
  options.listens = !args.agents.empty();
  std::vector<std::string> named = args.agents.empty() ? args.hosts : args.agents;
  if (named.empty())
    for (const fabric::Host& host : fabric.hosts) named.push_back(host.name);
  for (const std::string& agent : named) {
    VerifyHost host{host_of(agent), {}};
    if (!args.fabric.empty()) {
      TL_ASSIGN_OR_RETURN(host, described_host(fabric, agent));
    }
    if (std::ranges::any_of(options.hosts, [&](const VerifyHost& other) { return other.name == host.name; }))
      return Status(Code::kInvalidArgument, fmt::format("host '{}' is named twice", host.name),
                    args.agents.empty() ? "--hosts" : "--agent", "name each once");
    options.hosts.push_back(std::move(host));
  }
  if (options.hosts.size() < 2)
    return Status(Code::kInvalidArgument, "there are fewer than two hosts",
                  args.agents.empty() ? args.fabric : "--agent", "name at least two");
  return options;
}

// Programs that ssh carries to the hosts, or that their daemons run.
Result<std::unique_ptr<ProbeHands>> hands_of(const VerifyArguments& args, const VerifyOptions& options) {
  if (args.agents.empty()) {
    DaemonHandsOptions daemons{.socket = args.socket.empty() ? daemon_socket() : args.socket,
                               .beside_jobs = args.beside_jobs};
    for (const VerifyHost& host : options.hosts) daemons.hosts.push_back(host.name);
    return ask_by_daemons(daemons);
  }
  AgentOptions agents{.hosts = args.agents, .shell = args.shell};
  TL_ASSIGN_OR_RETURN(agents.program, find_probe_program());
  return start_agents(agents);
}

// The file that this host's daemon has read.
Result<std::string> fabric_of_daemon(const std::string& socket) {
  constexpr const char* kFix = "name the fabric file of the daemons with --fabric";
  const Result<std::string> said = daemon_status(socket);
  if (!said.ok())
    return Status(Code::kInvalidArgument,
                  fmt::format("no fabric file is named, and this host's daemon cannot be asked for its own: {}",
                              said.status().what()),
                  socket, kFix);
  const nlohmann::json status = answers::parse(*said);
  const std::string path = answers::text(answers::member(status, "fabric"), "path");
  if (path.empty())
    return Status(Code::kInvalidArgument, "the daemon does not say which fabric file it has", socket, kFix);
  return path;
}

Result<int> run(VerifyArguments args) {
  fabric::Fabric fabric;
  if (args.fabric.empty() && args.agents.empty()) {
    TL_ASSIGN_OR_RETURN(args.fabric, fabric_of_daemon(args.socket.empty() ? daemon_socket() : args.socket));
    fmt::print(stderr, "tensorlane: fabric file {}, which this host's daemon has read\n", printable(args.fabric));
  }
  if (!args.fabric.empty()) {
    TL_ASSIGN_OR_RETURN(fabric, fabric::load(args.fabric, fabric::Keys::kOptional));
  }
  TL_RETURN_IF_ERROR(can_write_output(args.junit));
  TL_ASSIGN_OR_RETURN(const VerifyOptions options, options_of(args, fabric));
  TL_ASSIGN_OR_RETURN(const std::unique_ptr<ProbeHands> hands, hands_of(args, options));
  const verify::Topology topology(fabric);
  TL_ASSIGN_OR_RETURN(const verify::Observations seen, run_verify(options, *hands, topology));
  const verify::Report report = verify::analyse(seen, topology);
  fmt::print("{}", args.json ? verify::to_json(report) : verify::to_text(report, args.all));
  TL_RETURN_IF_ERROR(write_output(args.junit, verify::to_junit(report)));
  return report.exit_status;
}

// Which hosts are asked, and how.
void add_hosts(CLI::App& verify, VerifyArguments& args) {
  CLI::Option* agent =
      verify.add_option("--agent", args.agents,
                        "Instead of asking daemons: hosts, with commas between them, that a program is "
                        "sent to by ssh: [USER@]HOST. Nothing needs to be installed there, and no daemon "
                        "may run");
  agent->delimiter(',');
  verify
      .add_option("--hosts", args.hosts, "Only these hosts of the fabric file, with commas between them; default: all")
      ->delimiter(',')
      ->excludes(agent);
  verify
      .add_option("--socket", args.socket, "Of this host's daemon; default: TENSORLANE_SOCKET, else that of packages")
      ->excludes(agent);
  verify.add_flag("--beside-jobs", args.beside_jobs, "Also on hosts where a job runs")->excludes(agent);
  verify.add_option("--shell", args.shell, "How to reach a host's shell with --agent, with {host} for its name")
      ->capture_default_str();
  verify.add_option(
      "--fabric", args.fabric,
      "The fabric file: hosts, classes, ports, and the switches between. Default: the one that this host's daemon has "
      "read. With --agent: none, the classes are then those of the preset greenfield, and no switch is known");
  verify.add_option("--patience", args.patience, "How long a host may take to answer at first, in seconds")
      ->check(CLI::Range(1, 600))
      ->capture_default_str();
}

// What is probed.
void add_probes(CLI::App& verify, VerifyArguments& args) {
  verify.add_option("--pairs", args.pairs, "all, ring, or sample N: which hosts probe each other, in both directions")
      ->expected(1, 2);
  verify.add_option("--classes", args.classes, "Only these, with commas between them; default: all, and control")
      ->delimiter(',');
  verify.add_option("--family", args.family, "Only IPv4 or IPv6")
      ->check(CLI::IsMember({"4", "6", "both"}))
      ->capture_default_str();
  verify.add_option("--seed", args.seed, "Of the sample")->capture_default_str();
  verify
      .add_option("--source-ports", args.source_ports,
                  "Connections of each pair, direction, family and class: each may take another of equal-cost ways")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  verify.add_flag("--load", args.load,
                  "Also fill queues, with bursts of two senders, to see whether each class overtakes each lower one");
}

}  // namespace

void add_verify_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<VerifyArguments>();
  CLI::App* verify =
      app.add_subcommand("verify", "Whether the network honours the classes, on every path, in every direction");
  verify->footer(
      "Example:\n  tensorlane verify\n  tensorlane verify --fabric /etc/tensorlane/fabric.yaml\n"
      "  tensorlane verify --agent gpu01,gpu02,gpu03 --fabric fabric.yaml --load --junit verify.xml\n"
      "Exit status 0 when all that was asked for was tested and nothing failed, else 1. docs/verify.md explains what "
      "it does.");
  add_hosts(*verify, *args);
  add_probes(*verify, *args);
  verify->add_flag("--all", args->all, "Also list what passed");
  verify->add_flag("--json", args->json, "Print one JSON object");
  verify->add_option("--junit", args->junit, "Also write a JUnit file");
  verify->callback([args, &chosen] { chosen.run = [args] { return run(*args); }; });
}

}  // namespace tensorlane::cli
