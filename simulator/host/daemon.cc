#include "simulator/host/daemon.h"

#include <algorithm>

namespace tensorlane::simulator {
namespace {

constexpr Duration kHousekeeping = milliseconds(100);
constexpr Duration kStandsStill = milliseconds(300);  // daemon/host gives a flow nothing more that stands for longer
constexpr Duration kSlack = microseconds(1);          // of a host that wakes when a limit lets something pass
constexpr double kReclassifies = 0.1;                 // of submissions, where classes change

}  // namespace

SimDaemon::SimDaemon(HostIndex self, Context context, Random random)
    : self_(self),
      context_(context),
      random_(random),
      executor_({.events = context.events,
                 .workers = context.scenario.lane.workers,
                 .block_time = context.scenario.lane.block_time,
                 .done = [this] { wake(); }},
                Random(context.scenario.seed).fork(1000u + self.value)),
      config_(host_config()),
      ports_(host_ports()),
      seen_(context.scenario.plan.tensors.size()),
      heard_(context.scenario.rails(), std::vector<Time>(context.scenario.hosts())) {
  make_clients(random_);
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
}

SimDaemon::~SimDaemon() = default;

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
  ports.make_observer = [this](const ports::JobSpec&, RailIndex rail) { return watches_[rail.value]->observer(); };
  ports.scratch = &memory_;
  ports.log = [this](const std::string& line) { context_.trace.line(self_, "{}", line); };
  return ports;
}

std::unique_ptr<SimTransport> SimDaemon::make_transport(RailIndex rail, ports::FrameSink& sink) {
  if (context_.scenario.liar == self_) {
    liars_.push_back(std::make_unique<Liar>(self_, context_.scenario, (*context_.grants)[rail.value],
                                            random_.fork(50u + rail.value)));
  }
  auto transport = std::make_unique<SimTransport>(
      self_, sink,
      SimTransport::Context{.scenario = context_.scenario,
                            .events = context_.events,
                            .network = *context_.networks[rail.value],
                            .delivery = context_.delivery,
                            .findings = context_.findings,
                            .trace = context_.trace,
                            .progress = context_.progress,
                            .dead = [this] { return dead_; },
                            .frozen = [this] { return frozen_; },
                            .wake = [this] { wake(); },
                            .heartbeat = [this, rail](HostIndex from, const Heartbeat& b) { heard(from, rail, b); },
                            .accused = [this] { return accuses_ || phase_ != Phase::kRunning; },
                            .liar = context_.scenario.liar == self_ ? liars_.back().get() : nullptr,
                            .grants = context_.scenario.liar ? &(*context_.grants)[rail.value] : nullptr,
                            .holds = [this](TensorId tensor, Sequence sequence) { return holds(tensor, sequence); }},
      random_.fork(2u + rail.value));
  transports_.push_back(transport.get());
  watches_.push_back(std::make_unique<EngineWatch>(
      self_, rail,
      EngineWatch::Context{.scenario = context_.scenario,
                           .memory = memory_,
                           .admission = context_.admission,
                           .findings = context_.findings,
                           .progress = context_.progress,
                           .completed = [this](const engine::Complete& complete) { rail_completed(complete); },
                           .can_go = [this, rail](engine::Flow flow) { return can_go(rail, flow); },
                           .works = [this](ClassId cls) { works(cls); }}));
  return transport;
}

void SimDaemon::make_clients(Random& random) {
  const std::vector<HostIndex>& hosts = context_.scenario.plan.rank_hosts;
  for (std::uint32_t rank = 0; rank < hosts.size(); ++rank) {
    if (hosts[rank] != self_) continue;
    const std::size_t local = clients_.size();
    clients_.push_back(std::make_unique<Client>(
        self_, Rank(rank),
        Client::Context{context_.scenario, context_.events, memory_, context_.values, context_.results,
                        context_.findings, context_.trace,
                        [this, local](const protocol::SubmissionEntry& entry) { submit(local, entry); }},
        random.fork(100 + rank)));
    sessions_.push_back(std::make_shared<SimSession>(
        SimSession::Context{context_.events, memory_, [this] { return std::max(local_, context_.events.now()); },
                            [this] { wake(); },
                            [this, local](const protocol::CompletionEntry& entry) { completed(local, entry); },
                            [this, local](const Status&) {
                              if (!dead_) clients_[local]->fail();
                            }},
        clients_.back()->buffers()));
  }
}

