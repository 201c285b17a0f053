#include "simulator/host/transport.h"

#include <algorithm>

namespace tensorlane::simulator {
namespace {

constexpr double kTakesOccasion = 0.3;  // of a host that lies
constexpr double kLeavesRest = 0.2;     // of what has arrived, for the next poll
// From when a job's flows are closed until the NIC touches its memory no more, at most.
constexpr Duration kDrains = microseconds(200);

}  // namespace

SimTransport::Flow::Flow(std::size_t room) : out(static_cast<std::uint32_t>(room)) {}

SimTransport::SimTransport(HostIndex self, ports::FrameSink& sink, Context context, Random random)
    : self_(self),
      sink_(sink),
      context_(std::move(context)),
      random_(random),
      flows_(context_.scenario.hosts() * kLevels, Flow(context_.scenario.lane.flow_room)),
      unfinished_(context_.scenario.plan.tensors.size()) {
  context_.network.attach(self, this);
}

ports::FlowKey SimTransport::key_of(std::size_t index) const {
  return {job_->job, HostIndex(static_cast<std::uint16_t>(index / kLevels)), class_of(index % kLevels)};
}

void SimTransport::note(Notice notice) {
  notices_.push_back(std::move(notice));
  context_.wake();
}

// ---- jobs and flows ----

void SimTransport::add_job(const ports::JobCredentials& credentials) {
  job_ = credentials;
}

// A flow that the peer dials exists once it is up; one that this host dials, from connect() on.
void SimTransport::remove_job(JobId job) {
  if (!job_ || job_->job != job) return;
  context_.network.close(self_);
  for (std::size_t i = 0; i < flows_.size(); ++i) {
    Flow& f = flows_[i];
    const bool ours = f.wanted && self_ < key_of(i).peer;
    const bool told_up = f.up || std::ranges::any_of(notices_, [&](const Notice& n) {
                           return n.kind == Notice::Kind::kUp && n.flow == key_of(i);
                         });
    if (ours || told_up) take_down(key_of(i), f.receiving);
    if (f.receiving.open) forget_arrivals(key_of(i).peer, i % kLevels);
    f = Flow(context_.scenario.lane.flow_room);
  }
  // What was sent is not read any more, and nobody is told.
  std::erase_if(notices_, [](const Notice& n) { return n.kind == Notice::Kind::kSent; });
  in_flight_.fill(0);
  std::ranges::fill(unfinished_, 0u);
  inbox_.clear();
  replays_.clear();
  job_.reset();
  context_.wake();
}

// What is landing may go on to land until the flow is said to be down.
void SimTransport::take_down(const ports::FlowKey& flow, const Receiving& receiving) {
  const Duration after = random_.between(Duration(0), kDrains);
  context_.events.after(after, [this, flow] { note({.kind = Notice::Kind::kDown, .flow = flow}); });
  if (receiving.open && !receiving.stale) write_late(receiving.frame, receiving.place, receiving.landed, after);
  for (const Arrived& arrived : inbox_) {
    const bool of_flow = arrived.packet.from == flow.peer && arrived.packet.level == level_of(flow.cls);
    if (of_flow && !arrived.place.empty()) write_late(arrived.packet.frame, arrived.place, 0, after);
  }
}

void SimTransport::write_late(FramePtr frame, std::span<std::byte> place, std::uint64_t from, Duration within) {
  context_.events.after(random_.between(Duration(0), within), [frame = std::move(frame), place, from] {
    std::ranges::copy(std::span(frame->payload).subspan(from), place.begin() + static_cast<std::ptrdiff_t>(from));
  });
}

Status SimTransport::connect(const ports::FlowKey& key, const std::string&, std::uint16_t, Time) {
  if (std::exchange(flow(key).wanted, true)) {
    context_.findings.fail("protocol", "host {} opens its flow to host {} in class {} twice", self_.value,
                           key.peer.value, key.cls.value);
  }
  context_.network.reset(self_, key.peer, level_of(key.cls));
  return {};
}

void SimTransport::close(const ports::FlowKey&) {
  TL_ASSERT(false && "flows are closed with their job");
}

bool SimTransport::writable(const ports::FlowKey& key) const {
  const Flow& f = flow(key);
  return f.up && !f.lost && !f.out.full();
}

ports::FlowStats SimTransport::stats(const ports::FlowKey& key) const {
  ports::FlowStats stats;
  if (!flow(key).up) return stats;
  stats.transport = "simulated";
  return stats;
}

ports::FlowProgress SimTransport::progress(const ports::FlowKey& key) const {
  const Flow& f = flow(key);
  return {.given = f.out.pushed(), .received = f.in.delivered(), .outstanding_bytes = f.in_flight};
}

// ---- sending ----

void SimTransport::send(const ports::FlowKey& key, const ports::Outgoing& operation) {
  std::optional<Liar::Told> told;
  if (context_.liar != nullptr && random_.chance(kTakesOccasion))
    told = context_.liar->tell(key.peer, operation.header);
  if (told && !told->after) lie(*told);
  if (context_.grants != nullptr && operation.header.type == protocol::FrameType::kGrant)
    context_.grants->push_back({self_, key.peer, operation.header});
  auto frame = std::make_shared<Frame>();
  frame->from = self_;
  frame->to = key.peer;
  frame->cls = key.cls;
  frame->header = operation.header;
  frame->payload.assign(operation.payload.begin(), operation.payload.end());
  frame->source = operation.payload;
  frame->token = operation.token;
  const protocol::FrameHeader& h = operation.header;
  context_.trace.line(self_, "send {} to {}: tensor {} sequence {} slice {} offset {} bytes {} grant {:#x}",
                      static_cast<int>(h.type), key.peer.value, h.tensor.value, h.sequence.value, h.slice, h.offset,
                      h.payload_bytes, h.grant);
  if (operation.payload.size() != h.payload_bytes || operation.payload.size() > kMaxOperation.value) {
    return context_.findings.fail("memory", "host {}: a payload of {} bytes is said to have {}", self_.value,
                                  operation.payload.size(), h.payload_bytes);
  }
  if (operation.token != 0) ++unfinished_[h.tensor.value];
  Flow& f = flow(key);
  if (f.out.pushed() == f.out.delivered()) f.moved = context_.events.now();
  if (f.kept.empty()) f.kept.resize(context_.scenario.lane.flow_room);
  f.kept[f.out.slot(f.out.push())] = frame;
  give(f, frame);
  if (!context_.scenario.lane.done_when_acknowledged) sent(*frame);
  if (told && told->after) lie(*told);
}

// Where the flow has room for it and for the frame that is its occasion.
void SimTransport::lie(const Liar::Told& told) {
  Flow& f = flow({job_->job, told.to, told.on});
  if (!f.up || f.lost || f.out.pushed() - f.out.delivered() + 2 > context_.scenario.lane.flow_room) return;
  auto frame = std::make_shared<Frame>();
  frame->from = self_;
  frame->to = told.to;
  frame->cls = told.on;
  frame->header = told.header;
  frame->header.cls = told.on;
  frame->payload.assign(told.header.payload_bytes, std::byte{0xee});
  frame->lie = lie_name(*context_.scenario.lie);
  context_.trace.line(self_, "lies to {}: {}", told.to.value, frame->lie);
  if (f.kept.empty()) f.kept.resize(context_.scenario.lane.flow_room);
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
  --unfinished_[frame.header.tensor.value];
  note({.kind = Notice::Kind::kSent, .flow = {job_->job, frame.to, frame.cls}, .token = frame.token});
}

void SimTransport::on_acknowledged(const FramePtr& frame) {
  if (!active()) return;
  Flow& f = flows_[index(frame->to, level_of(frame->cls))];
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
  if (!active() || !context_.scenario.lane.done_when_acknowledged || frame->lie != nullptr) return;
  if (is_barrier(frame->header.tensor) || std::ranges::equal(frame->source, frame->payload)) return;
  context_.findings.fail("memory",
                         "host {}: the payload of tensor {}, sequence {}, slice {} changed while it was being sent",
                         self_.value, frame->header.tensor.value, frame->header.sequence.value, frame->header.slice);
}

// ---- what arrives ----

void SimTransport::on_packet(const Packet& packet) {
  if (!active()) return;
  std::span<std::byte> place;
  // As a NIC that writes where it was told. What a host that lies was granted it may then write until its connection is
  // down (docs/threat-model.md): of that nothing is to be shown.
  const bool lands_now = context_.scenario.lane.done_when_acknowledged && packet.frame->lie == nullptr;
  if (packet.begin == 0 && packet.end > 0 && lands_now) {
    const protocol::FrameHeader& header = packet.frame->header;
    const Result<std::span<std::byte>> told = sink_.on_header(key_of(index(packet.from, packet.level)), header);
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
  if (job_) {
    tell_delivered();
    look_for_lost(now);
    replay(now);
  }
  return handled;
}

std::size_t SimTransport::tell_notices() {
  std::size_t told = 0;
  for (; !notices_.empty(); ++told) {
    const Notice notice = std::move(notices_.front());
    notices_.pop_front();
    if (notice.kind == Notice::Kind::kUp) {
      sink_.on_flow_up(notice.flow);
    } else if (notice.kind == Notice::Kind::kDown) {
      sink_.on_flow_down(notice.flow, notice.cause);
    } else {
      sink_.on_sent(notice.flow, notice.token);
    }
  }
  return told;
}

void SimTransport::receive_packet(const Packet& packet) {
  if (!job_) return;
  Flow& f = flows_[index(packet.from, packet.level)];
  if (f.refused) return;
  if (packet.begin == 0) {
    f.receiving = {.frame = packet.frame, .open = true};
    const Result<std::span<std::byte>> place =
        sink_.on_header(key_of(index(packet.from, packet.level)), packet.frame->header);
    if (!place.ok() && context_.scenario.liar) return refuse(packet.from, packet.level, place.status());
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
    if (staging_ != nullptr && !is_barrier(packet.frame->header.tensor)) staging_->landing(*place);
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
  context_.trace.line(self_, "got {} from {}: tensor {} sequence {} slice {} offset {} bytes {} grant {:#x}{}",
                      static_cast<int>(h.type), packet.from.value, h.tensor.value, h.sequence.value, h.slice, h.offset,
                      h.payload_bytes, h.grant, receiving.stale ? " STALE" : "");
  if (context_.liar != nullptr) context_.liar->heard(packet.from, h);
  if (receiving.stale && context_.scenario.liar) return;  // a lie, or what follows one
  if (receiving.stale) {
    return context_.findings.fail("stale", "host {}: a frame for tensor {}, sequence {} of host {} found no place",
                                  self_.value, h.tensor.value, h.sequence.value, packet.from.value);
  }
  if (h.payload_bytes > 0) {
    context_.delivery.landed(*packet.frame, staging_ != nullptr && staging_->inside(receiving.place));
    const bool eager = (h.flags & protocol::kFlagEager) != 0;
    if (!eager && random_.chance(context_.scenario.replay)) replays_.emplace_back(packet.from, h);
    ++*context_.progress;
  }
  sink_.on_frame(key_of(index(packet.from, packet.level)), h);
  if (packet.frame->lie == nullptr || context_.accused()) return;
  context_.findings.fail("hostile", "host {} takes from host {}: {}", self_.value, packet.from.value,
                         packet.frame->lie);
}

// As transports do when the host gives an error to a header: the flow is closed, for that cause.
void SimTransport::refuse(HostIndex peer, std::size_t level, const Status& cause) {
  Flow& f = flows_[index(peer, level)];
  in_flight_[level] -= f.in_flight;
  f = Flow(context_.scenario.lane.flow_room);
  f.refused = true;
  note({.kind = Notice::Kind::kDown, .flow = key_of(index(peer, level)), .cause = cause});
}

// ---- connections ----

void SimTransport::tell_delivered() {
  // Where copies are kept, the sender can wait for its word; where its memory is, that is waited for.
  const std::size_t often = context_.scenario.lane.done_when_acknowledged
                                ? 1
                                : std::max<std::size_t>(1, context_.scenario.lane.flow_room / 2);
  for (std::size_t i = 0; i < flows_.size(); ++i) {
    Flow& f = flows_[i];
    if (!f.up || f.lost || f.in.unacked() < often) continue;
    context_.network.tell(self_, key_of(i).peer, i % kLevels, f.in.ack());
  }
}

void SimTransport::on_acknowledged(HostIndex peer, std::size_t level, ledger::Number delivered) {
  if (active() && !flows_[index(peer, level)].refused) take_told(peer, level, delivered, false);
}

void SimTransport::take_told(HostIndex peer, std::size_t level, ledger::Number delivered, bool resumes) {
  Flow& f = flows_[index(peer, level)];
  const ledger::Number before = f.out.delivered();
  const std::optional<std::uint64_t> again = resumes ? f.out.resume(delivered) : std::nullopt;
  if (resumes ? !again : !f.out.acknowledge(delivered)) {
    return context_.findings.fail("protocol", "host {}: a peer has {} frames of a flow, after {}, of {} that were sent",
                                  self_.value, delivered, before, f.out.next());
  }
  resent_ += again.value_or(0);
  f.moved = context_.events.now();
  for (ledger::Number n = before; n < delivered; ++n) {
    if (context_.scenario.lane.done_when_acknowledged) sent(*f.kept[f.out.slot(n)]);
  }
  context_.wake();
}

void SimTransport::on_reset(HostIndex peer, std::size_t level) {
  if (!active()) return;
  Flow& f = flows_[index(peer, level)];
  if (!f.up) return;  // it is being made
  context_.trace.line(self_, "the connection to host {}, level {}, is lost", peer.value, level);
  if (!f.lost) f.lost = context_.events.now();
  in_flight_[level] -= f.in_flight;
  f.in_flight = 0;
  // What this host's kernel had received may still be read, or not.
  if (random_.chance(0.5)) forget_arrivals(peer, level);
}

void SimTransport::forget_arrivals(HostIndex peer, std::size_t level) {
  std::erase_if(inbox_, [&](const Arrived& a) { return a.packet.from == peer && a.packet.level == level; });
  Receiving& receiving = flows_[index(peer, level)].receiving;
  if (receiving.open && !receiving.stale && staging_ != nullptr) staging_->consumed(receiving.place);
  receiving = {};
}

std::optional<ledger::Number> SimTransport::on_reconnect(HostIndex peer, std::size_t level) {
  const Flow& f = flows_[index(peer, level)];
  const bool asked_for = f.wanted || peer < self_;  // who dials makes no flow that the job does not have
  if (!active() || context_.frozen() || f.over || !asked_for) return std::nullopt;
  forget_arrivals(peer, level);
  return flows_[index(peer, level)].in.ack();
}

void SimTransport::on_resumed(HostIndex peer, std::size_t level, ledger::Number delivered) {
  Flow& f = flows_[index(peer, level)];
  context_.trace.line(self_, "a connection to host {}, level {}: it has {} of {} frames", peer.value, level, delivered,
                      f.out.pushed());
  f.lost.reset();
  if (!f.up) {
    f.up = true;
    f.moved = context_.events.now();
    return note({.kind = Notice::Kind::kUp, .flow = key_of(index(peer, level))});
  }
  take_told(peer, level, delivered, true);
  while (f.out.next() < f.out.pushed() && !context_.findings.any()) {
    FramePtr& kept = f.kept[f.out.slot(f.out.next())];
    if (context_.scenario.lane.done_when_acknowledged) {
      // Nothing was copied: it goes as the memory is now.
      auto again = std::make_shared<Frame>(*kept);
      again->payload.assign(kept->source.begin(), kept->source.end());
      kept = std::move(again);
    }
    give(f, kept);
  }
}

void SimTransport::look_for_lost(Time now) {
  for (std::size_t i = 0; i < flows_.size(); ++i) {
    Flow& f = flows_[i];
    if (!f.lost || now - *f.lost <= job_->resume_within) continue;
    f = Flow(context_.scenario.lane.flow_room);
    f.over = true;
    note({.kind = Notice::Kind::kDown,
          .flow = key_of(i),
          .cause = {Code::kUnavailable, "the connection did not come back", "", ""}});
  }
}

// ---- stale frames ----

// Frames that a grant allowed, kept until their operation is over: later ones with the same grant must not land any
// more (law 3).
void SimTransport::replay(Time) {
  for (std::size_t i = replays_.size(); i-- > 0;) {
    const auto [from, header] = replays_[i];
    if (context_.holds(header.tensor, header.sequence)) continue;
    replays_.erase(replays_.begin() + static_cast<std::ptrdiff_t>(i));
    const Result<std::span<std::byte>> place = sink_.on_header(key_of(index(from, level_of(header.cls))), header);
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
