#include "daemon/telemetry/timeline.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/files/careful.h"
#include "common/spans/span.h"

namespace tensorlane::telemetry {
namespace {

constexpr auto kDrainEvery = std::chrono::milliseconds(50);
constexpr std::size_t kSpansInARow = 256;
constexpr const char* kWhat = "the timeline";
constexpr const char* kNoSpace = "free space on the disk or choose another path";

// Whoever writes a timeline holds a lock on its file, so that a second daemon, started by mistake, leaves it alone.
bool is_written(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW);
  const bool locked = file >= 0 && flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (file >= 0) close(file);
  return locked;
}

}  // namespace

struct TimelineRecorder::Impl {
  Impl(SpanStore& s, Bytes l) : store(s), limit(l), at(s.lanes()), taken(kSpansInARow) {}

  SpanStore& store;
  const Bytes limit;
  std::atomic<bool> on{false}, failed{false};
  std::atomic<std::uint64_t> recorded{0}, dropped{0};

  std::mutex mutex;  // guards quit
  std::condition_variable changed;
  bool quit = false;

  // ---- the writer's thread, and start() before there is one ----
  int file = -1;
  std::string path;
  std::uint64_t written = 0;      // bytes of the file
  spans::Source source;           // since the file began
  std::vector<std::uint64_t> at;  // by lane: the next span
  std::vector<ports::TraceSpan> taken;
  std::thread writer;

  Status open();
  void run();
  void drain();
  void append(const std::string& text);
  bool write(std::string_view text);
  void close_file();
};

TimelineRecorder::TimelineRecorder(SpanStore& store, Bytes limit) : impl_(std::make_unique<Impl>(store, limit)) {}
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
  for (std::size_t lane = 0; lane < t.at.size(); ++lane) t.at[lane] = t.store.ring(lane).written();
  t.store.add_reader();
  t.on.store(true, std::memory_order_release);
  t.writer = std::thread([&t] { t.run(); });
  return {};
}

void TimelineRecorder::stop() {
  Impl& t = *impl_;
  {
    std::lock_guard lock(t.mutex);
    t.quit = true;
  }
  t.changed.notify_all();
  if (!t.writer.joinable()) return;
  t.writer.join();
  t.on.store(false, std::memory_order_release);
  t.store.remove_reader();
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
  source = store.source();
  if (write(spans::header(source))) return {};
  const int error = errno;
  close_file();
  return {Code::kUnavailable, fmt::format("cannot write the timeline: {}", std::strerror(error)), path, kNoSpace};
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
  if (file >= 0) write(spans::kEnd);
  close_file();
}

// Writes what there is now.
void TimelineRecorder::Impl::drain() {
  for (std::size_t lane = 0; lane < at.size(); ++lane) {
    const SpanRing& ring = store.ring(lane);
    const std::uint64_t end = ring.written();
    while (at[lane] < end) {
      std::uint64_t lost = 0;
      const std::size_t count = ring.read(&at[lane], taken, &lost);
      dropped.fetch_add(lost, std::memory_order_relaxed);
      if (count == 0 || file < 0) break;
      const std::span some(taken.data(), count);
      const std::vector<SpanNames::Of> names = store.names().of(some);
      std::string text;
      for (std::size_t i = 0; i < count; ++i) spans::append_event(source, named(some[i], names[i]), &text);
      append(text);
      recorded.fetch_add(count, std::memory_order_relaxed);
    }
  }
}

void TimelineRecorder::Impl::append(const std::string& text) {
  if (text.empty() || file < 0) return;
  const bool full = written + text.size() > limit.value;
  if (full) {
    write(spans::kEnd);
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
bool TimelineRecorder::Impl::write(std::string_view text) {
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

}  // namespace tensorlane::telemetry
