#include "common/process/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <sstream>

#include <fmt/format.h>

namespace tensorlane::process {

namespace {

constexpr std::size_t kMaxCapture = 64u << 20;
constexpr std::size_t kMaxLine = 64u << 10;  // a longer line is relayed in pieces

Time now() {
  return Time(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
                  .count());
}

int milliseconds_until(Time deadline) {
  const std::int64_t left = (deadline - now()).value;
  return left <= 0 ? 0 : static_cast<int>(std::min<std::int64_t>(left / 1'000'000 + 1, 3'600'000));
}

void close_fd(int& fd) {
  if (fd >= 0) ::close(fd);
  fd = -1;
}

struct Pipe {
  int read = -1;
  int write = -1;
  ~Pipe() {
    close_fd(read);
    close_fd(write);
  }
  bool open() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) return false;
    read = fds[0];
    write = fds[1];
    return true;
  }
};

Status system_error(std::string what, std::string where) {
  return Status(Code::kResourceExhausted, std::move(what), std::move(where), std::strerror(errno));
}

Status cannot_run(const std::string& program, int reason) {
  return Status(reason == ENOENT ? Code::kNotFound : Code::kResourceExhausted, fmt::format("cannot run '{}'", program),
                std::strerror(reason), "install it or correct PATH");
}

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&set, number);
  return set;
}

// The text of argv and of the environment, made before fork: a child of a process with threads may only call what is
// async-signal-safe.
struct Image {
  std::vector<std::string> environment_text;
  std::vector<char*> argv;
  std::vector<char*> environment;

  Image(const std::vector<std::string>& arguments, const std::vector<std::pair<std::string, std::string>>& added) {
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view text(*entry);
      const std::string_view name = text.substr(0, text.find('='));
      const bool replaced =
          std::any_of(added.begin(), added.end(), [&](const auto& pair) { return pair.first == name; });
      if (!replaced) environment_text.emplace_back(text);
    }
    for (const auto& [name, value] : added) environment_text.push_back(fmt::format("{}={}", name, value));
    for (std::string& text : environment_text) environment.push_back(text.data());
    environment.push_back(nullptr);
  }
};

// In the child: becomes the program, or tells the parent why not through `failure` and ends.
[[noreturn]] void become(const Image& image, const int (&streams)[3], pid_t parent, int failure) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // the parent died before the line above
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  for (int i = 0; i < 3; ++i) {
    if (streams[i] >= 0) ::dup2(streams[i], i);
  }
  ::execvpe(image.argv[0], image.argv.data(), image.environment.data());
  const int reason = errno;
  const ssize_t written = ::write(failure, &reason, sizeof reason);
  ::_exit(written > 0 ? 127 : 126);
}

