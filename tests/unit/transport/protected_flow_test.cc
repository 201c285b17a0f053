// A protected flow allocates nothing for a frame.
#include <sodium.h>
#include <sys/socket.h>

#include <memory>
#include <vector>

#include "daemon/transport/tcp/flow.h"
#include "gtest/gtest.h"
#include "tests/allocations/allocation_count.h"

namespace tensorlane::tcp {
namespace {

// Takes every payload into the same memory.
class Sink final : public ports::FrameSink {
 public:
  Result<std::span<std::byte>> on_header(const protocol::FrameHeader& header) override {
    return std::span(landing_).first(header.payload_bytes);
  }
  void on_frame(const protocol::FrameHeader&) override { ++frames; }
  void on_sent(std::uint64_t) override {}
  const std::vector<std::byte>& landing() const { return landing_; }

  std::uint64_t frames = 0;

 private:
  std::vector<std::byte> landing_ = std::vector<std::byte>(kMaxOperation.value);
};

// One end seals what the other one opens.
std::unique_ptr<protect::Records> records(DataProtection level, std::uint8_t send, std::uint8_t receive) {
  protect::RecordSecrets secrets;
  secrets.level = level;
  secrets.cipher = protect::best_of(protect::ciphers_here());
  secrets.send.fill(static_cast<std::byte>(send));
  secrets.receive.fill(static_cast<std::byte>(receive));
  return std::make_unique<protect::Records>(secrets);
}

TEST(ProtectedFlow, allocates_nothing_for_a_frame) {
  ASSERT_GE(sodium_init(), 0);
  const auto job = std::make_shared<const handshake::Job>(
      ports::JobCredentials{JobId(1), Epoch(1), HostIndex(0), ports::PairKeys(2)});
  const ports::FlowKey key{JobId(1), HostIndex(1), ClassId(0)};
  const std::vector<std::byte> payload(kMaxOperation.value, std::byte{0x5a});
  for (const DataProtection level : {DataProtection::kAuthenticate, DataProtection::kEncrypt}) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    ClassShare share({}, mib(1), false);
    Flow sends(key, job, Fd(ends[0]), share, {}, records(level, 1, 2));
    Flow receives(key, job, Fd(ends[1]), share, {}, records(level, 2, 1));
    const auto buffers = std::make_unique<ReadBuffers>();
    Sink sink;
    receives.deliver_to(sink);
    std::size_t handled = 0;
    const auto exchange = [&](std::uint64_t frames) {
      protocol::FrameHeader header;
      header.type = protocol::FrameType::kData;
      bool good = true;
      for (const std::uint64_t end = sink.frames + frames; good && sink.frames < end;) {
        const std::size_t bytes = sink.frames % 2 == 0 ? payload.size() : 100;
        if (sends.queue_empty()) sends.send({header, std::span(payload).first(bytes), 0});
        good = sends.write(handled).ok() && receives.read(*buffers, handled).ok();
      }
      return good;
    };
    ASSERT_TRUE(exchange(4));
    counting::count_allocations(counting::CountedThreads::kAll);
    const std::uint64_t before = counting::allocations();
    const bool good = exchange(100);
    const std::uint64_t allocated = counting::allocations() - before;
    counting::count_allocations(counting::CountedThreads::kNone);
    EXPECT_TRUE(good);
    EXPECT_EQ(allocated, 0u) << data_protection_name(level);
    EXPECT_EQ(sink.landing(), payload);
  }
}

}  // namespace
}  // namespace tensorlane::tcp
