#include "daemon/host/job_rail.h"

#include <fmt/format.h>

namespace tensorlane::host {
namespace {

constexpr Duration kMostPatience = seconds(30);  // programs wait for a minute

}  // namespace

// A flow that is up, and where its frames go.
class JobRail::RailFlow final : public ports::FrameSink {
 public:
  RailFlow(JobRail& rail, const ports::FlowKey& key, ports::Flow& flow)
      : rail_(rail), peer_(key.peer), cls_(key.cls), flow_(flow) {}
  ports::Flow& flow() const { return flow_; }

  Result<std::span<std::byte>> on_header(const protocol::FrameHeader& header) override {
    return rail_.landing(peer_, header);
  }
  void on_frame(const protocol::FrameHeader& header) override {
    rail_.frame_arrived(peer_, cls_, header, rail_.context_.now);
  }
  void on_sent(std::uint64_t token) override { rail_.sent(token); }
  std::span<const std::span<std::byte>> granted(const protocol::FrameHeader& header) override {
    return rail_.granted(peer_, header);
  }

 private:
  JobRail& rail_;
  const HostIndex peer_;
  const ClassId cls_;
  ports::Flow& flow_;
};

JobRail::JobRail(RailIndex rail, const ports::JobSpec& spec, const Context& context, ports::JobMetrics& metrics,
                 Owner& owner, Staging staging, std::unique_ptr<engine_log::Observer> observer, MessageDesk* desk)
    : rail_(rail),
      spec_(spec),
      context_(context),
      metrics_(metrics),
      owner_(owner),
      config_(engine_config(rail, spec, *context.config)),
      staging_(std::move(staging)),
      engine_(config_, staging_.region, std::move(observer)),
      actions_(context.config->actions),
      desk_(desk),
      peers_(spec.hosts.size()) {
  // Every host begins with its own next peer: if all began with the same one, their operations would queue in its port,
  // while the others' are idle.
  for (auto& last : last_peer_) last.fill(spec_.credentials.self);
  known_.reserve(spec.hosts.size());
}

JobRail::~JobRail() = default;

void JobRail::retire() {
  context_.memory->remove(staging_.region.region);
}

// ---- flows ----

void JobRail::open() {
  ports::JobCredentials credentials = spec_.credentials;
  credentials.rail = rail_;
  if (context_.config->resume_flows) credentials.resume_within = spec_.detection;
  transport().add_job(credentials);
  map(staging_.memory->bytes());
}

// How long the end that dials tries.
Duration JobRail::patience() const {
  return std::min(spec_.detection * 3, kMostPatience);
}

Result<bool> JobRail::open_flows(std::size_t most, Time now) {
  for (; most > 0 && opened_ < engine_.neighbours().size(); --most) {
    const HostIndex host = engine_.neighbours()[opened_++];
    Peer& peer = know(host);
    peer.neighbour = true;
    if (!peer.wanted) TL_RETURN_IF_ERROR(make_flows(host, now));
    if (!peer.connected) {
      look_if_connected(host, now);
    } else {  // for messages
      ++connected_;
      feed({.kind = engine::Event::Kind::kPeerUp, .up = {host}}, now);
    }
  }
  return opened_ == engine_.neighbours().size();
}

Status JobRail::want(HostIndex host, Time now) {
  if (Peer& peer = know(host); peer.wanted || peer.connected) return {};
  TL_RETURN_IF_ERROR(make_flows(host, now));
  if (!dials(host)) owner_.rail_wants_flows(host);
  look_if_connected(host, now);
  return {};
}

Status JobRail::charge_flows(Peer& peer) {
  if (context_.descriptors == nullptr || std::exchange(peer.charged, true)) return {};
  Result<Ledger::Charge> charge = context_.descriptors->take(spec_.owner, flows_to_peer());
  if (!charge.ok()) return on_host(charge.status(), spec_);
  flows_.add(std::move(*charge));
  return {};
}

// Where this host is the one that dials; else the peer comes to us.
Status JobRail::make_flows(HostIndex peer, Time now) {
  const Time deadline = now + patience();
  peers_[peer.value].wanted = true;
  peers_[peer.value].since = now;
  TL_RETURN_IF_ERROR(charge_flows(peers_[peer.value]));
  const ports::JobHost& host = spec_.hosts[peer.value];
  for (std::size_t f = 0; f < flows_to_peer() && dials(peer); ++f) {
    const ports::FlowKey flow{job(), peer, flow_class(f)};
    TL_RETURN_IF_ERROR(transport().connect(flow, host.addresses[rail_.value], host.data_port, deadline));
    ++flows_open_;
  }
  return {};
}

// Later than the other end's own error, which says more, could be here.
std::optional<Status> JobRail::overdue(Time now) const {
  const Duration most(patience().value / 3 * 4);
  for (const HostIndex host : known_) {
    const Peer& peer = peers_[host.value];
    if (!peer.wanted || peer.connected || now - peer.since < most) continue;
    const std::string& self = spec_.hosts[spec_.credentials.self.value].name;
    return Status(
        Code::kTimedOut,
        fmt::format("host {} has not opened its flows to host {} on rail {} within {:.1f} s",
                    spec_.hosts[host.value].name, self, rail_.value, to_seconds(most)),
        fmt::format("job '{}'", spec_.name),
        fmt::format("look at the log of the daemon there, and whether the data port of {} can be reached from "
                    "it",
                    self));
  }
  return std::nullopt;
}

JobRail::Peer& JobRail::know(HostIndex host) {
  Peer& peer = peers_[host.value];
  if (!std::exchange(peer.known, true)) {
    known_.push_back(host);
    peer.flows.resize(kMaxDataClasses + 1);
  }
  return peer;
}

// A peer that dials may have had its plan before this host has.
void JobRail::look_if_connected(HostIndex host, Time now) {
  Peer& peer = peers_[host.value];
  if (peer.connected || peer.up < flows_to_peer()) return;
  peer.connected = true;
  if (desk_ != nullptr) desk_->messages().peer_up(host);
  if (!peer.neighbour) return;
  ++connected_;
  feed({.kind = engine::Event::Kind::kPeerUp, .up = {host}}, now);
}

void JobRail::close() {
  transport().remove_job(job());
}

ports::FrameSink& JobRail::flow_up(const ports::FlowKey& key, ports::Flow& flow, const ports::FlowStats& stats,
                                   Time now) {
  if (!dials(key.peer)) ++flows_open_;
  Peer& peer = know(key.peer);
  std::unique_ptr<RailFlow>& slot = peer.flows[ports::metrics_slot(key.cls)];
  TL_ASSERT(slot == nullptr);
  slot = std::make_unique<RailFlow>(*this, key, flow);
  ports::FrameSink& sink = *slot;
  ++peer.up;
  if (const Status charged = charge_flows(peer); !charged.ok()) owner_.rail_failed(charged);
  report_flow(key, stats);
  context_.metrics->paths.set(spec_.hosts[key.peer.value].name, rail_, transport().path(job(), key.peer));
  look_if_connected(key.peer, now);
  return sink;
}

void JobRail::report_flow(const ports::FlowKey& key, const ports::FlowStats& stats) {
  context_.metrics->flows.up(
      rail_, key,
      {spec_.name, spec_.hosts[key.peer.value].name, key.cls, rail_, stats.effective_dscp, stats.effective_pcp,
       stats.transport, stats.describe, spec_.owner.user, stats.protection});
}

RailsOwner::Lost JobRail::flow_down(const ports::FlowKey& key) {
  TL_ASSERT(flows_open_ > 0);
  --flows_open_;
  context_.metrics->flows.down(rail_, key);
  Peer& peer = peers_[key.peer.value];
  if (peer.known && std::exchange(peer.flows[ports::metrics_slot(key.cls)], nullptr) != nullptr) --peer.up;
  if (peer.connected) return RailsOwner::Lost::kNeighbour;
  return dials(key.peer) ? RailsOwner::Lost::kDialed : RailsOwner::Lost::kAwaited;
}

std::string JobRail::classes_down(HostIndex host) const {
  std::vector<std::string> down;
  for (std::size_t f = 0; f < flows_to_peer(); ++f) {
    const ClassId cls = flow_class(f);
    if (find_flow(host, cls) == nullptr) down.push_back(cls == kControlClass ? "control" : std::to_string(cls.value));
  }
  std::string text = down.size() == 1 ? "class " : "classes ";
  for (std::size_t i = 0; i < down.size(); ++i) text += (i == 0 ? "" : i + 1 == down.size() ? " and " : ", ") + down[i];
  return text;
}

ports::Flow* JobRail::find_flow(HostIndex host, ClassId cls) const {
  const Peer& peer = peers_[host.value];
  const RailFlow* found = peer.known ? peer.flows[ports::metrics_slot(cls)].get() : nullptr;
  return found == nullptr ? nullptr : &found->flow();
}

void JobRail::map(std::span<std::byte> bytes) {
  const Status mapped = transport().map(job(), bytes);
  if (mapped.ok()) return;
  // Every rank of the job reads this, on whatever host.
  const std::string& host = spec_.hosts[spec_.credentials.self.value].name;
  owner_.rail_failed({mapped.code(), mapped.what(), fmt::format("host {}, {}", host, mapped.where()), mapped.fix()});
}

ports::FlowProgress JobRail::progress(HostIndex peer, ClassId cls) const {
  const ports::Flow* flow = find_flow(peer, cls);
  return flow == nullptr ? ports::FlowProgress() : flow->progress();
}

// ---- the engine ----

void JobRail::feed(const engine::Event& event, Time now) {
  TL_ASSERT(fed_ <= now);  // its time does not run backwards
  fed_ = now;
  std::size_t taken = 0;
  do {
    taken = engine_.step(now, std::span(&event, 1), actions_);
    while (!actions_.empty()) {
      const engine::Action action = actions_.front();
      actions_.pop();
      carry_out(action, now);
    }
  } while (taken == 0);
}

void JobRail::carry_out(const engine::Action& action, Time now) {
  if (action.kind == engine::Action::Kind::kComplete) return owner_.rail_completed(action.complete, now);
  if (action.kind == engine::Action::Kind::kPartInPlace) return owner_.rail_placed(action.in_place, now);
  if (action.kind == engine::Action::Kind::kAgreed) return owner_.rail_agreed(action.agreed, now);
  protocol_error(action.error.peer, action.error.reason, action.error.header);
}

void JobRail::protocol_error(HostIndex peer, const char* reason, const protocol::FrameHeader& header) {
  context_.metrics->protocol_errors.add();
  owner_.rail_failed({Code::kCorrupt,
                      fmt::format("host {} broke the protocol: {}", spec_.hosts[peer.value].name, reason),
                      fmt::format("job '{}', rail {}, tensor {}, sequence {}, slice {}, grant {:#x}", spec_.name,
                                  rail_.value, header.tensor.value, header.sequence.value, header.slice, header.grant),
                      "install the same tensorlane version on every host"});
}

Result<std::span<std::byte>> JobRail::landing(HostIndex peer, const protocol::FrameHeader& header) {
  if (header.payload_bytes == 0) return std::span<std::byte>();
  const bool message = desk_ != nullptr && protocol::is_of_message(header);
  Result<Descriptor> place = message ? desk_->messages().landing(peer, header) : engine_.landing(peer, header);
  if (!place.ok()) {
    context_.metrics->protocol_errors.add();
    return place.status();
  }
  if (message) return place->length == 0 ? std::span<std::byte>() : desk_->resolve(*place);
  return context_.memory->resolve(*place);
}

void JobRail::frame_arrived(HostIndex peer, ClassId cls, const protocol::FrameHeader& header, Time now) {
  ports::ClassMetrics& metrics = context_.metrics->classes[ports::metrics_slot(cls)];
  metrics.operations_received.add();
  metrics.bytes_received.add(header.payload_bytes);
  context_.metrics->rails[rail_.value].bytes_received[ports::metrics_slot(cls)].add(header.payload_bytes);
  if (cls != kControlClass) metrics_.classes[cls.value].bytes_received.add(header.payload_bytes);
  note_arrival(peer, cls, header);
  if (desk_ != nullptr && protocol::is_of_message(header)) {
    const char* fault = desk_->messages().take_frame(now, peer, header);
    return fault != nullptr ? protocol_error(peer, fault, header) : owner_.rail_messages_moved(now);
  }
  feed({.kind = engine::Event::Kind::kFrameArrived, .frame = {peer, header}}, now);
}

// ---- work ----

void JobRail::choose_block(Time now, JobBlock& block) {
  engine::Work work;
  const bool picked = engine_.pick_work(now, &work);
  TL_ASSERT(picked);
  const std::span<std::byte> out = context_.memory->resolve(work.out);
  bool resolved = !out.empty();
  const std::span<ports::ReduceSource> sources =
      block.add_sum(out.data(), work.out_dtype, work.source_count, work.elements, work.op, work.divisor);
  for (std::uint32_t i = 0; i < work.source_count; ++i) {
    const std::span<std::byte> bytes = context_.memory->resolve(work.sources[i].data);
    resolved = resolved && !bytes.empty();
    sources[i] = {bytes.data(), work.sources[i].dtype};
  }
  TL_ASSERT(resolved);
  block.rail = rail_;
  block.token = work.token;
  block.tensor = work.tensor;
  block.reduced = work.elements * dtype_size(work.out_dtype) * work.source_count;
  block.span = {.begin = now,
                .job = job(),
                .tensor = work.tensor,
                .sequence = work.sequence,
                .cls = work.cls,
                .phase = ports::TraceSpan::Phase::kReduce,
                .bytes = static_cast<std::uint32_t>(block.reduced)};
}

void JobRail::block_done(const JobBlock& block, Time now) {
  context_.metrics->slices_reduced.add();
  feed({.kind = engine::Event::Kind::kWorkDone, .token = block.token}, now);
}

// ---- messages ----

namespace {
// The engine's tokens have something in their lower half, which a message's lack.
constexpr int kMessageTokenShift = 32;
}  // namespace

void JobRail::post(const MessagePost& post, Time now) {
  const engine::Message& m = post.message;
  const ClassId cls = desk_->post(post, now);
  for (std::uint8_t c = m.cls.value; c < cls.value; ++c) metrics_.classes[c].bytes_demoted.add(post.buffer.size());
  const Rank other = post.sends ? m.destination : m.source;
  if (other == engine::kAnySource || desk_->stays_here(m)) return;
  // What cannot be registered is copied. Nobody writes a message to its place from afar.
  if (post.sends && !post.segment.empty()) (void)transport().map(job(), post.segment);
  if (const Status wanted = want(desk_->messages().host_of(other), now); !wanted.ok()) owner_.rail_failed(wanted);
}

// A message's own token is 32 bits.
void JobRail::sent(std::uint64_t token) {
  const auto lower = static_cast<std::uint32_t>(token);
  if (lower != 0) return feed({.kind = engine::Event::Kind::kSendDone, .token = token}, context_.now);
  desk_->messages().sent(token >> kMessageTokenShift);
  owner_.rail_messages_moved(context_.now);
}

std::size_t JobRail::pick(const Next& next, ClassId cls, Bytes credit, engine::Send* send, Time now) {
  const engine::Flow flow{next.peer, cls};
  if (!next.message) return engine_.pick(now, flow, credit, std::span(send, 1));
  const std::size_t picked = desk_->messages().pick(flow, credit, std::span(send, 1));
  if (picked > 0) send->token <<= kMessageTokenShift;
  return picked;
}

std::span<std::byte> JobRail::payload_of(const engine::Send& send, bool message) {
  if (!message) return context_.memory->resolve(send.payload);
  return send.payload.length == 0 ? std::span<std::byte>() : desk_->resolve(send.payload);
}

bool JobRail::has_sends(engine::Flow flow, Time now) const {
  return engine_.engine().has_sends(now, flow) || (desk_ != nullptr && desk_->messages().has_sends(flow));
}

bool JobRail::has_sends(ClassId cls, Time now) const {
  HostIndex any;
  return engine_.engine().has_sends(now, cls) ||
         (desk_ != nullptr && desk_->messages().next_flow(cls, spec_.credentials.self, &any));
}

// Operations and messages take turns, and so do the peers of each.
std::optional<JobRail::Next> JobRail::next_send(ClassId cls, const std::array<bool, 2>& skipped, Time now) {
  const std::size_t slot = ports::metrics_slot(cls);
  const auto& last = last_peer_[slot];
  Next operation, message{{}, true};
  const bool operations = !skipped[0] && engine_.next_flow(now, cls, last[0], &operation.peer);
  const bool messages = desk_ != nullptr && !skipped[1] && desk_->messages().next_flow(cls, last[1], &message.peer);
  if (!operations && !messages) return std::nullopt;
  return messages && (!operations || !last_message_[slot]) ? message : operation;
}

// ---- egress ----

JobRail::Sent JobRail::send(ClassId cls, Bytes credit, std::uint64_t budget, Time now) {
  Sent sent;
  const bool control = cls == kControlClass;
  const std::uint64_t least = control ? protocol::kFrameHeaderBytes : kLeastCost;
  const std::size_t slot = ports::metrics_slot(cls);
  engine::Send send;
  // Of operations and of messages.
  std::array<std::optional<HostIndex>, 2> first_blocked;
  std::array<bool, 2> blocked{};
  std::uint64_t payload_bytes = 0;
  bool answers = false;  // to messages, which some have waited for alone
  while (const std::optional<Next> next = next_send(cls, blocked, now)) {
    const HostIndex peer = next->peer;
    ports::Flow* flow = find_flow(peer, cls);
    if (flow == nullptr || !flow->writable() || stands(peer, cls)) {
      std::optional<HostIndex>& first = first_blocked[next->message];
      blocked[next->message] = first == peer;  // once around: nobody can take more
      if (!first) first = peer;
      last_peer_[slot][next->message] = peer;
      continue;
    }
    // One operation at a turn: peers share the window evenly, and writable() speaks for no more than one.
    const Bytes left = std::min(credit - sent.bytes, Bytes(budget - sent.cost));
    const bool afforded = budget - sent.cost >= least && (!control || left.value >= least);
    if (!afforded || pick(*next, cls, left, &send, now) == 0) {
      sent.more = true;  // this peer is next, too, when there is credit
      break;
    }
    last_peer_[slot][next->message] = peer;
    last_message_[slot] = next->message;
    answers = answers || (control && next->message);
    first_blocked[next->message].reset();
    const std::span<std::byte> payload = payload_of(send, next->message);
    TL_ASSERT(payload.size() == send.header.payload_bytes);
    flow->send({send.header, payload, send.token});
    payload_bytes += payload.size();
    sent.bytes += Bytes(control ? protocol::kFrameHeaderBytes : payload.size());
    sent.cost += std::max<std::uint64_t>(least, payload.size());
    note_wait(send, *next, cls, now);
    ++sent.operations;
  }
  if (sent.operations > 0) count_sent(cls, sent, payload_bytes);
  if (answers) owner_.rail_messages_moved(now);
  return sent;
}

void JobRail::count_sent(ClassId cls, const Sent& sent, std::uint64_t payload_bytes) {
  ports::ClassMetrics& metrics = context_.metrics->classes[ports::metrics_slot(cls)];
  metrics.operations_sent.add(sent.operations);
  metrics.bytes_sent.add(payload_bytes);
  context_.metrics->rails[rail_.value].bytes_sent[ports::metrics_slot(cls)].add(payload_bytes);
  if (cls == kControlClass) return;
  metrics_.classes[cls.value].bytes_sent.add(payload_bytes);
  if (context_.bulk_waits) metrics_.classes[cls.value].bytes_met.add(payload_bytes);
  for (std::uint8_t c = 0; c < cls.value; ++c) {
    const std::uint64_t demoted = engine_.counters().demoted_bytes[c];
    metrics_.classes[c].bytes_demoted.add(demoted - demoted_[c]);
    demoted_[c] = demoted;
  }
}

std::span<const std::span<std::byte>> JobRail::granted(HostIndex peer, const protocol::FrameHeader& header) {
  std::array<Descriptor, kMaxPlaces> places;
  const std::size_t count = engine_.granted(peer, header, places);
  for (std::size_t i = 0; i < count; ++i) places_[i] = context_.memory->resolve(places[i]);
  return std::span(places_).first(count);
}

void JobRail::note_wait(const engine::Send& send, const Next& to, ClassId cls, Time now) {
  const Duration waited = now - send.eligible;
  context_.metrics->classes[ports::metrics_slot(cls)].queue_wait.record(waited);
  if (send.header.payload_bytes > 0 && cls != kControlClass) {
    metrics_.classes[cls.value].sends.add();
    metrics_.classes[cls.value].queue_ns.add(static_cast<std::uint64_t>(std::max<std::int64_t>(waited.value, 0)));
  }
  // Control would hide the tensors, and a message is of none.
  if (send.header.payload_bytes == 0 || to.message || !context_.timeline->enabled()) return;
  context_.timeline->record(span_of(send.header, to.peer, cls, ports::TraceSpan::Phase::kQueue, send.eligible, waited));
}

// From the beginning of the turn that found it. Its end is what time it is, not that of the turn: what has arrived has
// not arrived later than that.
void JobRail::note_arrival(HostIndex peer, ClassId cls, const protocol::FrameHeader& header) {
  if (header.payload_bytes == 0 || protocol::is_of_message(header) || !context_.timeline->enabled()) return;
  context_.timeline->record(
      span_of(header, peer, cls, ports::TraceSpan::Phase::kReceive, context_.now, context_.clock() - context_.now));
}

ports::TraceSpan JobRail::span_of(const protocol::FrameHeader& header, HostIndex peer, ClassId cls,
                                  ports::TraceSpan::Phase phase, Time begin, Duration length) const {
  return {.begin = begin,
          .length = length,
          .job = job(),
          .tensor = header.tensor,
          .sequence = header.sequence,
          .cls = cls,
          .phase = phase,
          .peer = peer,
          .bytes = header.payload_bytes,
          .slice = header.slice,
          .grant = header.grant,
          .offset = static_cast<std::uint32_t>(header.offset),
          .rail = rail_,
          .eager = (header.flags & protocol::kFlagEager) != 0};
}

void JobRail::publish_counts() {
  const engine::EngineCounters& now = engine_.counters();
  context_.metrics->slices_sent.add(now.slices_sent - published_.slices_sent);
  context_.metrics->stale_grants.add(now.stale_grants - published_.stale_grants);
  published_ = now;
}

}  // namespace tensorlane::host