// fork and exec; streams of -1 are inherited. The answer is the pid.
Result<pid_t> start(const Image& image, const int (&streams)[3]) {
  Pipe failure;
  if (!failure.open()) return system_error("cannot make a pipe", image.argv[0]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return system_error("cannot make a process", image.argv[0]);
  if (pid == 0) become(image, streams, parent, failure.write);
  ::setpgid(pid, pid);  // also here, so that a kill of the group right after start() finds it
  close_fd(failure.write);
  int reason = 0;
  ssize_t got;
  do {
    got = ::read(failure.read, &reason, sizeof reason);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return pid;
  ::waitpid(pid, nullptr, 0);
  return cannot_run(image.argv[0], reason);
}

int exit_status_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

void set_nonblocking(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

// Moves what is ready; closes `fd` at the end of the stream. Keeps at most kMaxCapture.
void capture(int& fd, std::string& text) {
  char block[16384];
  const ssize_t got = ::read(fd, block, sizeof block);
  if (got > 0) {
    text.append(block,
                std::min<std::size_t>(static_cast<std::size_t>(got), kMaxCapture - std::min(kMaxCapture, text.size())));
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    close_fd(fd);
  }
}

void feed(int& fd, const std::string& input, std::size_t& fed) {
  const ssize_t put = ::write(fd, input.data() + fed, input.size() - fed);
  if (put > 0) fed += static_cast<std::size_t>(put);
  const bool gone = put < 0 && errno != EAGAIN && errno != EINTR;
  if (gone || fed == input.size()) close_fd(fd);
}

// A program that does not read its input must not end us.
class IgnoreBrokenPipe {
 public:
  IgnoreBrokenPipe() : before_(::signal(SIGPIPE, SIG_IGN)) {}
  ~IgnoreBrokenPipe() { ::signal(SIGPIPE, before_); }
  IgnoreBrokenPipe(const IgnoreBrokenPipe&) = delete;
  IgnoreBrokenPipe& operator=(const IgnoreBrokenPipe&) = delete;

 private:
  void (*before_)(int);
};

}  // namespace

Result<CommandOutput> run_command(const std::vector<std::string>& argv, const std::string& input, Duration timeout) {
  TL_ASSERT(!argv.empty());
  Pipe in, out, err;
  if (!in.open() || !out.open() || !err.open()) return system_error("cannot make a pipe", argv[0]);
  const Image image(argv, {});
  TL_ASSIGN_OR_RETURN(const pid_t pid, start(image, {in.read, out.write, err.write}));
  for (int* theirs : {&in.read, &out.write, &err.write}) close_fd(*theirs);
  for (int ours : {in.write, out.read, err.read}) set_nonblocking(ours);
  const IgnoreBrokenPipe guard;
  const Time deadline = now() + timeout;
  CommandOutput output;
  std::size_t fed = 0;
  if (input.empty()) close_fd(in.write);
  bool late = false;
  while (!late && (out.read >= 0 || err.read >= 0)) {
    pollfd fds[3] = {{in.write, POLLOUT, 0}, {out.read, POLLIN, 0}, {err.read, POLLIN, 0}};
    const int ready = ::poll(fds, 3, milliseconds_until(deadline));
    late = ready == 0 && milliseconds_until(deadline) == 0;
    if (ready <= 0) continue;
    if (fds[0].revents != 0) feed(in.write, input, fed);
    if (fds[1].revents != 0) capture(out.read, output.out);
    if (fds[2].revents != 0) capture(err.read, output.err);
  }
  if (late) ::kill(-pid, SIGKILL);
  int wait_status = 0;
  while (::waitpid(pid, &wait_status, 0) < 0 && errno == EINTR) {
  }
  if (late) {
    return Status(Code::kTimedOut, fmt::format("'{}' took longer than {} s", argv[0], to_seconds(timeout)), output.err,
                  "it was killed; look at the load of this machine");
  }
  output.exit_status = exit_status_of(wait_status);
  return output;
}

Result<std::string> run_checked(const std::vector<std::string>& argv, const std::string& input, Duration timeout) {
  TL_ASSIGN_OR_RETURN(CommandOutput output, run_command(argv, input, timeout));
  if (output.exit_status == 0) return std::move(output.out);
  std::string words;
  for (const std::string& word : argv) words += (words.empty() ? "" : " ") + word;
  std::string where = output.err.substr(0, output.err.find('\n'));
  return Status(Code::kInternal, fmt::format("'{}' failed with exit status {}", words, output.exit_status),
                std::move(where));
}

Status start_detached(const std::vector<std::string>& argv) {
  TL_ASSERT(!argv.empty());
  TL_RETURN_IF_ERROR(find_program(argv[0]).status());
  const Image image(argv, {});
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const pid_t pid = nothing < 0 ? -1 : ::fork();
  if (pid == 0) {
    ::setsid();
    if (const pid_t grandchild = ::fork(); grandchild != 0) ::_exit(grandchild > 0 ? 0 : 1);
    for (int stream : {0, 1, 2}) ::dup2(nothing, stream);
    ::execvpe(image.argv[0], image.argv.data(), image.environment.data());
    ::_exit(127);
  }
  int wait_status = -1;
  while (pid > 0 && ::waitpid(pid, &wait_status, 0) < 0 && errno == EINTR) {
  }
  const Status failed = system_error("cannot make a process", argv[0]);
  if (nothing >= 0) ::close(nothing);
  return wait_status == 0 ? Status::ok_status() : failed;
}

Result<std::string> find_program(const std::string& name) {
  const auto executable = [](const std::string& path) { return ::access(path.c_str(), X_OK) == 0; };
  if (name.find('/') != std::string::npos) {
    if (executable(name)) return name;
    return cannot_run(name, errno);
  }
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "/usr/bin:/bin" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (executable(candidate)) return candidate;
  }
  return cannot_run(name, ENOENT);
}

// --- Processes

Processes::Processes() : broken_pipe_before_(::signal(SIGPIPE, SIG_IGN)) {
  const sigset_t set = stop_signals();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  signal_fd_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  TL_ASSERT(signal_fd_ >= 0);
}

Processes::~Processes() {
  stop(seconds(2));
  close_fd(signal_fd_);
  const sigset_t set = stop_signals();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  ::signal(SIGPIPE, broken_pipe_before_);
}

Result<std::size_t> Processes::spawn(const Spawn& how) {
  TL_ASSERT(!how.argv.empty());
  Child child;
  child.prefix = how.prefix;
  Pipe out, err;
  int file = -1;
  if (!how.output_file.empty()) {
    file = ::open(how.output_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0) {
      return Status(Code::kInvalidArgument, "cannot write the output file", how.output_file, std::strerror(errno));
    }
  } else if (!out.open() || !err.open()) {
    return system_error("cannot make a pipe", how.argv[0]);
  }
  const Image image(how.argv, how.environment);
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const Result<pid_t> pid = start(image, {nothing, file >= 0 ? file : out.write, file >= 0 ? file : err.write});
  for (int fd : {nothing, file}) close_fd(fd);
  if (!pid.ok()) return pid.status();
  child.pid = *pid;
  child.pidfd = static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0));
  TL_ASSERT(child.pidfd >= 0);  // Linux 5.3 has it
  child.streams[0] = {std::exchange(out.read, -1), STDOUT_FILENO, {}};
  child.streams[1] = {std::exchange(err.read, -1), STDERR_FILENO, {}};
  for (const Stream& stream : child.streams) {
    if (stream.fd >= 0) set_nonblocking(stream.fd);
  }
  children_.push_back(std::move(child));
  return children_.size() - 1;
}

