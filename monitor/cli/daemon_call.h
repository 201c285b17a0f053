// Commands ask the daemon of this host, and through it those of other hosts.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "common/json/json.h"

namespace tensorlane::cli {

// Where commands look for this host's daemon, as the client library does: TENSORLANE_SOCKET, else the packages' place.
std::string daemon_socket();

// A connected session socket, which is the caller's, or -1 with errno.
int connect_session(const std::string& path);

// Asks a daemon for its status over its session socket: JSON text. Errors: kUnavailable (no daemon there), kTimedOut.
Result<std::string> daemon_status(const std::string& socket_path);

// A question to daemons; docs/architecture.md says what they answer.
struct DaemonQuestion {
  std::string kind;
  nlohmann::json args = nlohmann::json::object();
  // Whose daemons are asked: those of the hosts of a job that the asked daemon knows (by name or id), else of all hosts
  // of the fabric file, else of these ones, else the asked one alone.
  std::string job;
  bool all_hosts = false;
  std::vector<std::string> hosts;
  Duration patience = seconds(3);  // for each host's answer, all at once
};
struct DaemonAnswer {
  std::string host;
  Result<std::string> text;  // or why the host has not answered
};
struct DaemonAnswers {
  std::string host;  // of the daemon that was asked
  std::vector<DaemonAnswer> answers;
};
// Errors: those of daemon_status, and what the asked daemon refuses. What goes wrong with a host is in its answer.
Result<DaemonAnswers> ask_daemons(const std::string& socket_path, const DaemonQuestion& question);

// By host: the JSON object that it has answered, or why there is none.
struct HostReports {
  std::map<std::string, nlohmann::json> reports;
  std::map<std::string, Status> silent;
};
HostReports sort_out(const DaemonAnswers& all);

}  // namespace tensorlane::cli
