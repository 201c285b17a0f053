#include "monitor/cli/lab_guest.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "common/process/process.h"
#include "monitor/cli/local_fabric.h"

namespace tensorlane::cli {

namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kQemu = "qemu-system-x86_64";
constexpr const char* kGuestSays = "guest: ";  // how init and agent begin a line on the console
constexpr std::size_t kMinGuests = 2;          // one alone has nobody to talk to
constexpr std::size_t kMaxGuests = 4;          // more are too slow to say anything
constexpr int kMinMemoryMib = 256, kMaxMemoryMib = 8192;
constexpr int kMaxVlan = 4094;
constexpr auto kBootTime = std::chrono::seconds(120);  // some 10 s where the machine has nothing else to do
constexpr auto kPoll = milliseconds(10);
constexpr auto kGrace = std::chrono::seconds(10);    // between a signal and SIGKILL
constexpr auto kAnswer = std::chrono::seconds(10);   // for a guest to answer a SIGKILL
constexpr auto kLiveness = std::chrono::seconds(1);  // between looks at the guest's process

std::string guest_home(const std::string& runtime, const std::string& host) {
  return fmt::format("{}/guests/{}", runtime, host);
}

Status write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  return file ? Status::ok_status() : cannot_write(path);
}

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// A number that somebody else puts into a file, whole, when it is known.
std::optional<int> read_number(const std::string& path) {
  const std::optional<std::string> text = read_file(path);
  if (!text || text->empty()) return std::nullopt;
  return std::atoi(text->c_str());
}

// QEMU keeps a lock on the file of its pid as long as it lives; the pid alone might be a zombie's or another's.
bool guest_runs(const std::string& home) {
  const int fd = ::open((home + "/pid").c_str(), O_RDONLY | O_CLOEXEC);
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  const bool locked = fd >= 0 && ::fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  if (fd >= 0) ::close(fd);
  return locked;
}

// Why a guest does not do what it was asked to.
Status unavailable(const std::string& home, const std::string& host) {
  if (guest_runs(home)) {
    return Status(Code::kUnavailable, fmt::format("the guest of host '{}' does not answer", host), home,
                  "look at the load of this machine; `tensorlane lab down` ends the guest");
  }
  std::string last = "nothing on its console";
  std::ifstream console(home + "/console");
  for (std::string line; std::getline(console, line);) {
    while (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.starts_with(kGuestSays)) last = line;
  }
  return Status(Code::kUnavailable, fmt::format("the guest of host '{}' is gone", host), last,
                fmt::format("see {}/console", home));
}

std::string quoted(const std::string& word) {
  std::string inside;
  for (char c : word) {
    if (c == '\'') inside += "'\\'";  // leaves the quotes for an escaped one, and enters them again
    inside += c;
  }
  return fmt::format("'{}'", inside);
}

// Where a port's RDMA address is.
std::string rdma_netdev(const Port& port, std::uint16_t vlan) {
  return vlan == 0 ? port.device : fmt::format("{}.{}", port.device, vlan);
}

// --- starting

// One of the guest's NICs, which have more than one queue where vfio-pci can have them.
std::vector<std::string> nic_words(const Node& node, std::size_t rail, std::size_t index, bool iommu) {
  std::string tap = fmt::format("tap,id=net{},ifname={},script=no,downscript=no", rail, guest_tap(rail));
  std::string nic = fmt::format("virtio-net-pci,netdev=net{0},mac=52:54:00:77:{0:02x}:{1:02x}", rail, index + 1);
  if (iommu) {
    tap += fmt::format(",queues={}", node.queues);
    // An interrupt for each queue of either direction, one for what changes, and one for the control queue.
    nic += fmt::format(",mq=on,vectors={},disable-legacy=on,iommu_platform=on", 2 * node.queues + 2);
  }
  return {"-netdev", tap, "-device", nic};
}

