#include "daemon/lane/loop.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>

#include "daemon/lane/clocks.h"

namespace tensorlane::lane {
namespace {

constexpr int kBlockMs = 100;              // the longest sleep: lateness and the CPU count are looked at this often
constexpr std::size_t kMailPerTurn = 128;  // commands that are taken from other threads
constexpr Duration kCommandTime = microseconds(50);

}  // namespace

Loop::Loop(const LaneConfig& config, const host::HostPorts& ports, LaneLinks& links, Callbacks callbacks)
    : config_(config),
      ports_(ports),
      links_(links),
      callbacks_(std::move(callbacks)),
      budget_(config.spin, config.spin_budget) {}

Loop::~Loop() {
  for (int fd : {epoll_fd_, mailbox_fd_}) {
    if (fd >= 0) ::close(fd);
  }
}

Status Loop::open() {
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  mailbox_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (epoll_fd_ < 0 || mailbox_fd_ < 0) {
    return {Code::kResourceExhausted, fmt::format("no descriptors for a lane: {}", std::strerror(errno)), "tensorlaned",
            "raise LimitNOFILE"};
  }
  watch(mailbox_fd_, true);
  TL_ASSIGN_OR_RETURN(host_, host::Host::create(config_, ports_, clock_now));
  transports_ = host_->transports();
  for (const ports::Transport* transport : transports_) watch(transport->wake_fd(), true);
  if (ports_.executor->wake_fd() >= 0) watch(ports_.executor->wake_fd(), true, EPOLLET);
  watch(links_.wake_fd(), true, EPOLLET);
  return {};
}

void Loop::watch(int fd, bool on, std::uint32_t how) {
  epoll_event event{};
  event.events = EPOLLIN | how;
  event.data.fd = fd;
  epoll_ctl(epoll_fd_, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fd, &event);
}

Status Loop::post(Command command) {
  if (!mailbox_.push(std::move(command))) {
    return {Code::kResourceExhausted, fmt::format("more than {} commands wait for the lane", kMailbox), "tensorlaned",
            "register fewer tensors at once"};
  }
  mail_.store(true, std::memory_order_release);
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(mailbox_fd_, &one, sizeof one);
  return {};
}

void Loop::take_mail() {
  if (!mail_.exchange(false, std::memory_order_acquire)) return;
  std::uint64_t ignored = 0;
  [[maybe_unused]] const ssize_t got = ::read(mailbox_fd_, &ignored, sizeof ignored);
  std::optional<Command> command;
  for (std::size_t i = 0; i < kMailPerTurn && (command = mailbox_.pop()); ++i) backlogs_.add(std::move(*command));
  mail_left_ = command.has_value();
  if (mail_left_) mail_.store(true, std::memory_order_relaxed);  // the next turn goes on
}

std::size_t Loop::commands() {
  take_mail();
  return backlogs_.empty() ? 0 : backlogs_.run(kCommandTime, clock_now);
}

// Forgets jobs that have closed. Their sessions' descriptors may be used again by others at once, so they leave the
// watch list first.
void Loop::reap() {
  if (!host_->has_closed()) return;
  for (int fd : watched_) watch(fd, false);
  watched_.clear();
  for (const auto& [job, epoch] : host_->reap()) callbacks_.over(job, epoch);
}

// Asks every client for a wake-up. False when one has submitted meanwhile. Each write to a client's descriptor wakes
// the lane once, which never reads it: the client shares the description behind it, and could make a read block.
bool Loop::arm_sessions() {
  bool quiet = true;
  wanted_.clear();
  for (const auto& job : host_->jobs()) {
    if (job->home() == nullptr) continue;
    for (const auto& session : job->home()->sessions()) {
      if (!session || session->dead()) continue;
      wanted_.push_back(session->wake_fd());
      if (!session->arm_wake()) quiet = false;
    }
  }
  if (wanted_ != watched_) {
    for (int fd : watched_) {
      if (std::ranges::find(wanted_, fd) == wanted_.end()) watch(fd, false);
    }
    for (int fd : wanted_) {
      if (std::ranges::find(watched_, fd) == watched_.end()) watch(fd, true, EPOLLET);
    }
    std::swap(watched_, wanted_);
  }
  return quiet;
}

bool Loop::arm_transports() {
  bool quiet = true;
  for (ports::Transport* transport : transports_) quiet = transport->arm() && quiet;
  return quiet;
}

void Loop::disarm_sessions() {
  for (const auto& job : host_->jobs()) {
    if (job->home() == nullptr) continue;
    for (const auto& session : job->home()->sessions()) {
      if (session) session->disarm_wake();
    }
  }
}

int Loop::longest_sleep_ms() const {
  const Time now = host_->now();
  return static_cast<int>((host_->next_deadline(now + milliseconds(kBlockMs)) - now).value / 1'000'000) + 1;
}

// Polls in vain for a bounded time and share (law 17), then blocks until something happens.
void Loop::maybe_sleep() {
  if (budget_.may_poll(host_->now())) return;
  if (arm_sessions() && arm_transports() && ports_.executor->arm() && links_.arm() &&
      !mail_.load(std::memory_order_acquire)) {
    ports_.metrics->sleeps.add();
    std::array<epoll_event, 32> events;
    // What woke it is seen by looking at everything.
    epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()), longest_sleep_ms());
  }
  disarm_sessions();
  ports_.executor->disarm();
  links_.disarm();
}

void Loop::set_cpu() {
  ports_.metrics->cpu_ns.set(thread_cpu_ns());
  ports_.metrics->work_cpu_ns.set(static_cast<std::uint64_t>(ports_.executor->cpu_time().value));
}

void Loop::set_thread() const {
  pthread_setname_np(pthread_self(), lane_name(ports_.lane).c_str());
  if (config_.cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(config_.cpu) + ports_.lane, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

void Loop::run() {
  set_thread();
  while (!stopping_.load(std::memory_order_relaxed)) {
    ports_.metrics->loops.add();
    const std::size_t progress = turn();
    if (host_->housekeep()) set_cpu();
    // The tables and the memory of jobs that are over go elsewhere: that takes long.
    if (std::shared_ptr<void> object = host_->retire()) callbacks_.dispose(std::move(object));
    const bool held = links_.push_on();
    if (progress == 0 && !held && !host_->retires() && backlogs_.empty()) {
      maybe_sleep();
    } else {
      budget_.worked();
    }
  }
}

std::size_t Loop::turn() {
  std::size_t progress = host_->receive(clock_now());
  reap();  // before a job of the same name can begin
  progress += host_->collect();
  progress += commands();
  host_->submit(
      [this](const host::Job& job) { return (!mail_left_ || job.has_bound_collected()) && !backlogs_.has(job.id()); });
  progress += host_->send();
  return progress + host_->work();
}

void Loop::start(ports::LaneListener& listener) {
  listener_ = &listener;
  host_->report_to(listener);
  thread_ = std::thread([this] { run(); });
}

void Loop::stop() {
  stopping_.store(true, std::memory_order_relaxed);
  if (!thread_.joinable()) return;
  [[maybe_unused]] const Status ignored = post({{}, [] { return true; }});
  thread_.join();
}

void Loop::clear() {
  if (host_ != nullptr) host_->clear();
}

}  // namespace tensorlane::lane
