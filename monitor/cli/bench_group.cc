#include "monitor/cli/bench_group.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <sstream>
#include <utility>

#include <fmt/format.h>

namespace tensorlane::cli {

namespace {

using SteadyClock = std::chrono::steady_clock;

SteadyClock::time_point after(Duration timeout) {
  return SteadyClock::now() + std::chrono::nanoseconds(timeout.value);
}

constexpr int kPollMs = 20;                    // until we look after the processes again
constexpr std::size_t kMaxLine = 1024 * 1024;  // 10,000 times of up to 20 digits, and room to spare

}  // namespace

BenchGroup::BenchGroup(process::Processes& processes, Contender contender, int ranks)
    : processes_(processes),
      contender_(std::move(contender)),
      ranks_(static_cast<std::size_t>(ranks)),
      links_(ranks_) {}

BenchGroup::~BenchGroup() {
  hang_up();
}

void BenchGroup::hang_up() {
  for (Link& link : links_) {
    if (link.fd >= 0) ::close(std::exchange(link.fd, -1));
  }
  if (listener_ >= 0) ::close(std::exchange(listener_, -1));
}

bool BenchGroup::running() const {
  return std::any_of(started_.begin(), started_.end(), [this](std::size_t index) { return processes_.running(index); });
}

Status BenchGroup::failure(Code code, const std::string& what, const std::string& fix) const {
  return {code, what, "bench group " + contender_.name, fix};
}

std::string BenchGroup::missing(const std::vector<bool>& present) const {
  std::string ranks;
  for (std::size_t rank = 0; rank < present.size(); ++rank) {
    if (!present[rank]) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
  }
  return ranks;
}

Status BenchGroup::listen_at(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return failure(Code::kInvalidArgument, "path too long for a socket: " + path, "set TMPDIR to a shorter folder");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener_ < 0 || ::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener_, static_cast<int>(ranks_)) != 0) {
    return failure(Code::kInternal, fmt::format("cannot listen at {}: {}", path, std::strerror(errno)),
                   "check the folder's permissions");
  }
  return {};
}

Status BenchGroup::spawn_all(const std::string& link_path) {
  for (process::Spawn how : contender_.processes) {
    how.argv.push_back(link_path);
    how.argv.insert(how.argv.end(), contender_.tail.begin(), contender_.tail.end());
    TL_ASSIGN_OR_RETURN(const std::size_t index, processes_.spawn(how));
    started_.push_back(index);
  }
  return {};
}

Status BenchGroup::wait_readable(std::vector<int> fds) {
  std::vector<pollfd> polled;
  polled.reserve(fds.size());
  for (const int fd : fds) polled.push_back({fd, POLLIN, 0});
  const bool readable = ::poll(polled.data(), polled.size(), kPollMs) > 0;
  std::size_t exited = 0;
  // Relays what the workers print. An exit is ours to notice below, whoever it is reported to.
  if (processes_.wait(milliseconds(1), &exited) == process::Processes::Event::kSignal) {
    return failure(Code::kAborted, fmt::format("stopped by signal {}", processes_.stop_signal()), "start again");
  }
  if (readable) return {};  // last words first: an error line may explain the exit
  for (const std::size_t index : started_) {
    if (processes_.running(index)) continue;
    return failure(Code::kUnavailable, fmt::format("a worker ended with status {}", processes_.exit_status(index)),
                   "see what it printed above");
  }
  return {};
}

Result<std::optional<std::string>> BenchGroup::receive(Link& link) {
  char buffer[16384];
  const ssize_t got = ::recv(link.fd, buffer, sizeof buffer, MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
    return failure(Code::kUnavailable, "a worker hung up", "see what it printed above");
  }
  if (got > 0) link.received.append(buffer, static_cast<std::size_t>(got));
  const std::size_t end = link.received.find('\n');
  if (end == std::string::npos) {
    if (link.received.size() <= kMaxLine) return std::optional<std::string>();
    return failure(Code::kCorrupt, "a worker writes a line without end", "build the workers again");
  }
  std::optional<std::string> line = link.received.substr(0, end);
  link.received.erase(0, end + 1);
  return line;
}

