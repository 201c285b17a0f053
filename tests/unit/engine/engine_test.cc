// What one engine does with the events it is given: grants, order, bounds, abort, reports, plans.
#include "daemon/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cluster.h"
#include "one_engine.h"

namespace tensorlane::engine::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---- grants ----

TEST(Engine, GrantsASliceOnlyWhenEverythingItSumsExists) {
  OneEngine e(plan_of(allreduce(kServer, Dtype::kFloat32, 64, 64)), no_credit(), 3);
  EXPECT_EQ(e.frame(header(FrameType::kReady, 0, 1, 0, 9), 1), "");
  EXPECT_THAT(e.pick(kControlClass, 1), IsEmpty());
  e.ready(0);
  EXPECT_THAT(e.pick(kControlClass, 1), IsEmpty());  // host 2 has not announced
  EXPECT_THAT(e->missing(TensorId(0)), ElementsAre(HostIndex(2)));
  EXPECT_EQ(e.frame(header(FrameType::kReady, 0, 1, 0, 9), 2), "");
  EXPECT_EQ(e.pick(kControlClass, 1).at(0).header.type, FrameType::kGrant);
  EXPECT_EQ(e.pick(kControlClass, 2).at(0).header.type, FrameType::kGrant);
  EXPECT_THAT(e->missing(TensorId(0)), IsEmpty());
}

TEST(Engine, AnnouncementsOfTheNextOperationWaitForIt) {
  OneEngine e(two_tensors(), no_credit());
  Time since;
  EXPECT_FALSE(e->awaited(TensorId(0), &since));
  EXPECT_EQ(e.frame(header(FrameType::kReady, 0, 1, 0, 9)), "");
  EXPECT_TRUE(e->awaited(TensorId(0), &since));
  EXPECT_EQ(since, e.now());
  EXPECT_THAT(e->awaited(), ElementsAre(TensorId(0)));
  e.ready(0);
  EXPECT_FALSE(e->awaited(TensorId(0), &since));
  EXPECT_THAT(e->awaited(), IsEmpty());
  EXPECT_EQ(e.pick(kControlClass).size(), 2u);                     // one grant per slice
  EXPECT_EQ(e.frame(header(FrameType::kReady, 0, 2, 0, 10)), "");  // one ahead: kept
  EXPECT_THAT(e.frame(header(FrameType::kReady, 0, 3, 0, 11)), HasSubstr("sequence"));
  EXPECT_THAT(e.pick(kControlClass), IsEmpty());
}

// ---- batches ----

TEST(Batch, MovesItsMembersWhichHaveNoSlicesOfTheirOwn) {
  Plan plan;
  for (std::uint32_t i = 0; i < 3; ++i) {
    PlanTensor t = allreduce(kServer, Dtype::kFloat32, i < 2 ? 32 : 64, 32);
    t.batch = i < 2 ? 2 : protocol::kNoBatch;
    t.batch_offset = 32 * (i % 2);
    t.members = i < 2 ? 0 : 2;
    add(&plan, t);
  }
  OneEngine e(plan);
  EXPECT_THAT(e.frame(header(FrameType::kReady, 0, 1, 0, 9)), HasSubstr("has no part in the tensor"));
  EXPECT_THAT(e.frame(header(FrameType::kRts, 1, 1)), HasSubstr("slice that the tensor does not have"));
  e.ready(2);
  EXPECT_EQ(e->counters().operations_pending, 1U);
  plan.tensors[1].batch_offset = 31;
  const EngineConfig config{.hosts = 2, .world_size = 2};
  Engine refuses(config, Descriptor{0, 0, 0, Engine::staging_bytes(config).value});
  EXPECT_THAT(refuses.apply_plan(plan).to_string(), HasSubstr("its place in its batch"));
}

// ---- order ----

// Tensors whose contributions go to host 1, all granted: they wait in the queue.
Plan tensors_of_host_1(std::initializer_list<float> urgencies) {
  Plan plan;
  for (float urgency : urgencies) {
    PlanTensor t = allreduce(Pattern::kRing, Dtype::kFloat32, 64, 32);
    t.operation = Operation::kBroadcast;  // from host 0: the queue fills as soon as host 1 is ready
    t.urgency = urgency;
    add(&plan, t);
  }
  return plan;
}

void queue_all(OneEngine& e, std::initializer_list<std::uint32_t> tensors) {
  for (std::uint32_t t : tensors) {
    e.ready(t);
    ASSERT_EQ(e.frame(header(FrameType::kReady, t, 1, 0, 9)), "");
  }
}

