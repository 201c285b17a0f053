#include "daemon/transport/mixed/prober.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace tensorlane::mixed {
namespace {

using protocol::FrameType;

// Flows of the prober have a job of their own, of the same keys: no transport takes them for the job's.
constexpr std::uint64_t kOwnJobs = 0x70726f62'65666c77;

// Once one transport reaches the peer, the peer knows the job, and the others have this long.
constexpr Duration kGrace = seconds(2);
// For all answers of one trial, and for the answer to the outcome.
constexpr Duration kAnswerTime = seconds(1);
// A peer that is served longer has its turn taken away; more than its own limit, as it may have waited for the network.
constexpr Duration kServeTime = seconds(2);

constexpr std::uint32_t kLanding = 1;                  // the grant of kData that measures; the outcome has none
constexpr std::uint32_t kAnswer = 1;                   // in aux: say when it is there
constexpr std::uint64_t kOutcome = ~std::uint64_t{0};  // its sequence number
constexpr std::size_t kMaxOutbox = 256;                // a peer that asks for more answers at once gets none
// Longer than any payload: a place that is used as a whole is forgotten by one-sided transports, and this one is used
// again and again.
constexpr std::size_t kLandingBytes = kMaxOperation.value + 64;

}  // namespace

// A flow of the prober that is up, and where its frames go.
class Prober::Line final : public ports::FrameSink {
 public:
  Line(Prober& prober, Channel channel, ports::Flow& flow)
      : prober_(prober), channel_(std::move(channel)), flow_(flow) {}
  ports::Flow& flow() const { return flow_; }

  Result<std::span<std::byte>> on_header(const protocol::FrameHeader& header) override {
    return prober_.landing(channel_, header);
  }
  void on_frame(const protocol::FrameHeader& header) override { prober_.frame(channel_, header); }
  void on_sent(std::uint64_t) override {}
  std::span<const std::span<std::byte>> granted(const protocol::FrameHeader&) override {
    return {&prober_.landing_, 1};
  }

 private:
  Prober& prober_;
  const Channel channel_;
  ports::Flow& flow_;
};

Prober::Prober(ClassId cls)
    : cls_(cls),
      memory_(std::make_unique<std::byte[]>(kMaxOperation.value + kLandingBytes)),
      landing_(memory_.get() + kMaxOperation.value, kLandingBytes) {}

Prober::~Prober() = default;

// ---- jobs ----

void Prober::add_job(const ports::JobCredentials& credentials) {
  ports::JobCredentials own = credentials;
  own.job = JobId(credentials.job.value ^ kOwnJobs);
  own.resume_within = Duration();
  jobs_[own.job] = {credentials.job, credentials.self};
  for (const Member& member : members_) member.transport->add_job(own);
}

void Prober::remove_job(JobId job) {
  const JobId own(job.value ^ kOwnJobs);
  const auto mine = [own](const Channel& channel) { return channel.flow.job == own; };
  if (run_ && mine(run_->channel)) run_.reset();
  if (served_until_ && mine(asking_.front())) served_until_.reset();
  std::erase_if(asking_, mine);
  std::erase_if(outbox_, [&](const Message& message) { return mine(message.to); });
  std::erase_if(measuring_, [own](const auto& measurement) { return measurement->flow.job == own; });
  std::erase_if(outcomes_, [job](const Outcome& outcome) { return outcome.job == job; });
  std::erase_if(reported_, [job](const auto& entry) { return entry.first.first == job; });
  for (const Member& member : members_) member.transport->remove_job(own);
  if (const auto found = jobs_.find(own); found != jobs_.end()) found->second.removed = true;
  if (!open_.contains(own)) forget(own);
}

// Memory stays mapped until the job has gone and no flow of it can touch any.
void Prober::opened(const Channel& channel) {
  const JobId job = channel.flow.job;
  open_[job].insert(channel);
  if (!mapped_.insert(job).second) return;
  for (const Member& member : members_) {
    // What cannot be mapped is copied, and measured like that.
    [[maybe_unused]] const Status mapped =
        member.transport->map(job, {memory_.get(), kMaxOperation.value + kLandingBytes});
  }
}

