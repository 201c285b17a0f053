// What bounds a job now, and who is the slow one: conclusions from what its hosts have counted for some seconds. Pure.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "monitor/explain/report.h"

namespace tensorlane::explain {

enum class Cause {
  kComputation,    // the job computes, and hardly waits for anything
  kSlowComputing,  // a rank computes longer than the others
  kSlowInput,      // a rank neither computes nor waits for tensors nor for a CPU, longer than the others
  kNoCpu,          // a rank waits for a CPU, longer than the others; or all do
  kDaemonNoCpu,    // a daemon waits for a CPU
  kFullLink,       // a host's link is full of the job's own bytes
  kPattern,        // the same, and the job sends much less over others' links
  kForeignBulk,    // a host's link is full of others' bytes
  kSlowLink,       // a host's link carries less than the fabric file says
  kNoPriority,     // urgent packets wait as long as bulk: something on the path serves them in the order of arrival
  kLossyPath,      // packets between two hosts are lost
  kLimit,          // urgent bytes are demoted by the host's limit
  kOrdering,       // all bytes are in one class: none of them goes before another in the network
  kSmallTensors,   // many small operations without batches
  kSmallWindow,    // the window of a class is less than the path holds
  kStaging,        // the receiver's staging is full
  kNetwork,        // waiting for the network, and nothing above explains it
  kNotKnown,       // nothing was found, and how long the job waits for tensors is not known
};
inline constexpr std::array<std::string_view, 18> kCauseNames{
    "computation", "slow computing", "slow input",   "no cpu",        "daemon without cpu",
    "full link",   "pattern",        "foreign bulk", "slow link",     "no priority",
    "lossy path",  "limit",          "ordering",     "small tensors", "small window",
    "staging",     "network",        "not known"};
constexpr std::string_view cause_name(Cause cause) {
  return kCauseNames[static_cast<std::size_t>(cause)];
}

enum class Confidence { kPossible, kLikely, kSure };
inline constexpr std::array<std::string_view, 3> kConfidenceNames{"possible", "likely", "sure"};
constexpr std::string_view confidence_name(Confidence confidence) {
  return kConfidenceNames[static_cast<std::size_t>(confidence)];
}

// Where a finding is that holds for every rank.
inline constexpr const char* kAllRanks = "all ranks";

struct Finding {
  Cause cause{};
  Confidence confidence{};
  double seconds = 0;  // of an iteration that it costs, at most; 0: not known
  // "rank 3 on host gpu04", "the path gpu01 -> gpu02", "class urgent on host gpu01"; of several the first ones
  std::string where;
  std::string evidence;                  // the figures
  std::string help;                      // what would help
  std::vector<std::string> places = {};  // all of them
  double amount = 0;  // kForeignBulk: what others send, kSlowLink: what it carries, of the link's speed
};

struct RankLag {
  std::uint32_t rank = 0;
  std::string host;
  double lag = 0;                   // how much later than the first rank it submits an operation, in the mean
  std::optional<double> computing;  // of an iteration that it is not blocked in waits; not known where its streams wait
};

// Why `exposed` is not known, for people.
inline constexpr const char* kStreamsWait = "streams wait on the GPU";

// As findings call it: "rank 3 on host gpu04".
std::string rank_name(std::uint32_t rank, const std::string& host);
// The lower one of two in the middle; 0 of none.
double median(std::vector<double> values);

struct Explanation {
  double iteration = 0;   // seconds
  double iterations = 0;  // that were seen
  // Of an iteration in which even the rank that waits least waits for operations, and the share of an iteration in
  // which the rank that computes longest computes. Not known where streams of a GPU wait: the programs do not see it.
  std::optional<double> exposed, efficiency;
  double connections_left_out = 0;  // that the hosts do not describe, all together
  std::vector<RankLag> ranks;       // the latest first
  std::vector<Finding> findings;    // the surest first, of equally sure ones what costs most; never empty
};

// The error of a job that stands still, with a host of it that is silent and why: it may be the cause.
inline Status beside_silence(const Status& error, const std::string& host, const std::string& why) {
  return {error.code(), error.what() + ", and host " + host + " says nothing", host, why};
}

// Error kUnavailable: no iteration was completed, and so there is nothing to compare.
Result<Explanation> explain(const std::vector<HostTimes>& hosts);

}  // namespace tensorlane::explain
