#include "switch-config/apply/worker.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include "common/json/json.h"

namespace tensorlane::switches::apply {

namespace {

using Json = nlohmann::json;

constexpr int kRoundMs = 100;
constexpr int kAttempts = 20;  // at bringing back one port

volatile std::sig_atomic_t stop_asked = 0;  // a signal handler can reach nothing else

void ask_stop(int /*number*/) {
  stop_asked = 1;
}

// What the worker or the guardian has to say to the process that started them, if that is still there.
class Teller {
 public:
  explicit Teller(int fd) : fd_(fd) {}
  void say(const std::string& text) const { put({{"say", text}}); }
  // The last word: all ports are new, or what went wrong.
  void finish(const Status& status) const {
    put({{"done", static_cast<int>(status.code())},
         {"what", status.what()},
         {"where", status.where()},
         {"fix", status.fix()}});
    if (!status.ok()) ::syslog(LOG_WARNING, "%s", status.to_string().c_str());
  }

 private:
  void put(const Json& json) const {
    const std::string line = json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    const ssize_t written = ::write(fd_, line.data(), line.size());  // less than PIPE_BUF, or nobody listens
    static_cast<void>(written);
  }
  int fd_;
};

// Enters the namespace of a port. False where port or namespace have gone, and have taken the queues along.
Result<bool> find_port(Namespaces& namespaces, const PortChange& port) {
  const Result<ino_t> inode = namespaces.enter(port.ns);
  const bool other = inode.ok() && *inode != port.ns_inode;
  if (other && port.ns.empty())
    return Status(Code::kInvalidArgument, "this is not the network namespace that the apply began in", port.label(),
                  "run the command there");
  if (other || inode.status().code() == Code::kNotFound || (inode.ok() && !port_exists(port.port))) return false;
  TL_RETURN_IF_ERROR(inode.status());
  return true;
}

// Brings one port to `wanted` and reads it back.
Status change_and_verify(Namespaces& namespaces, const PortChange& port, const Queues& wanted, bool may_be_gone) {
  TL_ASSIGN_OR_RETURN(const bool found, find_port(namespaces, port));
  if (!found && may_be_gone) return Status::ok_status();
  if (!found) return Status(Code::kNotFound, "the port has gone", port.label());
  TL_ASSIGN_OR_RETURN(const std::string before, read_port(port.port));
  if (before == wanted.state) return Status::ok_status();
  TL_RETURN_IF_ERROR(change_port(port.port, wanted.lines));
  TL_ASSIGN_OR_RETURN(const std::string after, read_port(port.port));
  if (after == wanted.state) return Status::ok_status();
  return Status(Code::kInternal, "the port does not do what its commands did in the trial", port.label(),
                "does something else configure it?");
}

class Worker {
 public:
  Worker(Journal& journal, Namespaces& namespaces, const Record& record, pid_t guardian, const Teller& teller)
      : journal_(journal), namespaces_(namespaces), record_(record), guardian_(guardian), teller_(teller) {}

  void run() {
    Status status = change();
    if (status.ok() && !journal_.move(Phase::kChanging, Phase::kWaiting)) status = taken_back();
    if (status.ok()) {
      teller_.finish(status);
      status = wait();
      if (status.ok()) return;
    }
    const Status back = go_back(journal_, namespaces_);
    teller_.finish(back.ok() ? status : back);
  }

 private:
  static Status taken_back() { return Status(Code::kAborted, "the apply was taken back by --revert"); }

  // Whether to go on: nobody asks for the end, and the guardian is there.
  Status check(Phase expected) const {
    if (journal_.phase() != expected) return taken_back();
    if (stop_asked != 0) return Status(Code::kAborted, "the apply was asked to end by a signal");
    if (::getppid() != guardian_) return Status(Code::kAborted, "the guardian of the apply was killed");
    return Status::ok_status();
  }

  Status change() const {
    std::size_t changed = 0;
    for (const PortChange& port : record_.ports) {
      if (!port.changes()) continue;
      TL_RETURN_IF_ERROR(check(Phase::kChanging));
      TL_RETURN_IF_ERROR(change_and_verify(namespaces_, port, port.after, false));
      if (++changed == record_.canary)
        teller_.say(record_.canary == 2 ? fmt::format("{} and {}: changed and verified, now the others",
                                                      record_.ports[0].label(), record_.ports[1].label())
                                        : fmt::format("{}: changed and verified", record_.ports[0].label()));
    }
    return check(Phase::kChanging);
  }

  // Until somebody confirms: ok. An error where it is to go back.
  Status wait() const {
    for (;; ::usleep(kRoundMs * 1000)) {
      if (journal_.phase() == Phase::kNone) return Status::ok_status();
      TL_RETURN_IF_ERROR(check(Phase::kWaiting));
      if (now() >= record_.confirm_by)
        return Status(Code::kTimedOut, "nobody confirmed the apply in time, so that what ran before runs again");
    }
  }

