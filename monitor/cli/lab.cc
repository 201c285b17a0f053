#include "monitor/cli/lab.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "common/json/json.h"
#include "common/process/process.h"
#include "monitor/cli/lab_routes.h"
#include "monitor/cli/lab_service.h"

namespace tensorlane::cli {

namespace {

constexpr const char* kNamespaces = "/run/netns";
constexpr const char* kStateFile = "lab.json";
constexpr const char* kRuntimePrefix = "lab-";
constexpr std::size_t kMaxLabName = 20;

std::string runtime_name(const std::string& lab) {
  return kRuntimePrefix + lab;
}

// No '-', which ends the lab's name in the names of its namespaces.
Status check_lab_name(const std::string& name) {
  const auto fits = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  if (!name.empty() && name.size() <= kMaxLabName && std::all_of(name.begin(), name.end(), fits))
    return Status::ok_status();
  return Status(Code::kInvalidArgument, fmt::format("name '{}'", name), "--name",
                fmt::format("expected 1 to {} letters, digits or '_'", kMaxLabName));
}

std::vector<std::string> folder_entries(const std::string& path, const std::string& prefix) {
  std::vector<std::string> names;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(path, failure)) {
    std::string name = entry.path().filename();
    if (name.starts_with(prefix)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// When a process started, in ticks since boot; "" when there is no such process.
std::string start_of(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const std::size_t end_of_name = text.rfind(')');
  if (end_of_name == std::string::npos) return {};
  std::istringstream fields(text.substr(end_of_name + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return field;
}

// --- the state file

Status save(const Lab& lab) {
  nlohmann::json state{{"name", lab.name},
                       {"policy", policy_name(lab.policy)},
                       {"routed", lab.switching == Switching::kRouted},
                       {"buffer_bytes", lab.buffer.value},
                       {"owner", lab.owner},
                       {"owner_started", lab.owner_started}};
  if (lab.guests) {
    state["guests"] = {{"image", lab.guests->image},
                       {"memory_mib", lab.guests->memory_mib},
                       {"vlan", lab.guests->vlan},
                       {"iommu", lab.guests->iommu}};
  }
  for (const Node& node : lab.plan.nodes) {
    for (const Port& port : node.ports) {
      if (port.policy != lab.policy) state["port_policies"][node.name][port.device] = policy_name(port.policy);
    }
  }
  const std::string path = lab.runtime.path + "/" + kStateFile;
  const std::string fresh = path + ".new";
  std::ofstream file(fresh, std::ios::trunc);
  file << state.dump(2) << "\n";
  file.close();
  if (file && std::rename(fresh.c_str(), path.c_str()) == 0) return Status::ok_status();
  return Status(Code::kResourceExhausted, "cannot write the state of the lab", path, std::strerror(errno));
}

std::optional<Guests> guests_of(const nlohmann::json& state) {
  if (!state.contains("guests") || !state["guests"].is_object()) return std::nullopt;
  const nlohmann::json& guests = state["guests"];
  return Guests{guests.value("image", ""), guests.value("memory_mib", 0), guests.value("vlan", std::uint16_t{0}),
                guests.value("iommu", false)};
}

// The plan of a lab whose other members are there, all ports under its policy.
Result<LabPlan> plan_of(const Lab& lab, const fabric::Fabric& fabric) {
  TL_ASSIGN_OR_RETURN(LabPlan plan, plan_lab(fabric, lab.name, lab.buffer, lab.switching));
  for (Node& node : plan.nodes) {
    node.is_guest = lab.guests && !node.is_switch;
    if (node.is_guest) node.queues = guest_queues(*lab.guests, plan.classes);
    for (Port& port : node.ports) port.policy = lab.policy;
  }
  return plan;
}

void restore_port_policies(const nlohmann::json& state, LabPlan& plan) {
  const nlohmann::json nothing = nlohmann::json::object();
  const nlohmann::json nodes = state.value("port_policies", nothing);
  for (Node& node : plan.nodes) {
    const nlohmann::json ports = nodes.value(node.name, nothing);
    for (Port& port : node.ports) {
      if (const auto policy = parse_policy(ports.value(port.device, "")); policy.ok()) port.policy = *policy;
    }
  }
}

// One process at a time builds or removes labs; the lock is on the folder of all labs, so it leaves nothing behind.
class LabsLock {
 public:
  LabsLock() {
    const Result<std::string> root = runtime_root();
    if (root.ok()) fd_ = ::open(root->c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (fd_ >= 0 && ::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~LabsLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  LabsLock(const LabsLock&) = delete;
  LabsLock& operator=(const LabsLock&) = delete;

 private:
  int fd_ = -1;
};

// --- namespaces

// Names of the namespaces of a lab that exist now, whatever its fabric file says.
std::vector<std::string> existing_namespaces(const std::string& lab) {
  return folder_entries(kNamespaces, namespace_prefix(lab));
}

// Network namespaces of a lab, held open: their inode numbers stay theirs even when their names are deleted.
class HeldNamespaces {
 public:
  explicit HeldNamespaces(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      const int fd = ::open(fmt::format("{}/{}", kNamespaces, name).c_str(), O_RDONLY | O_CLOEXEC);
      struct stat info {};
      if (fd < 0 || ::fstat(fd, &info) != 0) continue;
      fds_.push_back(fd);
      inodes_.push_back(info.st_ino);
    }
  }
  ~HeldNamespaces() {
    for (int fd : fds_) ::close(fd);
  }
  HeldNamespaces(const HeldNamespaces&) = delete;
  HeldNamespaces& operator=(const HeldNamespaces&) = delete;

  bool contain(ino_t inode) const { return std::find(inodes_.begin(), inodes_.end(), inode) != inodes_.end(); }

 private:
  std::vector<int> fds_;
  std::vector<ino_t> inodes_;
};

// Processes, but not us, in one of `namespaces`.
std::vector<pid_t> processes_in(const HeldNamespaces& namespaces) {
  std::vector<pid_t> pids;
  for (const std::string& name : folder_entries("/proc", "")) {
    if (!std::isdigit(static_cast<unsigned char>(name[0]))) continue;
    struct stat info {};
    if (::stat(fmt::format("/proc/{}/ns/net", name).c_str(), &info) != 0) continue;
    const bool inside = namespaces.contain(info.st_ino);
    const pid_t pid = static_cast<pid_t>(std::stol(name));
    if (inside && pid != ::getpid()) pids.push_back(pid);
  }
  return pids;
}

void kill_processes_in(const HeldNamespaces& namespaces) {
  constexpr int kRoundMs = 10;
  constexpr int kPoliteRounds = 100;
  constexpr int kRounds = 300;  // children may be born while we kill; after SIGKILL this is over in a few rounds
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<pid_t> pids = processes_in(namespaces);
    if (pids.empty()) return;
    for (pid_t pid : pids) {
      if (round == 0) ::kill(pid, SIGTERM);
      if (round >= kPoliteRounds) ::kill(pid, SIGKILL);
    }
    ::usleep(kRoundMs * 1000);
  }
}

Status batch(std::vector<std::string> argv, const std::string& lines) {
  argv.insert(argv.end(), {"-batch", "-"});
  return process::run_checked(argv, lines).status();
}

Status run_script(const Node& node, const std::string& script) {
  return process::run_checked({"ip", "netns", "exec", node.ns, "sh", "-s"}, script).status();
}

Status make_namespaces(const LabPlan& plan) {
  const Status made = batch({"ip"}, namespace_lines(plan));
  if (made.ok() || made.code() == Code::kNotFound) return made;
  const std::string& reason = made.where();
  const bool refused = reason.find("not permitted") != std::string::npos || reason.find("denied") != std::string::npos;
  return Status(refused ? Code::kPermissionDenied : Code::kInternal, "cannot create a network namespace", reason,
                "run as root or use --hosts local");
}

// A device passes packets only when the kernel has noticed that its cable has two ends, up to a second after both are
// up.
Status wait_for_carriers(const LabPlan& plan) {
  constexpr int kRoundMs = 10;
  constexpr int kRounds = 500;
  for (const Node& node : plan.nodes) {
    for (int round = 0;; ++round) {
      TL_ASSIGN_OR_RETURN(const std::string text,
                          process::run_checked({"ip", "-n", node.ns, "-j", "link", "show", "type", "veth"}));
      const nlohmann::json devices = nlohmann::json::parse(text, nullptr, false);
      const auto is_up = [](const nlohmann::json& device) { return device.value("operstate", "") == "UP"; };
      if (devices.is_array() && std::all_of(devices.begin(), devices.end(), is_up)) break;
      if (round == kRounds) {
        return Status(Code::kTimedOut, "a port does not come up", node.ns, "look at `ip -n NAMESPACE link`");
      }
      ::usleep(kRoundMs * 1000);
    }
  }
  return Status::ok_status();
}

// Processes and namespaces of a lab, whatever is left of them.
Status remove_namespaces(const std::string& lab) {
  const std::vector<std::string> names = existing_namespaces(lab);
  if (names.empty()) return Status::ok_status();
  const HeldNamespaces namespaces(names);
  kill_processes_in(namespaces);
  std::string lines;
  for (const std::string& name : names) lines += "netns delete " + name + "\n";
  TL_RETURN_IF_ERROR(batch({"ip"}, lines));
  kill_processes_in(namespaces);  // who was on the way in: nobody follows, since the names are gone
  return Status::ok_status();
}

// The queues of lab_service.h, in place of any.
Status serve_classes(const Lab& lab) {
  Status refused;
  for (const bool red : {true, false}) {
    TL_ASSIGN_OR_RETURN(const std::vector<std::string> scripts, service_scripts(lab.runtime.fabric, lab.plan, red));
    refused = Status();
    for (std::size_t i = 0; i < scripts.size() && refused.ok(); ++i)
      refused = run_script(lab.plan.nodes[i], scripts[i]);
    if (refused.where().find("qdisc kind is unknown") == std::string::npos) return refused;
    if (red) std::fprintf(stderr, "tensorlane: warning: this kernel has no sch_red: ports of the lab mark no ECN\n");
  }
  return refused;
}

Status build(const Lab& lab) {
  TL_RETURN_IF_ERROR(remove_namespaces(lab.name));  // of a lab whose runtime folder was deleted by hand
  TL_RETURN_IF_ERROR(make_namespaces(lab.plan));
  if (lab.switching == Switching::kRouted) {
    for (const Node& node : lab.plan.nodes) TL_RETURN_IF_ERROR(run_script(node, kernel_script(node)));
  }
  TL_RETURN_IF_ERROR(batch({"ip"}, cable_lines(lab.plan)));
  for (const Node& node : lab.plan.nodes) {
    TL_RETURN_IF_ERROR(batch({"ip", "-n", node.ns}, address_lines(node)));
    if (lab.policy == Policy::kService) continue;
    TL_RETURN_IF_ERROR(batch({"tc", "-n", node.ns}, queue_lines(node, lab.plan.classes)));
  }
  if (lab.policy == Policy::kService) TL_RETURN_IF_ERROR(serve_classes(lab));
  return wait_for_carriers(lab.plan);
}

bool stale(const Lab& lab) {
  // Without a start the owner had gone before the lab was up.
  return lab.owner != 0 && (lab.owner_started.empty() || start_of(lab.owner) != lab.owner_started);
}

// The caller holds the lock.
Status remove_lab(const std::string& name) {
  TL_RETURN_IF_ERROR(remove_namespaces(name));
  return remove_runtime(runtime_name(name));
}

void take_down_stale_labs() {
  for (const std::string& name : lab_names()) {
    const Result<Lab> lab = open_lab(name);
    if (!lab.ok() || !stale(*lab)) continue;
    const Status down = remove_lab(name);
    if (!down.ok()) std::fprintf(stderr, "%s\n", down.error_line().c_str());
  }
}

void set_owner(Lab& lab, int owner) {
  lab.owner = owner;
  lab.owner_started = owner == 0 ? std::string() : start_of(owner);
}

// A lab whose namespaces, cables and queues are there, and which belongs to this process.
Result<Lab> build_lab(fabric::Fabric fabric, const LabOptions& options) {
  Lab lab;
  lab.name = options.name;
  lab.policy = options.policy;
  lab.switching = options.switching;
  lab.buffer = options.buffer;
  lab.guests = options.guests;
  TL_ASSIGN_OR_RETURN(lab.plan, plan_of(lab, fabric));
  name_ports(lab.plan, fabric);
  const LabsLock lock;
  take_down_stale_labs();
  Result<RuntimeDir> runtime = make_runtime(runtime_name(options.name), std::move(fabric));
  if (!runtime.ok()) {
    if (runtime.status().code() != Code::kAlreadyExists) return runtime.status();
    return Status(Code::kAlreadyExists, fmt::format("lab '{}' is up already", options.name), runtime.status().where(),
                  fmt::format("take it down with `tensorlane lab down --name {0}`, or give this one another --name",
                              options.name));
  }
  lab.runtime = *std::move(runtime);
  set_owner(lab, ::getpid());  // while it is built: an interrupted `lab up` is stale
  Status built = save(lab);
  if (built.ok()) built = build(lab);
  if (built.ok()) return lab;
  const Status down = remove_lab(lab.name);
  return down.ok() ? built : down;
}

}  // namespace

Result<Lab> lab_up(fabric::Fabric fabric, const LabOptions& options) {
  TL_RETURN_IF_ERROR(check_lab_name(options.name));
  if (options.guests) TL_RETURN_IF_ERROR(check_guests(fabric, *options.guests));
  TL_ASSIGN_OR_RETURN(Lab lab, build_lab(std::move(fabric), options));
  Status built;
  if (lab.guests) built = start_guests(lab.plan, lab.runtime.path, *lab.guests);
  set_owner(lab, options.owner);
  if (built.ok()) built = save(lab);
  if (built.ok()) return lab;
  const Status down = lab_down(lab.name);
  return down.ok() ? built : down;
}

Result<Lab> open_lab(const std::string& name) {
  TL_RETURN_IF_ERROR(check_lab_name(name));
  Result<RuntimeDir> runtime = open_runtime(runtime_name(name));
  if (!runtime.ok() && runtime.status().code() == Code::kNotFound) {
    return Status(Code::kNotFound, fmt::format("no lab '{}'", name), runtime.status().where(),
                  fmt::format("build it with `tensorlane lab up --name {}`", name));
  }
  if (!runtime.ok()) return runtime.status();
  Lab lab;
  lab.name = name;
  lab.runtime = *std::move(runtime);
  const std::string path = lab.runtime.path + "/" + kStateFile;
  std::ifstream file(path);
  const nlohmann::json state = nlohmann::json::parse(file, nullptr, false);
  const auto policy = state.is_object() ? parse_policy(state.value("policy", "")) : parse_policy("");
  if (!policy.ok()) {
    return Status(Code::kCorrupt, fmt::format("lab '{}' is incomplete", name), path,
                  fmt::format("take it down with `tensorlane lab down --name {}`", name));
  }
  lab.policy = *policy;
  lab.switching = state.value("routed", false) ? Switching::kRouted : Switching::kBridged;
  lab.buffer = Bytes(state.value("buffer_bytes", std::uint64_t{0}));
  lab.owner = state.value("owner", 0);
  lab.owner_started = state.value("owner_started", "");
  lab.guests = guests_of(state);
  TL_ASSIGN_OR_RETURN(lab.plan, plan_of(lab, lab.runtime.fabric));
  restore_port_policies(state, lab.plan);
  return lab;
}

std::vector<std::string> lab_names() {
  std::set<std::string> names;
  if (const Result<std::string> root = runtime_root(); root.ok()) {
    for (const std::string& entry : folder_entries(*root, kRuntimePrefix)) {
      names.insert(entry.substr(std::strlen(kRuntimePrefix)));
    }
  }
  const std::string prefix = "tl-";
  for (const std::string& ns : folder_entries(kNamespaces, prefix)) {
    names.insert(ns.substr(prefix.size(), ns.find('-', prefix.size()) - prefix.size()));
  }
  return {names.begin(), names.end()};
}

Status lab_down(const std::string& name) {
  TL_RETURN_IF_ERROR(check_lab_name(name));
  const LabsLock lock;
  return remove_lab(name);
}

Status guard_lab(const std::string& name, int starter) {
  constexpr int kRoundMs = 500;
  const std::string starter_started = start_of(starter);  // "" when it has gone already
  for (;; ::usleep(kRoundMs * 1000)) {
    const Result<Lab> seen = open_lab(name);
    if (!seen.ok()) {  // not yet there, or there no more
      if (starter_started.empty() || start_of(starter) != starter_started) return Status::ok_status();
      continue;
    }
    if (seen->owner == 0) return Status::ok_status();
    if (!stale(*seen)) continue;
    const LabsLock lock;
    const Result<Lab> lab = open_lab(name);  // somebody else may have taken it down meanwhile, and built another
    if (lab.ok() && stale(*lab)) return remove_lab(name);
  }
}

Status set_lab_policy(Lab& lab, Policy policy) {
  const bool in_place = lab.policy != Policy::kService && policy != Policy::kService;
  const bool was_service = lab.policy == Policy::kService;
  lab.policy = policy;
  bool changed = false;
  for (Node& node : lab.plan.nodes) {
    std::string lines;
    for (Port& port : node.ports) {
      if (port.policy == policy) continue;
      if (in_place) lines += policy_line(port, policy);
      port.policy = policy;
      changed = true;
    }
    if (was_service && policy != Policy::kService) lines = no_queue_lines(node) + queue_lines(node, lab.plan.classes);
    if (!lines.empty()) TL_RETURN_IF_ERROR(batch({"tc", "-n", node.ns}, lines));
  }
  if (changed && policy == Policy::kService) TL_RETURN_IF_ERROR(serve_classes(lab));
  return save(lab);
}

Status set_port_policy(Lab& lab, const std::string& port, Policy policy) {
  TL_ASSIGN_OR_RETURN(const PortPlace place, find_port(lab.plan, port));
  if (lab.policy == Policy::kService || policy == Policy::kService) {
    return Status(Code::kInvalidArgument, "the policy service is of a whole lab", port,
                  "set single ports to strict or fifo, in a lab under one of these");
  }
  Node& node = lab.plan.nodes[place.node];
  Port& found = node.ports[place.port];
  if (found.policy == policy) return Status::ok_status();
  TL_RETURN_IF_ERROR(batch({"tc", "-n", node.ns}, policy_line(found, policy)));
  found.policy = policy;
  return save(lab);
}

Result<const Node*> node_of(const Lab& lab, const std::string& name) {
  if (const Node* found = lab.plan.find(name)) return found;
  std::string known;
  for (const Node& other : lab.plan.nodes) known += (known.empty() ? "" : ", ") + other.name;
  return Status(Code::kNotFound, fmt::format("no host or switch '{}'", name), fmt::format("lab '{}'", lab.name),
                "expected one of " + known);
}

Result<std::vector<std::string>> command_on(const Lab& lab, const std::string& node,
                                            const std::vector<std::string>& argv) {
  TL_ASSIGN_OR_RETURN(const Node* found, node_of(lab, node));
  TL_RETURN_IF_ERROR(process::find_program(argv.at(0)).status());
  std::vector<std::string> command{"ip", "netns", "exec", found->ns};
  command.insert(command.end(), argv.begin(), argv.end());
  return command;
}

}  // namespace tensorlane::cli
