// Logs of engines: files as they are, and records in blocks whose checksums are right. What is read is written and read
// back to the same; and whatever a log says, replaying it breaks no invariant of the engine.
#include <sstream>

#include "common/protocol/frame.h"
#include "daemon/engine/digest.h"
#include "daemon/engine_log/reader.h"
#include "daemon/engine_log/recorder.h"
#include "daemon/engine_log/replay.h"
#include "input.h"

namespace tensorlane::fuzz {
namespace {

using namespace engine_log;

class StringSink final : public Sink {
 public:
  explicit StringSink(std::string& log) : log_(log) {}
  Status write(std::span<const std::byte> bytes) override {
    log_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  }
  void stopped(const Status& why) override { TL_ASSERT(why.ok()); }

 private:
  std::string& log_;
};

engine::EngineConfig small_config() {
  engine::EngineConfig config;
  config.hosts = 2;
  config.world_size = 2;
  config.staging = mib(2);
  config.max_queued_slices = 256;
  config.reclassifies = true;
  return config;
}

// A log with a plan, and then a block of these records.
std::string framed(std::span<const std::byte> payload, std::uint32_t records) {
  std::string log;
  const engine::EngineConfig config = small_config();
  Recorder recorder(std::make_unique<StringSink>(log), mib(64), "job", "host");
  recorder.begin(config, {0, 0, 0, engine::Engine::staging_bytes(config).value}, 0xcbf29ce484222325ull);
  protocol::Plan plan;
  plan.tensors.push_back({.elements = 100, .slice_elements = 1024});
  plan.tensors.push_back({.id = TensorId(1), .cls = ClassId(1), .elements = 9000, .slice_elements = 4096});
  plan.tensors.push_back({.id = TensorId(2), .elements = 50, .slice_elements = 1024, .batch = 3});
  plan.tensors.push_back({.id = TensorId(3), .elements = 50, .slice_elements = 1024, .members = 1});
  recorder.plan(plan, 0);
  recorder.flush(0xcbf29ce484222325ull);
  struct {
    std::uint32_t mark, bytes;
    std::uint64_t first;
    std::uint32_t records, crc;
    std::uint64_t digest;
  } const head{kBlockMark, static_cast<std::uint32_t>(payload.size()), 2, records, protocol::crc32c(payload), 0};
  const std::uint32_t crc = protocol::crc32c(std::as_bytes(std::span(&head, 1)));
  log.append(reinterpret_cast<const char*>(&head), sizeof head);
  log.append(reinterpret_cast<const char*>(&crc), sizeof crc);
  log.append(reinterpret_cast<const char*>(payload.data()), payload.size());
  return log;
}

struct Read {
  std::uint64_t digest = 0, records = 0;
  std::string copy;
  bool whole = false;
};

// Everything that the log says up to its end or its first mistake, and the same written anew.
Read read(const std::string& log) {
  Read result;
  std::istringstream in(log);
  auto reader = Reader::open(in, "log");
  if (!reader.ok()) {
    expect_explained(reader.status());
    return result;
  }
  Recorder copy(std::make_unique<StringSink>(result.copy), mib(256), reader->header().job, reader->header().host);
  copy.begin(reader->header().config, reader->header().staging, 0);
  engine::Digest digest;
  Record record;
  for (;;) {
    const auto there = reader->next(&record);
    result.whole = there.ok();
    if (!there.ok()) expect_explained(there.status());
    if (!there.ok() || !*there) break;
    ++result.records;
    if (record.is_event) {
      digest.mix(record.now, record.event);
      copy.events(record.now, {&record.event, 1}, 0);
    } else if (record.kind == RecordKind::kPlan) {
      digest.mix(reader->plan().hash());
      copy.plan(reader->plan(), record.tensors, 0);
    } else if (record.kind == RecordKind::kVacate) {
      digest.mix(std::uint64_t{record.tensors.first} << 32 | record.tensors.count);
      copy.vacate(record.tensors, 0);
    } else if (record.kind == RecordKind::kPriority) {
      digest.mix(record.priority.tensor.value);
      copy.priority(record.priority.tensor, record.priority.urgency, record.priority.cls, 0);
    } else if (record.kind == RecordKind::kPick) {
      digest.mix(record.pick.credit.value);
      // The recorder leaves out picks that returned nothing.
      copy.pick(record.now, record.pick.flow, record.pick.credit, record.pick.room,
                std::max<std::size_t>(record.pick.picked, 1), 0);
    } else if (record.kind == RecordKind::kWork) {
      digest.mix(static_cast<std::uint64_t>(record.now.value));
      copy.work(record.now, 0);
    }
  }
  copy.flush(0);
  result.digest = digest.value();
  return result;
}

void check(const std::string& log) {
  const Read first = read(log);
  if (!first.copy.empty()) {
    const Read second = read(first.copy);
    TL_ASSERT(second.whole && second.digest == first.digest && second.records <= first.records);
  }
  std::istringstream in(log);
  const auto replayed = replay(in, "log");
  if (!replayed.ok()) expect_explained(replayed.status());
  if (replayed.ok() && replayed->parting) TL_ASSERT(!replayed->parting->why.empty());
}

}  // namespace
}  // namespace tensorlane::fuzz

// A byte that says which, then the file, or the number of records and the records.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorlane;
  fuzz::Input input(data, size);
  if (input.take<std::uint8_t>() % 2 == 0) {
    const auto file = input.rest();
    fuzz::check(std::string(reinterpret_cast<const char*>(file.data()), file.size()));
    return 0;
  }
  const auto records = input.take<std::uint8_t>();
  fuzz::check(fuzz::framed(input.rest(), records));
  return 0;
}
