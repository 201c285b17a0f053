#include "daemon/lane/lane.h"

#include <fmt/format.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>

#include "daemon/lane/clocks.h"
#include "daemon/lane/lane_impl.h"

namespace tensorlane::lane {
namespace {

constexpr int kBlockMs = 100;              // the longest sleep: lateness and the CPU count are looked at this often
constexpr std::size_t kMailPerTurn = 128;  // commands that are taken from other threads
constexpr Duration kCommandTime = microseconds(50);

}  // namespace

Status Lane::Impl::open() {
  epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  mailbox_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (epoll_fd < 0 || mailbox_fd < 0) {
    return {Code::kResourceExhausted, fmt::format("no descriptors for a lane: {}", std::strerror(errno)), "tensorlaned",
            "raise LimitNOFILE"};
  }
  watch(mailbox_fd, true);
  TL_ASSIGN_OR_RETURN(host, host::Host::create(config, ports, clock_now));
  for (const ports::Transport* transport : host->transports()) watch(transport->wake_fd(), true);
  if (ports.executor->wake_fd() >= 0) watch(ports.executor->wake_fd(), true, EPOLLET);
  return {};
}

void Lane::Impl::watch(int fd, bool on, std::uint32_t how) {
  epoll_event event{};
  event.events = EPOLLIN | how;
  event.data.fd = fd;
  epoll_ctl(epoll_fd, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fd, &event);
}

Status Lane::Impl::post(Command command) {
  if (!mailbox.push(std::move(command))) {
    return {Code::kResourceExhausted, fmt::format("more than {} commands wait for the lane", kMailbox), "tensorlaned",
            "register fewer tensors at once"};
  }
  mail.store(true, std::memory_order_release);
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(mailbox_fd, &one, sizeof one);
  return {};
}

Status Lane::Impl::prepare(const ports::JobSpec& spec, Preparer::Step step, Command command) {
  if (preparer.add(spec.owner.user, std::move(step), std::move(command))) return {};
  return {Code::kResourceExhausted, fmt::format("more than {} commands wait for memory", Preparer::kMaxWaiting),
          "tensorlaned", "register fewer groups at once"};
}

void Lane::Impl::take_mail() {
  if (!mail.exchange(false, std::memory_order_acquire)) return;
  std::uint64_t ignored = 0;
  [[maybe_unused]] const ssize_t got = ::read(mailbox_fd, &ignored, sizeof ignored);
  std::optional<Command> command;
  for (std::size_t i = 0; i < kMailPerTurn && (command = mailbox.pop()); ++i) backlogs.add(std::move(*command));
  mail_left = command.has_value();
  if (mail_left) mail.store(true, std::memory_order_relaxed);  // the next turn goes on
}

std::size_t Lane::Impl::commands() {
  take_mail();
  return backlogs.empty() ? 0 : backlogs.run(kCommandTime, clock_now);
}

std::shared_ptr<const ports::JobSpec> Lane::Impl::spec_of(JobId job) {
  std::lock_guard lock(specs_mutex);
  const auto found = specs.find(job);
  return found == specs.end() ? nullptr : found->second;
}

void Lane::Impl::forget(JobId job) {
  std::lock_guard lock(specs_mutex);
  specs.erase(job);
}

// Forgets jobs that have closed. Their sessions' descriptors may be used again by others at once, so they leave the
// watch list first.
void Lane::Impl::reap() {
  if (!host->has_closed()) return;
  for (int fd : watched) watch(fd, false);
  watched.clear();
  for (JobId job : host->reap()) forget(job);
}

// Asks every client for a wake-up. False when one has submitted meanwhile. Each write to a client's descriptor wakes
// the lane once, which never reads it: the client shares the description behind it, and could make a read block.
bool Lane::Impl::arm_sessions() {
  bool quiet = true;
  wanted.clear();
  for (const auto& job : host->jobs()) {
    if (job->home() == nullptr) continue;
    for (const auto& session : job->home()->sessions()) {
      if (!session || session->dead()) continue;
      wanted.push_back(session->wake_fd());
      if (!session->arm_wake()) quiet = false;
    }
  }
  if (wanted != watched) {
    for (int fd : watched) {
      if (std::ranges::find(wanted, fd) == wanted.end()) watch(fd, false);
    }
    for (int fd : wanted) {
      if (std::ranges::find(watched, fd) == watched.end()) watch(fd, true, EPOLLET);
    }
    std::swap(watched, wanted);
  }
  return quiet;
}

bool Lane::Impl::arm_transports() {
  bool quiet = true;
  for (ports::Transport* transport : host->transports()) quiet = transport->arm() && quiet;
  return quiet;
}

void Lane::Impl::disarm_sessions() {
  for (const auto& job : host->jobs()) {
    if (job->home() == nullptr) continue;
    for (const auto& session : job->home()->sessions()) {
      if (session) session->disarm_wake();
    }
  }
}

int Lane::Impl::longest_sleep_ms() const {
  const Time now = host->now();
  return static_cast<int>((host->next_deadline(now + milliseconds(kBlockMs)) - now).value / 1'000'000) + 1;
}

// Polls in vain for a bounded time and share (law 17), then blocks until something happens.
void Lane::Impl::maybe_sleep() {
  if (budget.may_poll(host->now())) return;
  if (arm_sessions() && arm_transports() && ports.executor->arm() && !mail.load(std::memory_order_acquire)) {
    ports.metrics->sleeps.add();
    std::array<epoll_event, 32> events;
    // What woke it is seen by looking at everything.
    epoll_wait(epoll_fd, events.data(), static_cast<int>(events.size()), longest_sleep_ms());
  }
  disarm_sessions();
  ports.executor->disarm();
}

void Lane::Impl::set_cpu() {
  ports.metrics->cpu_ns.set(thread_cpu_ns());
  ports.metrics->work_cpu_ns.set(static_cast<std::uint64_t>(ports.executor->cpu_time().value));
}

void Lane::Impl::run() {
  pthread_setname_np(pthread_self(), "lane");
  if (config.cpu >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(config.cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  }
  while (!stopping.load(std::memory_order_relaxed)) {
    ports.metrics->loops.add();
    const std::size_t progress = turn();
    if (host->housekeep()) set_cpu();
    // The tables and the memory of jobs that are over go elsewhere: that takes long.
    if (std::shared_ptr<void> object = host->retire()) preparer.dispose(std::move(object));
    if (progress == 0 && !host->retires() && backlogs.empty()) {
      maybe_sleep();
    } else {
      budget.worked();
    }
  }
}

std::size_t Lane::Impl::turn() {
  std::size_t progress = host->receive(clock_now());
  reap();  // before a job of the same name can begin
  progress += host->collect();
  progress += commands();
  host->submit(
      [this](const host::Job& job) { return (!mail_left || job.has_bound_collected()) && !backlogs.has(job.id()); });
  progress += host->send();
  return progress + host->work();
}

Lane::Lane(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Lane::~Lane() {
  stop();
}

Result<std::unique_ptr<Lane>> Lane::create(const LaneConfig& config, const host::HostPorts& ports) {
  auto impl = std::make_unique<Impl>(config, ports);
  TL_RETURN_IF_ERROR(impl->open());
  return std::unique_ptr<Lane>(new Lane(std::move(impl)));
}

void Lane::start(ports::LaneListener& listener) {
  Impl& impl = *impl_;
  impl.listener = &listener;
  impl.host->report_to(listener);
  impl.preparer.start();
  impl.thread = std::thread([&impl] { impl.run(); });
}

std::uint64_t Lane::preparer_turns() const {
  return impl_->preparer.turns();
}

void Lane::stop() {
  impl_->preparer.stop();
  impl_->stopping.store(true, std::memory_order_relaxed);
  if (!impl_->thread.joinable()) return;
  [[maybe_unused]] const Status ignored = impl_->post({{}, [] { return true; }});
  impl_->thread.join();
  impl_->host->clear();
}

}  // namespace tensorlane::lane
