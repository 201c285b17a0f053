// Both ends of the rings over the very same memory, so that the thread sanitizer sees what they share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "client-lib/src/rings.h"
#include "daemon/session/parse.h"
#include "daemon/session/rings.h"

namespace tensorlane {
namespace {

using protocol::CompletionEntry;
using protocol::SubmissionEntry;

class Rings : public testing::Test {
 protected:
  static constexpr std::uint32_t kEntries = 64;

  Rings()
      : bytes_(protocol::ring_memory_bytes(kEntries)),
        memory_(
            static_cast<std::byte*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))),
        wake_fd_(eventfd(0, EFD_NONBLOCK)),
        daemon_({memory_, bytes_}, kEntries),
        client_({memory_, bytes_}, kEntries, wake_fd_) {}
  ~Rings() override {
    munmap(memory_, bytes_);
    close(wake_fd_);
  }

  const std::size_t bytes_;
  std::byte* const memory_;
  const int wake_fd_;
  session::DaemonRings daemon_;
  client::ClientRings client_;
};

TEST_F(Rings, AreInOrderAndBounded) {
  EXPECT_EQ(client_.space(), kEntries);
  for (std::uint32_t i = 0; i < kEntries; ++i) EXPECT_FALSE(client_.submit({i, 0, i + 100}));
  EXPECT_EQ(client_.space(), 0u);
  std::vector<SubmissionEntry> out(40);
  ASSERT_EQ(*daemon_.take(out), 40u);
  EXPECT_EQ(out[39].tensor, 39u);
  EXPECT_EQ(out[39].sequence, 139u);
  EXPECT_EQ(client_.space(), 40u);
  ASSERT_EQ(*daemon_.take(out), 24u);
  EXPECT_EQ(out[0].tensor, 40u);
  ASSERT_EQ(*daemon_.take(out), 0u);
  for (std::uint32_t i = 0; i < kEntries; ++i) EXPECT_TRUE(daemon_.complete({i, Code::kOk, i}).ok());
  EXPECT_EQ(daemon_.complete({0, Code::kOk, 0}).code(), Code::kCorrupt) << "more than can be under way";
  CompletionEntry entry;
  for (std::uint32_t i = 0; i < kEntries; ++i) {
    ASSERT_TRUE(client_.next(entry));
    EXPECT_EQ(entry.tensor, i);
  }
  EXPECT_FALSE(client_.next(entry));
}

TEST_F(Rings, ArmingIsRefusedWhenThereIsWork) {
  EXPECT_TRUE(daemon_.arm_wake());
  EXPECT_TRUE(client_.submit({1, 0, 1})) << "the daemon sleeps";
  EXPECT_FALSE(client_.submit({1, 0, 2})) << "one wake-up is enough";
  EXPECT_FALSE(daemon_.arm_wake());
  std::vector<SubmissionEntry> out(4);
  EXPECT_EQ(*daemon_.take(out), 2u);
  EXPECT_TRUE(daemon_.arm_wake());
  daemon_.disarm_wake();
  EXPECT_FALSE(client_.submit({1, 0, 3}));
}

TEST_F(Rings, TheErrorArrivesWhole) {
  const Status cause(Code::kAborted, std::string(2000, 'w'), "where", "fix");
  EXPECT_FALSE(client_.failed());
  daemon_.fail(cause);
  ASSERT_TRUE(client_.failed());
  EXPECT_EQ(client_.error(), Status(Code::kAborted, std::string(1023, 'w'), "where", "fix"));
  // "ä" has two bytes: a text is not cut through one.
  std::string too_long(1022, 'w');
  too_long += "ä";
  EXPECT_STREQ(session::to_error_body(Status(Code::kAborted, too_long)).what, std::string(1022, 'w').c_str());
}

// Two threads that sleep whenever they can. Nothing but the wake-ups moves them, so a lost one ends in the time-out.
TEST_F(Rings, NoWakeUpIsLostBetweenThreads) {
  constexpr std::uint32_t kOperations = 20000;
  std::thread daemon([&] {
    std::vector<SubmissionEntry> out(8);
    for (std::uint32_t done = 0; done < kOperations;) {
      const auto count = daemon_.take(out);
      ASSERT_TRUE(count.ok());
      for (std::size_t i = 0; i < *count; ++i) {
        ASSERT_EQ(out[i].sequence, ++done);
        ASSERT_TRUE(daemon_.complete({out[i].tensor, Code::kOk, out[i].sequence}).ok());
      }
      if (*count > 0 || !daemon_.arm_wake()) continue;
      pollfd fd{wake_fd_, POLLIN, 0};
      ASSERT_EQ(poll(&fd, 1, 10000), 1) << "the client's wake-up was lost at " << done;
      eventfd_t ignored = 0;
      eventfd_read(wake_fd_, &ignored);
      daemon_.disarm_wake();
    }
  });
  std::mt19937 random(11);
  std::uint32_t submitted = 0, completed = 0;
  while (completed < kOperations) {
    const std::uint32_t burst = std::min<std::uint32_t>(1 + random() % 3, kOperations - submitted);
    for (std::uint32_t i = 0; i < burst; ++i) {
      if (client_.submit({submitted % 7, 0, submitted + 1})) client_.wake_daemon();
      ++submitted;
    }
    while (completed < submitted) {
      const std::uint32_t seen = client_.completed();
      CompletionEntry entry;
      while (client_.next(entry)) ASSERT_EQ(entry.sequence, ++completed);
      if (completed == submitted) break;
      const auto start = std::chrono::steady_clock::now();
      client_.wait(seen, seconds(10));
      ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(9))
          << "the daemon's wake-up was lost at " << completed;
    }
  }
  daemon.join();
}

TEST(Parse, RefusesEveryCutOfAGoodPacket) {
  protocol::HelloBody body;
  body.world_size = body.local_world_size = 1;
  body.job[0] = 'j';
  protocol::MessageHeader header;
  header.type = protocol::MessageType::kHello;
  header.body_bytes = sizeof body;
  std::vector<std::byte> packet(sizeof header + sizeof body);
  std::memcpy(packet.data(), &header, sizeof header);
  std::memcpy(packet.data() + sizeof header, &body, sizeof body);
  const auto good = session::parse_packet(packet);
  ASSERT_TRUE(good.ok());
  ASSERT_TRUE(session::parse_hello(good->body).ok());
  for (std::size_t n = 0; n < packet.size(); ++n)
    EXPECT_FALSE(session::parse_packet(std::span(packet).first(n)).ok()) << n;
  // Any bytes at all: an answer, never a crash.
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes(random() % 800);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    (void)session::parse_packet(bytes).ok();
    (void)session::parse_hello(bytes).ok();
    (void)session::parse_arena(bytes).ok();
    (void)session::parse_register(bytes).ok();
    (void)session::parse_unregister(bytes).ok();
  }
}

}  // namespace
}  // namespace tensorlane
