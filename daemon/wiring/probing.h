// Answers `tensorlane verify` on this host: runs tensorlane-probe as a child, gives it the commands that a question
// brings, and answers with what it says. Nothing of the daemon waits for the child, and nothing of it runs with more
// rights than the daemon has.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/fabric/fabric.h"
#include "daemon/ports/probe_tokens.h"
#include "daemon/ports/question.h"
#include "daemon/wiring/probe_ports.h"
#include "daemon/wiring/transports.h"

namespace tensorlane::wiring {

// Any thread. Its own thread, which speaks with the child, begins with the first question and ends with the object.
class Probing {
 public:
  struct Parts {
    std::string program;             // tensorlane-probe; empty: beside this process's own program, else in PATH
    std::function<bool()> has_jobs;  // any thread
    ports::ProbeTokens* tokens;      // outlives this
    fabric::ClassTable classes;      // in force here
    // What flows go over, by rail. It outlives this, and does not change once a question comes. Null: nothing is said.
    const std::vector<RailTransport>* rails = nullptr;
    std::optional<ProbePorts> ports = {};  // none: any
  };
  explicit Probing(Parts parts);
  ~Probing();
  Probing(const Probing&) = delete;
  Probing& operator=(const Probing&) = delete;

  // A question has {"session": text, "commands": [...], "patience_ms": n, "beside_jobs": bool}; commands are those of
  // common/probe/README.md, and the answer is the lines that come of them; before those of `describe`, one of kind
  // "daemon" with the classes in force (`name`, `dscp`, `pcp`, `lossless`, most urgent first), and as `transports` for
  // each rail the names of those that its flows may go over. One session at a time; it ends with {"end": true}, or when
  // it has asked nothing for a minute. Errors: kInvalidArgument (a port that may not be probed), kPermissionDenied (not
  // root or the daemon's user), kUnavailable (another session, a running job, a program that cannot be started or has
  // ended), kTimedOut.
  void answer(const ports::Question& question, ports::Answered done);
  // Ends the session and the thread. Afterwards nothing is answered.
  void stop();

 private:
  struct Task;
  class Child;

  void run();
  void serve(Task& task);
  Status open_session(const Task& task);
  void end_session();
  void allow_tokens();

  const Parts parts_;
  std::mutex mutex_;
  std::condition_variable wakes_;
  std::deque<std::unique_ptr<Task>> tasks_;
  bool stops_ = false;
  std::thread thread_;
  // The thread's own.
  std::string session_;
  std::string ended_;  // the last session that was, on purpose: a late question does not begin it again
  std::vector<ports::ProbeTokens::Token> tokens_;  // that the data ports answer for it
  std::unique_ptr<Child> child_;
};

}  // namespace tensorlane::wiring
