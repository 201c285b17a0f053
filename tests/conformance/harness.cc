#include "harness.h"

#include <dirent.h>
#include <fmt/format.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <random>
#include <sstream>

#include "daemon/transport/protect/record_cipher.h"
#include "daemon/transport/tcp/tcp_transport.h"

namespace tensorlane::conformance {
namespace {

TransportKind tcp(const std::string& name, const std::string& address,
                  DataProtection protection = DataProtection::kNone) {
  TransportKind kind;
  kind.name = name;
  kind.address = address;
  kind.make = [address, protection](const HostOptions& options, std::uint16_t data_port, ports::FrameSink& sink) {
    tcp::TcpConfig config;
    config.listen_address = address;
    config.data_port = data_port;
    config.payload_crc = options.payload_crc;
    config.protection = protection;
    config.ciphers = options.ciphers;
    for (const ClassSetup& c : options.classes) config.classes.push_back({c.tag, c.window});
    return tcp::make_tcp_transport(config, sink);
  };
  return kind;
}

}  // namespace

std::vector<ClassSetup> three_classes() {
  return {{{kControlClass, 51, 6}, kib(256)}, {{ClassId(0), 43, 5}}, {{ClassId(1), 27, 3}}};
}

void PrintTo(const TransportKind& kind, std::ostream* out) {
  *out << kind.name;
}
TransportKind tcp_ipv4() {
  TransportKind kind = tcp("tcp_ipv4", "127.0.0.1");
  kind.cycles = 10000;
  return kind;
}
TransportKind tcp_ipv6() {
  TransportKind kind = tcp("tcp_ipv6", "::1");
  kind.largest = mib(64);
  return kind;
}
TransportKind tcp_protected(DataProtection level) {
  TransportKind kind = tcp("tcp_" + std::string(data_protection_name(level)), "127.0.0.1", level);
  kind.largest = mib(64);
  kind.frame_bytes = [](std::size_t payload) {
    return protocol::kFrameHeaderBytes + protect::kTagBytes + payload + protect::tags_of(payload);
  };
  return kind;
}

Time TestClock::now() const {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return Time(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count()) + offset_;
}

// ---- the sink ----

Result<std::span<std::byte>> RecordingSink::on_header(const ports::FlowKey& flow, const protocol::FrameHeader& header) {
  EXPECT_TRUE(up(flow)) << "a header on a flow that is not up";
  if (landing) return landing(flow, header);
  if (drop_payloads) return std::span<std::byte>();
  auto& payload = open_[flow];
  payload.assign(header.payload_bytes, std::byte{0});
  return std::span<std::byte>(payload);
}

void RecordingSink::on_frame(const ports::FlowKey& flow, const protocol::FrameHeader& header) {
  EXPECT_TRUE(up(flow)) << "a frame on a flow that is not up";
  EXPECT_FALSE(drop_payloads && header.payload_bytes > 0) << "a dropped payload was delivered";
  frames.push_back({flow, header, std::move(open_[flow])});
  open_[flow].clear();
  if (frame_hook) frame_hook(flow, header);
}

void RecordingSink::on_sent(const ports::FlowKey& flow, std::uint64_t token) {
  EXPECT_TRUE(up(flow)) << "a completion on a flow that is not up";
  EXPECT_NE(token, 0u);
  sent.emplace_back(flow, token);
  if (sent_hook) sent_hook(flow, token);
}

void RecordingSink::on_flow_up(const ports::FlowKey& flow) {
  EXPECT_FALSE(up(flow)) << "a flow came up twice";
  open_[flow];
  ups.push_back(flow);
}

void RecordingSink::on_flow_down(const ports::FlowKey& flow, const Status& cause) {
  open_.erase(flow);
  downs.emplace_back(flow, cause);
}

Status RecordingSink::cause(const ports::FlowKey& flow) const {
  for (auto it = downs.rbegin(); it != downs.rend(); ++it) {
    if (it->first == flow) return it->second;
  }
  return {};
}

// ---- hosts ----

ports::PairKeys pair_keys(HostIndex self, const std::string& secret) {
  ports::PairKeys keys(kMaxHosts);
  for (std::size_t peer = 0; peer < keys.size(); ++peer) {
    ports::PairKey& key = keys[peer];
    for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(secret[i % secret.size()]);
    key[0] = static_cast<std::byte>(std::min<std::size_t>(self.value, peer));
    key[1] = static_cast<std::byte>(std::max<std::size_t>(self.value, peer));
  }
  return keys;
}

ports::JobCredentials credentials(HostIndex self, const std::string& secret, Epoch epoch, JobId job) {
  return {job, epoch, self, pair_keys(self, secret)};
}

Host::Host(const TransportKind& k, HostIndex s, HostOptions o) : kind(k), self(s), options(std::move(o)) {
  // Below the range that the kernel gives to connecting sockets; programs that run at the same time start apart and
  // move on.
  static std::atomic<int> next{::getpid() * 37 % 1000};
  sink = std::make_unique<RecordingSink>();
  Status last;
  for (int attempt = 0; attempt < 1000; ++attempt) {
    data_port = static_cast<std::uint16_t>(10000 + (next++ % 1400) * 16);
    auto made = kind.make(options, data_port, *sink);
    if (made.ok()) {
      transport = std::move(made).value();
      return;
    }
    last = made.status();
    if (last.code() != Code::kUnavailable) break;
  }
  throw std::runtime_error(last.to_string());
}

void Host::restart() {
  transport.reset();
  *sink = RecordingSink();
  auto made = kind.make(options, data_port, *sink);
  if (!made.ok()) throw std::runtime_error(made.status().to_string());
  transport = std::move(made).value();
}

bool run_until(TestClock& clock, std::vector<Host*> hosts, const std::function<bool()>& done,
               std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!done()) {
    std::size_t handled = 0;
    for (Host* host : hosts) handled += host->transport ? host->transport->poll(clock.now()) : 0;
    if (handled == 0) {
      if (std::chrono::steady_clock::now() > end) return done();
      ::usleep(20);
    }
  }
  return true;
}

