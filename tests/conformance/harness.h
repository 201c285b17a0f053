// What the conformance tests of all transports share: a sink that records and checks the contract's order, hosts, and a
// clock that can be moved.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "common/base/data_protection.h"
#include "daemon/ports/probe_tokens.h"
#include "daemon/ports/transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorlane::conformance {

struct ClassSetup {
  ports::ClassTag tag;
  Bytes window = mib(1);
};
// Control, urgent and bulk, with the tags of the greenfield preset.
std::vector<ClassSetup> three_classes();

struct HostOptions {
  std::vector<ClassSetup> classes = three_classes();
  bool payload_crc = false;
  Duration resume_within{};  // of the job
  std::uint8_t ciphers = 0;  // of TCP: as in TcpConfig
  ports::ProbeTokens* probes = nullptr;
};

// A transport under test.
struct TransportKind {
  std::string name;
  std::string address;         // where hosts of this machine reach each other
  bool tags = true;            // effective DSCPs can be read back
  bool pcp = true;             // and PCPs
  bool sockets = true;         // the kernel takes bytes for a peer that does not poll
  bool told_by_peer = false;   // on_sent() waits for a peer that polls, and not for its kernel or device
  bool wakes_by_time = false;  // the device announces nothing, so wake_fd() never stays quiet for long
  int cycles = 2000;           // how often the test for leaks connects and disconnects, unless TENSORLANE_CYCLES says
  Bytes largest = mib(1024);   // of what is moved as one buffer
  // What a frame is that has so much payload, as it goes to the peer.
  std::function<std::uint64_t(std::size_t)> frame_bytes = [](std::size_t payload) {
    return payload + protocol::kFrameHeaderBytes;
  };
  std::string absent;  // why it cannot be tested here; its tests are skipped with this text
  // What of the device's objects is there now, as text; empty: the kind has none beside descriptors and memory.
  std::function<std::string()> objects = [] { return std::string(); };
  std::function<Result<std::unique_ptr<ports::Transport>>(const HostOptions&, std::uint16_t data_port,
                                                          ports::FlowOwner&)>
      make;
};
void PrintTo(const TransportKind& kind, std::ostream* out);
TransportKind tcp_ipv4();
TransportKind tcp_ipv6();
// As tcp_ipv4(), with protected data.
TransportKind tcp_protected(DataProtection level);
// What this test program tests: each program has its own.
std::vector<TransportKind> kinds_under_test();

// The suite's fixture.
class OnTransport : public ::testing::TestWithParam<TransportKind> {
 protected:
  void SetUp() override {
    if (!GetParam().absent.empty()) GTEST_SKIP() << GetParam().absent;
  }
};

// Moves on its own and can be moved forward.
class TestClock {
 public:
  Time now() const;
  void skip(Duration d) { offset_ = offset_ + d; }

 private:
  Duration offset_{0};
};

// Records what a transport says, and fails the test when it says something after on_flow_down or before on_flow_up.
class RecordingSink final : public ports::FlowOwner {
 public:
  struct Frame {
    ports::FlowKey flow;
    protocol::FrameHeader header;
    std::vector<std::byte> payload;
  };
  ports::FrameSink& on_flow_up(const ports::FlowKey& key, ports::Flow& flow) override;
  void on_flow_resumed(const ports::FlowKey& key, const ports::Flow& flow) override;
  void on_flow_down(const ports::FlowKey& key, const Status& cause) override;

  bool up(const ports::FlowKey& flow) const { return lines_.contains(flow); }
  // Null: it is not up.
  ports::Flow* find(const ports::FlowKey& flow) const;
  // The cause of the flow's last end; ok when it has not ended or ended with ok.
  Status cause(const ports::FlowKey& flow) const;

  // What it has recorded, and what it was set to; not which flows are up.
  void forget();

  std::vector<Frame> frames;
  std::vector<std::pair<ports::FlowKey, std::uint64_t>> sent;
  std::vector<ports::FlowKey> ups;
  std::vector<std::pair<ports::FlowKey, Status>> downs;
  std::map<ports::FlowKey, std::string> ends;  // FlowStats::describe of the flow, as it was told of last
  bool drop_payloads = false;                  // answers every payload as stale
  std::vector<std::span<std::byte>> granted;   // what lies behind every grant that is given
  // Set: asked instead of allocating; on_frame then records frames without payloads.
  std::function<Result<std::span<std::byte>>(const ports::FlowKey&, const protocol::FrameHeader&)> landing;
  std::function<void(const ports::FlowKey&, const protocol::FrameHeader&)> frame_hook;
  std::function<void(const ports::FlowKey&, std::uint64_t token)> sent_hook;

