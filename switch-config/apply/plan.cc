#include "switch-config/apply/plan.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include <fmt/format.h>

namespace tensorlane::switches::apply {

namespace {

using Place = std::pair<std::string, std::string>;  // a namespace and a port
using Configuration = std::map<Place, Queues>;

std::string place_text(const std::string& ns) {
  return ns.empty() ? "this network namespace" : fmt::format("namespace '{}'", ns);
}

// What the target's ports do once its commands have run.
Result<Configuration> try_target(Namespaces& namespaces, const Target& target) {
  TL_ASSIGN_OR_RETURN(const std::vector<LinuxPort> ports, linux_ports(target.device));
  const Result<std::vector<std::string>> states = try_commands(namespaces, ports);
  if (!states.ok()) {
    const Status& bad = states.status();
    return Status(bad.code(), fmt::format("device '{}': {}", target.device.name, bad.what()), bad.where(), bad.fix());
  }
  Configuration all;
  for (std::size_t i = 0; i < ports.size(); ++i) all[{target.ns, ports[i].name}] = Queues{ports[i].lines, (*states)[i]};
  return all;
}

class Planner {
 public:
  Planner(Namespaces& namespaces, const Record& applied) : namespaces_(namespaces) {
    for (const PortChange& port : applied.ports) applied_.emplace(Place(port.ns, port.port), port);
  }

  Status remember(const Target& running) {
    TL_ASSIGN_OR_RETURN(Configuration queues, try_target(namespaces_, running));
    running_.merge(queues);
    return Status::ok_status();
  }

  Status add(const Target& target) {
    TL_ASSIGN_OR_RETURN(const Configuration wanted, try_target(namespaces_, target));
    TL_ASSIGN_OR_RETURN(const ino_t inode, namespaces_.enter(target.ns));
    entered_.emplace(target.ns, inode);
    for (const DevicePort& port : target.device.ports) {
      PortChange change{.device = target.device.name, .port = port.name, .ns = target.ns, .ns_inode = inode};
      const Place place(target.ns, port.name);
      if (!planned_.emplace(place, planned_.size()).second)
        return Status(Code::kInvalidArgument, fmt::format("port '{}' belongs to two devices", port.name),
                      place_text(target.ns), "give each device a namespace of its own");
      if (!port_exists(port.name))
        return Status(Code::kNotFound, fmt::format("device '{}' has no port '{}'", change.device, port.name),
                      place_text(target.ns), "correct the fabric file, or --at");
      change.after = wanted.at(place);
      TL_ASSIGN_OR_RETURN(const std::string state, read_port(port.name));
      TL_ASSIGN_OR_RETURN(change.before, recognise(change, state));
      peers_.emplace_back(port.peer, port.peer_port);
      record_.ports.push_back(std::move(change));
    }
    return Status::ok_status();
  }

  // What was applied and is no target now: of a target's namespace it goes, elsewhere it stays.
  Status add_others() {
    for (const auto& [place, port] : applied_) {
      if (port.after.state.empty() || planned_.contains(place)) continue;
      const Result<ino_t> inode = namespaces_.enter(port.ns);
      if (!inode.ok() || *inode != port.ns_inode || !port_exists(port.port)) continue;  // it has gone with its queues
      TL_ASSIGN_OR_RETURN(const std::string state, read_port(port.port));
      if (state != port.after.state) continue;  // somebody else's now
      PortChange change = port;
      change.before = port.after;
      if (entered_.contains(port.ns)) change.after = {};
      peers_.emplace_back();
      record_.ports.push_back(std::move(change));
    }
    return Status::ok_status();
  }

  Record finish() {
    const std::vector<std::size_t> first = canary();
    std::vector<PortChange> ordered;
    ordered.reserve(record_.ports.size());
    for (const std::size_t i : first) ordered.push_back(record_.ports[i]);
    for (std::size_t i = 0; i < record_.ports.size(); ++i) {
      if (std::find(first.begin(), first.end(), i) == first.end()) ordered.push_back(record_.ports[i]);
    }
    record_.ports = std::move(ordered);
    record_.canary = first.size();
    return std::move(record_);
  }

 private:
  // The commands of what a port does now.
  Result<Queues> recognise(const PortChange& change, const std::string& state) const {
    const Place place(change.ns, change.port);
    if (state.empty()) return Queues{};
    if (state == change.after.state) return change.after;
    if (const auto last = applied_.find(place); last != applied_.end() && last->second.after.state == state)
      return last->second.after;
    if (const auto other = running_.find(place); other != running_.end() && other->second.state == state)
      return other->second;
    return Status(
        Code::kInvalidArgument,
        fmt::format("port '{}' of '{}' has queues that could not be brought back", change.port, change.device),
        place_text(change.ns),
        fmt::format("name the fabric file that they were made from by --running, or remove them with "
                    "`tc qdisc del dev {} root`",
                    change.port));
  }

  // The ends of the first link that has both here, else the first two ports that change.
  std::vector<std::size_t> canary() const {
    std::map<std::pair<std::string, std::string>, std::size_t> changing;
    std::vector<std::size_t> first;
    for (std::size_t i = 0; i < record_.ports.size(); ++i) {
      const PortChange& port = record_.ports[i];
      if (!port.changes()) continue;
      if (const auto peer = changing.find(peers_[i]); peer != changing.end()) return {peer->second, i};
      changing.emplace(std::pair(port.device, port.port), i);
      if (first.size() < 2) first.push_back(i);
    }
    return first;
  }

  Namespaces& namespaces_;
  std::map<Place, PortChange> applied_;
  Configuration running_;
  std::map<Place, std::size_t> planned_;
  std::map<std::string, ino_t> entered_;
  std::vector<std::pair<std::string, std::string>> peers_;  // of record_.ports: a device and its port
  Record record_;
};

}  // namespace

Result<Record> make_plan(Namespaces& namespaces, const Record& applied, const std::vector<Target>& targets,
                         const std::vector<Target>& running) {
  Planner planner(namespaces, applied);
  Status status;
  for (const Target& target : running) {
    if (status.ok()) status = planner.remember(target);
  }
  for (const Target& target : targets) {
    if (status.ok()) status = planner.add(target);
  }
  if (status.ok()) status = planner.add_others();
  const Result<ino_t> home = namespaces.enter("");  // the trial's namespaces end
  TL_RETURN_IF_ERROR(status);
  TL_RETURN_IF_ERROR(home.status());
  return planner.finish();
}

std::vector<std::string> commands_of(const PortChange& change) {
  std::vector<std::string> commands;
  if (!change.changes()) return commands;
  if (!change.before.state.empty()) commands.push_back(fmt::format("qdisc del dev {} root", change.port));
  if (change.before.lines.find("clsact\n") != std::string::npos)
    commands.push_back(fmt::format("qdisc del dev {} clsact", change.port));
  std::istringstream lines(change.after.lines);
  for (std::string line; std::getline(lines, line);) commands.push_back(line);
  return commands;
}

}  // namespace tensorlane::switches::apply
