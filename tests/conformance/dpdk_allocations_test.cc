// A frame over packet ports allocates nothing once tables have grown to what they need, whatever the network does to
// its packets. What the network in memory allocates itself is not counted.
#include <array>
#include <iostream>

#include "dpdk_setup.h"
#include "packet_network.h"
#include "tests/allocations/allocation_count.h"

namespace tensorlane::conformance {
namespace {

using counting::CountedThreads;

constexpr std::uint64_t kWarm = 12'000, kCounted = 6'000;  // frames

// While it lives, nothing is counted.
struct Pause {
  Pause() { counting::count_allocations(CountedThreads::kNone); }
  ~Pause() { counting::count_allocations(CountedThreads::kAll); }
};

// A port of the network, whose work is not counted.
class UncountedPort final : public dpdk::PacketPort {
 public:
  explicit UncountedPort(std::unique_ptr<dpdk::PacketPort> inner) : inner_(std::move(inner)) {}
  const dpdk::PortConfig& config() const override { return inner_->config(); }
  dpdk::MacAddress mac() const override { return inner_->mac(); }
  Result<dpdk::PeerId> add_peer(const dpdk::IpAddress& address) override {
    const Pause pause;
    return inner_->add_peer(address);
  }
  void remove_peer(dpdk::PeerId peer) override { inner_->remove_peer(peer); }
  bool reachable(dpdk::PeerId peer) const override { return inner_->reachable(peer); }
  std::span<std::byte> room(std::size_t queue) override { return inner_->room(queue); }
  bool commit(std::size_t queue, const dpdk::Path& path, std::size_t bytes) override {
    const Pause pause;
    ++packets;
    return inner_->commit(queue, path, bytes);
  }
  bool commit(std::size_t queue, const dpdk::Path& path, dpdk::Parts parts) override {
    const Pause pause;
    ++packets;
    return inner_->commit(queue, path, parts);
  }
  bool gathers() const override { return inner_->gathers(); }
  std::uint64_t borrowed(std::size_t queue) const override { return inner_->borrowed(queue); }
  std::uint64_t released(std::size_t queue) const override { return inner_->released(queue); }
  void keep(std::size_t queue) override { inner_->keep(queue); }
  std::size_t flush() override {
    const Pause pause;
    return inner_->flush();
  }
  std::size_t receive(Time now, std::span<dpdk::Received> out) override {
    const Pause pause;
    return inner_->receive(now, out);
  }
  dpdk::LinkState link() const override { return inner_->link(); }
  const dpdk::PortCounts& counts() const override { return inner_->counts(); }
  std::vector<dpdk::DeviceCount> device_counts() const override { return {}; }
  std::span<const int> wake_descriptors() const override { return inner_->wake_descriptors(); }
  void arm(bool on) override { inner_->arm(on); }

  static inline std::uint64_t packets = 0;  // sent, of all ports

 private:
  std::unique_ptr<dpdk::PacketPort> inner_;
};

// A host whose frames all land in one place.
struct CountedHost final : ports::FlowOwner {
  CountedHost(HostIndex self, std::uint16_t port, const NetworkFaults& faults) : place(kMaxOperation.value) {
    DpdkSetup setup = dpdk_setup({}, port, DataProtection::kNone);
    setup.port.device = "network";
    setup.port.addresses = {
        {.address = dpdk::parse_ip("10.8.0." + std::to_string(self.value + 1)).value(), .prefix = 24}};
    auto made = dpdk::make_dpdk_transport(
        setup.transport, std::make_unique<UncountedPort>(make_network_port(setup.port, faults)), *this);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    transport = std::move(made).value();
    transport->add_job(credentials(self));
  }
  struct Line final : ports::FrameSink {
    CountedHost* host = nullptr;
    ports::Flow* flow = nullptr;
    Result<std::span<std::byte>> on_header(const protocol::FrameHeader& header) override {
      return std::span(host->place).first(header.payload_bytes);
    }
    void on_frame(const protocol::FrameHeader&) override { ++host->come; }
    void on_sent(std::uint64_t) override {}
  };
  ports::FrameSink& on_flow_up(const ports::FlowKey& key, ports::Flow& flow) override {
    Line& line = lines[key.cls.value];
    line.host = this;
    line.flow = &flow;
    ++up;
    return line;
  }
  void on_flow_down(const ports::FlowKey&, const Status& cause) override { ADD_FAILURE() << cause.to_string(); }
  void send(std::span<const std::byte> payload) {
    for (ports::Flow* flow : {lines[0].flow, lines[1].flow}) {
      if (flow->writable()) flow->send({.header = data_header(), .payload = payload, .token = 1});
    }
  }

  std::vector<std::byte> place;
  std::array<Line, 256> lines;
  std::size_t up = 0;
  std::uint64_t come = 0;
  std::unique_ptr<ports::Transport> transport;
};

// Half of at most `rounds` rounds of so many frames allocate nothing: what grows has grown by then.
void expect_no_allocations(const NetworkFaults& faults, std::uint16_t first_port, unsigned rounds) {
  CountedHost a(HostIndex(0), first_port, faults), b(HostIndex(1), static_cast<std::uint16_t>(first_port + 16), faults);
  TestClock clock;
  for (const ClassId cls : {kUrgent, kBulk}) {
    const auto port = static_cast<std::uint16_t>(first_port + 16);
    ASSERT_TRUE(a.transport->connect({kJob, HostIndex(1), cls}, "127.0.0.1", port, clock.now() + seconds(10)).ok());
  }
  const auto poll = [&] {
    a.transport->poll(clock.now());
    b.transport->poll(clock.now());
  };
  for (const Time end = clock.now() + seconds(10); a.up + b.up < 4 && clock.now() < end;) poll();
  ASSERT_EQ(a.up + b.up, 4u);
  const std::vector<std::byte> payload(50'000);
  const auto run = [&](std::uint64_t frames) {
    for (const Time end = clock.now() + seconds(30); a.come + b.come < frames && clock.now() < end;) {
      a.send(payload);
      b.send(payload);
      poll();
    }
    ASSERT_GE(a.come + b.come, frames);
  };
  run(kWarm);
  unsigned free_rounds = 0;
  for (unsigned round = 0; round < rounds && 2 * free_rounds < rounds; ++round) {
    const std::uint64_t frames = a.come + b.come, packets = UncountedPort::packets, before = counting::allocations();
    counting::count_allocations(CountedThreads::kAll);
    run(frames + kCounted);
    counting::count_allocations(CountedThreads::kNone);
    const std::uint64_t allocations = counting::allocations() - before;
    free_rounds += allocations == 0 ? 1 : 0;
    std::cout << allocations << " allocations for " << a.come + b.come - frames << " frames in "
              << UncountedPort::packets - packets << " packets\n";
  }
  EXPECT_GE(2 * free_rounds, rounds);
}

TEST(DpdkAllocations, AFrameAllocatesNothing) {
  expect_no_allocations({}, 16100, 1);
}

// What has come out of order is kept in tables whose length is a matter of luck: longer ones come ever more rarely.
TEST(DpdkAllocations, NorWherePacketsAreLostAndOvertaken) {
  expect_no_allocations({.lost = 0.01, .overtaken = 0.05, .doubled = 0.01}, 16200, 16);
}

}  // namespace

}  // namespace tensorlane::conformance
