// How a lane shares what there is between jobs, and what a wait that blocks changes.
#include <chrono>
#include <random>

#include "played_network.h"

namespace tensorlane::lane {
namespace {

using Sharing = PlayedNetwork;

struct Shape {
  std::uint16_t hosts;
  std::uint32_t slice_elements;
};

// Payload of the two jobs in one class, added up while both still have something to send.
struct Split {
  std::uint64_t first = 0, second = 0, apart = 0;
};
Split split(const std::vector<Left>& left, ClassId cls, std::uint64_t until) {
  Split s;
  for (const Left& l : left) {
    if (l.flow.cls != cls) continue;
    (l.flow.job == JobId(1) ? s.first : s.second) += l.header.payload_bytes;
    if (s.first >= until || s.second >= until) break;
    s.apart = std::max(s.apart, s.first > s.second ? s.first - s.second : s.second - s.first);
  }
  return s;
}

// Two jobs that call everything urgent (and have as much bulk): one with many peers and long operations, one with one
// peer and short ones. The network takes an irregular number of bytes at a time.
TEST_F(Sharing, JobsGetTheSameNumberOfBytesWhateverTheirPeersAndOperations) {
  std::mt19937 random(5);
  std::atomic<bool> open{false};
  start(windows(kib(700)), [&] { return open ? random() % (400 << 10) : 0; });
  const Shape shapes[] = {{6, 65536}, {2, 5000}};
  constexpr std::uint64_t kEach = 24 << 20;  // bytes to be sent per class
  std::vector<std::shared_ptr<Client>> clients;
  for (std::uint64_t j = 0; j < 2; ++j) {
    const std::uint64_t elements = kEach / sizeof(float) / (shapes[j].hosts - 1u);
    clients.push_back(add_job(JobId(j + 1), shapes[j].hosts, 1,
                              {tensor(Operation::kBroadcast, elements, shapes[j].slice_elements, kUrgent),
                               tensor(Operation::kBroadcast, elements, shapes[j].slice_elements, kBulk)})
                          .front());
    for (std::uint32_t t : {0u, 1u}) peers_ready(JobId(j + 1), shapes[j].hosts, t);
  }
  settle();
  // Both wait before anything is acknowledged; the window that the first one had alone is left out below.
  for (auto& client : clients) {
    client->submit({{0, 0, 1}, {1, 0, 1}});
    wait([&] { return client->arm_wake(); });
    settle();
    settle();
  }
  open = true;
  wait([&] { return clients[0]->completed().size() == 2 && clients[1]->completed().size() == 2; });
  std::vector<Left> left = transport_->left();
  const auto second = std::ranges::find_if(left, [](const Left& l) { return l.flow.job == JobId(2); });
  left.erase(left.begin(), second);
  for (ClassId cls : {kUrgent, kBulk}) {
    const Split s = split(left, cls, kEach / 2);
    EXPECT_GT(std::min(s.first, s.second), kEach / 2 - mib(1).value);
    EXPECT_LE(s.apart, (kMaxOperation * 2).value) << "class " << int{cls.value};
  }
  lane_->stop();  // it asks `open`
}

// What a job's limit keeps back goes in the next class, and nothing waits for it.
TEST_F(Sharing, WhatExceedsAJobsLimitIsDemotedAndCounted) {
  LaneConfig config = windows(mib(1));
  config.job_limits[0] = {BitsPerSecond(1'000'000), mib(2)};
  start(config);
  constexpr std::uint64_t kEach = 8 << 20;
  const auto client = add_job(JobId(1), 2, 1, {tensor(Operation::kBroadcast, kEach / 4, 65536)}).front();
  peers_ready(JobId(1), 2, 0);
  settle();
  client->submit({{0, 0, 1}});
  wait([&] { return client->completed().size() == 1; });
  std::map<ClassId, std::uint64_t> sent;
  for (const Left& l : transport_->left()) sent[l.flow.cls] += l.header.payload_bytes;
  EXPECT_GE(sent[kUrgent], mib(2).value);
  EXPECT_LE(sent[kUrgent], (mib(3)).value);  // 1 MiB takes eight seconds
  EXPECT_EQ(sent[kUrgent] + sent[kBulk], kEach);
  const auto jobs = metrics_.job_list.all();
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0]->name, "job1");
  EXPECT_EQ(jobs[0]->classes[0].bytes_sent.value(), sent[kUrgent]);
  EXPECT_EQ(jobs[0]->classes[1].bytes_sent.value(), sent[kBulk]);
  EXPECT_EQ(jobs[0]->classes[0].bytes_demoted.value(), sent[kBulk]);
}