std::vector<std::string> guest_command(const Node& node, std::size_t index, const std::string& runtime,
                                       const Guests& guests) {
  const std::string home = guest_home(runtime, node.name);
  std::vector<std::string> argv{"ip", "netns", "exec", node.ns, "nice", "-n", "10", kQemu};
  const auto add = [&argv](std::initializer_list<std::string> words) { argv.insert(argv.end(), words); };
  // Of a machine that never has two CPUs QEMU leaves out memory barriers (before release 8.1), although its own threads
  // run beside the one: a guest's word that there is something to send is lost then, and its NIC sends nothing any
  // more.
  add({"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1,maxcpus=2", "-m", std::to_string(guests.memory_mib)});
  add({"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-daemonize", "-pidfile", home + "/pid"});
  add({"-qmp", fmt::format("unix:{}/qmp,server=on,wait=off", home)});
  // Before the devices that it is to translate for. vfio wants interrupts translated, too.
  if (guests.iommu) add({"-machine", "q35", "-device", "intel-iommu,intremap=on"});
  // no_timer_check: on a busy machine the kernel waits for emulated timer ticks in vain, and panics. nr_cpus, tsc:
  // where there may be two CPUs the kernel does not trust their counter, and asks a device for the time, in a system
  // call.
  add({"-kernel", guests.image + "/vmlinux", "-initrd", guests.image + "/initrd", "-append",
       fmt::format("console=ttyS0 quiet panic=-1 net.ifnames=0 mitigations=off cryptomgr.notests no_timer_check "
                   "nr_cpus=1 tsc=reliable "
                   "{}tl_host={} tl_shared={}",
                   guests.iommu ? "intel_iommu=on iommu=pt " : "", node.name, runtime)});
  // Both serial ports: the console, and the requests to the agent.
  add({"-serial", "file:" + home + "/console"});
  add({"-chardev", fmt::format("pipe,id=agent,path={}/requests", home), "-serial", "chardev:agent"});
  add({"-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"});
  add({"-device", "virtio-9p-pci,fsdev=root,mount_tag=root"});
  add({"-fsdev", fmt::format("local,id=shared,path={},security_model=none", runtime)});
  add({"-device", "virtio-9p-pci,fsdev=shared,mount_tag=shared"});
  for (std::size_t r = 0; r < node.ports.size(); ++r) {
    const std::vector<std::string> nic = nic_words(node, r, index, guests.iommu);
    argv.insert(argv.end(), nic.begin(), nic.end());
  }
  return argv;
}

Status start_guest(const LabPlan& plan, std::size_t index, const std::string& runtime, const Guests& guests) {
  const Node& node = plan.nodes[index];
  const std::string home = guest_home(runtime, node.name);
  std::error_code failure;
  std::filesystem::create_directories(home, failure);
  if (failure) return Status(Code::kResourceExhausted, "cannot make a folder", home, failure.message());
  TL_RETURN_IF_ERROR(write_file(home + "/ip", guest_ip_lines(node, guests.vlan)));
  TL_RETURN_IF_ERROR(write_file(home + "/tc", guest_tc_lines(node, plan.classes, guests.vlan)));
  TL_RETURN_IF_ERROR(write_file(home + "/rdma", guest_rdma_lines(node)));
  for (const char* end : {"/requests.in", "/requests.out"}) {
    if (::mkfifo((home + end).c_str(), 0600) != 0) return cannot_write(home + end);
  }
  return process::run_checked(guest_command(node, index, runtime, guests)).status();
}

Status wait_until_ready(const std::string& home, const std::string& host, SteadyClock::time_point deadline) {
  while (::access((home + "/ready").c_str(), F_OK) != 0) {
    if (!guest_runs(home)) return unavailable(home, host);
    if (SteadyClock::now() > deadline) {
      return Status(Code::kTimedOut, fmt::format("the guest of host '{}' does not get ready", host), home + "/console",
                    "look at the load of this machine");
    }
    std::this_thread::sleep_for(kPoll);
  }
  return Status::ok_status();
}

// --- running a command

// A growing file, written out as far as it goes.
class Relay {
 public:
  Relay(std::string path, int to) : path_(std::move(path)), to_(to) {}
  ~Relay() {
    if (fd_ >= 0) ::close(fd_);
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  void take() {
    if (fd_ < 0) fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    char block[16384];
    for (ssize_t got; fd_ >= 0 && (got = ::read(fd_, block, sizeof block)) > 0;) {
      for (ssize_t put = 0; put < got;) {
        const ssize_t wrote = ::write(to_, block + put, static_cast<std::size_t>(got - put));
        if (wrote < 0 && errno != EINTR) return;  // nobody reads us any more: the command need not know
        put += std::max<ssize_t>(wrote, 0);
      }
    }
  }

 private:
  std::string path_;
  int to_;
  int fd_ = -1;
};

// The shell script that becomes `argv`. A shell's background jobs ignore SIGINT and SIGQUIT; a command should not.
std::string command_script(const std::vector<std::string>& argv) {
  std::error_code failure;
  std::string script = "cd " + quoted(std::filesystem::current_path(failure).string()) + " || exit 126\n";
  script += "exec env --default-signal=INT --default-signal=QUIT -i";
  for (char** entry = environ; *entry != nullptr; ++entry) script += fmt::format(" {}", quoted(*entry));
  script += " TMPDIR=/run";  // the only folder that both is writable and takes sockets
  for (const std::string& word : argv) script += fmt::format(" {}", quoted(word));
  return script + "\n";
}

// One command in a guest, from its folder to its exit status.
class GuestCommand {
 public:
  GuestCommand(const std::string& home, std::string id)
      : home_(home),
        id_(std::move(id)),
        out_(path("out"), STDOUT_FILENO),
        err_(path("err"), STDERR_FILENO),
        looked_(SteadyClock::now()) {}
  ~GuestCommand() {
    std::error_code failure;
    std::filesystem::remove_all(path(""), failure);
  }
  GuestCommand(const GuestCommand&) = delete;
  GuestCommand& operator=(const GuestCommand&) = delete;

