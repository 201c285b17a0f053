// What daemons have answered, this time and the time before: rates need both. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/json/json.h"
#include "monitor/explain/report.h"

namespace tensorlane::top {

// One round of questions. Every JSON is a daemon's, and may be anything.
struct Answers {
  std::string host;                                // of the daemon that was asked
  std::string asked;                               // the job that is looked at, as the user names it; empty for none
  std::string job;                                 // its id, where it was found
  std::string error;                               // why there are no answers at all
  std::string no_job;                              // why those of the job have not been asked
  nlohmann::json local;                            // the status of the asked daemon
  std::map<std::string, nlohmann::json> statuses;  // of all hosts, where these were asked
  std::map<std::string, nlohmann::json> reports;   // on `job`, by host
  std::map<std::string, nlohmann::json> jobs;      // this host's report on each of its jobs, by id
  std::map<std::string, std::string> silent;       // hosts without an answer, and why
};

struct Reports {
  nlohmann::json before, after;  // null where there is none
};

// Takes answers in the order of time.
class History {
 public:
  void add(Answers answers);

  const Answers& last() const { return last_; }
  // What happened between the last two answers of a host, by host: on last().job, or with `own` this host's by job.
  // `wrong` gets what makes no sense.
  std::map<std::string, explain::HostTimes> job_times(std::map<std::string, std::string>* wrong) const;
  std::map<std::string, explain::HostTimes> own_times() const;
  // The status of a host the time before; null where there was none.
  const nlohmann::json& status_before(const std::string& host) const;

 private:
  Answers last_;
  std::map<std::string, Reports> reports_, jobs_;
  std::map<std::string, nlohmann::json> statuses_;
};

}  // namespace tensorlane::top