void run_for(TestClock& clock, std::vector<Host*> hosts, std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  conformance::run_until(
      clock, std::move(hosts), [&] { return std::chrono::steady_clock::now() >= end; }, time);
}

Pair::Pair(const TransportKind& kind, HostOptions options)
    : a(kind, HostIndex(0), options), b(kind, HostIndex(1), options) {
  a.add_job();
  b.add_job();
  connect();
}

void Pair::connect() {
  for (const ClassSetup& c : a.options.classes) {
    const Status status = a->connect(to_b(c.tag.cls), b.kind.address, b.data_port, clock.now() + seconds(20));
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  ASSERT_TRUE(run_until([&] {
    for (const ClassSetup& c : a.options.classes) {
      if (!a.sink->up(to_b(c.tag.cls)) || !b.sink->up(to_a(c.tag.cls))) return false;
    }
    return true;
  }));
}

void Pair::send(Host& from, const ports::FlowKey& flow, std::span<const std::byte> payload, std::uint64_t token,
                std::uint64_t sequence) {
  ASSERT_TRUE(run_until([&] { return from->writable(flow); }));
  from->send(flow, {data_header(sequence), payload, token});
}

// ---- odds and ends ----

std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> result(bytes);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = random();
    for (std::size_t k = 0; k < 8 && i + k < bytes; ++k) result[i + k] = static_cast<std::byte>(word >> (8 * k));
  }
  return result;
}

protocol::FrameHeader data_header(std::uint64_t sequence) {
  protocol::FrameHeader header;
  header.type = protocol::FrameType::kData;
  header.grant = 1;
  header.sequence = Sequence(sequence);
  return header;
}

struct LogCapture::Impl {
  std::ostringstream stream;
  std::shared_ptr<spdlog::logger> before;
};

LogCapture::LogCapture() : impl_(std::make_unique<Impl>()) {
  impl_->before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("capture", std::make_shared<spdlog::sinks::ostream_sink_mt>(impl_->stream)));
  spdlog::default_logger()->set_level(spdlog::level::debug);
}
LogCapture::~LogCapture() {
  spdlog::set_default_logger(impl_->before);
}
std::string LogCapture::text() const {
  return impl_->stream.str();
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

std::size_t resident_kib() {
  std::size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) / 1024;
}

}  // namespace tensorlane::conformance