// Urgent bytes that go while bulk has something to send are counted, whosever bulk it is; bytes that go alone, and bulk
// itself, are not.
TEST_F(Sharing, UrgentBytesThatMeetBulkAreCounted) {
  std::atomic<bool> open{true};
  start(windows(kib(700)), [&] { return open ? 400 << 10 : 0; });
  constexpr std::uint64_t kEach = 8 << 20;
  std::vector<std::shared_ptr<Client>> clients;
  for (const ClassId cls : {kUrgent, kBulk}) {
    const JobId job(cls.value + 1);
    clients.push_back(add_job(job, 2, 1, {2, tensor(Operation::kBroadcast, kEach / 4, 65536, cls)}).front());
    for (std::uint32_t t : {0u, 1u}) peers_ready(job, 2, t);
  }
  settle();
  const auto met = [&](ClassId cls) {
    for (const auto& job : metrics_.job_list.all())
      if (job->id == JobId(cls.value + 1)) return job->classes[cls.value].bytes_met.value();
    return ~std::uint64_t{0};
  };
  clients[0]->submit({{0, 0, 1}});
  wait([&] { return clients[0]->completed().size() == 1; });
  EXPECT_EQ(met(kUrgent), 0u) << "it went alone";
  open = false;  // what does not fit into the window of bulk waits
  clients[1]->submit({{0, 0, 1}});
  wait([&] { return clients[1]->arm_wake(); });
  settle();
  clients[0]->submit({{1, 0, 1}});
  wait([&] { return clients[0]->arm_wake(); });
  settle();
  open = true;
  wait([&] { return clients[0]->completed().size() == 2 && clients[1]->completed().size() == 1; });
  EXPECT_EQ(met(kUrgent), kEach);
  EXPECT_EQ(met(kBulk), 0u);
  lane_->stop();  // it asks `open`
}

// Bulk that waits on one rail has nothing to do with what goes over another one.
TEST_F(Sharing, UrgentBytesMeetTheBulkOfTheirOwnRailAlone) {
  LaneConfig config = windows(kib(700));
  config.rails.resize(2, config.rails[0]);
  start(config);
  constexpr std::uint64_t kEach = 8 << 20;  // half of it on each rail
  const auto whole = [](ClassId cls) { return tensor(Operation::kBroadcast, kEach / 4, 65536, cls); };
  const auto urgent = add_job(JobId(1), 2, 1, {whole(kUrgent)}).front();
  const auto bulk = add_job(JobId(2), 2, 1, {whole(kBulk)}).front();
  for (const JobId job : {JobId(1), JobId(2)}) peers_ready(job, 2, 0);
  settle();
  transports_[1]->stand(JobId(2));
  bulk->submit({{0, 0, 1}});
  const auto sent_over_first = [&] { return metrics_.rails[0].bytes_sent[kBulk.value].value(); };
  wait([&] { return sent_over_first() == kEach / 2; });
  settle();
  urgent->submit({{0, 0, 1}});
  wait([&] { return urgent->completed().size() == 1; });
  for (const auto& job : metrics_.job_list.all()) {
    if (job->id != JobId(1)) continue;
    EXPECT_EQ(job->classes[kUrgent.value].bytes_sent.value(), kEach);
    EXPECT_EQ(job->classes[kUrgent.value].bytes_met.value(), kEach / 2);
  }
  transports_[1]->move(JobId(2));
  wait([&] { return bulk->completed().size() == 1; });
}

