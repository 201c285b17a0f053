#include "monitor/verify/findings.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "monitor/verify/advice.h"

namespace tensorlane::verify {
namespace {

// Whether an alternative is none for people: an end of the same leg, or something less exact.
bool is_said_already(const Place& place, const Place& other) {
  const bool is_exact =
      other.kind != Place::Kind::kGap && other.kind != Place::Kind::kNode && other.kind != Place::Kind::kWay;
  const bool is_leg = place.kind == Place::Kind::kLeg || place.kind == Place::Kind::kWay;
  if (!is_exact) return true;
  if (other.kind == Place::Kind::kLeg) return false;
  if (other.kind == Place::Kind::kEntry) return is_leg && other.node == place.peer && other.peer == place.node;
  return is_leg && (other.node == place.node || other.node == place.peer);
}

// A DSCP as the class that has it.
std::string mark_name(const Observations& seen, int dscp) {
  for (const ProbedClass& cls : seen.classes)
    if (cls.dscp == dscp) return fmt::format("{} ({})", dscp, cls.name);
  return std::to_string(dscp);
}

// "DSCP 43 (urgent) becomes 0 (IPv6)"; a change that both families suffer is said once.
std::string what_happens(const Observations& seen, const std::set<Change>& changes) {
  std::map<std::pair<int, int>, std::vector<std::string>> by_marks;
  for (const Change& change : changes) by_marks[{change.from, change.to}].push_back(family_name(change.ipv6));
  std::vector<std::string> texts;
  for (const auto& [marks, families] : by_marks) {
    const std::string to = marks.second == kLost ? "is lost" : "becomes " + mark_name(seen, marks.second);
    texts.push_back(fmt::format("DSCP {} {} ({})", mark_name(seen, marks.first), to, joined(families, " and ")));
  }
  return joined(texts);
}

bool is_swap(const std::set<Change>& changes) {
  return std::ranges::any_of(changes, [&](const Change& change) {
    return change.to != kLost && changes.contains({change.ipv6, change.to, change.from});
  });
}

// All changes end in one mark, and there are several.
std::optional<int> one_mark(const std::set<Change>& changes) {
  std::set<int> from, to;
  for (const Change& change : changes) {
    from.insert(change.from);
    to.insert(change.to);
  }
  return to.size() == 1 && from.size() > 1 ? std::optional(*to.begin()) : std::nullopt;
}

std::string likely_cause(const Place& place, const std::set<Change>& changes) {
  const std::optional<int> all = one_mark(changes);
  if (changes.begin()->to == kLost || all == kLost)
    return "a filter or a policer drops the class, or its queue has no share";
  if (place.kind == Place::Kind::kSender)
    return all ? "a device-wide traffic class, or a filter of the host, gives all its traffic one mark"
               : "a filter of the host, or its NIC's map, changes the mark";
  if (is_swap(changes)) return "the maps of two classes are swapped";
  if (all == 0) return "the port does not trust DSCP, and writes 0";
  if (all) return "a policy gives all traffic one mark";
  const bool one_family =
      std::ranges::all_of(changes, [&](const Change& c) { return c.ipv6 == changes.begin()->ipv6; });
  if (one_family)
    return fmt::format("a rewrite map or policy that applies to {} alone changes the mark",
                       family_name(changes.begin()->ipv6));
  return "a rewrite map or policy changes the mark";
}

void look_at(const Place& place, Topic topic, const Topology& topology, Finding& finding) {
  const Device device = device_of(place, topology);
  finding.where = describe(place, topology);
  finding.device = device.name;
  finding.command = show_command(device, topic, topology);
}

}  // namespace

std::vector<Finding> make_findings(const Observations& seen, const std::vector<Blame>& blame,
                                   const Topology& topology) {
  struct Gathered {
    std::set<Change> changes;
    std::set<std::size_t> flows, classes;
    std::set<Place> others;
  };
  std::map<Place, Gathered> places;
  for (const Blame& one : blame) {
    Gathered& gathered = places[one.place];
    gathered.changes.insert(one.change);
    gathered.others.insert(one.others.begin(), one.others.end());
    for (const std::size_t flow : one.flows) {
      gathered.flows.insert(flow);
      gathered.classes.insert(seen.flows[flow].cls);
    }
  }
  std::vector<Finding> findings;
  for (const auto& [place, gathered] : places) {
    Finding finding;
    finding.place = place;
    look_at(place, Topic::kMarking, topology, finding);
    for (const Place& other : gathered.others)
      if (!is_said_already(place, other)) {
        finding.alternatives.push_back(other);
        finding.or_where.push_back(describe(other, topology));
      }
    finding.what = what_happens(seen, gathered.changes);
    finding.cause = likely_cause(place, gathered.changes);
    finding.changes.assign(gathered.changes.begin(), gathered.changes.end());
    for (const std::size_t cls : gathered.classes) finding.classes.push_back(seen.classes[cls].name);
    finding.flows = gathered.flows.size();
    findings.push_back(std::move(finding));
  }
  std::ranges::stable_sort(findings, std::greater<>(), &Finding::flows);
  return findings;
}

void add_queue_findings(const Observations& seen, const std::vector<Overtaking>& overtaking, const Topology& topology,
                        std::vector<Finding>& findings) {
  std::map<Place, std::vector<const LoadFact*>> places;
  for (const Overtaking& verdict : overtaking) {
    if (verdict.outcome != Outcome::kFailed) continue;
    const LoadFact& fact = verdict.fact;
    Place place{Place::Kind::kLeg, fact.node, fact.peer, {}, {}};
    if (fact.node.empty())
      place = {Place::Kind::kGap, seen.hosts[fact.high_from].name, seen.hosts[fact.to].name, {}, {}};
    places[place].push_back(&fact);
  }
  for (const auto& [place, facts] : places) {
    Finding finding;
    finding.place = place;
    look_at(place, Topic::kQueueing, topology, finding);
    if (topology.is_switch(place.node)) {
      const Device device = device_of(place, topology);
      finding.where =
          fmt::format("{}'s port {}towards {}", place.node, device.port.empty() ? "" : device.port + " ", place.peer);
    }
    std::vector<std::string> pairs;
    std::set<std::size_t> classes;
    for (const LoadFact* fact : facts) {
      pairs.push_back(fmt::format("{} does not overtake {} ({})", seen.classes[fact->high].name,
                                  seen.classes[fact->low].name, family_name(fact->ipv6)));
      classes.insert(fact->high);
    }
    finding.what = joined(pairs);
    finding.cause = "the port serves one queue in the order of arrival, or both classes go into the same queue";
    for (const std::size_t cls : classes) finding.classes.push_back(seen.classes[cls].name);
    finding.flows = facts.size();
    findings.push_back(std::move(finding));
  }
}

}  // namespace tensorlane::verify
