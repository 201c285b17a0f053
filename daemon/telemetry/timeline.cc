#include "daemon/telemetry/timeline.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <unordered_map>
#include <utility>

#include "common/files/careful.h"

namespace tensorlane::telemetry {
namespace {

constexpr auto kDrainEvery = std::chrono::milliseconds(50);
// So many spans are put into words while the lane may have to wait for a name to be kept.
constexpr std::size_t kSpansAtOnce = 256;
constexpr const char* kWhat = "the timeline";
constexpr const char* kNoSpace = "free space on the disk or choose another path";

// Microseconds, as the format wants them: exact, also of the 16 digits that the wall clock has.
std::string micros(std::int64_t ns) {
  return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
}

std::int64_t nanoseconds_of(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// As a JSON string. Names come from clients, in any encoding: what is no UTF-8 reads as U+FFFD.
std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Whoever writes a timeline holds a lock on its file, so that a second daemon, started by mistake, leaves it alone.
bool is_written(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW);
  const bool locked = file >= 0 && flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (file >= 0) close(file);
  return locked;
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

  struct Former {
    std::string name;
    std::size_t until = 0;  // spans before this position of the ring have it
  };
  // What spans of a job are called.
  struct Job {
    Epoch epoch;
    std::string name;
    std::vector<std::string> hosts;                            // by HostIndex
    std::unordered_map<std::uint32_t, std::string> tensors{};  // by TensorId
    // By TensorId, oldest first: another tensor had the number, and spans of it may wait for the writer.
    std::unordered_map<std::uint32_t, std::vector<Former>> former{};
    bool ended = false;
  };
  // Where one of Job::former is.
  struct Kept {
    std::uint64_t job;
    std::uint32_t tensor;
    std::size_t until;
  };

  // ---- lane -> writer: a ring with one producer and one consumer ----
  const TimelineConfig config;
  std::vector<ports::TraceSpan> ring;
  std::atomic<std::size_t> head{0}, tail{0};  // next to write; next to read
  std::atomic<bool> on{false}, failed{false};
  std::atomic<std::uint64_t> recorded{0}, dropped{0};

  mutable std::mutex mutex;  // guards jobs, quit; held for no disk, because the lane waits for it
  std::condition_variable changed;
  std::map<std::uint64_t, Job> jobs;  // by JobId
  std::deque<Kept> kept;  // of all jobs, by `until`, at most as many as spans; what is no longer there is passed over
  bool quit = false;

  // ---- the writer's thread, and start() before there is one ----
  int file = -1;
  std::string path;
  std::uint64_t written = 0;          // bytes of the file
  std::int64_t wall_clock_ahead = 0;  // of the clock of spans, in nanoseconds, since the file began
  std::thread writer;

  Status open();
  std::string header() const;
  void run();
  void drain();
  std::string take(std::size_t end);
  void append(const std::string& text);
  bool write(const std::string& text);
  void close_file();
  std::string span_text(std::size_t position) const;
  void keep_former(std::uint64_t job, std::uint32_t tensor, std::string name);
};

TimelineRecorder::TimelineRecorder(const TimelineConfig& config) : impl_(std::make_unique<Impl>(config)) {}
TimelineRecorder::~TimelineRecorder() {
  stop();
}

Status TimelineRecorder::start(const std::string& path) {
  stop();
  Impl& t = *impl_;
  t.path = path;
  t.quit = false;
  t.failed = false;
  TL_RETURN_IF_ERROR(t.open());
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
  return impl_->failed.load(std::memory_order_acquire);
}
std::size_t TimelineRecorder::names() const {
  const std::lock_guard lock(impl_->mutex);
  std::size_t all = 0;
  for (const auto& [id, job] : impl_->jobs) {
    all += job.tensors.size();
    for (const auto& [tensor, former] : job.former) {
      all += static_cast<std::size_t>(std::ranges::count_if(former, [](const auto& f) { return !f.name.empty(); }));
    }
  }
  return all;
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

void TimelineRecorder::begin_job(JobId job, Epoch epoch, const std::string& name,
                                 const std::vector<std::string>& hosts) {
  if (!enabled()) return;
  const std::lock_guard lock(impl_->mutex);
  impl_->jobs.insert_or_assign(job.value, Impl::Job{epoch, name, hosts});
}

// Spans of it may wait for the writer, so it is the writer that forgets it.
void TimelineRecorder::end_job(JobId job, Epoch epoch) {
  if (!enabled()) return;
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->jobs.find(job.value);
  if (found != impl_->jobs.end() && found->second.epoch == epoch) found->second.ended = true;
}

void TimelineRecorder::name(JobId job, TensorId tensor, const char* name) {
  if (!enabled()) return;
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->jobs.find(job.value);
  if (found == impl_->jobs.end()) return;
  Impl::Job& of = found->second;
  const auto [named, fresh] = of.tensors.try_emplace(tensor.value, name);
  if (fresh) return;
  impl_->keep_former(job.value, tensor.value, std::exchange(named->second, name));
}

// While the writer waits for its disk, no name goes. Beyond the bound the oldest is forgotten, but not that its spans
// have none.
void TimelineRecorder::Impl::keep_former(std::uint64_t job, std::uint32_t tensor, std::string name) {
  const std::size_t until = head.load(std::memory_order_relaxed);
  std::vector<Former>& before = jobs.at(job).former[tensor];
  if (!before.empty() && before.back().until == until) return;  // no span has it
  before.push_back({std::move(name), until});
  kept.push_back({job, tensor, until});
  if (kept.size() <= ring.size()) return;
  const Kept oldest = kept.front();
  kept.pop_front();
  const auto of = jobs.find(oldest.job);
  if (of == jobs.end()) return;
  const auto names = of->second.former.find(oldest.tensor);
  if (names == of->second.former.end()) return;
  // Those before it have been forgotten already, so its spans are the first ones.
  std::erase_if(names->second, [&](const Former& f) { return f.until < oldest.until; });
  if (!names->second.empty() && names->second.front().until == oldest.until) names->second.front().name.clear();
}

// A new file. What was there keeps the name with ".1", so that neither a restart nor the limit loses it at once.
Status TimelineRecorder::Impl::open() {
  TL_RETURN_IF_ERROR(files::check_creatable(path, kWhat));
  const Status taken(Code::kUnavailable, fmt::format("cannot write {}: another process writes it", kWhat), path,
                     "end it, e.g. another tensorlaned, or choose another path");
  if (is_written(path)) return taken;
  struct stat before {};
  if (stat(path.c_str(), &before) == 0 && before.st_size > 0 && std::rename(path.c_str(), (path + ".1").c_str()) != 0) {
    return {Code::kUnavailable,
            fmt::format("cannot keep the timeline that was there as {}.1: {}", path, std::strerror(errno)), path,
            "choose a path in a folder that the daemon may write"};
  }
  TL_ASSIGN_OR_RETURN(file, files::create(path, kWhat));
  if (flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close_file();
    return taken;
  }
  written = 0;
  wall_clock_ahead = nanoseconds_of(CLOCK_REALTIME) - nanoseconds_of(CLOCK_MONOTONIC);
  if (write(header())) return {};
  const int error = errno;
  close_file();
  return {Code::kUnavailable, fmt::format("cannot write the timeline: {}", std::strerror(error)), path, kNoSpace};
}

std::string TimelineRecorder::Impl::header() const {
  std::string text =
      fmt::format("[\n{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{0},\"args\":{{\"name\":{1}}}}},\n",
                  config.sort_index, json_text("host " + config.host));
  for (std::size_t c = 0; c < config.class_names.size(); ++c) {
    text += fmt::format("{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}},\n",
                        config.sort_index, c,
                        json_text(fmt::format("class {} (DSCP {})", config.class_names[c], config.class_dscps[c])));
  }
  return text;
}

void TimelineRecorder::Impl::run() {
  pthread_setname_np(pthread_self(), "timeline");
  for (bool last = false; !last;) {
    {
      std::unique_lock lock(mutex);
      changed.wait_for(lock, kDrainEvery, [this] { return quit; });
      last = quit;
    }
    drain();
  }
  // Readers of the format accept a list without its closing bracket, so a trace that was cut off can be opened, too.
  if (file >= 0) write("{}]\n");
  close_file();
  const std::lock_guard lock(mutex);
  jobs.clear();
}

// Writes what waits, and then forgets the jobs that had ended before: nothing of them waits any more.
void TimelineRecorder::Impl::drain() {
  std::vector<std::uint64_t> ended;
  std::size_t end = 0;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [id, job] : jobs) {
      if (job.ended) ended.push_back(id);
    }
    end = head.load(std::memory_order_acquire);
  }
  while (tail.load(std::memory_order_relaxed) != end) append(take(end));
  const std::lock_guard lock(mutex);
  std::erase_if(kept, [end](const Kept& k) { return k.until <= end; });
  for (auto& [id, job] : jobs) {
    for (auto& [tensor, names] : job.former) std::erase_if(names, [end](const Former& f) { return f.until <= end; });
    std::erase_if(job.former, [](const auto& former) { return former.second.empty(); });
  }
  for (const std::uint64_t id : ended) {
    const auto found = jobs.find(id);  // another of that id may have begun
    if (found != jobs.end() && found->second.ended) jobs.erase(found);
  }
}

// The text of some spans before `end`.
std::string TimelineRecorder::Impl::take(std::size_t end) {
  const std::lock_guard lock(mutex);
  const std::size_t begin = tail.load(std::memory_order_relaxed);
  end = std::min(end, begin + kSpansAtOnce);
  std::string text;
  for (std::size_t at = begin; at != end; ++at) text += span_text(at);
  tail.store(end, std::memory_order_release);
  return text;
}

void TimelineRecorder::Impl::append(const std::string& text) {
  if (text.empty() || file < 0) return;
  const bool full = written + text.size() > config.limit.value;
  if (full) {
    write("{}]\n");
    close_file();
    if (const Status opened = open(); !opened.ok()) {
      on.store(false, std::memory_order_release);
      failed = true;
      spdlog::error("timeline stopped: {}; training goes on", opened.to_string());
      return;
    }
  }
  if (write(text)) return;
  spdlog::error("timeline stopped: {}: {}: {}; training goes on", path, std::strerror(errno), kNoSpace);
  close_file();
}

// All of it, or errno and no further attempt.
bool TimelineRecorder::Impl::write(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t count = ::write(file, text.data() + at, text.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      on.store(false, std::memory_order_release);  // before it is said to have failed
      failed = true;
      return false;
    }
    at += static_cast<std::size_t>(count);
  }
  written += text.size();
  return true;
}

