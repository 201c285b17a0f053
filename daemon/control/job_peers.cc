// One job among its peers: messages between members, heartbeats, aborts.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>

#include "daemon/control/job.h"

namespace tensorlane::control {

using nlohmann::json;

// ---- sending ----

void Job::need(const std::string& host) {
  if (needed_.insert(host).second) environment_.need(host);
}

Message Job::message(MessageType type, json body) const {
  return Message{type, id_, epoch_, 0, std::move(body)};
}

void Job::send_member(const std::string& host, MessageType type, json body) {
  Message m = message(type, std::move(body));
  if (is_sequenced(type)) m.number = ++sent_[host];
  if (environment_.send(host, m) || state_ == State::kClosing) return;
  fail_job(Status(Code::kUnavailable, fmt::format("host {} takes no control messages", host), where(),
                  "look at the daemon there"));
}

void Job::send_others(MessageType type, const json& body) {
  for (const RosterHost& member : roster_.hosts) {
    if (member.name != rules_.host) send_member(member.name, type, body);
  }
}

// To everyone who may not know yet. Everybody who learns of an abort does this once, so the news gets around a link
// that is cut in one direction.
void Job::flood_abort() {
  const json body = json::array({status_to_json(cause_)});
  if (state_ != State::kGathering) {
    for (const RosterHost& member : roster_.hosts) {
      if (member.name != rules_.host) environment_.send(member.name, message(MessageType::kAbort, body));
    }
  } else if (i_lead()) {
    for (const auto& [host, follower] : followers_) {
      if (follower.proven) environment_.send(host, message(MessageType::kAbort, body));
    }
  } else if (!leader_nonce_.empty()) {
    environment_.send(leader_, message(MessageType::kAbort, body));
  }
}

// Carries out what this host said to itself and the failures that were found on the way. Not recursive: what it causes
// is appended.
void Job::settle() {
  if (settling_) return;
  settling_ = true;
  while (!failures_.empty() || !to_self_.empty()) {
    if (!failures_.empty()) {
      const Status cause = std::move(failures_.front());
      failures_.pop_front();
      do_fail(cause);
      continue;
    }
    const auto [type, body] = std::move(to_self_.front());
    to_self_.pop_front();
    if (!dispatch(rules_.host, type, body)) {
      fail_job(
          Status(Code::kInternal,
                 fmt::format("message {} of host {} to itself makes no sense", static_cast<int>(type), rules_.host),
                 where(), "report this"));
    }
  }
  settling_ = false;
}

// ---- receiving ----

bool Job::listens_to(const std::string& host) const {
  return host == leader_ || is_member(host) || (state_ == State::kGathering && followers_.contains(host));
}

bool Job::handle(const std::string& from, const Message& m, Time now) {
  now_ = now;
  const bool from_leader = from == leader_ && !i_lead();
  bool understood = false;
  switch (m.type) {
    case MessageType::kJoin:
      understood = handle_join(from, m);
      break;
    case MessageType::kProof:
      understood = handle_proof(from, m);
      break;
    case MessageType::kChallenge:
      understood = from_leader && handle_challenge(m);
      break;
    case MessageType::kRefuse:
      understood = from_leader && handle_refuse(m);
      break;
    case MessageType::kRoster:
      understood = from_leader && handle_roster(m);
      break;
    default: {
      if (m.epoch != epoch_) {
        ++counters_.dropped_stale;
        return true;
      }
      understood = m.type == MessageType::kAbort ? handle_abort(from, m) : handle_member(from, m);
    }
  }
  settle();
  return understood;
}

bool Job::handle_abort(const std::string& from, const Message& m) {
  const auto follower = followers_.find(from);
  const bool has_a_say = state_ == State::kGathering
                             ? from == leader_ || (follower != followers_.end() && follower->second.proven)
                             : is_member(from);
  ItemReader in(m.body);
  const Status cause = status_from_json(in.array());
  if (!has_a_say || !in.done() || cause.ok()) return false;
  fail(cause, now_);
  return true;
}

bool Job::handle_member(const std::string& from, const Message& m) {
  if (state_ == State::kClosing || state_ == State::kDone) return true;
  if (state_ == State::kGathering)
    return m.type == MessageType::kHeartbeat;  // the roster is on its way to us, others have it already
  if (!is_member(from) || from == rules_.host) return false;
  liveness_->heard(from, now_);
  std::uint64_t& received = received_[from];
  if (is_sequenced(m.type)) ++received;
  if (m.number != received) {
    fail(
        Status(Code::kUnavailable, fmt::format("control messages from host {} to host {} were lost", from, rules_.host),
               where(), "look at the network between the hosts, then restart the job from a checkpoint"),
        now_);
    return true;
  }
  if (m.type == MessageType::kHeartbeat) {
    const HostIndex host(static_cast<std::uint16_t>(*roster_.index_of(from)));
    return progress_->heard(host, m.body, now_);
  }
  if (dispatch(from, m.type, m.body)) return true;
  fail(Status(Code::kCorrupt,
              fmt::format("host {} sent a control message (type {}) that makes no sense to host {}", from,
                          static_cast<int>(m.type), rules_.host),
              where(), "run the same version of tensorlaned on all hosts"),
       now_);
  return false;
}

bool Job::dispatch(const std::string& from, MessageType type, const json& body) {
  switch (type) {
    case MessageType::kConnected:
      return handle_connected(from);
    case MessageType::kGo:
      if (from != leader_ || state_ != State::kConnecting) return false;
      go();
      return true;
    case MessageType::kLate:
      return handle_late(body);
    case MessageType::kAwaited:
      return handle_awaited(body);
    case MessageType::kFlows:
      return handle_flows(from, body);
    case MessageType::kLeft:
      return handle_left(from, body);
    case MessageType::kStandstill:
      return handle_standstill(from, body);
    case MessageType::kThresholds:
      return from == leader_ && handle_thresholds(body);
    default:
      return registrar_->handle(from, type, body, now_);
  }
}

bool Job::handle_connected(const std::string& from) {
  if (!i_lead() || state_ != State::kConnecting) return false;
  connected_.insert(from);
  if (connected_.size() < roster_.hosts.size()) return true;
  to_all_hosts(MessageType::kGo, json::array());
  return true;
}

bool Job::handle_late(const json& body) {
  ItemReader in(body);
  const std::uint32_t rank = in.u32();
  const std::string what = in.text(protocol::kMaxName + 64);
  const Duration waited(static_cast<std::int64_t>(in.number(std::uint64_t{1} << 62)));
  if (!in.done() || rank >= roster_.world_size) return false;
  note_late(rank, what, waited);
  return true;
}

bool Job::handle_awaited(const json& body) {
  ItemReader in(body);
  const TensorId tensor(in.u32());
  const Sequence sequence(in.number(std::uint64_t{1} << 62));
  const Duration waited(static_cast<std::int64_t>(in.number(std::uint64_t{1} << 62)));
  if (!in.done() || tensor.value >= registrar_->plan().tensors.size()) return false;
  environment_.lane(id_, [=, id = id_](ports::LanePort& lane) { return lane.awaited(id, tensor, sequence, waited); });
  return true;
}

bool Job::handle_flows(const std::string& from, const json& body) {
  if (!ItemReader(body).done()) return false;
  const HostIndex peer(static_cast<std::uint16_t>(*roster_.index_of(from)));
  environment_.lane(id_, [peer, id = id_](ports::LanePort& lane) { return lane.open_flows(id, peer); });
  return true;
}

bool Job::handle_thresholds(const json& body) {
  if (body.size() >= kMaxDataClasses) return false;
  ItemReader in(body);
  std::vector<double> thresholds;
  for (std::size_t i = 0; i < body.size(); ++i) thresholds.push_back(in.real());
  if (!in.done() || !std::ranges::is_sorted(thresholds, std::greater<>())) return false;
  environment_.lane(id_, [id = id_, thresholds](ports::LanePort& lane) { return lane.use_thresholds(id, thresholds); });
  return true;
}

bool Job::handle_left(const std::string& from, const json& body) {
  ItemReader in(body);
  const std::uint32_t rank = in.u32();
  if (!in.done() || rank >= roster_.world_size || roster_.host_of(rank) != from) return false;
  rank_left(rank);
  return true;
}

// ---- time ----

void Job::tick_running() {
  if (liveness_->due(now_)) {
    for (std::uint16_t host = 0; host < roster_.hosts.size(); ++host) {
      const std::string& name = roster_.hosts[host].name;
      if (name == rules_.host) continue;
      Message heartbeat = message(MessageType::kHeartbeat, progress_->heartbeat(HostIndex(host)));
      heartbeat.number = sent_[name];
      environment_.offer(name, heartbeat);
    }
  }
  const Liveness::Verdict verdict = liveness_->check(now_);
  const double detection = to_seconds(liveness_->detection());
  if (verdict.own_pause && roster_.hosts.size() > 1) {
    fail_job(Status(Code::kUnavailable,
                    fmt::format("the daemon of host {} stood still for {:.1f} s (detection time {:g} s)", rules_.host,
                                to_seconds(*verdict.own_pause), detection),
                    fmt::format("job '{}'", name_),
                    "look for what stopped or starved it, then restart the job from a checkpoint"));
  } else if (verdict.dead) {
    const std::string& dead = *verdict.dead;
    fail_job(Status(Code::kUnavailable,
                    fmt::format("host {0} has not been heard by {1} for {2:.1f} s (detection time {3:g} s): its daemon "
                                "is dead or stopped, or the "
                                "network from {0} to {1} is cut",
                                dead, rules_.host, to_seconds(verdict.silence), detection),
                    fmt::format("job '{}'", name_),
                    fmt::format("look at the daemon on {}, then restart the job from a checkpoint", dead)));
  }
  if (state_ == State::kRunning) check_progress();
  if (state_ == State::kConnecting && now_ >= deadline_) fail_job(connecting_timed_out());
  registrar_->tick(now_);
}

Status Job::connecting_timed_out() const {
  std::string missing;
  for (const RosterHost& member : roster_.hosts) {
    if (i_lead() && !connected_.contains(member.name)) missing += (missing.empty() ? "" : ", ") + member.name;
  }
  return Status(Code::kTimedOut,
                fmt::format("{} did not get ready for the job within {:.1f} s", missing.empty() ? "some host" : missing,
                            to_seconds(patience_)),
                where(), "look at the logs of the daemons there" + impatient_text());
}

}  // namespace tensorlane::control
