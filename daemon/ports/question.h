// Questions about what a daemon does, of a user of this host or of the daemon of another one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"

namespace tensorlane::ports {

struct Question {
  // Who asks. 0, as root, for the user of the daemon that was asked first. A daemon of the fabric is believed: it would
  // otherwise be its host's root that lies.
  std::uint32_t uid = 0;
  std::string from;         // the host whose daemon was asked first; this one's name where it was this one
  bool here = true;         // it was this one
  std::vector<JobId> jobs;  // jobs that are on this host now, of which the asker may know
  std::string args;         // a JSON object, as text; what is in it depends on the kind
  bool may_see(JobId job) const { return std::find(jobs.begin(), jobs.end(), job) != jobs.end(); }
  // Root or the daemon's own user on a host of the fabric.
  bool of_operator() const { return uid == 0; }
};

// Takes one answer, once: text, which is JSON unless the kind says otherwise, or why there is none. Any thread.
using Answered = std::function<void(Result<std::string>)>;
// Answers questions of one kind. Runs on control's thread and returns at once; it may answer later. An answer that
// comes after the question's time is dropped.
using Answerer = std::function<void(const Question&, Answered)>;
using Answerers = std::map<std::string, Answerer, std::less<>>;  // by kind

}  // namespace tensorlane::ports
