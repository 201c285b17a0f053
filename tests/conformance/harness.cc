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
  kind.make = [address, protection](const HostOptions& options, std::uint16_t data_port, ports::FlowOwner& owner) {
    tcp::TcpConfig config;
    config.listen_address = address;
    config.data_port = data_port;
    config.payload_crc = options.payload_crc;
    config.protection = protection;
    config.probes = options.probes;
    config.ciphers = options.ciphers;
    for (const ClassSetup& c : options.classes) config.classes.push_back({c.tag, c.window});
    return tcp::make_tcp_transport(config, owner);
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

ports::FrameSink& RecordingSink::on_flow_up(const ports::FlowKey& key, ports::Flow& flow) {
  EXPECT_FALSE(up(key)) << "a flow came up twice";
  lines_[key] = all_.emplace_back(std::make_unique<Line>(*this, key, flow)).get();
  ups.push_back(key);
  ends[key] = flow.stats().describe;
  return *lines_[key];
}

void RecordingSink::on_flow_resumed(const ports::FlowKey& key, const ports::Flow& flow) {
  EXPECT_EQ(find(key), &flow) << "a flow is resumed that is not up";
  ends[key] = flow.stats().describe;
}

void RecordingSink::on_flow_down(const ports::FlowKey& key, const Status& cause) {
  if (const auto found = lines_.find(key); found != lines_.end()) {
    EXPECT_FALSE(found->second->flow.writable()) << "a flow that is gone takes operations";
    found->second->down = true;
    lines_.erase(found);
  }
  downs.emplace_back(key, cause);
}

ports::Flow* RecordingSink::find(const ports::FlowKey& key) const {
  const auto found = lines_.find(key);
  return found == lines_.end() ? nullptr : &found->second->flow;
}

Result<std::span<std::byte>> RecordingSink::Line::on_header(const protocol::FrameHeader& header) {
  EXPECT_FALSE(down) << "a header on a flow that is not up";
  if (of.landing) return of.landing(key, header);
  if (of.drop_payloads) return std::span<std::byte>();
  payload.assign(header.payload_bytes, std::byte{0});
  return std::span<std::byte>(payload);
}

void RecordingSink::Line::on_frame(const protocol::FrameHeader& header) {
  EXPECT_FALSE(down) << "a frame on a flow that is not up";
  EXPECT_FALSE(of.drop_payloads && header.payload_bytes > 0) << "a dropped payload was delivered";
  of.frames.push_back({key, header, std::move(payload)});
  payload.clear();
  if (of.frame_hook) of.frame_hook(key, header);
}

void RecordingSink::Line::on_sent(std::uint64_t token) {
  EXPECT_FALSE(down) << "a completion on a flow that is not up";
  EXPECT_NE(token, 0u);
  of.sent.emplace_back(key, token);
  if (of.sent_hook) of.sent_hook(key, token);
}

void RecordingSink::forget() {
  frames.clear();
  sent.clear();
  ups.clear();
  downs.clear();
  granted.clear();
  drop_payloads = false;
  landing = nullptr;
  frame_hook = nullptr;
  sent_hook = nullptr;
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
  sink = std::make_unique<RecordingSink>();
  auto made = kind.make(options, data_port, *sink);
  if (!made.ok()) throw std::runtime_error(made.status().to_string());
  transport = std::move(made).value();
}

bool Host::writable(const ports::FlowKey& flow) const {
  const ports::Flow* found = sink->find(flow);
  return found != nullptr && found->writable();
}

void Host::send(const ports::FlowKey& flow, const ports::Outgoing& operation) {
  ports::Flow* found = sink->find(flow);
  ASSERT_NE(found, nullptr) << "a send on a flow that is not up";
  found->send(operation);
}

ports::FlowProgress Host::progress(const ports::FlowKey& flow) const {
  const ports::Flow* found = sink->find(flow);
  return found == nullptr ? ports::FlowProgress{} : found->progress();
}

ports::FlowStats Host::stats(const ports::FlowKey& flow) const {
  const ports::Flow* found = sink->find(flow);
  return found == nullptr ? ports::FlowStats{} : found->stats();
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
  ASSERT_TRUE(run_until([&] { return from.writable(flow); }));
  from.send(flow, {data_header(sequence), payload, token});
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
