// The transports between daemons of one machine (TCP over loopback, shared memory), one thread per host, next to plain
// blocking sockets in the same run, and TCP with each level of data_protection: throughput with 256 KiB operations, and
// round trips of small and large ones. Checks what has arrived before it prints a number.
//
//   tcp_bench [--quick] [--chacha]
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "daemon/transport/handshake/socket.h"
#include "daemon/transport/local/local_transport.h"
#include "daemon/transport/protect/record_cipher.h"
#include "daemon/transport/tcp/tcp_transport.h"
#include "transport_end.h"

namespace tensorlane {
namespace {

using namespace bench;

// Of protected flows; 0: the fastest that this machine has.
std::uint8_t ciphers = 0;

enum class Over { kTcp, kTcpCrc, kTcpAuthenticate, kTcpEncrypt, kLocal, kLocalRing };

Result<std::unique_ptr<ports::Transport>> make_transport(Over over, std::uint16_t port, ports::FlowOwner& owner) {
  if (over != Over::kLocal && over != Over::kLocalRing) {
    tcp::TcpConfig config{
        "127.0.0.1", port, {{kControlTag, kControlWindow}, {kDataTag, kDataWindow}}, over == Over::kTcpCrc};
    if (over == Over::kTcpAuthenticate) config.protection = DataProtection::kAuthenticate;
    if (over == Over::kTcpEncrypt) config.protection = DataProtection::kEncrypt;
    config.ciphers = ciphers;
    return tcp::make_tcp_transport(config, owner);
  }
  struct Folder {
    std::string path = "/tmp/tl-bench-XXXXXX";
    Folder() {
      if (mkdtemp(path.data()) == nullptr) fail("no folder for sockets");
    }
    ~Folder() { std::filesystem::remove_all(path); }
  };
  static const Folder folder;
  return local::make_local_transport({folder.path,
                                      "127.0.0.1",
                                      port,
                                      {{kControlTag, kControlWindow}, {kDataTag, kDataWindow}},
                                      false,
                                      over == Over::kLocal},
                                     owner);
}

TransportEnd::Make over_it(Over over) {
  return [over](std::uint16_t port, ports::FlowOwner& owner) { return make_transport(over, port, owner); };
}

// Host 0 and host 1 with a flow between them.
struct Hosts {
  explicit Hosts(Over over) : a(HostIndex(0), over_it(over)), b(HostIndex(1), over_it(over)) {
    const Status status = a.transport->connect(a.to(HostIndex(1)), "127.0.0.1", b.data_port, now() + seconds(10));
    if (!status.ok()) fail(status.to_string());
    while (a.flow == nullptr || b.flow == nullptr) {
      a.step();
      b.step();
    }
  }
  TransportEnd a, b;
};

double stream_tensorlane(std::uint64_t operations, Over over) {
  Hosts hosts(over);
  const auto payload = payload_of(kMaxOperation.value);
  const auto begin = Clock::now();
  std::thread receiver([&] {
    while (hosts.b.frames < operations) hosts.b.step();
    hosts.a.finished = true;
  });
  protocol::FrameHeader header;
  for (std::uint64_t sent = 0; !hosts.a.finished;) {
    while (sent < operations && hosts.a.may_send()) {
      hosts.a.flow->send({header, payload, 0});
      ++sent;
    }
    hosts.a.step();
  }
  receiver.join();
  const double seconds = since(begin);
  check(payload, hosts.b.landing());
  return seconds;
}

std::vector<double> ping_tensorlane(std::size_t bytes, int rounds, Over over) {
  Hosts hosts(over);
  const auto payload = payload_of(bytes);
  std::vector<double> times;
  std::thread echo([&] {
    for (int i = 0; i < rounds; ++i) {
      while (hosts.b.frames == static_cast<std::uint64_t>(i)) hosts.b.step();
      hosts.b.flow->send({protocol::FrameHeader{}, payload, 0});
      hosts.b.step();
    }
    while (!hosts.b.finished) hosts.b.step();
  });
  for (int i = 0; i < rounds; ++i) {
    const auto begin = Clock::now();
    hosts.a.flow->send({protocol::FrameHeader{}, payload, 0});
    while (hosts.a.frames == static_cast<std::uint64_t>(i)) hosts.a.step();
    times.push_back(since(begin));
  }
  hosts.b.finished = true;
  echo.join();
  check(payload, hosts.a.landing());
  return times;
}

// ---- the peer: plain blocking sockets ----

struct Sockets {
  Sockets() {
    const handshake::Fd listener(::socket(AF_INET, SOCK_STREAM, 0));
    const auto any = *handshake::parse_endpoint("127.0.0.1", 0);
    if (::bind(listener.get(), any.get(), any.length) != 0 || ::listen(listener.get(), 1) != 0)
      fail("no port for the baseline");
    const auto endpoint = handshake::local_endpoint(listener.get());
    a = handshake::Fd(::socket(AF_INET, SOCK_STREAM, 0));
    if (::connect(a.get(), endpoint.get(), endpoint.length) != 0) fail("the baseline cannot connect");
    b = handshake::Fd(::accept(listener.get(), nullptr, nullptr));
    handshake::tune(a.get(), mib(4));
    handshake::tune(b.get(), mib(4));
  }
  handshake::Fd a, b;
};

void send_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) fail("the baseline's connection broke");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void receive_all(int fd, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (n <= 0) fail("the baseline's connection broke");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

double stream_sockets(std::uint64_t operations) {
  Sockets sockets;
  const auto payload = payload_of(kMaxOperation.value);
  std::vector<std::byte> landing(payload.size());
  const auto begin = Clock::now();
  std::thread receiver([&] {
    for (std::uint64_t i = 0; i < operations; ++i) receive_all(sockets.b.get(), landing);
  });
  for (std::uint64_t i = 0; i < operations; ++i) send_all(sockets.a.get(), payload);
  receiver.join();
  const double seconds = since(begin);
  check(payload, landing);
  return seconds;
}

std::vector<double> ping_sockets(std::size_t bytes, int rounds) {
  Sockets sockets;
  const auto payload = payload_of(bytes);
  std::vector<std::byte> there(bytes), back(bytes);
  std::vector<double> times;
  std::thread echo([&] {
    for (int i = 0; i < rounds; ++i) {
      receive_all(sockets.b.get(), there);
      send_all(sockets.b.get(), there);
    }
  });
  for (int i = 0; i < rounds; ++i) {
    const auto begin = Clock::now();
    send_all(sockets.a.get(), payload);
    receive_all(sockets.a.get(), back);
    times.push_back(since(begin));
  }
  echo.join();
  check(payload, back);
  return times;
}

int run(bool quick) {
  const std::uint64_t operations = quick ? 400 : 4000;
  const int rounds = quick ? 200 : 2000, repeats = quick ? 3 : 7;
  const double gigabytes = static_cast<double>(operations * kMaxOperation.value) * 1e-9;
  // Alternately, so that whatever else the machine does hits all of them.
  std::vector<double> plain, without, with, authentic, hidden, shared, ring;
  for (int i = 0; i < repeats; ++i) {
    plain.push_back(gigabytes / stream_sockets(operations));
    without.push_back(gigabytes / stream_tensorlane(operations, Over::kTcp));
    with.push_back(gigabytes / stream_tensorlane(operations, Over::kTcpCrc));
    authentic.push_back(gigabytes / stream_tensorlane(operations, Over::kTcpAuthenticate));
    hidden.push_back(gigabytes / stream_tensorlane(operations, Over::kTcpEncrypt));
    shared.push_back(gigabytes / stream_tensorlane(operations, Over::kLocal));
    ring.push_back(gigabytes / stream_tensorlane(operations, Over::kLocalRing));
  }
  const double base = quantile(plain, 0.5);
  fmt::print("throughput, GB/s, median of {} runs of {:.2f} GB:\n", repeats, gigabytes);
  const auto line = [&](const char* name, std::vector<double>& values) {
    fmt::print("  {:<28} {:6.2f}   {:4.2f} of plain sockets\n", name, quantile(values, 0.5),
               quantile(values, 0.5) / base);
  };
  line("plain sockets", plain);
  line("TCP", without);
  line("TCP, payload CRC", with);
  line("TCP, authenticate", authentic);
  line("TCP, encrypt", hidden);
  line("shared memory, read in place", shared);
  line("shared memory, ring", ring);
  fmt::print("  shared memory is {:.2f} (read in place) and {:.2f} (ring) times as fast as TCP\n",
             quantile(shared, 0.5) / quantile(without, 0.5), quantile(ring, 0.5) / quantile(without, 0.5));
  fmt::print("  the payload CRC costs {:.0f} % of the throughput\n",
             100 * (1 - quantile(with, 0.5) / quantile(without, 0.5)));
  fmt::print("  `data_protection: authenticate` costs {:.0f} % of the throughput, `encrypt` {:.0f} %\n",
             100 * (1 - quantile(authentic, 0.5) / quantile(without, 0.5)),
             100 * (1 - quantile(hidden, 0.5) / quantile(without, 0.5)));
  fmt::print("round trip, microseconds, median / p99 of {}:\n", rounds);
  for (const std::size_t bytes : {std::size_t{64}, std::size_t{4096}, std::size_t{262144}}) {
    fmt::print("  {:>6} bytes:", bytes);
    const auto times = [](const char* name, const std::vector<double>& values) {
      fmt::print("   {} {:.1f} / {:.1f}", name, quantile(values, 0.5) * 1e6, quantile(values, 0.99) * 1e6);
    };
    times("plain sockets", ping_sockets(bytes, rounds));
    times("TCP", ping_tensorlane(bytes, rounds, Over::kTcp));
    times("TCP with payload CRC", ping_tensorlane(bytes, rounds, Over::kTcpCrc));
    times("TCP, authenticate", ping_tensorlane(bytes, rounds, Over::kTcpAuthenticate));
    times("TCP, encrypt", ping_tensorlane(bytes, rounds, Over::kTcpEncrypt));
    times("shared memory", ping_tensorlane(bytes, rounds, Over::kLocal));
    times("its ring alone", ping_tensorlane(bytes, rounds, Over::kLocalRing));
    fmt::print("\n");
  }
  return 0;
}

}  // namespace
}  // namespace tensorlane

int main(int argc, char** argv) {
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--quick") {
      quick = true;
    } else if (argument == "--chacha") {
      tensorlane::ciphers = static_cast<std::uint8_t>(tensorlane::protect::Cipher::kChaCha20Poly1305);
    } else {
      std::fputs("tensorlane: error: unknown argument: tcp_bench: usage: tcp_bench [--quick] [--chacha]\n", stderr);
      return 2;
    }
  }
  return tensorlane::run(quick);
}
