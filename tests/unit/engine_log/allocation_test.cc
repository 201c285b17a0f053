// Recording allocates nothing once it has begun, blocks written included.
#include <gtest/gtest.h>

#include "daemon/engine_log/recorder.h"
#include "tests/allocations/allocation_count.h"

namespace tensorlane::engine_log {
namespace {

class NullSink final : public Sink {
 public:
  explicit NullSink(std::uint64_t& bytes) : bytes_(bytes) {}
  Status write(std::span<const std::byte> bytes) override {
    bytes_ += bytes.size();
    return {};
  }
  void stopped(const Status& why) override { FAIL() << why.to_string(); }

 private:
  std::uint64_t& bytes_;
};

TEST(EngineLogAllocation, RecordsAreFree) {
  std::uint64_t bytes = 0;
  Recorder recorder(std::make_unique<NullSink>(bytes), mib(1024), "job", "host");
  recorder.begin({}, {}, 0);
  engine::Event event{.kind = engine::Event::Kind::kFrameArrived};
  event.frame.header.sequence = Sequence(~0ull);
  event.frame.header.offset = ~0ull;
  counting::count_allocations(counting::CountedThreads::kAll);
  const std::uint64_t before = counting::allocations();
  for (std::int64_t i = 0; i < 20'000; ++i) {
    recorder.events(Time(i * 1'000'000'007), {&event, 1}, 0);
    recorder.pick(Time(i), {HostIndex(1), ClassId(1)}, Bytes(~0ull), 16, 3, 0);
    recorder.work(Time(i), 0);
    if (i % 1000 == 0) recorder.flush(0);
  }
  const std::uint64_t made = counting::allocations() - before;
  counting::count_allocations(counting::CountedThreads::kNone);
  EXPECT_EQ(made, 0u);
  EXPECT_GT(bytes, 10 * kBlockBytes);
}

}  // namespace
}  // namespace tensorlane::engine_log
