#include "monitor/verify/blame.h"

#include <algorithm>
#include <map>
#include <queue>
#include <set>
#include <tuple>

#include <fmt/format.h>

namespace tensorlane::verify {
namespace {

using Kind = Place::Kind;

// Something seen of a flow: at the socket (-1), or at a node of its trace.
struct Point {
  int at = -1;
  int dscp = 0;
};

// What the flows of a group have suffered.
struct Event {
  std::size_t group = 0;
  std::vector<std::size_t> suspects;  // numbers of places, in the order of Place
};

class Detective {
 public:
  Detective(const Observations& seen, const std::vector<Trace>& traces, const Topology& topology)
      : seen_(seen), traces_(traces), topology_(topology) {
    for (const FlowFact& flow : seen.flows)
      if (flow.arrived()) reached_.insert(pair_of(flow));
    for (std::size_t i = 0; i < seen.flows.size(); ++i)
      if (traces[i].swept) swept_[pair_of(seen.flows[i])].push_back(i);
    const auto before = [this](std::size_t a, std::size_t b) { return is_before(a, b); };
    std::map<std::size_t, std::vector<std::size_t>, decltype(before)> groups(before);
    for (std::size_t i = 0; i < seen.flows.size(); ++i) groups[i].push_back(i);
    for (auto& [first, flows] : groups) groups_.push_back(std::move(flows));
    for (std::size_t group = 0; group < groups_.size(); ++group) examine(group);
  }

  std::vector<Blame> solve() {
    std::vector<Blame> all;
    for (const Place* place : places_) ranks_.push_back(rank(*place));
    for (auto& [of_change, events] : events_) {
      const Change& change = of_change;
      for (Event& event : events)
        std::erase_if(event.suspects, [&](std::size_t place) {
          return cleared_.contains({change_key(change), place});
        });
      cover(change, events, all);
    }
    return all;
  }

 private:
  using Key = std::pair<bool, int>;                                      // family, mark before
  using Pair = std::tuple<std::size_t, std::size_t, std::size_t, bool>;  // from, to, rail, family
  static Pair pair_of(const FlowFact& flow) { return {flow.from, flow.to, flow.rail, flow.ipv6}; }
  // The order of flows by what was seen of them. Neither comes before the other where it was the same, of the same pair
  // and class: such flows are a group.
  bool is_before(std::size_t a, std::size_t b) const {
    const auto facts = [this](std::size_t i) {
      const FlowFact& flow = seen_.flows[i];
      return std::tuple(pair_of(flow), flow.cls, flow.arrived(), is_lost(flow), flow.own_dscp);
    };
    const auto order = facts(a) <=> facts(b);
    return order == 0 ? traces_[a] < traces_[b] : order < 0;
  }
  static Key change_key(const Change& change) { return {change.ipv6, change.from}; }

  const std::string& name(std::size_t flow, int at) const {
    return traces_[flow].nodes[static_cast<std::size_t>(at)].name;
  }
  bool is_switch(std::size_t flow, int at) const {
    const TraceNode& node = traces_[flow].nodes[static_cast<std::size_t>(at)];
    return !node.is_host && !node.name.empty();
  }
  int last(std::size_t flow) const { return static_cast<int>(traces_[flow].nodes.size()) - 1; }

  bool is_lost(const FlowFact& flow) const { return flow.vanished() && reached_.contains(pair_of(flow)); }

  // What was seen of a flow, in the order of its way.
  std::vector<Point> points(std::size_t index) const {
    const FlowFact& flow = seen_.flows[index];
    std::vector<Point> points{{-1, seen_.classes[flow.cls].dscp}};
    if (flow.own_dscp && *flow.own_dscp != points.front().dscp) points.push_back({0, *flow.own_dscp});
    const auto& nodes = traces_[index].nodes;
    for (std::size_t k = 0; k < nodes.size(); ++k)
      if (nodes[k].dscp && (k + 1 < nodes.size() || flow.arrived()))
        points.push_back({static_cast<int>(k), *nodes[k].dscp});
    if (is_lost(flow)) points.push_back({last(index), kLost});
    return points;
  }

