// The last spans of all lanes, in memory: whoever wants them reads them here.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "common/spans/span.h"
#include "daemon/ports/telemetry.h"
#include "daemon/telemetry/span_names.h"
#include "daemon/telemetry/span_ring.h"

namespace tensorlane::telemetry {

struct SpanStoreConfig {
  spans::Source source;  // boot and wall_clock_ahead are found out by the store
  std::size_t lanes = 1;
  Bytes memory = mib(8);        // of all rings together; 0: nothing is kept for dumps
  Duration keep = seconds(30);  // what is older is in no dump
};

// Each lane writes a ring of its own. When a ring is full, its oldest span goes.
class SpanStore {
 public:
  // Where there is no memory for spans, the rings still have this much, for the timeline.
  static constexpr Bytes kLeastMemory = mib(4);

  explicit SpanStore(const SpanStoreConfig& config);
  ~SpanStore();
  SpanStore(const SpanStore&) = delete;
  SpanStore& operator=(const SpanStore&) = delete;

  // ---- lanes ----
  // One lane's end of it: record() by one thread, the others by any. Valid as long as the store.
  ports::Timeline& lane(std::size_t lane);
  // Whether a span is kept for dumps.
  bool remembers() const { return config_.memory.value > 0; }
  // Spans that fit in all the rings.
  std::size_t capacity() const;

  // ---- readers: any thread but a lane ----
  // Somebody else needs spans, or no more.
  void add_reader();
  void remove_reader();
  // The source, by the clocks as they are now.
  spans::Source source() const;
  const SpanRing& ring(std::size_t lane) const;
  std::size_t lanes() const { return faces_.size(); }
  const SpanNames& names() const { return names_; }

  struct Filter {
    Duration last = seconds(30);        // spans that ended before are left out
    std::optional<std::uint32_t> user;  // none: spans of all users
    std::string job;                    // its name; empty: of all jobs
    std::string host;                   // of jobs in which this host takes part; empty: of all
    std::optional<std::pair<JobId, Epoch>> only;
  };
  // Spans that a reader may see, packed (common/spans/packed.h), the newest ones within about `most`.
  std::string packed(const Filter& filter, Bytes most) const;
  std::size_t count(const Filter& filter) const;
  // The same as a timeline, all of them, oldest first by their ends. `write` takes it in pieces and may stop it by
  // returning false.
  void events(const Filter& filter, const std::function<bool(const std::string&)>& write) const;

  // Runs it on the store's own thread, after what came before. False: too much waits there, or too much of this user.
  // Any thread.
  bool later(std::uint32_t user, std::function<void()> task);
  // What waits there is dropped. Idempotent.
  void stop();

  // Now, by the clock of spans.
  static Time now();

 private:
  class Lane;
  std::vector<ports::TraceSpan> collect(const Filter& filter) const;
  void each(const Filter& filter, std::vector<ports::TraceSpan>& collected,
            const std::function<bool(const spans::Span&)>& use) const;
  void run();

  struct Task {
    std::uint32_t user;
    std::function<void()> run;
  };
  static constexpr std::size_t kMostTasks = 64, kMostTasksOfUser = 2;
  const SpanStoreConfig config_;
  const std::string boot_;
  std::atomic<bool> on_;
  std::atomic<int> readers_{0};
  SpanNames names_;
  std::vector<std::unique_ptr<Lane>> faces_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;                         // guarded by mutex_
  std::map<std::uint32_t, std::size_t> tasks_of_;  // the same: of users, those that wait or run
  bool quit_ = false;                              // the same
  std::thread worker_;                             // runs tasks and forgets names
};

// How a span with its names is written.
spans::Span named(const ports::TraceSpan& span, const SpanNames::Of& names);

}  // namespace tensorlane::telemetry
