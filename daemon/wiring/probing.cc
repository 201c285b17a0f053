#include "daemon/wiring/probing.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "common/json/json.h"
#include "common/probe/answerer.h"
#include "common/probe/exchange.h"
#include "common/probe/session.h"
#include "daemon/lane/clocks.h"

extern char** environ;

namespace tensorlane::wiring {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxWaiting = 16;                   // questions
constexpr std::size_t kMaxLines = std::size_t{15} << 20;  // of one answer, below what control carries
constexpr auto kIdle = std::chrono::seconds(60);          // of a session
constexpr int kMaxPatienceMs = 300'000;
constexpr Duration kTokenLife = seconds(600);
constexpr std::uint64_t kTokenAnswers = 200'000;
// Of a session, which needs one; the data ports keep few, and not for sessions alone.
constexpr std::size_t kMostTokens = 2;

std::string find_program() {
  std::error_code ignored;
  const auto beside = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() / "tensorlane-probe";
  return std::filesystem::exists(beside, ignored) ? beside.string() : "tensorlane-probe";
}

bool is_command(const json& command, const char* name) {
  return command.is_object() && command.value("do", json()) == json(name);
}

// Of "local, rdma, tcp" each.
json names_in(const std::string& list) {
  json names = json::array();
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t end = std::min(list.find(", ", at), list.size());
    names.push_back(list.substr(at, end - at));
    at = end + 2;
  }
  return names;
}

// What the daemon's flows carry, for comparison with the file that `tensorlane verify` was given, and what they go
// over.
std::string daemon_line(const fabric::ClassTable& table, const std::vector<RailTransport>* rails) {
  json classes = json::array();
  const auto add = [&](const fabric::TrafficClass& cls) {
    classes.push_back({{"name", cls.name}, {"dscp", cls.dscp}, {"pcp", cls.pcp}, {"lossless", cls.lossless}});
  };
  add(table.control);
  for (const fabric::TrafficClass& cls : table.data) add(cls);
  json line{{"kind", "daemon"}, {"classes", std::move(classes)}};
  if (rails != nullptr)
    for (const RailTransport& rail : *rails) line["transports"].push_back(names_in(rail.name));
  return line.dump() + "\n";
}

}  // namespace

struct Probing::Task {
  std::string session;
  std::vector<std::string> commands;
  int patience_ms = 0;
  bool ends = false;
  ports::Answered done;
};

