#include "daemon/host/host.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "daemon/ports/refusing_sink.h"

namespace tensorlane::host {
namespace {

constexpr Duration kHousekeeping = milliseconds(100);
constexpr Duration kStandingLook = milliseconds(200);  // how often flows are looked at that may stand still
constexpr std::uint64_t kControlQuantum = 4096;        // of headers: what a job sends before it is the next one's turn
// Of jobs that share the host, in a turn: what is sent of a class, as JobRail::Sent counts it; of control frames;
// submissions of one user. An operation takes several turns of every host, so the length of a turn is what others' load
// costs it.
constexpr std::uint64_t kSentPerTurn = kib(256).value, kControlPerTurn = kib(16).value;
constexpr std::uint64_t kWorkPerTurn = kib(256).value;  // as work_cost() counts it
constexpr Duration kLongBlock = seconds(1);             // a block of work takes less than a millisecond
constexpr std::size_t kTakenPerTurn = 64;
constexpr std::size_t kNotesPerTurn = 256;     // of other lanes
constexpr std::size_t kRetiredPerTurn = 1024;  // regions of jobs that have ended

}  // namespace

// A NIC: its transport, which reports here, and what its jobs share of it.
struct Host::Rail final : ports::FlowOwner {
  Rail(Host& of, RailIndex i, const RailConfig& c) : host(of), index(i), config(c), control(c.control_limit) {}

  ports::FrameSink& on_flow_up(const ports::FlowKey& key, ports::Flow& flow) override;
  void on_flow_resumed(const ports::FlowKey& key, const ports::Flow& flow) override;
  void on_flow_down(const ports::FlowKey& key, const Status& cause) override;