  std::string path(const char* file) const { return home_ + "/" + id_ + "/" + file; }

  // One line to the agent; false when there is no guest that reads it.
  bool request(const std::string& line) const {
    const int fd = ::open((home_ + "/requests.in").c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return false;
    const bool sent = ::write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
    ::close(fd);
    return sent;
  }

  bool start() const { return request("run " + id_ + "\n"); }

  // The exit status once it has ended, with all of its output relayed.
  std::optional<int> poll() {
    const std::optional<int> status = read_number(path("status"));  // first: what follows is then all there is
    out_.take();
    err_.take();
    return status;
  }

  // Passes a signal on, as soon as there is something to signal. The second one ends the patience with the first.
  void want(int number) {
    wanted_ = number;
    deadline_ = deadline_ ? SteadyClock::now() : SteadyClock::now() + kGrace;
  }
  // False when the guest is gone, or has not even answered SIGKILL.
  bool carry_on() {
    const auto now = SteadyClock::now();
    if (deadline_ && now > *deadline_) {
      if (killed_) return false;
      killed_ = true;
      wanted_ = SIGKILL;
      deadline_ = now + kAnswer;
    }
    if (wanted_ != 0 && read_number(path("pid"))) {
      request(fmt::format("signal {} {}\n", id_, ::sigabbrev_np(std::exchange(wanted_, 0))));
    }
    if (now - looked_ < kLiveness) return true;
    looked_ = now;
    return guest_runs(home_);
  }

 private:
  std::string home_;
  std::string id_;
  Relay out_, err_;
  int wanted_ = 0;
  bool killed_ = false;
  std::optional<SteadyClock::time_point> deadline_;
  SteadyClock::time_point looked_;
};

// Sleeps for a round; the number of a stop signal when one came, else 0 or less.
int sleep_or_signal(const sigset_t& signals) {
  const timespec round{0, std::chrono::nanoseconds(kPoll).count()};
  return ::sigtimedwait(&signals, nullptr, &round);
}

}  // namespace

std::size_t guest_queues(const Guests& guests, const fabric::ClassTable& classes) {
  return guests.iommu ? 1 + classes.data.size() : 1;
}

std::string default_guest_image() {
  std::error_code failure;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failure);
  return (program.parent_path().parent_path() / "rdma-vm").string();
}

Status check_guests(const fabric::Fabric& fabric, const Guests& guests) {
  if (fabric.hosts.size() < kMinGuests || fabric.hosts.size() > kMaxGuests) {
    return Status(Code::kInvalidArgument, fmt::format("{} hosts with --rdma", fabric.hosts.size()), "--hosts",
                  fmt::format("expected {} to {}", kMinGuests, kMaxGuests));
  }
  if (guests.memory_mib < kMinMemoryMib || guests.memory_mib > kMaxMemoryMib) {
    return Status(Code::kInvalidArgument, fmt::format("{} MiB for each guest", guests.memory_mib), "--memory",
                  fmt::format("expected {} to {} MiB", kMinMemoryMib, kMaxMemoryMib));
  }
  if (guests.vlan > kMaxVlan) {
    return Status(Code::kInvalidArgument, fmt::format("VLAN {}", guests.vlan), "--vlan",
                  fmt::format("expected 1 to {}", kMaxVlan));
  }
  for (const fabric::Host& host : fabric.hosts) {
    for (std::uint8_t r = 0; r < host.rails() && guests.vlan != 0; ++r) {
      const std::string* rdma = host.find_address("rdma", RailIndex(r));
      if (rdma != nullptr && *rdma != host.tcp_address(RailIndex(r))) continue;
      return Status(Code::kInvalidArgument, fmt::format("host '{}' has no address for the VLAN", host.name),
                    fmt::format("{}:{}", fabric.path, host.line), "write an `rdma` address other than the `tcp` one");
    }
  }
  TL_RETURN_IF_ERROR(process::find_program(kQemu).status());
  for (const char* file : {"/vmlinux", "/initrd"}) {
    const std::string path = guests.image + file;
    if (::access(path.c_str(), R_OK) == 0) continue;
    return Status(Code::kNotFound, "no guest to start", fmt::format("{}: {}", path, std::strerror(errno)),
                  "run deploy/install-deps rdma-vm, or name its folder with --guest");
  }
  return Status::ok_status();
}

