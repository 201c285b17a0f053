#include "simulator/host/engine_watch.h"

#include <sstream>

#include "daemon/engine_log/recorder.h"
#include "daemon/engine_log/replay.h"

namespace tensorlane::simulator {

using engine::Event;

namespace {

// Keeps a log in memory.
class TextSink final : public engine_log::Sink {
 public:
  TextSink(std::string& log, Findings& findings) : log_(log), findings_(findings) {}
  Status write(std::span<const std::byte> bytes) override {
    log_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  }
  void stopped(const Status& why) override { findings_.fail("digest", "no log: {}", why.to_string()); }

 private:
  std::string& log_;
  Findings& findings_;
};

constexpr Bytes kLogLimit = mib(256);

}  // namespace

// Tells the watch, and the recorder if there is one.
class EngineWatch::Watcher final : public engine_log::Observer {
 public:
  Watcher(EngineWatch& watch, std::unique_ptr<engine_log::Observer> recorder)
      : watch_(watch), recorder_(std::move(recorder)) {}

  void begin(const engine::EngineConfig& config, const Descriptor& staging, const engine::Engine& engine) override {
    if (recorder_) recorder_->begin(config, staging, engine);
    watch_.begin(config, staging, engine);
  }
  void plan(const protocol::Plan& plan, protocol::TensorRange added, const engine::Engine& engine) override {
    if (recorder_) recorder_->plan(plan, added, engine);
    watch_.urgencies_.added(plan, added);
  }
  void vacate(protocol::TensorRange range, const engine::Engine& engine) override {
    if (recorder_) recorder_->vacate(range, engine);
  }
  void priority(TensorId tensor, float urgency, ClassId cls, const engine::Engine& engine) override {
    if (recorder_) recorder_->priority(tensor, urgency, cls, engine);
    watch_.urgencies_.prioritised(tensor, urgency, cls);
  }
  void events(Time now, std::span<const Event> events, const engine::Engine& engine) override {
    if (recorder_) recorder_->events(now, events, engine);
    watch_.events(now, events);
  }
  void action(const engine::Action& action, const engine::Engine&) override {
    if (action.kind == engine::Action::Kind::kProtocolError) {
      watch_.broken_ = true;
      watch_.staging_->judge_no_more();
    }
    if (action.kind != engine::Action::Kind::kComplete) return;
    watch_.urgencies_.completed(action.complete.tensor);
    watch_.context_.completed(action.complete);
  }
  void pick(Time now, engine::Flow flow, Bytes credit, std::size_t room, std::span<const engine::Send> picked,
            const engine::Engine& engine) override {
    if (recorder_) recorder_->pick(now, flow, credit, room, picked, engine);
    watch_.pick(now, flow, credit, picked);
  }
  void work(Time now, const engine::Work& work, const engine::Engine& engine) override {
    if (recorder_) recorder_->work(now, work, engine);
    watch_.work(work);
  }
  void flush(const engine::Engine& engine) override {
    if (recorder_) recorder_->flush(engine);
  }
  void end(const engine::Engine& engine) override {
    if (recorder_) recorder_->end(engine);
    watch_.last_counters_ = engine.counters();
    watch_.last_digest_ = engine.digest();
    watch_.engine_ = nullptr;
  }