  Host& host;
  const RailIndex index;
  const RailConfig& config;
  TokenBucket control;                          // of all control frames (law 10)
  std::array<Turn, kMaxDataClasses + 1> turns;  // which user's it is to send in a class
  // Bytes in flight of flows that stand still: they take nothing of the window from flows that move. And whether the
  // window has kept somebody waiting since it was last looked which flows those are.
  std::array<Bytes, kMaxDataClasses> standing{};
  std::array<bool, kMaxDataClasses> full{};
  Time next_look;
  // Of flows that came up for a job which has ended.
  ports::RefusingSink nobody{Status(Code::kNotFound, "a frame for a job that has ended", "", "")};
  std::unique_ptr<ports::Transport> transport;  // the last member: it speaks of flows to this object
};

ports::FrameSink& Host::Rail::on_flow_up(const ports::FlowKey& key, ports::Flow& flow) {
  RailSet* rails = host.rails_of(key.job);
  if (rails == nullptr) return nobody;
  return rails->flow_up(index, key, flow, host.context_.now);
}
void Host::Rail::on_flow_resumed(const ports::FlowKey& key, const ports::Flow& flow) {
  if (RailSet* rails = host.rails_of(key.job)) rails->flow_resumed(index, key, flow);
}
void Host::Rail::on_flow_down(const ports::FlowKey& key, const Status& cause) {
  next_look = Time();  // its bytes have left the window
  if (RailSet* rails = host.rails_of(key.job)) rails->flow_down(index, key, cause, host.context_.now);
}

Host::Host(const HostConfig& config, const HostPorts& ports, std::function<Time()> clock)
    : config_(config),
      ports_(ports),
      context_{.config = &config,
               .memory = ports.memory,
               .metrics = ports.metrics,
               .timeline = ports.timeline,
               .lane = ports.lane,
               .transports = {},
               .listener = nullptr,
               .descriptors = ports.descriptors,
               .log_share = &log_share_,
               .log = &ports.log,
               .clock = std::move(clock)},
      blocks_(ports.executor->capacity()),
      users_(config.rails.size()) {
  for (JobBlock& block : blocks_) free_blocks_.push_back(&block);
}

Host::~Host() {
  clear();
}

Result<std::unique_ptr<Host>> Host::create(const HostConfig& config, const HostPorts& ports,
                                           std::function<Time()> clock) {
  TL_ASSERT(config.classes <= kMaxDataClasses && !config.rails.empty() && config.rails.size() <= kMaxRails);
  for (const RailConfig& rail : config.rails) TL_ASSERT(rail.windows.size() >= config.classes);
  std::unique_ptr<Host> host(new Host(config, ports, std::move(clock)));
  TL_RETURN_IF_ERROR(host->open());
  return host;
}

Status Host::open() {
  for (std::uint8_t r = 0; r < config_.rails.size(); ++r) {
    lanes_.push_back(config_.rails[r].lane);
    context_.transports.push_back(nullptr);
    if (lanes_[r] != ports_.lane) continue;
    auto rail = std::make_unique<Rail>(*this, RailIndex(r), config_.rails[r]);
    TL_ASSIGN_OR_RETURN(rail->transport, ports_.make_transport(rail->index, *rail));
    context_.transports.back() = rail->transport.get();
    transports_.push_back(rail->transport.get());
    rails_.push_back(std::move(rail));
  }
  return {};
}

void Host::report_to(ports::LaneListener& listener) {
  context_.listener = &listener;
}

void Host::clear() {
  ports_.executor->finish();
  while (ports::Block* done = ports_.executor->done()) {
    auto* block = static_cast<JobBlock*>(done);
    block->part = nullptr;
    free_blocks_.push_back(block);
  }
  users_ = Users(0);
  jobs_.clear();
  ended_.clear();
  discarded_.clear();
}

// ---- jobs ----

// What control says of a job that is not there is answered by what it does next: it aborts the job.
void Host::begin(const std::shared_ptr<JobStart>& start) {
  std::vector<std::size_t> lanes;  // the first one has rail 0
  for (std::size_t r = 0; r < start->rails.size(); ++r) {
    if (std::ranges::find(lanes, lanes_[r]) == lanes.end()) lanes.push_back(lanes_[r]);
  }
  Result<std::unique_ptr<JobPart>> part = JobPart::begin(start, context_, lanes, ports_.links);
  if (!part.ok()) {
    discarded_.push_back(start);  // with its memory, which takes long to give back
    return context_.listener->on_job_failed(start->spec.credentials.job, part.status());
  }
  users_.add(**part);
  jobs_.push_back(std::move(*part));
  jobs_.back()->home()->connect(start->rails.size(), context_.now);
}

JobPart* Host::find_part(JobId id) const {
  for (const auto& job : jobs_) {
    if (job->id() == id) return job.get();
  }
  return nullptr;
}

Job* Host::find(JobId id) {
  const JobPart* part = find_part(id);
  return part == nullptr ? nullptr : part->home();
}

// A later epoch of a job may have begun here before an earlier one has left the turns.
RailSet* Host::rails_of(JobId id) const {
  for (const auto& job : jobs_) {
    if (job->id() == id && job->rails() != nullptr && !job->rails()->drained()) return job->rails();
  }
  return nullptr;
}

bool Host::has_closed() const {
  return std::ranges::any_of(jobs_, [](const auto& job) { return job->closed(); });
}

std::vector<std::pair<JobId, Epoch>> Host::reap() {
  std::vector<std::pair<JobId, Epoch>> gone;
  for (auto& job : jobs_) {
    if (!job->closed()) continue;
    users_.remove(*job);
    if (job->home() != nullptr) gone.emplace_back(job->id(), job->epoch());
    ended_.push_back(std::move(job));
  }
  std::erase_if(jobs_, [](const auto& job) { return job == nullptr; });
  return gone;
}

bool Host::retires() const {
  return !discarded_.empty() || std::ranges::any_of(ended_, [](const auto& job) { return job->can_retire(); });
}

std::shared_ptr<void> Host::retire() {
  if (!discarded_.empty()) {
    std::shared_ptr<void> object = std::move(discarded_.back());
    discarded_.pop_back();
    return object;
  }
  const auto done = std::ranges::find_if(ended_, [](const auto& job) { return job->retire(kRetiredPerTurn); });
  if (done == ended_.end()) return nullptr;
  std::shared_ptr<JobPart> job(std::move(*done));
  ended_.erase(done);
  return job;
}

// ---- what other lanes say ----

std::size_t Host::take_notes() {
  if (ports_.links == nullptr) return 0;
  std::size_t taken = 0;
  for (Note note; taken < kNotesPerTurn && ports_.links->take(&note); ++taken) take(note);
  return taken;
}

// A job may have left the turns while other lanes still give back what it had.
JobPart* Host::addressee(const Note& note) const {
  for (const auto* parts : {&jobs_, &ended_}) {
    for (const auto& part : *parts) {
      if (part->id() == note.job && part->epoch() == note.epoch) return part.get();
    }
  }
  return nullptr;
}

void Host::take(Note& note) {
  if (const auto* begin = std::get_if<BeginNote>(&note.what)) return begin_rails(*begin, note);
  JobPart* part = addressee(note);
  if (part == nullptr) return;
  if (const auto* start = std::get_if<StartNote>(&note.what)) {
    part->rails()->start(start->tensor, start->sequence, start->in_parts, context_.now);
  } else if (const auto* part_ready = std::get_if<engine::PartReady>(&note.what)) {
    part->rails()->part_ready(*part_ready, context_.now);
  } else if (const auto* boost = std::get_if<BoostNote>(&note.what)) {
    part->rails()->boost(boost->tensor, boost->sequence, context_.now);
  } else if (const auto* post = std::get_if<MessagePost>(&note.what)) {
    part->rails()->post(*post, context_.now);
  } else if (const auto* done = std::get_if<engine::MessageDone>(&note.what)) {
    part->home()->rails_message_done(*done, context_.now);
  } else if (const auto* complete = std::get_if<engine::Complete>(&note.what)) {
    part->home()->rails_completed(*complete, context_.now);
  } else if (const auto* placed = std::get_if<engine::PartInPlace>(&note.what)) {
    part->home()->rails_placed(*placed, context_.now);
  } else if (const auto* offer = std::get_if<OfferNote>(&note.what)) {
    part->rails()->offer(offer->tensor, context_.now);
  } else if (const auto* agreed = std::get_if<engine::Agreed>(&note.what)) {
    part->home()->rails_agreed(*agreed, context_.now);
  } else if (const auto* to_rails = std::get_if<RailsNote>(&note.what)) {
    to_rails->call(*part, context_.now);
  } else {
    std::get<JobNote>(note.what).call(*part->home(), context_.now);
  }
}

// Rails of a job that lives on another lane.
void Host::begin_rails(const BeginNote& begin, const Note& note) {
  const Way home{*ports_.links, note.job, note.epoch, ports_.lane, note.from};
  std::unique_ptr<JobPart> part = JobPart::begin_rails(*begin.start, context_, home);
  discarded_.push_back(begin.start);
  if (part == nullptr) return;
  users_.add(*part);
  jobs_.push_back(std::move(part));
}

// ---- a turn ----

std::size_t Host::receive(Time now) {
  context_.now = now;
  std::size_t handled = 0;
  for (auto& rail : rails_) handled += rail->transport->poll(now);
  handled += take_notes();
  for (auto& job : jobs_) handled += job->rails() != nullptr ? job->rails()->open_more(now) : 0;
  return handled + finish_blocks();
}

std::size_t Host::collect() {
  return users_.collect(kTakenPerTurn);
}

void Host::submit(const std::function<bool(const Job&)>& may) {
  for (auto& job : jobs_) {
    if (job->home() != nullptr && may(*job->home())) job->home()->submit_collected(context_.now);
  }
}

std::size_t Host::send() {
  std::size_t sent = 0;
  for (auto& rail : rails_) {
    sent += send(*rail);
    rail->transport->flush();  // before the lane does any arithmetic
  }
  return sent;
}

// The most urgent class first; inside a class every job in turn, one window shared by all of them and all peers.
std::size_t Host::send(Rail& rail) {
  if (jobs_.empty()) return 0;
  std::size_t sent = 0;
  if (has_sends(rail, kControlClass)) {
    TokenBucket& control = rail.control;
    // A bucket that is not empty lets a frame pass, so that what waits always has a time to wait for.
    Bytes credit = control.empty(context_.now)
                       ? Bytes(0)
                       : std::max(control.available(context_.now), Bytes(protocol::kFrameHeaderBytes));
    const Bytes before = credit;
    sent += share(rail, kControlClass, kControlQuantum, kControlPerTurn, &credit);
    control.take(context_.now, before - credit);
  }
  std::optional<std::uint8_t> least_urgent;  // that has something to send; before any data is sent in this turn
  for (std::uint8_t c = 0; c < config_.classes; ++c) {
    const ClassId cls{c};
    if (!has_sends(rail, cls)) continue;  // what a class above may not send any more has come into this one
    if (!least_urgent) {
      least_urgent = static_cast<std::uint8_t>(config_.classes - 1);
      while (*least_urgent > c && !has_sends(rail, ClassId(*least_urgent))) --*least_urgent;
    }
    context_.bulk_waits = c < *least_urgent;
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

bool Host::has_sends(const Rail& rail, ClassId cls) const {
  return std::ranges::any_of(jobs_, [&](const auto& job) { return job->has_sends(rail.index, cls, context_.now); });
}

// Users share evenly, and so do a user's jobs: at least `quantum` bytes in a turn, however many peers they have and
// however long their operations are. Bounded by the operations that *credit, which shrinks, has room for, and where
// there are several jobs by `most`.
std::size_t Host::share(Rail& rail, ClassId cls, std::uint64_t quantum, std::uint64_t most, Bytes* credit) {
  const std::size_t slot = ports::metrics_slot(cls);
  const std::uint64_t limit = jobs_.size() > 1 ? most : std::numeric_limits<std::uint64_t>::max();
  const Users::Sent sent = users_.send(rail.turns[slot], rail.index, cls, quantum, limit, credit, context_.now);
  if (sent.blocked) ports_.metrics->classes[slot].window_full.add();
  return sent.operations;
}

std::size_t Host::work() {
  std::size_t blocks = finish_blocks();
  for (std::uint64_t cost = 0; cost < kWorkPerTurn && !free_blocks_.empty();) {
    JobBlock& block = *free_blocks_.back();
    block.clear();
    if (!users_.choose_block(context_.now, block)) break;
    cost += work_cost(block);
    if (block.empty()) {  // this range is other ranks': there is nothing to copy
      end_block(block);
      ++blocks;
      continue;
    }
    free_blocks_.pop_back();
    ports_.executor->submit(block);
    ++blocks;
    finish_blocks();
  }
  return blocks;
}

std::size_t Host::finish_blocks() {
  std::size_t blocks = 0;
  for (; ports::Block* done = ports_.executor->done(); ++blocks) {
    auto& block = static_cast<JobBlock&>(*done);
    end_block(block);
    free_blocks_.push_back(&block);
  }
  return blocks;
}

void Host::end_block(JobBlock& block) {
  context_.now = context_.clock();
  block.span.length = context_.now - block.span.begin;
  if (ports_.timeline->enabled() && !block.message) ports_.timeline->record(block.span);
  std::exchange(block.part, nullptr)->block_done(block, context_.now);
}

// Whether a thread that sums hangs: then jobs neither go on nor end.
bool Host::work_stands_still() const {
  return std::ranges::any_of(blocks_, [this](const JobBlock& block) {
    return block.part != nullptr && context_.now - block.span.begin > kLongBlock;
  });
}

Time Host::next_deadline(Time latest) const {
  Time until = latest;
  for (const auto& rail : rails_) {
    if (rail->control.empty(context_.now) && has_sends(*rail, kControlClass))
      until = std::min(until, rail->control.ready_at());
  }
  for (const auto& job : jobs_) {
    if (job->rails() == nullptr) continue;
    if (const std::optional<Time> promotion = job->rails()->promotion(context_.now))
      until = std::min(until, *promotion);
  }
  return until;
}

bool Host::housekeep() {
  if (context_.now < next_housekeeping_) return false;
  next_housekeeping_ = context_.now + kHousekeeping;
  ports::LaneMetrics& m = *ports_.metrics;
  std::uint64_t jobs = 0, pending = 0, staging = 0, staging_limit = 0, sessions = 0, messages = 0;
  Duration oldest_message;
  std::array<Duration, kMaxDataClasses> ages{};
  for (auto& job : jobs_) {
    if (job->rails() != nullptr) {
      job->rails()->report(context_.now);
      staging += job->rails()->staging_bytes();
      staging_limit += job->rails()->staging_limit();
    }
    if (Job* home = job->home()) {
      home->report_late(context_.now);
      home->tell_progress(context_.now);
      home->raise_ages(&ages);
      ++jobs;
      sessions += home->sessions().size();
      pending += home->operations_pending();
      messages += home->messages_open();
      oldest_message = std::max(oldest_message, home->oldest_message(context_.now));
    }
  }
  for (const auto& rail : rails_) look_for_standing(*rail);
  ports::TransportCounters carried;
  for (const auto& rail : rails_) carried += rail->transport->counters();
  m.transport.set(carried);
  if (!work_stands_still()) m.work_turns.add();
  m.jobs.set(jobs);
  m.sessions.set(sessions);
  m.operations_pending.set(pending);
  m.messages_open.set(messages);
  m.oldest_message_ns.set(static_cast<std::uint64_t>(oldest_message.value));
  m.staging_bytes.set(staging);
  m.staging_limit_bytes.set(staging_limit);
  for (std::size_t c = 0; c < ages.size(); ++c) m.oldest_operation_ns[c].set(static_cast<std::uint64_t>(ages[c].value));
  return true;
}

// A flow that stands still must not keep those waiting that move: neither other jobs', nor other flows of its own.
void Host::look_for_standing(Rail& rail) {
  if (context_.now < rail.next_look) return;
  rail.next_look = context_.now + kStandingLook;
  for (std::uint8_t c = 0; c < config_.classes; ++c) {
    if (!std::exchange(rail.full[c], false) && rail.standing[c] == Bytes()) continue;
    rail.standing[c] = Bytes();
    for (auto& job : jobs_) {
      if (job->rails() != nullptr)
        rail.standing[c] += job->rails()->look_for_standing(rail.index, ClassId(c), context_.now);
    }
  }
}

}  // namespace tensorlane::host