using Order = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

TEST(Pick, MoreUrgentFirstThenTensorThenSlice) {
  OneEngine e(tensors_of_host_1({0.2F, 0.9F, 0.9F}));
  queue_all(e, {0, 2, 1});
  EXPECT_EQ(e.order(ClassId(0)), (Order{{1, 0}, {1, 1}, {2, 0}, {2, 1}, {0, 0}, {0, 1}}));
}

TEST(Priority, ChangesFromTheNextOperationOn) {
  EngineConfig config;
  config.reclassifies = true;
  OneEngine e(tensors_of_host_1({0.2F, 0.9F}), config);
  queue_all(e, {0, 1});
  e->set_priority(TensorId(0), 1, ClassId(0));
  e->set_priority(TensorId(1), 0.5F, ClassId(1));
  const std::vector<Send> first = e.pick(ClassId(0));
  ASSERT_EQ(first.size(), 4u);  // both in the class that they have had
  EXPECT_EQ(first[0].header.tensor, TensorId(1));
  EXPECT_EQ(first[0].header.cls, ClassId(0));
  for (const Send& s : first) e.feed({.kind = Event::Kind::kSendDone, .token = s.token});
  for (std::uint32_t t : {0u, 1u}) {
    e.ready(t, 2);
    ASSERT_EQ(e.frame(header(FrameType::kReady, t, 2, 0, 9)), "");
  }
  EXPECT_EQ(e.order(ClassId(0)), (Order{{0, 0}, {0, 1}}));
  EXPECT_EQ(e.order(ClassId(1)), (Order{{1, 0}, {1, 1}}));
}

TEST(Pick, BoostedFirstWhateverItsUrgency) {
  OneEngine e(tensors_of_host_1({0.2F, 0.9F, 0.5F}));
  queue_all(e, {1, 2, 0});
  e.feed({.kind = Event::Kind::kBoost, .boost = {TensorId(0), Sequence(1)}});
  e.feed({.kind = Event::Kind::kBoost, .boost = {TensorId(2), Sequence(2)}});  // not running: nothing
  EXPECT_EQ(e.order(ClassId(0)), (Order{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}}));
}

TEST(Pick, SendsOfABoostedOperationThatComeLaterAreBoostedToo) {
  OneEngine e(tensors_of_host_1({0.2F, 0.9F}));
  e.ready(0);
  e.feed({.kind = Event::Kind::kBoost, .boost = {TensorId(0), Sequence(1)}});
  queue_all(e, {1});
  ASSERT_EQ(e.frame(header(FrameType::kReady, 0, 1, 0, 9)), "");
  EXPECT_EQ(e.order(ClassId(0)).front(), (std::pair<std::uint32_t, std::uint32_t>{0, 0}));
}

TEST(Pick, OlderIterationFirst) {
  OneEngine e(tensors_of_host_1({1.0F, 0.1F}));
  queue_all(e, {0});
  for (const Send& s : e.pick(ClassId(0))) e.feed({.kind = Event::Kind::kSendDone, .token = s.token});
  e.ready(1);
  e.ready(0, 2);  // the second iteration of tensor 0 against the first of tensor 1, which began before it
  ASSERT_EQ(e.frame(header(FrameType::kReady, 0, 2, 0, 9)), "");
  ASSERT_EQ(e.frame(header(FrameType::kReady, 1, 1, 0, 9)), "");
  EXPECT_EQ(e.order(ClassId(0)), (Order{{1, 0}, {1, 1}, {0, 0}, {0, 1}}));
}

// A tensor that joins late takes part in the iteration that runs.
TEST(Pick, ATensorThatJoinsLateGoesByItsUrgency) {
  OneEngine e(tensors_of_host_1({1.0F, 0.1F}));
  queue_all(e, {0});
  for (const Send& s : e.pick(ClassId(0))) e.feed({.kind = Event::Kind::kSendDone, .token = s.token});
  e.ready(0, 2);
  ASSERT_EQ(e.frame(header(FrameType::kReady, 0, 2, 0, 9)), "");
  queue_all(e, {1});
  EXPECT_EQ(e.order(ClassId(0)), (Order{{0, 0}, {0, 1}, {1, 0}, {1, 1}}));
}

