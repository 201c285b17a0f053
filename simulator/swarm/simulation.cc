#include "simulator/swarm/simulation.h"

#include <algorithm>

#include "common/base/hash.h"
#include "simulator/checkers/credits.h"
#include "simulator/checkers/plans.h"

namespace tensorlane::simulator {
namespace {
constexpr Duration kWatch = milliseconds(1);  // between two looks at the whole
constexpr std::int64_t kStuck = 5;  // detection times without anything moving, long after the last retransmission
constexpr Duration kSettle = milliseconds(150);  // after the end, for what is still on its way
constexpr Duration kHome = seconds(2);           // ... and for what comes home after several attempts
}  // namespace

Simulation::Simulation(const Scenario& scenario, bool verbose)
    : scenario_(scenario),
      trace_(events_, verbose),
      values_(scenario_),
      results_(scenario_, values_, findings_),
      delivery_(scenario_, findings_),
      admission_(scenario_, findings_),
      grants_(scenario_.rails()) {
  TL_ASSERT(scenario_.networks.size() == scenario_.rails());
  for (std::uint8_t r = 0; r < scenario_.rails(); ++r) {
    networks_.push_back(
        std::make_unique<Network>(events_, scenario_.networks[r], Random(scenario_.seed).fork(100u + r)));
  }
  Random random(mix(scenario_.seed));
  for (std::uint16_t h = 0; h < scenario_.hosts(); ++h) {
    daemons_.push_back(
        std::make_unique<SimDaemon>(HostIndex(h),
                                    SimDaemon::Context{scenario_, events_, networks_, values_, results_, delivery_,
                                                       admission_, findings_, trace_, &progress_, &grants_},
                                    random.fork(h)));
  }
}

Outcome Simulation::run() {
  check_plans(scenario_, findings_);
  std::size_t missing = daemons_.size();
  const auto planned = [this, &missing] {
    if (--missing > 0) return;
    for (auto& daemon : daemons_) events_.after(Duration(0), [&daemon] { daemon->begin(); });
  };
  for (auto& daemon : daemons_) daemon->start(planned);
  for (const Fault& fault : scenario_.faults) schedule(fault);
  for (const Growth& growth : scenario_.growths) schedule(growth);
  events_.after(kWatch, [this] { watch(); });
  while (!quiet_ && !findings_.any() && events_.run_next()) {
  }
  if (quiet_ && !findings_.any()) {
    for (auto& daemon : daemons_) daemon->check_quiet();
    if (const std::optional<std::string> what = away()) findings_.fail("credits", "all is over, but {}", *what);
  }
  if (!findings_.any()) {
    for (auto& daemon : daemons_) daemon->check_logs();
  }
  return outcome();
}

void Simulation::schedule(const Fault& fault) {
  events_.at(fault.at, [this, fault] { apply(fault, true); });
  if (fault.until != kNever && fault.until != fault.at) events_.at(fault.until, [this, fault] { apply(fault, false); });
}

void Simulation::schedule(const Growth& growth) {
  Random random(mix(scenario_.seed ^ growth.tensors));
  const auto missing = std::make_shared<std::size_t>(daemons_.size());
  std::vector<Duration> heard;
  for (std::size_t h = 0; h < daemons_.size(); ++h) heard.push_back(random.between(Duration(0), growth.spread));
  const auto known = [this, growth, missing, heard] {
    if (--*missing > 0) return;
    for (std::size_t h = 0; h < daemons_.size(); ++h)
      events_.after(heard[h], [this, h, growth] { daemons_[h]->allow(growth.tensors); });
  };
  for (std::size_t h = 0; h < daemons_.size(); ++h) {
    events_.at(growth.at + random.between(Duration(0), growth.spread),
               [this, h, growth, known] { daemons_[h]->grow_plan(growth.tensors, known); });
  }
}

void Simulation::apply(const Fault& fault, bool begins) {
  SimDaemon& daemon = *daemons_[fault.host.value];
  trace_.line(fault.host, "fault {} {} (peer {})", kFaultNames[static_cast<std::size_t>(fault.kind)],
              begins ? "begins" : "heals", fault.peer.value);
  if (begins) ++outcome_.faults[static_cast<std::size_t>(fault.kind)];
  progress_at_ = events_.now();
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
      return daemon.freeze_client(begins);
    case FaultKind::kKillClient:
      return daemon.kill_client();
  }
}

