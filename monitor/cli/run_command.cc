// `tensorlane run`: starts daemons and ranks on this machine, relays what they print, and cleans up whatever happens.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>

#include "monitor/cli/cluster.h"
#include "monitor/cli/commands.h"

namespace tensorlane::cli {
namespace {

constexpr Duration kGrace = seconds(2);
constexpr Duration kLastEvents = milliseconds(300);
constexpr std::size_t kComplaints = 10;  // of each daemon

struct RunArguments {
  int ranks = 1;
  int rails = 0;
  int ranks_per_host = 1;
  std::string hosts = "local";
  std::string lab, speed = "500 Mbit/s", policy = "strict", pattern = "ring", detection = "10 s", timeline, logs, name;
  std::uint16_t first_port = 0;
  bool no_priorities = false, no_tags = false, quiet = false;
  bool hosts_given = false, ports_given = false;  // --hosts; --speed or --policy
  std::vector<std::string> settings, command, on;
};

// A lab that this run made itself goes with it.
struct OwnedLab {
  std::string name;
  ~OwnedLab() {
    if (name.empty()) return;
    [[maybe_unused]] const Status ignored = lab_down(name);
  }
};

// What would be left aside without a word is refused.
Status check_arguments(const RunArguments& args) {
  constexpr const char* kWhere = "tensorlane run";
  if (args.ranks < 1)
    return {Code::kInvalidArgument, fmt::format("-n is {}", args.ranks), kWhere, "expected at least 1 rank"};
  if (!args.lab.empty() && args.hosts_given && args.hosts == "local") {
    return {Code::kInvalidArgument, "--hosts local, and --lab " + args.lab, kWhere,
            "leave out one of them: --lab means the hosts of that lab"};
  }
  if (args.ports_given && (!args.lab.empty() || args.hosts == "local")) {
    return {Code::kInvalidArgument, "--speed and --policy are of a lab that is made for the run", kWhere,
            args.lab.empty() ? "add --hosts lab, or leave them out: loopback has no ports"
                             : "leave them out, or use `tensorlane lab policy`: this lab has its own"};
  }
  const Result<std::string> program = process::find_program(args.command.front());
  if (program.ok()) return {};
  return {Code::kInvalidArgument, program.status().what(), program.status().where(), program.status().fix()};
}

Result<ClusterOptions> cluster_options(const RunArguments& args, OwnedLab& owned) {
  TL_RETURN_IF_ERROR(check_arguments(args));
  if (args.ranks_per_host < 1 || args.ranks % args.ranks_per_host != 0) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{} ranks do not fill hosts of {}", args.ranks, args.ranks_per_host), "tensorlane run",
                  "let -n be a multiple of --ranks-per-host");
  }
  ClusterOptions options;
  options.name = args.name;
  options.hosts = args.ranks / args.ranks_per_host;
  options.ranks_per_host = args.ranks_per_host;
  options.rails = args.rails;
  options.first_port = args.first_port;
  options.timeline_folder = args.timeline;
  options.log_folder = args.logs;
  options.settings = {{"pattern", args.pattern}, {"detection", args.detection}};
  if (args.no_priorities) options.settings["priorities"] = "false";
  if (args.no_tags) options.settings["tags"] = "false";
  TL_RETURN_IF_ERROR(add_settings(args.settings, &options));
  options.lab = args.lab;
  options.on = args.on;
  if (args.hosts == "local" || !options.lab.empty()) return options;
  LocalFabric what;
  what.hosts = options.hosts;
  what.rails = std::max(args.rails, 1);
  what.place = Place::kLab;
  TL_ASSIGN_OR_RETURN(what.speed, fabric::parse_rate(args.speed));
  TL_ASSIGN_OR_RETURN(fabric::Fabric fabric, make_local_fabric(what));
  LabOptions lab;
  lab.name = fmt::format("run{}", getpid());
  TL_ASSIGN_OR_RETURN(lab.policy, parse_policy(args.policy));
  lab.owner = getpid();
  TL_ASSIGN_OR_RETURN(const Lab up, lab_up(std::move(fabric), lab));
  owned.name = options.lab = up.name;
  return options;
}

