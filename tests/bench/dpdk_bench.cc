// Flows over ports that a process drives itself, between two processes with a processor each, beside dpdk-testpmd on
// the same ports in the same run: goodput with 256 KiB operations, what the proof of each packet costs of it, and how
// long 4 KiB take one way. Over shared memory (memif), packet sockets on a cable of the kernel's (veth; root), and
// packet sockets with a switch between them that loses 1 % of the packets. Checks what has arrived before it prints.
//
//   dpdk_bench [--quick] [--level none|authenticate|encrypt] [--least SHARE]
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <optional>
#include <thread>

#include <CLI/CLI.hpp>

#include "daemon/transport/datagram/seal.h"
#include "daemon/transport/dpdk/dpdk_transport.h"
#include "daemon/transport/dpdk/ethdev/eal.h"
#include "daemon/transport/dpdk/ethdev/ethdev_port.h"
#include "transport_end.h"

namespace tensorlane {
namespace {

using namespace bench;

constexpr std::size_t kFrame = 1400;  // without the FCS
constexpr std::size_t kHeaders = 42;  // Ethernet, IPv4, UDP
constexpr std::uint16_t kPort = 24000;
const std::string kMac = "02:00:00:00:0b:0b";   // of the receiving interface
constexpr std::string_view kMark = "seconds:";  // before what an end has measured; drivers print, too

struct Options {
  bool quick = false;
  std::string level = "none";
  double least = 0;  // of testpmd's goodput over packet sockets
  // Of a child.
  int end = -1;
  std::string device, mode;
  std::uint64_t count = 0, window = 96;
};

// Two devices that are joined.
struct Cable {
  const char* name;
  std::string device[2];
  std::string socket;    // which ends leave behind
  std::string mac;       // of the receiver, where its kernel looks at packets, too: whose they are is part of the cost
  std::uint64_t window;  // KiB of credit: what the way holds