  void examine(std::size_t group) {
    const std::size_t index = groups_[group].front();
    const FlowFact& flow = seen_.flows[index];
    const std::vector<Point> seen = points(index);
    std::size_t run = 0;  // where the mark in hand was first seen
    for (std::size_t i = 1; i <= seen.size(); ++i) {
      if (i < seen.size() && seen[i].dscp == seen[run].dscp) continue;
      clear({flow.ipv6, seen[run].dscp}, index, seen[run].at, seen[i - 1].at);
      if (i == seen.size()) break;
      const Change change{flow.ipv6, seen[i - 1].dscp, seen[i].dscp};
      // A hop that answered has had the packet, with whatever mark.
      const int first = change.to == kLost ? std::max(seen[i - 1].at, last_answer(index)) : seen[i - 1].at;
      std::set<Place> places = suspects(index, first, seen[i].at);
      if (change.to == kLost) add_way_back(flow, places);
      Event& event = events_[change].emplace_back(Event{group, {}});
      for (const Place& place : places) event.suspects.push_back(number_of(place));
      run = i;
    }
  }

  int last_answer(std::size_t flow) const {
    const auto& nodes = traces_[flow].nodes;
    for (int k = last(flow) - 1; k > 0; --k)
      if (!nodes[static_cast<std::size_t>(k)].address.empty()) return k;
    return -1;
  }

  void add_legs(std::size_t flow, int first, int end, std::set<Place>& places) const {
    for (int k = std::max(first, 0); k < end; ++k) {
      if (name(flow, k).empty() || name(flow, k + 1).empty()) continue;
      places.insert({Kind::kLeg, name(flow, k), name(flow, k + 1), {}, {}});
      const std::string& address = traces_[flow].nodes[static_cast<std::size_t>(k) + 1].address;
      if (!address.empty() && topology_.legs_between(name(flow, k), name(flow, k + 1)).size() > 1)
        places.insert({Kind::kWay, name(flow, k), name(flow, k + 1), address, {}});
    }
  }
  void add_switch(std::size_t flow, int at, std::set<Place>& places) const {
    if (at < 1 || !is_switch(flow, at)) return;
    places.insert({Kind::kNode, name(flow, at), {}, {}, {}});
    if (!name(flow, at - 1).empty()) places.insert({Kind::kEntry, name(flow, at), name(flow, at - 1), {}, {}});
  }

  // Where a mark that was last right at `first` and first wrong at `end` may have been changed.
  std::set<Place> suspects(std::size_t flow, int first, int end) const {
    std::set<Place> places;
    if (first <= 0) places.insert({Kind::kSender, name(flow, 0), {}, {}, {}});
    if (end <= 0) return places;
    if (end == last(flow)) places.insert({Kind::kReceiver, name(flow, end), {}, {}, {}});
    add_between(flow, first, end, places);
    // A flow whose way was not looked at may have taken that of any other one between the same hosts.
    if (!traces_[flow].swept)
      for (const std::size_t other : swept_of(pair_of(seen_.flows[flow])))
        if (last(other) == last(flow)) add_between(other, first, end, places);
    const std::string near = name(flow, std::max(first, 0)), far = name(flow, end);
    places.insert({Kind::kGap, near, far, {}, {}});
    places.insert({Kind::kGap, near, far, {}, fmt::format("{} to {}", name(flow, 0), name(flow, last(flow)))});
    return places;
  }

  void add_between(std::size_t flow, int first, int end, std::set<Place>& places) const {
    add_legs(flow, first, end, places);
    for (int k = std::max(first, 1); k <= end; ++k) add_switch(flow, k, places);
  }
  // What is lost may be the answer, which has the same mark.
  void add_way_back(const FlowFact& flow, std::set<Place>& places) const {
    for (const std::size_t other : swept_of({flow.to, flow.from, flow.rail, flow.ipv6}))
      add_between(other, -1, last(other), places);
  }
  const std::vector<std::size_t>& swept_of(const Pair& pair) const {
    static const std::vector<std::size_t> kNone;
    const auto found = swept_.find(pair);
    return found == swept_.end() ? kNone : found->second;
  }

  // A mark was the same from `first` to `end`: what lies between does not change it.
  void clear(const Key& key, std::size_t flow, int first, int end) {
    std::set<Place> places;
    if (first == -1 && end >= 1) places.insert({Kind::kSender, name(flow, 0), {}, {}, {}});
    if (end == last(flow)) places.insert({Kind::kReceiver, name(flow, end), {}, {}, {}});
    add_legs(flow, first, end, places);
    for (int k = std::max(first, 0) + 1; k < end; ++k) add_switch(flow, k, places);
    for (int k = std::max(first, 0); k < end; ++k)
      if (traces_[flow].complete) places.insert({Kind::kGap, name(flow, k), name(flow, k + 1), {}, {}});
    for (const Place& place : places) cleared_.insert({key, number_of(place)});
  }