TEST(Pick, ResultsBeforeContributions) {
  Plan plan = two_tensors();
  plan.tensors[1].urgency = 1;  // the contribution is more urgent
  PlanTensor result = tensors_of_host_1({0.1F}).tensors[0];
  add(&plan, result);
  OneEngine e(plan, no_credit());
  e.ready(1);
  ASSERT_EQ(e.frame(header(FrameType::kGrant, 1, 1, 0, 5)), "");
  queue_all(e, {2});
  EXPECT_EQ(e.order(ClassId(0)), (Order{{2, 0}, {2, 1}, {1, 0}}));
}

TEST(Pick, SingleQueueIsTheOrderOfArrivalInOneClass) {
  EngineConfig config;
  config.single_queue = true;
  Plan plan = tensors_of_host_1({0.2F, 0.9F, 0.5F});
  plan.tensors[1].cls = ClassId(1);
  OneEngine e(plan, config);
  queue_all(e, {0, 2, 1});
  e.feed({.kind = Event::Kind::kBoost, .boost = {TensorId(1), Sequence(1)}});
  EXPECT_EQ(e.order(ClassId(0)), (Order{{0, 0}, {0, 1}, {2, 0}, {2, 1}, {1, 0}, {1, 1}}));
}

TEST(Pick, OperationsStayUnder256KiBAndWithinTheCredit) {
  Plan plan = tensors_of_host_1({0.5F});
  plan.tensors[0].elements = 100'000;
  plan.tensors[0].slice_elements = 100'000;
  OneEngine e(plan);
  queue_all(e, {0});
  EXPECT_THAT(e.pick(ClassId(0), 1, kib(255)), IsEmpty());
  const std::vector<Send> first = e.pick(ClassId(0), 1, kib(300));
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].header.payload_bytes, kMaxOperation.value);
  const std::vector<Send> rest = e.pick(ClassId(0));
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].header.offset, kMaxOperation.value);
  EXPECT_EQ(rest[0].header.payload_bytes, 400'000 - kMaxOperation.value);
  EXPECT_FALSE(e->has_sends(Time(1), ClassId(0)));
}

// ---- staging ----

TEST(Staging, BulkLeavesRoomForUrgentAndIsGrantedByUrgency) {
  EngineConfig config = no_credit();
  config.staging = kMaxOperation * 3;
  Plan plan;
  for (std::uint32_t i = 0; i < 8; ++i) {  // even ones and what id + id / 2 makes even belong to host 0
    PlanTensor t = allreduce(kServer, Dtype::kFloat32, 64, 64);
    t.cls = ClassId(i == 7 ? 0 : 1);
    t.urgency = static_cast<float>(i) / 8;
    add(&plan, t);
  }
  OneEngine e(plan, config);
  std::vector<std::uint32_t> mine;
  for (std::uint32_t i = 0; i < 8; ++i) {
    if ((i + i / 2) % 2 == 0) mine.push_back(i);
  }
  ASSERT_EQ(mine, (std::vector<std::uint32_t>{0, 3, 4, 7}));
  const auto granted = [&] {
    std::vector<std::uint32_t> tensors;
    for (const Send& s : e.pick(kControlClass)) tensors.push_back(s.header.tensor.value);
    return tensors;
  };
  for (std::uint32_t i : {0, 3, 4}) {
    e.ready(i);
    ASSERT_EQ(e.frame(header(FrameType::kReady, i, 1, 0, 9)), "");
  }
  EXPECT_THAT(granted(), ElementsAre(0, 3));  // one page stays free for class 0
  e.ready(7);
  ASSERT_EQ(e.frame(header(FrameType::kReady, 7, 1, 0, 9)), "");
  EXPECT_THAT(granted(), ElementsAre(7));
  EXPECT_EQ(e->counters().staging_bytes, config.staging.value);
}