void Prober::forget(JobId job) {
  jobs_.erase(job);
  mapped_.erase(job);
  for (const Member& member : members_) member.transport->unmap(job);
}

// ---- what transports say ----

Result<std::span<std::byte>> Prober::landing(const Channel& from, const protocol::FrameHeader& header) {
  if (header.payload_bytes == 0) return std::span<std::byte>();
  const bool measures = header.grant == kLanding;
  if (!live(from.flow.job) || !accepts(from.flow) ||
      (!measures && header.payload_bytes > kMaxCandidates * kRecordBytes)) {
    return Status(Code::kCorrupt, fmt::format("a payload of {} bytes that nobody asked for", header.payload_bytes),
                  "measurement of transports", "install the same tensorlane version on every host");
  }
  if (measures) return landing_.first(header.payload_bytes);
  std::vector<std::byte>& words = incoming_[from];
  words.resize(header.payload_bytes);
  return std::span(words);
}

void Prober::frame(const Channel& from, const protocol::FrameHeader& header) {
  if (!live(from.flow.job)) return;
  if (accepts(from.flow)) return serve_frame(from, header);
  measure_frame(from, header);
}

ports::FrameSink& Prober::up(std::size_t member, const ports::FlowKey& key, ports::Flow& flow) {
  const Channel channel{member, key};
  Line& line = *(lines_[channel] = std::make_unique<Line>(*this, channel, flow));
  if (!live(key.job)) return line;
  opened(channel);
  Trial* const mine = accepts(key) ? nullptr : trial(channel);
  if (mine == nullptr || mine->state != Trial::State::kDialing) return line;
  mine->state = Trial::State::kUp;
  Measurement& measurement = *find(key);
  measurement.dialing_until = std::min(measurement.dialing_until, now_ + kGrace);
  return line;
}

void Prober::down(std::size_t member, const ports::FlowKey& flow, const Status& cause) {
  const Channel channel{member, flow};
  lines_.erase(channel);
  std::erase_if(outbox_, [&](const Message& message) { return message.to == channel; });
  incoming_.erase(channel);
  outgoing_.erase(channel);
  stop_serving(channel);
  if (Trial* const mine = trial(channel)) {
    mine->open = false;
    if (run_ && run_->channel == channel) {
      end_run(cause.to_string());
    } else if (mine->state != Trial::State::kOver) {
      mine->state = Trial::State::kOver;
      mine->result.why_not = cause.to_string();
    }
  }
  const auto open = open_.find(flow.job);
  if (open == open_.end()) return;
  open->second.erase(channel);
  if (!open->second.empty()) return;
  open_.erase(open);
  if (!live(flow.job)) forget(flow.job);
}

// ---- the accepting end ----

void Prober::serve_frame(const Channel& from, const protocol::FrameHeader& header) {
  if (header.type == FrameType::kRts && std::ranges::find(asking_, from) == asking_.end()) asking_.push_back(from);
  if (header.type == FrameType::kReady) stop_serving(from);
  if (header.type != FrameType::kData) return;
  if (header.grant != kLanding) {
    Result<std::vector<ports::PathCandidate>> outcome = decode(incoming_[from]);
    if (outcome.ok()) reported_[{jobs_.at(from.flow.job).real, from.flow.peer}] = std::move(outcome).value();
  }
  if (header.aux == kAnswer) send(from, FrameType::kCredit, header.sequence.value);
}

void Prober::stop_serving(const Channel& channel) {
  if (!asking_.empty() && asking_.front() == channel) served_until_.reset();
  std::erase(asking_, channel);
}

void Prober::serve_next() {
  if (served_until_ && now_ >= *served_until_) stop_serving(Channel(asking_.front()));
  if (served_until_ || asking_.empty()) return;
  served_until_ = now_ + kServeTime;
  send(asking_.front(), FrameType::kGrant);
}

std::vector<ports::PathCandidate> Prober::reported(JobId job, HostIndex peer) const {
  const auto found = reported_.find({job, peer});
  return found == reported_.end() ? std::vector<ports::PathCandidate>() : found->second;
}

// ---- the connecting end ----

