// One contender of `tensorlane bench`: a group of worker processes that stay alive for the whole run and measure on
// command. The workers and the lines they speak are in tests/bench/peers/bench_worker.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "common/process/process.h"

namespace tensorlane::cli {

// What one command measured.
struct Measurement {
  std::vector<double> seconds;  // per allreduce, of the slowest rank
  double cpu_seconds = 0;       // of all workers, in allreduces and in nothing else
  int allreduces = 0;           // that cpu_seconds stands for: the timed ones and the warm-up
};

// How to start a contender: either one process per rank, or one launcher (mpirun) that starts them all.
struct Contender {
  std::string name;
  std::vector<process::Spawn> processes;  // each gets the link's path as its last argument but those in `tail`
  std::vector<std::string> tail;          // arguments after the link's path
};

// One thread owns it and the `processes` that it starts its workers with; these outlive it.
class BenchGroup {
 public:
  BenchGroup(process::Processes& processes, Contender contender, int ranks);
  // hang_up().
  ~BenchGroup();
  BenchGroup(const BenchGroup&) = delete;
  BenchGroup& operator=(const BenchGroup&) = delete;

  const std::string& name() const { return contender_.name; }

  // Starts the workers and waits until every rank has said hello. `folder` exists; the link is made in it. Call once.
  // Errors: kUnavailable (a worker ended), kTimedOut (names the ranks that did not come), kAborted (a signal asks us to
  // stop), kCorrupt (a worker does not keep to the protocol), kInternal (no socket).
  Status start(const std::string& folder, Duration timeout);

  // Lets all ranks do one allreduce of `bytes` to warm up and `count` timed ones. Errors as start(), and kInternal with
  // what a worker reports: a wrong sum, a failed call. After an error the group is of no further use.
  Result<Measurement> run(std::uint64_t bytes, int count, Duration timeout);

  // Ends the workers by hanging up. They take their time; `processes` ends what stays.
  void hang_up();
  // True until every process of the group has ended.
  bool running() const;

 private:
  struct Link {
    int fd = -1;
    std::string received;  // up to the line feed that has not come
  };

  Status listen_at(const std::string& path);
  Status spawn_all(const std::string& link_path);
  // Waits until one of `fds` can be read, for at most a moment; ok also when none can.
  Status wait_readable(std::vector<int> fds);
  // Moves links that have said hello from `arriving` to their place in links_.
  Status greet(std::vector<Link>& arriving);
  // Takes what has come without waiting: the line, once it is complete.
  Result<std::optional<std::string>> receive(Link& link);
  Result<Measurement> combine(const std::vector<std::string>& answers, int count) const;
  Status failure(Code code, const std::string& what, const std::string& fix) const;
  std::string missing(const std::vector<bool>& present) const;

  process::Processes& processes_;
  Contender contender_;
  std::size_t ranks_;
  std::vector<std::size_t> started_;  // indices in processes_
  int listener_ = -1;
  std::vector<Link> links_;  // by rank
};

}  // namespace tensorlane::cli