// Nothing but the limit wakes the lane here: announcements go, later, without anything else happening.
TEST_F(Sharing, ControlFramesAreCappedInRateAndAllGo) {
  LaneConfig config = windows(mib(1));
  config.rails[0].control_limit = {BitsPerSecond(1'000'000), kib(4)};
  start(config);
  constexpr std::uint32_t kTensors = 300;  // of 64 bytes each: 19,200 bytes, 121 ms beyond the burst
  std::vector<protocol::PlanTensor> tensors(kTensors, tensor(Operation::kAllreduce, 40'000, 65536));
  const auto client = add_job(JobId(1), 2, 1, tensors).front();
  std::vector<protocol::SubmissionEntry> entries;
  for (std::uint32_t t = 0; t < kTensors; ++t) entries.push_back({t, 0, 1});
  const auto begin = std::chrono::steady_clock::now();
  client->submit(entries);
  wait([&] { return transport_->left().size() == kTensors; });
  const auto passed = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(passed, 110ms);
  EXPECT_LE(passed, 2s);
}

// Law 9, before the network: a wait that blocks boosts the local work, too, even before the last rank has submitted.
TEST_F(Sharing, AWaitThatBlocksBoostsLocalWork) {
  start(windows(mib(1)));
  const auto clients = add_job(JobId(1), 1, 2, {3, tensor(Operation::kAllreduce, 1 << 20, 65536)});
  clients[0]->submit({{0, 0, 1}, {1, 0, 1}, {2, 0, 1}});
  clients[0]->submit({{2, protocol::kFlagBoost, 1}});
  wait([&] { return clients[0]->arm_wake(); });
  settle();
  clients[1]->submit({{0, 0, 1}, {1, 0, 1}, {2, 0, 1}});
  wait([&] { return clients[1]->completed().size() == 3; });
  EXPECT_THAT(clients[1]->completed(), ::testing::ElementsAre(2, 0, 1));
  // Once: the next operation is like any other.
  clients[0]->submit({{0, 0, 2}, {1, 0, 2}, {2, 0, 2}});
  wait([&] { return clients[0]->arm_wake(); });
  settle();
  clients[1]->submit({{0, 0, 2}, {1, 0, 2}, {2, 0, 2}});
  wait([&] { return clients[1]->completed().size() == 6; });
  EXPECT_THAT(clients[1]->completed(), ::testing::ElementsAre(2, 0, 1, 0, 1, 2));
}

// ... and what came too early for the engine is boosted when the engine has it.
TEST_F(Sharing, AWaitThatBlocksBeforeTheNetworkBoostsOnIt) {
  std::atomic<bool> open{false};
  start(windows(kib(256)), [&open] { return open ? kib(256).value : 0; });
  const auto clients = add_job(JobId(1), 2, 2, {3, tensor(Operation::kBroadcast, 3 << 18, 65536)});
  for (std::uint32_t t : {0u, 1u, 2u}) peers_ready(JobId(1), 2, t);
  clients[0]->submit({{0, 0, 1}, {1, 0, 1}, {2, 0, 1}, {2, protocol::kFlagBoost, 1}});
  clients[1]->submit({{0, 0, 1}, {1, 0, 1}});
  wait([&] { return !transport_->left().empty(); });  // the window is full
  clients[1]->submit({{2, 0, 1}});
  wait([&] { return clients[1]->arm_wake(); });
  settle();
  settle();
  open = true;
  wait([&] { return transport_->left().size() >= 12 * 3; });
  std::vector<std::uint32_t> order;
  for (const Left& l : transport_->left()) {
    if (order.empty() || order.back() != l.header.tensor.value) order.push_back(l.header.tensor.value);
  }
  EXPECT_THAT(order, ::testing::ElementsAre(0, 2, 0, 1));
  lane_->stop();  // it asks `open`
}

// Users share, not jobs: three jobs of one user get together what the one of the other gets.
TEST_F(Sharing, UsersGetTheSameNumberOfBytesHoweverManyJobsTheyHave) {
  std::atomic<bool> open{false};
  start(windows(kib(512)), [&] { return open ? kib(128).value : 0; });
  constexpr std::uint64_t kEach = 8 << 20;
  std::vector<std::shared_ptr<Client>> clients;
  for (std::uint64_t j = 1; j <= 4; ++j) {
    clients.push_back(
        add_job(JobId(j), 2, 1, {tensor(Operation::kBroadcast, kEach / sizeof(float), 65536)}, j == 1 ? 3001 : 3002)
            .front());
    peers_ready(JobId(j), 2, 0);
  }
  settle();
  for (auto& client : clients) {
    client->submit({{0, 0, 1}});
    wait([&] { return client->arm_wake(); });
  }
  settle();
  settle();
  open = true;
  wait([&] { return std::ranges::all_of(clients, [](const auto& c) { return c->completed().size() == 1; }); });
  std::map<JobId, std::uint64_t> sent;
  for (const Left& l : transport_->left()) {
    sent[l.flow.job] += l.header.payload_bytes;
    if (sent[JobId(1)] == kEach) break;
  }
  const std::uint64_t others = sent[JobId(2)] + sent[JobId(3)] + sent[JobId(4)];
  EXPECT_GE(others, kEach - mib(2).value);
  EXPECT_LE(others, kEach + mib(2).value);
  for (std::uint64_t j = 2; j <= 4; ++j) EXPECT_GE(sent[JobId(j)], kEach / 3 - mib(1).value) << "job " << j;
  lane_->stop();
}

// What takes the lane's time counts, not bytes alone: thousands of small operations that become ready at once do not go
// before another user's first one.
TEST_F(Sharing, ThousandsOfSmallOperationsLeaveOthersTheirTurn) {
  start(windows(mib(16)));
  constexpr std::uint32_t kSmall = 2000;
  const auto flood = add_job(JobId(1), 2, 1, {kSmall, tensor(Operation::kBroadcast, 16, 65536)}, 3002).front();
  const auto other = add_job(JobId(2), 2, 1, {tensor(Operation::kBroadcast, 1 << 20, 65536)}, 3001).front();
  std::vector<protocol::SubmissionEntry> entries;
  std::vector<Left> at_once;
  for (std::uint32_t t = 0; t < kSmall; ++t) {
    entries.push_back({t, 0, 1});
    at_once.push_back(ready(JobId(1), HostIndex(1), t));
  }
  at_once.push_back(ready(JobId(2), HostIndex(1), 0));
  flood->submit(entries);
  other->submit({{0, 0, 1}});
  wait([&] { return flood->arm_wake() && other->arm_wake(); });
  settle();
  settle();
  transport_->announce_at_once(std::move(at_once));
  settle();  // wakes it
  wait([&] { return flood->completed().size() == kSmall && other->completed().size() == 1; });
  std::size_t before = 0;  // operations of the flood before the other's next one
  std::size_t most = 0;
  for (const Left& l : transport_->left()) {
    if (l.header.payload_bytes == 0) continue;
    before = l.flow.job == JobId(2) ? 0 : before + 1;
    if (l.flow.job == JobId(2) && l.header.offset + l.header.payload_bytes == mib(4).value) break;
    most = std::max(most, before);
  }
  EXPECT_LE(most, 2 * kMaxOperation.value / 4096);
  EXPECT_GT(most, 0u);
  lane_->stop();
}

protocol::FrameHeader eager(JobId job, std::uint32_t tensor, std::uint32_t slot) {
  return {.type = FrameType::kData,
          .flags = protocol::kFlagEager,
          .cls = kUrgent,
          .job = job,
          .epoch = kEpoch,
          .payload_bytes = 4096,
          .grant = slot + 1,
          .tensor = TensorId(tensor),
          .sequence = Sequence(1),
          .aux = 1};
}

// Law 9: a sum of another job's bulk that could have been next hides nothing more urgent. Both jobs' tensors are those
// of two that host 0 owns.
TEST_F(Sharing, ABulkSumThatIsNextHidesNoUrgentOneOfItsJob) {
  LaneConfig config;
  config.rails = {{{mib(1), mib(1), mib(1)}, {}}};
  config.staging = mib(8);
  start(config);
  const auto sum = [](std::uint8_t cls) { return tensor(Operation::kAllreduce, 1024, 1024, ClassId(cls)); };
  const auto first = add_job(JobId(1), 2, 1, std::vector(30, sum(1))).front();
  const auto second = add_job(JobId(2), 2, 1, {sum(2), sum(2), sum(2), sum(0)}).front();
  std::vector<protocol::SubmissionEntry> entries;
  std::vector<Left> bulk;
  for (std::uint32_t i = 0; i < 30; ++i) {
    if ((i + i / 2) % 2 != 0) continue;  // owned by host 1
    bulk.push_back({{JobId(1), HostIndex(1), kUrgent}, eager(JobId(1), i, static_cast<std::uint32_t>(bulk.size()))});
    entries.push_back({i, 0, 1});
  }
  first->submit(entries);
  second->submit({{0, 0, 1}, {3, 0, 1}});
  wait([&] { return first->arm_wake() && second->arm_wake(); });
  settle();
  settle();
  const std::size_t sums = entries.size() + 2;
  bulk.push_back({{JobId(2), HostIndex(1), kUrgent}, eager(JobId(2), 0, 0)});
  transport_->announce_at_once(std::move(bulk));
  transport_->announce_at_once({{{JobId(2), HostIndex(1), kUrgent}, eager(JobId(2), 3, 1)}});
  settle();
  const auto done = [&] {
    std::lock_guard lock(timeline_.mutex);
    return timeline_.sums.size();
  };
  wait([&] { return done() == sums; });
  lane_->stop();
  const auto urgent = std::ranges::find(timeline_.sums, ClassId(0), &ports::TraceSpan::cls);
  EXPECT_LE(urgent - timeline_.sums.begin(), 4) << "what was done before the urgent sum was there";
  EXPECT_EQ(timeline_.sums.back().cls, ClassId(2));
}

// Others give the lane commands faster than it carries them out.
TEST_F(Sharing, ThousandsOfCommandsAreTakenABoundedNumberInATurn) {
  start(windows(mib(1)));
  const auto client = add_job(JobId(1), 1, 1, {tensor(Operation::kAllreduce, 1000, 1024)}).front();
  protocol::Plan more = plans_[JobId(1)];
  more.version = 2;
  more.tensors.push_back(tensor(Operation::kAllreduce, 1000, 1024));
  more.tensors.back().id = TensorId(1);
  put_in_force(JobId(1), more);
  constexpr std::uint32_t kCommands = 60'000;
  std::atomic<std::uint32_t> ran{0};
  std::map<std::uint64_t, std::uint32_t> of_turn;  // commands, by the number of the turn
  std::uint32_t most = 0;                          // the lane's, like these, until all have run
  const auto run = [&] {
    most = std::max(most, ++of_turn[transport_->turn_number()]);
    ++ran;
  };
  while_it_stands([&] {
    for (std::uint32_t i = 0; i < kCommands; ++i) ASSERT_TRUE(lane_->apply_plan(kNoJob, {}, run).ok());
    // Its client knows that this tensor is registered, and submits it while the command is the last of them.
    ASSERT_TRUE(lane_->bind(JobId(1), Rank(0), TensorId(1), {0, 0, 4000}).ok());
    client->submit({{1, 0, 1}, {0, 0, 1}});
    transport_->watch_turns();
  });
  wait([&] { return ran == kCommands; });
  EXPECT_LT(most, kCommands / 8);
  // Sanitizers make single turns long, by processor time, for reasons of their own.
  EXPECT_LT(transport_->longest_turn(), transport_->turns() / 2);
  wait([&] { return client->completed().size() == 2; });
}

// Thousands of small tensors that travel in batches are registered together.
TEST_F(Sharing, APlanOfBatchesGrowsInStepsToo) {
  start(windows(mib(1)));
  add_job(JobId(1), 2, 1, {tensor(Operation::kAllreduce, 1000, 1024)});
  constexpr std::uint32_t kMembers = 8000, kInBatch = 100, kFirst = 1;
  protocol::Plan more = plans_[JobId(1)];
  more.version = 2;
  for (std::uint32_t i = 0; i < kMembers + kMembers / kInBatch; ++i) {
    protocol::PlanTensor& t = more.tensors.emplace_back(tensor(Operation::kAllreduce, 16, 1024));
    t.id = TensorId(kFirst + i);
    if (i < kMembers) {
      t.batch = kFirst + kMembers + i / kInBatch;
      t.batch_offset = i % kInBatch * 16;
    } else {
      t.members = kInBatch;
      t.elements = kInBatch * 16;
    }
  }
  transport_->watch_turns();
  put_in_force(JobId(1), more);
  settle();  // that turn is counted by the next one
  EXPECT_LT(transport_->longest_turn(), transport_->turns() / 2);
}

// A plan that changes a little may change the urgency and class of all its tensors.
TEST_F(Sharing, AChangeOfALargePlanGoesOverItInSteps) {
  LaneConfig config = windows(mib(1));
  config.observes = config.tunes = true;
  start(config);
  add_job(JobId(1), 2, 1, {tensor(Operation::kAllreduce, 1000, 1024)});
  const auto add = [&](std::uint32_t first, std::uint32_t count, std::uint64_t elements) {
    protocol::Plan more = plans_[JobId(1)];
    more.version = first + 1;
    for (std::uint32_t i = 0; i < count; ++i) {
      more.tensors.push_back(tensor(Operation::kAllreduce, elements, 1024));
      more.tensors.back().id = TensorId(first + i);
    }
    put_in_force(JobId(1), more);
  };
  constexpr std::uint32_t kRest = 60'000;
  add(1, kRest, 1000);
  transport_->watch_turns();
  add(1 + kRest, 1, 2000);
  settle();
  EXPECT_LT(transport_->longest_turn(), transport_->turns() / 4 * 3) << "one joins";
  transport_->watch_turns();
  std::promise<void> gone;
  ASSERT_TRUE(lane_->vacate(JobId(1), kRest + 3, {1 + kRest, 1}, [&] { gone.set_value(); }).ok());
  gone.get_future().wait();
  settle();
  EXPECT_LT(transport_->longest_turn(), transport_->turns() / 4 * 3) << "the largest leaves";
}

// Two users' sums inside the host: of sixteen ranks, and of two.
TEST_F(Sharing, LocalSumsShareTheLaneByBytesHoweverManyRanksAJobHas) {
  start(windows(mib(1)));
  const auto many = add_job(JobId(1), 1, 16, {tensor(Operation::kAllreduce, 1 << 18, 1 << 18)}, 3001);
  const auto few = add_job(JobId(2), 1, 2, {tensor(Operation::kAllreduce, 1 << 21, 1 << 18)}, 3002);
  while_it_stands([&] {
    for (const auto& clients : {many, few}) {
      for (const auto& client : clients) client->submit({{0, 0, 1}});
    }
  });
  wait([&] { return many.back()->completed().size() == 1 && few.back()->completed().size() == 1; });
  lane_->stop();
  std::uint64_t of_many = 0, of_few = 0, apart = 0;
  for (const ports::TraceSpan& span : timeline_.sums) {
    EXPECT_LE(span.bytes, 2 * kMaxOperation.value) << "read and written by one block";
    (span.job == JobId(1) ? of_many : of_few) += span.bytes;
    if (of_many >= mib(16).value || of_few >= mib(16).value) break;
    apart = std::max(apart, of_many > of_few ? of_many - of_few : of_few - of_many);
  }
  EXPECT_GE(of_many, mib(12).value);
  EXPECT_GE(of_few, mib(12).value);
  EXPECT_LE(apart, 4 * kMaxOperation.value);
}

// Law 17: what is registered and rests takes no time of the lane.
TEST_F(Sharing, TensorsThatRestCostNoTime) {
  start(windows(mib(1)));
  ports::JobSpec spec;
  spec.name = "resting";
  spec.detection = milliseconds(100);
  spec.hosts.push_back({"h0", {"127.0.0.1"}, 1, {Rank(0)}});
  spec.credentials = {JobId(1), kEpoch, HostIndex(0), {}};
  ASSERT_TRUE(lane_->start_job(spec).ok());
  protocol::Plan plan;
  plan.version = 1;
  plan.rank_hosts = {HostIndex(0)};
  put_in_force(JobId(1), plan);
  const auto spent = [&] {
    std::this_thread::sleep_for(300ms);
    const std::uint64_t before = metrics_.cpu_ns.value();
    std::this_thread::sleep_for(1000ms);
    return metrics_.cpu_ns.value() - before;
  };
  const std::uint64_t alone = spent();
  for (std::uint32_t i = 0; i < 200'000; ++i) {
    plan.tensors.push_back(tensor(Operation::kAllreduce, 1000, 1024));
    plan.tensors.back().id = TensorId(i);
  }
  ++plan.version;
  put_in_force(JobId(1), plan);
  EXPECT_LT(spent(), 2 * alone + 4'000'000);
}

}  // namespace
}  // namespace tensorlane::lane