Status BenchGroup::greet(std::vector<Link>& arriving) {
  for (Link& link : arriving) {
    TL_ASSIGN_OR_RETURN(const std::optional<std::string> line, receive(link));
    if (!line) continue;
    std::size_t rank = 0;
    if (std::sscanf(line->c_str(), "hello %zu", &rank) != 1 || rank >= ranks_ || links_[rank].fd >= 0) {
      return failure(Code::kCorrupt, "not a greeting of a rank that is missing: " + *line, "build the workers again");
    }
    links_[rank] = std::exchange(link, Link());
  }
  std::erase_if(arriving, [](const Link& link) { return link.fd < 0; });
  return {};
}

Status BenchGroup::start(const std::string& folder, Duration timeout) {
  const std::string path = folder + "/" + contender_.name + ".sock";
  TL_RETURN_IF_ERROR(listen_at(path));
  TL_RETURN_IF_ERROR(spawn_all(path));
  const auto deadline = after(timeout);
  std::vector<Link> arriving;
  const auto connected = [](const Link& link) { return link.fd >= 0; };
  Status status;
  while (status.ok() && !std::all_of(links_.begin(), links_.end(), connected)) {
    std::vector<int> fds{listener_};
    for (const Link& link : arriving) fds.push_back(link.fd);
    status = wait_readable(fds);
    if (const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC); fd >= 0) arriving.push_back({fd, {}});
    if (status.ok()) status = greet(arriving);
    if (status.ok() && SteadyClock::now() > deadline) {
      std::vector<bool> present;
      for (const Link& link : links_) present.push_back(connected(link));
      status = failure(Code::kTimedOut, "ranks did not start: " + missing(present), "see what they printed above");
    }
  }
  for (const Link& link : arriving) {
    if (link.fd >= 0) ::close(link.fd);
  }
  return status;
}

Result<Measurement> BenchGroup::combine(const std::vector<std::string>& answers, int count) const {
  Measurement result{std::vector<double>(static_cast<std::size_t>(count)), 0, count + 1};
  for (const std::string& answer : answers) {
    std::istringstream words(answer);
    std::string kind;
    double nanoseconds = 0;
    if (answer.starts_with("error "))
      return failure(Code::kInternal, answer.substr(6), "this is a defect of the library under measurement");
    bool good = static_cast<bool>(words >> kind >> nanoseconds) && kind == "done";
    result.cpu_seconds += nanoseconds * 1e-9;
    for (double& slowest : result.seconds) {
      good = good && static_cast<bool>(words >> nanoseconds);
      slowest = std::max(slowest, nanoseconds * 1e-9);
    }
    if (!good)
      return failure(Code::kCorrupt, "not an answer of a worker: " + answer.substr(0, 80), "build the workers again");
  }
  return result;
}

Result<Measurement> BenchGroup::run(std::uint64_t bytes, int count, Duration timeout) {
  const std::string command = fmt::format("run {} {}\n", bytes, count);
  for (const Link& link : links_) {
    if (::send(link.fd, command.data(), command.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(command.size())) {
      return failure(Code::kUnavailable, "a worker hung up", "see what it printed above");
    }
  }
  const auto deadline = after(timeout);
  std::vector<std::string> answers(ranks_);
  std::vector<bool> answered(ranks_);
  while (std::count(answered.begin(), answered.end(), true) < static_cast<std::ptrdiff_t>(ranks_)) {
    std::vector<int> fds;
    for (std::size_t rank = 0; rank < ranks_; ++rank) fds.push_back(answered[rank] ? -1 : links_[rank].fd);
    TL_RETURN_IF_ERROR(wait_readable(fds));
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      if (answered[rank]) continue;
      TL_ASSIGN_OR_RETURN(const std::optional<std::string> line, receive(links_[rank]));
      if (!line) continue;
      answers[rank] = *line;
      answered[rank] = true;
      if (line->starts_with("error ")) return combine({*line}, count);  // the others may wait for this one forever
    }
    if (SteadyClock::now() > deadline) {
      return failure(Code::kTimedOut, fmt::format("no answer to {} bytes from ranks {}", bytes, missing(answered)),
                     "look at what they do");
    }
  }
  return combine(answers, count);
}

}  // namespace tensorlane::cli