// Whether the child that exited is a daemon: then it says so.
bool tell_dead_daemon(const Cluster& cluster, const process::Processes& processes, std::size_t exited) {
  const std::string daemon = cluster.daemon_host(exited);
  if (daemon.empty()) return false;
  cluster.print_log_tail(daemon);
  const Status died(Code::kUnavailable,
                    fmt::format("the daemon of host {} ended with status {}", daemon, processes.exit_status(exited)),
                    "tensorlane run", "its ranks fail with it: see its log above");
  std::fprintf(stderr, "%s\n", died.error_line().c_str());
  return true;
}

// Ranks notice a daemon's death, and end of it, before the daemon is quite gone.
void tell_other_dead_daemons(const Cluster& cluster, process::Processes& processes) {
  std::size_t exited = 0;
  while (processes.wait(kLastEvents, &exited) == process::Processes::Event::kExited)
    tell_dead_daemon(cluster, processes, exited);
}

// What the daemons had to complain about, and, where the run failed, where their logs are.
void tell_of_logs(const Cluster& cluster, bool failed) {
  const std::vector<std::string> complaints = cluster.complaints(kComplaints);
  if (!complaints.empty()) std::fprintf(stderr, "tensorlane: warnings and errors of the daemons:\n");
  for (const std::string& line : complaints) std::fprintf(stderr, "  %s\n", line.c_str());
  if (failed) std::fprintf(stderr, "tensorlane: the daemons' logs are in %s\n", cluster.keep_logs().c_str());
}

// Waits for the ranks. The answer is the first failure's exit status, else 0.
int watch(const Cluster& cluster, process::Processes& processes, const std::vector<std::size_t>& ranks,
          Duration grace) {
  std::size_t left = ranks.size();
  int status = 0;
  while (left > 0) {
    std::size_t exited = 0;
    const process::Processes::Event event = processes.wait(status == 0 ? seconds(3600) : grace, &exited);
    if (event == process::Processes::Event::kSignal) return 128 + processes.stop_signal();
    if (event == process::Processes::Event::kTimedOut) {
      if (status == 0) continue;
      std::fprintf(stderr, "tensorlane: ranks that still run %.0f s after the first failure are killed\n",
                   to_seconds(grace));
      return status;
    }
    if (tell_dead_daemon(cluster, processes, exited)) {
      if (status == 0) status = 1;
      continue;
    }
    --left;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (ranks[rank] != exited || processes.exit_status(exited) == 0) continue;
      std::fprintf(stderr, "tensorlane: error: rank %zu on host %s ended with status %d: %s: see its output above\n",
                   rank, cluster.host_of(static_cast<int>(rank)).c_str(), processes.exit_status(exited),
                   "tensorlane run");
      if (status == 0) status = processes.exit_status(exited);
    }
  }
  return status;
}

// Starts the ranks: for each the child that it is.
Result<std::vector<std::size_t>> start_ranks(const RunArguments& args, const Cluster& cluster,
                                             process::Processes& processes) {
  std::vector<std::size_t> ranks;
  for (int rank = 0; rank < cluster.world_size(); ++rank) {
    process::Spawn spawn;
    TL_ASSIGN_OR_RETURN(spawn.argv, cluster.command(rank, args.command));
    spawn.environment = cluster.environment(rank);
    if (cluster.world_size() > 1) spawn.prefix = fmt::format("[rank {}] ", rank);
    TL_ASSIGN_OR_RETURN(const std::size_t child, processes.spawn(spawn));
    ranks.push_back(child);
  }
  return ranks;
}

// Somebody wants no more of it: the ranks go first, so that none of them hears of a daemon that is gone, and what the
// daemons say of ranks that were stopped is of no use to anybody.
int stop_run(const RunArguments& args, const std::string& what, const std::vector<std::size_t>& ranks,
             process::Processes& processes) {
  processes.stop(ranks, kGrace);
  processes.stop(kGrace);
  const int number = processes.stop_signal();
  if (!args.quiet)
    std::fprintf(stderr, "tensorlane: stopped by signal %d (%s): %s\n", number, strsignal(number), what.c_str());
  return 128 + number;
}

