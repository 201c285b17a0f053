#include "simulator/swarm/simulation.h"

#include <algorithm>
#include <span>

#include "simulator/checkers/credits.h"
#include "simulator/checkers/plans.h"

namespace tensorlane::simulator {
namespace {
constexpr Duration kHears = milliseconds(2);  // from when ranks have left until a host knows it, at most
constexpr Duration kWatch = milliseconds(1);  // between two looks at the whole
constexpr std::int64_t kStuck = 5;  // detection times without anything moving, long after the last retransmission
constexpr Duration kSettle = milliseconds(150);  // after the end, for what is still on its way
constexpr Duration kHome = seconds(2);           // ... and for what comes home after several attempts
// From when the neighbour has begun and the faults have healed until it is done, beside two detection times.
constexpr Duration kNeighbourTakes = seconds(2);
}  // namespace

Simulation::Simulation(const Scenario& scenario, bool verbose) : scenario_(scenario), trace_(events_, verbose) {
  TL_ASSERT(scenario_.networks.size() == scenario_.rails());
  runs_.push_back(std::make_unique<JobRun>(scenario_, 0, findings_));
  for (const Scenario& other : scenario_.neighbours)
    runs_.push_back(std::make_unique<JobRun>(other, runs_.size(), findings_));
  standing_.resize(runs_.size());
  std::vector<std::uint16_t> hosts;
  for (const auto& run : runs_) hosts.push_back(run->scenario.hosts());
  for (std::uint8_t r = 0; r < scenario_.rails(); ++r) {
    networks_.push_back(
        std::make_unique<Network>(events_, scenario_.networks[r], Random(scenario_.seed).fork(100u + r), hosts));
  }
  Random random(mix(scenario_.seed));
  for (std::uint16_t h = 0; h < scenario_.hosts(); ++h) {
    daemons_.push_back(std::make_unique<SimDaemon>(
        HostIndex(h),
        SimDaemon::Context{scenario_, events_, networks_, runs_, findings_, trace_,
                           [this](std::size_t job, HostIndex from, HostIndex to) { want_flows(job, from, to); }},
        random.fork(h)));
  }
}

Outcome Simulation::run() {
  for (const auto& run : runs_) check_plans(run->scenario, findings_);
  for (auto& daemon : daemons_) daemon->start();
  for (const auto& run : runs_) start(*run);
  for (const Fault& fault : scenario_.faults) schedule(fault);
  events_.after(kWatch, [this] { watch(); });
  while (!quiet_ && !findings_.any() && events_.run_next()) {
  }
  if (quiet_ && !findings_.any()) {
    for (auto& daemon : daemons_) daemon->check_quiet();
    check_messages();
    if (const std::optional<std::string> what = away()) findings_.fail("credits", "all is over, but {}", *what);
  }
  if (!findings_.any()) {
    for (auto& daemon : daemons_) daemon->check_logs();
  }
  return outcome();
}

// What all hosts know together of messages, where none has failed.
void Simulation::check_messages() {
  for (const auto& run : runs_) {
    const auto hosts = std::span(daemons_).first(run->scenario.hosts());
    const auto went_well = [&](const auto& daemon) { return daemon->alive() && !daemon->job(run->number)->aborted(); };
    if (std::ranges::all_of(hosts, went_well)) run->messages.check_quiet();
  }
}

void Simulation::start(const JobRun& run) {
  const std::size_t number = run.number;
  const Scenario& about = run.scenario;
  const auto planned = [this, number, missing = std::make_shared<std::size_t>(about.hosts())] {
    if (--*missing > 0) return;
    for (auto& daemon : daemons_) {
      if (SimJob* job = daemon->job(number)) events_.after(Duration(0), [job] { job->begin(); });
    }
  };
  Random random(mix(about.seed) ^ 2);
  for (auto& daemon : daemons_) {
    SimJob* job = daemon->job(number);
    if (job == nullptr) continue;
    const Time at = about.begins + random.between(Duration(0), about.spread);
    if (at == Time()) {
      job->start(planned);
    } else {
      events_.at(at, [job, planned] { job->start(planned); });
    }
  }
  for (const Growth& growth : about.growths) schedule(run, growth);
}

void Simulation::schedule(const Fault& fault) {
  events_.at(fault.at, [this, fault] { apply(fault, true); });
  if (fault.until != kNever && fault.until != fault.at) events_.at(fault.until, [this, fault] { apply(fault, false); });
}

void Simulation::schedule(const JobRun& run, const Growth& growth) {
  Random random(mix(run.scenario.seed ^ growth.tensors));
  const std::size_t hosts = run.scenario.hosts();
  const auto missing = std::make_shared<std::size_t>(hosts);
  std::vector<Duration> heard;
  for (std::size_t h = 0; h < hosts; ++h) heard.push_back(random.between(Duration(0), growth.spread));
  const auto known = [this, growth, missing, heard, number = run.number] {
    if (--*missing > 0) return;
    for (std::size_t h = 0; h < heard.size(); ++h)
      events_.after(heard[h], [this, h, growth, number] { daemons_[h]->job(number)->allow(growth.tensors); });
  };
  for (std::size_t h = 0; h < hosts; ++h) {
    events_.at(growth.at + random.between(Duration(0), growth.spread), [this, h, growth, known, number = run.number] {
      daemons_[h]->job(number)->grow_plan(growth.tensors, known);
    });
  }
}

void Simulation::apply(const Fault& fault, bool begins) {
  SimDaemon& daemon = *daemons_[fault.host.value];
  trace_.line(fault.host, "fault {} {} (peer {})", kFaultNames[static_cast<std::size_t>(fault.kind)],
              begins ? "begins" : "heals", fault.peer.value);
  if (begins) ++outcome_.faults[static_cast<std::size_t>(fault.kind)];
  for (Standing& standing : standing_) standing.progress_at = events_.now();
  switch (fault.kind) {
    case FaultKind::kPartition:
    case FaultKind::kSlowPort:
    case FaultKind::kResetFlow:
      for (std::uint8_t r = 0; r < scenario_.rails(); ++r) {
        if (!fault.rail || fault.rail->value == r) apply(fault, *networks_[r], begins);
      }
      return;
    case FaultKind::kFreezeDaemon:
      return daemon.set_frozen(begins);
    case FaultKind::kKillDaemon:
      return daemon.kill();
    case FaultKind::kFreezeClient:
      return daemon.job(0)->freeze_clients(begins);
    case FaultKind::kKillClient:
      return daemon.job(0)->kill_clients();
  }
}

void Simulation::apply(const Fault& fault, Network& network, bool begins) {
  if (fault.kind == FaultKind::kPartition) return network.set_cut(fault.host, fault.peer, begins);
  if (fault.kind == FaultKind::kResetFlow) return network.reset(fault.host, {fault.job, fault.peer, fault.level});
  network.scale_uplink(fault.host, begins ? fault.factor : 1);
  network.scale_downlink(fault.host, begins ? fault.factor : 1);
}

bool Simulation::all_resolved() const {
  return std::ranges::all_of(runs_, [this](const auto& run) { return all_resolved(*run); });
}

bool Simulation::all_resolved(const JobRun& run) const {
  // A frozen daemon that will thaw is still to be heard.
  const bool settled = events_.now() > scenario_.last_fault();
  return std::ranges::all_of(daemons_, [&](const auto& daemon) {
    const SimJob* job = daemon->job(run.number);
    return job == nullptr || (job->resolved() && (!daemon->frozen() || settled));
  });
}

// Credit that is not home with one of two hosts that live.
std::optional<std::string> Simulation::away() const {
  for (const auto& run : runs_) {
    if (auto what = away(*run)) return what;
  }
  return std::nullopt;
}

std::optional<std::string> Simulation::away(const JobRun& run) const {
  const auto lives = [&](const auto& daemon) { return daemon->alive() && !daemon->job(run.number)->aborted(); };
  for (std::size_t a = 0; a < run.scenario.hosts(); ++a) {
    for (std::size_t b = 0; b < run.scenario.hosts(); ++b) {
      if (a == b || !lives(daemons_[a]) || !lives(daemons_[b])) continue;
      for (std::uint8_t r = 0; r < scenario_.rails(); ++r) {
        const engine::Engine* from = daemons_[a]->job(run.number)->engines()[r]->engine();
        const engine::Engine* to = daemons_[b]->job(run.number)->engines()[r]->engine();
        if (from == nullptr || to == nullptr) continue;
        const HostIndex sender(static_cast<std::uint16_t>(a)), receiver(static_cast<std::uint16_t>(b));
        if (auto what = credits_away(sender, *from, receiver, *to)) return what;
      }
    }
  }
  return std::nullopt;
}

// As control does it: the peer's hears of it.
void Simulation::want_flows(std::size_t job, HostIndex from, HostIndex to) {
  Random random(mix(scenario_.seed ^ (std::uint64_t{from.value} << 16 | to.value)) ^ job);
  events_.after(random.between(Duration(0), kHears), [this, job, from, to] {
    if (!daemons_[to.value]->dead()) daemons_[to.value]->job(job)->open_flows_to(from);
  });
}

// As control does it (daemon/control/registrar_leaving.cc): once every rank has completed the same operations all hosts
// let go, and then ranks are told, which may register again.
void Simulation::let_go(const JobRun& run) {
  Standing& standing = standing_[run.number];
  const auto hosts = std::span(daemons_).first(run.scenario.hosts());
  if (!run.scenario.shrink || standing.shrinking) return;
  const protocol::TensorRange range = run.scenario.shrink->range;
  const auto done = [&](const auto& daemon) { return daemon->alive() && daemon->job(run.number)->is_done_with(range); };
  if (!std::ranges::all_of(hosts, done)) return;
  standing.shrinking = true;
  Random random(mix(run.scenario.seed) ^ 4);
  for (const auto& daemon : hosts) {
    events_.after(random.between(Duration(0), kHears), [this, &run, range, job = daemon->job(run.number)] {
      job->vacate(range, [this, &run] {
        Standing& now = standing_[run.number];
        if (++now.shrinks < run.scenario.hosts()) return;
        now.settled = !run.scenario.shrink->returns;
        if (!now.settled) come_again(run);
      });
    });
  }
}

void Simulation::come_again(const JobRun& run) {
  const auto hosts = std::span(daemons_).first(run.scenario.hosts());
  const protocol::TensorRange range = run.scenario.shrink->range;
  Random random(mix(run.scenario.seed) ^ 5);
  std::vector<Duration> heard;
  for (std::size_t h = 0; h < hosts.size(); ++h) heard.push_back(random.between(Duration(0), kHears));
  const auto known = [this, &run, range, heard] {
    Standing& now = standing_[run.number];
    if (++now.returns < run.scenario.hosts()) return;
    now.settled = true;
    for (std::size_t h = 0; h < heard.size(); ++h)
      events_.after(heard[h], [job = daemons_[h]->job(run.number), range] { job->allow_again(range); });
  };
  for (const auto& daemon : hosts) {
    events_.after(random.between(Duration(0), kHears),
                  [job = daemon->job(run.number), range, known] { job->grow_again(range, known); });
  }
}

// As control does it: once the ranks of all hosts have left, and as every host hears of it.
void Simulation::let_leave(const JobRun& run) {
  bool& left = standing_[run.number].left;
  const auto hosts = std::span(daemons_).first(run.scenario.hosts());
  const auto done = [&](const auto& daemon) { return daemon->alive() && daemon->job(run.number)->done(); };
  const bool settled = !run.scenario.shrink || standing_[run.number].settled;
  if (!run.scenario.leaves || left || !settled || !std::ranges::all_of(hosts, done)) return;
  left = true;
  Random random(mix(run.scenario.seed) ^ 3);
  for (const auto& daemon : hosts) {
    events_.after(random.between(Duration(0), kHears), [job = daemon->job(run.number)] { job->leave(); });
  }
}

void Simulation::watch() {
  for (const auto& run : runs_) {
    let_go(*run);
    let_leave(*run);
    std::optional<Time>& resolved_at = standing_[run->number].resolved_at;
    if (!resolved_at && all_resolved(*run)) resolved_at = events_.now();
  }
  for (const auto& run : runs_) check_abort(*run);
  if (findings_.any()) return;
  if (all_resolved()) {
    events_.after(kSettle, [this] {
      if (!resolved_at_) resolved_at_ = events_.now();
      const Time late = std::max(*resolved_at_, scenario_.last_fault()) + kHome;
      quiet_ = all_resolved() && (!away() || events_.now() > late);
      if (!quiet_) watch();
    });
    return;
  }
  for (const auto& run : runs_) check_progress(*run);
  events_.after(kWatch, [this] { watch(); });
}

void Simulation::check_abort(const JobRun& run) {
  const bool aborted = std::ranges::any_of(daemons_, [&](const auto& daemon) {
    const SimJob* job = daemon->job(run.number);
    return job != nullptr && daemon->alive() && job->aborted();
  });
  if (!aborted) return;
  std::optional<Time>& abort_at = standing_[run.number].abort_at;
  if (!abort_at) abort_at = events_.now();
  if (run.scenario.must_complete()) {
    findings_.fail(run.checker("abort"), "job {} was aborted though nothing was silent for long. {}", run.number,
                   describe());
    return;
  }
  // The cause spreads by itself, or the silence of who has failed is noticed.
  const Time due = std::max(*abort_at, scenario_.last_fault()) + scenario_.detection * 2 + scenario_.heartbeat * 4;
  if (events_.now() > due && !all_resolved(run))
    findings_.fail("abort", "a host waits for a job that has failed: job {}. {}", run.number, describe());
}

void Simulation::check_progress(const JobRun& run) {
  Standing& standing = standing_[run.number];
  if (all_resolved(run)) return;
  if (run.progress != standing.progress_seen) {
    standing.progress_seen = run.progress;
    standing.progress_at = events_.now();
  }
  const Time since = std::max({standing.progress_at, scenario_.last_fault(), run.scenario.begins});
  if (events_.now() - since > scenario_.detection * kStuck || events_.now() > scenario_.deadline) {
    findings_.fail("progress", "nothing of job {} moves since {} us. {}", run.number, standing.progress_at.value / 1000,
                   describe());
  }
  const Time due = std::max(scenario_.last_fault(), run.scenario.begins) + scenario_.detection * 2 + kNeighbourTakes;
  if (run.number > 0 && events_.now() > due)
    findings_.fail("neighbour", "job {} is not done yet, and others go on. {}", run.number, describe());
}

std::string Simulation::describe() const {
  std::string text;
  for (const auto& daemon : daemons_) text += "\n  " + daemon->describe();
  return text;
}

void Simulation::add_counts(const SimJob& job, Outcome* outcome, Fnv1a* digest) const {
  for (const auto& watch : job.engines()) {
    const engine::EngineCounters c = watch->counters();
    outcome->slices += c.slices_sent;
    for (std::uint64_t bytes : c.demoted_bytes) outcome->demoted += bytes;
    digest->add(watch->digest());
  }
  for (const auto& client : job.clients()) {
    outcome->operations += client->completed_operations();
    outcome->of_sets += client->completed_of_sets();
    outcome->in_parts += client->begun_in_parts();
    outcome->parts_placed += client->parts_placed();
  }
  bool& aborted = job.run().number == 0 ? outcome->aborted : outcome->neighbour_aborted;
  aborted = aborted || job.aborted();
  digest->add_text(job.cause());
}

Outcome Simulation::outcome() const {
  Outcome o = outcome_;
  o.finding = findings_.first();
  o.end = events_.now();
  for (const auto& run : runs_) {
    o.bytes += run->delivery.bytes();
    o.messages += run->messages.received();
    o.message_bytes += run->messages.bytes();
  }
  if (runs_.size() > 1) o.neighbour_end = standing_[1].resolved_at.value_or(o.end);
  for (const auto& network : networks_) {
    o.packets += network->packets();
    o.lost += network->lost();
    o.overflowed += network->overflowed();
    o.congestion += network->congestion();
  }
  Fnv1a digest;
  for (const auto& daemon : daemons_) {
    for (std::size_t number = 0; SimJob* job = daemon->job(number); ++number) add_counts(*job, &o, &digest);
    o.resent += daemon->resent();
    o.stale += daemon->replayed();
    o.lies += daemon->lies();
    o.completed.push_back(daemon->job(0)->clients().front()->completion_times());
  }
  for (std::uint64_t number :
       {o.operations, o.bytes, o.packets, o.lost, events_.executed(), static_cast<std::uint64_t>(o.end.value)}) {
    digest.add(number);
  }
  for (const auto& run : runs_) {
    if (!run->scenario.messages.empty()) digest.add(run->messages.digest());
  }
  digest.add_text(o.finding ? o.finding->checker + o.finding->message : "");
  o.digest = digest.value();
  return o;
}

}  // namespace tensorlane::simulator
