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

constexpr int kBlockMs = 100;  // the longest sleep: lateness and the CPU count are looked at this often
constexpr Duration kHousekeeping = milliseconds(100);
constexpr Duration kStandingLook = milliseconds(200);  // how often flows are looked at that may stand still
constexpr std::uint64_t kControlQuantum = 4096;        // of headers: what a job sends before it is the next one's turn
// Of jobs that share the lane, between two looks at the network: what is sent of a class, as JobRail::Sent counts it;
// of control frames; submissions of one user; time for commands. An operation takes several turns of every host's lane,
// so the length of a turn is what others' load costs it.
constexpr std::uint64_t kSentPerTurn = kib(256).value, kControlPerTurn = kib(16).value;
constexpr std::size_t kTakenPerTurn = 64;
constexpr std::size_t kMailPerTurn = 128;  // commands that are taken from other threads
constexpr Duration kCommandTime = microseconds(50);
constexpr std::size_t kRetiredPerTurn = 1024;  // regions of jobs that have ended

}  // namespace

Result<std::span<std::byte>> Lane::Rail::on_header(const ports::FlowKey& flow, const protocol::FrameHeader& header) {
  Job* job = lane.find(flow.job);
  if (job == nullptr) return Status(Code::kNotFound, "a frame for a job that has ended", "", "");
  return job->landing(index, flow, header);
}
void Lane::Rail::on_frame(const ports::FlowKey& flow, const protocol::FrameHeader& header) {
  if (Job* job = lane.find(flow.job)) job->frame_arrived(index, flow, header, lane.now);
}
void Lane::Rail::on_sent(const ports::FlowKey& flow, std::uint64_t token) {
  if (Job* job = lane.find(flow.job)) job->sent(index, token, lane.now);
}
void Lane::Rail::on_flow_up(const ports::FlowKey& flow) {
  if (Job* job = lane.find(flow.job)) job->flow_up(index, flow);
}
void Lane::Rail::on_flow_down(const ports::FlowKey& flow, const Status& cause) {
  next_look = Time();  // its bytes have left the window
  if (Job* job = lane.find(flow.job)) job->flow_down(index, flow, cause, lane.now);
}

