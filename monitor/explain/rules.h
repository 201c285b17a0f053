// The rules by which explain() finds causes. Each looks at what all hosts say and adds what it finds.
#pragma once

#include <optional>
#include <vector>

#include "monitor/explain/explain.h"

namespace tensorlane::explain {

// Of one iteration, in seconds.
struct RankShare {
  const RankTimes* times;
  const HostTimes* host;
  double blocked = 0;               // in waits for operations
  std::optional<double> computing;  // the rest; not known where streams wait on a GPU
  // What the rest consists of, where that is known: on a CPU, without one, and neither.
  std::optional<double> run, runnable, idle;
  double lag = 0;  // RankLag::lag
};

struct Job {
  const std::vector<HostTimes>* hosts = nullptr;
  double iterations = 0, iteration = 0;
  double exposed = 0;       // Explanation::exposed; where streams wait, the most that it can be
  double stream_waits = 0;  // of all ranks, in all iterations
  std::vector<RankShare> ranks;

  // Whether so many seconds of an iteration are worth naming.
  bool worth(double seconds) const;
  double median_of(double RankShare::*what) const;
  double median_of(std::optional<double> RankShare::*what) const;
};

Job join_hosts(const std::vector<HostTimes>& hosts);

// The lanes of the host's daemon are ready to run, without a CPU, for much of the time, and for longer than they run.
bool lanes_lack_cpu(const HostTimes& host);

void find_slow_ranks(const Job& job, std::vector<Finding>* findings);
void find_short_cpus(const Job& job, std::vector<Finding>* findings);
// While all ranks wait for the network.
void find_network_causes(const Job& job, std::vector<Finding>* findings);

}  // namespace tensorlane::explain
