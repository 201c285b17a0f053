// What the observations mean: a verdict for each pair of hosts, direction, family and class, the places that explain
// the failures, and what was not tested.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "monitor/verify/blame.h"
#include "monitor/verify/observations.h"
#include "monitor/verify/topology.h"

namespace tensorlane::verify {

// What nothing has tested is kUntested, and never passed.
enum class Outcome { kPassed, kFailed, kUntested };
const char* outcome_name(Outcome outcome);

// Of one class from host to host: whether its marks arrive as sent.
struct ClassVerdict {
  std::string from, to, cls;
  std::size_t rail = 0;
  bool ipv6 = false;
  Outcome dscp = Outcome::kUntested, pcp = Outcome::kUntested;
  std::string text;  // of a failure, or why it is untested
};

// Something is wrong at one place.
struct Finding {
  std::string where;  // for people
  Place place;        // for programs
  // That explain the same, for programs and for people: nothing that was seen tells them apart.
  std::vector<Place> alternatives;
  std::vector<std::string> or_where;
  std::string what;     // what happens there
  std::string cause;    // what is likely wrong
  std::string command;  // that shows it, and `device`, where to type it; empty: not known
  std::string device;
  std::vector<Change> changes;
  std::vector<std::string> classes;  // that suffer
  std::size_t flows = 0;             // that it explains
};

// How many of the equal-cost ways between two hosts the probes have taken.
struct Coverage {
  std::string from, to;
  std::size_t rail = 0;
  bool ipv6 = false;
  std::size_t ports = 0;             // source ports whose way was looked at
  std::size_t seen = 0;              // different ways
  bool changes = false;              // the same flow takes different ways, so that none was looked at
  std::optional<std::size_t> known;  // by the fabric file; unset: it does not say
  // Of all ways, weighted with how many flows take them: what has been seen. By Good and Turing's estimate where the
  // number of ways is not known. 0 where no way was looked at.
  double share = 0;
};

// Whether one class overtakes another one where two senders meet.
struct Overtaking {
  LoadFact fact;
  std::string high, low;  // names of its classes; empty: whichever, the port was left out
  Outcome outcome = Outcome::kUntested;
  std::string text;
};

struct LosslessVerdict {
  std::string cls;
  Outcome outcome = Outcome::kUntested;
  std::string text;
};

struct HostVerdict {
  std::string name;
  Outcome outcome = Outcome::kUntested;  // whether its effective tags are the fabric file's
  std::string text;
};

struct Report {
  std::vector<HostVerdict> hosts;
  std::vector<ClassVerdict> classes;
  std::vector<Finding> findings;
  std::vector<Coverage> coverage;
  std::vector<Overtaking> overtaking;
  std::vector<LosslessVerdict> lossless;
  std::vector<std::string> notes;  // what limits the result
  double seconds = 0;
  std::uint64_t probe_bytes = 0;
  // 0: nothing failed and the marks of every pair that was asked for were tested. 1 otherwise.
  int exit_status = 0;
};

Report analyse(const Observations& seen, const Topology& topology);

// What one measurement says. A class overtakes a lower one if its messages wait for less than half of what those of the
// lower one wait for at the same time, and if it keeps at least 75% of its rate alone; both by their intervals. The
// lower one's messages must take three times as long as alone, or there was no queue.
Outcome judge_measurement(const LoadFact& fact);
inline constexpr double kKeepsShare = 0.75, kOfTheWait = 0.5, kQueueFormed = 3;

}  // namespace tensorlane::verify
