#include "simulator/host/daemon.h"

#include <algorithm>

namespace tensorlane::simulator {
namespace {

constexpr Duration kStandsStill = milliseconds(300);  // daemon/host gives a flow nothing more that stands for longer
constexpr Duration kSlack = microseconds(1);          // of a host that wakes when a limit lets something pass

}  // namespace

SimDaemon::SimDaemon(HostIndex self, Context context, Random random)
    : self_(self),
      context_(context),
      random_(random),
      config_(host_config()),
      ports_(host_ports()),
      transports_(context.scenario.rails()),
      heard_(context.scenario.rails(), std::vector<Time>(context.scenario.hosts())) {
  for (std::size_t lane = 0; lane < context_.scenario.lane.lanes; ++lane) make_lane(lane);
  for (std::size_t r = 0; r < transports_.size(); ++r)
    lane(RailIndex(static_cast<std::uint8_t>(r))).add(*transports_[r]);
  for (const auto& run : context_.runs) {
    if (self_.value >= run->scenario.hosts()) break;
    jobs_.push_back(std::make_unique<SimJob>(*this, *run, random_.fork(1000 * run->number)));
  }
}

void SimDaemon::make_lane(std::size_t number) {
  lanes_.push_back(std::make_unique<SimLane>(
      SimLane::Context{
          .scenario = context_.scenario,
          .events = context_.events,
          .findings = context_.findings,
          .self = self_,
          .number = number,
          .config = config_,
          .ports = ports_,
          .listener = *this,
          .runs = [this] { return alive() && !context_.findings.any(); },
          .carry_out = [this, number] { return carry_out(number); },
          .has_commands = [this, number] { return has_commands(number); },
          .has_commands_of = [this](JobId job) { return find(job)->has_commands(); },
          .resolved = [this] { return resolved(); },
          .sleeps = [this, number](Time now, Time until) { sleeps(number, now, until); },
          .block_begins = [this](SimLane& lane, const host::JobBlock& block) { block_begins(lane, block); },
          .post =
              [this, number](std::size_t to, host::Note note) {
                // In order: what a lane says later, it says later.
                const auto held = std::make_shared<host::Note>(std::move(note));
                context_.events.at(lanes_[number]->now(), [this, to, held] { lanes_[to]->receive(std::move(*held)); });
              }},
      random_.fork(number)));
}

// Transports and engines speak to the jobs while they close; and lanes to each other.
SimDaemon::~SimDaemon() {
  for (const auto& lane : lanes_) lane->host().clear();
  lanes_.clear();
}

host::HostConfig SimDaemon::host_config() const {
  const Scenario& s = context_.scenario;
  host::HostConfig config;
  config.classes = s.engine.classes;
  host::RailConfig rail;
  rail.windows.assign(s.windows.begin() + 1, s.windows.end());
  for (std::size_t r = 0; r < s.rails(); ++r) {
    config.rails.push_back(rail);
    config.rails.back().lane = (r + s.lane.first_rail) % s.lane.lanes;
  }
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
  config.messages = std::ranges::any_of(context_.runs, [](const auto& run) { return !run->scenario.messages.empty(); });
  return config;
}

host::HostPorts SimDaemon::host_ports() {
  host::HostPorts ports;
  ports.memory = &memory_;
  ports.timeline = &timeline_;
  ports.make_transport = [this](RailIndex rail, ports::FlowOwner& owner) -> Result<std::unique_ptr<ports::Transport>> {
    return std::unique_ptr<ports::Transport>(make_transport(rail, owner));
  };
  ports.make_observer = [this](const ports::JobSpec& spec, RailIndex rail) {
    return find(spec.credentials.job)->observer(rail);
  };
  ports.scratch = &memory_;
  ports.log = [this](const std::string& line) { context_.trace.line(self_, "{}", line); };
  return ports;
}

std::unique_ptr<SimTransport> SimDaemon::make_transport(RailIndex rail, ports::FlowOwner& owner) {
  auto transport = std::make_unique<SimTransport>(
      self_, owner,
      SimTransport::Context{.lane = context_.scenario.lane,
                            .events = context_.events,
                            .network = *context_.networks[rail.value],
                            .findings = context_.findings,
                            .trace = context_.trace,
                            .dead = [this] { return dead_; },
                            .frozen = [this] { return frozen_; },
                            .wake = [this, rail] { lane(rail).wake(); },
                            .heartbeat = [this, rail](HostIndex from, const Heartbeat& b) { heard(from, rail, b); }},
      random_.fork(2u + rail.value));
  transports_[rail.value] = transport.get();
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
  for (const auto& lane : lanes_) lane->wake();
}

std::size_t SimDaemon::carry_out(std::size_t lane) {
  std::size_t done = 0;
  for (auto& job : jobs_) done += home(job->run().number).number() == lane ? job->carry_out() : 0;
  return done;
}

bool SimDaemon::has_commands(std::size_t lane) const {
  return std::ranges::any_of(
      jobs_, [&](const auto& job) { return home(job->run().number).number() == lane && job->has_commands(); });
}

void SimDaemon::sleeps(std::size_t lane, Time now, Time until) const {
  for (const auto& job : jobs_) {
    for (std::size_t r = 0; job->runs() && r < config_.rails.size(); ++r) {
      if (config_.rails[r].lane == lane) job->engines()[r]->sleeps(now, Time(until.value - kSlack.value));
    }
  }
}

// ---- what jobs share ----

bool SimDaemon::can_go(std::size_t job, RailIndex rail, engine::Flow flow) const {
  const SimTransport& transport = *transports_[rail.value];
  const std::uint64_t window = config_.rails[rail.value].windows[flow.cls.value].value;
  const std::uint64_t used = transports_[rail.value]->in_flight(flow.cls).value;
  return transport.writable({job, flow.peer, level_of(flow.cls)}) && window >= used + kMaxOperation.value &&
         context_.events.now() - transport.moved(job, flow.peer, flow.cls) < kStandsStill;
}

void SimDaemon::turn_of(std::size_t job, RailIndex rail, Time now, ClassId cls, std::uint64_t bytes) {
  FairnessChecker& fairness = lane(rail).fairness();
  fairness.sent(job, rail, cls);
  for (std::size_t other = 0; other < jobs_.size(); ++other) {
    if (other == job || !jobs_[other]->runs()) continue;
    fairness.passed_over(other, rail, cls, bytes, jobs_[other]->engines()[rail.value]->waits_in(now, cls));
  }
}

void SimDaemon::message_goes(std::size_t job, RailIndex rail, ClassId cls, std::uint64_t bytes) {
  if (cls != kControlClass) turn_of(job, rail, lane(rail).host().now(), cls, bytes);
}

// Whosever it is, the most urgent class goes first; where there are several jobs, a class has a share of each turn.
void SimDaemon::picks(std::size_t job, RailIndex rail, Time now, ClassId cls, std::uint64_t bytes) {
  turn_of(job, rail, now, cls, bytes);
  const bool shares = lane(rail).host().jobs().size() > 1;
  for (std::size_t other = 0; other < jobs_.size(); ++other) {
    if (!jobs_[other]->runs()) continue;
    const EngineWatch& watch = *jobs_[other]->engines()[rail.value];
    const std::optional<engine::Flow> urgent = watch.waits_above(now, cls);
    if (!urgent || (shares && transports_[rail.value]->given(urgent->cls) > 0)) continue;
    context_.findings.fail("order",
                           "host {}: class {} of job {} starts while class {} of job {} has a grant of host {}, room "
                           "and credit",
                           self_.value, cls.value, job, urgent->cls.value, other, urgent->peer.value);
  }
}

// Whosever it is and whatever the rail, the most urgent class of a lane is summed first.
void SimDaemon::works(RailIndex rail, ClassId cls) const {
  for (const auto& job : jobs_) {
    if (!job->runs()) continue;
    for (std::size_t r = 0; r < job->engines().size(); ++r) {
      if (config_.rails[r].lane != config_.rails[rail.value].lane) continue;
      const std::optional<ClassId> waits = job->engines()[r]->next_work();
      if (!waits || *waits >= cls) continue;
      context_.findings.fail(
          "choice", "host {} sums something of class {} while class {} of job {} waits to be summed on rail {}",
          self_.value, cls.value, waits->value, job->run().number, r);
    }
  }
}

void SimDaemon::block_begins(SimLane& lane, const host::JobBlock& block) {
  for (const auto& job : lane.host().jobs()) {
    const std::size_t number = find(job->id())->run().number;
    if (job.get() == block.part) {
      lane.fairness().worked(number);
    } else {
      lane.fairness().work_passed_over(number, host::work_cost(block), job->next_work() == block.span.cls);
    }
  }
}

std::size_t SimDaemon::blocks_of(JobId job) const {
  std::size_t blocks = 0;
  for (const auto& lane : lanes_) {
    for (const ports::Block* block : lane->under_way()) {
      const host::JobPart* of = static_cast<const host::JobBlock*>(block)->part;
      blocks += of != nullptr && of->id() == job ? 1 : 0;
    }
  }
  return blocks;
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
void SimDaemon::on_flows_wanted(JobId job, HostIndex peer) {
  context_.wants_flows(find(job)->run().number, self_, peer);
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
  for (const auto& lane : lanes_) lane->host().clear();
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
