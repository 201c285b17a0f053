// One job before its roster is known: followers prove themselves to the leader and bring their ranks.
//
//   follower                                leader
//     kJoin(nonce a)              ->
//                                 <-          kChallenge(nonce b), with the epoch
//     kProof(HMAC, claims)        ->          ... until the world is complete
//                                 <-          kRoster(HMAC, hosts)
// The follower repeats the exchange until the roster comes, so a message that is lost, or a leader that starts later,
// costs only time.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "daemon/control/job.h"
#include "daemon/control/proof.h"

namespace tensorlane::control {
namespace {

using nlohmann::json;

constexpr const char* kStartMissing =
    "start the missing ranks as the same user, with the same job name, MASTER_ADDR and MASTER_PORT, on hosts whose "
    "daemon answers `tensorlane status`";
constexpr Duration kJoinEvery = milliseconds(200);
constexpr std::int64_t kLostJoins = 5;  // may be lost or late, however short the detection time
constexpr std::size_t kMaxNameBytes = protocol::kMaxName;
constexpr Duration kFirstPause = seconds(1), kLastPause = seconds(8);  // after wrong proofs of one host
constexpr std::uint64_t kMaxDetection = 3'600'000'000'000;             // an hour, in nanoseconds

json keys_to_json(const ports::PairKeys& keys) {
  json::binary_t::container_type bytes(keys.size() * ports::kPairKeyBytes);
  if (!bytes.empty()) std::memcpy(bytes.data(), keys.data(), bytes.size());
  return json::binary(std::move(bytes));
}

ports::PairKeys keys_from_bytes(std::span<const std::uint8_t> bytes) {
  ports::PairKeys keys(bytes.size() / ports::kPairKeyBytes);
  if (!keys.empty()) std::memcpy(keys.data(), bytes.data(), bytes.size());
  return keys;
}

// "job 'none' of user 1000, led by host h0, port 29500"
std::string key_text(const JobKey& key) {
  return fmt::format("job '{}' of user {}, led by host {}{}", key.name, key.uid, key.leader,
                     key.leader_port == 0 ? "" : fmt::format(", port {}", key.leader_port));
}

}  // namespace

// Its ranks are not here any more: the world is not complete without them. It may come again.
void Job::forget_silent_followers() {
  const Duration patience = std::max(rules_.detection, kJoinEvery * kLostJoins);
  for (auto& [host, follower] : followers_) {
    if (!follower.proven || now_ - follower.heard < patience) continue;
    log(spdlog::level::warn, "job '{}': host {} has fallen silent while the job waits for its ranks", name_, host);
    follower.proven = false;
    follower.lost = true;
    follower.nonce.clear();
    gathering_.forget(host);
  }
}

void Job::tick_gathering() {
  if (!i_lead() && now_ >= next_join_) send_join();
  if (i_lead()) forget_silent_followers();
  if (waits_for_names_ && gathering_.complete()) {  // a host may have begun anew since
    lead();
    if (state_ != State::kGathering) return;
  }
  // A leader that has answered knows more than we do; it gets a moment to say so.
  const Duration most = impatient_ ? seconds(1) : Duration(rules_.join_timeout.value / 10) + seconds(1);
  const Duration grace = leader_nonce_.empty() ? Duration(0) : most;
  if (now_ >= deadline_ + grace) fail(gathering_timed_out(), now_);
}

// Behind what else may be done.
std::string Job::impatient_text() const {
  if (!impatient_) return "";
  return fmt::format(", or raise TENSORLANE_TIMEOUT of rank {}, which waits no longer", *impatient_);
}

Status Job::gathering_timed_out() const {
  const double waited = to_seconds(patience_);
  const std::string impatient = impatient_text();
  if (i_lead()) {
    std::string refused;
    for (const auto& [host, follower] : followers_) {
      if (const std::string nameless = unresolved(host); !nameless.empty()) refused += "; " + nameless;
      if (follower.lost)
        refused += fmt::format("; host {} came and has not been heard for {:.1f} s: look at the daemon there", host,
                               to_seconds(now_ - follower.heard));
    }
    for (const auto& [host, why] : refused_) refused += fmt::format("; host {} was refused: {}", host, why);
    const auto missing = gathering_.missing();
    return Status(Code::kTimedOut,
                  fmt::format("{} of {} {} not come within {:.1f} s", ranks_text(missing), gathering_.world_size(),
                              missing.size() == 1 ? "has" : "have", waited),
                  fmt::format("{}; here: {}{}{}", key_text(key_), gathering_.arrived_text(), refused, others_text()),
                  std::string(kStartMissing) + impatient);
  }
  const std::string place = fmt::format("{}; here: {}{}", key_text(key_), gathering_.arrived_text(), others_text());
  if (!environment_.reachable(leader_)) {
    const fabric::Host* host = rules_.fabric->find_host(leader_);
    if (const std::string nameless = unresolved(leader_); !nameless.empty()) {
      return Status(Code::kUnavailable, nameless, place,
                    "correct it in the fabric file, or the name in DNS or /etc/hosts");
    }
    return Status(
        Code::kUnavailable,
        fmt::format("the daemon of the leader {} at {}:{} cannot be reached within {:.1f} s", leader_,
                    host->tcp_address(), host->control_port, waited),
        place,
        "start tensorlaned there, and check that address and public_key in the fabric files of both hosts agree" +
            impatient);
  }
  if (leader_nonce_.empty()) {
    return Status(Code::kTimedOut,
                  fmt::format("no rank of the job has come on the leader {} within {:.1f} s", leader_, waited), place,
                  "start rank 0 there as the same user, with the same job name and MASTER_PORT" + impatient);
  }
  return Status(Code::kTimedOut,
                fmt::format("the leader {} has not completed the job within {:.1f} s", leader_, waited), place,
                std::string(kStartMissing) + impatient);
}

std::string Job::others_text() const {
  std::string text;
  for (const JobKey& other : environment_.alike(key_)) text += "; ranks wait here, too, for " + key_text(other);
  return text;
}

void Job::hear_other_key(const std::string& from, const JobKey& key) {
  if (state_ != State::kGathering || !i_lead() || key.name != name_ || key == key_) return;
  refused_[from] = "its ranks are of " + key_text(key);
}

std::optional<JobKey> key_of_join(const Message& join, const std::string& leader) {
  ItemReader in(join.body);
  JobKey key;
  key.uid = in.u32();
  key.leader_port = static_cast<std::uint16_t>(in.number(0xffff));
  key.leader = leader;
  key.name = in.text(kMaxNameBytes);
  in.text(kNonceText);
  if (!in.done()) return std::nullopt;
  return key;
}

void Job::hear_another_version(const std::string& from, const Status& why, Time now) {
  if (state_ != State::kGathering) return;
  now_ = now;
  if (i_lead()) {
    refused_[from] = fmt::format("{}; {}", why.what(), why.fix());
    need(from);
    refuse(from, "", why);  // all that it will read is the version, the first item of every message
  } else if (from == leader_) {
    fail(Status(Code::kVersionMismatch, fmt::format("the leader {} is of another version: {}", leader_, why.what()),
                where(), why.fix()),
         now);
  }
}

void Job::send_join() {
  need(leader_);
  next_join_ = now_ + kJoinEvery;
  environment_.offer(
      leader_, Message{MessageType::kJoin, id_, Epoch(0), 0, json::array({key_.uid, key_.leader_port, name_, nonce_})});
}

void Job::refuse(const std::string& host, const std::string& nonce, const Status& status) {
  environment_.offer(host, message(MessageType::kRefuse, json::array({nonce, status_to_json(status)})));
}

bool Job::handle_join(const std::string& from, const Message& m) {
  ItemReader in(m.body);
  const auto uid = in.u32(), port = in.u32();
  const std::string name = in.text(kMaxNameBytes), nonce = in.text(kNonceText);
  const bool ours = uid == key_.uid && port == key_.leader_port && name == name_;
  if (!in.done() || !ours || nonce.size() != kNonceText || !i_lead() || from == rules_.host) return false;
  need(from);
  if (state_ == State::kGathering) {
    Follower& follower = followers_[from];
    follower.heard = now_;
    if (now_ < follower.answer_from) return true;  // it repeats itself
    if (follower.nonce != nonce) {
      follower.nonce = nonce;
      follower.leader_nonce = random_nonce();
      follower.proven = false;
      gathering_.forget(from);
    }
    environment_.offer(from, message(MessageType::kChallenge, json::array({nonce, follower.leader_nonce})));
  } else if (state_ == State::kConnecting || state_ == State::kRunning) {
    // A member that asks again has not got the roster. One that asks anew has lost the job: its silence will end it
    // here, then it may join.
    if (!is_member(from)) {
      refuse(from, nonce,
             Status(Code::kAlreadyExists, "a job of this name is running", where(),
                    "wait until it ends, or set another TENSORLANE_JOB or MASTER_PORT"));
    } else if (followers_[from].nonce == nonce) {
      send_roster(from);
    }
  }
  return true;
}

bool Job::handle_challenge(const Message& m) {
  ItemReader in(m.body);
  const std::string nonce = in.text(kNonceText), leader_nonce = in.text(kNonceText);
  if (!in.done() || leader_nonce.size() != kNonceText || m.epoch.value == 0) return false;
  if (nonce != nonce_ || state_ != State::kGathering) return true;  // of an earlier exchange
  epoch_ = m.epoch;
  leader_nonce_ = leader_nonce;
  const std::string proof = prove(secret_, Role::kFollower, nonce_, leader_nonce_, key_.text(), epoch_, rules_.host);
  environment_.offer(leader_, message(MessageType::kProof, json::array({nonce_, proof, claims_to_json(local_claims()),
                                                                        settings_to_json(settings_with(leader_))})));
  return true;
}

bool Job::handle_proof(const std::string& from, const Message& m) {
  ItemReader in(m.body);
  const std::string nonce = in.text(kNonceText), proof = in.text(kNonceText);
  const auto claims = claims_from_json(in.array());
  auto settings = settings_from_json(in.array());
  if (!in.done() || !claims || !settings || !i_lead()) return false;
  const auto it = followers_.find(from);
  if (it == followers_.end() || nonce.empty() || it->second.nonce != nonce || state_ != State::kGathering)
    return true;  // of an earlier exchange
  Follower& follower = it->second;
  if (now_ < follower.answer_from) return true;
  if (secret_.empty() || !equal_in_constant_time(proof, prove(secret_, Role::kFollower, nonce, follower.leader_nonce,
                                                              key_.text(), epoch_, from))) {
    refuse_wrong_proof(from, nonce, follower);
    return true;
  }
  follower.proven = true;
  follower.lost = false;
  follower.settings = std::move(*settings);
  refused_.erase(from);
  if (const Status status = gathering_.arrive(from, *claims); !status.ok()) {
    fail(status, now_);
  } else if (gathering_.complete()) {
    lead();
  }
  return true;
}

// One nonce is good for one proof, and the next one comes after a pause.
void Job::refuse_wrong_proof(const std::string& from, const std::string& nonce, Follower& follower) {
  const std::uint32_t wrong = follower.wrong_proofs + 1;
  const Duration pause(std::min(kFirstPause.value << std::min(wrong - 1, 8u), kLastPause.value));
  follower = {};
  follower.wrong_proofs = wrong;
  follower.answer_from = now_ + pause;
  gathering_.forget(from);
  ++counters_.refused_secrets;
  refused_[from] = "its secret is not the job's";
  log(spdlog::level::warn, "job '{}': host {} was refused: {} ({} wrong proofs by now)", name_, from, refused_[from],
      wrong);
  refuse(from, nonce,
         Status(Code::kPermissionDenied,
                fmt::format("the secret of the ranks on host {} is not that of the leader {}", from, leader_),
                fmt::format("job '{}'", name_), "set the same TENSORLANE_JOB_SECRET on every rank"));
}

// What this host has that another host of the job must have alike, with what the fabric file says of the two.
Settings Job::settings_with(const std::string& other) const {
  Settings settings = rules_.settings;
  for (const std::string& name : {rules_.host, other}) {
    const fabric::Host* host = rules_.fabric->find_host(name);
    if (host == nullptr) continue;
    settings["fabric.yaml data_port of " + name] = fmt::format("{}", host->data_port);
    settings["fabric.yaml rails of " + name] = fmt::format("{}", host->rails());
  }
  return settings;
}

// Law 22. Before flows are made: what they carry, and whether they can be made, depends on it.
Status Job::check_settings() const {
  std::string all;
  const auto add = [&](const std::string& differ) { all += (all.empty() || differ.empty() ? "" : "; ") + differ; };
  // Keys that the leader does not have: who has one first.
  std::map<std::string, std::pair<std::string, std::string>> first;
  for (const auto& [host, follower] : followers_) {
    if (!follower.proven) continue;
    const Settings ours = settings_with(host);
    add(differences(leader_, ours, host, follower.settings));
    for (const auto& [key, value] : follower.settings) {
      if (ours.contains(key)) continue;
      const auto& [other, theirs] = first.try_emplace(key, host, value).first->second;
      add(differences(other, {{key, theirs}}, host, {{key, value}}));
    }
  }
  if (all.empty()) return {};
  return Status(Code::kMismatch, "hosts differ in what must be alike: " + all, fmt::format("job '{}'", name_),
                "give them the same fabric file and make these keys alike, then start their daemons again");
}

// Why the addresses of a host do not resolve here; empty where they do, or nobody has asked.
std::string Job::unresolved(const std::string& host) const {
  for (const std::string& address : rules_.fabric->find_host(host)->addresses.at("tcp")) {
    if (const std::string why = environment_.resolver().why_not(address); !why.empty())
      return fmt::format("the address '{}' of host {} does not resolve here ({})", address, host, why);
  }
  return {};
}

// Data flows go to numbers: the leader's are everybody's. False while some name does not resolve: tick() comes again.
bool Job::resolve_addresses(Roster* roster) {
  waits_for_names_ = false;
  for (RosterHost& member : roster->hosts) {
    for (std::string& address : member.addresses) {
      const std::optional<std::string> numeric = environment_.resolver().find(address);
      waits_for_names_ = waits_for_names_ || !numeric;
      if (numeric) address = *numeric;
    }
  }
  return !waits_for_names_;
}

// The world is complete.
void Job::lead() {
  if (const Status status = check_settings(); !status.ok()) return fail(status, now_);
  Roster roster = gathering_.roster();
  if (const Status status = add_endpoints(*rules_.fabric, name_, &roster); !status.ok()) return fail(status, now_);
  if (!resolve_addresses(&roster)) return;
  ports::PairKeys keys =
      pair_keys(root_, HostIndex(static_cast<std::uint16_t>(*roster.index_of(rules_.host))), roster.hosts.size());
  begin(std::move(roster), rules_.detection, std::move(keys));
}

bool Job::handle_refuse(const Message& m) {
  ItemReader in(m.body);
  const std::string nonce = in.text(kNonceText);
  const Status status = status_from_json(in.array());
  if (!in.done() || status.ok()) return false;
  if (nonce == nonce_ && state_ == State::kGathering) {
    leader_nonce_.clear();  // it knows already: no abort goes back
    fail(status, now_);
  }
  return true;
}

void Job::send_roster(const std::string& host) {
  const Follower& follower = followers_.at(host);
  const std::string proof =
      prove(secret_, Role::kLeader, follower.nonce, follower.leader_nonce, key_.text(), epoch_, host);
  const ports::PairKeys keys =
      pair_keys(root_, HostIndex(static_cast<std::uint16_t>(*roster_.index_of(host))), roster_.hosts.size());
  const json body = json::array({follower.nonce, proof, static_cast<std::uint64_t>(liveness_->detection().value),
                                 roster_.world_size, roster_to_json(roster_), keys_to_json(keys)});
  if (!environment_.send(host, message(MessageType::kRoster, body))) {
    fail_job(Status(Code::kUnavailable, fmt::format("host {} takes no control messages", host), where(),
                    "look at the daemon there"));
  }
}

// Whether this host can take part in it: it is in it with its own ranks, and knows every other host as the leader does.
Status Job::check_roster(const Roster& roster) const {
  const auto bad = [&](std::string what) {
    return Status(Code::kInvalidArgument, std::move(what), where(), "give every host the same fabric file");
  };
  const auto self = roster.index_of(rules_.host);
  const bool mine = self && roster.hosts[*self].ranks.size() == locals_.size() &&
                    std::ranges::all_of(locals_, [&](const LocalRank& local) {
                      return roster.host_of(local.claim.rank) == rules_.host;
                    });
  if (!mine) return bad(fmt::format("the roster of the leader {} has not the ranks of host {}", leader_, rules_.host));
  for (const RosterHost& member : roster.hosts) {
    const fabric::Host* host = rules_.fabric->find_host(member.name);
    if (host == nullptr) {
      return bad(fmt::format("the roster of the leader {} has the host '{}', which host {} does not know", leader_,
                             member.name, rules_.host));
    }
    if (host->rails() != member.addresses.size()) {
      return bad(fmt::format("host {} has {} rails in the roster of the leader {} and {} in the fabric file of host {}",
                             member.name, member.addresses.size(), leader_, host->rails(), rules_.host));
    }
  }
  return {};
}

bool Job::handle_roster(const Message& m) {
  ItemReader in(m.body);
  const std::string nonce = in.text(kNonceText), proof = in.text(kNonceText);
  const Duration detection(static_cast<std::int64_t>(in.number(kMaxDetection)));
  const std::uint32_t world_size = static_cast<std::uint32_t>(in.number(kMaxWorldSize));
  auto roster = roster_from_json(world_size, in.array());
  const ports::PairKeys keys = keys_from_bytes(in.bytes(roster ? roster->hosts.size() * ports::kPairKeyBytes : 0));
  if (!in.done() || !roster || detection < milliseconds(10)) return false;
  if (nonce != nonce_ || m.epoch != epoch_ || state_ != State::kGathering)
    return true;  // it has come already, or is of an earlier exchange
  if (!equal_in_constant_time(proof,
                              prove(secret_, Role::kLeader, nonce_, leader_nonce_, key_.text(), epoch_, rules_.host))) {
    fail(Status(Code::kPermissionDenied,
                fmt::format("the leader {} does not know the secret of the ranks on host {}", leader_, rules_.host),
                where(), "set the same TENSORLANE_JOB_SECRET on every rank"),
         now_);
  } else if (Status status = check_roster(*roster); !status.ok()) {
    fail(std::move(status), now_);
  } else {
    begin(std::move(*roster), detection, keys);
  }
  return true;
}

}  // namespace tensorlane::control
