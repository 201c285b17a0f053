// What only RDMA does: payloads that land by one-sided writes, and what must never land.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "daemon/transport/handshake/socket.h"
#include "rdma_kinds.h"

namespace tensorlane::conformance {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr ClassId kUrgent{0}, kBulk{1};
constexpr std::uint32_t kGrant = 5;
constexpr std::size_t kPage = kMaxOperation.value;

class Writes : public OnTransport {
 protected:
  void SetUp() override {
    OnTransport::SetUp();
    if (IsSkipped()) return;
    pair = std::make_unique<Pair>(GetParam(), options);
    source = pattern(kBytes, 1);
    landing.resize(kBytes);
  }
  void map() {
    ASSERT_TRUE(pair->a->map(kJob, source).ok());
    ASSERT_TRUE(pair->b->map(kJob, landing).ok());
  }
  // Host 1 grants host 0 these places.
  void grant(const std::vector<std::span<std::byte>>& places) {
    protocol::FrameHeader header;
    header.type = protocol::FrameType::kGrant;
    header.grant = kGrant;
    const std::size_t before = pair->a.sink->frames.size();
    pair->b.sink->granted = places;
    pair->b.send(pair->to_a(kControlClass), {header, {}, 0});
    ASSERT_TRUE(pair->run_until([&] { return pair->a.sink->frames.size() > before; }));
  }
  // Host 0 sends a piece of `source` under the grant.
  void send(std::uint64_t offset, std::size_t bytes, std::uint64_t from = 0) {
    protocol::FrameHeader header = data_header();
    header.grant = kGrant;
    header.offset = offset;
    ASSERT_TRUE(pair->run_until([&] { return pair->a.writable(pair->to_b(kBulk)); }));
    pair->a.send(pair->to_b(kBulk), {header, std::span<const std::byte>(source).subspan(from, bytes), 1});
  }