void Simulation::apply(const Fault& fault, Network& network, bool begins) {
  if (fault.kind == FaultKind::kPartition) return network.set_cut(fault.host, fault.peer, begins);
  if (fault.kind == FaultKind::kResetFlow) return network.reset(fault.host, fault.peer, fault.level);
  network.scale_uplink(fault.host, begins ? fault.factor : 1);
  network.scale_downlink(fault.host, begins ? fault.factor : 1);
}

bool Simulation::all_resolved() const {
  // A frozen daemon that will thaw is still to be heard.
  const bool settled = events_.now() > scenario_.last_fault();
  return std::ranges::all_of(daemons_,
                             [&](const auto& daemon) { return daemon->resolved() && (!daemon->frozen() || settled); });
}

// Credit that is not home with one of two hosts that live.
std::optional<std::string> Simulation::away() const {
  const auto lives = [](const auto& daemon) { return daemon->alive() && !daemon->aborted(); };
  for (std::size_t a = 0; a < daemons_.size(); ++a) {
    for (std::size_t b = 0; b < daemons_.size(); ++b) {
      if (a == b || !lives(daemons_[a]) || !lives(daemons_[b])) continue;
      for (std::uint8_t r = 0; r < scenario_.rails(); ++r) {
        const engine::Engine* from = daemons_[a]->engines()[r]->engine();
        const engine::Engine* to = daemons_[b]->engines()[r]->engine();
        if (from == nullptr || to == nullptr) continue;
        const HostIndex sender(static_cast<std::uint16_t>(a)), receiver(static_cast<std::uint16_t>(b));
        if (auto what = credits_away(sender, *from, receiver, *to, scenario_.engine.eager_credits)) return what;
      }
    }
  }
  return std::nullopt;
}

void Simulation::watch() {
  check_abort();
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
  check_progress();
  events_.after(kWatch, [this] { watch(); });
}

void Simulation::check_abort() {
  const bool aborted =
      std::ranges::any_of(daemons_, [](const auto& daemon) { return daemon->alive() && daemon->aborted(); });
  if (!aborted) return;
  if (!abort_at_) abort_at_ = events_.now();
  if (scenario_.must_complete()) {
    findings_.fail("abort", "the job was aborted though nothing was silent for long. {}", describe());
    return;
  }
  // The cause spreads by itself, or the silence of who has failed is noticed.
  const Time due = std::max(*abort_at_, scenario_.last_fault()) + scenario_.detection * 2 + scenario_.heartbeat * 4;
  if (events_.now() > due && !all_resolved())
    findings_.fail("abort", "a host waits for a job that has failed. {}", describe());
}

void Simulation::check_progress() {
  if (progress_ != progress_seen_) {
    progress_seen_ = progress_;
    progress_at_ = events_.now();
  }
  const bool stuck = events_.now() - std::max(progress_at_, scenario_.last_fault()) > scenario_.detection * kStuck;
  if ((stuck && !all_resolved()) || events_.now() > scenario_.deadline) {
    findings_.fail("progress", "nothing moves since {} us. {}", progress_at_.value / 1000, describe());
  }
}

std::string Simulation::describe() const {
  std::string text;
  for (const auto& daemon : daemons_) text += "\n  " + daemon->describe();
  return text;
}

Outcome Simulation::outcome() const {
  Outcome o = outcome_;
  o.finding = findings_.first();
  o.end = events_.now();
  o.bytes = delivery_.bytes();
  for (const auto& network : networks_) {
    o.packets += network->packets();
    o.lost += network->lost();
    o.overflowed += network->overflowed();
    o.congestion += network->congestion();
  }
  Fnv1a digest;
  for (const auto& daemon : daemons_) {
    for (const auto& watch : daemon->engines()) {
      const engine::EngineCounters c = watch->counters();
      o.slices += c.slices_sent;
      for (std::uint64_t bytes : c.demoted_bytes) o.demoted += bytes;
      digest.add(watch->digest());
    }
    o.resent += daemon->resent();
    o.stale += daemon->replayed();
    o.lies += daemon->lies();
    for (const auto& client : daemon->clients()) o.operations += client->completed_operations();
    o.aborted = o.aborted || daemon->aborted();
    o.completed.push_back(daemon->clients().front()->completion_times());
    digest.add_text(daemon->cause());
  }
  for (std::uint64_t number :
       {o.operations, o.bytes, o.packets, o.lost, events_.executed(), static_cast<std::uint64_t>(o.end.value)}) {
    digest.add(number);
  }
  digest.add_text(o.finding ? o.finding->checker + o.finding->message : "");
  o.digest = digest.value();
  return o;
}

}  // namespace tensorlane::simulator
