#include "monitor/cli/verify_agents.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "common/base/text.h"
#include "common/process/process.h"

extern char** environ;

namespace tensorlane::cli {
namespace {

constexpr std::size_t kMaxAnswer = std::size_t{64} << 20;
constexpr std::size_t kMaxPiece = std::size_t{1} << 20;  // bytes; a program takes 4 MiB in a line
constexpr std::string_view kSend = "tensorlane-send", kRuns = "tensorlane-runs";

// Reads the program behind it from the standard input, puts it where programs may run, and runs it; an installed one of
// the same version, which may have a capability, is preferred. It is one line, because the shell must not read on.
std::string remote_script(std::size_t bytes) {
  return fmt::format(
      "if [ \"$(tensorlane-probe --version 2>/dev/null)\" = \"tensorlane-probe {}\" ]; then echo {}; exec "
      "tensorlane-probe; fi; for d in \"${{TMPDIR:-/tmp}}\" /dev/shm \"$HOME\"; do "
      "f=$(mktemp \"$d/tensorlane-probe.XXXXXX\" 2>/dev/null) || continue; trap 'rm -f \"$f\"' EXIT; trap 'exit 1' HUP "
      "TERM INT; chmod 700 \"$f\"; printf '#!/bin/sh\\n' > \"$f\"; \"$f\" 2>/dev/null && break; rm -f \"$f\"; f=; "
      "done; "
      "[ -n \"$f\" ] || {{ echo 'no folder for a program there' >&2; exit 1; }}; echo {}; head -c {} > \"$f\"; echo "
      "{}; "
      "\"$f\"; exit\n",
      TENSORLANE_VERSION, kRuns, kSend, bytes, kRuns);
}

using Clock = std::chrono::steady_clock;

class Agent {
 public:
  Agent() = default;
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  ~Agent() { end(); }