TEST(Staging, StaysWithinItsBoundOnABusyCluster) {
  for (Pattern pattern : {Pattern::kRing, kServer}) {
    Plan plan;
    for (std::uint32_t i = 0; i < 24; ++i) {
      PlanTensor t = allreduce(pattern, Dtype::kFloat32, 20'000, 700);
      t.cls = ClassId(static_cast<std::uint8_t>(i % 2));
      add(&plan, t);
    }
    ClusterOptions o;
    o.hosts = 4;
    o.config = no_credit();
    o.config.staging = kMaxOperation * 7;  // two groups of three, and one page
    Cluster c(o, plan);
    c.submit_all(2);
    ASSERT_TRUE(c.run());
    EXPECT_TRUE(c.all_done());
    for (std::size_t h = 0; h < 4; ++h) {
      EXPECT_LE(c.host(h).engine->counters().staging_peak_bytes, o.config.staging.value);
      EXPECT_GT(c.host(h).engine->counters().staging_peak_bytes, 0u);
    }
  }
}

// ---- abort ----

TEST(Abort, NothingIsSentAndPendingOperationsFailWhenDrained) {
  OneEngine e(tensors_of_host_1({0.5F, 0.5F, 0.5F}));
  queue_all(e, {0, 1});
  EXPECT_TRUE(e->has_sends(Time(1), ClassId(0)));
  EXPECT_THAT(e.feed({.kind = Event::Kind::kAbort}), IsEmpty());
  EXPECT_THAT(e.feed({.kind = Event::Kind::kAbort}), IsEmpty());
  EXPECT_THAT(e.pick(ClassId(0)), IsEmpty());
  EXPECT_FALSE(e->has_sends(Time(1), ClassId(0)));
  HostIndex peer;
  EXPECT_FALSE(e->next_flow(Time(1), ClassId(0), HostIndex(0), &peer));
  Work work;
  EXPECT_FALSE(e->pick_work(Time(0), &work));
  const auto landing = e->landing(HostIndex(1), data(0, 0, 12345, 0, 64));
  ASSERT_TRUE(landing.ok());
  EXPECT_EQ(landing->length, 0u);
  const std::vector<Action> late = e.ready(2);
  ASSERT_EQ(late.size(), 1u);
  EXPECT_FALSE(late[0].complete.ok);
  const std::vector<Action> failed = e.feed({.kind = Event::Kind::kDrained});
  ASSERT_EQ(failed.size(), 2u);
  for (const Action& a : failed) EXPECT_FALSE(a.complete.ok);
  EXPECT_FALSE(e->oldest().has_value());
}

TEST(Abort, AFullActionRingIsBackpressure) {
  const Plan plan = tensors_of_host_1({0.5F, 0.5F, 0.5F});
  EngineConfig config;
  config.hosts = 2;
  config.world_size = 2;
  Engine engine(config, Descriptor{0, 0, 0, Engine::staging_bytes(config).value});
  ASSERT_TRUE(engine.apply_plan(plan).ok());
  std::vector<Event> events(4);
  for (std::uint32_t i = 0; i < 3; ++i) {
    events[i].kind = Event::Kind::kTensorReady;
    events[i].tensor_ready = {TensorId(i), Sequence(1), {1 + i, 0, 0, 256}, {}};
  }
  events[3].kind = Event::Kind::kDrained;
  ActionRing one(1);
  EXPECT_EQ(engine.step(Time(1), events, one), 3u);
  EXPECT_EQ(one.size(), 1u);
  const Event drained = events[3];
  EXPECT_EQ(one.front().complete.tensor, TensorId(0));
  one.pop();
  EXPECT_EQ(engine.step(Time(1), {&drained, 1}, one), 0u);  // one more is to be told
  EXPECT_EQ(one.front().complete.tensor, TensorId(1));
  one.pop();
  EXPECT_EQ(engine.step(Time(1), {&drained, 1}, one), 1u);
  EXPECT_EQ(one.front().complete.tensor, TensorId(2));
}

// Wherever the abort strikes, every submitted operation ends exactly once.
TEST(Abort, StrikesAnywhereAndLeavesNobodyWaiting) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Plan plan;
    for (std::uint32_t i = 0; i < 6; ++i)
      add(&plan, allreduce(i % 2 == 0 ? Pattern::kRing : kServer, Dtype::kFloat32, 9000, 700));
    ClusterOptions o;
    o.hosts = 3;
    o.seed = seed;
    o.config.eager_credits = 2;
    Cluster c(o, plan);
    c.submit_all(2);
    c.run(seed * 37);
    for (std::size_t h = 0; h < 3; ++h) {
      c.feed(h, {.kind = Event::Kind::kAbort});
      c.step(h);
    }
    c.run(200);
    for (std::size_t h = 0; h < 3; ++h) {
      c.feed(h, {.kind = Event::Kind::kDrained});
      c.step(h);
      EXPECT_TRUE(c.host(h).running.empty()) << "seed " << seed << " host " << h;
      EXPECT_TRUE(c.host(h).errors.empty());
      EXPECT_EQ(c.host(h).engine->counters().operations_pending, 0u);
    }
  }
}

