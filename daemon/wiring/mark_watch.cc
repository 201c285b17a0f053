#include "daemon/wiring/mark_watch.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/base/hash.h"
#include "common/probe/session.h"
#include "daemon/lane/clocks.h"

namespace tensorlane::wiring {
namespace {

using nlohmann::json;

constexpr Duration kPeerPatience = seconds(3);  // with the peer's daemon
constexpr Duration kMarksLife = seconds(10);    // from its answer to the last probe
constexpr std::uint64_t kMarksAnswers = 64;
constexpr int kProbeMs = 1500, kAllProbesMs = 2000;

std::vector<fabric::TrafficClass> in_order_of_ports(const fabric::ClassTable& table) {
  std::vector<fabric::TrafficClass> all{table.control};
  all.insert(all.end(), table.data.begin(), table.data.end());
  return all;
}

ports::ProbeTokens::Token random_token() {
  std::random_device random;
  ports::ProbeTokens::Token token;
  for (std::uint8_t& byte : token) byte = static_cast<std::uint8_t>(random());
  return token;
}

std::uint64_t hash_of(const std::string& text) {
  Fnv1a hash;
  hash.add_text(text);
  return hash.value();
}

}  // namespace

MarkWatch::MarkWatch(Parts parts) : parts_(std::move(parts)), classes_(in_order_of_ports(parts_.classes)) {
  for (const fabric::TrafficClass& cls : classes_) counts_[cls.name];
}

MarkWatch::~MarkWatch() {
  stop();
}

void MarkWatch::start() {
  if (parts_.every.value > 0 && parts_.fabric->hosts.size() > 1) thread_ = std::thread([this] { run(); });
}

void MarkWatch::stop() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  wakes_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// Hosts begin at times and with peers of their own, so that not all of them ask the same one at once.
void MarkWatch::run() {
  ::pthread_setname_np(::pthread_self(), "marks");
  const std::uint64_t own = hash_of(parts_.host);
  const std::vector<fabric::Host>& hosts = parts_.fabric->hosts;
  auto pause = std::chrono::nanoseconds(parts_.every.value / 1000 * static_cast<std::int64_t>(own % 1000));
  std::unique_lock lock(mutex_);
  for (std::uint64_t turn = own;; ++turn) {
    pause += std::chrono::nanoseconds(parts_.every.value);
    if (wakes_.wait_for(lock, pause, [this] { return stops_; })) return;
    pause = {};
    if (hosts[turn % hosts.size()].name == parts_.host) ++turn;
    lock.unlock();
    look_at(hosts[turn % hosts.size()]);
    lock.lock();
  }
}

bool MarkWatch::allowed_by(const std::string& peer, const ports::ProbeTokens::Token& token) {
  const auto answer = std::make_shared<std::pair<bool, Status>>(false, Status());  // under mutex_
  const auto take = [this, answer](const Result<std::string>& text) {
    const std::lock_guard lock(mutex_);
    *answer = {true, text.status()};
    wakes_.notify_all();
  };
  parts_.ask(peer, "marks", {{"token", probe::token_text(token)}}, kPeerPatience, take);
  std::unique_lock lock(mutex_);
  const auto patience = std::chrono::nanoseconds(kPeerPatience.value) + std::chrono::seconds(1);
  wakes_.wait_for(lock, patience, [&] { return stops_ || answer->first; });
  if (stops_ || !answer->first) return false;
  if (!answer->second.ok()) spdlog::debug("the marks of host {} are not probed: {}", peer, answer->second.to_string());
  return answer->second.ok();
}

void MarkWatch::look_at(const fabric::Host& peer) {
  const ports::ProbeTokens::Token token = random_token();
  if (!allowed_by(peer.name, token)) return;
  const fabric::Host& self = *parts_.fabric->find_host(parts_.host);
  std::vector<probe::FlowSpec> flows;
  std::vector<std::pair<Seen, int>> sent;
  for (std::size_t rail = 0; rail < std::min(self.rails(), peer.rails()); ++rail) {
    const RailIndex index(static_cast<std::uint8_t>(rail));
    const auto to = fabric::resolve_address(peer.tcp_address(index));
    const auto from = fabric::resolve_address(self.tcp_address(index));
    for (std::size_t place = 0; to.ok() && from.ok() && place < classes_.size(); ++place) {
      const fabric::TrafficClass& cls = classes_[place];
      const auto port = static_cast<std::uint16_t>(peer.data_port + place);
      flows.push_back({.id = static_cast<std::uint32_t>(flows.size()),
                       .address = *to,
                       .port = port,
                       .source = *from,
                       .tag = {cls.dscp, cls.pcp}});
      sent.push_back({{peer.name, rail, cls.name}, cls.dscp});
    }
  }
  const probe::ProbeOptions options{.token = token, .timeout_ms = kProbeMs, .deadline_ms = kAllProbesMs};
  probe::probe(flows, options, nullptr,
               [&](const probe::Arrival& arrival) { note(sent[arrival.id].first, sent[arrival.id].second, arrival); });
}

// What goes on as it was is said once.
void MarkWatch::note(const Seen& seen, int sent, const probe::Arrival& arrival) {
  const std::lock_guard lock(mutex_);
  Counts& counts = counts_[seen.cls];
  const int dscp = arrival.answer.dscp;
  if (arrival.outcome != probe::Outcome::kArrived || dscp == probe::kUnknown) {
    ++counts.not_known;
    return;
  }
  if (dscp == sent) {
    ++counts.kept;
    if (changed_.erase(seen) > 0)
      spdlog::info("marks: DSCP {} of class {} arrives at host {} as sent again (rail {})", sent, seen.cls, seen.peer,
                   seen.rail);
    return;
  }
  ++counts.changed;
  const auto known = changed_.find(seen);
  if (known != changed_.end() && known->second == dscp) return;
  if (known == changed_.end() && changed_.size() >= kMostShown) return;
  changed_[seen] = dscp;
  spdlog::warn(
      "marks: DSCP {} of class {} arrives at host {} as {} (rail {}): `tensorlane verify` says where it "
      "changes",
      sent, seen.cls, seen.peer, dscp, seen.rail);
}

void MarkWatch::answer(const ports::Question& question, const ports::Answered& done) {
  if (!question.of_operator())
    return done(Status(Code::kPermissionDenied, "probes make traffic", "a question about marks",
                       "ask as root or as the user of tensorlaned"));
  const json args = json::parse(question.args, nullptr, false);
  ports::ProbeTokens::Token token{};
  const auto text = args.is_object() ? args.find("token") : args.end();
  if (!args.is_object() || text == args.end() || !text->is_string() ||
      !probe::parse_token(text->get<std::string>(), &token))
    return done(Status(Code::kInvalidArgument, "it has no token", "a question about marks"));
  parts_.tokens->allow(token, lane::clock_now() + kMarksLife, kMarksAnswers);
  done(std::string("{}"));
}

std::map<std::string, MarkWatch::Counts> MarkWatch::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::vector<telemetry::ExtraFamily> MarkWatch::metrics() const {
  const auto of_classes = [this](std::uint64_t Counts::*which) {
    return [this, which] {
      std::vector<std::pair<std::string, double>> values;
      for (const auto& [cls, counts] : counts()) values.emplace_back(cls, static_cast<double>(counts.*which));
      return values;
    };
  };
  return {{"marks_kept_total", "Probes of other hosts that arrived with the DSCP of their class", "class",
           of_classes(&Counts::kept)},
          {"marks_changed_total", "Probes of other hosts that arrived with another DSCP", "class",
           of_classes(&Counts::changed)},
          {"marks_not_known_total", "Probes that did not arrive, or whose receiver cannot say how", "class",
           of_classes(&Counts::not_known)}};
}

json MarkWatch::describe() const {
  const std::lock_guard lock(mutex_);
  json changed = json::array();
  for (const auto& [seen, dscp] : changed_)
    changed.push_back({{"peer", seen.peer}, {"rail", seen.rail}, {"class", seen.cls}, {"arrived_dscp", dscp}});
  json counted = json::object();
  for (const auto& [cls, counts] : counts_)
    counted[cls] = {{"kept", counts.kept}, {"changed", counts.changed}, {"not_known", counts.not_known}};
  return {{"every_s", to_seconds(parts_.every)}, {"classes", std::move(counted)}, {"changed", std::move(changed)}};
}

}  // namespace tensorlane::wiring
