#include "monitor/verify/topology.h"

#include <algorithm>
#include <deque>

#include <fmt/format.h>

namespace tensorlane::verify {

Topology::Topology(const fabric::Fabric& fabric) {
  for (const fabric::Switch& node : fabric.switches) {
    switches_[node.name] = node.nos;
    for (const std::string& address : node.addresses) owners_[address] = node.name;
  }
  for (const fabric::Host& host : fabric.hosts) rails_[host.name] = host.rails();
  for (const fabric::Link& link : fabric.links) {
    for (const bool forwards : {true, false}) {
      Leg leg{link.from, link.to, link.from_port, link.to_port, link.speed};
      if (!forwards) {
        std::swap(leg.from, leg.to);
        std::swap(leg.from_port, leg.to_port);
      }
      from_[leg.from].push_back(legs_.size());
      to_[leg.to].push_back(legs_.size());
      legs_.push_back(std::move(leg));
    }
  }
}

const std::string* Topology::owner(const std::string& address) const {
  const auto found = owners_.find(address);
  return found == owners_.end() ? nullptr : &found->second;
}

std::optional<fabric::Nos> Topology::nos(const std::string& name) const {
  const auto found = switches_.find(name);
  return found == switches_.end() ? std::nullopt : found->second;
}

std::vector<std::size_t> Topology::legs_between(const std::string& from, const std::string& to) const {
  std::vector<std::size_t> found;
  if (const auto out = from_.find(from); out != from_.end())
    std::copy_if(out->second.begin(), out->second.end(), std::back_inserter(found),
                 [&](std::size_t leg) { return legs_[leg].to == to; });
  return found;
}

std::vector<std::size_t> Topology::first_legs(const std::string& host, std::size_t rail, bool outwards) const {
  const auto& table = outwards ? from_ : to_;
  const auto found = table.find(host);
  if (found == table.end()) return {};
  const auto rails = rails_.find(host);
  const bool by_rail = rails != rails_.end() && found->second.size() == rails->second;
  if (!by_rail) return found->second;
  return rail < found->second.size() ? std::vector{found->second[rail]} : std::vector<std::size_t>{};
}

const std::vector<Way>& Topology::ways(const std::string& from, const std::string& to, std::size_t rail) const {
  const std::string key = fmt::format("{}|{}|{}", from, to, rail);
  if (const auto known = ways_.find(key); known != ways_.end()) return known->second;
  std::vector<Way>& ways = ways_[key];
  // How far each switch is from the destination: only switches pass traffic on.
  std::map<std::string, std::size_t> far;
  std::deque<std::string> queue;
  for (const std::size_t leg : first_legs(to, rail, false))
    if (switches_.contains(legs_[leg].from) && far.emplace(legs_[leg].from, 1).second) queue.push_back(legs_[leg].from);
  for (; !queue.empty(); queue.pop_front()) {
    const auto into = to_.find(queue.front());
    if (into == to_.end()) continue;
    for (const std::size_t leg : into->second)
      if (switches_.contains(legs_[leg].from) && far.emplace(legs_[leg].from, far[queue.front()] + 1).second)
        queue.push_back(legs_[leg].from);
  }
  std::vector<Way> open;
  std::size_t nearest = 0;
  for (const std::size_t leg : first_legs(from, rail, true))
    if (const auto at = far.find(legs_[leg].to); at != far.end() && (nearest == 0 || at->second < nearest))
      nearest = at->second;
  for (const std::size_t leg : first_legs(from, rail, true))
    if (const auto at = far.find(legs_[leg].to); at != far.end() && at->second == nearest) open.push_back({leg});
  const std::vector<std::size_t> last = first_legs(to, rail, false);
  while (!open.empty() && ways.size() < kMaxWays) {
    Way way = std::move(open.back());
    open.pop_back();
    const std::string& at = legs_[way.back()].to;
    for (const std::size_t leg : from_.find(at)->second) {
      const auto next = far.find(legs_[leg].to);
      const bool nearer = next != far.end() && next->second + 1 == far[at];
      const bool arrives = far[at] == 1 && std::ranges::find(last, leg) != last.end();
      if (!nearer && !arrives) continue;
      Way longer = way;
      longer.push_back(leg);
      (arrives ? ways : open).push_back(std::move(longer));
    }
  }
  return ways;
}

std::vector<std::string> Topology::switches_on(const Way& way) const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i + 1 < way.size(); ++i) names.push_back(legs_[way[i]].to);
  return names;
}

}  // namespace tensorlane::verify