 private:
  // A flow that is up.
  struct Line final : ports::FrameSink {
    Line(RecordingSink& o, const ports::FlowKey& k, ports::Flow& f) : of(o), key(k), flow(f) {}
    Result<std::span<std::byte>> on_header(const protocol::FrameHeader& header) override;
    void on_frame(const protocol::FrameHeader& header) override;
    void on_sent(std::uint64_t token) override;
    std::span<const std::span<std::byte>> granted(const protocol::FrameHeader&) override { return of.granted; }

    RecordingSink& of;
    const ports::FlowKey key;
    ports::Flow& flow;
    bool down = false;
    std::vector<std::byte> payload;  // under way
  };
  std::map<ports::FlowKey, Line*> lines_;
  std::vector<std::unique_ptr<Line>> all_;  // those that are down, too: what comes over them is a fault
};

inline constexpr JobId kJob{0x1122334455667788};
inline constexpr ClassId kUrgent{0}, kBulk{1};
inline constexpr std::size_t kMaxHosts = 256;
// Another key for each pair of hosts, and all of them others for another secret.
ports::PairKeys pair_keys(HostIndex self, const std::string& secret = "correct horse");
ports::JobCredentials credentials(HostIndex self, const std::string& secret = "correct horse", Epoch epoch = Epoch(7),
                                  JobId job = kJob);

// One host: a sink and a transport on ports of its own.
class Host {
 public:
  Host(const TransportKind& kind, HostIndex self, HostOptions options = {});
  ports::Transport& operator*() { return *transport; }
  ports::Transport* operator->() { return transport.get(); }
  // Of the flow of this name; it cannot be written while it is not up, and its figures are all zero.
  bool writable(const ports::FlowKey& flow) const;
  void send(const ports::FlowKey& flow, const ports::Outgoing& operation);
  ports::FlowStats stats(const ports::FlowKey& flow) const;
  ports::FlowProgress progress(const ports::FlowKey& flow) const;
  // Destroys the transport and makes a new one on the same ports, with a new sink.
  void restart();
  void add_job(const std::string& secret = "correct horse", Epoch epoch = Epoch(7)) {
    ports::JobCredentials job = credentials(self, secret, epoch);
    job.resume_within = options.resume_within;
    transport->add_job(job);
  }

  const TransportKind kind;
  const HostIndex self;
  const HostOptions options;
  std::uint16_t data_port = 0;
  std::unique_ptr<RecordingSink> sink;
  std::unique_ptr<ports::Transport> transport;
};

// Polls `hosts` until `done`. False after `timeout` of real time.
bool run_until(TestClock& clock, std::vector<Host*> hosts, const std::function<bool()>& done,
               std::chrono::milliseconds timeout = std::chrono::seconds(20));
// Polls for this long.
void run_for(TestClock& clock, std::vector<Host*> hosts, std::chrono::milliseconds time);

// Host 0 and host 1 with a flow in each class, up at both ends.
class Pair {
 public:
  explicit Pair(const TransportKind& kind, HostOptions options = {});
  void connect();
  bool run_until(const std::function<bool()>& done) { return conformance::run_until(clock, {&a, &b}, done); }

  ports::FlowKey to_b(ClassId cls) const { return {kJob, HostIndex(1), cls}; }  // as host 0 names it
  ports::FlowKey to_a(ClassId cls) const { return {kJob, HostIndex(0), cls}; }  // as host 1 names it
  // Waits until the flow takes it, polling both.
  void send(Host& from, const ports::FlowKey& flow, std::span<const std::byte> payload, std::uint64_t token = 0,
            std::uint64_t sequence = 0);

  TestClock clock;
  Host a, b;
};

// Bytes that tell every position and every seed apart.
std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed);
protocol::FrameHeader data_header(std::uint64_t sequence = 0);

// What the transports log while this lives, debug lines included.
class LogCapture {
 public:
  LogCapture();
  ~LogCapture();
  std::string text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::size_t open_descriptors();
std::size_t resident_kib();

}  // namespace tensorlane::conformance
