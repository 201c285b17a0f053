// The engine's log: what is read is what was written, and nothing else passes.
#include "log_fixture.h"

namespace tensorlane::engine_log {
namespace {

using ::testing::HasSubstr;

std::vector<Event> one_of_each() {
  std::vector<Event> events(kEventKinds);
  for (std::uint8_t k = 0; k < kEventKinds; ++k) events[k].kind = static_cast<Event::Kind>(k);
  events[0].tensor_ready = {TensorId(3), Sequence(1ull << 40), {1, 0xffffffff, 3, ~0ull}, {5, 6, 7, 8}, true};
  protocol::FrameHeader& h = events[1].frame.header;
  events[1].frame.peer = HostIndex(65535);
  h = {protocol::FrameType::kCredit,
       5,
       ClassId(7),
       JobId(9),
       Epoch(8),
       262144,
       0xfffffff1,
       TensorId(2),
       Sequence(77),
       1ull << 63,
       4,
       0x80000000,
       0x12345678};
  events[2].token = ~0ull;
  events[3].token = 1;
  events[4].boost = {TensorId(0x7fffffff), Sequence(9)};
  events[5].offer = {TensorId(63)};
  events[6].up = {HostIndex(3)};
  events[9].part_ready = {TensorId(5), Sequence(6), 1ull << 40, 1ull << 41};
  return events;
}

void expect_same(const Event& a, const Event& b) {
  EXPECT_EQ(a.kind, b.kind);
  switch (a.kind) {
    case Event::Kind::kTensorReady:
      EXPECT_EQ(a.tensor_ready.tensor, b.tensor_ready.tensor);
      EXPECT_EQ(a.tensor_ready.sequence, b.tensor_ready.sequence);
      EXPECT_EQ(a.tensor_ready.buffer, b.tensor_ready.buffer);
      EXPECT_EQ(a.tensor_ready.fp32_scratch, b.tensor_ready.fp32_scratch);
      EXPECT_EQ(a.tensor_ready.in_parts, b.tensor_ready.in_parts);
      return;
    case Event::Kind::kPartReady:
      EXPECT_EQ(a.part_ready.tensor, b.part_ready.tensor);
      EXPECT_EQ(a.part_ready.sequence, b.part_ready.sequence);
      EXPECT_EQ(a.part_ready.offset, b.part_ready.offset);
      EXPECT_EQ(a.part_ready.elements, b.part_ready.elements);
      return;
    case Event::Kind::kFrameArrived:
      EXPECT_EQ(a.frame.peer, b.frame.peer);
      EXPECT_EQ(a.frame.header, b.frame.header);
      return;
    case Event::Kind::kSendDone:
    case Event::Kind::kWorkDone:
      EXPECT_EQ(a.token, b.token);
      return;
    case Event::Kind::kBoost:
      EXPECT_EQ(a.boost.tensor, b.boost.tensor);
      EXPECT_EQ(a.boost.sequence, b.boost.sequence);
      return;
    case Event::Kind::kOffer:
      EXPECT_EQ(a.offer.tensor, b.offer.tensor);
      return;
    case Event::Kind::kPeerUp:
      EXPECT_EQ(a.up.peer, b.up.peer);
      return;
    case Event::Kind::kAbort:
    case Event::Kind::kDrained:
      return;
  }
}

Descriptor staging_of(const engine::EngineConfig& config) {
  return {4, 2, 4096, engine::Engine::staging_bytes(config).value};
}

TEST(EngineLog, EveryRecordIsReadAsItWasWritten) {
  const auto log = std::make_shared<TestLog>();
  const auto recorder = recorder_to(log);
  const engine::EngineConfig config = config_of(1);
  recorder->begin(config, staging_of(config), 11);
  protocol::Plan plan = plan_of(3, protocol::Ordering::kNegotiated);
  plan.tensors[2].operation = Operation::kReduceScatter;
  plan.tensors[2].row = 5;
  plan.tensors[2].fp32_contributions = true;
  recorder->plan(plan, 12);
  recorder->priority(TensorId(2), 0.125F, ClassId(1), 13);
  // Times may lie anywhere, and go back.
  const std::vector<Event> events = one_of_each();
  const std::array<Time, 4> times{Time(-5), Time(std::numeric_limits<std::int64_t>::max()), Time(0),
                                  Time(std::numeric_limits<std::int64_t>::min())};
  for (std::size_t i = 0; i < events.size(); ++i) recorder->events(times[i % 4], std::span(events).subspan(i, 1), 14);
  recorder->pick(Time(6), {HostIndex(1), kControlClass}, Bytes(~0ull), 16, 3, 15);
  recorder->pick(Time(6), {HostIndex(1), kControlClass}, Bytes(1), 16, 0, 15);  // nothing: no record
  recorder->work(Time(7), 16);
  protocol::Plan more = plan_of(4, protocol::Ordering::kNegotiated);
  more.tensors[2] = plan.tensors[2];
  recorder->plan(more, 17);
  recorder->end(17);

  std::istringstream in(log->bytes);
  auto reader = Reader::open(in, "log");
  ASSERT_TRUE(reader.ok()) << reader.status().to_string();
  EXPECT_EQ(reader->header().job, "job");
  EXPECT_EQ(reader->header().host, "h0");
  EXPECT_EQ(reader->header().staging, staging_of(config));
  EXPECT_EQ(reader->header().config.job, config.job);
  EXPECT_EQ(reader->header().config.epoch, config.epoch);
  EXPECT_EQ(reader->header().config.limits, config.limits);
  EXPECT_TRUE(reader->header().config.reclassifies);
  Record record;
  const auto next = [&] {
    const auto there = reader->next(&record);
    EXPECT_TRUE(there.ok() && *there) << (there.ok() ? "the end" : there.status().to_string());
    return !record.is_event ? record.kind : RecordKind::kHeader;
  };
  EXPECT_EQ(next(), RecordKind::kPlan);
  EXPECT_EQ(reader->plan().hash(), plan.hash());
  EXPECT_EQ(reader->plan().tensors[2].name, "tensor 2");
  EXPECT_EQ(next(), RecordKind::kPriority);
  EXPECT_EQ(record.priority.urgency, 0.125F);
  for (std::size_t i = 0; i < events.size(); ++i) {
    next();
    EXPECT_TRUE(record.is_event);
    EXPECT_EQ(record.now, times[i % 4]);
    expect_same(record.event, events[i]);
  }
  EXPECT_EQ(next(), RecordKind::kPick);
  EXPECT_EQ(record.pick.flow, (engine::Flow{HostIndex(1), kControlClass}));
  EXPECT_EQ(record.pick.credit, Bytes(~0ull));
  EXPECT_EQ(record.pick.room, 16u);
  EXPECT_EQ(record.pick.picked, 3u);
  EXPECT_EQ(next(), RecordKind::kWork);
  EXPECT_EQ(record.now, Time(7));
  EXPECT_FALSE(reader->checkpoint());
  EXPECT_EQ(next(), RecordKind::kPlan);
  EXPECT_EQ(reader->plan().hash(), more.hash());
  ASSERT_TRUE(reader->checkpoint());
  EXPECT_EQ(reader->checkpoint()->digest, 17u);
  EXPECT_EQ(next(), RecordKind::kEnd);
  EXPECT_EQ(record.end, EndReason::kClosed);
  const auto there = reader->next(&record);
  EXPECT_TRUE(there.ok() && !*there);
  EXPECT_EQ(reader->cut_off(), 0u);
}

// Runs of two hosts in which everything happens that can.
struct Recorded {
  explicit Recorded(std::size_t iterations = 3) {
    pair.apply_plan(plan_of(2));
    pair.run();
    pair.apply_plan(plan_of(4));
    pair.engines[0]->set_priority(TensorId(1), 0.9F, ClassId(0));
    for (std::size_t i = 0; i < iterations; ++i) pair.run();
    EXPECT_EQ(pair.completed, 2 * (2 + 4 * iterations));
    pair.engines[0]->flush();
    for (std::size_t h = 0; h < 2; ++h) pair.begin(h, 3, 1 + iterations);
    pair.feed(0, {.kind = Event::Kind::kBoost, .boost = {TensorId(3), Sequence(1 + iterations)}});
    pair.feed(0, {.kind = Event::Kind::kAbort});
    pair.feed(0, {.kind = Event::Kind::kDrained});
    digest = pair.engines[0]->digest();
    pair.end();
  }
  const std::string& log() const { return pair.logs[0]->bytes; }
  Pair pair;
  std::uint64_t digest = 0;
};

TEST(EngineLog, ReplaysToTheSameDigest) {
  const Recorded run;
  const auto replay = replay_text(run.log());
  ASSERT_TRUE(replay.ok()) << replay.status().to_string();
  EXPECT_TRUE(replay->equal()) << replay->parting->why;
  EXPECT_EQ(replay->digest, run.digest);
  EXPECT_EQ(replay->plans, 2u);
  EXPECT_GT(replay->events, 100u);
  EXPECT_GT(replay->picks, 30u);
  EXPECT_GT(replay->work, 10u);
  EXPECT_EQ(replay->end, EndReason::kClosed);
  EXPECT_EQ(replay->cut_off, 0u);
}

TEST(EngineLog, NegotiationReplays) {
  Pair pair;
  pair.apply_plan(plan_of(2, protocol::Ordering::kNegotiated));
  for (std::size_t h = 0; h < 2; ++h) pair.feed(h, {.kind = Event::Kind::kOffer, .offer = {TensorId(1)}});
  pair.carry();
  for (std::size_t h = 0; h < 2; ++h) pair.begin(h, 1, 1);
  pair.carry();
  EXPECT_EQ(pair.completed, 2u);
  pair.end();
  for (const auto& log : pair.logs) {
    const auto replay = replay_text(log->bytes);
    ASSERT_TRUE(replay.ok()) << replay.status().to_string();
    EXPECT_TRUE(replay->equal()) << replay->parting->why;
  }
}

// Tensors go and others come in their places, and behind the last one.
struct Vacated {
  Vacated() {
    pair.apply_plan(plan_of(4));
    pair.run();
    pair.vacate({1, 2});
    pair.run();
    std::vector<protocol::PlanTensor> tensors = plan_of(4).tensors;
    for (protocol::PlanTensor& t : tensors) t.elements = 5000;
    pair.place({1, 1}, {tensors[1]});
    pair.run();
    pair.vacate({3, 1});
    tensors[2].id = TensorId(3);
    pair.place({3, 1}, {tensors[2]});
    pair.run();
    EXPECT_EQ(pair.completed, 2u * (4 + 2 + 3 + 3));
    digest = pair.engines[0]->digest();
    pair.end();
  }
  const std::string& log() const { return pair.logs[0]->bytes; }
  Pair pair;
  std::uint64_t digest = 0;
};

TEST(EngineLog, ReplaysAcrossTensorsThatGoAndOthersInTheirPlaces) {
  const Vacated run;
  for (const auto& log : run.pair.logs) {
    const auto replay = replay_text(log->bytes);
    ASSERT_TRUE(replay.ok()) << replay.status().to_string();
    EXPECT_TRUE(replay->equal()) << replay->parting->why;
    EXPECT_EQ(replay->plans, 3u);
  }
  EXPECT_EQ(replay_text(run.log())->digest, run.digest);
}

// The same log with one record changed (or left out, where `change` says false), checksums right.
std::string changed(const std::string& log, const std::function<bool(Record&)>& change) {
  std::istringstream in(log);
  auto reader = Reader::open(in, "log");
  EXPECT_TRUE(reader.ok());
  const auto copy = std::make_shared<TestLog>();
  const auto recorder = recorder_to(copy);
  recorder->begin(reader->header().config, reader->header().staging, 0xcbf29ce484222325ull);
  for (Record record; *reader->next(&record);) {
    if (change(record)) {
      if (record.is_event) {
        recorder->events(record.now, {&record.event, 1}, 0);
      } else if (record.kind == RecordKind::kPlan) {
        recorder->plan(reader->plan(), record.tensors, 0);
      } else if (record.kind == RecordKind::kVacate) {
        recorder->vacate(record.tensors, 0);
      } else if (record.kind == RecordKind::kPriority) {
        recorder->priority(record.priority.tensor, record.priority.urgency, record.priority.cls, 0);
      } else if (record.kind == RecordKind::kPick) {
        recorder->pick(record.now, record.pick.flow, record.pick.credit, record.pick.room, record.pick.picked, 0);
      } else if (record.kind == RecordKind::kWork) {
        recorder->work(record.now, 0);
      } else {
        recorder->end(reader->checkpoint()->digest);
      }
    }
    if (reader->checkpoint() && record.kind != RecordKind::kEnd) recorder->flush(reader->checkpoint()->digest);
  }
  return copy->bytes;
}

TEST(EngineLog, EveryChangedEventIsFound) {
  const Recorded run(1);
  const std::string same = changed(run.log(), [](Record&) { return true; });
  ASSERT_EQ(same, run.log());
  const std::size_t events = static_cast<std::size_t>(replay_text(same)->events);
  for (std::size_t wanted = 0; wanted < events; ++wanted) {
    std::size_t seen = 0;
    std::uint64_t number = 0;
    const std::string later = changed(run.log(), [&](Record& record) {
      if (record.is_event && seen++ == wanted) {
        record.now = record.now + nanoseconds(1);
        number = record.number;
      }
      return true;
    });
    const auto replay = replay_text(later);
    ASSERT_TRUE(replay.ok()) << replay.status().to_string();
    ASSERT_FALSE(replay->equal()) << wanted;
    EXPECT_GE(replay->parting->record, number);
    EXPECT_EQ(replay->parting->why, "the digests differ");
  }
  for (std::size_t wanted = 0; wanted < events; ++wanted) {
    std::size_t seen = 0;
    const std::string fewer = changed(run.log(), [&](Record& record) { return !record.is_event || seen++ != wanted; });
    const auto replay = replay_text(fewer);
    ASSERT_TRUE(replay.ok()) << replay.status().to_string();
    EXPECT_FALSE(replay->equal()) << wanted;
  }
}

TEST(EngineLog, WhatTheEngineCannotFollowIsSaid) {
  const Recorded run(1);
  const auto why = [&](const std::function<void(Record&)>& change) {
    const auto replay = replay_text(changed(run.log(), [&](Record& record) {
      change(record);
      return true;
    }));
    EXPECT_TRUE(replay.ok()) << replay.status().to_string();
    return replay->parting ? replay->parting->why : "equal";
  };
  const auto is = [](const Record& record, Event::Kind kind) { return record.is_event && record.event.kind == kind; };
  EXPECT_THAT(why([&](Record& r) {
                if (is(r, Event::Kind::kSendDone)) r.event.token += 1;
              }),
              HasSubstr("did not send"));
  EXPECT_THAT(why([&](Record& r) {
                if (is(r, Event::Kind::kWorkDone)) r.event.token ^= 1ull << 33;
              }),
              HasSubstr("did not give"));
  EXPECT_THAT(why([&](Record& r) {
                if (is(r, Event::Kind::kTensorReady)) r.event.tensor_ready.sequence = Sequence(2);
              }),
              HasSubstr("before the one before is over"));
  EXPECT_THAT(why([&](Record& r) {
                if (is(r, Event::Kind::kTensorReady)) r.event.tensor_ready.tensor = TensorId(9);
              }),
              HasSubstr("not in the plan"));
  EXPECT_THAT(why([&](Record& r) {
                if (is(r, Event::Kind::kTensorReady)) r.event.tensor_ready.buffer.length -= 4;
              }),
              HasSubstr("not the tensor's"));
  EXPECT_THAT(why([&](Record& r) {
                if (!r.is_event && r.kind == RecordKind::kPick) r.pick.picked += 1;
              }),
              HasSubstr("here it returns"));
  EXPECT_THAT(why([&](Record& r) {
                if (!r.is_event && r.kind == RecordKind::kPick) r.pick.flow.peer = HostIndex(2);
              }),
              HasSubstr("does not have"));
  EXPECT_THAT(why([&](Record& r) {
                if (!r.is_event && r.kind == RecordKind::kPriority) r.priority.cls = ClassId(2);
              }),
              HasSubstr("cannot take"));
  EXPECT_THAT(why([&](Record& r) {
                if (is(r, Event::Kind::kBoost)) r.event = {.kind = Event::Kind::kOffer, .offer = {TensorId(0)}};
              }),
              HasSubstr("nobody asked"));
  for (const std::uint16_t peer : {1, 5}) {
    EXPECT_THAT(why([&](Record& r) {
                  if (is(r, Event::Kind::kBoost)) r.event = {.kind = Event::Kind::kPeerUp, .up = {HostIndex(peer)}};
                }),
                HasSubstr("no neighbour, or again"));
  }
}

TEST(EngineLog, ATensorThatGoesTooSoonOrIsNotThereAnyMoreIsSaid) {
  const Vacated run;
  ASSERT_EQ(changed(run.log(), [](Record&) { return true; }), run.log());
  const auto why = [&](const std::function<void(Record&)>& change) {
    const auto replay = replay_text(changed(run.log(), [&](Record& record) {
      change(record);
      return true;
    }));
    if (!replay.ok()) return replay.status().to_string();
    return replay->parting ? replay->parting->why : "equal";
  };
  bool gone = false;
  EXPECT_THAT(why([&](Record& r) {
                gone = gone || (!r.is_event && r.kind == RecordKind::kVacate);
                if (gone && r.is_event && r.event.kind == Event::Kind::kTensorReady)
                  r.event.tensor_ready.tensor = TensorId(1);
              }),
              HasSubstr("not in the plan"));
  int begun = 0;  // the fifth is tensor 0's, the next one that of another tensor
  EXPECT_THAT(why([&](Record& r) {
                if (!r.is_event || r.event.kind != Event::Kind::kTensorReady || ++begun != 6) return;
                r.is_event = false;
                r.kind = RecordKind::kVacate;
                r.tensors = {0, 1};
              }),
              HasSubstr("this engine does not let tensors go: an operation is under way"));
  EXPECT_THAT(why([&](Record& r) {
                if (!r.is_event && r.kind == RecordKind::kVacate) r.tensors.count = ~0u;
              }),
              HasSubstr("cannot be read"));
}

TEST(EngineLog, EveryChangedByteIsFound) {
  const Recorded run(1);
  for (std::size_t i = 0; i < run.log().size(); ++i) {
    std::string bad = run.log();
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    const auto replay = replay_text(bad);
    // Of the file's head, only its last word means nothing.
    if (i >= kFileMark.size() + sizeof kVersion && i < kFileHeaderBytes) continue;
    ASSERT_FALSE(replay.ok()) << i;
    const bool version = i >= kFileMark.size() && i < kFileHeaderBytes;
    EXPECT_EQ(replay.status().code(), version ? Code::kVersionMismatch : Code::kCorrupt) << i;
    EXPECT_THAT(replay.status().where(), HasSubstr("test.tllog"));
  }
}

TEST(EngineLog, ALogThatWasCutOffIsReplayedAsFarAsItGoes) {
  const Recorded run(1);
  const auto whole = replay_text(run.log());
  const std::size_t head = kFileHeaderBytes + kBlockHeaderBytes;
  std::size_t without_tail = 0;
  for (std::size_t length = 0; length < run.log().size(); ++length) {
    const auto replay = replay_text(run.log().substr(0, length));
    if (!replay.ok()) {
      EXPECT_LT(length, head + 120) << "the header's block is longer than that";
      EXPECT_EQ(replay.status().code(), Code::kCorrupt);
      continue;
    }
    EXPECT_TRUE(replay->equal()) << length;
    EXPECT_FALSE(replay->end) << length;
    EXPECT_LT(replay->cut_off, length);
    EXPECT_LT(replay->records, whole->records);
    if (replay->cut_off == 0) ++without_tail;
  }
  EXPECT_EQ(without_tail, whole->checkpoints - 1);  // cut just behind a block, of all but the last
}

TEST(EngineLog, StopsAtItsLimit) {
  const Bytes limit = kib(200);
  Pair pair(limit);
  pair.apply_plan(plan_of(2));
  for (int i = 0; i < 1000; ++i) pair.run();
  EXPECT_EQ(pair.completed, 4000u);
  const TestLog& log = *pair.logs[0];
  ASSERT_EQ(log.stopped.size(), 1u);
  EXPECT_EQ(log.stopped[0].code(), Code::kResourceExhausted);
  EXPECT_GT(log.bytes.size(), limit.value * 6 / 10);
  EXPECT_LE(log.bytes.size(), limit.value + 64);
  pair.end();
  const auto replay = replay_text(log.bytes);
  ASSERT_TRUE(replay.ok()) << replay.status().to_string();
  EXPECT_TRUE(replay->equal());
  EXPECT_EQ(replay->end, EndReason::kFull);
}

TEST(EngineLog, AWriteErrorEndsTheLogAndNotTheJob) {
  Pair pair;
  pair.logs[0]->writes_left = 3;
  pair.apply_plan(plan_of(2));
  for (int i = 0; i < 1000; ++i) pair.run();
  EXPECT_EQ(pair.completed, 4000u);
  ASSERT_EQ(pair.logs[0]->stopped.size(), 1u);
  EXPECT_EQ(pair.logs[0]->stopped[0].what(), "the disk is full");
  const auto replay = replay_text(pair.logs[0]->bytes);
  ASSERT_TRUE(replay.ok()) << replay.status().to_string();
  EXPECT_TRUE(replay->equal());
  EXPECT_EQ(replay->checkpoints, 4u);  // of the header, and three blocks
  EXPECT_FALSE(replay->end);
}

// A plan that no block has room for.
TEST(EngineLog, APlanThatIsTooLongEndsTheLog) {
  Pair pair(kib(64));
  protocol::Plan plan = plan_of(2);
  plan.tensors[1].name.assign(100'000, 'x');
  pair.apply_plan(plan);
  pair.run();
  ASSERT_EQ(pair.logs[0]->stopped.size(), 1u);
  const auto replay = replay_text(pair.logs[0]->bytes);
  ASSERT_TRUE(replay.ok()) << replay.status().to_string();
  EXPECT_EQ(replay->end, EndReason::kFull);
  EXPECT_EQ(replay->plans, 0u);
}

TEST(EngineLog, ForeignFilesAreRefused) {
  EXPECT_THAT(replay_text("").status().what(), HasSubstr("no log of an engine"));
  EXPECT_THAT(replay_text(std::string(1000, 'x')).status().what(), HasSubstr("no log of an engine"));
  std::string later = Recorded(1).log();
  later[kFileMark.size()] = static_cast<char>(kVersion + 1);
  EXPECT_EQ(replay_text(later).status().code(), Code::kVersionMismatch);
  EXPECT_THAT(replay_text(later).status().what(), HasSubstr("version 8, this program reads version 7"));
}

TEST(EngineLog, AHeaderOfNoEngineIsRefused) {
  const auto refuses = [](const std::function<void(engine::EngineConfig&)>& spoil) {
    engine::EngineConfig config = config_of(0);
    const Descriptor staging = staging_of(config);
    spoil(config);
    const auto log = std::make_shared<TestLog>();
    const auto recorder = recorder_to(log);
    recorder->begin(config, staging, 0);
    const auto replay = replay_text(log->bytes);
    return !replay.ok() && replay.status().code() == Code::kCorrupt;
  };
  EXPECT_FALSE(refuses([](auto&) {}));
  EXPECT_TRUE(refuses([](auto& c) { c.hosts = 0; }));
  EXPECT_TRUE(refuses([](auto& c) { c.self = HostIndex(2); }));
  EXPECT_TRUE(refuses([](auto& c) { c.classes = 9; }));
  EXPECT_TRUE(refuses([](auto& c) { c.classes = 1; }));  // then the lowest has a limit
  EXPECT_TRUE(refuses([](auto& c) { c.rail = RailIndex(1); }));
  EXPECT_TRUE(refuses([](auto& c) { c.world_size = 0; }));
  EXPECT_TRUE(refuses([](auto& c) { c.eager_credits = 65; }));
  EXPECT_TRUE(refuses([](auto& c) { c.eager_limit = kMaxOperation + Bytes(1); }));
  EXPECT_TRUE(refuses([](auto& c) { c.staging = mib(8); }));  // more than there is
  EXPECT_TRUE(refuses([](auto& c) { c.staging = Bytes(1ull << 60); }));
  EXPECT_TRUE(refuses([](auto& c) { c.limits[0].burst = Bytes(0); }));
}

}  // namespace
}  // namespace tensorlane::engine_log