bool Prober::measure(JobId job, HostIndex peer, const std::string& address, std::uint16_t data_port,
                     const std::vector<std::size_t>& members, Time deadline) {
  auto measurement = std::make_unique<Measurement>();
  measurement->flow = {JobId(job.value ^ kOwnJobs), peer, cls_};
  measurement->dialing_until = measurement->until = deadline;
  std::size_t dialed = 0;
  for (const std::size_t index : members) {
    const Member& member = members_[index];
    const Status status = member.transport->connect(
        measurement->flow, address, static_cast<std::uint16_t>(data_port + member.port_offset), deadline);
    Trial trial{index, Trial::State::kDialing, status.ok(), {member.name, {}, {}}};
    if (status.ok()) {
      ++dialed;
      opened({index, measurement->flow});
    } else {
      trial.state = Trial::State::kOver;
      trial.result.why_not = status.to_string();
    }
    measurement->trials.push_back(std::move(trial));
  }
  if (dialed < 2) {
    finish(*measurement);
    return false;
  }
  measuring_.push_back(std::move(measurement));
  return true;
}

std::optional<Prober::Outcome> Prober::take() {
  if (outcomes_.empty()) return std::nullopt;
  Outcome outcome = std::move(outcomes_.front());
  outcomes_.pop_front();
  return outcome;
}

Prober::Measurement* Prober::find(const ports::FlowKey& flow) {
  const auto found = std::ranges::find_if(measuring_, [&](const auto& m) { return m->flow == flow; });
  return found == measuring_.end() ? nullptr : found->get();
}

Prober::Trial* Prober::trial(const Channel& channel) {
  Measurement* const measurement = find(channel.flow);
  if (measurement == nullptr) return nullptr;
  const auto found = std::ranges::find(measurement->trials, channel.member, &Trial::member);
  return found == measurement->trials.end() ? nullptr : &*found;
}

void Prober::measure_frame(const Channel& from, const protocol::FrameHeader& header) {
  if (header.type == FrameType::kCredit && header.sequence.value == kOutcome) {
    if (Measurement* const measurement = find(from.flow); measurement != nullptr && measurement->outcome)
      measurement->finished = true;
    return;
  }
  if (!run_ || run_->channel != from) return;
  if (header.type == FrameType::kGrant && !run_->granted) {
    run_->granted = true;
    run_->until = now_ + kAnswerTime;
    send_probes(run_->probe.begin(now_));
  } else if (header.type == FrameType::kCredit && run_->granted) {
    send_probes(run_->probe.answered(header.sequence.value, now_));
    if (run_->probe.done()) end_run("");
  }
}

void Prober::advance(Measurement& measurement) {
  if (measurement.outcome) {
    if (now_ >= measurement.until) measurement.finished = true;
    return;
  }
  if (!measurement.timed) {
    measurement.timed = true;
    measurement.until = now_ + Duration((measurement.until - now_).value / 3);
    measurement.dialing_until = std::min(measurement.dialing_until, measurement.until);
  }
  settle_dialing(measurement);
  if (run_ && run_->channel.flow == measurement.flow && now_ >= run_->until)
    end_run(run_->granted ? fmt::format("no answer within {:.0f} s", to_seconds(kAnswerTime))
                          : "the peer was busy with others");
  if (run_next(measurement)) return;
  for (Trial& trial : measurement.trials) {
    if (trial.state == Trial::State::kOver) continue;
    if (now_ < measurement.until) return;
    trial.state = Trial::State::kOver;
    trial.result.why_not = "no time was left";
  }
  conclude(measurement);
}

void Prober::settle_dialing(Measurement& measurement) {
  if (now_ < measurement.dialing_until) return;
  for (Trial& trial : measurement.trials) {
    if (trial.state != Trial::State::kDialing) continue;
    trial.state = Trial::State::kOver;
    trial.result.why_not = "the peer did not answer its handshake in time";
    members_[trial.member].transport->close(measurement.flow);
  }
}

bool Prober::run_next(Measurement& measurement) {
  if (run_) return run_->channel.flow == measurement.flow;
  // All of them or none: what has not come up may still change nothing, or everything.
  const auto in = [&](Trial::State state) { return std::ranges::find(measurement.trials, state, &Trial::state); };
  const auto next = in(Trial::State::kUp);
  if (next == measurement.trials.end() || in(Trial::State::kDialing) != measurement.trials.end()) return false;
  run_ = Run{{next->member, measurement.flow}, false, measurement.until, {}};
  send(run_->channel, FrameType::kRts);
  return true;
}

