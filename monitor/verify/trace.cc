#include "monitor/verify/trace.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "monitor/verify/advice.h"

namespace tensorlane::verify {
namespace {

using Names = std::set<std::string>;

class Tracer {
 public:
  Tracer(const Observations& seen, const Topology& topology) : seen_(seen), topology_(topology) {
    for (const FlowFact& flow : seen.flows)
      if (flow.hop_count) usual_hops_[{flow.from, flow.to, flow.rail, flow.ipv6}] = *flow.hop_count;
    for (std::size_t i = 0; i < seen.flows.size(); ++i) {
      const FlowFact& flow = seen.flows[i];
      const std::vector<const Way*>& possible = possible_ways(flow);
      if (!flow.hops.empty()) ways_[i] = possible;
      for (const HopFact& hop : flow.hops)
        if (const std::string* owner = topology.owner(hop.address)) names_[hop.address] = {*owner};
    }
    // Each name that is found out may leave fewer ways to other flows.
    for (bool again = true; again;) again = narrow_names() || narrow_ways();
  }

  Trace trace(std::size_t index) const {
    const FlowFact& flow = seen_.flows[index];
    Trace trace;
    trace.swept = !flow.hops.empty();
    trace.nodes.push_back({seen_.hosts[flow.from].name, {}, flow.left_dscp, true});
    const int counted = hop_count(flow);
    const bool routed = counted > 0;
    const std::size_t hops = routed ? static_cast<std::size_t>(counted) : switches_if_switched(index);
    for (std::size_t distance = 1; distance <= hops; ++distance) {
      TraceNode node;
      const HopFact* hop = find_hop(flow, distance);
      if (hop != nullptr) {
        node.address = hop->address;
        node.dscp = hop->dscp;
      }
      node.name = name_at(index, distance, node.address);
      trace.nodes.push_back(std::move(node));
    }
    trace.complete = routed || !ways_of(index).empty() || topology_.empty();
    if (!routed && ways_of(index).size() > 1) trace.complete = false;  // several ways, and nothing says which
    trace.nodes.push_back({seen_.hosts[flow.to].name, {}, flow.dscp, true});
    return trace;
  }

 private:
  // Of a flow that did not arrive, as of others between the same hosts.
  int hop_count(const FlowFact& flow) const {
    if (flow.hop_count) return *flow.hop_count;
    const auto usual = usual_hops_.find({flow.from, flow.to, flow.rail, flow.ipv6});
    return usual == usual_hops_.end() ? 0 : usual->second;
  }

  static const HopFact* find_hop(const FlowFact& flow, std::size_t distance) {
    for (const HopFact& hop : flow.hops)
      if (hop.distance == static_cast<int>(distance)) return &hop;
    return nullptr;
  }

  // Whose number of switches fits what was counted: all are routers, or none is.
  const std::vector<const Way*>& possible_ways(const FlowFact& flow) {
    const int counted = hop_count(flow);
    const auto [known, is_new] = possible_.try_emplace({flow.from, flow.to, flow.rail, counted});
    if (!is_new) return known->second;
    for (const Way& way : topology_.ways(seen_.hosts[flow.from].name, seen_.hosts[flow.to].name, flow.rail))
      if (counted == 0 || way.size() == static_cast<std::size_t>(counted) + 1) known->second.push_back(&way);
    return known->second;
  }

  // That what was seen leaves to a flow.
  const std::vector<const Way*>& ways_of(std::size_t index) const {
    if (const auto narrowed = ways_.find(index); narrowed != ways_.end()) return narrowed->second;
    const FlowFact& flow = seen_.flows[index];
    return possible_.at({flow.from, flow.to, flow.rail, hop_count(flow)});
  }

  // Where all switches are bridges, and there is one way: they are known though none answers.
  std::size_t switches_if_switched(std::size_t index) const {
    return ways_of(index).size() == 1 ? ways_of(index).front()->size() - 1 : 0;
  }

  const std::string& switch_at(const Way& way, std::size_t distance) const {
    return topology_.leg(way[distance - 1]).to;
  }

  bool narrow_names() {
    bool changed = false;
    for (const auto& [flow, ways] : ways_) {
      if (ways.empty()) continue;
      for (const HopFact& hop : seen_.flows[flow].hops) {
        if (hop.address.empty() || hop.distance < 1) continue;
        Names here;
        for (const Way* way : ways)
          if (static_cast<std::size_t>(hop.distance) < way->size())
            here.insert(switch_at(*way, static_cast<std::size_t>(hop.distance)));
        const auto [known, is_new] = names_.try_emplace(hop.address, here);
        if (is_new) {
          changed = true;
          continue;
        }
        Names both;
        std::ranges::set_intersection(known->second, here, std::inserter(both, both.end()));
        if (both.size() == known->second.size()) continue;
        known->second = std::move(both);
        changed = true;
      }
    }
    return changed;
  }

  bool narrow_ways() {
    bool changed = false;
    for (auto& [flow, ways] : ways_) {
      for (const HopFact& hop : seen_.flows[flow].hops) {
        const auto known = names_.find(hop.address);
        if (known == names_.end() || known->second.empty()) continue;
        const auto at = static_cast<std::size_t>(hop.distance);
        const auto is_elsewhere = [&](const Way* way) {
          return ways.size() > 1 && at < way->size() && !known->second.contains(switch_at(*way, at));
        };
        changed |= std::erase_if(ways, is_elsewhere) > 0;
      }
    }
    return changed;
  }

  std::string name_at(std::size_t index, std::size_t distance, const std::string& address) const {
    if (const auto known = names_.find(address); known != names_.end() && known->second.size() == 1)
      return *known->second.begin();
    Names here;
    for (const Way* way : ways_of(index))
      if (distance < way->size()) here.insert(switch_at(*way, distance));
    if (here.size() == 1) return *here.begin();
    if (address.empty()) return "";
    if (const auto known = names_.find(address); known != names_.end()) here = known->second;
    return here.empty() || here.size() > 4 ? "hop " + address : joined(here, " or ") + " (" + address + ")";
  }

  const Observations& seen_;
  const Topology& topology_;
  std::map<std::tuple<std::size_t, std::size_t, std::size_t, bool>, int> usual_hops_;  // of a pair's flows
  // By hosts, rail and count of hops.
  std::map<std::tuple<std::size_t, std::size_t, std::size_t, int>, std::vector<const Way*>> possible_;
  std::map<std::size_t, std::vector<const Way*>> ways_;  // of each flow with hops, that what was seen leaves
  std::map<std::string, Names> names_;                   // of each address
};

}  // namespace

std::vector<Trace> trace_all(const Observations& seen, const Topology& topology) {
  const Tracer tracer(seen, topology);
  std::vector<Trace> traces;
  for (std::size_t i = 0; i < seen.flows.size(); ++i) traces.push_back(tracer.trace(i));
  return traces;
}

}  // namespace tensorlane::verify