  void clear() const {
    if (!socket.empty()) unlink(socket.c_str());
  }
};

DataProtection level_of(const std::string& name) {
  if (name == "authenticate") return DataProtection::kAuthenticate;
  return name == "encrypt" ? DataProtection::kEncrypt : DataProtection::kNone;
}

// ---- a child: one end ----

TransportEnd::Make over_port(const Options& options) {
  return [&options](std::uint16_t data_port, ports::FlowOwner& owner) -> Result<std::unique_ptr<ports::Transport>> {
    TL_RETURN_IF_ERROR(dpdk::start_eal({{"--no-huge", "-m", "256", "--no-pci"}}));
    dpdk::PortConfig port;
    port.device = options.device;
    const auto number = static_cast<std::uint8_t>(options.end + 1);
    port.addresses = {{.address = {.bytes = {10, 9, 0, number}}, .prefix = 24}};
    port.udp_port = 7109;
    port.queues = {{kControlTag.dscp, kControlTag.pcp}, {kDataTag.dscp, kDataTag.pcp}};
    port.mtu = kFrame - 14;
    TL_ASSIGN_OR_RETURN(auto opened, dpdk::open_port(port));
    dpdk::DpdkConfig config;
    config.listen_address = "127.0.0.1";
    config.data_port = data_port;
    config.classes = {{kControlTag, kControlWindow}, {kDataTag, kDataWindow}};
    config.protection = level_of(options.level);
    config.credit_window = kib(options.window);
    return dpdk::make_dpdk_transport(config, std::move(opened), owner);
  };
}

void pin(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  sched_setaffinity(0, sizeof set, &set);
}

// Host 0 sends, and says what it took.
void stream(TransportEnd& end, const Options& options, const std::vector<std::byte>& payload) {
  if (options.end == 1) {
    while (end.frames < options.count) end.step();
    check(payload, end.landing());
    while (!end.finished && end.flow != nullptr) end.step();
    return;
  }
  const auto begin = Clock::now();
  for (std::uint64_t sent = 0; sent < options.count || end.transport->in_flight(kData).value > 0;) {
    while (sent < options.count && end.may_send()) {
      end.flow->send({protocol::FrameHeader{}, payload, 0});
      ++sent;
    }
    end.step();
  }
  fmt::print("{} {}\n", kMark, since(begin));
}

void ping(TransportEnd& end, const Options& options, const std::vector<std::byte>& payload) {
  for (std::uint64_t i = 0; i < options.count; ++i) {
    const auto begin = Clock::now();
    if (options.end == 0) end.flow->send({protocol::FrameHeader{}, payload, 0});
    while (end.frames == i) end.step();
    if (options.end == 0) fmt::print("{} {}\n", kMark, since(begin) / 2);
    if (options.end == 1) end.flow->send({protocol::FrameHeader{}, payload, 0});
  }
  check(payload, end.landing());
}

int be_end(const Options& options) {
  spdlog::set_level(spdlog::level::warn);
  pin(options.end);
  // Host 1, which accepts, has ports that host 0 knows.
  TransportEnd end(HostIndex(static_cast<std::uint16_t>(options.end)), over_port(options),
                   static_cast<std::uint16_t>(kPort + (options.end == 0 ? 64 : 0)), true);
  end.spins = true;
  if (options.end == 0) {
    const Status begun = end.transport->connect(end.to(HostIndex(1)), "127.0.0.1", kPort, now() + seconds(20));
    if (!begun.ok()) fail(begun.to_string());
  }
  while (end.flow == nullptr) end.step();
  end.finished = true;  // whoever is done first closes
  // Read until the peer has it all.
  const auto payload = payload_of(options.mode == "stream" ? kMaxOperation.value : 4096);
  (options.mode == "stream" ? stream : ping)(end, options, payload);
  // The last acknowledgements.
  for (const Time until = now() + milliseconds(options.end == 1 ? 300 : 20); now() < until;) end.step();
  std::fflush(stdout);
  _exit(0);
}

// ---- the parent ----

struct Child {
  pid_t pid = -1;
  int out = -1;
  // What it prints until it ends.
  std::string read() {
    std::string text;
    std::array<char, 4096> block;
    for (ssize_t n; (n = ::read(out, block.data(), block.size())) > 0;)
      text.append(block.data(), static_cast<std::size_t>(n));
    ::close(out);
    int status = 0;
    waitpid(pid, &status, 0);
    if (status != 0 && !stopped) fail("an end has failed");
    return text;
  }
  void stop() {
    stopped = true;
    kill(pid, SIGINT);
  }
  bool stopped = false;
};

Child start(const std::vector<std::string>& words, bool quiet = false) {
  int pipe[2];
  if (pipe2(pipe, O_CLOEXEC) != 0) fail("no pipe");
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // one that polls does not end by itself
    dup2(pipe[1], STDOUT_FILENO);
    const int null = ::open("/dev/null", O_RDWR);
    dup2(null, STDIN_FILENO);
    if (quiet) dup2(null, STDERR_FILENO);
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  ::close(pipe[1]);
  return {pid, pipe[0]};
}

std::vector<double> of_tensorlane(const Options& options, const Cable& cable, const std::string& mode,
                                  std::uint64_t count) {
  const auto end = [&](int number) {
    return start({"/proc/self/exe", "--end", std::to_string(number), "--device", cable.device[number], "--mode", mode,
                  "--count", std::to_string(count), "--window", std::to_string(cable.window), "--level",
                  options.level});
  };
  cable.clear();
  Child b = end(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  Child a = end(0);
  const std::string text = a.read();
  b.read();
  std::vector<double> values;
  for (std::size_t at = 0; (at = text.find(kMark, at)) != text.npos; ++at)
    values.push_back(std::strtod(text.c_str() + at + kMark.size(), nullptr));
  return values;
}

// Frames a second that dpdk-testpmd receives, in the middle of its run; 0: it does not run here.
double of_testpmd(const Cable& cable) {
  const auto command = [&](int end, const char* mode) {
    return std::vector<std::string>{"dpdk-testpmd",
                                    "--lcores",
                                    fmt::format("0@{},1@{}", end, end),
                                    "--no-huge",
                                    "-m",
                                    "256",
                                    "--no-pci",
                                    "--no-telemetry",
                                    fmt::format("--file-prefix=tl-bench-{}", end),
                                    "--vdev=" + cable.device[end],
                                    "--",
                                    fmt::format("--forward-mode={}", mode),
                                    fmt::format("--txpkts={}", kFrame),
                                    "--auto-start",
                                    "--stats-period=1",
                                    "--total-num-mbufs=16384",
                                    "--no-mlockall",
                                    "--eth-peer=0," + (cable.mac.empty() ? "02:00:00:00:00:00" : cable.mac)};
  };
  cable.clear();
  Child receiver = start(command(1, "rxonly"), true);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  Child sender = start(command(0, "txonly"), true);
  std::this_thread::sleep_for(std::chrono::seconds(6));
  for (Child* child : {&sender, &receiver}) child->stop();
  sender.read();
  const std::string text = receiver.read();
  std::vector<double> rates;
  for (std::size_t at = 0; (at = text.find("Rx-pps:", at)) != text.npos; ++at) {
    const double rate = std::strtod(text.c_str() + at + 7, nullptr);
    if (rate > 0) rates.push_back(rate);
  }
  return rates.empty() ? 0 : quantile(rates, 0.5);
}

// Seconds that one end takes to prove a packet, and to see that it is proved.
double seconds_of_proof(DataProtection level, std::size_t bytes) {
  const auto cipher =
      level == DataProtection::kNone ? protect::Cipher::kNone : protect::best_of(protect::ciphers_here());
  const protect::Key secret{};
  datagram::Seal closes(level, cipher, secret), opens(level, cipher, secret);
  std::vector<std::byte> packet(bytes);
  constexpr std::uint64_t kPackets = 100'000;
  const auto begin = Clock::now();
  for (std::uint64_t i = 0; i < kPackets; ++i) {
    const datagram::Head head{.slot = 1, .number = i};
    datagram::write_data(head, {i * bytes, i * bytes}, packet.data());
    closes.close(head, packet.data(), bytes);
    if (opens.open(head, packet) == 0) fail("a packet is not proved");
  }
  return since(begin) / (2 * kPackets);
}

// Goodput as a share of testpmd's; nothing where that does not run.
std::optional<double> measure(const Options& options, const Cable& cable) {
  const std::uint64_t operations = options.quick ? 400 : 4000, rounds = options.quick ? 500 : 5000;
  const int repeats = options.quick ? 1 : 3;
  std::vector<double> goodputs, peers;
  for (int i = 0; i < repeats; ++i) {
    const double taken = of_tensorlane(options, cable, "stream", operations).at(0);
    goodputs.push_back(static_cast<double>(operations * kMaxOperation.value) * 8e-9 / taken);
    const double frames = of_testpmd(cable);
    if (frames > 0) peers.push_back(frames * (kFrame - kHeaders) * 8e-9);
  }
  const std::vector<double> times = of_tensorlane(options, cable, "ping", rounds);
  const double goodput = quantile(goodputs, 0.5);
  fmt::print("{}, level {}, frames of {} bytes:\n  goodput {:.2f} Gbit/s", cable.name, options.level, kFrame, goodput);
  if (!peers.empty())
    fmt::print(", dpdk-testpmd txonly to rxonly {:.2f} Gbit/s of payload ({:.2f} to {:.2f}): {:.2f} of it",
               quantile(peers, 0.5), quantile(peers, 0), quantile(peers, 1), goodput / quantile(peers, 0.5));
  else
    fmt::print(" (there is no dpdk-testpmd here)");
  const double proof = seconds_of_proof(level_of(options.level), kFrame - kHeaders);
  const double packet = (kFrame - kHeaders) * 8e-9 / goodput;
  fmt::print("\n  proof of a packet: {:.0f} ns at each end, of {:.0f} ns that a packet takes", proof * 1e9,
             packet * 1e9);
  fmt::print("\n  4 KiB one way: median {:.1f} us, p99 {:.1f} us of {}\n", quantile(times, 0.5) * 1e6,
             quantile(times, 0.99) * 1e6, times.size());
  std::fflush(stdout);
  return peers.empty() ? std::nullopt : std::optional(goodput / quantile(peers, 0.5));
}

void expect_share(const Options& options, const std::optional<double>& share) {
  if (share && *share < options.least)
    fail(fmt::format("{:.2f} of dpdk-testpmd's goodput, and at least {:.2f} were asked for", *share, options.least));
}

bool run(const std::string& command) {
  return std::system(command.c_str()) == 0;
}

int bench_all(const Options& options) {
  const std::string socket = fmt::format("/tmp/tl-dpdk-bench-{}.sock", getpid());
  const auto memif = [&](const char* role, int i) {
    return fmt::format("net_memif{},role={},id=0,socket={},socket-abstract=no", i, role, socket);
  };
  measure(options, {"shared memory (memif)", {memif("client", 0), memif("server", 0)}, socket, "", 160});
  // The driver of packet sockets has a number of its process and interface, which no two may have in common: hence
  // indices.
  const bool network = geteuid() == 0 && unshare(CLONE_NEWNET) == 0 &&
                       run("ip link set lo up; ip link add tla index 4096 type veth peer name tlb index 8192 && ip "
                           "link set tlb address " +
                           kMac + " && ip link set tla up && ip link set tlb up");
  if (!network) {
    fmt::print("packet sockets: skipped, a network namespace needs root\n");
    return 0;
  }
  const auto sockets = [](const char* interface) { return fmt::format("net_af_packet0,iface={}", interface); };
  expect_share(options,
               measure(options, {"packet sockets (af_packet)", {sockets("tla"), sockets("tlb")}, "", kMac, 96}));
  const bool loses = run("ip link add tls type bridge && ip link set tls up && ip link add tlc index 4097 type veth "
                         "peer name tlcs && ip link add tld index 8193 address " +
                         kMac +
                         " type veth peer name tlds && for i in tlcs tlds; do ip link set $i master tls && ip link set "
                         "$i up; done && ip link set tlc up && ip link set tld up") &&
                     run("nft 'add table bridge t; add chain bridge t c { type filter hook forward priority 0; }; add "
                         "rule bridge t c numgen random mod 100 < 1 drop'");
  if (!loses) {
    fmt::print("packet sockets with loss: skipped, this kernel has no bridge or nft\n");
    return 0;
  }
  expect_share(
      options,
      measure(options, {"packet sockets, 1 % lost on the way", {sockets("tlc"), sockets("tld")}, "", kMac, 96}));
  return 0;
}

}  // namespace
}  // namespace tensorlane

int main(int argc, char** argv) {
  tensorlane::Options options;
  CLI::App app("Flows over ports that a process drives itself, beside dpdk-testpmd", "dpdk_bench");
  app.footer("Example:\n  dpdk_bench --quick");
  app.add_flag("--quick", options.quick, "Less of everything");
  app.add_option("--least", options.least, "Fail where packet sockets carry less than this share of what testpmd does");
  app.add_option("--level", options.level, "data_protection: none, authenticate or encrypt")->capture_default_str();
  app.add_option("--end", options.end)->group("");
  app.add_option("--device", options.device)->group("");
  app.add_option("--mode", options.mode)->group("");
  app.add_option("--count", options.count)->group("");
  app.add_option("--window", options.window)->group("");
  CLI11_PARSE(app, argc, argv);
  return options.end >= 0 ? tensorlane::be_end(options) : tensorlane::bench_all(options);
}