// ---- reports ----

TEST(Reports, EverySendSaysSinceWhenItMightGo) {
  Plan plan = two_tensors();
  plan.tensors[1].elements *= 4'000;  // operations of 256 KiB: more than one for a slice
  plan.tensors[1].slice_elements *= 4'000;
  OneEngine e(plan, no_credit());
  e.ready(1);
  const Time announced = e.now();
  e.ready(0);
  const std::vector<Send> control = e.pick(kControlClass);
  ASSERT_EQ(control.size(), 1u);
  EXPECT_EQ(control[0].eligible, announced);
  ASSERT_EQ(e.frame(header(FrameType::kGrant, 1, 1, 0, 5)), "");
  const Time granted = e.now();
  e.feed({.kind = Event::Kind::kBoost, .boost = {TensorId(1), Sequence(1)}});
  const std::vector<Send> first = e.pick(ClassId(0), 1, kib(256));
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].eligible, granted);
  const std::vector<Send> rest = e.pick(ClassId(0));
  ASSERT_FALSE(rest.empty());
  for (const Send& s : rest) EXPECT_EQ(s.eligible, granted);
}

TEST(Reports, OldestIsTheFirstSubmittedThatIsNotComplete) {
  OneEngine e(tensors_of_host_1({0.5F, 0.5F}));
  EXPECT_FALSE(e->oldest().has_value());
  e.ready(1);
  const Time submitted = e.now();
  e.ready(0);
  ASSERT_TRUE(e->oldest().has_value());
  EXPECT_EQ(e->oldest()->tensor, TensorId(1));
  EXPECT_EQ(e->oldest()->since, submitted);
  EXPECT_EQ(e->counters().operations_pending, 2u);
  ASSERT_EQ(e.frame(header(FrameType::kReady, 1, 1, 0, 9)), "");
  for (const Send& s : e.pick(ClassId(0))) e.feed({.kind = Event::Kind::kSendDone, .token = s.token});
  EXPECT_EQ(e->oldest()->tensor, TensorId(0));
  EXPECT_THAT(e->missing(TensorId(0)), ElementsAre(HostIndex(1)));
  EXPECT_THAT(e->missing(TensorId(1)), IsEmpty());
}

// ---- plans ----

TEST(ApplyPlan, RefusesWhatCannotBeAndSaysWhere) {
  EngineConfig config;
  config.hosts = 2;
  config.world_size = 2;
  const auto refused = [&](auto&& spoil) {
    Engine engine(config, Descriptor{0, 0, 0, Engine::staging_bytes(config).value});
    Plan plan = two_tensors();
    spoil(plan);
    return engine.apply_plan(plan).to_string();
  };
  EXPECT_EQ(refused([](Plan&) {}), "ok");
  EXPECT_THAT(refused([](Plan& p) { p.tensors[1].elements = 0; }),
              HasSubstr("0 elements: tensor 1 '1' of the plan: use 1 to 4294967296"));
  EXPECT_THAT(refused([](Plan& p) { p.tensors[1].elements = std::uint64_t{1} << 33; }),
              HasSubstr("8589934592 elements"));
  EXPECT_THAT(refused([](Plan& p) { p.tensors[1].cls = ClassId(2); }), HasSubstr("class 2 of 2"));
  EXPECT_THAT(refused([](Plan& p) { p.tensors[1].urgency = 1.5F; }), HasSubstr("urgency 1.5"));
  EXPECT_THAT(refused([](Plan& p) { p.tensors[1].urgency = std::nanf(""); }), HasSubstr("urgency nan"));
  EXPECT_THAT(refused([](Plan& p) { p.tensors[1].slice_elements = 0; }), HasSubstr("slices of no elements"));
  EXPECT_THAT(refused([](Plan& p) { p.tensors[1].id = TensorId(7); }), HasSubstr("position 1"));
  EXPECT_THAT(refused([](Plan& p) {
                p.tensors[0].operation = Operation::kBroadcast;
                p.tensors[0].root = HostIndex(2);
              }),
              HasSubstr("root host 2 of 2"));
  EXPECT_THAT(refused([](Plan& p) { p.tensors[0].operation = Operation::kAllgather; }), HasSubstr("hosts of 0 ranks"));
  EXPECT_THAT(refused([](Plan& p) {
                p.tensors[0].operation = Operation::kAllgather;
                p.tensors[0].elements = 65;
                p.rank_hosts = {HostIndex(0), HostIndex(1)};
              }),
              HasSubstr("65 gathered elements for 2 ranks"));
  EXPECT_THAT(refused([](Plan& p) {
                p.tensors[0].elements = 1 << 26;
                p.tensors[0].slice_elements = 16;
              }),
              HasSubstr("more than 131072 slices"));
  // An operation each for the bits of a word (grants.h).
  EXPECT_THAT(refused([](Plan& p) { p.tensors[0].elements = p.tensors[0].slice_elements = (4 << 20) + 1; }),
              HasSubstr("slices of 16777220 bytes"));
}

