#include "simulator/host/transport.h"

#include <algorithm>

namespace tensorlane::simulator {
namespace {

constexpr double kTakesOccasion = 0.3;  // of a host that lies
constexpr double kLeavesRest = 0.2;     // of what has arrived, for the next poll
// From when a job's flows are closed until the NIC touches its memory no more, at most.
constexpr Duration kDrains = microseconds(200);
constexpr Duration kAccuses = milliseconds(50);  // from when a host sees what is wrong until the job knows, at most

}  // namespace

SimTransport::Flow::Flow(std::size_t room) : out(static_cast<std::uint32_t>(room)) {}

SimTransport::SimTransport(HostIndex self, ports::FlowOwner& owner, Context context, Random random)
    : self_(self), owner_(owner), context_(std::move(context)), random_(random) {
  context_.network.attach(self, this);
}

void SimTransport::carry(JobContext job) {
  const Scenario& scenario = job.scenario;
  jobs_.push_back({.context = std::move(job),
                   .flows = std::vector<Flow>(scenario.hosts() * kLevels, new_flow()),
                   .lines = std::vector<std::unique_ptr<Line>>(scenario.hosts() * kLevels),
                   .unfinished = std::vector<std::uint32_t>(scenario.plan.tensors.size())});
}

std::size_t SimTransport::number_of(JobId job) const {
  const auto found =
      std::ranges::find_if(jobs_, [job](const Job& known) { return known.context.scenario.engine.job == job; });
  TL_ASSERT(found != jobs_.end());
  return static_cast<std::size_t>(found - jobs_.begin());
}

ports::FlowKey SimTransport::key_of(const Channel& channel) const {
  return {jobs_[channel.job].context.scenario.engine.job, channel.peer, class_of(channel.level)};
}

void SimTransport::forget(std::size_t job, protocol::TensorRange range) {
  std::erase_if(jobs_[job].replays, [range](const auto& replay) {
    return !protocol::is_of_message(replay.second) && range.contains(replay.second.tensor);
  });
}

void SimTransport::note(Notice notice) {
  notices_.push_back(std::move(notice));
  context_.wake();
}

// ---- jobs and flows ----

void SimTransport::add_job(const ports::JobCredentials& credentials) {
  jobs_[number_of(credentials.job)].credentials = credentials;
}

// A flow that the peer dials exists once it is up; one that this host dials, from connect() on.
void SimTransport::remove_job(JobId id) {
  const std::size_t number = number_of(id);
  Job& job = jobs_[number];
  if (!job.credentials) return;
  context_.network.close(number, self_);
  for (std::size_t i = 0; i < job.flows.size(); ++i) {
    Flow& f = job.flows[i];
    const Channel channel = channel_of(number, i);
    const bool ours = f.wanted && self_ < channel.peer;
    const bool told_up = f.up || std::ranges::any_of(notices_, [&](const Notice& n) {
                           return n.kind == Notice::Kind::kUp && n.flow == key_of(channel);
                         });
    if (ours || told_up) take_down(key_of(channel), f.receiving);
    if (f.receiving.open) forget_arrivals(channel);
    in_flight_[channel.level] -= f.in_flight;
    f = new_flow();
  }
  // What was sent is not read any more, and nobody is told.
  std::erase_if(notices_, [id](const Notice& n) { return n.kind == Notice::Kind::kSent && n.flow.job == id; });
  std::ranges::fill(job.unfinished, 0u);
  std::erase_if(inbox_, [number](const Arrived& a) { return a.packet.frame->job == number; });
  job.replays.clear();
  job.credentials.reset();
  context_.wake();
}

// What is landing may go on to land until the flow is said to be down.
void SimTransport::take_down(const ports::FlowKey& flow, const Receiving& receiving) {
  const Duration after = random_.between(Duration(0), kDrains);
  context_.events.after(after, [this, flow] { note({.kind = Notice::Kind::kDown, .flow = flow}); });
  if (receiving.open && !receiving.stale) write_late(receiving.frame, receiving.place, receiving.landed, after);
  for (const Arrived& arrived : inbox_) {
    const bool of_flow = key_of(channel_of(arrived.packet)) == flow;
    if (of_flow && !arrived.place.empty()) write_late(arrived.packet.frame, arrived.place, 0, after);
  }
}

void SimTransport::write_late(FramePtr frame, std::span<std::byte> place, std::uint64_t from, Duration within) {
  context_.events.after(random_.between(Duration(0), within), [frame = std::move(frame), place, from] {
    std::ranges::copy(std::span(frame->payload).subspan(from), place.begin() + static_cast<std::ptrdiff_t>(from));
  });
}

Status SimTransport::connect(const ports::FlowKey& key, const std::string&, std::uint16_t, Time) {
  const Channel channel = channel_of(key);
  if (std::exchange(flow(channel).wanted, true)) {
    context_.findings.fail("protocol", "host {} opens its flow to host {} in class {} twice", self_.value,
                           key.peer.value, key.cls.value);
  }
  context_.network.reset(self_, channel);
  return {};
}

void SimTransport::close(const ports::FlowKey&) {
  TL_ASSERT(false && "flows are closed with their job");
}

bool SimTransport::writable(const Channel& channel) const {
  const Flow& f = flow(channel);
  return f.up && !f.lost && !f.out.full();
}

ports::FlowStats SimTransport::Line::stats() const {
  ports::FlowStats stats;
  stats.transport = "simulated";
  return stats;
}

ports::FlowProgress SimTransport::Line::progress() const {
  const SimTransport::Flow& f = of_.flow(channel_);
  return {.given = f.out.pushed(), .received = f.in.delivered(), .outstanding_bytes = f.in_flight};
}

// ---- sending ----

void SimTransport::send(const Channel& channel, const ports::Outgoing& operation) {
  const ports::FlowKey key = key_of(channel);
  Job& job = jobs_[channel.job];
  std::optional<Liar::Told> told;
  if (job.context.liar != nullptr && random_.chance(kTakesOccasion))
    told = job.context.liar->tell(key.peer, operation.header);
  if (told && !told->after) lie(channel.job, *told);
  if (job.context.grants != nullptr && operation.header.type == protocol::FrameType::kGrant)
    job.context.grants->push_back({self_, key.peer, operation.header});
  auto frame = std::make_shared<Frame>();
  frame->job = channel.job;
  frame->from = self_;
  frame->to = key.peer;
  frame->cls = key.cls;
  frame->header = operation.header;
  frame->payload.assign(operation.payload.begin(), operation.payload.end());
  frame->source = operation.payload;
  frame->token = operation.token;
  const protocol::FrameHeader& h = operation.header;
  context_.trace.line(self_, "send {} to {}: job {} tensor {} sequence {} slice {} offset {} bytes {} grant {:#x}",
                      static_cast<int>(h.type), key.peer.value, channel.job, h.tensor.value, h.sequence.value, h.slice,
                      h.offset, h.payload_bytes, h.grant);
  if (operation.payload.size() != h.payload_bytes || operation.payload.size() > kMaxOperation.value) {
    return context_.findings.fail("memory", "host {}: a payload of {} bytes is said to have {}", self_.value,
                                  operation.payload.size(), h.payload_bytes);
  }
  if (protocol::is_of_message(h)) {
    job.context.messages.sent(*frame);
    job.context.message_goes(key.cls, h.payload_bytes);
  } else if (operation.token != 0) {
    ++job.unfinished[h.tensor.value];
  }
  given_[channel.level] += operation.payload.size();
  Flow& f = flow(channel);
  if (f.out.pushed() == f.out.delivered()) f.moved = context_.events.now();
  if (f.kept.empty()) f.kept.resize(context_.lane.flow_room);
  f.kept[f.out.slot(f.out.push())] = frame;
  give(f, frame);
  if (!context_.lane.done_when_acknowledged) sent(*frame);
  if (told && told->after) lie(channel.job, *told);
}

// Where the flow has room for it and for the frame that is its occasion.
void SimTransport::lie(std::size_t job, const Liar::Told& told) {
  Flow& f = flow({job, told.to, level_of(told.on)});
  if (!f.up || f.lost || f.out.pushed() - f.out.delivered() + 2 > context_.lane.flow_room) return;
  auto frame = std::make_shared<Frame>();
  frame->job = job;
  frame->from = self_;
  frame->to = told.to;
  frame->cls = told.on;
  frame->header = told.header;
  frame->header.cls = told.on;
  frame->payload.assign(told.header.payload_bytes, std::byte{0xee});
  frame->lie = lie_name(*jobs_[job].context.scenario.lie);
  context_.trace.line(self_, "lies to {}: {}", told.to.value, frame->lie);
  if (f.kept.empty()) f.kept.resize(context_.lane.flow_room);
  f.kept[f.out.slot(f.out.push())] = frame;
  give(f, frame);
  ++lies_;
}

void SimTransport::give(Flow& f, const FramePtr& frame) {
  in_flight_[level_of(frame->cls)] += frame->payload.size();
  f.in_flight += frame->payload.size();
  context_.network.send(frame);
  f.out.written();
}

void SimTransport::sent(const Frame& frame) {
  if (frame.token == 0) return;
  if (!protocol::is_of_message(frame.header)) --jobs_[frame.job].unfinished[frame.header.tensor.value];
  note({.kind = Notice::Kind::kSent, .flow = key_of({frame.job, frame.to, level_of(frame.cls)}), .token = frame.token});
}

void SimTransport::on_acknowledged(const FramePtr& frame) {
  if (!active(frame->job)) return;
  Flow& f = flow(Channel{frame->job, frame->to, level_of(frame->cls)});
  if (f.refused) return;
  in_flight_[level_of(frame->cls)] -= frame->payload.size();
  f.in_flight -= frame->payload.size();
  f.moved = context_.events.now();
  context_.wake();
}

// A transport may read the payload again until the receiver has it, so until then nobody may change it. Later, and
// before it is told that it was sent, the result of the same operation may land on it: a retransmission that carries it
// is thrown away.
void SimTransport::on_arrived(const FramePtr& frame) {
  if (!active(frame->job) || !context_.lane.done_when_acknowledged || frame->lie != nullptr) return;
  if (is_of_barrier(frame->job, frame->header) || std::ranges::equal(frame->source, frame->payload)) return;
  context_.findings.fail("memory",
                         "host {}: the payload of tensor {}, sequence {}, slice {} changed while it was being sent",
                         self_.value, frame->header.tensor.value, frame->header.sequence.value, frame->header.slice);
}

// ---- what arrives ----

void SimTransport::on_packet(const Packet& packet) {
  if (!active(packet.frame->job)) return;
  std::span<std::byte> place;
  // As a NIC that writes where it was told. What a host that lies was granted it may then write until its connection is
  // down (docs/threat-model.md): of that nothing is to be shown.
  const bool lands_now = context_.lane.done_when_acknowledged && packet.frame->lie == nullptr;
  ports::FrameSink* sink = sink_of(channel_of(packet));
  if (packet.begin == 0 && packet.end > 0 && lands_now && sink != nullptr) {
    const protocol::FrameHeader& header = packet.frame->header;
    const Result<std::span<std::byte>> told = sink->on_header(header);
    if (told.ok() && told->size() == header.payload_bytes) place = *told;
  }
  inbox_.push_back({packet, place});
  context_.wake();
}

std::size_t SimTransport::poll(Time now) {
  std::size_t handled = tell_notices();
  while (!inbox_.empty() && !context_.findings.any()) {
    const Packet packet = std::move(inbox_.front().packet);
    inbox_.pop_front();
    receive_packet(packet);
    ++handled;
    if (random_.chance(kLeavesRest)) break;
  }
  if (!inbox_.empty()) context_.wake();
  for (std::size_t job = 0; job < jobs_.size(); ++job) {
    if (!jobs_[job].credentials) continue;
    tell_delivered(job);
    look_for_lost(job, now);
    replay(job);
  }
  return handled;
}

std::size_t SimTransport::tell_notices() {
  std::size_t told = 0;
  for (; !notices_.empty(); ++told) {
    const Notice notice = std::move(notices_.front());
    notices_.pop_front();
    const Channel channel = channel_of(notice.flow);
    std::unique_ptr<Line>& line = jobs_[channel.job].lines[index(channel.peer, channel.level)];
    if (notice.kind == Notice::Kind::kUp) {
      line = std::make_unique<Line>(*this, channel);
      line->sink = &owner_.on_flow_up(notice.flow, *line);
    } else if (notice.kind == Notice::Kind::kDown) {
      owner_.on_flow_down(notice.flow, notice.cause);
      line.reset();
    } else {
      line->sink->on_sent(notice.token);
    }
  }
  return told;
}

void SimTransport::receive_packet(const Packet& packet) {
  Job& job = jobs_[packet.frame->job];
  if (!job.credentials) return;
  const Channel channel = channel_of(packet);
  Flow& f = flow(channel);
  ports::FrameSink* sink = sink_of(channel);
  if (f.refused || (sink == nullptr && !f.up)) return;
  if (sink == nullptr) {
    return context_.findings.fail("protocol", "host {}: a frame of host {} comes before its flow is told of",
                                  self_.value, packet.from.value);
  }
  if (packet.begin == 0) {
    f.receiving = {.frame = packet.frame, .open = true};
    const Result<std::span<std::byte>> place = sink->on_header(packet.frame->header);
    if (!place.ok() && job.context.scenario.liar) return refuse(channel, place.status());
    if (!place.ok()) {
      return context_.findings.fail("protocol", "host {}: payload of host {} was refused: {}", self_.value,
                                    packet.from.value, place.status().to_string());
    }
    if (packet.frame->lie != nullptr && !place->empty()) {
      return context_.findings.fail("hostile", "host {} lets host {} write: {}", self_.value, packet.from.value,
                                    packet.frame->lie);
    }
    f.receiving.place = *place;
    f.receiving.stale = packet.frame->header.payload_bytes > 0 && place->empty();
    if (job.staging != nullptr && !is_of_barrier(channel.job, packet.frame->header)) job.staging->landing(*place);
  }
  if (packet.end > packet.begin && !f.receiving.stale) land(packet, f.receiving);
  f.receiving.landed = packet.end;
  if (!packet.last) return;
  const Receiving receiving = std::exchange(f.receiving, {});
  f.in.deliver();
  frame_complete(packet, receiving);
}

void SimTransport::land(const Packet& packet, const Receiving& receiving) {
  if (receiving.place.size() != packet.frame->header.payload_bytes) {
    return context_.findings.fail("memory", "host {}: a frame of {} bytes lands on {} bytes", self_.value,
                                  packet.frame->header.payload_bytes, receiving.place.size());
  }
  std::copy(packet.frame->payload.begin() + static_cast<std::ptrdiff_t>(packet.begin),
            packet.frame->payload.begin() + static_cast<std::ptrdiff_t>(packet.end),
            receiving.place.begin() + static_cast<std::ptrdiff_t>(packet.begin));
}

void SimTransport::frame_complete(const Packet& packet, const Receiving& receiving) {
  const protocol::FrameHeader& h = packet.frame->header;
  Job& job = jobs_[packet.frame->job];
  context_.trace.line(self_, "got {} from {}: job {} tensor {} sequence {} slice {} offset {} bytes {} grant {:#x}{}",
                      static_cast<int>(h.type), packet.from.value, packet.frame->job, h.tensor.value, h.sequence.value,
                      h.slice, h.offset, h.payload_bytes, h.grant, receiving.stale ? " STALE" : "");
  if (job.context.liar != nullptr) job.context.liar->heard(packet.from, h);
  if (receiving.stale && job.context.scenario.liar) return;  // a lie, or what follows one
  if (receiving.stale) {
    return context_.findings.fail("stale", "host {}: a frame for tensor {}, sequence {} of host {} found no place",
                                  self_.value, h.tensor.value, h.sequence.value, packet.from.value);
  }
  const bool message = protocol::is_of_message(h);
  if (message && packet.frame->lie == nullptr) job.context.messages.landed(*packet.frame);
  if (h.payload_bytes > 0) {
    if (!message)
      job.context.delivery.landed(*packet.frame, job.staging != nullptr && job.staging->inside(receiving.place));
    const bool eager = (h.flags & protocol::kFlagEager) != 0;
    if (!eager && random_.chance(job.context.scenario.replay)) job.replays.emplace_back(packet.from, h);
    ++*job.context.progress;
  }
  sink_of(channel_of(packet))->on_frame(h);
  if (packet.frame->lie == nullptr) return;
  const auto look = [this, &job, frame = packet.frame] {
    if (job.context.accused()) return;
    context_.findings.fail("hostile", "host {} takes from host {}: {}", self_.value, frame->from.value, frame->lie);
  };
  // Of an operation its engine has said so by now; of a message the job is to hear of it, perhaps on another lane.
  message ? context_.events.after(kAccuses, look) : look();
}

// As transports do when the host gives an error to a header: the flow is closed, for that cause.
void SimTransport::refuse(const Channel& channel, const Status& cause) {
  Flow& f = flow(channel);
  in_flight_[channel.level] -= f.in_flight;
  f = new_flow();
  f.refused = true;
  note({.kind = Notice::Kind::kDown, .flow = key_of(channel), .cause = cause});
}

// ---- connections ----

void SimTransport::tell_delivered(std::size_t job) {
  // Where copies are kept, the sender can wait for its word; where its memory is, that is waited for.
  const std::size_t often =
      context_.lane.done_when_acknowledged ? 1 : std::max<std::size_t>(1, context_.lane.flow_room / 2);
  for (std::size_t i = 0; i < jobs_[job].flows.size(); ++i) {
    Flow& f = jobs_[job].flows[i];
    if (!f.up || f.lost || f.in.unacked() < often) continue;
    context_.network.tell(self_, channel_of(job, i), f.in.ack());
  }
}

void SimTransport::on_acknowledged(const Channel& channel, ledger::Number delivered) {
  if (active(channel.job) && !flow(channel).refused) take_told(channel, delivered, false);
}

void SimTransport::take_told(const Channel& channel, ledger::Number delivered, bool resumes) {
  Flow& f = flow(channel);
  const ledger::Number before = f.out.delivered();
  const std::optional<std::uint64_t> again = resumes ? f.out.resume(delivered) : std::nullopt;
  if (resumes ? !again : !f.out.acknowledge(delivered)) {
    return context_.findings.fail("protocol", "host {}: a peer has {} frames of a flow, after {}, of {} that were sent",
                                  self_.value, delivered, before, f.out.next());
  }
  resent_ += again.value_or(0);
  f.moved = context_.events.now();
  for (ledger::Number n = before; n < delivered; ++n) {
    if (context_.lane.done_when_acknowledged) sent(*f.kept[f.out.slot(n)]);
  }
  context_.wake();
}

void SimTransport::on_reset(const Channel& channel) {
  if (!active(channel.job)) return;
  Flow& f = flow(channel);
  if (!f.up) return;  // it is being made
  context_.trace.line(self_, "the connection of job {} to host {}, level {}, is lost", channel.job, channel.peer.value,
                      channel.level);
  if (!f.lost) f.lost = context_.events.now();
  in_flight_[channel.level] -= f.in_flight;
  f.in_flight = 0;
  // What this host's kernel had received may still be read, or not.
  if (random_.chance(0.5)) forget_arrivals(channel);
}

void SimTransport::forget_arrivals(const Channel& channel) {
  std::erase_if(inbox_, [&](const Arrived& a) { return channel_of(a.packet) == channel; });
  Receiving& receiving = flow(channel).receiving;
  StagingChecker* staging = jobs_[channel.job].staging;
  if (receiving.open && !receiving.stale && staging != nullptr) staging->consumed(receiving.place);
  receiving = {};
}

std::optional<ledger::Number> SimTransport::on_reconnect(const Channel& channel) {
  Flow& f = flow(channel);
  const bool asked_for = f.wanted || channel.peer < self_;  // who dials makes no flow that the job does not have
  if (!active(channel.job) || context_.frozen() || f.over || !asked_for) return std::nullopt;
  forget_arrivals(channel);
  return f.in.ack();
}

void SimTransport::on_resumed(const Channel& channel, ledger::Number delivered) {
  Flow& f = flow(channel);
  context_.trace.line(self_, "a connection of job {} to host {}, level {}: it has {} of {} frames", channel.job,
                      channel.peer.value, channel.level, delivered, f.out.pushed());
  f.lost.reset();
  if (!f.up) {
    f.up = true;
    f.moved = context_.events.now();
    return note({.kind = Notice::Kind::kUp, .flow = key_of(channel)});
  }
  take_told(channel, delivered, true);
  while (f.out.next() < f.out.pushed() && !context_.findings.any()) {
    FramePtr& kept = f.kept[f.out.slot(f.out.next())];
    if (context_.lane.done_when_acknowledged) {
      // Nothing was copied: it goes as the memory is now.
      auto again = std::make_shared<Frame>(*kept);
      again->payload.assign(kept->source.begin(), kept->source.end());
      kept = std::move(again);
    }
    give(f, kept);
  }
}

void SimTransport::look_for_lost(std::size_t job, Time now) {
  for (std::size_t i = 0; i < jobs_[job].flows.size(); ++i) {
    Flow& f = jobs_[job].flows[i];
    if (!f.lost || now - *f.lost <= jobs_[job].credentials->resume_within) continue;
    f = new_flow();
    f.over = true;
    note({.kind = Notice::Kind::kDown,
          .flow = key_of(channel_of(job, i)),
          .cause = {Code::kUnavailable, "the connection did not come back", "", ""}});
  }
}

// ---- stale frames ----

// Frames that a grant allowed, kept until their operation is over: later ones with the same grant must not land any
// more (law 3).
void SimTransport::replay(std::size_t job) {
  auto& replays = jobs_[job].replays;
  for (std::size_t i = replays.size(); i-- > 0;) {
    const auto [from, header] = replays[i];
    if (jobs_[job].context.holds(from, header)) continue;
    replays.erase(replays.begin() + static_cast<std::ptrdiff_t>(i));
    ports::FrameSink* sink = sink_of({job, from, level_of(header.cls)});
    if (sink == nullptr) continue;
    const Result<std::span<std::byte>> place = sink->on_header(header);
    if (!place.ok() || !place->empty()) {
      return context_.findings.fail("stale",
                                    "host {}: a frame for tensor {}, sequence {} was let in after that had completed",
                                    self_.value, header.tensor.value, header.sequence.value);
    }
    ++replayed_;
    context_.trace.line(self_, "stale frame for tensor {} sequence {}", header.tensor.value, header.sequence.value);
  }
}

}  // namespace tensorlane::simulator