// ---- the host ----

ports::JobSpec SimDaemon::spec() const {
  const Scenario& s = context_.scenario;
  ports::JobSpec spec;
  spec.name = "simulated";
  spec.owner = {.user = 1000, .job = spec.name};
  spec.credentials.job = s.engine.job;
  spec.credentials.epoch = s.engine.epoch;
  spec.credentials.self = self_;
  spec.world_size = s.engine.world_size;
  spec.detection = s.detection;
  for (std::uint16_t h = 0; h < s.hosts(); ++h) {
    ports::JobHost& host = spec.hosts.emplace_back();
    host.name = fmt::format("h{}", h);
    host.addresses.resize(s.rails());
    for (std::uint32_t rank = 0; rank < s.plan.rank_hosts.size(); ++rank) {
      if (s.plan.rank_hosts[rank].value == h) host.ranks.push_back(Rank(rank));
    }
  }
  return spec;
}

host::Job* SimDaemon::job() const {
  return host_->find(context_.scenario.engine.job);
}

void SimDaemon::command(Command command) {
  commands_.push_back(std::move(command));
  wake();
}

void SimDaemon::start(std::function<void()> planned) {
  command([this] {
    host::JobStart start(spec(), config_, ports_);
    while (!start.step()) {
    }
    host_->begin(start);
    for (std::size_t r = 0; r < transports_.size(); ++r) transports_[r]->watch(watches_[r]->staging());
    for (std::size_t local = 0; local < sessions_.size(); ++local)
      if (host::Job* j = job()) j->attach(clients_[local]->rank(), sessions_[local]);
    return true;
  });
  allowed_ = std::min(context_.scenario.tensors_at_start, context_.scenario.plan.tensors.size());
  grow_plan(allowed_, std::move(planned));
  context_.events.after(random_.between(Duration(0), context_.scenario.heartbeat), [this] { beat(); });
}

void SimDaemon::grow_plan(std::size_t tensors, std::function<void()> then) {
  // Two growths with overlapping spreads: what the later one brought is known.
  const std::size_t from = std::min(planned_, tensors);
  planned_ = std::max(planned_, tensors);
  protocol::Plan added = context_.scenario.plan_of(tensors).part(
      {static_cast<std::uint32_t>(from), static_cast<std::uint32_t>(tensors - from)});
  auto growth =
      std::make_shared<host::PlanGrowth>(std::move(added), std::make_shared<const ports::JobSpec>(spec()), ports_);
  while (!growth->step()) {
  }
  command([this, growth, from, tensors, then = std::move(then)] {
    host::Job* j = job();
    if (j == nullptr) return true;
    if (!j->grow(*growth, host_->now())) return false;
    bind(from, tensors);
    context_.trace.line(self_, "plan of {} tensors", tensors);
    then();
    return true;
  });
}

void SimDaemon::bind(std::size_t from, std::size_t to) {
  for (std::size_t i = from; i < to; ++i) {
    const TensorId tensor(static_cast<std::uint32_t>(i));
    if (is_batch(tensor)) continue;
    for (std::size_t local = 0; local < sessions_.size(); ++local)
      job()->bind(clients_[local]->rank(), tensor, sessions_[local]->place(tensor));
  }
}

void SimDaemon::allow(std::size_t tensors) {
  allowed_ = std::max(allowed_, tensors);
  if (dead_ || !connected_ || !may_begin_) return;
  for (auto& client : clients_) client->allow(tensors);
}

void SimDaemon::begin() {
  if (!std::exchange(may_begin_, true) && connected_) start_clients();
}

void SimDaemon::start_clients() {
  if (dead_) return;
  for (auto& client : clients_) client->start(allowed_);
}

void SimDaemon::wake() {
  if (scheduled_) return;
  scheduled_ = true;
  const Time at =
      std::max(local_, context_.events.now()) + random_.between(Duration(0), context_.scenario.lane.poll_delay);
  context_.events.at(at, [this] {
    scheduled_ = false;
    turn();
  });
}

