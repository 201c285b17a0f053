// What clients have is charged for as long as they have it, and not longer.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "context_guard.h"
#include "fake_daemon.h"
#include "raw_client.h"

namespace tensorlane::test {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;
using protocol::MessageType;

std::uint64_t in_use(FakeDaemon& daemon, session::Account account) {
  std::uint64_t all = 0;
  for (const Ledger::Row& row : daemon.server().in_use(account)) all += row.amount;
  return all;
}

template <typename Condition>
bool eventually(const Condition& good) {
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (!good() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(20ms);
  return good();
}

TEST(Quotas, AConnectionIsPendingUntilItsHello) {
  session::SessionConfig config;
  config.max_pending = 1;
  FakeDaemon daemon(config);
  ClientContext first(daemon.socket(), "a"), second(daemon.socket(), "b"), third(daemon.socket(), "c");
  for (const ClientContext* context : {&first, &second, &third})
    EXPECT_EQ(context->status(), TL_OK) << context->error();
}

TEST(Quotas, RingsThatAClientKeepsAreCharged) {
  FakeDaemon daemon;
  const auto charged = [&](std::uint64_t segments, std::uint64_t descriptors) {
    return in_use(daemon, session::kSegments) == segments && in_use(daemon, session::kDescriptors) == descriptors;
  };
  int kept = -1;
  {
    RawClient client(daemon.socket());
    ASSERT_TRUE(client.join("job"));
    kept = fcntl(client.ring_fd(), F_DUPFD_CLOEXEC, 0);
  }
  EXPECT_TRUE(eventually([&] { return charged(1, 0); })) << "the daemon has no descriptor of it any more";
  std::this_thread::sleep_for(700ms);
  EXPECT_TRUE(charged(1, 0)) << "it has been looked at since";
  close(kept);
  EXPECT_TRUE(eventually([&] { return charged(0, 0); }));
}

// The daemon looks seldom by itself for what its clients have let go of.
TEST(Quotas, ASegmentThatWasLetGoOfIsThereForTheNextSession) {
  session::SessionConfig config;
  config.share = [](Ledger::Rules rules) {
    if (rules.what == "segments of shared memory") rules.total = 1;
    return rules;
  };
  FakeDaemon daemon(config);
  for (int round = 0; round < 5; ++round) {
    int kept = -1;
    {
      RawClient client(daemon.socket());
      ASSERT_TRUE(client.join("job")) << round;
      kept = fcntl(client.ring_fd(), F_DUPFD_CLOEXEC, 0);
    }
    ASSERT_TRUE(eventually([&] { return in_use(daemon, session::kDescriptors) == 0; }));
    close(kept);
  }
}

TEST(Quotas, TensorsAreChargedInHoweverManyPacketsTheyCome) {
  constexpr std::size_t kMany = 2 * protocol::kMaxTensorsPerMessage + 1;
  session::SessionConfig config;
  config.max_tensors = kMany;
  FakeDaemon daemon(config);
  ClientContext context(daemon.socket());
  std::vector<std::string> names;
  for (std::size_t i = 0; i <= kMany; ++i) names.push_back(numbered("t", static_cast<int>(i)));
  std::vector<tl_tensor_desc_t> descs;
  for (const std::string& name : names) descs.push_back(tensor_desc(name.c_str(), nullptr, 1));
  std::vector<tl_tensor_t*> tensors(descs.size());
  EXPECT_EQ(tl_register(context, "one too many", descs.data(), kMany + 1, tensors.data()), TL_ERROR_RESOURCE_EXHAUSTED);
  EXPECT_TRUE(eventually([&] { return in_use(daemon, session::kTensors) == 0; })) << tl_last_error();
  ASSERT_EQ(tl_register(context, "g", descs.data(), kMany, tensors.data()), TL_OK) << tl_last_error();
  EXPECT_EQ(in_use(daemon, session::kTensors), kMany);
}

TEST(Quotas, ASessionsTensorsAreThoseOfTheGroupUnderWayToo) {
  constexpr std::size_t kMost = 65536, kEach = 16000, kPacket = protocol::kMaxTensorsPerMessage;
  FakeDaemon daemon({}, {mib(512), mib(64)}, seconds(60));  // raw clients do not say that they live
  RawClient client(daemon.socket());
  ASSERT_TRUE(client.join("job"));
  const auto ask = [&](std::uint32_t request, std::size_t count) {
    for (std::size_t left = count; left > 0; left -= std::min(left, kPacket)) {
      protocol::RegisterBody head;
      std::strcpy(head.group, numbered("g", static_cast<int>(request)).c_str());
      head.count = static_cast<std::uint32_t>(std::min(left, kPacket));
      head.more = left > kPacket ? 1 : 0;
      std::vector<protocol::TensorBody> tensors(head.count);
      for (protocol::TensorBody& tensor : tensors) {
        std::strcpy(tensor.name, "b");
        tensor.operation = Operation::kBarrier;
        tensor.positions = 1;
      }
      std::vector<std::byte> packet(sizeof head + tensors.size() * sizeof tensors[0]);
      std::memcpy(packet.data(), &head, sizeof head);
      std::memcpy(packet.data() + sizeof head, tensors.data(), tensors.size() * sizeof tensors[0]);
      EXPECT_TRUE(client.send(MessageType::kRegister, request, packet));
    }
    const auto answer = client.receive();
    return answer ? answer->error : "no answer";
  };
  for (std::uint32_t request = 1; request <= kMost / kEach; ++request) ASSERT_EQ(ask(request, kEach), "");
  EXPECT_THAT(ask(8, kMost % kEach + 1), HasSubstr("too many tensors in one session: group 'g8': the limit is 65536"));
  EXPECT_EQ(ask(9, kMost % kEach), "");
}

}  // namespace
}  // namespace tensorlane::test
