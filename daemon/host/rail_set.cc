#include "daemon/host/rail_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

namespace tensorlane::host {
namespace {

constexpr std::size_t kNeighboursAtOnce = 8;  // to which flows are opened, on each rail

Status table_full() {
  return {Code::kResourceExhausted, "the daemon's table of tensors is full", "memory",
          "end other jobs or register fewer tensors"};
}

}  // namespace

Result<std::unique_ptr<RailSet>> RailSet::begin(JobStart& start, const Context& context,
                                                std::shared_ptr<ports::JobMetrics> metrics, RailsOwner& owner) {
  std::vector<Staging> staging;
  Status refused;
  try {
    staging.resize(start.rails.size());
    for (std::size_t r = 0; r < start.rails.size() && refused.ok(); ++r) {
      if (context.transports[r] == nullptr) continue;
      staging[r] = {start.rails[r].staging, context.memory->add(start.rails[r].staging->bytes())};
      if (staging[r].region.length == 0) refused = table_full();
    }
    if (refused.ok()) return std::unique_ptr<RailSet>(new RailSet(start, staging, context, std::move(metrics), owner));
  } catch (const std::bad_alloc&) {
    refused = no_memory();
  }
  for (const Staging& added : staging) {
    if (added.region.length > 0) context.memory->remove(added.region.region);
  }
  return on_host(refused, start.spec);
}

RailSet::RailSet(JobStart& start, std::vector<Staging> staging, const Context& context,
                 std::shared_ptr<ports::JobMetrics> metrics, RailsOwner& owner)
    : spec_(start.spec), context_(context), metrics_(std::move(metrics)), owner_(owner), by_index_(start.rails.size()) {
  JobRail::Owner& self = *this;
  if (context.transports.front() != nullptr) desk_ = std::move(start.desk);
  for (std::size_t r = 0; r < staging.size(); ++r) {
    if (context.transports[r] == nullptr) continue;
    rails_.push_back(std::make_unique<JobRail>(RailIndex(static_cast<std::uint8_t>(r)), spec_, context_, *metrics_,
                                               self, std::move(staging[r]), std::move(start.rails[r].observer),
                                               r == 0 ? desk_.get() : nullptr));
    by_index_[r] = rails_.back().get();
  }
}

RailSet::~RailSet() {
  while (!retire(places_.size() + 1)) {
  }
}

bool RailSet::retire(std::size_t most) {
  if (gone_) return true;
  for (; retired_ < places_.size() && most > 0; ++retired_, --most) forget_regions(places_[retired_]);
  if (retired_ < places_.size()) return false;
  for (auto& rail : rails_) rail->retire();
  return gone_ = true;
}

// ---- the plan and its memory ----

void RailSet::open(Time now) {
  for (auto& rail : rails_) rail->open();
  look_if_settled(now);
}

// What has half changed is not used again: the job has failed, and is aborted.
void RailSet::break_off(const Status& cause) {
  broken_ = true;
  opening_ = false;
  owner_.rails_failed(cause);
}

void RailSet::extend(const protocol::Plan& plan, protocol::TensorRange added, std::span<const OwnMemory> memory) {
  if (broken_ || closing_) return;
  try {
    for (auto& rail : rails_) {
      if (const Status status = rail->extend_plan(plan, added); !status.ok()) return break_off(status);
    }
    places_.resize(std::max<std::size_t>(places_.size(), added.end()));
    for (std::uint32_t i = 0; i < added.count; ++i) {
      Place& place = places_[added.first + i];
      if (!memory[i].storage.empty()) place.buffer = add_region(memory[i].storage);
      if (!memory[i].wide.empty()) place.wide = add_region(memory[i].wide);
    }
  } catch (const std::bad_alloc&) {
    break_off(on_host(no_memory(), spec_));
  }
}

void RailSet::vacate(protocol::TensorRange range) {
  if (broken_ || closing_) return;
  for (auto& rail : rails_) {
    if (const Status status = rail->vacate(range); !status.ok()) return break_off(status);
  }
  for (std::uint32_t i = range.first; i < range.end(); ++i) {
    forget_regions(places_[i]);
    places_[i] = {};
  }
}

void RailSet::map(std::span<std::byte> bytes) {
  for (auto& rail : rails_) rail->map(bytes);
}

void RailSet::unmap(std::span<std::byte> bytes) {
  for (auto& rail : rails_) rail->unmap(bytes);
}

void RailSet::bind(TensorId tensor, std::span<std::byte> buffer, std::span<std::byte> segment) {
  if (broken_ || closing_) return;
  places_[tensor.value].buffer = add_region(buffer);
  map(segment);
}

void RailSet::set_priorities(std::span<const Priority> priorities) {
  if (broken_ || closing_) return;
  for (const Priority& p : priorities) {
    for (auto& rail : rails_) rail->set_priority(p.tensor, p.urgency, p.cls);
  }
}

// Regions are charged before they are added, so that there is always room but for what others forgot.
Descriptor RailSet::add_region(std::span<std::byte> bytes) {
  const Descriptor region = context_.memory->add(bytes);
  if (region.length != bytes.size()) break_off(on_host(table_full(), spec_));
  return region;
}

void RailSet::forget_regions(Place& place) {
  if (place.buffer.length != 0) context_.memory->remove(place.buffer.region);
  if (place.wide.length != 0) context_.memory->remove(place.wide.region);
  place.buffer = place.wide = {};
}

// ---- flows ----

void RailSet::settle(std::uint64_t number, Time now) {
  asked_ = number;
  opening_ = !broken_ && !closing_;
  open_more(now);
}

std::size_t RailSet::open_more(Time now) {
  if (!opening_) return 0;
  opening_ = false;
  for (auto& rail : rails_) {
    const Result<bool> all = rail->open_flows(kNeighboursAtOnce, now);
    if (!all.ok()) {
      break_off(all.status());
      return 1;
    }
    opening_ = opening_ || !*all;
  }
  look_if_settled(now);
  return 1;
}

void RailSet::look_if_settled(Time now) {
  if (broken_ || closing_ || opening_ || settled_ == asked_) return;
  RailsOwner::Settled settled{.number = asked_, .transports = transports_, .metrics = metrics_};
  for (const auto& rail : rails_) {
    if (!rail->connected()) return;
    settled.neighbours = std::max(settled.neighbours, rail->neighbours());
    settled.vacant_slices += rail->engine().vacant_slices();
  }
  settled_ = asked_;
  owner_.rails_settled(context_.lane, settled, now);
}

ports::FrameSink& RailSet::flow_up(RailIndex rail, const ports::FlowKey& key, ports::Flow& flow, Time now) {
  const ports::FlowStats stats = flow.stats();
  transports_.insert(stats.protection.empty() ? stats.transport
                                              : fmt::format("{} ({})", stats.transport, stats.protection));
  ports::FrameSink& sink = at(rail).flow_up(key, flow, stats, now);
  look_if_settled(now);
  return sink;
}

void RailSet::flow_resumed(RailIndex rail, const ports::FlowKey& key, const ports::Flow& flow) {
  at(rail).report_flow(key, flow.stats());
}

void RailSet::flow_down(RailIndex rail, const ports::FlowKey& key, const Status& cause, Time now) {
  const RailsOwner::Lost lost = at(rail).flow_down(key);
  if (closing_) return look_if_closed(now);
  const std::string &name = spec_.hosts[key.peer.value].name, &self = spec_.hosts[spec_.credentials.self.value].name;
  const std::string where = by_index_.size() == 1 ? "" : fmt::format(" on rail {}", rail.value);
  const std::string broken = lost == RailsOwner::Lost::kNeighbour
                                 ? fmt::format("connection of host {} to host {}{} was lost", self, name, where)
                                 : fmt::format("no connection of host {} to host {}{} for {}", self, name, where,
                                               at(rail).classes_down(key.peer));
  const Status named =
      cause.ok()
          ? Status(Code::kUnavailable, fmt::format("host {} closed its connection to host {}{}", name, self, where),
                   fmt::format("job '{}'", spec_.name), "look at that host's daemon log for why it left the job")
          : Status(cause.code(), fmt::format("{}: {}", broken, cause.what()), cause.where(), cause.fix());
  owner_.rails_lost(lost, named, now);
}

// ---- operations ----

void RailSet::feed_all(const engine::Event& event, Time now) {
  for (auto& rail : rails_) rail->feed(event, now);
}

// What a rail has no slice of it completes at once.
void RailSet::start(TensorId tensor, Sequence sequence, bool in_parts, Time now) {
  if (broken_ || closing_) return;
  Place& place = places_[tensor.value];
  place.rails_left = static_cast<std::uint8_t>(rails_.size());
  place.ok = true;
  engine::Event event{.kind = engine::Event::Kind::kTensorReady};
  event.tensor_ready = {tensor, sequence, place.buffer, place.wide, in_parts};
  feed_all(event, now);
}

void RailSet::part_ready(const engine::PartReady& part, Time now) {
  if (broken_ || closing_) return;
  feed_all({.kind = engine::Event::Kind::kPartReady, .part_ready = part}, now);
}

void RailSet::boost(TensorId tensor, Sequence sequence, Time now) {
  if (broken_ || closing_) return;
  feed_all({.kind = engine::Event::Kind::kBoost, .boost = {tensor, sequence}}, now);
}

void RailSet::offer(TensorId tensor, Time now) {
  if (broken_ || closing_) return;
  at(RailIndex(0)).feed({.kind = engine::Event::Kind::kOffer, .offer = {tensor}}, now);
}

// ---- messages ----

void RailSet::post(const MessagePost& post, Time now) {
  if (broken_ || closing_) return;
  at(RailIndex(0)).post(post, now);
  tell_messages(now);
}

void RailSet::open_flows_to(HostIndex peer, Time now) {
  if (broken_ || closing_) return;
  if (const Status opened = at(RailIndex(0)).open_flows_to(peer, now); !opened.ok()) break_off(opened);
}

void RailSet::tell_messages(Time now) {
  for (engine::MessageDone done; desk_->messages().next_done(&done);) owner_.rails_message_done(done, now);
}

void RailSet::rail_completed(const engine::Complete& complete, Time now) {
  Place& place = places_[complete.tensor.value];
  TL_ASSERT(place.rails_left > 0);
  place.ok = place.ok && complete.ok;
  if (complete.last_peer != Time()) {
    if (place.last_peer == Time() || complete.first_peer < place.first_peer) place.first_peer = complete.first_peer;
    place.last_peer = std::max(place.last_peer, complete.last_peer);
  }
  if (--place.rails_left > 0) return;
  const engine::Complete all{complete.tensor, complete.sequence, place.ok, place.first_peer, place.last_peer};
  place.first_peer = place.last_peer = Time();
  owner_.rails_completed(all, now);
}

// ---- work and egress ----

// The rail whose next block of arithmetic is the most urgent one, and its class; the first of equals.
JobRail* RailSet::most_urgent(std::optional<ClassId>* best) const {
  JobRail* found = nullptr;
  if (closing_) return found;
  for (const auto& rail : rails_) {
    const std::optional<ClassId> cls = rail->next_work();
    if (!cls || (*best && **best <= *cls)) continue;
    found = rail.get();
    *best = cls;
  }
  return found;
}

std::optional<ClassId> RailSet::next_work() const {
  std::optional<ClassId> cls;
  most_urgent(&cls);
  const std::optional<ClassId> copy = next_copy();
  return !cls || (copy && *copy < *cls) ? copy : cls;
}

std::optional<ClassId> RailSet::next_copy() const {
  return desk_ != nullptr && !closing_ ? desk_->messages().next_copy() : std::nullopt;
}

// Sums go before copies of messages of the same class: more waits for them.
bool RailSet::choose_block(Time now, std::optional<ClassId> other, JobBlock& block) {
  std::optional<ClassId> cls;
  JobRail* rail = most_urgent(&cls);
  const std::optional<ClassId> copy = next_copy();
  const bool copies = copy && (!cls || *copy < *cls);
  if (copies) cls = copy;
  if (!cls || (other && *other < *cls)) return false;
  ++under_way_;
  if (copies) {
    block.rail = RailIndex(0);
    desk_->choose_block(block, spec_.credentials.job, now);
  } else {
    rail->choose_block(now, block);
  }
  return true;
}

void RailSet::block_done(const JobBlock& block, Time now) {
  TL_ASSERT(under_way_ > 0);
  --under_way_;
  if (closing_) return look_if_closed(now);
  if (!block.message) return at(*block.rail).block_done(block, now);
  desk_->block_done(block);
  tell_messages(now);
}

JobRail::Sent RailSet::send(RailIndex rail, ClassId cls, Bytes credit, std::uint64_t budget, Time now) {
  if (closing_ || !has(rail)) return {};
  return at(rail).send(cls, credit, budget, now);
}

std::optional<Time> RailSet::promotion(Time now) const {
  std::optional<Time> first;
  for (const auto& rail : rails_) {
    const std::optional<Time> promotion = rail->engine().promotion(now);
    if (promotion && (!first || *promotion < *first)) first = promotion;
  }
  return first;
}

// ---- the end ----

void RailSet::close(bool abort, Time now) {
  if (drained_) return;
  if (abort && !std::exchange(aborted_, true)) {
    feed_all({.kind = engine::Event::Kind::kAbort}, now);
    if (desk_ != nullptr) desk_->messages().abort();
  }
  closing_ = true;
  opening_ = false;
  for (auto& rail : rails_) rail->close();
  look_if_closed(now);
}

// No buffer is touched any more once the flows are closed and no block of work is under way (law 7).
void RailSet::look_if_closed(Time now) {
  if (closed_ || under_way_ > 0) return;
  if (std::ranges::any_of(rails_, [](const auto& r) { return !r->closed(); })) return;
  closed_ = true;
  owner_.rails_closed(now);
}

void RailSet::drain(Time now) {
  for (auto& rail : rails_) rail->drained();
  if (aborted_) feed_all({.kind = engine::Event::Kind::kDrained}, now);
  if (aborted_ && desk_ != nullptr) {
    desk_->messages().drained();
    tell_messages(now);
  }
  for (auto& rail : rails_) rail->publish_counts();
  drained_ = true;
  owner_.rails_drained(now);
}

}  // namespace tensorlane::host
