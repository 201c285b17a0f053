// Child processes of a command: run one and take its output, or keep several, relay their output and end all of them
// whatever happens. One thread owns all of this. Every child is a process group of its own and dies with us
// (PR_SET_PDEATHSIG), even by SIGKILL.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"

namespace tensorlane::process {

struct CommandOutput {
  int exit_status = 0;  // 128 + N when signal N ended it, as a shell says it
  std::string out;
  std::string err;
};

// Runs a program to its end with `input` on its standard input and takes what it writes (at most 64 MiB of each stream;
// the rest is read and dropped). A program that fails is not an error here: look at exit_status. Errors: kNotFound (no
// such program), kTimedOut (its process group was killed), kResourceExhausted (no process or pipe to be had).
Result<CommandOutput> run_command(const std::vector<std::string>& argv, const std::string& input = {},
                                  Duration timeout = seconds(60));

// Like run_command, but a non-zero exit status is kInternal with the program's standard error as where: for tools that
// must succeed.
Result<std::string> run_checked(const std::vector<std::string>& argv, const std::string& input = {},
                                Duration timeout = seconds(60));

// Starts a program that outlives us: a session of its own, nothing on its standard streams, no child of ours. Only the
// start is known to have worked. Errors: kNotFound, kResourceExhausted.
Status start_detached(const std::vector<std::string>& argv);

// The path that `name` means, looked up in PATH as a shell does. kNotFound when there is no such program. Spawning says
// so too; this is for programs that another one (`ip netns exec`) starts.
Result<std::string> find_program(const std::string& name);

// How to start a child.
struct Spawn {
  std::vector<std::string> argv;
  std::vector<std::pair<std::string, std::string>> environment;  // added to ours; a name given here wins
  std::string prefix;                                            // put before each line that it writes: "[rank 0] "
  std::string output_file;  // when set: both streams go there (appended, mode 0644) and nothing is relayed
};

// Several children. While this object lives, SIGINT, SIGTERM, SIGHUP and SIGQUIT do not kill this process but make
// wait() say kSignal, and so does SIGPIPE's cause, that nobody reads what is relayed: the caller then leaves, and the
// destructor ends every child.
class Processes {
 public:
  enum class Event { kExited, kSignal, kTimedOut };

  Processes();
  // stop(2 seconds).
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  // Starts a child; the answer is its index. Errors: kNotFound (no such program), kResourceExhausted, kInvalidArgument
  // (output_file).
  Result<std::size_t> spawn(const Spawn& how);

  // Relays output until a child exits (reported once per child, `exited` = its index), a signal asks us to stop, or the
  // time is over.
  Event wait(Duration timeout, std::size_t* exited);

  std::size_t size() const { return children_.size(); }
  pid_t pid(std::size_t index) const { return children_[index].pid; }
  bool running(std::size_t index) const { return !children_[index].exit_status; }
  // 128 + N when signal N ended it. The child must have exited.
  int exit_status(std::size_t index) const { return *children_[index].exit_status; }
  // The signal that made wait() say kSignal; 0 before.
  int stop_signal() const { return stop_signal_; }

  // Sends a signal to the process group of one child; nothing when it has exited.
  void signal(std::size_t index, int number);
  // SIGTERM to the groups of all children, SIGKILL to what is left after `grace`, relaying their last words. Groups are
  // killed even when their leader has exited. Idempotent.
  void stop(Duration grace);
  // The same with some of the children; the others go on.
  void stop(std::span<const std::size_t> indices, Duration grace);

 private:
  struct Stream {
    int fd = -1;
    int to = -1;  // 1 or 2
    std::string line;
  };
  struct Child {
    pid_t pid = -1;
    int pidfd = -1;
    std::string prefix;
    Stream streams[2];
    std::optional<int> exit_status;
    bool reported = false;   // by wait()
    bool collected = false;  // no zombie any more; its number may be somebody else's
  };

  void relay(Child& child, Stream& stream);
  void flush(Child& child, Stream& stream, bool last);
  void note_exit(Child& child);
  // One round of poll(); true when something other than output happened.
  void poll_once(int timeout_ms);
  void take_signal();

  std::vector<Child> children_;
  int signal_fd_ = -1;
  int stop_signal_ = 0;
  void (*broken_pipe_before_)(int);  // what SIGPIPE did
};

}  // namespace tensorlane::process
