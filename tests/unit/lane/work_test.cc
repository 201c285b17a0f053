// Blocks of work as a lane gives them to its executor: all that it takes, each counted once, none left behind.
#include "lane_fixture.h"

namespace tensorlane::lane {
namespace {

using Phase = ports::TraceSpan::Phase;

class Work : public LaneTest {
 protected:
  static constexpr std::uint64_t kElements = 3'000'000, kBytes = kElements * sizeof(float);

  TestHost& begin() {
    start(1, 2, {allreduce(kElements)});
    each_client([](FakeClient& client, std::uint32_t) { client.submit(0, 1); });
    return *hosts_[0];
  }
};

// Two ranks of one host: a sum of both, and a copy of it to the second.
TEST_F(Work, IsCountedOnceAndTimed) {
  TestHost& host = begin();
  each_client([](FakeClient& client, std::uint32_t) { ASSERT_EQ(client.wait(0, 1), Code::kOk); });
  host.lane->stop();
  EXPECT_EQ(host.metrics().bytes_reduced.value(), 2 * kBytes);
  EXPECT_EQ(host.metrics().bytes_copied.value(), kBytes);
  std::uint64_t bytes = 0;
  Time last_end;
  bool beside = false;
  for (const ports::TraceSpan& span : host.timeline.spans) {
    if (span.phase != Phase::kReduce) continue;
    bytes += span.bytes;
    EXPECT_GT(span.length.value, 0);
    beside = beside || span.begin < last_end;
    last_end = span.begin + span.length;
  }
  EXPECT_EQ(bytes, 3 * kBytes);
  EXPECT_EQ(beside, host.executor->capacity() > 1) << "as many blocks are under way as the executor takes";
}

// What the executor has in hand when a lane stops still writes into clients' memory: it is over before stop() is.
TEST_F(Work, IsOverWhenTheLaneHasStopped) {
  TestHost& host = begin();
  const auto until = patience();
  while (host.metrics().bytes_reduced.value() == 0 && std::chrono::system_clock::now() < until)
    std::this_thread::yield();
  host.lane->stop();
  host.executor->finish();
  EXPECT_EQ(host.executor->done(), nullptr);
}

}  // namespace
}  // namespace tensorlane::lane