Result<int> run(const RunArguments& args) {
  OwnedLab owned;  // goes last: after every process in its namespaces
  process::Processes processes;
  TL_ASSIGN_OR_RETURN(const ClusterOptions options, cluster_options(args, owned));
  TL_ASSIGN_OR_RETURN(const Duration detection, fabric::parse_duration(options.settings.at("detection")));
  const auto started = Cluster::start(options, processes);
  if (!started.ok() && processes.stop_signal() != 0)
    return stop_run(args, "the daemons of the job had not all started", {}, processes);
  if (!started.ok()) return started.status();
  const Cluster& cluster = **started;
  if (!args.quiet) {
    std::fprintf(stderr,
                 "tensorlane: job '%s': %d ranks on %d hosts (%s), metrics of %s at http://%s/metrics\n"
                 "tensorlane: commands ask its daemons with TENSORLANE_SOCKET=%s\n",
                 cluster.job().c_str(), cluster.world_size(), options.hosts,
                 options.lab.empty() ? "loopback" : ("lab '" + options.lab + "'").c_str(), cluster.host_of(0).c_str(),
                 cluster.metrics_address(cluster.host_of(0)).c_str(), cluster.socket(cluster.host_of(0)).c_str());
  }
  TL_ASSIGN_OR_RETURN(const std::vector<std::size_t> ranks, start_ranks(args, cluster, processes));
  const int status = watch(cluster, processes, ranks, detection + seconds(10));
  if (status != 0 && processes.stop_signal() != 0) {
    return stop_run(args,
                    fmt::format("job '{}', its {} ranks and {} daemons", cluster.job(), ranks.size(), options.hosts),
                    ranks, processes);
  }
  if (status != 0) tell_other_dead_daemons(cluster, processes);
  processes.stop(kGrace);
  if (!args.quiet || status != 0) tell_of_logs(cluster, status != 0);
  return status;
}

}  // namespace

void add_run_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<RunArguments>();
  CLI::App* run_app = app.add_subcommand("run", "Run a training job: daemons and ranks on this machine");
  run_app->footer("Example:\n  tensorlane run -n 4 --hosts lab -- python train.py");
  run_app->add_option("-n,--ranks", args->ranks, "Ranks")->required();
  run_app->add_option("--ranks-per-host", args->ranks_per_host, "Ranks that share a host and its daemon")
      ->capture_default_str();
  const CLI::Option* hosts =
      run_app
          ->add_option("--hosts", args->hosts,
                       "local: hosts on loopback; lab: in network namespaces with rate-limited ports (root)")
          ->check(CLI::IsMember({"local", "lab"}))
          ->capture_default_str();
  run_app->add_option("--lab", args->lab,
                      "Run on the hosts of this lab, which is up (tensorlane lab up), instead of on one for the run");
  run_app->add_option("--on", args->on, "Hosts of the lab to use, in this order, e.g. h4,h0")
      ->delimiter(',')
      ->needs("--lab");
  run_app->add_option("--rails", args->rails,
                      "NICs of each host [1; with --lab all that the hosts have, else the first N of them]");
  const CLI::Option* speed =
      run_app->add_option("--speed", args->speed, "Of the links of a lab made for the run")->capture_default_str();
  const CLI::Option* policy =
      run_app->add_option("--policy", args->policy, "Of its ports: strict or fifo")->capture_default_str();
  run_app->add_option("--pattern", args->pattern, "ring, halving_doubling, tree, parameter_server or auto")
      ->capture_default_str();
  run_app->add_option("--detection", args->detection, "How soon a dead host or rank is found")->capture_default_str();
  run_app->add_option("--timeline", args->timeline, "Folder for a Chrome trace of every host; made if need be");
  run_app->add_option("--logs", args->logs,
                      "Folder for the daemons' logs; default: they are kept, and named, when the run fails");
  run_app->add_option("--name", args->name, "Of the job; default: one is made up");
  run_app
      ->add_option("--first-port", args->first_port, "Control port of the daemons; the others follow. 0: what is free")
      ->capture_default_str();
  run_app->add_flag("--no-priorities", args->no_priorities, "One class, order of arrival");
  run_app->add_flag("--no-tags", args->no_tags, "Send every class with DSCP 0: priority ends at the host");
  run_app->add_flag("--quiet", args->quiet, "No lines of our own");
  run_app->add_option("--set", args->settings, "KEY=VALUE: a line of daemon.yaml, e.g. --set payload_crc=true")
      ->allow_extra_args(false);
  run_app->add_option("command", args->command, "What every rank runs, after --")->required();
  run_app->callback([args, hosts, speed, policy, &chosen] {
    args->hosts_given = hosts->count() > 0;
    args->ports_given = speed->count() + policy->count() > 0;
    chosen.run = [args] { return run(*args); };
  });
}

}  // namespace tensorlane::cli
