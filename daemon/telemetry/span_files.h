// Files with the last spans of jobs that have failed, written by a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/telemetry/span_store.h"

namespace tensorlane::telemetry {

// A folder of timelines: spans-UID-JOB-MILLISECONDS.json, mode 0600. The oldest ones go when there are too many, of a
// user and of all; other files are left alone.
class SpanFiles {
 public:
  static constexpr std::size_t kMostFiles = 10, kMostFilesOfUser = 3;
  static constexpr Duration kBetween = seconds(5);  // a user's jobs that fail sooner after another one have none

  struct Saved {
    std::string job, path;
    std::uint32_t user;
  };

  // `store` outlives it. An empty `folder`: nothing is written.
  SpanFiles(const SpanStore& store, std::string folder, Duration between = kBetween);
  ~SpanFiles();  // writes what waits
  SpanFiles(const SpanFiles&) = delete;
  SpanFiles& operator=(const SpanFiles&) = delete;

  // The job has failed: its spans will be in a file, and the log says where. Nothing happens to a job that has not
  // begun on this host. Any thread, at once.
  void failed(JobId job, Epoch epoch, const std::string& name);
  // The files that were written and are still kept, oldest first. Any thread.
  std::vector<Saved> saved() const;
  void stop();

 private:
  struct Wanted {
    JobId job;
    Epoch epoch;
    std::string name;
    std::uint32_t user;
  };
  static constexpr std::size_t kMostWanted = 16;

  void run();
  void save(const Wanted& wanted);
  Result<std::string> write(const Wanted& wanted) const;
  void make_room(std::uint32_t user);

  const SpanStore& store_;
  const std::string folder_;
  const Duration between_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Wanted> wanted_;           // guarded by mutex_
  std::vector<Saved> saved_;            // the same
  std::map<std::uint32_t, Time> last_;  // the same: when a user's job had failed
  bool quit_ = false;                   // the same
  std::thread writer_;
};

// Where files go whose folder nobody has configured: `spans` in the state folder that the service manager has made, or
// nowhere.
std::string default_span_folder();

}  // namespace tensorlane::telemetry
