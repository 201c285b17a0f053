#include "switch-config/apply/ports.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include <fmt/format.h>

#include "common/process/process.h"

namespace tensorlane::switches::apply {

namespace {

constexpr const char* kNamespaces = "/run/netns/";
constexpr const char* kRefused =
    "Command failed -:";  // what `tc -batch` says after the kernel's words: a line's number

Status cannot_enter(const std::string& name) {
  const int reason = errno;
  const std::string where = name.empty() ? "this process's namespace" : fmt::format("namespace '{}'", name);
  if (reason == ENOENT)
    return Status(Code::kNotFound, "no such network namespace", where, "`ip netns list` shows those that exist");
  return Status(Code::kPermissionDenied, fmt::format("it cannot be entered ({})", std::strerror(reason)), where,
                "run as root");
}

bool is_name(const std::string& name) {
  const auto fits = [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '_' || c == '-'; };
  return name.size() <= NAME_MAX && name.front() != '.' && name.front() != '-' &&
         std::all_of(name.begin(), name.end(), fits);
}

bool is_one_of(const std::string& word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// A line of `tc ... show` without counters, numbers that the kernel hands out and what the device's hardware says.
std::string normal(const std::string& line) {
  std::string text = line.substr(0, line.find_first_not_of(" \t"));  // the indentation
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    if (is_one_of(word, {"refcnt", "direct_packets_stat", "direct_qlen", "index", "ref", "bind", "in_hw_count"}))
      words >> word;
    else if (!is_one_of(word, {"in_hw", "not_in_hw", "offloaded"}))
      text += word + ' ';
  }
  return text + '\n';
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

// The queueing disciplines that somebody has put at a port: the kernel's own have no number.
struct Disciplines {
  std::vector<std::string> shown;
  bool root = false, htb = false, clsact = false;
};

Result<Disciplines> disciplines_of(const std::string& port) {
  TL_ASSIGN_OR_RETURN(const std::string text, process::run_checked({"tc", "qdisc", "show", "dev", port}));
  Disciplines all;
  for (const std::string& line : lines_of(text)) {
    std::istringstream words(line);
    std::string qdisc, kind, handle, parent;
    words >> qdisc >> kind >> handle >> parent;
    if (handle == "0:") continue;
    all.shown.push_back(line);
    all.root = all.root || parent == "root";
    all.htb = all.htb || (kind == "htb" && parent == "root");
    all.clsact = all.clsact || kind == "clsact";
  }
  return all;
}

Status refused(const std::string& port, const std::string& lines, const process::CommandOutput& output) {
  const std::size_t at = output.err.rfind(kRefused);
  std::string command = "tc -batch";
  if (at != std::string::npos) {
    const std::size_t number = std::strtoul(output.err.c_str() + at + std::strlen(kRefused), nullptr, 10);
    const std::vector<std::string> all = lines_of(lines);
    if (number >= 1 && number <= all.size()) command = "tc " + all[number - 1];
  }
  std::string words = output.err.substr(0, output.err.find('\n'));
  const bool unknown = words.find("qdisc kind is unknown") != std::string::npos;
  return Status(Code::kInvalidArgument, fmt::format("port '{}' does not take `{}`", port, command), std::move(words),
                unknown ? "load the kernel's module of that name; for red, --no-ecn leaves ECN out" : "");
}

// Ports of these names, in pairs; the last of an odd number has a peer of another name.
std::string port_lines(const std::vector<LinuxPort>& ports) {
  std::string spare = "peer";
  while (std::any_of(ports.begin(), ports.end(), [&](const LinuxPort& port) { return port.name == spare; }))
    spare += "_";
  std::string lines;
  for (std::size_t i = 0; i < ports.size(); i += 2) {
    const std::string& peer = i + 1 < ports.size() ? ports[i + 1].name : spare;
    lines += fmt::format("link add name {} type veth peer name {}\n", ports[i].name, peer);
  }
  return lines;
}

}  // namespace

Namespaces::Namespaces() : home_(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)) {
  TL_ASSERT(home_ >= 0);
}

Namespaces::~Namespaces() {
  ::setns(home_, CLONE_NEWNET);
  ::close(home_);
}

Result<ino_t> Namespaces::enter(const std::string& name) {
  if (!name.empty() && !is_name(name))
    return Status(Code::kInvalidArgument, fmt::format("'{}' is no name of a network namespace", name), {},
                  "expected letters, digits, '.', '_' or '-'");
  const int fd = name.empty() ? ::dup(home_) : ::open((kNamespaces + name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  struct stat info {};
  const bool entered = fd >= 0 && ::fstat(fd, &info) == 0 && ::setns(fd, CLONE_NEWNET) == 0;
  Status failed;
  if (!entered) failed = cannot_enter(name);
  if (fd >= 0) ::close(fd);
  if (!entered) return failed;
  return info.st_ino;
}

Status Namespaces::enter_empty() {
  if (::unshare(CLONE_NEWNET) == 0) return Status::ok_status();
  return Status(Code::kPermissionDenied,
                fmt::format("no network namespace can be made for the trial ({})", std::strerror(errno)), {},
                "run as root");
}

bool port_exists(const std::string& port) {
  return ::if_nametoindex(port.c_str()) != 0;
}

Result<std::string> read_port(const std::string& port) {
  TL_ASSIGN_OR_RETURN(const Disciplines disciplines, disciplines_of(port));
  if (disciplines.shown.empty()) return std::string();
  std::vector<std::string> lines = disciplines.shown;
  std::string filters;
  if (disciplines.htb) {
    TL_ASSIGN_OR_RETURN(const std::string classes, process::run_checked({"tc", "-d", "class", "show", "dev", port}));
    const std::vector<std::string> shown = lines_of(classes);
    lines.insert(lines.end(), shown.begin(), shown.end());
    filters += fmt::format("filter show dev {} parent 1:\n", port);
  }
  // The kernel lists them in no order that means anything; filters' order does.
  std::sort(lines.begin(), lines.end());
  if (disciplines.clsact) filters += fmt::format("filter show dev {0} ingress\nfilter show dev {0} egress\n", port);
  if (!filters.empty()) {
    TL_ASSIGN_OR_RETURN(const std::string text, process::run_checked({"tc", "-batch", "-"}, filters));
    const std::vector<std::string> shown = lines_of(text);
    lines.insert(lines.end(), shown.begin(), shown.end());
  }
  std::string state;
  for (const std::string& line : lines) state += normal(line);
  return state;
}

Status change_port(const std::string& port, const std::string& lines) {
  TL_ASSIGN_OR_RETURN(const Disciplines disciplines, disciplines_of(port));
  std::string all;
  if (disciplines.root) all += fmt::format("qdisc del dev {} root\n", port);
  if (disciplines.clsact) all += fmt::format("qdisc del dev {} clsact\n", port);
  all += lines;
  if (all.empty()) return Status::ok_status();
  TL_ASSIGN_OR_RETURN(const process::CommandOutput output, process::run_command({"tc", "-batch", "-"}, all));
  return output.exit_status == 0 ? Status::ok_status() : refused(port, all, output);
}

Result<std::vector<std::string>> try_commands(Namespaces& namespaces, const std::vector<LinuxPort>& ports) {
  TL_RETURN_IF_ERROR(namespaces.enter_empty());
  TL_RETURN_IF_ERROR(process::run_checked({"ip", "-batch", "-"}, port_lines(ports)).status());
  std::vector<std::string> states;
  for (const LinuxPort& port : ports) {
    TL_RETURN_IF_ERROR(change_port(port.name, port.lines));
    TL_ASSIGN_OR_RETURN(std::string state, read_port(port.name));
    states.push_back(std::move(state));
  }
  return states;
}

}  // namespace tensorlane::switches::apply
