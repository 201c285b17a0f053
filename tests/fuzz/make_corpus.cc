// Writes the seeds of the fuzzers: make_corpus FOLDER. RDMA's are written by make_rdma_corpus, those of fabric files by
// hand.
#include <cstring>

#include "common/protocol/frame.h"
#include "common/protocol/session.h"
#include "corpus.h"
#include "daemon/control/agreement.h"
#include "daemon/control/job_progress.h"
#include "daemon/control/message.h"
#include "daemon/control/registration.h"
#include "daemon/control/rendezvous.h"
#include "daemon/engine_log/recorder.h"

namespace tensorlane::fuzz {
namespace {

using nlohmann::json;
using protocol::FrameHeader;
using protocol::FrameType;
using FrameBytes = std::array<std::byte, protocol::kFrameHeaderBytes>;

FrameBytes encoded(const FrameHeader& header) {
  FrameBytes bytes;
  protocol::encode_frame(header, bytes);
  return bytes;
}

FrameHeader header_of(FrameType type) {
  FrameHeader header;
  header.type = type;
  header.cls = ClassId(1);
  header.job = JobId(0x1122334455667788);
  header.epoch = Epoch(7);
  header.grant = 0x100001;
  header.tensor = TensorId(3);
  header.sequence = Sequence(4);
  return header;
}

void write_frames(const Corpus& corpus) {
  const auto write = [&](const std::string& name, const FrameHeader& header) {
    corpus.write(name, Seed().add(encoded(header)));
  };
  write("ready", header_of(FrameType::kReady));
  write("rts", header_of(FrameType::kRts));
  write("grant", header_of(FrameType::kGrant));
  write("credit", header_of(FrameType::kCredit));
  FrameHeader data = header_of(FrameType::kData);
  data.payload_bytes = static_cast<std::uint32_t>(kMaxOperation.value);
  write("data_longest", data);
  data.flags = protocol::kFlagPayloadCrc | protocol::kFlagEager;
  write("data_eager", data);
  data.payload_bytes += 1;
  write("data_too_long", data);
  FrameHeader ready = header_of(FrameType::kReady);
  ready.payload_bytes = 1;
  write("ready_with_payload", ready);
  FrameBytes bytes = encoded(header_of(FrameType::kRts));
  bytes[4] = std::byte{2};
  corpus.write("version_2", Seed().add(bytes));
  corpus.write("short", Seed().add_bytes(std::span(bytes).first(20)));
}

// Records of local_flow_fuzzer.cc.
class LocalPeer {
 public:
  static constexpr std::uint8_t kTrueCrc = 2, kTrueLength = 4, kStays = 8, kThere = 16;
  enum Kind : std::uint8_t { kPut, kFrame, kProduced, kConsumed, kScribble, kReads, kHangUp, kSend, kTurn };

  LocalPeer& frame(std::uint8_t flags, std::uint8_t frame_flags, std::uint32_t bytes, std::uint16_t payload) {
    seed_.add(kFrame).add(flags).add(FrameType::kData).add(frame_flags).add(bytes);
    seed_.add(std::uint8_t{1}).add(std::uint8_t{0}).add(std::uint32_t{0}).add(payload).fill(payload, 0x5a);
    return *this;
  }
  template <typename... Values>
  LocalPeer& act(Kind kind, const Values&... values) {
    seed_.add(kind);
    (seed_.add(values), ...);
    return *this;
  }
  const Seed& seed() const { return seed_; }

