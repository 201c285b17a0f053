#include "simulator/host/job.h"

#include <algorithm>
#include <utility>

#include "simulator/host/daemon.h"

namespace tensorlane::simulator {
namespace {

constexpr double kReclassifies = 0.1;  // of submissions, where classes change
constexpr std::uint64_t kRoom = 0x726f'6f6d'0000'0000;

}  // namespace

SimJob::SimJob(SimDaemon& machine, JobRun& run, Random random)
    : machine_(machine),
      run_(run),
      scenario_(run.scenario),
      findings_(machine.findings()),
      random_(random),
      room_(mix(run.scenario.seed) ^ mix(kRoom + machine.self().value)),
      seen_(run.scenario.plan.tensors.size()) {
  for (std::uint8_t r = 0; r < scenario_.rails(); ++r) make_rail(RailIndex(r));
  make_clients(random_);
  if (scenario_.refusal && scenario_.refusal->host == machine_.self())
    machine_.memory().refuse(scenario_.user, scenario_.refusal->after);
}

SimJob::~SimJob() = default;

void SimJob::make_rail(RailIndex rail) {
  const bool lies = scenario_.liar == machine_.self();
  if (lies) {
    liars_.push_back(
        std::make_unique<Liar>(machine_.self(), scenario_, run_.grants[rail.value], random_.fork(50u + rail.value)));
  }
  machine_.transport(rail).carry(
      {.scenario = scenario_,
       .delivery = run_.delivery,
       .messages = run_.messages,
       .progress = &run_.progress,
       .accused = [this, rail] { return watches_[rail.value]->broken() || accuses_ || phase_ != Phase::kRunning; },
       .liar = lies ? liars_.back().get() : nullptr,
       .grants = scenario_.liar ? &run_.grants[rail.value] : nullptr,
       .holds = [this](HostIndex from, const protocol::FrameHeader& header) { return holds(from, header); },
       .message_goes = [this, rail](ClassId cls,
                                    std::uint64_t bytes) { machine_.message_goes(run_.number, rail, cls, bytes); }});
  watches_.push_back(std::make_unique<EngineWatch>(
      machine_.self(), rail,
      EngineWatch::Context{
          .scenario = scenario_,
          .memory = machine_.memory(),
          .admission = run_.admission,
          .findings = findings_,
          .begun = [this, rail](StagingChecker& staging) { machine_.transport(rail).watch(run_.number, &staging); },
          .progress = &run_.progress,
          .completed = [this](const engine::Complete& complete) { rail_completed(complete); },
          .can_go = [this, rail](engine::Flow flow) { return machine_.can_go(run_.number, rail, flow); },
          .picks = [this, rail](Time now, ClassId cls,
                                std::uint64_t bytes) { machine_.picks(run_.number, rail, now, cls, bytes); },
          .works = [this, rail](ClassId cls) { machine_.works(rail, cls); }}));
}

void SimJob::make_clients(Random& random) {
  const std::vector<HostIndex>& hosts = scenario_.plan.rank_hosts;
  for (std::uint32_t rank = 0; rank < hosts.size(); ++rank) {
    if (hosts[rank] != machine_.self()) continue;
    const std::size_t local = clients_.size();
    clients_.push_back(std::make_unique<Client>(
        machine_.self(), Rank(rank),
        Client::Context{scenario_, machine_.events(), machine_.memory(), run_.values, run_.results, findings_,
                        machine_.trace(),
                        [this, local](const protocol::SubmissionEntry& entry) { submit(local, entry); }, run_.messages,
                        [this, local](std::uint32_t slot, const protocol::MessageSlot& m) { post(local, slot, m); }},
        random.fork(100 + rank)));
    sessions_.push_back(std::make_shared<SimSession>(
        SimSession::Context{machine_.events(), machine_.memory(), [this] { return machine_.home(run_.number).now(); },
                            [this] { machine_.home(run_.number).wake(); },
                            [this, local](const protocol::CompletionEntry& entry) { completed(local, entry); },
                            [this, local](const protocol::CompletionEntry& entry) { placed(local, entry); },
                            [this, local](std::uint32_t slot, const protocol::MessageSlot& outcome, Code code) {
                              message_over(local, slot, outcome, code);
                            },
                            [this, local](const Status&) {
                              if (!machine_.dead()) clients_[local]->fail();
                            }},
        clients_.back()->buffers()));
  }
}

// ---- the host ----

ports::JobSpec SimJob::spec() const {
  const Scenario& s = scenario_;
  ports::JobSpec spec;
  spec.name = fmt::format("simulated {}", run_.number);
  spec.owner = {.user = s.user, .job = spec.name};
  spec.credentials.job = s.engine.job;
  spec.credentials.epoch = s.engine.epoch;
  spec.credentials.self = machine_.self();
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

host::Job* SimJob::job() const {
  return machine_.home(run_.number).host().find(scenario_.engine.job);
}

void SimJob::command(Command command) {
  commands_.push_back(std::move(command));
  machine_.home(run_.number).wake();
}

std::size_t SimJob::carry_out() {
  std::size_t done = 0;
  for (std::size_t left = commands_.size(); left > 0; --left, ++done) {
    Command next = std::move(commands_.front());
    commands_.pop_front();
    if (next()) continue;
    commands_.push_front(std::move(next));  // it goes on in the next turn
    return done;
  }
  return done;
}

void SimJob::start(std::function<void()> planned) {
  if (aborted()) return;  // it has heard that another host did
  command([this] {
    const auto start = std::make_shared<host::JobStart>(spec(), machine_.config(), machine_.ports());
    while (!start->step()) {
    }
    machine_.home(run_.number).host().begin(start);
    for (std::size_t local = 0; local < sessions_.size(); ++local)
      if (host::Job* j = job()) j->attach(clients_[local]->rank(), sessions_[local]);
    return true;
  });
  allowed_ = std::min(scenario_.tensors_at_start, scenario_.plan.tensors.size());
  grow_plan(allowed_, std::move(planned));
}

void SimJob::grow_plan(std::size_t tensors, std::function<void()> then) {
  // Two growths with overlapping spreads: what the later one brought is known.
  const std::size_t from = std::min(planned_, tensors);
  planned_ = std::max(planned_, tensors);
  const protocol::Plan plan = scenario_.plan_of(tensors);
  // One registration after the other.
  std::size_t begin = from, end = from;
  do {
    while (end < tensors && plan.tensors[end].group == plan.tensors[begin].group) ++end;
    const protocol::TensorRange range{static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end - begin)};
    const std::function<void()> nothing = [] {};
    grow(plan.part(range), range, end == tensors ? std::move(then) : nothing);
    begin = end;
  } while (begin < tensors);
}

void SimJob::grow(protocol::Plan added, protocol::TensorRange range, std::function<void()> then) {
  auto growth = std::make_shared<host::PlanGrowth>(std::move(added), std::make_shared<const ports::JobSpec>(spec()),
                                                   machine_.ports());
  while (!growth->step()) {
  }
  command([this, growth, range, then = std::move(then)] {
    host::Job* j = job();
    if (j == nullptr) return true;
    if (!j->grow(*growth, machine_.home(run_.number).host().now())) return false;
    bind(range.first, range.end());
    machine_.trace().line(machine_.self(), "job {}: plan with {} tensors from {} on", run_.number, range.count,
                          range.first);
    j->when_settled(then);
    return true;
  });
}

void SimJob::bind(std::size_t from, std::size_t to) {
  for (std::size_t i = from; i < to; ++i) {
    const TensorId tensor(static_cast<std::uint32_t>(i));
    for (std::size_t local = 0; local < sessions_.size(); ++local) {
      if (clients_[local]->has(tensor)) job()->bind(clients_[local]->rank(), tensor, sessions_[local]->place(tensor));
    }
  }
}

void SimJob::allow(std::size_t tensors) {
  allowed_ = std::max(allowed_, tensors);
  if (machine_.dead() || !connected_ || !may_begin_) return;
  for (auto& client : clients_) client->allow(tensors);
}

void SimJob::begin() {
  if (!std::exchange(may_begin_, true) && connected_) start_clients();
}

void SimJob::start_clients() {
  if (machine_.dead()) return;
  for (auto& client : clients_) client->start(allowed_);
}

void SimJob::vacate(protocol::TensorRange range, std::function<void()> then) {
  auto shrinking = std::make_shared<host::PlanShrinking>();
  shrinking->version = scenario_.plan_of(planned_).version + 1;
  shrinking->range = range;
  command([this, shrinking, then = std::move(then)] {
    host::Job* j = job();
    if (j == nullptr) return true;
    if (!j->vacate(*shrinking, machine_.home(run_.number).host().now())) return false;
    j->when_settled([this, gone = shrinking->range, then] {
      vacated(gone);
      then();
    });
    return true;
  });
}

void SimJob::vacated(protocol::TensorRange gone) {
  machine_.trace().line(machine_.self(), "job {}: plan without {} tensors from {} on", run_.number, gone.count,
                        gone.first);
  for (std::uint8_t r = 0; r < scenario_.rails(); ++r) machine_.transport(RailIndex(r)).forget(run_.number, gone);
  for (std::uint32_t i = gone.first; i < gone.end(); ++i) check_given_back(TensorId(i));
}

// The table of tensors names none of the buffers of a tensor that is gone.
void SimJob::check_given_back(TensorId tensor) const {
  for (const auto& client : clients_) {
    if (!machine_.memory().names(client->buffers()[tensor.value])) continue;
    findings_.fail("bounds", "host {}: tensor {} of job {} has left the plan, but is in the table of tensors",
                   machine_.self().value, tensor.value, run_.number);
  }
}

void SimJob::grow_again(protocol::TensorRange range, std::function<void()> then) {
  protocol::Plan added = scenario_.plan_of(planned_).part(range);
  added.version += 2;
  // As the leader counts them: the operations of the whole group.
  for (protocol::PlanTensor& tensor : added.tensors) tensor.base = scenario_.shrink->iterations * range.count;
  grow(std::move(added), range, std::move(then));
}

void SimJob::allow_again(protocol::TensorRange range) {
  if (machine_.dead()) return;
  for (auto& client : clients_) client->register_again(range);
}

// ---- clients ----

void SimJob::submit(std::size_t local, const protocol::SubmissionEntry& entry) {
  if (machine_.dead()) return;
  if (sessions_[local]->dead()) return;
  // The job has failed: so does every later operation (ports/job.h).
  if (phase_ == Phase::kClosed) {
    if (entry.flags != protocol::kFlagBoost)
      clients_[local]->completed(TensorId(entry.tensor), Sequence(protocol::sequence_in(entry.sequence)), false);
    return;
  }
  const TensorId operation = scenario_.plan.tensors[entry.tensor].operation_id();
  if (begins(entry)) {
    if (++seen_[operation.value].submitted == parts(operation)) {
      seen_[operation.value].submitted = 0;
      run_.admission.submitted(machine_.self(), operation);
    }
  } else if (entry.flags == protocol::kFlagBoost) {
    run_.admission.waits(machine_.self(), operation);
  }
  sessions_[local]->submit(entry);
  // The program says for what it waits, in the order in which it submits.
  if (entry.flags == 0 && sessions_[local]->waits_are_observed())
    sessions_[local]->submit({entry.tensor, protocol::kFlagWaited, entry.sequence});
  if (machine_.config().tunes && random_.chance(kReclassifies)) reclassify();
}

// Whether the rank has submitted the operation with this, as far as the daemon minds.
bool SimJob::begins(const protocol::SubmissionEntry& entry) {
  if (entry.flags == protocol::kFlagBoost) return false;
  const bool rest = entry.flags == 0;
  const protocol::PlanTensor& tensor = scenario_.plan.tensors[entry.tensor];
  const TensorWorld& world = run_.values.world(tensor);
  if (!Scenario::begins_in_parts(tensor, world.hosts(), world.ranks_on(machine_.self()))) return rest;
  const bool goes_on = std::exchange(seen_[entry.tensor].in_parts, !rest);
  return !goes_on;
}

// What a search for thresholds does.
void SimJob::reclassify() {
  std::vector<double> thresholds(random_.below(machine_.config().classes));
  for (double& t : thresholds) t = static_cast<double>(random_.below(1000)) / 1000;
  std::ranges::sort(thresholds, std::greater());
  command([this, thresholds] {
    if (host::Job* j = job()) j->use_thresholds(thresholds);
    return true;
  });
}

// How many submissions of single ranks an operation is made of.
std::size_t SimJob::parts(TensorId operation) const {
  const TensorWorld& world = run_.values.world(scenario_.plan.tensors[operation.value]);
  const std::size_t ranks = world.ranks_on(machine_.self());
  if (!is_batch(operation)) return ranks;
  const auto members = std::ranges::count_if(scenario_.plan.tensors, [&](const protocol::PlanTensor& t) {
    return t.in_batch() && t.operation_id() == operation;
  });
  return ranks * static_cast<std::size_t>(members);
}

void SimJob::rail_completed(const engine::Complete& complete) {
  Seen& seen = seen_[complete.tensor.value];
  if (seen.rails == scenario_.rails()) seen = {.submitted = seen.submitted, .in_parts = seen.in_parts};
  seen.ok = seen.ok && complete.ok;
  if (!complete.ok && phase_ == Phase::kRunning) {
    findings_.fail("abort", "host {}: tensor {} failed without an abort", machine_.self().value, complete.tensor.value);
  }
  if (++seen.rails < scenario_.rails() || !seen.ok) return;
  for (std::uint8_t r = 0; r < scenario_.rails(); ++r) {
    const std::uint32_t unfinished = machine_.transport(RailIndex(r)).unfinished(run_.number, complete.tensor);
    if (unfinished == 0) continue;
    findings_.fail("memory", "host {}: tensor {} completes while {} of its payloads may still be read",
                   machine_.self().value, complete.tensor.value, unfinished);
  }
  ++run_.progress;
  run_.delivery.completed(complete.tensor, complete.sequence);
  run_.admission.completed(machine_.self(), complete.tensor);
}

void SimJob::completed(std::size_t local, const protocol::CompletionEntry& entry) {
  if (machine_.dead()) return;
  if (entry.status != Code::kOk && phase_ == Phase::kRunning) {
    findings_.fail("abort", "host {}: tensor {} failed without an abort", machine_.self().value, entry.tensor);
  }
  ++run_.progress;
  clients_[local]->completed(TensorId(entry.tensor), Sequence(entry.sequence), entry.status == Code::kOk);
}

// In a ring with little room some of these are left out.
void SimJob::placed(std::size_t local, const protocol::CompletionEntry& entry) {
  if (machine_.dead() || phase_ != Phase::kRunning || room_.chance(scenario_.client.places_lost)) return;
  clients_[local]->placed(TensorId(entry.tensor), Sequence(protocol::sequence_in(entry.sequence)),
                          protocol::parts_in(entry.sequence));
}

bool SimJob::holds(HostIndex from, const protocol::FrameHeader& header) const {
  if (protocol::is_of_message(header)) return run_.messages.is_open(from, machine_.self(), header.grant);
  const TensorId tensor = header.tensor;
  const auto& tensors = scenario_.plan.tensors;
  const auto member = std::ranges::find_if(
      tensors, [&](const protocol::PlanTensor& t) { return !t.is_batch() && t.operation_id() == tensor; });
  return std::ranges::any_of(clients_, [&](const auto& client) { return client->holds(member->id, header.sequence); });
}

// ---- what the host tells ----

void SimJob::connected() {
  if (!std::exchange(connected_, true) && may_begin_) start_clients();
}

void SimJob::failed(const Status& cause) {
  // Where somebody lies, who is accused must be the liar.
  const bool corrupt = cause.code() == Code::kCorrupt;
  accuses_ = accuses_ || corrupt;
  const bool right = scenario_.liar && machine_.self() != *scenario_.liar &&
                     cause.to_string().find(fmt::format("host h{}", scenario_.liar->value)) != std::string::npos;
  if (corrupt && !right) return findings_.fail("protocol", "host {}: {}", machine_.self().value, cause.to_string());
  const bool refused = machine_.memory().has_refused(scenario_.user);
  const bool names_host = cause.to_string().find(fmt::format("host h{}", machine_.self().value)) != std::string::npos;
  if (cause.code() == Code::kResourceExhausted && (!refused || !names_host)) {
    findings_.fail("neighbour", "host {}: job {} is refused what is there, or by nobody: {}", machine_.self().value,
                   run_.number, cause.to_string());
  }
  machine_.events().at(machine_.home(run_.number).now(), [this, why = cause.to_string()] { abort(why); });
}

void SimJob::closed() {
  if (phase_ == Phase::kRunning) {
    findings_.fail("abort", "host {}: the job has closed by itself", machine_.self().value);
  }
  if (const std::size_t blocks = machine_.blocks_of(scenario_.engine.job); !machine_.dead() && blocks > 0) {
    findings_.fail("memory", "host {}: the job has closed, and {} blocks of work may still write its memory",
                   machine_.self().value, blocks);
  }
  if (phase_ == Phase::kLeaving) {
    for (const auto& watch : watches_) watch->check_quiet();
  }
  phase_ = Phase::kClosed;
  ++run_.progress;
}

// ---- checks ----

bool SimJob::done() const {
  return phase_ == Phase::kRunning &&
         std::ranges::all_of(clients_, [](const auto& client) { return client->finished() && !client->failed(); });
}

bool SimJob::is_done_with(protocol::TensorRange range) const {
  return phase_ == Phase::kRunning &&
         std::ranges::all_of(clients_, [range](const auto& client) { return client->is_done_with(range); });
}

bool SimJob::resolved() const {
  if (!machine_.alive()) return true;
  const auto all = [this](auto done) { return std::ranges::all_of(clients_, done); };
  if (phase_ == Phase::kRunning) return all([](const auto& client) { return client->finished(); });
  return phase_ == Phase::kClosed && all([](const auto& client) { return client->pending() == 0; });
}

void SimJob::check_quiet() {
  for (const auto& client : clients_) client->check_buffers();
  if (!machine_.alive()) return;
  const std::size_t held = machine_.memory().held(scenario_.user);
  if (phase_ == Phase::kClosed && held > 0) {
    findings_.fail("bounds", "host {}: job {} has closed, but {} of its regions are in the table of tensors",
                   machine_.self().value, run_.number, held);
  }
  if (aborted()) return;
  if (std::ranges::any_of(watches_, [](const auto& watch) { return watch->broken(); })) {
    findings_.fail("hostile", "host {}: a frame broke the protocol, and job {} goes on", machine_.self().value,
                   run_.number);
  }
  if (machine_.memory().has_refused(scenario_.user)) {
    findings_.fail("neighbour", "host {}: job {} goes on without memory that it was refused", machine_.self().value,
                   run_.number);
  }
  for (const auto& watch : watches_) watch->check_quiet();
  check_messages();
}

void SimJob::check_logs() const {
  for (const auto& watch : watches_) watch->check_log();
}

std::string SimJob::describe() const {
  std::string text = fmt::format("\n    job {}: {}, commands: {}", run_.number,
                                 aborted() ? "aborted (" + cause_ + ")" : "running", commands_.size());
  for (const auto& client : clients_)
    text += fmt::format(", rank {}:{}", client->rank().value, client->describe_pending());
  for (const auto& watch : watches_) text += watch->describe();
  return text;
}

}  // namespace tensorlane::simulator