  std::size_t number_of(const Place& place) {
    const auto [known, is_new] = numbers_.try_emplace(place, places_.size());
    if (is_new) places_.push_back(&known->first);
    return known->second;
  }

  // How good an explanation a place is, of those that explain as much.
  int rank(const Place& place) const {
    if (place.kind == Kind::kSender) return is_overridden(place.node) ? 0 : 3;
    if (place.kind == Kind::kGap) return place.pair.empty() ? 8 : 9;
    return static_cast<int>(place.kind) + 1;
  }
  bool is_overridden(const std::string& host) const {
    return std::ranges::any_of(seen_.hosts,
                               [&](const HostFacts& facts) { return facts.name == host && !facts.overrides.empty(); });
  }

  struct Explains {
    std::size_t flows = 0;            // that no chosen place explains
    std::vector<std::size_t> events;  // also those that a chosen one explains
  };
  struct Candidate {
    std::size_t flows = 0, place = 0;
  };
  bool is_worse(const Candidate& a, const Candidate& b) const {
    if (a.flows != b.flows) return a.flows < b.flows;
    if (ranks_[a.place] != ranks_[b.place]) return ranks_[a.place] > ranks_[b.place];
    return *places_[b.place] < *places_[a.place];
  }

  // The index of what each place explains is made once. What it explains only becomes less while places are chosen, so
  // that the first of the queue is the best one if it still explains as much as when it was put there.
  void cover(const Change& change, const std::vector<Event>& events, std::vector<Blame>& all) const {
    std::map<std::size_t, Explains> index;
    for (std::size_t i = 0; i < events.size(); ++i)
      for (const std::size_t place : events[i].suspects) {
        index[place].events.push_back(i);
        index[place].flows += groups_[events[i].group].size();
      }
    const auto worse = [this](const Candidate& a, const Candidate& b) { return is_worse(a, b); };
    std::priority_queue<Candidate, std::vector<Candidate>, decltype(worse)> queue(worse);
    for (const auto& [place, explains] : index) queue.push({explains.flows, place});
    std::vector<bool> explained(events.size());
    const auto left = [&](std::size_t place) {
      std::vector<std::size_t> some;
      std::ranges::copy_if(index[place].events, std::back_inserter(some), [&](std::size_t i) { return !explained[i]; });
      return some;
    };
    for (; !queue.empty(); queue.pop()) {
      const Candidate best = queue.top();
      if (index[best.place].flows == 0) continue;
      if (index[best.place].flows < best.flows) {
        queue.push({index[best.place].flows, best.place});
        continue;  // which takes the old entry away: the new one comes behind it
      }
      const std::vector<std::size_t> chosen = left(best.place);
      Blame blame{*places_[best.place], {}, change, {}};
      for (const std::size_t other : events[chosen.front()].suspects)
        if (other != best.place && index[other].flows == best.flows && left(other) == chosen)
          blame.others.push_back(*places_[other]);
      for (const std::size_t i : chosen) {
        const std::vector<std::size_t>& flows = groups_[events[i].group];
        explained[i] = true;
        blame.flows.insert(blame.flows.end(), flows.begin(), flows.end());
        for (const std::size_t place : events[i].suspects) index[place].flows -= flows.size();
      }
      all.push_back(std::move(blame));
    }
  }

  const Observations& seen_;
  const std::vector<Trace>& traces_;
  const Topology& topology_;
  std::set<Pair> reached_;                          // with an arrival
  std::map<Pair, std::vector<std::size_t>> swept_;  // flows whose way was looked at
  std::vector<std::vector<std::size_t>> groups_;    // flows of which the same was seen
  std::map<Place, std::size_t> numbers_;
  std::vector<const Place*> places_;  // by number
  std::vector<int> ranks_;            // of each
  std::map<Change, std::vector<Event>> events_;
  std::set<std::pair<Key, std::size_t>> cleared_;  // by number
};

}  // namespace

std::vector<Blame> find_blame(const Observations& seen, const std::vector<Trace>& traces, const Topology& topology) {
  return Detective(seen, traces, topology).solve();
}

}  // namespace tensorlane::verify