 private:
  Seed seed_;
};

void write_local(const Corpus& corpus) {
  using P = LocalPeer;
  constexpr std::uint8_t kCrc = protocol::kFlagPayloadCrc;
  const auto frame = [](std::uint8_t flags, std::uint32_t bytes, std::uint16_t payload) {
    return P().frame(flags, flags & P::kTrueCrc ? kCrc : std::uint8_t{0}, bytes, payload);
  };
  const std::uint32_t large = 65536;
  corpus.write("frame", frame(P::kTrueLength | P::kTrueCrc, 0, 100).act(P::kTurn).seed());
  corpus.write("frame_in_pieces", frame(0, 5000, 1000).act(P::kTurn).act(P::kHangUp).act(P::kTurn).seed());
  corpus.write("stays", frame(P::kStays | P::kThere, large, 0).act(P::kTurn).seed());
  corpus.write("stays_nowhere", frame(P::kStays, large, 0).act(P::kTurn).seed());
  corpus.write("impossible_count", P().act(P::kProduced, ~std::uint64_t{0}).act(P::kTurn).seed());
  corpus.write(
      "sent_and_taken",
      P().act(P::kSend, std::uint32_t{100}).act(P::kTurn).act(P::kConsumed, std::uint16_t{180}).act(P::kTurn).seed());
  corpus.write("sent_and_read_in_place", P().act(P::kReads, std::uint32_t{1})
                                             .act(P::kSend, large)
                                             .act(P::kTurn)
                                             .act(P::kConsumed, std::uint16_t{80})
                                             .act(P::kTurn)
                                             .seed());
}

// Records of tcp_flow_fuzzer.cc.
class TcpScript {
 public:
  static constexpr std::uint8_t kForeign = 1, kTrueCrc = 2, kTrueLength = 4;
  TcpScript& frame(const FrameHeader& header, std::size_t payload, std::uint8_t flags = kTrueCrc | kTrueLength) {
    seed.add(std::uint8_t{0}).add(flags).add(encoded(header)).add(static_cast<std::uint16_t>(payload));
    seed.fill(payload, 0x61);
    return *this;
  }
  TcpScript& bytes(std::size_t count) {
    seed.add(std::uint8_t{1}).add(static_cast<std::uint16_t>(count)).fill(count, 0x54);
    return *this;
  }
  TcpScript& split() {
    seed.add(std::uint8_t{2});
    return *this;
  }
  Seed seed;
};

void write_tcp(const Corpus& corpus) {
  FrameHeader data = header_of(FrameType::kData), crc = data, dropped = data, ready = header_of(FrameType::kReady);
  crc.flags = protocol::kFlagPayloadCrc;
  dropped.grant = 3;
  const auto slice = [&](std::uint32_t value) {
    FrameHeader header = data;
    header.slice = value;
    return header;
  };
  corpus.write("control", TcpScript().frame(ready, 0).split().frame(header_of(FrameType::kCredit), 0).seed);
  corpus.write("data", TcpScript().frame(crc, 300).split().frame(data, 5).frame(ready, 0).seed);
  corpus.write("data_in_halves", TcpScript().frame(data, 20).frame(crc, 9000).split().bytes(1).seed);
  corpus.write("dropped", TcpScript().frame(dropped, 5000).split().frame(data, 3).seed);
  corpus.write("wrong_crc", TcpScript().frame(crc, 30, TcpScript::kTrueLength).frame(data, 3).seed);
  corpus.write("foreign_epoch", TcpScript().frame(ready, 0).frame(data, 3, TcpScript::kForeign).seed);
  corpus.write("long_payload", TcpScript().frame(data, 60000).split().frame(crc, 1).seed);
  FrameHeader unfinished = data;
  unfinished.payload_bytes = 1000;
  corpus.write("end_in_payload", TcpScript().frame(unfinished, 10, 0).split().seed);
  corpus.write("end_in_header", TcpScript().frame(ready, 0).bytes(63).split().seed);
  corpus.write("noise", TcpScript().bytes(64).seed);
  corpus.write("stopped_by_header", TcpScript().frame(slice(14), 40).frame(data, 3).seed);
  corpus.write("stopped_by_frame", TcpScript().frame(slice(15), 40).split().frame(data, 3).seed);
  corpus.write("refused_by_sink", TcpScript().frame(ready, 0).frame(slice(13), 40).seed);
}

// See Scene and Peer of handshake_fuzzer.cc: a message is a number of lies before its MAC (messages only) and the
// damage to it afterwards.
void write_handshakes(const Corpus& corpus) {
  const auto write = [&](const std::string& name, std::initializer_list<int> bytes) {
    Seed seed;
    for (const int byte : bytes) seed.add(static_cast<std::uint8_t>(byte));
    corpus.write(name, seed);
  };
  constexpr int kChange = 4, kCut = 5, kNoise = 6, kEnd = 7;
  write("accept", {0});
  write("connect", {1});
  write("accept_exchange", {2});
  write("connect_exchange", {3});
  write("accept_hello_epoch", {0, 1, 16, 8});
  write("accept_hello_version", {0, 0, kChange, 4, 2});
  write("accept_hello_cut", {0, 0, kCut, 30});
  write("accept_hello_mac", {0, 0, kChange, 70, 1});
  write("accept_hello_job", {0, 1, 8, 1});
  write("accept_hello_rail", {0, 1, 25, 2});
  write("accept_proof_mac", {0, 0, 0, 0, kChange, 20, 1});
  write("accept_proof_refusal", {2, 0, 0, 1, 6, 10, 0});
  write("accept_ready_mac", {2, 0, 0, 0, 0, 0, 0, kChange, 20, 1});
  write("accept_offer", {2, 0, 0, 0, 0, kChange, 0, 0xee});
  write("accept_ready_end", {2, 0, 0, 0, 0, 0, 0, kEnd});
  write("connect_challenge_mac", {1, 0, kChange, 200, 1});
  write("connect_challenge_unproven", {1, 0, kChange, 6, 4});
  write("connect_verdict_mac", {1, 0, 0, 0, kChange, 170, 1});
  write("connect_challenge_refusal", {1, 2, 6, 4, 40, 'x'});
  write("connect_verdict_text", {1, 0, 0, 2, 6, 5, 8, 0x80});
  write("connect_answer_mac", {3, 0, 0, 0, 0, 0, kChange, 3, 9});
  write("connect_noise", {1, 0, kNoise, 12, 'H', 'T', 'T', 'P', '/', '1', '.', '1', ' ', '4', '0', '0'});
}

protocol::TensorBody tensor(const char* name, Operation operation, std::uint64_t elements) {
  protocol::TensorBody body;
  std::strncpy(body.name, name, sizeof body.name - 1);
  body.operation = operation;
  body.elements = elements;
  body.positions = 4;
  body.position = 1;
  return body;
}

std::vector<protocol::TensorBody> tensors() {
  std::vector<protocol::TensorBody> list{tensor("fc1.weight", Operation::kAllreduce, 1000),
                                         tensor("fc1.bias", Operation::kBroadcast, 10),
                                         tensor("sync", Operation::kBarrier, 0)};
  list[0].explicit_urgency = 1;
  list[0].urgency = 0.75f;
  list[0].pattern = protocol::kAutomaticPattern;
  return list;
}

template <typename Body>
Seed packet(protocol::MessageType type, const Body& body, std::size_t more = 0) {
  protocol::MessageHeader header;
  header.type = type;
  header.body_bytes = static_cast<std::uint32_t>(sizeof body + more);
  return Seed().add(header).add(body);
}

Seed registration(const char* group, const std::vector<protocol::TensorBody>& list,
                  const std::vector<std::uint32_t>& ranks = {}) {
  protocol::RegisterBody body;
  body.set_ranks = static_cast<std::uint32_t>(ranks.size());
  std::strncpy(body.group, group, sizeof body.group - 1);
  body.count = static_cast<std::uint32_t>(list.size());
  const auto of_ranks = std::as_bytes(std::span(ranks)), bytes = std::as_bytes(std::span(list));
  return packet(protocol::MessageType::kRegister, body, of_ranks.size() + bytes.size())
      .add_bytes(of_ranks)
      .add_bytes(bytes);
}

void write_session_packets(const Corpus& corpus) {
  using protocol::MessageType;
  protocol::HelloBody hello;
  hello.rank = 1;
  hello.world_size = 4;
  hello.local_rank = 1;
  hello.local_world_size = 2;
  hello.secret_bytes = 32;
  std::strcpy(hello.job, "digits");
  std::strcpy(hello.leader, "10.0.0.1");
  corpus.write("hello", packet(MessageType::kHello, hello));
  hello.secret_bytes = protocol::kMaxSecret + 1;
  corpus.write("hello_secret", packet(MessageType::kHello, hello));
  std::memset(hello.job, 'j', sizeof hello.job);
  corpus.write("hello_endless_name", packet(MessageType::kHello, hello));
  corpus.write("arena", packet(MessageType::kArena, protocol::ArenaBody{.bytes = 1 << 20}));
  corpus.write("arena_zero", packet(MessageType::kArena, protocol::ArenaBody{}));
  corpus.write("register", registration("model", tensors()));
  corpus.write("register_set", registration("model", tensors(), {0, 2}));
  corpus.write("register_set_in_no_order", registration("model", tensors(), {2, 0}));
  corpus.write("register_nothing", registration("model", {}));
  corpus.write("register_nameless", registration("", tensors()));
  auto list = tensors();
  list[1].root = 70000;
  corpus.write("register_root", registration("model", list));
  list = {tensor("same", Operation::kAllgather, 65536 * 3), tensor("same", Operation::kAllreduce, 1)};
  corpus.write("register_twice", registration("model", list));
  list = {tensor("huge", Operation::kAllreduce, protocol::kMaxElements)};
  list[0].dtype = Dtype::kFloat64;
  corpus.write("register_huge", registration("model", list));
  list = tensors();
  list[0].offset = 3;
  corpus.write("register_offset", registration("model", list));
  list = {tensor("rows", Operation::kReduceScatter, 24)};
  list[0].dtype = Dtype::kInt8;
  list[0].reduce = ReduceOp::kMax;
  list[0].row = 8;
  corpus.write("register_rows", registration("model", list));
  list[0].row = 7;
  corpus.write("register_torn_row", registration("model", list));
  list[0].operation = Operation::kAllreduce;
  list[0].reduce = ReduceOp::kAverage;
  corpus.write("register_integer_average", registration("model", list));
  corpus.write("status", packet(MessageType::kStatus, protocol::StatusBody()));
  protocol::UnregisterBody unregister;
  corpus.write("unregister_nameless", packet(MessageType::kUnregister, unregister));
  std::strcpy(unregister.group, "model");
  unregister.operations = ~std::uint64_t{0};
  unregister.timeout_ms = ~std::uint32_t{0};
  corpus.write("unregister", packet(MessageType::kUnregister, unregister));
  corpus.write("unregister_short", packet(MessageType::kUnregister, protocol::StatusBody()));
}

void write_rings(const Corpus& corpus) {
  constexpr std::uint8_t kSubmit = 0, kSetSubmitted = 1, kConsume = 2, kScribble = 3, kTake = 4, kComplete = 5;
  constexpr std::uint8_t kSleep = 6, kFail = 7;
  const auto small = [](std::uint8_t value) { return value; };
  const protocol::CompletionEntry entry{3, Code::kOk, 9};
  corpus.write("submit",
               Seed().add(small(3)).add(kSubmit).add(small(5)).add(kTake).add(small(3)).add(kTake).add(small(9)));
  Seed entries = Seed().add(small(2)).add(kScribble).add(std::uint16_t{protocol::kRingPageBytes}).add(small(64));
  corpus.write("entries", entries.fill(64, 0x5a).add(kSubmit).add(small(4)).add(kTake).add(small(4)));
  corpus.write("impossible", Seed().add(small(2)).add(kSubmit).add(small(5)).add(kTake).add(small(4)));
  corpus.write("backwards", Seed().add(small(2)).add(kSetSubmitted).add(~std::uint32_t{0}).add(kTake).add(small(4)));
  Seed wraps = Seed().add(small(6));
  for (int i = 0; i < 6; ++i) wraps.add(kSubmit).add(small(64)).add(kTake).add(small(64));
  corpus.write("wraps", wraps);
  Seed full = Seed().add(small(1));
  for (int i = 0; i < 3; ++i) full.add(kComplete).add(entry);
  corpus.write("complete", full.add(kConsume).add(small(2)).add(kComplete).add(entry));
  corpus.write("consumed_ahead", Seed().add(small(1)).add(kConsume).add(small(1)).add(kComplete).add(entry));
  corpus.write("sleep", Seed().add(small(1)).add(kSleep).add(kSubmit).add(small(1)).add(kSleep));
  corpus.write("page",
               Seed().add(small(4)).add(kScribble).add(std::uint16_t{0}).add(small(255)).fill(255, 0x80).add(kSleep));
  corpus.write("fail", Seed().add(small(0)).add(kFail).add(std::uint16_t{9}).add_text("peer died"));
  corpus.write("fail_long", Seed().add(small(0)).add(kFail).add(std::uint16_t{1030}).fill(1030, 'x'));
  Seed torn = Seed().add(small(0)).add(kFail).add(std::uint16_t{1025}).fill(1022, 'x');
  corpus.write("fail_torn", torn.add_text("\xe2\x82\xac"));
}

json plan_tensors() {
  protocol::PlanTensor planned;
  planned.name = "fc1.weight";
  planned.elements = 1000;
  planned.slice_elements = 256;
  planned.urgency = 0.5f;
  protocol::PlanTensor scattered = planned;
  scattered.name = "fc2.weight";
  scattered.id = TensorId(1);
  scattered.operation = Operation::kReduceScatter;
  scattered.reduce = ReduceOp::kProduct;
  scattered.dtype = Dtype::kInt64;
  scattered.row = 250;
  protocol::PlanTensor member = planned, batch = planned;
  member.batch = 3;
  batch.members = 1;
  return control::plan_tensors_to_json({planned, scattered, member, batch});
}

void write_control(const Corpus& corpus) {
  using control::MessageType;
  const auto write_bytes = [&](const std::string& name, std::vector<std::uint8_t> bytes) {
    corpus.write(name, Seed().add_bytes(std::as_bytes(std::span(bytes))));
  };
  const auto write = [&](const std::string& name, MessageType type, json body) {
    write_bytes(name, control::encode({type, JobId(9), Epoch(2), 5, std::move(body)}));
  };
  const json failure = control::status_to_json(Status(Code::kMismatch, "what", "where", "fix"));
  write("join", MessageType::kJoin, json::array({"digits", std::string(64, 'a')}));
  write("proof", MessageType::kProof,
        json::array({"n", "mac", control::claims_to_json({{0, 2, 0, 2, 100}, {1, 2, 1, 2, 101}}),
                     control::settings_to_json({{"daemon.yaml tags", "true"}, {"fabric.yaml class 1", "bulk"}})}));
  write("refuse", MessageType::kRefuse, json::array({"n", failure}));
  write("roster", MessageType::kRoster,
        json::array({"n", "mac", 10.0, 4,
                     control::roster_to_json({4, {{"h0", {0, 1}, {"10.0.0.1"}}, {"h1", {2, 3}, {"10.0.0.2"}}}}),
                     json::binary(std::vector<std::uint8_t>(64, 0x5a))}));
  write("heartbeat", MessageType::kHeartbeat,
        json::array({1'000'000'000, json::array({json::array({1, 2, 3, 4, 5, 6, 7, 8, 9})}),
                     json::array({json::array({0, 1, 77}), json::array({0, 8, 5})})}));
  write("standstill", MessageType::kStandstill, control::standstill_to_json({.to = HostIndex(1)}));
  write("arrived", MessageType::kArrived, json::array({"model", {0, 1}}));
  write("group", MessageType::kGroup,
        json::array({"model", 0, control::tensors_to_json(tensors()), control::status_to_json({})}));
  write("plan", MessageType::kPlan, json::array({"model", 1, 0x1234567890abcdefull, plan_tensors()}));
  write("late", MessageType::kLate, json::array({3, "tensor 'x'", 1'500'000'000}));
  write("overdue", MessageType::kOverdue, json::array({"model", 1}));
  write("awaited", MessageType::kAwaited, json::array({1, 7, 1'500'000'000}));
  write("unregister", MessageType::kUnregister, json::array({"model", 1, 700, 30'000'000'000, false}));
  write("vacate", MessageType::kVacate, json::array({"model", 2, 0x1234567890abcdefull}));
  write("stays", MessageType::kStays, json::array({"model", {0, 1}, failure}));
  write("abort", MessageType::kAbort, json::array({failure}));
  write("thresholds", MessageType::kThresholds, json::array({0.75, 0.5}));
  json odd = json::array({json::binary({1, 2}), -1, 1e300, nullptr, true, json::object({{"k", json::array()}})});
  write("every_kind", MessageType::kAbort, odd);
  write_bytes("version_1", json::to_cbor(json::array({1, 1, 0, 0, 0, json::array()})));
  write_bytes("deep", std::vector<std::uint8_t>(64, 0x81));
  // Strings in chunks, each of which begins another one: the library's reader recursed for each.
  write_bytes("chunks_in_chunks", std::vector<std::uint8_t>(200'000, 0x7f));
}

class SeedSink final : public engine_log::Sink {
 public:
  explicit SeedSink(Seed& seed) : seed_(seed) {}
  Status write(std::span<const std::byte> bytes) override {
    seed_.add_bytes(bytes);
    return {};
  }
  void stopped(const Status&) override {}

 private:
  Seed& seed_;
};

// Logs as engine_log_fuzzer.cc makes them: of two hosts, with two tensors.
void write_engine_logs(const Corpus& corpus) {
  engine::EngineConfig config;
  config.hosts = 2;
  config.world_size = 2;
  config.staging = mib(2);
  config.reclassifies = true;
  std::vector<engine::Event> events(engine_log::kEventKinds);
  for (std::size_t i = 0; i < events.size(); ++i) events[i].kind = static_cast<engine::Event::Kind>(i);
  events[0].tensor_ready = {TensorId(0), Sequence(1), {1, 0, 0, 400}, {}};
  events[1].frame = {HostIndex(1), header_of(FrameType::kReady)};
  events[1].frame.header.job = JobId(0);
  events[1].frame.header.epoch = Epoch(0);
  events[2].token = events[3].token = 1ull << 32 | 1;
  events[4].boost = {TensorId(0), Sequence(1)};
  events[5].offer = {TensorId(1)};

  Seed file;
  file.add(std::uint8_t{0});
  engine_log::Recorder recorder(std::make_unique<SeedSink>(file), mib(1), "job", "host");
  recorder.begin(config, {0, 0, 0, engine::Engine::staging_bytes(config).value}, 0xcbf29ce484222325ull);
  protocol::Plan plan;
  plan.tensors.push_back({.elements = 100, .slice_elements = 1024, .name = "small"});
  plan.rank_hosts = {HostIndex(0), HostIndex(1)};
  recorder.plan(plan, 0xcbf29ce484222325ull);
  recorder.priority(TensorId(0), 0.5F, ClassId(1), 0);
  recorder.events(Time(1), std::span(events).first(1), 0);
  recorder.pick(Time(2), {HostIndex(1), ClassId(1)}, kMaxOperation, 1, 1, 0);
  recorder.work(Time(2), 0);
  recorder.events(Time(3), std::span(events).subspan(1), 0);
  recorder.end(0);
  corpus.write("file", file);

  // One block of records, without its head: what the fuzzer wraps.
  const auto write_records = [&](const std::string& name, std::uint8_t records, auto&& record) {
    Seed log;
    engine_log::Recorder to(std::make_unique<SeedSink>(log), mib(1), "", "");
    to.begin(config, {}, 0);
    const std::size_t before = log.bytes().size();
    record(to);
    to.flush(0);
    const auto payload = log.bytes().subspan(before + engine_log::kBlockHeaderBytes);
    corpus.write(name, Seed().add(std::uint8_t{1}).add(records).add_bytes(payload));
  };
  write_records("every_event", 8, [&](auto& to) { to.events(Time(5), events, 0); });
  write_records("begin_and_pick", 3, [&](auto& to) {
    to.events(Time(5), std::span(events).first(1), 0);
    to.pick(Time(6), {HostIndex(1), kControlClass}, kMaxOperation, 4, 1, 0);
    to.pick(Time(6), {HostIndex(1), ClassId(0)}, kMaxOperation, 4, 1, 0);
  });
  write_records("plan", 1, [&](auto& to) { to.plan(plan, 0); });
  protocol::Plan another;
  another.tensors.resize(3);
  another.tensors[1] = {.id = TensorId(1), .elements = 100, .slice_elements = 1024, .name = "another"};
  write_records("vacate", 3, [&](auto& to) {
    to.vacate({1, 1}, 0);
    to.plan(another, {1, 1}, 0);
    to.events(Time(5), std::span(events).first(1), 0);
  });
  write_records("vacate_a_member", 1, [&](auto& to) { to.vacate({2, 1}, 0); });
  write_records("vacate_beyond", 1, [&](auto& to) { to.vacate({3, ~std::uint32_t{0}}, 0); });
  write_records("vacate_under_way", 2, [&](auto& to) {
    to.events(Time(5), std::span(events).first(1), 0);
    to.vacate({0, 1}, 0);
  });
}

}  // namespace
}  // namespace tensorlane::fuzz

int main(int argc, char** argv) {
  using namespace tensorlane::fuzz;
  if (argc != 2) return 2;
  const std::filesystem::path root = argv[1];
  write_frames({root, "frame"});
  write_tcp({root, "tcp_flow"});
  write_local({root, "local_flow"});
  write_handshakes({root, "handshake"});
  write_session_packets({root, "session_packet"});
  write_rings({root, "session_rings"});
  write_control({root, "control_message"});
  write_engine_logs({root, "engine_log"});
}
