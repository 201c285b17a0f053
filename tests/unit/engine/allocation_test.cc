// Nothing is allocated once the plan is applied (law 6).
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

#include "daemon/engine/engine.h"
#include "tests/allocations/allocation_count.h"

namespace tensorlane::engine {
namespace {

using counting::allocations;

constexpr std::uint16_t kHosts = 3;

Plan plan_of_all_operations() {
  Plan plan;
  std::uint32_t n = 0;
  for (Pattern pattern : {Pattern::kRing, Pattern::kParameterServer, Pattern::kHalvingDoubling, Pattern::kTree}) {
    for (Operation operation :
         {Operation::kAllreduce, Operation::kBroadcast, Operation::kAllgather, Operation::kBarrier}) {
      for (std::uint64_t elements : {48u, 48'000u}) {
        plan.tensors.push_back({.id = TensorId(n++),
                                .operation = operation,
                                .pattern = pattern,
                                .cls = ClassId(static_cast<std::uint8_t>(n % 2)),
                                .elements = elements,
                                .slice_elements = 1000});
      }
    }
  }
  for (std::uint16_t h = 0; h < kHosts; ++h) plan.rank_hosts.emplace_back(h);
  return plan;
}

// Carries frames between engines without their payload, and counts what the engines allocate.
class Carrier {
 public:
  Carrier() : plan_(plan_of_all_operations()), sends_(16) {
    for (std::uint16_t h = 0; h < kHosts; ++h) {
      EngineConfig config;
      config.hosts = kHosts;
      config.self = HostIndex(h);
      config.world_size = kHosts;
      config.eager_credits = 4;
      engines_.push_back(std::make_unique<Engine>(config, Descriptor{0, 0, 0, Engine::staging_bytes(config).value}));
      EXPECT_TRUE(engines_.back()->apply_plan(plan_).ok());
    }
    for (std::size_t h = 0; h < kHosts; ++h) {
      for (const HostIndex peer : engines_[h]->neighbours()) step(h, {.kind = Event::Kind::kPeerUp, .up = {peer}});
    }
  }

  void step(std::size_t h, const Event& event) {
    counted([&] { EXPECT_EQ(engines_[h]->step(Time(1), {&event, 1}, actions_), 1u); });
    for (; !actions_.empty(); actions_.pop()) {
      EXPECT_TRUE(actions_.front().kind == Action::Kind::kComplete && actions_.front().complete.ok);
      ++completed;
    }
  }
  void begin(std::uint64_t sequence) {
    for (std::size_t h = 0; h < kHosts; ++h) {
      for (const PlanTensor& t : plan_.tensors) {
        Event e{.kind = Event::Kind::kTensorReady};
        const std::uint64_t bytes = t.operation == Operation::kBarrier ? 0 : t.elements * dtype_size(t.dtype);
        e.tensor_ready = {t.id, Sequence(sequence), {1 + t.id.value, 0, 0, bytes}, {}};
        step(h, e);
      }
    }
  }
  bool move(std::size_t h) {
    bool moved = false;
    Work work;
    bool more = true;
    while (more) {
      counted([&] { more = engines_[h]->pick_work(Time(1), &work); });
      if (more) step(h, {.kind = Event::Kind::kWorkDone, .token = work.token});
      moved |= more;
    }
    for (ClassId cls : {kControlClass, ClassId(0), ClassId(1)}) {
      HostIndex peer;
      while (engines_[h]->next_flow(Time(1), cls, HostIndex(0), &peer)) {
        std::size_t n = 0;
        counted([&] { n = engines_[h]->pick(Time(1), {peer, cls}, mib(16), sends_); });
        for (std::size_t i = 0; i < n; ++i) deliver(h, peer, sends_[i]);
        moved = true;
      }
    }
    return moved;
  }

  std::uint64_t completed = 0, in_engine = 0;
  std::size_t tensors() const { return plan_.tensors.size(); }
  const EngineCounters& counters() const { return engines_[0]->counters(); }

 private:
  template <typename F>
  void counted(F&& f) {
    counting::count_allocations(counting::CountedThreads::kAll);
    const std::uint64_t before = allocations();
    f();
    in_engine += allocations() - before;
  }
  void deliver(std::size_t from, HostIndex to, const Send& send) {
    const HostIndex peer(static_cast<std::uint16_t>(from));
    if (send.header.payload_bytes > 0) {
      counted([&] { EXPECT_TRUE(engines_[to.value]->landing(peer, send.header).ok()); });
    }
    Event e{.kind = Event::Kind::kFrameArrived};
    e.frame = {peer, send.header};
    step(to.value, e);
    if (send.token != 0) step(from, {.kind = Event::Kind::kSendDone, .token = send.token});
  }

  Plan plan_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<Send> sends_;
  ActionRing actions_{64};
};

TEST(Allocation, NoneWhileAJobRuns) {
  Carrier c;
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    c.begin(sequence);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t h = 0; h < kHosts; ++h) moved |= c.move(h);
    }
    ASSERT_EQ(c.completed, sequence * c.tensors() * kHosts);
  }
  EXPECT_GT(c.counters().grants_given, 0u);
  EXPECT_GT(c.counters().eager_sent, 0u);
  EXPECT_EQ(c.in_engine, 0u);
}

// The counter counts: else the test above could not fail.
TEST(Allocation, CounterSeesAllocations) {
  counting::count_allocations(counting::CountedThreads::kAll);
  const std::uint64_t before = allocations();
  auto* volatile p = new int(3);
  delete p;
  EXPECT_GT(allocations(), before);
}

}  // namespace
}  // namespace tensorlane::engine