// Writes whole lines, and the rest too when the stream has ended or the line is too long.
void Processes::flush(Child& child, Stream& stream, bool last) {
  std::string text;
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = stream.line.find('\n', begin)) != std::string::npos; begin = end + 1) {
    text += child.prefix + stream.line.substr(begin, end + 1 - begin);
  }
  stream.line.erase(0, begin);
  if (!stream.line.empty() && (last || stream.line.size() > kMaxLine)) {
    text += child.prefix + std::exchange(stream.line, {}) + "\n";
  }
  for (std::size_t put = 0; put < text.size();) {
    const ssize_t wrote = ::write(stream.to, text.data() + put, text.size() - put);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno == EPIPE && stop_signal_ == 0) stop_signal_ = SIGPIPE;  // nobody reads us any more
    if (wrote <= 0) return;
    put += static_cast<std::size_t>(wrote);
  }
}

void Processes::relay(Child& child, Stream& stream) {
  char block[16384];
  const ssize_t got = ::read(stream.fd, block, sizeof block);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got > 0) stream.line.append(block, static_cast<std::size_t>(got));
  flush(child, stream, got <= 0);
  if (got <= 0) close_fd(stream.fd);
}

// Notes the exit but leaves the zombie, so that the number of its group stays ours until stop() has killed the whole
// group.
void Processes::note_exit(Child& child) {
  siginfo_t info{};
  if (child.exit_status || ::waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0)
    return;
  if (info.si_pid == 0) return;
  child.exit_status = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
  close_fd(child.pidfd);
  // What it wrote before it ended is in the pipes; a grandchild may keep them open, so read only what is there.
  for (Stream& stream : child.streams) {
    for (int blocks = 0; stream.fd >= 0 && blocks < 64; ++blocks) {
      pollfd ready{stream.fd, POLLIN, 0};
      if (::poll(&ready, 1, 0) <= 0) break;
      relay(child, stream);
    }
    flush(child, stream, true);
  }
}

void Processes::take_signal() {
  signalfd_siginfo info{};
  if (::read(signal_fd_, &info, sizeof info) == sizeof info && stop_signal_ == 0)
    stop_signal_ = static_cast<int>(info.ssi_signo);
}

void Processes::poll_once(int timeout_ms) {
  std::vector<pollfd> fds{{signal_fd_, POLLIN, 0}};
  for (const Child& child : children_) {
    for (int fd : {child.pidfd, child.streams[0].fd, child.streams[1].fd}) fds.push_back({fd, POLLIN, 0});
  }
  if (::poll(fds.data(), fds.size(), timeout_ms) <= 0) return;
  if (fds[0].revents != 0) take_signal();
  for (std::size_t i = 0; i < children_.size(); ++i) {
    Child& child = children_[i];
    for (std::size_t s = 0; s < 2; ++s) {
      if (fds[1 + 3 * i + 1 + s].revents != 0) relay(child, child.streams[s]);
    }
    if (fds[1 + 3 * i].revents != 0) note_exit(child);
  }
}

Processes::Event Processes::wait(Duration timeout, std::size_t* exited) {
  const Time deadline = now() + timeout;
  while (true) {
    for (std::size_t i = 0; i < children_.size(); ++i) {
      if (!children_[i].exit_status || children_[i].reported) continue;
      children_[i].reported = true;
      *exited = i;
      return Event::kExited;
    }
    if (stop_signal_ != 0) return Event::kSignal;
    const int left = milliseconds_until(deadline);
    if (left == 0) return Event::kTimedOut;
    poll_once(left);
  }
}

void Processes::signal(std::size_t index, int number) {
  if (running(index)) ::kill(-children_[index].pid, number);
}

void Processes::stop(Duration grace) {
  std::vector<std::size_t> all(children_.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  stop(all, grace);
  for (Child& child : children_) {
    if (!std::exchange(child.collected, true)) ::waitpid(child.pid, nullptr, 0);
    for (Stream& stream : child.streams) close_fd(stream.fd);
  }
}

void Processes::stop(std::span<const std::size_t> indices, Duration grace) {
  const auto any_running = [&] { return std::ranges::any_of(indices, [this](std::size_t i) { return running(i); }); };
  for (const std::size_t i : indices) signal(i, SIGTERM);
  for (const Time deadline = now() + grace; any_running() && milliseconds_until(deadline) > 0;) {
    poll_once(milliseconds_until(deadline));
  }
  for (const std::size_t i : indices) {
    // A group whose leader has gone may still hold others.
    if (!children_[i].collected) ::kill(-children_[i].pid, SIGKILL);
  }
  while (any_running()) poll_once(100);
}

}  // namespace tensorlane::process