TEST(ApplyPlan, RefusesSlicesThatStagingCannotHold) {
  EngineConfig config;
  config.hosts = config.world_size = 2;
  config.staging = mib(2);
  Engine engine(config, Descriptor{0, 0, 0, Engine::staging_bytes(config).value});
  Plan plan = two_tensors();
  plan.tensors[0].elements = plan.tensors[0].slice_elements = 2 << 20;
  EXPECT_THAT(engine.apply_plan(plan).what(), HasSubstr("of staging together"));
}

// Each class keeps what its largest slice takes, in whatever order tensors come, and what may come to be there.
TEST(ApplyPlan, CountsTheLargestSliceOfEveryClassThatATensorMayBeIn) {
  const auto applied = [](std::vector<std::pair<std::uint64_t, ClassId>> tensors, bool reclassifies) {
    EngineConfig config;
    config.hosts = config.world_size = 2;
    config.classes = 3;
    config.reclassifies = reclassifies;
    config.staging = Bytes(5 * kPageBytes);
    Engine engine(config, Descriptor{0, 0, 0, Engine::staging_bytes(config).value});
    Plan plan;
    for (const auto& [pages, cls] : tensors) {
      PlanTensor t{.pattern = kServer, .cls = cls};
      t.slice_elements = static_cast<std::uint32_t>(pages * kPageBytes / sizeof(float));
      t.elements = 2 * t.slice_elements;  // one slice for each host
      add(&plan, t);
      if (const Status status = engine.apply_plan(plan); !status.ok()) return status.what();
    }
    return std::string();
  };
  const char* const kTooMuch = "of staging together";
  EXPECT_EQ(applied({{4, ClassId(0)}, {1, ClassId(0)}, {1, ClassId(1)}}, false), "");
  EXPECT_THAT(applied({{4, ClassId(0)}, {1, ClassId(0)}, {2, ClassId(1)}}, false), HasSubstr(kTooMuch));
  EXPECT_THAT(applied({{2, ClassId(0)}}, true), HasSubstr(kTooMuch));
  EXPECT_EQ(applied({{1, ClassId(0)}}, true), "");
}

TEST(ApplyPlan, OnlyGrowsAndAFailureChangesNothing) {
  EngineConfig config;
  config.hosts = 2;
  config.world_size = 2;
  config.eager_credits = 0;
  Engine engine(config, Descriptor{0, 0, 0, Engine::staging_bytes(config).value});
  Plan plan = two_tensors();
  ASSERT_TRUE(engine.apply_plan(plan).ok());
  Plan shorter = plan;
  shorter.tensors.pop_back();
  EXPECT_THAT(engine.apply_plan(shorter).to_string(), HasSubstr("only add tensors"));
  Plan other = plan;
  other.tensors[0].slice_elements = 16;
  EXPECT_THAT(engine.apply_plan(other).to_string(), HasSubstr("differs from the plan before"));
  Plan too_much = plan;
  add(&too_much, allreduce(kServer, Dtype::kFloat32, 1 << 26, 16));
  EXPECT_EQ(engine.apply_plan(too_much).code(), Code::kResourceExhausted);
  add(&plan, allreduce(kServer, Dtype::kFloat32, 64, 32));
  add(&plan, {.operation = Operation::kBarrier});
  ASSERT_TRUE(engine.apply_plan(plan).ok());
  EXPECT_TRUE(engine.apply_plan(plan).ok());
  ActionRing actions(4);
  Event ready{.kind = Event::Kind::kTensorReady};
  ready.tensor_ready = {TensorId(3), Sequence(1), {}, {}};
  EXPECT_EQ(engine.step(Time(1), {&ready, 1}, actions), 1u);
  EXPECT_EQ(engine.counters().operations_pending, 1u);
}

}  // namespace
}  // namespace tensorlane::engine::testing