// As daemon/lane does it.
void SimDaemon::turn() {
  if (dead_ || frozen_ || context_.findings.any()) return;
  local_ = std::max(local_, context_.events.now());
  std::size_t progress = host_->receive(local_);
  if (host_->has_closed()) host_->reap();
  progress += host_->collect();
  for (std::size_t left = commands_.size(); left > 0; --left, ++progress) {
    Command next = std::move(commands_.front());
    commands_.pop_front();
    if (next()) continue;
    commands_.push_front(std::move(next));  // it goes on in the next turn
    break;
  }
  if (commands_.empty()) host_->submit([](const host::Job&) { return true; });
  progress += host_->send();
  progress += host_->work();
  local_ = std::max(local_, host_->now());
  host_->housekeep();
  if (progress > 0 || !commands_.empty()) return wake();
  const Time next = host_->next_deadline(local_ + kHousekeeping);
  const bool set = alarm_ && *alarm_ > context_.events.now() && *alarm_ <= next;
  if (!set) alarm_ = std::max(next, context_.events.now());
  if (!set && !resolved()) context_.events.at(*alarm_, [this] { wake(); });
  if (scheduled_ || aborted() || !connected_) return;
  for (const auto& watch : watches_) watch->sleeps(local_, Time(alarm_->value - kSlack.value));
}

bool SimDaemon::can_go(RailIndex rail, engine::Flow flow) const {
  const SimTransport& transport = *transports_[rail.value];
  const std::uint64_t window = config_.rails[rail.value].windows[flow.cls.value].value;
  const std::uint64_t used = transports_[rail.value]->in_flight(flow.cls).value;
  return transport.writable({context_.scenario.engine.job, flow.peer, flow.cls}) &&
         window >= used + kMaxOperation.value &&
         context_.events.now() - transport.moved(flow.peer, flow.cls) < kStandsStill;
}

// Whatever the rail, the most urgent class is summed first.
void SimDaemon::works(ClassId cls) const {
  for (std::size_t r = 0; r < watches_.size(); ++r) {
    const std::optional<ClassId> waits = watches_[r]->next_work();
    if (!waits || *waits >= cls) continue;
    context_.findings.fail("choice", "host {} sums something of class {} while class {} waits to be summed on rail {}",
                           self_.value, cls.value, waits->value, r);
  }
}

// ---- clients ----

void SimDaemon::submit(std::size_t local, const protocol::SubmissionEntry& entry) {
  if (dead_) return;
  if (!context_.scenario.faults.empty() && sessions_[local]->dead()) return;
  // The job has failed: so does every later operation (ports/job.h).
  if (phase_ == Phase::kClosed) {
    if (entry.flags == 0) clients_[local]->completed(TensorId(entry.tensor), Sequence(entry.sequence), false);
    return;
  }
  const TensorId operation = context_.scenario.plan.tensors[entry.tensor].operation_id();
  if (entry.flags == 0) {
    if (++seen_[operation.value].submitted == parts(operation)) {
      seen_[operation.value].submitted = 0;
      context_.admission.submitted(self_, operation);
    }
  } else {
    context_.admission.waits(self_, operation);
  }
  sessions_[local]->submit(entry);
  // The program says for what it waits, in the order in which it submits.
  if (entry.flags == 0 && sessions_[local]->waits_are_observed())
    sessions_[local]->submit({entry.tensor, protocol::kFlagWaited, entry.sequence});
  if (config_.tunes && random_.chance(kReclassifies)) reclassify();
}

// What a search for thresholds does.
void SimDaemon::reclassify() {
  std::vector<double> thresholds(random_.below(config_.classes));
  for (double& t : thresholds) t = static_cast<double>(random_.below(1000)) / 1000;
  std::ranges::sort(thresholds, std::greater());
  command([this, thresholds] {
    if (host::Job* j = job()) j->use_thresholds(thresholds);
    return true;
  });
}

// How many submissions of single ranks an operation is made of.
std::size_t SimDaemon::parts(TensorId operation) const {
  if (!is_batch(operation)) return clients_.size();
  const auto members = std::ranges::count_if(context_.scenario.plan.tensors, [&](const protocol::PlanTensor& t) {
    return t.in_batch() && t.operation_id() == operation;
  });
  return clients_.size() * static_cast<std::size_t>(members);
}