void Prober::end_run(const std::string& why_not) {
  const Channel channel = run_->channel;
  Trial& ended = *trial(channel);
  ended.state = Trial::State::kOver;
  ended.result.figures = run_->probe.figures();
  if (!ended.result.figures) ended.result.why_not = why_not;
  run_.reset();
  if (ended.open) send(channel, FrameType::kReady);
}

// All trials are over: what follows from them, and the peer is told.
void Prober::conclude(Measurement& measurement) {
  std::vector<Candidate> candidates;
  Outcome outcome{jobs_.at(measurement.flow.job).real, measurement.flow.peer, {}, {}, false};
  for (const Trial& trial : measurement.trials) {
    candidates.push_back(trial.result);
    outcome.members.push_back(trial.member);
  }
  outcome.choice = choose(candidates);
  outcome.measured = std::ranges::any_of(candidates, [](const Candidate& c) { return c.figures.has_value(); });
  measurement.until = now_ + kAnswerTime;
  const Trial& chosen = measurement.trials[outcome.choice.chosen()];
  const bool up = chosen.open && chosen.result.figures;
  measurement.outcome = std::move(outcome);
  measurement.finished = !up;
  if (!up) return;
  Message message{{chosen.member, measurement.flow}, {}};
  message.operation.header.sequence = Sequence(kOutcome);
  message.operation.header.aux = kAnswer;
  std::vector<std::byte>& words = outgoing_[message.to];  // until the flow is down
  words = encode(measurement.outcome->choice.candidates);
  message.operation.payload = words;
  outbox_.push_back(message);
}

void Prober::finish(Measurement& measurement) {
  std::erase_if(outbox_, [&](const Message& message) { return message.to.flow == measurement.flow; });
  for (const Trial& trial : measurement.trials) {
    if (trial.open) members_[trial.member].transport->close(measurement.flow);
  }
  if (measurement.outcome) outcomes_.push_back(std::move(*measurement.outcome));
}

// ---- sending ----

void Prober::send(const Channel& to, FrameType type, std::uint64_t number, Bytes payload, std::uint32_t aux) {
  if (outbox_.size() >= kMaxOutbox) return;
  Message message{to, {}};
  message.operation.header.type = type;
  message.operation.header.sequence = Sequence(number);
  message.operation.header.aux = aux;
  if (type == FrameType::kGrant || type == FrameType::kData) message.operation.header.grant = kLanding;
  message.operation.payload = {memory_.get(), payload.value};
  outbox_.push_back(message);
}

void Prober::send_probes(const std::vector<Probe::Message>& messages) {
  for (const Probe::Message& message : messages) {
    send(run_->channel, FrameType::kData, message.number, Bytes(message.bytes), message.answered ? kAnswer : 0);
  }
}

std::size_t Prober::flush() {
  std::set<Channel> full;
  std::size_t sent = 0;
  for (auto next = outbox_.begin(); next != outbox_.end();) {
    const auto line = lines_.find(next->to);
    if (line == lines_.end() || full.contains(next->to) || !line->second->flow().writable()) {
      full.insert(next->to);
      ++next;
      continue;
    }
    line->second->flow().send(next->operation);
    next = outbox_.erase(next);
    ++sent;
  }
  return sent;
}

std::size_t Prober::poll() {
  for (const auto& measurement : measuring_) {
    if (!measurement->finished) advance(*measurement);
    if (measurement->finished) finish(*measurement);
  }
  std::erase_if(measuring_, [](const auto& measurement) { return measurement->finished; });
  serve_next();
  return outbox_.empty() ? 0 : flush();
}

std::optional<Time> Prober::next_deadline() const {
  std::optional<Time> next = served_until_;
  const auto due = [&](Time time) { next = next ? std::min(*next, time) : time; };
  for (const auto& measurement : measuring_) due(std::min(measurement->dialing_until, measurement->until));
  if (run_) due(run_->until);
  return next;
}

}  // namespace tensorlane::mixed
