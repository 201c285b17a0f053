#include "monitor/verify/verdict.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "monitor/verify/advice.h"
#include "monitor/verify/findings.h"
#include "monitor/verify/trace.h"

namespace tensorlane::verify {
namespace {

constexpr std::size_t kNamedPairs = 4;  // of those that a note is about

using PairKey = std::tuple<std::size_t, std::size_t, std::size_t, bool>;  // from, to, rail, family

PairKey pair_of(const FlowFact& flow) {
  return {flow.from, flow.to, flow.rail, flow.ipv6};
}

// Why flows of one class did not arrive, in the words of the report.
std::string no_arrival(const FlowFact& flow) {
  if (flow.outcome == "refused") return "nothing listens at the class's port";
  if (flow.outcome == "silent") return "whoever listens there closed the connection without an answer";
  if (flow.outcome == "hangs") return "it connected, and no answer came";
  if (flow.outcome == "rubbish") return "what came back is no answer to a probe";
  if (flow.outcome == "local") return fmt::format("the sender could not send: {}", flow.error);
  if (flow.outcome == "not_sent")
    return "the time for all probes of the sender was over: ask for fewer (--pairs sample N, --source-ports)";
  if (flow.outcome == "unreachable") return fmt::format("unreachable: {}", flow.error);
  return "no connection in time";
}

// Whether the data of two hosts goes over DPDK, of which probes see nothing: kOnly, or where daemons choose what is
// faster kAlso.
enum class Dpdk { kNo, kAlso, kOnly };

Dpdk dpdk_between(const Observations& seen, std::size_t a, std::size_t b, std::size_t rail) {
  const auto& one = seen.hosts[a].transports;
  const auto& other = seen.hosts[b].transports;
  if (rail >= one.size() || rail >= other.size()) return Dpdk::kNo;
  const auto both = [&](const char* name) { return one[rail].contains(name) && other[rail].contains(name); };
  if (!both("dpdk")) return Dpdk::kNo;
  return both("tcp") || both("rdma") ? Dpdk::kAlso : Dpdk::kOnly;
}

constexpr const char* kOnlyDpdk =
    "its data goes over DPDK, whose addresses and port the probes do not take (over those of TCP they passed): set "
    "`transport: tcp` on both hosts to test the network with them, or see what switches count for each class";

// "2 of 8 did not arrive: it connected, and no answer came"; empty: all arrived.
std::string missing(const std::vector<const FlowFact*>& flows) {
  std::set<std::string> reasons;
  std::size_t missing = 0;
  for (const FlowFact* flow : flows) {
    if (flow->arrived()) continue;
    ++missing;
    reasons.insert(no_arrival(*flow));
  }
  if (missing == 0) return "";
  return fmt::format("{} of {} did not arrive: {}", missing, flows.size(), joined(reasons, ", or "));
}

ClassVerdict judge(const Observations& seen, const std::vector<const FlowFact*>& flows, bool pair_reached) {
  const FlowFact& first = *flows.front();
  const ProbedClass& cls = seen.classes[first.cls];
  ClassVerdict verdict{seen.hosts[first.from].name, seen.hosts[first.to].name, cls.name, first.rail, first.ipv6};
  std::size_t told = 0, pcp_told = 0;
  std::map<int, std::size_t> wrong, wrong_pcp;
  for (const FlowFact* flow : flows) {
    if (!flow->arrived()) continue;
    if (flow->dscp) ++told;
    if (flow->dscp && *flow->dscp != cls.dscp) ++wrong[*flow->dscp];
    if (flow->pcp) ++pcp_told;
    if (flow->pcp && *flow->pcp != cls.pcp) ++wrong_pcp[*flow->pcp];
  }
  if (pcp_told > 0) verdict.pcp = wrong_pcp.empty() ? Outcome::kPassed : Outcome::kFailed;
  std::vector<std::string> texts;
  for (const auto& [dscp, count] : wrong)
    texts.push_back(fmt::format("DSCP {} arrived as {} with {} of {} source ports", cls.dscp, dscp, count, told));
  for (const auto& [pcp, count] : wrong_pcp)
    texts.push_back(fmt::format("PCP {} arrived as {} with {} of {}", cls.pcp, pcp, count, pcp_told));
  const bool is_lost = pair_reached && std::ranges::any_of(flows, &FlowFact::vanished);
  const std::string absent = missing(flows);
  if (!absent.empty()) texts.push_back(absent);
  if (!wrong.empty() || is_lost)
    verdict.dscp = Outcome::kFailed;
  else if (told > 0 && dpdk_between(seen, first.from, first.to, first.rail) == Dpdk::kOnly)
    texts.emplace_back(kOnlyDpdk);
  else if (told > 0 && absent.empty())
    verdict.dscp = Outcome::kPassed;
  else if (told == 0 && std::ranges::any_of(flows, &FlowFact::arrived))
    texts.emplace_back("the receiver's kernel does not say how packets arrive");
  verdict.text = joined(texts);
  return verdict;
}

std::vector<ClassVerdict> judge_classes(const Observations& seen) {
  std::map<std::pair<PairKey, std::size_t>, std::vector<const FlowFact*>> flows;
  std::set<PairKey> reached;
  for (const FlowFact& flow : seen.flows) {
    flows[{pair_of(flow), flow.cls}].push_back(&flow);
    if (flow.arrived()) reached.insert(pair_of(flow));
  }
  std::vector<ClassVerdict> verdicts;
  for (const auto& [key, of_class] : flows) verdicts.push_back(judge(seen, of_class, reached.contains(key.first)));
  return verdicts;
}

// Different ways are told apart by the addresses that answered.
std::vector<Coverage> cover(const Observations& seen, const std::vector<Trace>& traces, const Topology& topology) {
  std::map<PairKey, std::map<std::vector<std::string>, std::size_t>> ways;
  std::map<PairKey, std::size_t> ports;
  for (std::size_t i = 0; i < seen.flows.size(); ++i) {
    const FlowFact& flow = seen.flows[i];
    ports.try_emplace(pair_of(flow), 0);
    if (!flow.arrived()) continue;  // nobody knows the whole way of what is lost
    std::vector<std::string> way;
    for (const TraceNode& node : traces[i].nodes)
      if (!node.is_host) way.push_back(node.address.empty() ? node.name : node.address);
    if (flow.hop_count.value_or(0) > 0 && (!traces[i].swept || std::ranges::count(way, "") > 0)) continue;
    ++ways[pair_of(flow)][way];
    ++ports[pair_of(flow)];
  }
  std::vector<Coverage> all;
  for (const auto& [pair, count] : ports) {
    const auto& [from, to, rail, ipv6] = pair;
    Coverage coverage{seen.hosts[from].name, seen.hosts[to].name, rail, ipv6, count, ways[pair].size()};
    coverage.changes = seen.changing_ways.contains({from, to});
    const std::size_t known = topology.ways(coverage.from, coverage.to, rail).size();
    if (known > 0) coverage.known = known;
    const auto once =
        static_cast<double>(std::ranges::count(ways[pair], std::size_t{1}, [](const auto& w) { return w.second; }));
    if (known > 0 && count > 0)
      coverage.share = std::min(1.0, static_cast<double>(coverage.seen) / static_cast<double>(known));
    else if (count > 0)
      coverage.share = coverage.seen == 1 && count > 1 ? 1.0 : std::max(0.0, 1 - once / static_cast<double>(count));
    all.push_back(std::move(coverage));
  }
  return all;
}

std::string rate(double bits) {
  return bits >= 1e9 ? fmt::format("{:.2f} Gbit/s", bits / 1e9) : fmt::format("{:.1f} Mbit/s", bits / 1e6);
}

bool queue_formed(const LoadFact& fact) {
  return fact.delay_alone_us.value > 0 && fact.delay_low_us.value >= kQueueFormed * fact.delay_alone_us.value;
}

Overtaking judge_load(const Observations& seen, const LoadFact& fact) {
  if (fact.left_out) return {fact, {}, {}, Outcome::kUntested, fact.error};
  Overtaking verdict{fact, seen.classes[fact.high].name, seen.classes[fact.low].name, Outcome::kUntested, {}};
  const std::string pair = fmt::format("{} over {}", verdict.high, verdict.low);
  if (!fact.error.empty()) {
    verdict.text = fmt::format("{}: {}", pair, fact.error);
    return verdict;
  }
  verdict.outcome = judge_measurement(fact);
  const bool unseen = dpdk_between(seen, fact.high_from, fact.to, fact.rail) == Dpdk::kOnly ||
                      dpdk_between(seen, fact.low_from, fact.to, fact.rail) == Dpdk::kOnly;
  if (verdict.outcome == Outcome::kPassed && unseen) {
    verdict.outcome = Outcome::kUntested;
    verdict.text = fmt::format("{}: {}", pair, kOnlyDpdk);
    return verdict;
  }
  const auto took = [](const Estimate& delay) {
    return fmt::format("{:.2f} ms ({:.2f} to {:.2f})", delay.value / 1e3, delay.low / 1e3, delay.high / 1e3);
  };
  const char* doubt = "";
  if (!queue_formed(fact))
    doubt = "; no queue formed";
  else if (verdict.outcome == Outcome::kUntested)
    doubt = "; too uncertain to say";
  verdict.text = fmt::format(
      "{}: beside a burst its messages took {}, those of the lower class {}, alone {:.2f} ms; it kept {:.0f}% ({:.0f} "
      "to "
      "{:.0f}) of its {}{}",
      pair, took(fact.delay_beside_us), took(fact.delay_low_us), fact.delay_alone_us.value / 1e3,
      100 * fact.share.value, 100 * fact.share.low, 100 * fact.share.high, rate(fact.high_alone), doubt);
  return verdict;
}

std::vector<LosslessVerdict> judge_lossless(const Observations& seen) {
  std::vector<LosslessVerdict> verdicts;
  for (std::size_t cls = 0; cls < seen.classes.size(); ++cls) {
    if (!seen.classes[cls].lossless) continue;
    LosslessVerdict verdict{seen.classes[cls].name, Outcome::kUntested, "nothing filled a queue: --load does"};
    std::uint64_t retransmitted = 0;
    bool loaded = false;
    for (const LoadFact& load : seen.loads) {
      if (!load.error.empty() || (load.high != cls && load.low != cls)) continue;
      loaded = true;
      retransmitted += load.high == cls ? load.high_retransmitted : load.low_retransmitted;
    }
    if (loaded)
      verdict.text = fmt::format("{} packets were sent again under load; whether switches paused is in their counters",
                                 retransmitted);
    verdicts.push_back(std::move(verdict));
  }
  return verdicts;
}

// What the daemon marks its flows with and the fabric file does not, or the other way round.
void compare_classes(const Observations& seen, const std::vector<ProbedClass>& in_force, std::set<std::string>& wrong) {
  const auto named = [](const std::vector<ProbedClass>& classes, const std::string& name) {
    return std::ranges::find(classes, name, &ProbedClass::name);
  };
  for (const ProbedClass& cls : seen.classes) {
    const auto own = named(in_force, cls.name);
    if (own == in_force.end()) {
      wrong.insert(fmt::format("its daemon knows no class {}", cls.name));
      continue;
    }
    const auto differs = [&](const char* what, auto here, auto file) {
      if (here != file)
        wrong.insert(fmt::format("its daemon gives class {} {} {}, the file {}", cls.name, what, here, file));
    };
    differs("DSCP", own->dscp, cls.dscp);
    differs("PCP", own->pcp, cls.pcp);
    if (own->port_offset != cls.port_offset)
      wrong.insert(fmt::format("its daemon serves class {} as number {}, the file as number {}", cls.name,
                               own->port_offset, cls.port_offset));
    const auto loses = [](const ProbedClass& asked) { return asked.lossless ? "lossless" : "lossy"; };
    if (own->lossless != cls.lossless)
      wrong.insert(fmt::format("its daemon takes class {} to be {}, the file {}", cls.name, loses(*own), loses(cls)));
  }
  for (const ProbedClass& own : in_force)
    if (seen.all_classes && named(seen.classes, own.name) == seen.classes.end())
      wrong.insert(fmt::format("its daemon has a class {} (DSCP {}) that the file does not have", own.name, own.dscp));
}

// `flows` are those that it has sent.
HostVerdict judge_host(const Observations& seen, std::size_t index, const std::vector<const FlowFact*>& flows) {
  const HostFacts& host = seen.hosts[index];
  HostVerdict verdict{host.name, Outcome::kUntested, host.error};
  if (!host.error.empty()) return verdict;
  std::set<std::string> wrong;
  bool looked = false;
  if (host.in_force) compare_classes(seen, *host.in_force, wrong);
  if (!wrong.empty()) wrong.insert("the file is not the one it has read: give verify that one, or restart the daemon");
  for (const FlowFact* sent : flows) {
    const FlowFact& flow = *sent;
    if (!flow.own_dscp) continue;
    looked = true;
    const ProbedClass& cls = seen.classes[flow.cls];
    if (*flow.own_dscp != cls.dscp)
      wrong.insert(fmt::format("a socket of class {} carries DSCP {}, not {}", cls.name, *flow.own_dscp, cls.dscp));
    if (flow.own_priority && *flow.own_priority != std::min(cls.pcp, 6))
      wrong.insert(fmt::format("a socket of class {} has priority {}, not {}", cls.name, *flow.own_priority,
                               std::min(cls.pcp, 6)));
    if (flow.left_dscp && *flow.left_dscp != cls.dscp)
      wrong.insert(fmt::format("packets of class {} leave the kernel with DSCP {}, not {}", cls.name, *flow.left_dscp,
                               cls.dscp));
  }
  for (const HostFacts::Override& override : host.overrides)
    wrong.insert(fmt::format("{} gives all traffic of the device DSCP {}", override.where, override.dscp));
  const bool told = host.in_force || !seen.asked_daemons;
  if ((looked && told) || !wrong.empty()) verdict.outcome = wrong.empty() ? Outcome::kPassed : Outcome::kFailed;
  verdict.text = told || !wrong.empty() ? joined(wrong) : "its daemon does not say which classes are in force";
  return verdict;
}

std::vector<HostVerdict> judge_hosts(const Observations& seen) {
  std::vector<std::vector<const FlowFact*>> sent(seen.hosts.size());
  for (const FlowFact& flow : seen.flows) sent[flow.from].push_back(&flow);
  std::vector<HostVerdict> verdicts;
  for (std::size_t host = 0; host < seen.hosts.size(); ++host) verdicts.push_back(judge_host(seen, host, sent[host]));
  return verdicts;
}

// Where daemons choose between DPDK and another transport, what was tested is what can be tested.
void note_both_ways(const Observations& seen, Report& report) {
  std::set<std::pair<std::size_t, std::size_t>> pairs;
  for (const FlowFact& flow : seen.flows)
    if (dpdk_between(seen, flow.from, flow.to, flow.rail) == Dpdk::kAlso) pairs.insert(std::minmax(flow.from, flow.to));
  if (pairs.empty()) return;
  const auto& [a, b] = *pairs.begin();
  report.notes.push_back(
      fmt::format("data between {} and {}{} goes over DPDK or another transport, whichever is faster (`tensorlane "
                  "status` says which): only the ports of TCP were tested",
                  seen.hosts[a].name, seen.hosts[b].name,
                  pairs.size() > 1 ? fmt::format(" and {} other pairs", pairs.size() - 1) : ""));
}

void note_changing_ways(const Observations& seen, Report& report) {
  std::vector<std::string> pairs;
  for (const auto& [from, to] : seen.changing_ways)
    pairs.push_back(fmt::format("{} to {}", seen.hosts[from].name, seen.hosts[to].name));
  if (pairs.empty()) return;
  const std::size_t others = pairs.size() - std::min(pairs.size(), kNamedPairs);
  pairs.resize(pairs.size() - others);
  report.notes.push_back(
      fmt::format("the same flow takes different ways (adaptive routing) from {}{}: what hops said there was left out, "
                  "and who rewrote marks is deduced from pairs",
                  joined(pairs, ", "), others > 0 ? fmt::format(" and between {} other pairs", others) : ""));
}

void add_notes(const Observations& seen, Report& report) {
  note_both_ways(seen, report);
  note_changing_ways(seen, report);
  for (const HostFacts& host : seen.hosts) {
    if (!host.error.empty()) continue;
    if (!host.sees_hops)
      report.notes.push_back(
          fmt::format("{} may not read what hops quote: who rewrote its marks is deduced from pairs (CAP_NET_RAW for "
                      "tensorlane-probe)",
                      host.name));
    if (!host.environment.empty())
      for (const auto& [name, value] : host.environment)
        report.notes.push_back(fmt::format("{} has {}={} in its environment", host.name, name, value));
  }
  if (report.classes.empty())
    report.notes.push_back(
        "nothing was probed: no two of the hosts that answered have an address of a family that was asked for");
  if (seen.asked_for_load && report.overtaking.empty())
    report.notes.push_back("no two classes met at a port: --load needs three hosts and two classes");
  if (!seen.asked_for_load) report.notes.push_back("whether classes overtake each other was not tested: --load does");
  const bool pcp = std::ranges::any_of(report.classes, [](const auto& c) { return c.pcp != Outcome::kUntested; });
  if (!pcp) report.notes.push_back("802.1p priorities were not tested: no NIC showed a tag");
}

}  // namespace

Outcome judge_measurement(const LoadFact& fact) {
  if (!fact.error.empty() || !queue_formed(fact)) return Outcome::kUntested;
  // As much as messages may take, at the least and at the most that the lower class's wait may be.
  const double alone = fact.delay_alone_us.value;
  const double least = alone + kOfTheWait * (fact.delay_low_us.low - alone);
  const double most = alone + kOfTheWait * (fact.delay_low_us.high - alone);
  if (fact.delay_beside_us.low > most || fact.share.high < kKeepsShare) return Outcome::kFailed;
  return fact.delay_beside_us.high < least ? Outcome::kPassed : Outcome::kUntested;
}

const char* outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPassed:
      return "passed";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kUntested:
      break;
  }
  return "untested";
}