  Journal& journal_;
  Namespaces& namespaces_;
  const Record& record_;
  const pid_t guardian_;
  const Teller& teller_;
};

// Until this process has no child any more.
void reap_all() {
  while (::waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
  }
}

void leave_the_terminal() {
  ::setsid();
  for (const int number : {SIGINT, SIGHUP, SIGTERM, SIGPIPE}) ::signal(number, SIG_IGN);
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int stream : {0, 1, 2}) ::dup2(nothing, stream);
  const int root = ::chdir("/");
  static_cast<void>(root);
  ::openlog("tensorlane-switch", LOG_PID, LOG_DAEMON);
}

// The guardian: the worker's life, and what comes after it.
void guard(Journal& journal, Namespaces& namespaces, const Record& record, const Teller& teller) {
  leave_the_terminal();
  // Commands of a worker that was killed become children of this process: none runs beside ours.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t guardian = ::getpid();
  const pid_t worker = ::fork();
  if (worker == 0) {
    ::signal(SIGTERM, ask_stop);
    Worker(journal, namespaces, record, guardian, teller).run();
    ::_exit(0);
  }
  reap_all();
  if (journal.phase() == Phase::kNone) return;
  const Status back = go_back(journal, namespaces);
  teller.finish(back.ok() ? Status(Code::kAborted, "the worker of the apply was killed") : back);
}

// What the two say, up to the last word. Without one both were killed: nothing.
std::optional<Status> listen(int fd, const std::function<void(const std::string&)>& say) {
  std::string text;
  char block[4096];
  for (ssize_t got = 0; (got = ::read(fd, block, sizeof block)) != 0;) {
    if (got < 0 && errno != EINTR) break;
    if (got > 0) text.append(block, static_cast<std::size_t>(got));
    for (std::size_t end = 0; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1)) {
      const Json line = Json::parse(text.substr(0, end), nullptr, false);
      if (line.contains("say")) say(line.value("say", ""));
      if (!line.contains("done")) continue;
      return Status(static_cast<Code>(line.value("done", 0)), line.value("what", ""), line.value("where", ""),
                    line.value("fix", ""));
    }
  }
  return std::nullopt;
}

}  // namespace

Time now() {
  timespec at{};
  ::clock_gettime(CLOCK_BOOTTIME, &at);
  return Time(at.tv_sec * 1'000'000'000LL + at.tv_nsec);
}

Result<std::vector<std::string>> changed_since(const Journal& journal, Namespaces& namespaces) {
  TL_ASSIGN_OR_RETURN(const Record record, journal.read());
  std::vector<std::string> changed;
  for (const PortChange& port : record.ports) {
    if (!port.changes()) continue;
    TL_ASSIGN_OR_RETURN(const bool found, find_port(namespaces, port));
    if (!found) continue;
    TL_ASSIGN_OR_RETURN(const std::string state, read_port(port.port));
    if (state != port.after.state) changed.push_back(port.label());
  }
  return changed;
}

Status go_back(Journal& journal, Namespaces& namespaces) {
  if (!journal.move(Phase::kChanging, Phase::kReverting))
    static_cast<void>(journal.move(Phase::kWaiting, Phase::kReverting));
  if (journal.phase() != Phase::kReverting) return Status::ok_status();
  TL_ASSIGN_OR_RETURN(const Record record, journal.read());
  for (std::size_t i = record.ports.size(); i-- > 0;) {
    const PortChange& port = record.ports[i];
    if (!port.changes()) continue;
    Status status;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      status = change_and_verify(namespaces, port, port.before, true);
      if (status.ok()) break;
      ::usleep(kRoundMs * 1000);
    }
    if (status.ok()) continue;
    return Status(Code::kInternal, fmt::format("{} cannot be brought back: {}", port.label(), status.to_string()),
                  journal.folder(),
                  "remove the cause, then `tensorlane-switch apply --revert`; rollback.sh does it by hand");
  }
  return journal.reverted();
}

Status change_all(Journal& journal, Namespaces& namespaces, const Record& record,
                  const std::function<void(const std::string&)>& say) {
  TL_RETURN_IF_ERROR(journal.begin(record));
  int ends[2] = {-1, -1};
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // as in guard(), for when both are killed
  std::fflush(nullptr);
  const pid_t guardian = ::pipe2(ends, O_CLOEXEC) == 0 ? ::fork() : -1;
  if (guardian == 0) {
    ::close(ends[0]);
    guard(journal, namespaces, record, Teller(ends[1]));
    ::_exit(0);
  }
  const Status no_process(Code::kResourceExhausted, "no process can be made", {}, std::strerror(errno));
  if (ends[1] >= 0) ::close(ends[1]);
  const std::optional<Status> last = guardian < 0 ? no_process : listen(ends[0], say);
  if (ends[0] >= 0) ::close(ends[0]);
  if (last && guardian > 0) return *last;
  reap_all();
  Status back = go_back(journal, namespaces);
  if (!back.ok()) return back;
  return last ? *last : Status(Code::kAborted, "the worker and the guardian of the apply were killed");
}

}  // namespace tensorlane::switches::apply