  static constexpr std::size_t kBytes = 3 * kPage;
  HostOptions options;
  std::unique_ptr<Pair> pair;
  std::vector<std::byte> source, landing;
};
INSTANTIATE_TEST_SUITE_P(Transports, Writes, ::testing::ValuesIn(kinds_under_test()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Writes, LandWhereTheGrantSaysWithoutACopy) {
  map();
  const std::span<std::byte> all(landing);
  grant({all.subspan(2 * kPage, kPage), all.first(kPage), all.subspan(kPage, 100)});  // pages in any order
  pair->b.sink->landing = [&](const auto&, const auto& header) {
    const std::size_t page = header.offset / kPage;
    return all.subspan(page == 0 ? 2 * kPage : page == 1 ? 0 : kPage, header.payload_bytes);
  };
  send(0, kPage, 0);
  send(kPage, kPage, kPage);
  send(2 * kPage, 100, 2 * kPage);
  ASSERT_TRUE(pair->run_until([&] { return pair->b.sink->frames.size() == 3 && pair->a.sink->sent.size() == 3; }));
  EXPECT_EQ(std::memcmp(all.data() + 2 * kPage, source.data(), kPage), 0);
  EXPECT_EQ(std::memcmp(all.data(), source.data() + kPage, kPage), 0);
  EXPECT_EQ(std::memcmp(all.data() + kPage, source.data() + 2 * kPage, 100), 0);
  EXPECT_EQ(all[kPage + 100], std::byte{0});
  EXPECT_EQ(pair->b->counters().payloads_placed, 3u);
  EXPECT_EQ(pair->b->counters().payloads_copied, 0u);
  EXPECT_EQ(pair->a->in_flight(kBulk).value, 0u);
}

TEST_P(Writes, OnePieceTakesManyOperationsAtAnyOffset) {
  map();
  grant({std::span(landing)});
  pair->b.sink->landing = [&](const auto&, const auto& header) {
    return std::span(landing).subspan(header.offset, header.payload_bytes);
  };
  std::size_t operations = 0;
  for (std::size_t offset = 0; offset < kBytes; offset += 60001, ++operations)
    send(offset, std::min<std::size_t>(60001, kBytes - offset), offset);
  ASSERT_TRUE(pair->run_until([&] { return pair->b.sink->frames.size() == operations; }));
  EXPECT_EQ(landing, source);
  EXPECT_EQ(pair->b->counters().payloads_placed, operations);
}

TEST_P(Writes, MemoryThatIsNotMappedIsCopied) {
  ASSERT_TRUE(pair->a->map(kJob, source).ok());
  grant({std::span(landing)});
  pair->b.sink->landing = [&](const auto&, const auto& header) {
    return std::span(landing).subspan(header.offset, header.payload_bytes);
  };
  for (std::size_t page = 0; page < 3; ++page) send(page * kPage, kPage, page * kPage);
  ASSERT_TRUE(pair->run_until([&] { return pair->b.sink->frames.size() == 3; }));
  EXPECT_EQ(landing, source);
  EXPECT_EQ(pair->b->counters().payloads_copied, 3u);
  EXPECT_EQ(pair->b->counters().payloads_placed, 0u);
}

TEST_P(Writes, AStaleGrantIsDroppedAndCounted) {
  map();
  grant({std::span(landing)});
  pair->b.sink->drop_payloads = true;
  send(0, kPage);
  ASSERT_TRUE(pair->run_until([&] { return pair->b->counters().payloads_dropped == 1; }));
  EXPECT_TRUE(pair->b.sink->frames.empty());
  EXPECT_TRUE(pair->b.sink->up(pair->to_a(kBulk)));
}

TEST_P(Writes, APayloadThatBelongsElsewhereEndsTheFlow) {
  map();
  grant({std::span(landing)});
  pair->b.sink->landing = [&](const auto&, const auto& header) {
    return std::span(landing).subspan(kPage, header.payload_bytes);
  };
  send(0, 1000);
  ASSERT_TRUE(pair->run_until([&] { return !pair->b.sink->up(pair->to_a(kBulk)); }));
  EXPECT_EQ(pair->b.sink->cause(pair->to_a(kBulk)).code(), Code::kCorrupt);
  EXPECT_THAT(pair->b.sink->cause(pair->to_a(kBulk)).to_string(),
              AllOf(HasSubstr("connection to host 0 ("), HasSubstr("wrote a payload of 1000 bytes to 0x"),
                    HasSubstr("it belongs at 0x")));
  EXPECT_TRUE(pair->b.sink->frames.empty());
}

TEST_P(Writes, ACrcIsCheckedWhereThePayloadLanded) {
  options.payload_crc = true;
  pair = std::make_unique<Pair>(GetParam(), options);
  map();
  grant({std::span(landing)});
  pair->b.sink->landing = [&](const auto&, const auto& header) {
    landing[17] ^= std::byte{1};  // memory that does not hold what was written
    return std::span(landing).first(header.payload_bytes);
  };
  send(0, 1000);
  ASSERT_TRUE(pair->run_until([&] { return !pair->b.sink->up(pair->to_a(kBulk)); }));
  EXPECT_THAT(pair->b.sink->cause(pair->to_a(kBulk)).to_string(),
              HasSubstr("carried a payload of 1000 bytes with CRC"));
}

// Law 7: a host that aborts gives its buffers back after on_flow_down; writes that were on their way must not reach
// them, even while their memory is still registered.
TEST_P(Writes, NothingLandsAfterTheEndOfAFlow) {
  for (int round = 0; round < 4; ++round) {
    map();
    grant({std::span(landing)});
    pair->b.sink->landing = [&](const auto&, const auto& header) {
      return std::span(landing).subspan(header.offset, header.payload_bytes);
    };
    // Host 0 does not hear of the end before this time: a poll at the same time does not look at its connections.
    const Time still = pair->clock.now();
    pair->a->poll(still);
    const auto write = [&](int operations) {
      for (int i = 0; i < operations; ++i) send((i % 3) * kPage, kPage, (i % 3) * kPage);
      pair->a->poll(still);  // it is with the device now
    };
    write(3 * round);
    pair->b->remove_job(kJob);
    ASSERT_TRUE(run_until(pair->clock, {&pair->b}, [&] { return pair->b.sink->downs.size() == 3; }));
    std::memset(landing.data(), 0xee, landing.size());
    write(6);
    run_for(pair->clock, {&pair->b}, std::chrono::milliseconds(200));
    EXPECT_TRUE(std::ranges::all_of(landing, [](std::byte b) { return b == std::byte{0xee}; })) << round;
    pair->b->unmap(kJob);
    pair = std::make_unique<Pair>(GetParam(), options);
  }
}

TEST_P(Writes, ARefusedWriteIsANamedError) {
  map();
  grant({std::span(landing)});
  pair->b->unmap(kJob);  // a host must not do so while the flow is up; a broken one may
  send(0, kPage);
  ASSERT_TRUE(run_until(pair->clock, {&pair->a, &pair->b}, [&] { return !pair->a.sink->up(pair->to_b(kBulk)); }));
  EXPECT_EQ(pair->a.sink->cause(pair->to_b(kBulk)).code(), Code::kAborted);
  EXPECT_THAT(pair->a.sink->cause(pair->to_b(kBulk)).to_string(),
              AllOf(HasSubstr("connection to host 1 ("), HasSubstr("class 1) was lost: the peer refused a write"),
                    HasSubstr("that host has ended the job, or its memory is gone")));
  EXPECT_EQ(pair->a->counters().access_errors, 1u);
  EXPECT_TRUE(pair->a.sink->up(pair->to_b(kUrgent)));
}

// Soft-RoCE of Linux 6.1 has no dmabufs; a card that has them looks at the descriptor, which here is no dmabuf.
TEST_P(Writes, DeviceMemoryThatCannotBeRegisteredIsANamedError) {
  const handshake::Fd file(::memfd_create("no dmabuf", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(kPage)), 0);
  const auto address = reinterpret_cast<std::uintptr_t>(landing.data());
  const Status status = pair->b->map(kJob, ports::DeviceMemory{file.get(), 4096, address, 8192});
  EXPECT_THAT(status.to_string(), AllOf(HasSubstr("cannot register 8192 bytes of device memory (dmabuf) for RDMA: "),
                                        AnyOf(HasSubstr("the card, its driver or the kernel does not support it: rxe"),
                                              HasSubstr("give a descriptor of a dmabuf"))));
  EXPECT_TRUE(status.code() == Code::kUnavailable || status.code() == Code::kInvalidArgument);
  map();  // the job goes on with host memory
}

TEST_P(Writes, HostsWithDifferentNumbersOfQueuePairsSaySo) {
  LogCapture log;
  Host a(rdma_kind("two", 2), HostIndex(0)), b(rdma_kind("four", 4), HostIndex(1));
  TestClock clock;
  a.add_job();
  b.add_job();
  const ports::FlowKey key{kJob, HostIndex(1), kUrgent};
  ASSERT_TRUE(a->connect(key, b.kind.address, b.data_port, clock.now() + seconds(20)).ok());
  ASSERT_TRUE(run_until(clock, {&a, &b}, [&] { return !a.sink->downs.empty(); }));
  EXPECT_EQ(a.sink->cause(key).code(), Code::kMismatch);
  EXPECT_THAT(a.sink->cause(key).to_string(), HasSubstr("2 queue pairs in a flow, this host has 4"));
  EXPECT_THAT(log.text(), HasSubstr("2 queue pairs in a flow, this host has 4"));
}

TEST_P(Writes, ATransportThatCannotBeSaysWhatItNeeds) {
  RecordingSink sink;
  const auto error = [&](const std::function<void(rdma::RdmaConfig&)>& change) {
    rdma::RdmaConfig config = rdma_config({}, 9000);
    config.device = "rxe0";  // the machine may have several: then the error is of all of them
    change(config);
    return rdma::make_rdma_transport(config, sink).status().to_string();
  };
  EXPECT_THAT(error([](auto& c) { c.device = "mlx5_9"; }),
              AllOf(HasSubstr("this host has no RDMA device 'mlx5_9'"), HasSubstr("to one of rxe0")));
  EXPECT_THAT(error([](auto& c) { c.port = 2; }), HasSubstr("the device has no port 2: rxe0"));
  EXPECT_THAT(error([](auto& c) { c.address = "10.99.0.1"; }),
              AllOf(HasSubstr("no RoCE v2 GID has this host's rdma address 10.99.0.1: rxe0 port 1"),
                    HasSubstr(rdma_address() + " (index ")));
  EXPECT_THAT(error([](auto& c) { c.gid_index = 99; }), HasSubstr("GID 99 does not exist: rxe0 port 1"));
  EXPECT_THAT(error([](auto& c) { c.queue_pairs = 17; }), HasSubstr("a flow of 17 queue pairs"));
}

}  // namespace
}  // namespace tensorlane::conformance
