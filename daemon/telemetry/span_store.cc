#include "daemon/telemetry/span_store.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <utility>

#include "common/spans/packed.h"

namespace tensorlane::telemetry {
namespace {

constexpr int kNice = 10;  // who looks at spans does not take the time of who makes them
// Spans that are given names under one lock.
constexpr std::size_t kSpansAtOnce = 256;
constexpr auto kForgetEvery = std::chrono::seconds(5);

std::int64_t nanoseconds_of(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

std::string boot_id() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  in >> id;
  return id;
}

std::size_t spans_of_lane(const SpanStoreConfig& config) {
  const Bytes memory = config.memory.value > 0 ? config.memory : SpanStore::kLeastMemory;
  return std::max<std::size_t>(memory.value / SpanRing::kSpanBytes / config.lanes, 1);
}

Time end_of(const ports::TraceSpan& span) {
  return span.begin + span.length;
}

Time before_now(Duration ago) {
  return Time(SpanStore::now().value - ago.value);
}

}  // namespace

static_assert(static_cast<int>(spans::Phase::kReceive) == static_cast<int>(ports::TraceSpan::Phase::kReceive));
static_assert(static_cast<int>(spans::Phase::kQueue) == static_cast<int>(ports::TraceSpan::Phase::kQueue));

spans::Span named(const ports::TraceSpan& span, const SpanNames::Of& names) {
  return {.begin = span.begin.value,
          .length = span.length.value,
          .phase = static_cast<spans::Phase>(span.phase),
          .cls = span.cls.value,
          .rail = span.rail.value,
          .eager = span.eager,
          .tensor_id = span.tensor.value,
          .epoch = names.epoch.value,
          .slice = span.slice,
          .grant = span.grant,
          .offset = span.offset,
          .bytes = span.bytes,
          .sequence = span.sequence.value,
          .tensor = names.tensor,
          .job = names.job,
          .peer = names.peer};
}

class SpanStore::Lane final : public ports::Timeline {
 public:
  Lane(SpanStore& store, std::size_t capacity) : ring(capacity), store_(store) {}

  bool enabled() const override { return store_.on_.load(std::memory_order_relaxed); }
  // Arrivals of a turn follow each other: each begins where the one before has ended.
  void record(const ports::TraceSpan& span) override {
    if (!enabled()) return;
    if (span.phase != ports::TraceSpan::Phase::kReceive) return ring.push(span);
    ports::TraceSpan arrival = span;
    const Time end = end_of(span);
    arrival.begin = std::min(std::max(span.begin, arrived_), end);
    arrival.length = end - arrival.begin;
    arrived_ = end;
    ring.push(arrival);
  }
  void begin_job(const ports::TraceJob& job) override {
    if (enabled()) store_.names_.begin(job, now());
  }
  void end_job(JobId job, Epoch epoch) override {
    if (enabled()) store_.names_.end(job, epoch, now());
  }
  void name(JobId job, TensorId tensor, const char* name) override {
    if (enabled()) store_.names_.name(job, tensor, name, now());
  }

  SpanRing ring;

 private:
  SpanStore& store_;
  Time arrived_;
};

SpanStore::SpanStore(const SpanStoreConfig& config) : config_(config), boot_(boot_id()), on_(config.memory.value > 0) {
  for (std::size_t lane = 0; lane < config.lanes; ++lane)
    faces_.push_back(std::make_unique<Lane>(*this, spans_of_lane(config)));
  worker_ = std::thread([this] { run(); });
}

SpanStore::~SpanStore() {
  stop();
}

void SpanStore::stop() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  changed_.notify_all();
  if (worker_.joinable()) worker_.join();
}

bool SpanStore::later(std::uint32_t user, std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (quit_ || tasks_.size() >= kMostTasks) return false;
  std::size_t& of_user = tasks_of_[user];
  if (of_user >= kMostTasksOfUser) return false;
  ++of_user;
  tasks_.push_back({user, std::move(task)});
  changed_.notify_all();
  return true;
}

ports::Timeline& SpanStore::lane(std::size_t lane) {
  return *faces_.at(lane);
}

const SpanRing& SpanStore::ring(std::size_t lane) const {
  return faces_.at(lane)->ring;
}

std::size_t SpanStore::capacity() const {
  return faces_.size() * faces_.front()->ring.capacity();
}

void SpanStore::add_reader() {
  ++readers_;
  on_.store(true, std::memory_order_release);
}

