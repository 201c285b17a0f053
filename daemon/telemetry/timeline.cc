#include "daemon/telemetry/timeline.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

namespace tensorlane::telemetry {
namespace {

constexpr auto kDrainEvery = std::chrono::milliseconds(50);

// Microseconds, as the format wants them.
double micros(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-3;
}

// As a JSON string. Names come from clients, in any encoding: what is no UTF-8 reads as U+FFFD.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

const char* phase_name(ports::TraceSpan::Phase phase) {
  switch (phase) {
    case ports::TraceSpan::Phase::kWaitForData:
      return "WAIT_FOR_DATA";
    case ports::TraceSpan::Phase::kOperation:
      return "ALLREDUCE";
    case ports::TraceSpan::Phase::kQueue:
      return "QUEUE";
    case ports::TraceSpan::Phase::kReduce:
      return "REDUCE";
    case ports::TraceSpan::Phase::kCopy:
      return "MEMCPY";
  }
  return "UNKNOWN";
}

struct TimelineRecorder::Impl {
  explicit Impl(const TimelineConfig& c) : config(c), ring(c.capacity) {}

  // ---- lane -> writer: a ring with one producer and one consumer ----
  const TimelineConfig config;
  std::vector<ports::TraceSpan> ring;
  std::atomic<std::size_t> head{0}, tail{0};  // next to write; next to read
  std::atomic<bool> on{false}, failed{false};
  std::atomic<std::uint64_t> recorded{0}, dropped{0};

  std::mutex mutex;  // guards names, file, quit
  std::condition_variable changed;
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::string> names;
  std::FILE* file = nullptr;
  std::string path;
  bool quit = false;
  std::thread writer;

  void run();
  void drain();
  bool write(const std::string& text);
  std::string span_text(const ports::TraceSpan& span);
};

TimelineRecorder::TimelineRecorder(const TimelineConfig& config) : impl_(std::make_unique<Impl>(config)) {}
TimelineRecorder::~TimelineRecorder() {
  stop();
}

Status TimelineRecorder::start(const std::string& path) {
  stop();
  Impl& t = *impl_;
  std::lock_guard lock(t.mutex);
  t.file = std::fopen(path.c_str(), "we");
  if (t.file == nullptr) {
    return {Code::kUnavailable, fmt::format("cannot write the timeline: {}", std::strerror(errno)), path,
            "choose a path that the daemon may write"};
  }
  t.path = path;
  t.quit = false;
  t.failed = false;
  t.write(fmt::format("[\n{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{0},\"args\":{{\"name\":{1}}}}},\n",
                      t.config.sort_index, quoted("host " + t.config.host)));
  for (std::size_t c = 0; c < t.config.class_names.size(); ++c) {
    t.write(fmt::format("{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}},\n",
                        t.config.sort_index, c,
                        quoted(fmt::format("class {} (DSCP {})", t.config.class_names[c], t.config.class_dscps[c]))));
  }
  if (t.failed) {
    std::fclose(t.file);
    t.file = nullptr;
    return {Code::kUnavailable, fmt::format("cannot write the timeline: {}", std::strerror(ENOSPC)), path,
            "free space on the disk or choose another path"};
  }
  t.on.store(true, std::memory_order_release);
  t.writer = std::thread([&t] { t.run(); });
  return {};
}

void TimelineRecorder::stop() {
  Impl& t = *impl_;
  t.on.store(false, std::memory_order_release);
  {
    std::lock_guard lock(t.mutex);
    t.quit = true;
  }
  t.changed.notify_all();
  if (t.writer.joinable()) t.writer.join();
}

bool TimelineRecorder::enabled() const {
  return impl_->on.load(std::memory_order_relaxed);
}
std::uint64_t TimelineRecorder::recorded() const {
  return impl_->recorded.load(std::memory_order_relaxed);
}
std::uint64_t TimelineRecorder::dropped() const {
  return impl_->dropped.load(std::memory_order_relaxed);
}
bool TimelineRecorder::broken() const {
  return impl_->failed.load(std::memory_order_relaxed);
}

void TimelineRecorder::record(const ports::TraceSpan& span) {
  Impl& t = *impl_;
  if (!t.on.load(std::memory_order_relaxed)) return;
  const std::size_t head = t.head.load(std::memory_order_relaxed);
  if (head - t.tail.load(std::memory_order_acquire) >= t.ring.size()) {
    t.dropped.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  t.ring[head % t.ring.size()] = span;
  t.head.store(head + 1, std::memory_order_release);
  t.recorded.fetch_add(1, std::memory_order_relaxed);
}

void TimelineRecorder::name(JobId job, TensorId tensor, const char* name) {
  std::lock_guard lock(impl_->mutex);
  impl_->names[{job.value, tensor.value}] = name;
}

void TimelineRecorder::Impl::run() {
  pthread_setname_np(pthread_self(), "timeline");
  std::unique_lock lock(mutex);
  while (!quit) {
    changed.wait_for(lock, kDrainEvery);
    drain();
  }
  drain();
  // Readers of the format accept a list without its closing bracket, so a trace that was cut off can be opened, too.
  write("{}]\n");
  if (file != nullptr && std::fclose(file) != 0 && !failed) {
    spdlog::error("timeline stopped: {}: {}: free space on the disk or choose another path", path,
                  std::strerror(errno));
    failed = true;
  }
  file = nullptr;
}

void TimelineRecorder::Impl::drain() {
  std::size_t at = tail.load(std::memory_order_relaxed);
  const std::size_t end = head.load(std::memory_order_acquire);
  std::string text;
  for (; at != end; ++at) {
    text += span_text(ring[at % ring.size()]);
    tail.store(at + 1, std::memory_order_release);
  }
  if (!text.empty()) write(text);
}

bool TimelineRecorder::Impl::write(const std::string& text) {
  if (failed || file == nullptr) return false;
  if (std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0) return true;
  failed = true;
  if (!on.exchange(false, std::memory_order_acq_rel)) return false;  // the header: start() says it
  spdlog::error("timeline stopped: {}: {}: free space on the disk or choose another path; training goes on", path,
                std::strerror(errno));
  return false;
}

std::string TimelineRecorder::Impl::span_text(const ports::TraceSpan& span) {
  const auto found = names.find({span.job.value, span.tensor.value});
  const std::string name = found == names.end() ? fmt::format("tensor {}", span.tensor.value) : found->second;
  const std::size_t c = span.cls.value;
  const std::string cls = c < config.class_names.size() ? config.class_names[c] : "control";
  const int dscp = c < config.class_dscps.size() ? config.class_dscps[c] : -1;
  const std::string peer =
      span.phase == ports::TraceSpan::Phase::kQueue ? fmt::format(",\"peer\":{}", span.peer.value) : "";
  return fmt::format(
      "{{\"name\":\"{}\",\"cat\":{},\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f},\"args\":{{"
      "\"tensor\":{},\"job\":\"{:016x}\",\"sequence\":{},"
      "\"class\":{},\"dscp\":{},\"bytes\":{}{}}}}},\n",
      phase_name(span.phase), quoted(cls), config.sort_index, c, micros(span.begin.value), micros(span.length.value),
      quoted(name), span.job.value, span.sequence.value, quoted(cls), dscp, span.bytes, peer);
}

}  // namespace tensorlane::telemetry
