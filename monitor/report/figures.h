// The figures of `tensorlane report`: made from what the hosts of a job say while it is watched. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/json/json.h"
#include "monitor/explain/explain.h"

namespace tensorlane::report {

// However many hosts a job has, a report stays short: beyond these the worst are listed, and how many more there are.
inline constexpr std::size_t kMostRanks = 32, kMostTimes = 60, kMostFlows = 20, kMostHosts = 24, kMostTexts = 50;

// What one host says of the job at one time (daemon/wiring/job_report.h), by host. Any JSON.
using Reports = std::map<std::string, nlohmann::json>;

struct TimePoint {
  double from = 0, to = 0;  // seconds since the watching began
  double iteration = 0;     // seconds, in the mean
};

struct ClassFigures {
  std::string name;
  double sent = 0, received = 0, demoted = 0;  // bits/s, of all hosts
  std::optional<double> queue, completion;     // seconds, in the mean
};

struct RankFigures {
  std::uint32_t rank = 0;
  std::string host;
  double lag = 0;                           // explain::RankLag, of the whole time, as is
  std::optional<double> computing;          // this
  std::vector<std::optional<double>> lags;  // in each of Figures::times
};

// Flows of a class that carry the same tags.
struct TagFigures {
  std::string cls, transport;
  std::optional<int> asked_dscp, asked_pcp, dscp, pcp;  // nothing where it is not known
  std::size_t flows = 0;
  bool known() const { return dscp && asked_dscp; }  // of RDMA and shared memory it is not
  bool wrong() const { return known() && dscp != asked_dscp; }
};

struct VerifyCell {
  std::size_t passed = 0, failed = 0, untested = 0;  // classes, families and rails
};
struct VerifyFigures {
  std::vector<std::string> hosts;  // of rows and columns: those with most failures first
  std::size_t other_hosts = 0;
  std::map<std::pair<std::size_t, std::size_t>, VerifyCell> cells;  // from, to
  VerifyCell all;
  std::vector<std::string> findings;  // where, what and what is likely wrong
  std::size_t other_findings = 0;
};

struct Figures {
  std::string job;
  double seconds = 0;
  std::size_t hosts = 0;                      // that have answered
  std::map<std::string, std::string> silent;  // others, and why
  std::vector<TimePoint> times;
  explain::Explanation explanation;
  std::vector<ClassFigures> classes;
  std::vector<RankFigures> ranks;  // the latest first, at most kMostRanks
  std::size_t other_ranks = 0;
  std::vector<TagFigures> tags;
  std::vector<std::string> wrong_flows;  // that do not carry the tags of their class
  std::size_t other_wrong_flows = 0;
  std::optional<VerifyFigures> verify;
};

// Takes what hosts say, in the order of time, and keeps the first and the last of it.
class Watch {
 public:
  // `at`: seconds since the watching began.
  void add(double at, Reports reports);
  void add_silent(const std::string& host, const std::string& why) { silent_[host] = why; }
  // Error: kUnavailable, where the job completed no iteration.
  Result<Figures> figures() const;

 private:
  // Looks that follow each other. Each rank's lag is the mean of those in which it was there.
  struct Point {
    struct Mean {
      double sum = 0, count = 0;
    };
    TimePoint time;
    std::size_t looks = 1;
    std::map<std::uint32_t, Mean> lags;

    void append(Point next);
  };
  void add_point(Point point);

  Reports first_, base_, last_;  // base: when the last iteration that was seen ended
  double began_ = 0, based_ = 0, ended_ = 0;
  bool any_ = false;
  // At most kMostTimes, however long it goes on: all but the last one of `looks_` looks.
  std::vector<Point> points_;
  std::size_t looks_ = 1;
  std::map<std::string, std::string> silent_;
};

// The tags in force, from statuses of daemons by host: of the flows of a job.
void add_tags(const std::map<std::string, nlohmann::json>& statuses, std::uint64_t job, Figures* figures);

// Reads what `tensorlane verify --json` printed. Error: kInvalidArgument, where it is none.
Result<VerifyFigures> read_verify(const nlohmann::json& printed);

nlohmann::json to_json(const Figures& figures);

}  // namespace tensorlane::report