void SimDaemon::rail_completed(const engine::Complete& complete) {
  Seen& seen = seen_[complete.tensor.value];
  if (seen.rails == context_.scenario.rails()) seen = {.submitted = seen.submitted};
  seen.ok = seen.ok && complete.ok;
  if (!complete.ok && phase_ == Phase::kRunning) {
    context_.findings.fail("abort", "host {}: tensor {} failed without an abort", self_.value, complete.tensor.value);
  }
  if (++seen.rails < context_.scenario.rails() || !seen.ok) return;
  for (const SimTransport* transport : transports_) {
    if (transport->unfinished(complete.tensor) == 0) continue;
    context_.findings.fail("memory", "host {}: tensor {} completes while {} of its payloads may still be read",
                           self_.value, complete.tensor.value, transport->unfinished(complete.tensor));
  }
  ++*context_.progress;
  context_.delivery.completed(complete.tensor, complete.sequence);
  context_.admission.completed(self_, complete.tensor);
}

void SimDaemon::completed(std::size_t local, const protocol::CompletionEntry& entry) {
  if (dead_) return;
  if (entry.status != Code::kOk && phase_ == Phase::kRunning)
    context_.findings.fail("abort", "host {}: tensor {} failed without an abort", self_.value, entry.tensor);
  ++*context_.progress;
  clients_[local]->completed(TensorId(entry.tensor), Sequence(entry.sequence), entry.status == Code::kOk);
}

bool SimDaemon::holds(TensorId tensor, Sequence sequence) const {
  const auto& tensors = context_.scenario.plan.tensors;
  const auto member = std::ranges::find_if(
      tensors, [&](const protocol::PlanTensor& t) { return !t.is_batch() && t.operation_id() == tensor; });
  return std::ranges::any_of(clients_, [&](const auto& client) { return client->holds(member->id, sequence); });
}

// ---- ports::LaneListener ----

void SimDaemon::on_job_connected(JobId) {
  if (!std::exchange(connected_, true) && may_begin_) start_clients();
}

void SimDaemon::on_job_failed(JobId, const Status& cause) {
  // Where somebody lies, who is accused must be the liar.
  const bool corrupt = cause.code() == Code::kCorrupt;
  accuses_ = accuses_ || corrupt;
  const bool right =
      context_.scenario.liar && self_ != *context_.scenario.liar &&
      cause.to_string().find(fmt::format("host h{}", context_.scenario.liar->value)) != std::string::npos;
  if (corrupt && !right) return context_.findings.fail("protocol", "host {}: {}", self_.value, cause.to_string());
  context_.events.at(std::max(local_, context_.events.now()), [this, why = cause.to_string()] { abort(why); });
}

void SimDaemon::on_job_closed(JobId) {
  if (phase_ == Phase::kRunning) context_.findings.fail("abort", "host {}: the job has closed by itself", self_.value);
  if (!dead_ && executor_.under_way() > 0) {
    context_.findings.fail("memory", "host {}: the job has closed, and {} blocks of work may still write its memory",
                           self_.value, executor_.under_way());
  }
  phase_ = Phase::kClosed;
}

// ---- checks ----

bool SimDaemon::resolved() const {
  if (!alive()) return true;
  const auto all = [this](auto done) { return std::ranges::all_of(clients_, done); };
  if (phase_ == Phase::kRunning) return all([](const auto& client) { return client->finished(); });
  return phase_ == Phase::kClosed && all([](const auto& client) { return client->pending() == 0; });
}

void SimDaemon::check_quiet() {
  for (const auto& client : clients_) client->check_buffers();
  if (const int region = memory_.broken_canary(); region >= 0)
    context_.findings.fail("memory", "host {}: the canary around region {} is overwritten", self_.value, region);
  if (aborted() || !alive()) return;
  for (const auto& watch : watches_) watch->check_quiet();
}

void SimDaemon::check_logs() {
  host_->clear();
  for (const auto& watch : watches_) watch->check_log();
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
  std::string text =
      fmt::format("host {}: {}{}{}, commands: {}", self_.value, aborted() ? "aborted (" + cause_ + ")" : "running",
                  dead_ ? ", dead" : "", frozen_ ? ", frozen" : "", commands_.size());
  for (const auto& client : clients_)
    text += fmt::format(", rank {}:{}", client->rank().value, client->describe_pending());
  for (const auto& watch : watches_) text += watch->describe();
  return text;
}

}  // namespace tensorlane::simulator