void SpanStore::remove_reader() {
  if (--readers_ == 0 && !remembers()) on_.store(false, std::memory_order_release);
}

Time SpanStore::now() {
  return Time(nanoseconds_of(CLOCK_MONOTONIC));
}

spans::Source SpanStore::source() const {
  spans::Source source = config_.source;
  source.boot = boot_;
  source.wall_clock_ahead = nanoseconds_of(CLOCK_REALTIME) - nanoseconds_of(CLOCK_MONOTONIC);
  return source;
}

// What is gone has its names as long as spans of it may be asked for.
void SpanStore::run() {
  pthread_setname_np(pthread_self(), "spans");
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
  std::unique_lock lock(mutex_);
  auto next = std::chrono::steady_clock::now() + kForgetEvery;
  while (!quit_) {
    const bool woken = changed_.wait_until(lock, next, [this] { return quit_ || !tasks_.empty(); });
    if (quit_) return;
    Task task{};
    if (woken) {
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    lock.unlock();
    if (woken) task.run();
    if (std::chrono::steady_clock::now() >= next) {
      names_.forget(before_now(config_.keep));
      next = std::chrono::steady_clock::now() + kForgetEvery;
    }
    lock.lock();
    if (woken && --tasks_of_[task.user] == 0) tasks_of_.erase(task.user);
  }
}

// In the order of their ends.
std::vector<ports::TraceSpan> SpanStore::collect(const Filter& filter) const {
  const Time since = before_now(std::min(filter.last, config_.keep));
  std::vector<ports::TraceSpan> collected, some(kSpansAtOnce);
  for (const auto& lane : faces_) {
    const std::uint64_t end = lane->ring.written();
    std::uint64_t at = 0, lost = 0;
    while (at < end) {
      const std::size_t count = lane->ring.read(&at, some, &lost);
      if (count == 0) break;
      for (std::size_t i = 0; i < count; ++i) {
        if (end_of(some[i]) < since || (filter.only && some[i].job != filter.only->first)) continue;
        collected.push_back(some[i]);
      }
    }
  }
  std::ranges::stable_sort(collected, {}, end_of);
  return collected;
}

// Gives them their names and leaves out what the filter does not let through.
void SpanStore::each(const Filter& filter, std::vector<ports::TraceSpan>& collected,
                     const std::function<bool(const spans::Span&)>& use) const {
  for (std::size_t at = 0; at < collected.size(); at += kSpansAtOnce) {
    const std::span some(collected.data() + at, std::min(kSpansAtOnce, collected.size() - at));
    const std::vector<SpanNames::Of> names = names_.of(some, filter.host);
    for (std::size_t i = 0; i < some.size(); ++i) {
      if (!names[i].shown) continue;
      if (filter.user && names[i].user != filter.user) continue;
      if (!filter.job.empty() && names[i].job != filter.job) continue;
      if (filter.only && names[i].epoch != filter.only->second) continue;
      if (!use(named(some[i], names[i]))) return;
    }
  }
}

std::string SpanStore::packed(const Filter& filter, Bytes most) const {
  std::vector<ports::TraceSpan> collected = collect(filter);
  std::ranges::reverse(collected);
  spans::Packer packer;
  std::uint64_t left_out = 0;
  each(filter, collected, [&](const spans::Span& span) {
    if (left_out > 0 || packer.bytes() >= most.value) {
      ++left_out;
    } else {
      packer.add(span);
    }
    return true;
  });
  return packer.take(source(), left_out);
}

std::size_t SpanStore::count(const Filter& filter) const {
  std::vector<ports::TraceSpan> collected = collect(filter);
  std::size_t count = 0;
  each(filter, collected, [&](const spans::Span&) { return ++count > 0; });
  return count;
}

void SpanStore::events(const Filter& filter, const std::function<bool(const std::string&)>& write) const {
  constexpr std::size_t kPiece = std::size_t{256} << 10;
  const spans::Source from = source();
  std::vector<ports::TraceSpan> collected = collect(filter);
  std::string text = spans::header(from);
  bool good = true;
  each(filter, collected, [&](const spans::Span& span) {
    spans::append_event(from, span, &text);
    if (text.size() < kPiece) return true;
    good = write(std::exchange(text, {}));
    return good;
  });
  if (good) write(text + std::string(spans::kEnd));
}

}  // namespace tensorlane::telemetry
