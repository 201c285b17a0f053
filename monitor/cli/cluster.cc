#include "monitor/cli/cluster.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>

#include "common/base/text.h"
#include "monitor/cli/daemon_call.h"

namespace tensorlane::cli {
namespace {

constexpr int kReadySeconds = 20;
constexpr std::size_t kTailLines = 12;
constexpr int kDaemonUsage = 2;  // exit status of a daemon that refuses its configuration
constexpr const char* kKeptLogs = ".logs";
constexpr std::size_t kKeptRuns = 10;

std::string random_hex(std::size_t bytes) {
  std::string raw(bytes, '\0'), text;
  TL_ASSERT(getrandom(raw.data(), bytes, 0) == static_cast<ssize_t>(bytes));
  for (unsigned char c : raw) text += fmt::format("{:02x}", c);
  return text;
}

// Leaves the named hosts, in the order of the names; all when there are none.
Status keep_hosts(const std::vector<std::string>& names, fabric::Fabric& fabric) {
  if (names.empty()) return {};
  std::vector<fabric::Host> kept;
  for (const std::string& name : names) {
    const fabric::Host* host = fabric.find_host(name);
    if (host == nullptr)
      return {Code::kInvalidArgument, fmt::format("no host '{}'", name), fabric.path,
              "name hosts of the lab: tensorlane lab show"};
    kept.push_back(*host);
  }
  fabric.hosts = std::move(kept);
  std::erase_if(fabric.links, [&](const fabric::Link& link) {
    return fabric.find_host(link.from) == nullptr &&
           std::ranges::find(fabric.switches, link.from, &fabric::Switch::name) == fabric.switches.end();
  });
  return {};
}

}  // namespace

std::string program_folder() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path().string();
}

Status add_settings(const std::vector<std::string>& settings, ClusterOptions* options) {
  for (const std::string& setting : settings) {
    const auto equals = setting.find('=');
    if (equals == std::string::npos) {
      return {Code::kInvalidArgument, fmt::format("'{}' is no setting", setting), "--set",
              "write KEY=VALUE with a key of daemon.yaml, e.g. --set late_after=2s"};
    }
    const std::string key = setting.substr(0, equals), value = setting.substr(equals + 1);
    const bool is_written = key == "timeline" || key == "record";
    options->settings[key] = is_written && !value.empty() ? std::filesystem::absolute(value).string() : value;
  }
  return {};
}

