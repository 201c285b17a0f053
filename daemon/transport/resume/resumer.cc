#include "daemon/transport/resume/resumer.h"

#include <fmt/format.h>
#include <sodium.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace tensorlane::resume {
namespace {

// Before the next attempt where the last connection was of no use.
constexpr Duration kIdleBackoff = milliseconds(10);
// A connection that nothing was sent on has been of use when it stood for so long.
constexpr Duration kStood = seconds(1);

std::uint64_t random_identity() {
  std::uint64_t identity = 0;
  while (identity == 0) ::randombytes_buf(&identity, sizeof identity);
  return identity;
}

}  // namespace

void Resumer::note_place(const ports::FlowKey& key, const std::string& address, std::uint16_t data_port) {
  if (connector_.jobs().find(key.job)->resume_within().value > 0) places_[key] = {address, data_port};
}

void Resumer::forget(const ports::FlowKey& key) {
  places_.erase(key);
  std::erase_if(lost_, [&key](const Resumable* flow) { return flow->key() == key; });
}

void Resumer::forget_job(JobId job) {
  std::erase_if(places_, [job](const auto& place) { return place.first.job == job; });
  std::erase_if(agreed_, [job](const auto& agreed) { return agreed.first.job == job; });
}

// ---- losing ----

void Resumer::lost(Resumable& flow, Status cause, Time now) {
  // A connection that is lost again before anything has come of it gets no time of its own. One that has outlived that
  // time does, and one of which nothing came because nothing was to be sent.
  const bool stood = flow.idle() && now - flow.resumed_at >= kStood;
  const bool first = stood || now >= flow.lost_deadline || flow.moved() != flow.lost_moved;
  if (first) {
    flow.lost_deadline = now + flow.job().resume_within();
    flow.lost_moved = flow.moved();
  }
  flow.redial_from = first ? now : now + kIdleBackoff;
  spdlog::warn("{}: it is made anew", cause.to_string());
  flow.lost_cause = std::move(cause);
  lost_.push_back(&flow);
  next_deadline_ = std::min(next_deadline_, flow.lost_deadline);
  connector_.waker().kick();
}

void Resumer::dial(Resumable& flow, Time now) {
  const auto place = places_.find(flow.key());
  if (place == places_.end()) return;  // the peer comes to us
  const Status dialling = connector_.redial(flow.key(), place->second.address, place->second.data_port,
                                            std::max(now, flow.redial_from), flow.lost_deadline);
  if (!dialling.ok()) give_up(flow, dialling);
}

void Resumer::give_up(Resumable& flow, const Status& why) {
  const Status& lost = flow.lost_cause;
  flows_.end_flow(flow, {lost.code(), fmt::format("{}, and could not be resumed: {}", lost.what(), why.what()),
                         lost.where(), why.fix().empty() ? lost.fix() : why.fix()});
}

void Resumer::give_up_late(Time now) {
  if (now < next_deadline_) return;
  next_deadline_ = handshake::Connector::never();
  std::vector<Resumable*> late;
  for (Resumable* flow : lost_) {
    if (flow->lost_deadline > now) {
      next_deadline_ = std::min(next_deadline_, flow->lost_deadline);
    } else {
      late.push_back(flow);
    }
  }
  for (Resumable* flow : late) {
    give_up(*flow, {Code::kTimedOut,
                    fmt::format("no new connection within {:.1f} s", to_seconds(flow->job().resume_within()))});
  }
}

// ---- agreeing ----

FlowOffer Resumer::offer_flow(const ports::FlowKey& key) {
  Resumable* flow = flows_.find_flow(key);
  if (flow == nullptr) return {{random_identity(), 0}};
  return {flow->identity(), flow->delivered(), ++flow->offers};
}

Result<FlowOffer> Resumer::answer_flow(const ports::FlowKey& key, const FlowParameters& peer) {
  if (peer.to == 0) {  // the peer has no flow: it begins, or has started again
    const FlowIdentity identity{random_identity(), peer.from};
    agreed_[key] = identity;
    return FlowOffer{identity};
  }
  if (Resumable* flow = flows_.find_flow(key); flow != nullptr) {
    if (flow->identity() == FlowIdentity{peer.to, peer.from}) {
      if (flow->connected()) flows_.lose_connection(*flow, flow->broken(Code::kUnavailable, "was lost by the peer"));
      if (!flow->settled())
        return Status(Code::kInProgress, "the flow to resume is not at the end of what has come", {}, "ask again");
      return FlowOffer{flow->identity(), flow->delivered(), ++flow->offers};
    }
  } else if (const auto agreed = agreed_.find(key);
             agreed != agreed_.end() && agreed->second == FlowIdentity{peer.to, peer.from}) {
    return FlowOffer{agreed->second};  // it came up there, and is about to here
  }
  return Status(Code::kUnavailable, "the flow to resume is not here any more", {}, kLookThere);
}

bool Resumer::can_resume(const ports::FlowKey& key, ledger::Number delivered) const {
  const Resumable* flow = flows_.find_flow(key);
  return flow != nullptr && flow->can_resume(delivered);
}

Resumer::Next Resumer::connected(const ports::FlowKey& key, const FlowExchange* exchange) {
  Resumable* flow = flows_.find_flow(key);
  if (exchange != nullptr) {
    const FlowOffer& mine = exchange->mine();
    if (mine.number != 0) {
      // Its flow has ended, or another connection has been agreed on since, or has been in use.
      if (flow == nullptr || flow->connected() || mine.number != flow->offers) return Next::kIgnore;
      ++flow->offers;
      return Next::kResume;
    }
    // It came up on another connection after this one had been agreed on: the peer asks again.
    if (flow != nullptr && mine.identity == flow->identity()) return Next::kIgnore;
  }
  agreed_.erase(key);
  return Next::kBegin;
}

void Resumer::resumed(Resumable& flow, std::uint64_t again, Time now) {
  flow.resumed_at = now;
  std::erase(lost_, &flow);
  ++flows_resumed_;
  frames_resent_ += again;
  spdlog::info("{} was resumed: {} frames are sent again", flow.name(), again);
}

void Resumer::count(ports::TransportCounters& counters) const {
  counters.flows_resumed = flows_resumed_;
  counters.frames_resent = frames_resent_;
}

}  // namespace tensorlane::resume