 private:
  EngineWatch& watch_;
  std::unique_ptr<engine_log::Observer> recorder_;
};

EngineWatch::EngineWatch(HostIndex self, RailIndex rail, Context context)
    : self_(self),
      rail_(rail),
      context_(std::move(context)),
      urgencies_(context_.scenario),
      limits_(self, context_.scenario, context_.findings),
      order_(self, context_.scenario, urgencies_, limits_, context_.findings),
      choice_(self, rail, context_.scenario, urgencies_, context_.findings) {}

std::unique_ptr<engine_log::Observer> EngineWatch::observer() {
  std::unique_ptr<engine_log::Observer> recorder;
  if (context_.scenario.record) {
    recorder = std::make_unique<engine_log::RecordingObserver>(std::make_unique<engine_log::Recorder>(
        std::make_unique<TextSink>(log_, context_.findings), kLogLimit, "simulated", std::to_string(self_.value)));
  }
  return std::make_unique<Watcher>(*this, std::move(recorder));
}

void EngineWatch::begin(const engine::EngineConfig& config, const Descriptor& staging, const engine::Engine& engine) {
  config_ = config;
  engine_ = &engine;
  staging_bytes_ = staging.length;
  staging_ = std::make_unique<StagingChecker>(self_, context_.memory.resolve(staging), context_.findings);
  context_.begun(*staging_);
}

void EngineWatch::events(Time now, std::span<const Event> events) {
  for (const Event& event : events) {
    if (broken_) break;
    const std::optional<TensorId> boosted = urgencies_.stepped(now, event);
    order_.stepped(now, event, boosted);
    choice_.stepped(now, event, boosted);
    if (event.kind == Event::Kind::kTensorReady && rail_ == RailIndex(0))
      context_.admission.begins(self_, event.tensor_ready.tensor);
    if (event.kind == Event::Kind::kDrained && engine_->counters().operations_pending > 0)
      context_.findings.fail("abort", "host {}: after the abort operations are still pending", self_.value);
  }
  check_bounds();
}

void EngineWatch::check_bounds() {
  const engine::EngineCounters& c = engine_->counters();
  if (c.staging_bytes > config_.staging.value || c.staging_peak_bytes > config_.staging.value) {
    context_.findings.fail("bounds", "host {}: {} bytes of staging in use, {} at most, {} allowed", self_.value,
                           c.staging_bytes, c.staging_peak_bytes, config_.staging.value);
  }
  if (c.queued_slices > config_.max_queued_slices) {
    context_.findings.fail("bounds", "host {}: {} slices queued, {} allowed", self_.value, c.queued_slices,
                           config_.max_queued_slices);
  }
  if (staging_->held() > staging_bytes_) {
    context_.findings.fail("bounds", "host {}: {} bytes of contributions wait in a staging of {}", self_.value,
                           staging_->held(), staging_bytes_);
  }
}

void EngineWatch::pick(Time now, engine::Flow flow, Bytes credit, std::span<const engine::Send> picked) {
  if (broken_) return;
  order_.picked(now, flow, picked);
  choice_.picked(flow, picked);
  std::uint64_t bytes = 0;
  for (const engine::Send& send : picked) {
    bytes += send.header.payload_bytes;
    const std::size_t there = context_.memory.resolve(send.payload).size();
    if (there == send.header.payload_bytes) continue;
    context_.findings.fail("memory", "host {}: a payload of {} bytes is said to have {}", self_.value, there,
                           send.header.payload_bytes);
  }
  if (bytes > credit.value) {
    context_.findings.fail("bounds", "host {}: pick() returns {} bytes for a window that has {} left", self_.value,
                           bytes, credit.value);
  }
  if (picked.empty() && credit.value >= kMaxOperation.value) {
    context_.findings.fail("order",
                           "host {}: pick() returns nothing for host {}, class {}, though there is work and credit",
                           self_.value, flow.peer.value, flow.cls.value);
  }
  if (flow.cls != kControlClass && !picked.empty()) context_.picks(now, flow.cls, bytes);
}

std::optional<engine::Flow> EngineWatch::waits_above(Time now, ClassId cls) const {
  if (engine_ == nullptr || broken_) return std::nullopt;
  return order_.waiting_above(now, cls, context_.can_go);
}

bool EngineWatch::waits_in(Time now, ClassId cls) const {
  return engine_ != nullptr && !broken_ && order_.waits_in(now, cls, context_.can_go);
}

void EngineWatch::work(const engine::Work& work) {
  if (broken_) return;
  context_.works(work.cls);
  choice_.working(work);
  const std::span<std::byte> out = context_.memory.resolve(work.out);
  bool fits = work.source_count > 0 && out.size() == work.elements * dtype_size(work.out_dtype) &&
              out.size() <= kMaxOperation.value;
  std::uint64_t read = 0;
  for (std::uint32_t i = 0; i < work.source_count; ++i) {
    const std::span<std::byte> bytes = context_.memory.resolve(work.sources[i].data);
    fits = fits && bytes.size() == work.elements * dtype_size(work.sources[i].dtype);
    staging_->consumed(bytes);
    read += bytes.size();
  }
  if (read > 4 * kMaxOperation.value) {
    context_.findings.fail("bounds", "host {}: a block of work reads {} bytes", self_.value, read);
  }
  if (!fits) {
    context_.findings.fail("memory", "host {}: a block of {} elements and {} sources does not fit its memory",
                           self_.value, work.elements, work.source_count);
  }
  ++*context_.progress;
}

void EngineWatch::sleeps(Time now, Time until) const {
  if (engine_ == nullptr || broken_) return;
  const auto way = order_.waiting_before(now, until, context_.can_go);
  if (!way) return;
  const auto& [flow, cls] = *way;
  context_.findings.fail(
      "order", "host {} sleeps at {} ns until {} ns though class {} has a grant of host {}, and could go in class {}",
      self_.value, now.value, until.value, flow.cls.value, flow.peer.value, cls.value);
}

void EngineWatch::check_quiet() {
  if (engine_ == nullptr) return;
  choice_.check_grants();
  const engine::EngineCounters& c = engine_->counters();
  if (c.stale_grants != 0)
    context_.findings.fail("stale", "host {}: {} frames lost their place while they landed", self_.value,
                           c.stale_grants);
  if (c.staging_bytes != 0 || c.queued_slices != 0 || c.operations_pending != 0 || engine_->oldest()) {
    context_.findings.fail("bounds",
                           "host {}: all is over, but {} bytes of staging, {} slices and {} operations are left",
                           self_.value, c.staging_bytes, c.queued_slices, c.operations_pending);
  }
}

std::string EngineWatch::describe() const {
  if (engine_ == nullptr) return "";
  std::string text = fmt::format("\n    rail {}:", rail_.value);
  if (const auto oldest = engine_->oldest()) {
    text += fmt::format(" oldest: tensor {} sequence {} since {} us, missing hosts:", oldest->tensor.value,
                        oldest->sequence.value, oldest->since.value / 1000);
    for (HostIndex host : engine_->missing(oldest->tensor)) text += fmt::format(" {}", host.value);
    text += ';';
  }
  const engine::EngineCounters& c = engine_->counters();
  return text + fmt::format(" staging {} bytes, queued {}", c.staging_bytes, c.queued_slices);
}

void EngineWatch::check_log() const {
  if (!context_.scenario.record || log_.empty()) return;
  std::istringstream log(log_);
  const Result<engine_log::Replay> replay = engine_log::replay(log, "log");
  if (!replay.ok()) return context_.findings.fail("digest", "host {}: {}", self_.value, replay.status().to_string());
  if (replay->parting) {
    return context_.findings.fail("digest", "host {}: the replay of its log parts from it at record {}: {}",
                                  self_.value, replay->parting->record, replay->parting->why);
  }
  if (replay->digest != last_digest_ || replay->end != engine_log::EndReason::kClosed)
    context_.findings.fail("digest", "host {}: the log of its engine ends before the engine does", self_.value);
}

}  // namespace tensorlane::simulator
