#include "simulator/host/daemon.h"

#include <algorithm>

namespace tensorlane::simulator {
namespace {

constexpr Duration kHousekeeping = milliseconds(100);
constexpr Duration kStandsStill = milliseconds(300);  // daemon/host gives a flow nothing more that stands for longer
constexpr Duration kSlack = microseconds(1);          // of a host that wakes when a limit lets something pass

}  // namespace

SimDaemon::SimDaemon(HostIndex self, Context context, Random random)
    : self_(self),
      context_(context),
      random_(random),
      executor_({.events = context.events,
                 .workers = context.scenario.lane.workers,
                 .block_time = context.scenario.lane.block_time,
                 .done = [this] { wake(); },
                 .begins = [this](const ports::Block& block) { block_begins(block); }},
                Random(context.scenario.seed).fork(1000u + self.value)),
      config_(host_config()),
      ports_(host_ports()),
      fairness_(self, context.findings),
      heard_(context.scenario.rails(), std::vector<Time>(context.scenario.hosts())) {
  Result<std::unique_ptr<host::Host>> made = host::Host::create(config_, ports_, [this] {
    // Workers' blocks take none of the lane's time.
    const LaneConfig& lane = context_.scenario.lane;
    local_ = std::max(local_, context_.events.now());
    if (lane.workers == 0) local_ = local_ + random_.between(Duration(0), lane.block_time);
    return local_;
  });
  TL_ASSERT(made.ok());
  host_ = std::move(*made);
  host_->report_to(*this);
  for (const auto& run : context_.runs) {
    if (self_.value >= run->scenario.hosts()) break;
    jobs_.push_back(std::make_unique<SimJob>(*this, *run, random_.fork(1000 * run->number)));
  }
}

// Transports and engines speak to the jobs while they close.
SimDaemon::~SimDaemon() {
  host_.reset();
}

host::HostConfig SimDaemon::host_config() const {
  const Scenario& s = context_.scenario;
  host::HostConfig config;
  config.classes = s.engine.classes;
  host::RailConfig rail;
  rail.windows.assign(s.windows.begin() + 1, s.windows.end());
  config.rails.assign(s.rails(), rail);
  config.job_limits = s.engine.limits;
  config.tunes = s.engine.reclassifies && !s.lane.observes;
  config.observes = s.engine.reclassifies && s.lane.observes;
  config.observation = {.skipped = 0, .learned = 1};
  for (std::uint8_t c = 1; c < s.engine.classes; ++c)
    config.thresholds.push_back(1 - static_cast<double>(c) / s.engine.classes);
  config.single_queue = s.engine.single_queue;
  config.staging = s.engine.staging;
  config.eager_limit = s.engine.eager_limit;
  config.eager_credits = s.engine.eager_credits;
  config.eager_slots = s.engine.eager_slots;
  config.actions = s.lane.action_ring;
  config.resume_flows = true;
  return config;
}

host::HostPorts SimDaemon::host_ports() {
  host::HostPorts ports;
  ports.memory = &memory_;
  ports.executor = &executor_;
  ports.metrics = &metrics_;
  ports.timeline = &timeline_;
  ports.make_transport = [this](RailIndex rail, ports::FrameSink& sink) -> Result<std::unique_ptr<ports::Transport>> {
    return std::unique_ptr<ports::Transport>(make_transport(rail, sink));
  };
  ports.make_observer = [this](const ports::JobSpec& spec, RailIndex rail) {
    return find(spec.credentials.job)->observer(rail);
  };
  ports.scratch = &memory_;
  ports.log = [this](const std::string& line) { context_.trace.line(self_, "{}", line); };
  return ports;
}

std::unique_ptr<SimTransport> SimDaemon::make_transport(RailIndex rail, ports::FrameSink& sink) {
  auto transport = std::make_unique<SimTransport>(
      self_, sink,
      SimTransport::Context{.lane = context_.scenario.lane,
                            .events = context_.events,
                            .network = *context_.networks[rail.value],
                            .findings = context_.findings,
                            .trace = context_.trace,
                            .dead = [this] { return dead_; },
                            .frozen = [this] { return frozen_; },
                            .wake = [this] { wake(); },
                            .heartbeat = [this, rail](HostIndex from, const Heartbeat& b) { heard(from, rail, b); }},
      random_.fork(2u + rail.value));
  transports_.push_back(transport.get());
  return transport;
}

SimJob* SimDaemon::find(JobId id) const {
  const auto found =
      std::ranges::find_if(jobs_, [id](const auto& job) { return job->run().scenario.engine.job == id; });
  TL_ASSERT(found != jobs_.end());
  return found->get();
}

void SimDaemon::start() {
  context_.events.after(random_.between(Duration(0), context_.scenario.heartbeat), [this] { beat(); });
}

void SimDaemon::wake() {
  if (scheduled_) return;
  scheduled_ = true;
  const Time at = now() + random_.between(Duration(0), context_.scenario.lane.poll_delay);
  context_.events.at(at, [this] {
    scheduled_ = false;
    turn();
  });
}

// As daemon/lane does it.
void SimDaemon::turn() {
  if (dead_ || frozen_ || context_.findings.any()) return;
  local_ = now();
  std::size_t progress = host_->receive(local_);
  if (host_->has_closed()) host_->reap();
  progress += host_->collect();
  for (auto& job : jobs_) progress += job->carry_out();
  host_->submit([this](const host::Job& job) { return !find(job.id())->has_commands(); });
  for (SimTransport* transport : transports_) transport->begin_turn();
  progress += host_->send();
  progress += host_->work();
  local_ = std::max(local_, host_->now());
  host_->housekeep();
  host_->retire();
  const bool commands = std::ranges::any_of(jobs_, [](const auto& job) { return job->has_commands(); });
  if (progress > 0 || commands || host_->retires()) return wake();
  sleep();
}

void SimDaemon::sleep() {
  const Time next = host_->next_deadline(local_ + kHousekeeping);
  const bool set = alarm_ && *alarm_ > context_.events.now() && *alarm_ <= next;
  if (!set) alarm_ = std::max(next, context_.events.now());
  if (!set && !resolved()) context_.events.at(*alarm_, [this] { wake(); });
  if (scheduled_) return;
  for (const auto& job : jobs_) {
    if (!job->runs()) continue;
    for (const auto& watch : job->engines()) watch->sleeps(local_, Time(alarm_->value - kSlack.value));
  }
}

// ---- what jobs share ----

bool SimDaemon::can_go(std::size_t job, RailIndex rail, engine::Flow flow) const {
  const SimTransport& transport = *transports_[rail.value];
  const std::uint64_t window = config_.rails[rail.value].windows[flow.cls.value].value;
  const std::uint64_t used = transports_[rail.value]->in_flight(flow.cls).value;
  return transport.writable({jobs_[job]->run().scenario.engine.job, flow.peer, flow.cls}) &&
         window >= used + kMaxOperation.value &&
         context_.events.now() - transport.moved(job, flow.peer, flow.cls) < kStandsStill;
}

// Whosever it is, the most urgent class goes first; where there are several jobs, a class has a share of each turn.
void SimDaemon::picks(std::size_t job, RailIndex rail, Time now, ClassId cls, std::uint64_t bytes) {
  fairness_.sent(job, rail, cls);
  const bool shares = host_->jobs().size() > 1;
  for (std::size_t other = 0; other < jobs_.size(); ++other) {
    if (!jobs_[other]->runs()) continue;
    const EngineWatch& watch = *jobs_[other]->engines()[rail.value];
    if (other != job) fairness_.passed_over(other, rail, cls, bytes, watch.waits_in(now, cls));
    const std::optional<engine::Flow> urgent = watch.waits_above(now, cls);
    if (!urgent || (shares && transports_[rail.value]->given(urgent->cls) > 0)) continue;
    context_.findings.fail("order",
                           "host {}: class {} of job {} starts while class {} of job {} has a grant of host {}, room "
                           "and credit",
                           self_.value, cls.value, job, urgent->cls.value, other, urgent->peer.value);
  }
}

// Whosever it is and whatever the rail, the most urgent class is summed first.
void SimDaemon::works(ClassId cls) const {
  for (const auto& job : jobs_) {
    if (!job->runs()) continue;
    for (std::size_t r = 0; r < job->engines().size(); ++r) {
      const std::optional<ClassId> waits = job->engines()[r]->next_work();
      if (!waits || *waits >= cls) continue;
      context_.findings.fail(
          "choice", "host {} sums something of class {} while class {} of job {} waits to be summed on rail {}",
          self_.value, cls.value, waits->value, job->run().number, r);
    }
  }
}

void SimDaemon::block_begins(const ports::Block& block) {
  const auto& of_job = static_cast<const host::JobBlock&>(block);
  for (const auto& job : host_->jobs()) {
    const std::size_t number = find(job->id())->run().number;
    if (job.get() == of_job.part) {
      fairness_.worked(number);
    } else {
      fairness_.work_passed_over(number, host::work_cost(of_job), job->next_work() == of_job.span.cls);
    }
  }
}

std::size_t SimDaemon::blocks_of(JobId job) const {
  return static_cast<std::size_t>(std::ranges::count_if(executor_.under_way(), [job](const ports::Block* block) {
    const host::JobPart* of = static_cast<const host::JobBlock*>(block)->part;
    return of != nullptr && of->id() == job;
  }));
}

// ---- ports::LaneListener ----

void SimDaemon::on_job_connected(JobId job) {
  find(job)->connected();
}
void SimDaemon::on_job_failed(JobId job, const Status& cause) {
  find(job)->failed(cause);
}
void SimDaemon::on_job_closed(JobId job) {
  find(job)->closed();
}

// ---- liveness and faults (laws 7, 10 and 18) ----

void SimDaemon::heard(HostIndex from, RailIndex rail, const Heartbeat& beat) {
  if (dead_) return;
  heard_[rail.value][from.value] = context_.events.now();
  for (std::size_t job = 0; job < jobs_.size() && !frozen_; ++job) {
    if ((beat.aborted >> job & 1) != 0) jobs_[job]->abort(fmt::format("host {} aborted the job", from.value));
  }
}

Heartbeat SimDaemon::heartbeat() const {
  Heartbeat beat;
  for (std::size_t job = 0; job < jobs_.size(); ++job) beat.aborted |= jobs_[job]->aborted() ? 1u << job : 0;
  return beat;
}

// Says that we live, and looks who else does. A host that has aborted a job goes on saying so, so that everybody who
// can be reached knows.
void SimDaemon::beat() {
  if (dead_ || context_.findings.any()) return;
  context_.events.after(context_.scenario.heartbeat, [this] { beat(); });
  if (frozen_) return;
  for (std::uint8_t r = 0; r < context_.scenario.rails(); ++r) {
    for (std::uint16_t h = 0; h < context_.scenario.hosts(); ++h) {
      if (h != self_.value) context_.networks[r]->send(self_, HostIndex(h), heartbeat());
    }
    for (auto& job : jobs_) job->look(RailIndex(r), heard_[r]);
  }
  for (auto& job : jobs_) job->look_at_clients();
}

void SimDaemon::tell_aborted() {
  for (auto& network : context_.networks) {
    for (std::uint16_t h = 0; h < context_.scenario.hosts(); ++h) {
      if (h != self_.value) network->send(self_, HostIndex(h), heartbeat());
    }
  }
}

void SimDaemon::set_frozen(bool frozen) {
  frozen_ = frozen;
  if (!frozen && !dead_) wake();
}

void SimDaemon::kill() {
  dead_ = true;
  for (auto& network : context_.networks) network->remove(self_);
}

// ---- checks ----

bool SimDaemon::resolved() const {
  return std::ranges::all_of(jobs_, [](const auto& job) { return job->resolved(); });
}

void SimDaemon::check_quiet() {
  if (const int region = memory_.broken_canary(); region >= 0)
    context_.findings.fail("memory", "host {}: the canary around region {} is overwritten", self_.value, region);
  for (const auto& job : jobs_) job->check_quiet();
}

void SimDaemon::check_logs() {
  host_->clear();
  for (const auto& job : jobs_) job->check_logs();
}

std::uint64_t SimDaemon::resent() const {
  std::uint64_t sum = 0;
  for (const SimTransport* transport : transports_) sum += transport->resent();
  return sum;
}

std::uint64_t SimDaemon::replayed() const {
  std::uint64_t sum = 0;
  for (const SimTransport* transport : transports_) sum += transport->replayed();
  return sum;
}

std::uint64_t SimDaemon::lies() const {
  std::uint64_t sum = 0;
  for (const SimTransport* transport : transports_) sum += transport->lies();
  return sum;
}

std::string SimDaemon::describe() const {
  std::string text = fmt::format("host {}:{}{}", self_.value, dead_ ? " dead" : "", frozen_ ? " frozen" : "");
  for (const auto& job : jobs_) text += job->describe();
  return text;
}

}  // namespace tensorlane::simulator