Report analyse(const Observations& seen, const Topology& topology) {
  Report report;
  report.seconds = seen.seconds;
  report.probe_bytes = seen.probe_bytes;
  const std::vector<Trace> traces = trace_all(seen, topology);
  report.classes = judge_classes(seen);
  report.hosts = judge_hosts(seen);
  for (const LoadFact& load : seen.loads) report.overtaking.push_back(judge_load(seen, load));
  report.lossless = judge_lossless(seen);
  report.coverage = cover(seen, traces, topology);
  report.findings = make_findings(seen, find_blame(seen, traces, topology), topology);
  add_queue_findings(seen, report.overtaking, topology, report.findings);
  add_notes(seen, report);
  const auto bad_class = [](const ClassVerdict& verdict) {
    return verdict.dscp != Outcome::kPassed || verdict.pcp == Outcome::kFailed;
  };
  // Who asks for load wants to know of every pair of classes, of at least one.
  const bool untested_load =
      seen.asked_for_load && (report.overtaking.empty() || std::ranges::any_of(report.overtaking, [](const auto& o) {
                                return o.outcome != Outcome::kPassed;
                              }));
  const bool bad = untested_load || report.classes.empty() || std::ranges::any_of(report.classes, bad_class) ||
                   !report.findings.empty() ||
                   std::ranges::any_of(report.hosts, [](const auto& h) { return h.outcome != Outcome::kPassed; }) ||
                   std::ranges::any_of(report.overtaking, [](const auto& o) { return o.outcome == Outcome::kFailed; });
  report.exit_status = bad ? 1 : 0;
  return report;
}

}  // namespace tensorlane::verify