namespace {

// Makes a folder that the user named, and its path absolute: daemons have a working folder of their own.
Status make_folder(const char* option, std::string* path) {
  if (path->empty()) return {};
  std::error_code failure;
  *path = std::filesystem::absolute(*path).string();
  std::filesystem::create_directories(*path, failure);
  if (!failure && access(path->c_str(), W_OK | X_OK) != 0) failure.assign(errno, std::generic_category());
  if (!failure) return {};
  return {Code::kInvalidArgument, fmt::format("cannot write to the folder {}: {}", *path, failure.message()), option,
          "name a folder that you may write to"};
}

// The first `rails` of every host, and their links.
Status keep_rails(int rails, const std::string& lab, fabric::Fabric& fabric) {
  for (fabric::Host& host : fabric.hosts) {
    if (rails == 0) continue;
    const auto wanted = static_cast<std::size_t>(rails);
    if (rails < 0 || host.rails() < wanted) {
      return {Code::kInvalidArgument, fmt::format("host '{}' of lab '{}' has {} rails", host.name, lab, host.rails()),
              fmt::format("--rails {}", rails), "use fewer, or build the lab with more: tensorlane lab up --rails"};
    }
    for (auto& [transport, addresses] : host.addresses) addresses.resize(wanted);
    std::size_t links = 0;
    std::erase_if(fabric.links, [&](const fabric::Link& link) { return link.from == host.name && links++ >= wanted; });
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Cluster>> Cluster::start(const ClusterOptions& wanted, process::Processes& processes) {
  ClusterOptions options = wanted;
  TL_RETURN_IF_ERROR(make_folder("--timeline", &options.timeline_folder));
  TL_RETURN_IF_ERROR(make_folder("--logs", &options.log_folder));
  TL_ASSIGN_OR_RETURN(RunPorts ports, RunPorts::claim(options.first_port, options.lab));
  std::unique_ptr<Lab> lab;
  fabric::Fabric fabric;
  if (options.lab.empty()) {
    TL_ASSIGN_OR_RETURN(
        fabric, make_local_fabric(
                    {.hosts = options.hosts, .rails = std::max(options.rails, 1), .first_port = ports.control()}));
  } else {
    TL_ASSIGN_OR_RETURN(Lab opened, open_lab(options.lab));
    lab = std::make_unique<Lab>(std::move(opened));
    fabric = lab->runtime.fabric;
    if (fabric.hosts.size() < static_cast<std::size_t>(options.hosts)) {
      return Status(
          Code::kInvalidArgument,
          fmt::format("lab '{}' has {} hosts, {} are needed", options.lab, fabric.hosts.size(), options.hosts),
          "--hosts lab", "use fewer ranks or a larger lab");
    }
    TL_RETURN_IF_ERROR(keep_hosts(options.on, fabric));
    TL_RETURN_IF_ERROR(keep_rails(options.rails, options.lab, fabric));
    for (fabric::Host& host : fabric.hosts) {
      host.data_port = static_cast<std::uint16_t>(host.data_port - host.control_port + ports.control());
      host.control_port = ports.control();
    }
  }
  if (options.data_protection != DataProtection::kNone) fabric.data_protection = options.data_protection;
  const std::string name = options.name.empty() ? "run-" + random_hex(4) : options.name;
  TL_ASSIGN_OR_RETURN(const std::string root, runtime_root());
  remove_ended_runs(root);
  TL_ASSIGN_OR_RETURN(RuntimeDir runtime, make_runtime(name, std::move(fabric)));
  Result<RunLock> lock = RunLock::hold(runtime.path);
  if (!lock.ok()) {
    [[maybe_unused]] const Status removed = remove_runtime(name);
    return lock.status();
  }
  std::unique_ptr<Cluster> cluster(new Cluster(options, std::move(runtime), std::move(*lock), std::move(ports)));
  cluster->job_ = name;
  cluster->secret_ = random_hex(16);
  cluster->lab_ = std::move(lab);
  for (int i = 0; i < options.hosts; ++i)
    TL_RETURN_IF_ERROR(cluster->start_daemon(cluster->runtime_.fabric.hosts[static_cast<std::size_t>(i)], processes));
  for (std::size_t i = 0; i < cluster->daemons_.size(); ++i) {
    TL_RETURN_IF_ERROR(cluster->wait_ready(cluster->runtime_.fabric.hosts[i], cluster->daemons_[i], processes));
  }
  return cluster;
}

Cluster::~Cluster() {
  [[maybe_unused]] const Status ignored = remove_runtime(std::filesystem::path(runtime_.path).filename().string());
}

std::string Cluster::metrics_address(const std::string& host) const {
  return fmt::format("{}:{}", runtime_.fabric.find_host(host)->tcp_address(), ports_.metrics());
}

Status Cluster::start_daemon(const fabric::Host& host, process::Processes& processes) {
  const std::string config = runtime_.path + "/" + host.name + ".yaml";
  std::map<std::string, std::string> lines = {{"fabric", "fabric.yaml"},
                                              {"host", host.name},
                                              {"secret_key_file", "keys/" + host.name + ".secret"},
                                              {"socket", runtime_.socket(host.name)},
                                              {"metrics", metrics_address(host.name)}};
  if (!options_.timeline_folder.empty())
    lines["timeline"] = fmt::format("{}/{}.json", options_.timeline_folder, host.name);
  for (const auto& [key, value] : options_.settings) lines[key] = value;
  std::ofstream out(config);
  for (const auto& [key, value] : lines) out << key << ": " << value << "\n";
  out.close();
  if (!out) return {Code::kUnavailable, "cannot write a daemon's configuration", config, "free space on the disk"};
  process::Spawn spawn;
  TL_ASSIGN_OR_RETURN(spawn.argv, command_on_host(host.name, {program_folder() + "/tensorlaned", "--config", config}));
  spawn.output_file = log_file(host.name);
  TL_ASSIGN_OR_RETURN(const std::size_t child, processes.spawn(spawn));
  daemons_.push_back(child);
  return {};
}

Status Cluster::wait_ready(const fabric::Host& host, std::size_t child, process::Processes& processes) const {
  for (int i = 0; i < kReadySeconds * 50; ++i) {
    const int fd = connect_session(runtime_.socket(host.name));
    if (fd >= 0) {
      close(fd);
      return {};
    }
    std::size_t exited = 0;
    const process::Processes::Event event = processes.wait(milliseconds(20), &exited);
    if (event == process::Processes::Event::kSignal)
      return {Code::kAborted, "interrupted while the daemons started", host.name, ""};
    if (!processes.running(child)) break;
  }
  const bool refused = !processes.running(child) && processes.exit_status(child) == kDaemonUsage;
  print_log_tail(host.name);
  return {refused ? Code::kInvalidArgument : Code::kUnavailable, "its daemon did not start", "host " + host.name,
          "mend what its log says, above"};
}

Result<std::vector<std::string>> Cluster::command_on_host(const std::string& host,
                                                          const std::vector<std::string>& argv) const {
  if (!lab_) return argv;
  return command_on(*lab_, host, argv);
}

Result<std::vector<std::string>> Cluster::command(int rank, const std::vector<std::string>& argv) const {
  return command_on_host(host_of(rank), argv);
}

std::vector<std::pair<std::string, std::string>> Cluster::environment(int rank) const {
  const int local = rank % options_.ranks_per_host;
  const fabric::Host& host = runtime_.fabric.hosts[static_cast<std::size_t>(rank / options_.ranks_per_host)];
  std::vector<std::pair<std::string, std::string>> env = {
      {"RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(world_size())},
      {"LOCAL_RANK", std::to_string(local)},
      {"LOCAL_WORLD_SIZE", std::to_string(options_.ranks_per_host)},
      {"GROUP_RANK", std::to_string(rank / options_.ranks_per_host)},
      // The address, since a lab's host names resolve nowhere; it names the leader for tensorlane as well.
      {"MASTER_ADDR", runtime_.fabric.hosts.front().tcp_address()},
      {"MASTER_PORT", std::to_string(ports_.master())},
      {"TORCHELASTIC_RUN_ID", job_},
      {"TENSORLANE_SOCKET", runtime_.socket(host.name)},
      {"TENSORLANE_JOB_SECRET", secret_},
      {"GLOO_SOCKET_IFNAME", lab_ ? lab_->plan.find(host.name)->ports.front().device : "lo"}};
  // Ranks share this machine's cores: one thread each, unless the user says otherwise.
  if (getenv("OMP_NUM_THREADS") == nullptr) env.emplace_back("OMP_NUM_THREADS", "1");
  return env;
}

std::string Cluster::daemon_host(std::size_t child) const {
  for (std::size_t i = 0; i < daemons_.size(); ++i) {
    if (daemons_[i] == child) return runtime_.fabric.hosts[i].name;
  }
  return {};
}

void Cluster::print_log_tail(const std::string& host) const {
  std::ifstream in(log_file(host));
  std::deque<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
    if (lines.size() > kTailLines) lines.pop_front();
  }
  const auto [what, end] = lines.empty() ? std::pair("there is nothing in", "") : std::pair("the last lines of", ":");
  fmt::print(stderr, "tensorlane: {} the log of host {}'s daemon{}\n", what, host, end);
  for (const std::string& line : lines) fmt::print(stderr, "  {}\n", printable(line));
}

std::vector<std::string> Cluster::complaints(std::size_t most) const {
  std::vector<std::string> found;
  for (std::size_t i = 0; i < daemons_.size(); ++i) {
    const std::string& host = runtime_.fabric.hosts[i].name;
    std::ifstream in(log_file(host));
    std::size_t left = most;
    for (std::string line; left > 0 && std::getline(in, line);) {
      const std::string_view head = std::string_view(line).substr(0, line.find(host + ": "));
      if (!head.ends_with(" warning ") && !head.ends_with(" error ") && !head.ends_with(" critical ")) continue;
      found.push_back(line);
      --left;
    }
  }
  return found;
}

std::string Cluster::keep_logs() const {
  namespace fs = std::filesystem;
  if (!options_.log_folder.empty()) return options_.log_folder;
  const fs::path kept = runtime_.path + kKeptLogs;
  std::error_code failure;
  std::vector<std::pair<fs::file_time_type, fs::path>> before;
  for (const fs::directory_entry& entry : fs::directory_iterator(kept.parent_path(), failure)) {
    if (entry.path().extension() == kKeptLogs) before.emplace_back(entry.last_write_time(failure), entry.path());
  }
  std::ranges::sort(before);
  for (std::size_t i = 0; i + kKeptRuns <= before.size(); ++i) fs::remove_all(before[i].second, failure);
  fs::remove_all(kept, failure);
  fs::create_directory(kept, failure);
  for (std::size_t i = 0; i < daemons_.size(); ++i) {
    const fs::path log = log_file(runtime_.fabric.hosts[i].name);
    fs::copy_file(log, kept / log.filename(), failure);
  }
  return kept.string();
}

}  // namespace tensorlane::cli