Status Lane::Impl::open() {
  epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  mailbox_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (epoll_fd < 0 || mailbox_fd < 0) {
    return {Code::kResourceExhausted, fmt::format("no descriptors for a lane: {}", std::strerror(errno)), "tensorlaned",
            "raise LimitNOFILE"};
  }
  watch(mailbox_fd, true);
  for (std::uint8_t r = 0; r < config.rails.size(); ++r) {
    auto rail = std::make_unique<Rail>(*this, RailIndex(r), config.rails[r]);
    TL_ASSIGN_OR_RETURN(rail->transport, rooms.make_transport(rail->index, *rail));
    watch(rail->transport->wake_fd(), true);
    rails.push_back(std::move(rail));
  }
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

// What control says of a job that is not there is answered by what it does next: it aborts the job. What was prepared
// for a job that is refused stays with `start`.
bool Lane::Impl::begin(JobStart& start) {
  const JobId id = start.spec.credentials.job;
  Result<std::unique_ptr<Job>> job = Job::begin(start, around);
  if (!job.ok()) {
    listener->on_job_failed(id, job.status());
    return true;
  }
  users.add(**job);
  jobs.push_back(std::move(*job));
  jobs.back()->connect(now);
  return true;
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

// The most urgent class first; inside a class every job in turn, one window shared by all of them and all peers.
std::size_t Lane::Impl::egress(Rail& rail) {
  if (jobs.empty()) return 0;
  std::size_t sent = 0;
  if (has_sends(rail, kControlClass)) {
    TokenBucket& control = rail.control;
    // A bucket that is not empty lets a frame pass, so that what waits always has a time to wait for.
    Bytes credit = control.empty(now) ? Bytes(0) : std::max(control.available(now), Bytes(protocol::kFrameHeaderBytes));
    const Bytes before = credit;
    sent += share(rail, kControlClass, kControlQuantum, kControlPerTurn, &credit);
    control.take(now, before - credit);
  }
  for (std::uint8_t c = 0; c < config.classes; ++c) {
    const ClassId cls{c};
    if (!has_sends(rail, cls)) continue;
    const Bytes in_flight = rail.transport->in_flight(cls);
    const Bytes used = in_flight - std::min(in_flight, rail.standing[c]);
    // Nothing in flight makes room for one operation, however small the window.
    const Bytes window = used.value == 0 ? std::max(rail.config.windows[c], kMaxOperation) : rail.config.windows[c];
    Bytes credit = window - std::min(used, window);
    const Bytes before = credit;
    sent += share(rail, cls, kMaxOperation.value, kSentPerTurn, &credit);
    rail.full[c] = rail.full[c] || before < kMaxOperation;
  }
  return sent;
}

bool Lane::Impl::has_sends(const Rail& rail, ClassId cls) const {
  return std::ranges::any_of(jobs, [&](const auto& job) { return job->has_sends(rail.index, cls, now); });
}

// Users share evenly, and so do a user's jobs: at least `quantum` bytes in a turn, however many peers they have and
// however long their operations are. Bounded by the operations that *credit, which shrinks, has room for, and where
// there are several jobs by `most`.
std::size_t Lane::Impl::share(Rail& rail, ClassId cls, std::uint64_t quantum, std::uint64_t most, Bytes* credit) {
  const std::size_t slot = ports::metrics_slot(cls);
  const std::uint64_t limit = jobs.size() > 1 ? most : std::numeric_limits<std::uint64_t>::max();
  const Users::Sent sent = users.send(rail.turns[slot], rail.index, cls, quantum, limit, credit, now);
  if (sent.blocked) rooms.metrics->classes[slot].window_full.add();
  return sent.operations;
}

// A block of arithmetic or copying.
std::size_t Lane::Impl::work() {
  std::optional<ports::TraceSpan> span = users.work(now);
  if (!span) return 0;
  now = clock_now();
  span->length = now - span->begin;
  if (rooms.timeline->enabled()) rooms.timeline->record(*span);
  return 1;
}

void Lane::Impl::housekeeping() {
  if (now < next_housekeeping) return;
  next_housekeeping = now + kHousekeeping;
  ports::LaneMetrics& m = *rooms.metrics;
  std::uint64_t pending = 0, staging = 0, sessions = 0;
  std::array<Duration, kMaxDataClasses> ages{};
  for (auto& job : jobs) {
    job->report_late(now);
    job->tell_progress(now);
    job->raise_ages(&ages);
    job->publish_counts();
    job->flush_logs();
    sessions += job->sessions().size();
    pending += job->operations_pending();
    staging += job->staging_bytes();
  }
  for (const auto& rail : rails) look_for_standing(*rail);
  ports::TransportCounters carried;
  for (const auto& rail : rails) carried += rail->transport->counters();
  m.transport.set(carried);
  m.cpu_ns.set(thread_cpu_ns());
  m.jobs.set(jobs.size());
  m.sessions.set(sessions);
  m.operations_pending.set(pending);
  m.staging_bytes.set(staging);
  for (std::size_t c = 0; c < ages.size(); ++c) m.oldest_operation_ns[c].set(static_cast<std::uint64_t>(ages[c].value));
}

// A flow that stands still must not keep those waiting that move: neither other jobs', nor other flows of its own.
void Lane::Impl::look_for_standing(Rail& rail) {
  if (now < rail.next_look) return;
  rail.next_look = now + kStandingLook;
  for (std::uint8_t c = 0; c < config.classes; ++c) {
    if (!std::exchange(rail.full[c], false) && rail.standing[c] == Bytes()) continue;
    rail.standing[c] = Bytes();
    for (auto& job : jobs) rail.standing[c] += job->look_for_standing(rail.index, ClassId(c), now);
  }
}

// Forgets jobs that have closed. Their sessions' descriptors may be used again by others at once, so they leave the
// watch list first.
void Lane::Impl::reap() {
  if (std::ranges::none_of(jobs, [](const auto& job) { return job->closed(); })) return;
  for (int fd : watched) watch(fd, false);
  watched.clear();
  for (auto& job : jobs) {
    if (!job->closed()) continue;
    users.remove(*job);
    forget(job->id());
    ended.push_back(std::move(job));
  }
  std::erase_if(jobs, [](const auto& job) { return job == nullptr; });
}

// Its tables and memory go elsewhere: that takes long.
void Lane::Impl::retire_some() {
  if (ended.empty() || !ended.back()->retire(kRetiredPerTurn)) return;
  preparer.dispose(std::shared_ptr<Job>(std::move(ended.back())));
  ended.pop_back();
}

// Asks every client for a wake-up. False when one has submitted meanwhile. Each write to a client's descriptor wakes
// the lane once, which never reads it: the client shares the description behind it, and could make a read block.
bool Lane::Impl::arm_sessions() {
  bool quiet = true;
  wanted.clear();
  for (auto& job : jobs) {
    for (auto& session : job->sessions()) {
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
  for (auto& rail : rails) quiet = rail->transport->arm() && quiet;
  return quiet;
}

void Lane::Impl::disarm_sessions() {
  for (auto& job : jobs) {
    for (auto& session : job->sessions()) {
      if (session) session->disarm_wake();
    }
  }
}

// What waits for a limit to let it pass wakes nobody: it is looked at when its time has come.
int Lane::Impl::longest_sleep_ms() const {
  Time until = now + milliseconds(kBlockMs);
  for (const auto& rail : rails) {
    if (rail->control.empty(now) && has_sends(*rail, kControlClass)) until = std::min(until, rail->control.ready_at());
  }
  for (const auto& job : jobs) {
    if (const std::optional<Time> promotion = job->promotion(now)) until = std::min(until, *promotion);
  }
  return static_cast<int>((until - now).value / 1'000'000) + 1;
}

// Polls in vain for a bounded time and share (law 17), then blocks until something happens.
void Lane::Impl::maybe_sleep() {
  if (idle_since.value == 0) idle_since = now;
  if (now - window_start > milliseconds(10)) {
    window_start = now;
    spun = Duration();
  }
  const Duration idle = now - idle_since;
  if (idle < config.spin && to_seconds(spun) < config.spin_budget * 0.01) return;
  spun += idle;
  idle_since = Time();
  if (arm_sessions() && arm_transports() && !mail.load(std::memory_order_acquire)) {
    rooms.metrics->sleeps.add();
    std::array<epoll_event, 32> events;
    // What woke it is seen by looking at everything.
    epoll_wait(epoll_fd, events.data(), static_cast<int>(events.size()), longest_sleep_ms());
  }
  disarm_sessions();
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
    now = clock_now();
    rooms.metrics->loops.add();
    std::size_t progress = 0;
    for (auto& rail : rails) progress += rail->transport->poll(now);
    reap();  // before a job of the same name can begin
    progress += users.collect(kTakenPerTurn);
    progress += commands();
    for (auto& job : jobs) {
      const bool complete = !mail_left || job->has_bound_collected();
      if (complete && !backlogs.has(job->id())) job->submit_collected(now);
    }
    for (auto& rail : rails) progress += egress(*rail);
    progress += work();
    housekeeping();
    retire_some();
    if (progress == 0 && ended.empty() && backlogs.empty()) {
      maybe_sleep();
    } else {
      idle_since = Time();
    }
  }
}

Lane::Lane(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Lane::~Lane() {
  stop();
  impl_->rails.clear();
}

Result<std::unique_ptr<Lane>> Lane::create(const LaneConfig& config, const LaneRooms& rooms) {
  TL_ASSERT(config.classes <= kMaxDataClasses && !config.rails.empty() && config.rails.size() <= kMaxRails);
  for (const RailConfig& rail : config.rails) TL_ASSERT(rail.windows.size() >= config.classes);
  auto impl = std::make_unique<Impl>(config, rooms);
  TL_RETURN_IF_ERROR(impl->open());
  return std::unique_ptr<Lane>(new Lane(std::move(impl)));
}

void Lane::start(ports::LaneListener& listener) {
  Impl& impl = *impl_;
  impl.listener = &listener;
  impl.around = {&impl.config, impl.rooms.memory, impl.rooms.reducer, impl.rooms.metrics, impl.rooms.timeline,
                 {},           &listener,         &impl.log_share};
  for (const auto& rail : impl.rails) impl.around.transports.push_back(rail->transport.get());
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
  impl_->users = Users(0);
  impl_->jobs.clear();
  impl_->ended.clear();
}

}  // namespace tensorlane::lane