void TimelineRecorder::Impl::close_file() {
  if (file >= 0) close(std::exchange(file, -1));
}

std::string TimelineRecorder::Impl::span_text(std::size_t position) const {
  const ports::TraceSpan& span = ring[position % ring.size()];
  const auto job = jobs.find(span.job.value);
  const std::string number = fmt::format("tensor {}", span.tensor.value);
  std::string tensor = number, job_name = fmt::format("{:016x}", span.job.value);
  std::string peer = fmt::format("host {}", span.peer.value);
  if (job != jobs.end()) {
    job_name = job->second.name;
    const auto named = job->second.tensors.find(span.tensor.value);
    if (named != job->second.tensors.end()) tensor = named->second;
    if (const auto had = job->second.former.find(span.tensor.value); had != job->second.former.end()) {
      const auto then = std::ranges::find_if(had->second, [&](const Former& f) { return position < f.until; });
      if (then != had->second.end()) tensor = then->name.empty() ? number : then->name;
    }
    if (span.peer.value < job->second.hosts.size()) peer = job->second.hosts[span.peer.value];
  }
  const std::size_t c = span.cls.value;
  const std::string cls = c < config.class_names.size() ? config.class_names[c] : "control";
  const int dscp = c < config.class_dscps.size() ? config.class_dscps[c] : -1;
  const bool sent = span.phase == ports::TraceSpan::Phase::kQueue;
  return fmt::format(
      "{{\"name\":\"{}\",\"cat\":{},\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{},\"args\":{{"
      "\"tensor\":{},\"job\":{},\"sequence\":{},"
      "\"class\":{},\"dscp\":{},\"bytes\":{}{}}}}},\n",
      phase_name(span.phase), json_text(cls), config.sort_index, c, micros(span.begin.value + wall_clock_ahead),
      micros(span.length.value), json_text(tensor), json_text(job_name), span.sequence.value, json_text(cls), dscp,
      span.bytes, sent ? ",\"peer\":" + json_text(peer) : "");
}

}  // namespace tensorlane::telemetry