// The program with its pipes, and a channel for connections. It ends when its input does, and is killed if it does not.
class Probing::Child {
 public:
  ~Child() {
    for (const int fd : {in_, out_, channel_})
      if (fd >= 0) ::close(fd);
    if (pid_ <= 0) return;
    for (int tries = 0; tries < 20 && ::waitpid(pid_, nullptr, WNOHANG) == 0; ++tries) ::usleep(5000);
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  Status start(const std::string& program) {
    Ends in, out, channel;
    const int made = ::pipe2(in.fds.data(), O_CLOEXEC) | ::pipe2(out.fds.data(), O_CLOEXEC) |
                     ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, channel.fds.data());
    if (made != 0)
      return Status(Code::kResourceExhausted, std::strerror(errno), "pipe", "raise the limit of open files");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in.fds[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out.fds[1], 1);
    posix_spawn_file_actions_adddup2(&actions, channel.fds[1], probe::kChannel);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    // The daemon's threads block signals that end it, and ignore that of a broken pipe.
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    std::array<const char*, 3> argv{program.c_str(), "--with-channel", nullptr};
    const int error =
        ::posix_spawnp(&pid_, program.c_str(), &actions, &attributes, const_cast<char**>(argv.data()), environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    in_ = std::exchange(in.fds[1], -1), out_ = std::exchange(out.fds[0], -1);
    channel_ = std::exchange(channel.fds[0], -1);
    ::fcntl(in_, F_SETFL, O_NONBLOCK);
    ::fcntl(out_, F_SETFL, O_NONBLOCK);
    if (error == 0) return {};
    pid_ = -1;
    return Status(Code::kUnavailable, std::strerror(error), program, "install tensorlane-probe beside tensorlaned");
  }

  // What it says until it is done with all commands. `stops`: ask whether to give up.
  Result<std::string> ask(const std::vector<std::string>& commands, int patience_ms,
                          const std::function<bool()>& stops) {
    std::string to_send, lines;
    for (const std::string& command : commands) to_send += command + "\n";
    std::size_t done = 0, checked = 0;
    const auto until = Clock::now() + std::chrono::milliseconds(patience_ms);
    while (done < commands.size()) {
      if (Clock::now() >= until || stops()) return Status(Code::kTimedOut, "tensorlane-probe did not answer in time");
      std::array<pollfd, 2> waited{{{out_, POLLIN, 0}, {to_send.empty() ? -1 : in_, POLLOUT, 0}}};
      ::poll(waited.data(), waited.size(), 100);
      if (waited[1].revents != 0) {
        const ssize_t sent = ::write(in_, to_send.data(), to_send.size());
        if (sent > 0) to_send.erase(0, static_cast<std::size_t>(sent));
      }
      std::array<char, 65536> chunk;
      const ssize_t got = ::read(out_, chunk.data(), chunk.size());
      if (got == 0)
        return Status(Code::kUnavailable, "tensorlane-probe has ended", {},
                      "look at the daemon's log, and at whether `tensorlane-probe --version` there is the daemon's");
      if (got < 0) continue;
      lines.append(chunk.data(), static_cast<std::size_t>(got));
      if (lines.size() > kMaxLines)
        return Status(Code::kResourceExhausted, "the answer is too long", {}, "ask for less");
      for (std::size_t end = 0; (end = lines.find('\n', checked)) != std::string::npos; checked = end + 1) {
        const json line = json::parse(lines.begin() + static_cast<std::ptrdiff_t>(checked),
                                      lines.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
        const json kind = line.is_object() ? line.value("kind", json()) : json();
        if (kind == json("done") || kind == json("error")) ++done;
      }
    }
    return lines;
  }

  // Called by lanes, under the lock of ProbeTokens, until the tokens are forgotten or allowed anew.
  bool take_over(int connection, std::span<const std::byte> said) const {
    probe::Hello hello;
    if (said.size() != sizeof hello) return false;
    std::memcpy(&hello, said.data(), sizeof hello);
    return probe::hand_over(channel_, connection, hello);
  }

 private:
  // Both ends of a pipe, as far as nobody has taken them.
  struct Ends {
    std::array<int, 2> fds{-1, -1};
    Ends() = default;
    Ends(const Ends&) = delete;
    Ends& operator=(const Ends&) = delete;
    ~Ends() {
      for (const int fd : fds)
        if (fd >= 0) ::close(fd);
    }
  };

  pid_t pid_ = -1;
  int in_ = -1, out_ = -1, channel_ = -1;
};

Probing::Probing(Parts parts) : parts_(std::move(parts)) {}

Probing::~Probing() {
  stop();
}

void Probing::stop() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  wakes_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Probing::answer(const ports::Question& question, ports::Answered done) {
  if (!question.of_operator())
    return done(Status(Code::kPermissionDenied, "probes make traffic", "tensorlane verify",
                       "ask as root or as the user of tensorlaned"));
  const json args = json::parse(question.args, nullptr, false);
  auto task = std::make_unique<Task>();
  const auto list = args.is_object() ? args.find("commands") : args.end();
  const bool sound = args.is_object() && args.contains("session") && args["session"].is_string() &&
                     (args.value("end", json(false)) == json(true) || (list != args.end() && list->is_array()));
  if (!sound) return done(Status(Code::kInvalidArgument, "this is no question of tensorlane verify"));
  task->session = args["session"].get<std::string>();
  task->ends = args.value("end", json(false)) == json(true);
  if (list != args.end() && list->is_array())
    for (const json& command : *list) {
      if (Status good = parts_.ports ? parts_.ports->check(command) : Status(); !good.ok())
        return done(std::move(good));
      task->commands.push_back(command.dump());
    }
  const auto patience = args.find("patience_ms");
  task->patience_ms = patience != args.end() && patience->is_number_unsigned()
                          ? static_cast<int>(std::min<std::uint64_t>(patience->get<std::uint64_t>(), kMaxPatienceMs))
                          : 10'000;
  if (!task->ends && args.value("beside_jobs", json(false)) != json(true) && parts_.has_jobs())
    return done(Status(Code::kUnavailable, "a job runs on this host", "tensorlane verify",
                       "wait until it has ended, or say --beside-jobs"));
  task->done = std::move(done);
  {
    const std::lock_guard lock(mutex_);
    if (stops_ || tasks_.size() >= kMaxWaiting)
      return task->done(Status(Code::kResourceExhausted, "too many questions of tensorlane verify at once"));
    tasks_.push_back(std::move(task));
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  wakes_.notify_all();
}

void Probing::run() {
  ::pthread_setname_np(::pthread_self(), "tl-probing");
  for (;;) {
    std::unique_ptr<Task> task;
    {
      std::unique_lock lock(mutex_);
      const auto is_due = [this] { return stops_ || !tasks_.empty(); };
      if (child_ == nullptr) {
        wakes_.wait(lock, is_due);
      } else if (!wakes_.wait_for(lock, kIdle, is_due)) {
        lock.unlock();  // the child may take its time to end
        end_session();
        continue;
      }
      if (stops_) break;
      if (tasks_.empty()) continue;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    serve(*task);
  }
  end_session();
}

void Probing::end_session() {
  // First: lanes hand connections over to the child until then.
  for (const probe::Token& token : tokens_) parts_.tokens->forget(token);
  tokens_.clear();
  child_ = nullptr;
}

Status Probing::open_session(const Task& task) {
  if (child_ != nullptr && session_ != task.session)
    return Status(Code::kUnavailable, "another tensorlane verify is under way", "tensorlane verify",
                  "wait for its end: one that was killed ends in a minute");
  if (task.session == ended_)
    return Status(Code::kUnavailable, "this session of tensorlane verify has ended", "tensorlane verify",
                  "begin another one");
  if (child_ != nullptr) return {};
  if (session_ != task.session) end_session();  // one whose child has gone and that nobody has ended
  auto child = std::make_unique<Child>();
  TL_RETURN_IF_ERROR(child->start(parts_.program.empty() ? find_program() : parts_.program));
  child_ = std::move(child);
  session_ = task.session;
  return {};
}

// From now on: connections of bursts go to the child, where there is one.
void Probing::allow_tokens() {
  for (const probe::Token& token : tokens_) {
    ports::ProbeTokens::TakeOver take_over;
    if (child_ != nullptr)
      take_over = [child = child_.get()](int socket, std::span<const std::byte> hello) {
        return child->take_over(socket, hello);
      };
    parts_.tokens->allow(token, lane::clock_now() + kTokenLife, kTokenAnswers, std::move(take_over));
  }
}

void Probing::serve(Task& task) {
  if (task.ends) {
    if (session_ == task.session) end_session();
    ended_ = task.session;
    return task.done(std::string());
  }
  if (Status opened = open_session(task); !opened.ok()) return task.done(std::move(opened));
  std::string own;
  for (const std::string& text : task.commands) {
    const json command = json::parse(text, nullptr, false);
    if (is_command(command, "describe")) own = daemon_line(parts_.classes, parts_.rails);
    // The daemon's own listeners answer the same token as the child's.
    probe::Token token{};
    const bool listens = is_command(command, "listen") && command.contains("token") && command["token"].is_string();
    if (!listens || !probe::parse_token(command["token"].get<std::string>(), &token)) continue;
    if (std::ranges::find(tokens_, token) != tokens_.end()) continue;
    if (tokens_.size() == kMostTokens) {
      parts_.tokens->forget(tokens_.front());
      tokens_.erase(tokens_.begin());
    }
    tokens_.push_back(token);
  }
  allow_tokens();
  const auto stops = [this] {
    const std::lock_guard lock(mutex_);
    return stops_;
  };
  Result<std::string> lines = child_->ask(task.commands, task.patience_ms, stops);
  if (!lines.ok()) {
    const std::unique_ptr<Child> gone = std::move(child_);
    allow_tokens();  // without it; the data ports go on to answer other hosts' probes
    return task.done(std::move(lines));
  }
  task.done(own + lines.value());
}

}  // namespace tensorlane::wiring