std::string guest_ip_lines(const Node& node, std::uint16_t vlan) {
  Node inside = node;
  inside.is_guest = false;
  std::string lines = address_lines(inside);
  const auto prefix = [](const std::string& address) { return is_ipv6(address) ? 128 : 32; };
  for (const Port& port : node.ports) {
    if (vlan != 0) {
      lines += fmt::format("link add link {} name {} type vlan id {} egress-qos-map", port.device,
                           rdma_netdev(port, vlan), vlan);
      for (int priority = 0; priority < 8; ++priority) lines += fmt::format(" {0}:{0}", priority);
      lines += fmt::format("\nlink set {} up\n", rdma_netdev(port, vlan));
    }
    if (port.rdma_address.empty()) continue;
    lines +=
        fmt::format("addr add {}/{} dev {}\n", port.rdma_address, prefix(port.rdma_address), rdma_netdev(port, vlan));
    for (const std::string& other : port.rdma_others)
      lines += fmt::format("route add {}/{} dev {}\n", other, prefix(other), rdma_netdev(port, vlan));
  }
  return lines;
}

std::string guest_tc_lines(const Node& node, const fabric::ClassTable& classes, std::uint16_t vlan) {
  if (vlan == 0) return {};
  std::vector<fabric::TrafficClass> all{classes.control};
  all.insert(all.end(), classes.data.begin(), classes.data.end());
  std::string lines;
  for (const Port& port : node.ports) {
    const std::string device = rdma_netdev(port, vlan);
    lines += fmt::format("qdisc add dev {} clsact\n", device);
    for (const fabric::TrafficClass& cls : all) {
      const unsigned tos = static_cast<unsigned>(cls.dscp) << 2;
      for (const auto& [protocol, match] :
           {std::pair("ip prio 1", "ip dsfield"), std::pair("ipv6 prio 2", "ip6 priority")}) {
        lines +=
            fmt::format("filter add dev {} egress protocol {} u32 match {} {:#x} 0xfc action skbedit priority {}\n",
                        device, protocol, match, tos, cls.pcp);
      }
    }
  }
  return lines;
}

std::string guest_rdma_lines(const Node& node) {
  std::string lines;
  for (std::size_t r = 0; r < node.ports.size(); ++r)
    lines += fmt::format("link add rxe{} type rxe netdev {}\n", r, node.ports[r].device);
  return lines;
}

Status start_guests(const LabPlan& plan, const std::string& runtime, const Guests& guests) {
  const auto deadline = SteadyClock::now() + kBootTime;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    if (plan.nodes[i].is_guest) TL_RETURN_IF_ERROR(start_guest(plan, i, runtime, guests));
  }
  for (const Node& node : plan.nodes) {
    if (node.is_guest) TL_RETURN_IF_ERROR(wait_until_ready(guest_home(runtime, node.name), node.name, deadline));
  }
  return Status::ok_status();
}

Result<int> run_in_guest(const std::string& runtime, const Node& node, const std::vector<std::string>& argv) {
  const std::string home = guest_home(runtime, node.name);
  std::string folder = home + "/command-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return cannot_write(folder);
  GuestCommand command(home, folder.substr(home.size() + 1));
  TL_RETURN_IF_ERROR(write_file(command.path("command"), command_script(argv)));
  sigset_t signals;
  sigemptyset(&signals);
  for (int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, number);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  if (!command.start()) return unavailable(home, node.name);
  while (true) {
    if (const std::optional<int> status = command.poll()) return *status;
    if (const int number = sleep_or_signal(signals); number > 0) command.want(number);
    if (!command.carry_on()) return unavailable(home, node.name);
  }
}

}  // namespace tensorlane::cli
