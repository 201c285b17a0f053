#include "daemon/control/job_progress.h"

#include <algorithm>

#include "daemon/control/message.h"

namespace tensorlane::control {
namespace {

using nlohmann::json;
using Verdict = progress::FlowWatch::Verdict;

constexpr std::uint64_t kAnyNumber = ~std::uint64_t{0};
constexpr std::uint64_t kAnyTime = std::uint64_t{1} << 62;

// A class on the wire is its slot: data classes by number, control behind the last that there can be.
std::uint64_t wire_slot(ClassId cls) {
  return ports::metrics_slot(cls);
}
ClassId class_of_slot(std::uint64_t slot) {
  return slot == ports::kControlSlot ? kControlClass : ClassId(static_cast<std::uint8_t>(slot));
}

}  // namespace

json standstill_to_json(const Standstill& s) {
  return json::array({s.to.value, s.rail.value, wire_slot(s.cls), static_cast<std::uint8_t>(s.state),
                      static_cast<std::uint64_t>(s.waited.value), s.held, s.progress.outstanding_bytes,
                      s.progress.retransmissions, s.progress.path_mtu});
}

std::optional<Standstill> standstill_from_json(const json& array, std::size_t hosts) {
  ItemReader in(array);
  Standstill s;
  s.to = HostIndex(static_cast<std::uint16_t>(in.number(hosts - 1)));
  s.rail = RailIndex(static_cast<std::uint8_t>(in.number(kMaxRails - 1)));
  s.cls = class_of_slot(in.number(ports::kControlSlot));
  s.state = static_cast<Standstill::State>(in.number(static_cast<std::uint64_t>(Standstill::State::kMoves)));
  s.waited = Duration(static_cast<std::int64_t>(in.number(kAnyTime)));
  s.held = in.boolean();
  s.progress.outstanding_bytes = in.number(kAnyNumber);
  s.progress.retransmissions = in.number(kAnyNumber);
  s.progress.path_mtu = in.u32();
  if (!in.done()) return std::nullopt;
  return s;
}

JobProgress::JobProgress(HostIndex self, std::vector<std::vector<BitsPerSecond>> speeds, progress::Limits limits)
    : self_(self), limits_(limits), peers_(speeds.size()) {
  for (std::size_t host = 0; host < speeds.size(); ++host) {
    std::vector<progress::PortLoad>& ports = host == self.value ? sending_ : peers_[host].receiving;
    for (const BitsPerSecond speed : speeds[host]) ports.emplace_back(speed);
  }
}

void JobProgress::lane_says(const ports::LaneProgress& progress, Time now) {
  lane_ = progress;
  ++lane_reports_;
  for (std::size_t r = 0; r < std::min(sending_.size(), lane_.ports.size()); ++r)
    sending_[r].sample(lane_.at, now, lane_.ports[r].sent);
}

// [when it was counted, [by rail: what the port has received by class], [flows: rail, class, frames received]]
json JobProgress::heartbeat(HostIndex peer) const {
  json ports = json::array(), flows = json::array();
  for (const ports::PortBytes& port : lane_.ports) ports.push_back(port.received);
  for (const ports::FlowState& flow : lane_.flows) {
    if (flow.peer == peer) flows.push_back(json::array({flow.rail.value, wire_slot(flow.cls), flow.progress.received}));
  }
  return json::array({static_cast<std::uint64_t>(lane_.at.value), std::move(ports), std::move(flows)});
}

bool JobProgress::heard(HostIndex peer, const json& body, Time now) {
  Peer& from = peers_[peer.value];
  ItemReader in(body);
  const Time at(static_cast<std::int64_t>(in.number(kAnyTime)));
  const json& ports = in.array();
  const json& flows = in.array();
  if (!in.done() || ports.size() > kMaxRails || flows.size() > kMaxRails * (kMaxDataClasses + 1)) return false;
  for (std::size_t r = 0; r < ports.size(); ++r) {
    progress::ClassBytes bytes{};
    ItemReader items(ports[r]);
    for (std::uint64_t& count : bytes) count = items.number(kAnyNumber);
    if (!items.done()) return false;
    if (r < from.receiving.size()) from.receiving[r].sample(at, now, bytes);
  }
  from.spoken = true;
  for (const json& flow : flows) {
    ItemReader items(flow);
    const RailIndex rail(static_cast<std::uint8_t>(items.number(kMaxRails - 1)));
    const ClassId cls = class_of_slot(items.number(ports::kControlSlot));
    const std::uint64_t frames = items.number(kAnyNumber);
    if (!items.done()) return false;
    from.delivered[{rail, cls}] = frames;
  }
  return true;
}

// More urgent classes fill the sender's port, or the receiver's.
bool JobProgress::filled(const Key& key, Time now) const {
  const auto [to, rail, cls] = key;
  const std::vector<progress::PortLoad>& there = peers_[to.value].receiving;
  return (rail.value < sending_.size() && sending_[rail.value].filled_above(cls, now)) ||
         (rail.value < there.size() && there[rail.value].filled_above(cls, now));
}

JobProgress::News JobProgress::check(Time now) {
  News news;
  if (lane_reports_ == 0) return news;
  // The lane owes a report at any time.
  look({self_, RailIndex(0), kControlClass}, {.given = lane_reports_ + 1, .delivered = lane_reports_}, false, {}, now,
       &news);
  for (const ports::FlowState& flow : lane_.flows) {
    const Peer& peer = peers_[flow.peer.value];
    if (!peer.spoken) continue;  // nothing has been heard of its flows yet
    const auto said = peer.delivered.find({flow.rail, flow.cls});
    // Where its lane stands still since before the flow came up, the peer does not speak of it.
    const std::uint64_t delivered = said == peer.delivered.end() ? 0 : said->second;
    const Key key{flow.peer, flow.rail, flow.cls};
    look(key, {flow.progress.given, delivered, flow.held}, filled(key, now), flow.progress, now, &news);
  }
  return news;
}

void JobProgress::look(const Key& key, const progress::FlowCounts& counts, bool filled,
                       const ports::FlowProgress& progress, Time now, News* news) {
  progress::FlowWatch& watch = watches_[key];
  const Verdict verdict = watch.look(counts, filled, now, limits_);
  if (verdict == Verdict::kNothing) return;
  const auto [to, rail, cls] = key;
  Standstill standstill{
      .to = to, .rail = rail, .cls = cls, .held = counts.given <= counts.delivered, .progress = progress};
  standstill.state = verdict == Verdict::kMoves     ? Standstill::State::kMoves
                     : verdict == Verdict::kStarved ? Standstill::State::kStarved
                                                    : Standstill::State::kLate;
  standstill.waited = verdict == Verdict::kStarved ? watch.starved() : watch.age();
  if (verdict == Verdict::kError) {
    if (!news->error) news->error = standstill;
  } else {
    news->reported.push_back(standstill);
  }
}

}  // namespace tensorlane::control