  Status start(const std::string& command, const std::string& program) {
    program_ = &program;
    std::array<int, 2> in{}, out{}, err{};
    if (::pipe2(in.data(), O_CLOEXEC) != 0) return out_of_descriptors();
    if (::pipe2(out.data(), O_CLOEXEC) != 0) return out_of_descriptors();
    if (::pipe2(err.data(), O_CLOEXEC) != 0) return out_of_descriptors();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_adddup2(&actions, err[1], 2);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    std::array<const char*, 4> argv{"sh", "-c", command.c_str(), nullptr};
    const int error = ::posix_spawn(&pid_, "/bin/sh", &actions, &attributes, const_cast<char**>(argv.data()), environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    for (const int fd : {in[0], out[1], err[1]}) ::close(fd);
    in_ = in[1], out_ = out[0], err_ = err[0];
    for (const int fd : {in_, out_, err_}) ::fcntl(fd, F_SETFL, O_NONBLOCK);
    if (error != 0) {
      pid_ = -1;
      return Status(Code::kResourceExhausted, std::strerror(error), "posix_spawn");
    }
    to_send_ = remote_script(program.size());
    return {};
  }

  void begin(const ProbeLines& commands) {
    lines_.clear();
    received_ = 0;
    asked_ = !commands.empty();
    pieces_ = ProbePieces(commands, kMaxPiece);
    if (runs_) send_piece();
  }

  // Nothing is left to wait for: an answer, or an error.
  bool settled() const { return failure_ || !asked_ || done_; }
  void fail(Status why) {
    if (!failure_) failure_ = std::move(why);
    end();
  }
  Result<ProbeLines> answer() {
    if (failure_) return *failure_;
    asked_ = done_ = false;
    return std::exchange(lines_, {});
  }
  bool failed() const { return failure_.has_value(); }

  void add_polls(std::vector<pollfd>& waited) const {
    waited.push_back({failure_ ? -1 : out_, POLLIN, 0});
    waited.push_back({failure_ ? -1 : err_, POLLIN, 0});
    waited.push_back({failure_ || to_send_.empty() ? -1 : in_, POLLOUT, 0});
  }
  void go_on() {
    if (failure_) return;
    read_errors();
    send();
    receive();
  }

 private:
  static Status out_of_descriptors() {
    return Status(Code::kResourceExhausted, std::strerror(errno), "pipe", "raise the limit of open files");
  }

  void read_errors() {
    std::array<char, 4096> chunk;
    for (ssize_t got = 0; (got = ::read(err_, chunk.data(), chunk.size())) > 0;)
      if (complaint_.size() < kMaxComplaint) complaint_.append(chunk.data(), static_cast<std::size_t>(got));
  }

  void send() {
    while (!to_send_.empty()) {
      const ssize_t sent = ::write(in_, to_send_.data(), to_send_.size());
      if (sent <= 0) return;  // full, or gone: then the output ends, too
      to_send_.erase(0, static_cast<std::size_t>(sent));
    }
  }

  void receive() {
    std::array<char, 65536> chunk;
    for (;;) {
      const ssize_t got = ::read(out_, chunk.data(), chunk.size());
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (got <= 0) return gone();
      pending_.append(chunk.data(), static_cast<std::size_t>(got));
      received_ += static_cast<std::size_t>(got);
      for (std::size_t end = 0; !failure_ && (end = pending_.find('\n')) != std::string::npos;) {
        const std::string line = pending_.substr(0, end);
        pending_.erase(0, end + 1);
        take(line);
      }
      if (failure_) return;
      if (received_ > kMaxAnswer) return fail(Status(Code::kCorrupt, "it does not stop talking"));
    }
  }

  void take(const std::string& line) {
    if (!runs_) {
      // A login may print something of its own first.
      if (line == kSend) to_send_ += *program_;
      if (line != kRuns) return;
      runs_ = true;
      send_piece();
      return;
    }
    Result<nlohmann::json> parsed = parse_probe_line(line);
    if (!parsed.ok()) return fail(parsed.status());
    const bool is_done = (*parsed)["kind"] == "done";
    lines_.push_back(std::move(parsed).value());
    if (is_done) send_piece();
  }

  // The next one, or there is none: then all is done.
  void send_piece() {
    const std::optional<nlohmann::json> piece = pieces_.next(Clock::now());
    done_ = !piece;
    if (piece) to_send_ += piece->dump() + "\n";
  }

  void gone() {
    read_errors();
    std::string last = complaint_.substr(0, complaint_.find_last_not_of("\r\n ") + 1);
    if (const std::size_t line = last.rfind('\n'); line != std::string::npos) last.erase(0, line + 1);
    if (last.empty()) last = runs_ ? "the program has ended" : "the remote shell has ended without a word";
    fail(Status(Code::kUnavailable, printable(last)));
  }

  void end() {
    for (int* fd : {&in_, &out_, &err_})
      if (*fd >= 0) ::close(std::exchange(*fd, -1));
    if (pid_ <= 0) return;
    // Its input has ended, which ends it; whoever does not listen is killed.
    for (int tries = 0; tries < 50; ++tries) {
      if (::waitpid(pid_, nullptr, WNOHANG) == pid_) {
        pid_ = -1;
        return;
      }
      ::usleep(10000);
      if (tries == 30) ::kill(-pid_, SIGTERM);
    }
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  static constexpr std::size_t kMaxComplaint = 65536;

  const std::string* program_ = nullptr;
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  bool runs_ = false, asked_ = false, done_ = false;
  std::size_t received_ = 0;  // bytes of the answer
  std::string to_send_, pending_, complaint_;
  ProbePieces pieces_;
  ProbeLines lines_;
  std::optional<Status> failure_;
};

class Agents final : public ProbeHands {
 public:
  explicit Agents(std::string program) : program_(std::move(program)) {}

  Status start(const AgentOptions& options) {
    for (const std::string& host : options.hosts) {
      std::string command = options.shell + " sh";
      const std::string quoted = for_shell(host);
      for (std::size_t at = 0; (at = command.find("{host}", at)) != std::string::npos; at += quoted.size())
        command.replace(at, 6, quoted);
      agents_.push_back(std::make_unique<Agent>());
      TL_RETURN_IF_ERROR(agents_.back()->start(command, program_));
    }
    return {};
  }

  std::size_t size() const override { return agents_.size(); }

  std::vector<Result<ProbeLines>> ask(const std::vector<ProbeLines>& commands, Duration patience) override {
    for (std::size_t i = 0; i < agents_.size(); ++i)
      if (!agents_[i]->failed()) agents_[i]->begin(commands[i]);
    const auto until = Clock::now() + std::chrono::nanoseconds(patience.value);
    while (!std::ranges::all_of(agents_, &Agent::settled)) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
      if (left <= 0) break;
      std::vector<pollfd> waited;
      for (const auto& agent : agents_) agent->add_polls(waited);
      ::poll(waited.data(), waited.size(), static_cast<int>(std::min<long long>(left, 200)));
      for (const auto& agent : agents_) agent->go_on();
    }
    std::vector<Result<ProbeLines>> answers;
    for (const auto& agent : agents_) {
      if (!agent->settled()) agent->fail(Status(Code::kTimedOut, "no answer in time"));
      answers.push_back(agent->answer());
    }
    return answers;
  }

 private:
  const std::string program_;  // its bytes
  std::vector<std::unique_ptr<Agent>> agents_;
};

}  // namespace

Result<std::unique_ptr<ProbeHands>> start_agents(const AgentOptions& options) {
  if (options.shell.find("{host}") == std::string::npos)
    return Status(Code::kInvalidArgument, "the shell names no host", options.shell,
                  "write {host} where its name belongs");
  std::ifstream file(options.program, std::ios::binary);
  std::string program{std::istreambuf_iterator<char>(file), {}};
  if (program.empty()) return Status(Code::kNotFound, "there is no such program", options.program);
  ::signal(SIGPIPE, SIG_IGN);
  auto agents = std::make_unique<Agents>(std::move(program));
  TL_RETURN_IF_ERROR(agents->start(options));
  return std::unique_ptr<ProbeHands>(std::move(agents));
}

Result<std::string> find_probe_program() {
  std::error_code ignored;
  const auto beside = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() / "tensorlane-probe";
  if (std::filesystem::exists(beside, ignored)) return beside.string();
  return process::find_program("tensorlane-probe");
}

}  // namespace tensorlane::cli
