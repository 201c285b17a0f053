#include "monitor/cli/verify_run.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "common/base/text.h"
#include "monitor/cli/verify_load.h"
#include "monitor/verify/advice.h"

namespace tensorlane::cli {
namespace {

using nlohmann::json;
using verify::FlowFact;
using verify::HostFacts;
using Steady = std::chrono::steady_clock;

constexpr std::uint64_t kBytesOfProbe = 800;  // of a connection with its answer, roughly
constexpr std::uint64_t kBytesOfHop = 160;
constexpr std::size_t kSweptFailures = 3;  // of each pair, family and class

std::string random_token() {
  std::random_device random;
  std::string token;
  for (int i = 0; i < 4; ++i) token += fmt::format("{:08x}", random());
  return token;
}

class Verifier {
 public:
  Verifier(const VerifyOptions& options, ProbeHands& hands, const verify::Topology& topology)
      : state_{options, hands, topology, random_token(), {}, {}}, began_(Steady::now()) {
    state_.seen.classes = options.classes;
    state_.seen.asked_for_load = options.load;
    state_.seen.asked_daemons = !options.listens;
    state_.seen.all_classes = options.all_classes;
    for (const VerifyHost& host : options.hosts) {
      HostFacts facts;
      facts.name = host.name;
      state_.seen.hosts.push_back(std::move(facts));
      state_.endpoints.emplace_back(std::max<std::size_t>(host.addresses.size(), 1));
    }
  }

  Result<verify::Observations> run() {
    describe();
    const auto silent =
        std::ranges::count_if(state_.seen.hosts, [](const HostFacts& host) { return !host.error.empty(); });
    if (state_.seen.hosts.size() - static_cast<std::size_t>(silent) < 2) return nobody();
    TL_RETURN_IF_ERROR(choose_flows());
    listen();
    probe();
    sweep();
    check_ways();
    state_.seen.seconds = since_begin();
    if (state_.options.load) measure_load(state_);
    state_.seen.seconds = since_begin();
    return std::move(state_.seen);
  }

 private:
  const VerifyOptions& options() const { return state_.options; }
  HostFacts& host(std::size_t index) { return state_.seen.hosts[index]; }
  double since_begin() const { return std::chrono::duration<double>(Steady::now() - began_).count(); }
  int budget_left_ms() const {
    return std::max(1, static_cast<int>(to_seconds(options().budget) * 1000 - since_begin() * 1000));
  }

  Status nobody() const {
    std::vector<std::pair<std::string, std::string>> errors;
    for (const HostFacts& host : state_.seen.hosts)
      if (!host.error.empty()) errors.emplace_back(host.name, host.error);
    std::string reasons;
    for (const auto& [hosts, error] : verify::by_text(errors))
      reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", hosts, error);
    return Status(Code::kUnavailable, "fewer than two hosts can be probed", reasons);
  }

  // Each host's lines go to `take`, or its error into its facts.
  template <typename Take>
  void ask(const std::vector<ProbeLines>& commands, Duration patience, Take take) {
    const std::vector<Result<ProbeLines>> answers = state_.hands.ask(commands, patience);
    for (std::size_t i = 0; i < answers.size(); ++i) {
      if (!answers[i].ok()) {
        if (host(i).error.empty()) host(i).error = answers[i].status().to_string();
        continue;
      }
      for (const json& line : *answers[i]) take(i, line);
    }
  }
  std::vector<ProbeLines> nothing() const { return std::vector<ProbeLines>(options().hosts.size()); }

  void describe() {
    std::vector<ProbeLines> commands = nothing();
    for (ProbeLines& lines : commands) lines.push_back({{"do", "describe"}, {"lifetime_s", kProbeLifetimeSeconds}});
    std::set<std::size_t> told;
    ask(commands, options().patience, [&](std::size_t i, const json& line) {
      if (line["kind"] == "daemon") note_daemon(i, line);
      if (line["kind"] == "host" && told.insert(i).second) note_host(i, line);
    });
    for (std::size_t i = 0; i < options().hosts.size(); ++i)
      if (host(i).error.empty() && !told.contains(i)) host(i).error = "it does not say what it is";
  }

  void note_transports(std::size_t i, const json& rails) {
    for (const json& rail : rails) {
      std::set<std::string>& names = host(i).transports.emplace_back();
      for (const json& name : rail)
        if (name.is_string()) names.insert(printable(name.get<std::string>()));
      if (host(i).transports.size() >= kMaxRails) return;
    }
  }

  void note_daemon(std::size_t i, const json& line) {
    if (const auto rails = line.find("transports"); rails != line.end() && rails->is_array())
      note_transports(i, *rails);
    const auto list = line.find("classes");
    if (list == line.end() || !list->is_array()) return;
    std::vector<verify::ProbedClass>& classes = host(i).in_force.emplace();
    for (const json& item : *list) {
      if (!item.is_object()) continue;
      const auto dscp = probe_number(item, "dscp", 0, 63), pcp = probe_number(item, "pcp", 0, 7);
      if (!dscp || !pcp) continue;
      const bool lossless = item.value("lossless", json(false)) == json(true);
      classes.push_back({probe_text(item, "name"), *dscp, *pcp, lossless, static_cast<std::uint16_t>(classes.size())});
    }
  }

  void note_host(std::size_t i, const json& line) {
    if (probe_number(line, "version", 1, 1) != 1) {
      host(i).error = "its tensorlane-probe is of another version";
      return;
    }
    host(i).sees_hops = line.value("sees_hops", json(false)) == json(true);
    host(i).sees_frames = line.value("sees_frames", json(false)) == json(true);
    if (const auto list = line.find("overrides"); list != line.end() && list->is_array())
      for (const json& item : *list)
        if (const auto dscp = item.is_object() ? probe_number(item, "dscp", 0, 63) : std::nullopt)
          host(i).overrides.push_back({probe_text(item, "where"), *dscp});
    if (const auto map = line.find("environment"); map != line.end() && map->is_object())
      for (const auto& [name, value] : map->items())
        if (value.is_string()) host(i).environment[printable(name)] = probe_text(*map, name.c_str());
    const auto addresses = line.find("addresses");
    if (addresses != line.end() && addresses->is_array()) note_addresses(i, *addresses);
  }

  // A rail is its address in the fabric file, and the first one of the other family on the same interface.
  void note_addresses(std::size_t i, const json& addresses) {
    for (std::size_t rail = 0; rail < state_.endpoints[i].size(); ++rail) {
      const std::string wanted = options().hosts[i].addresses.empty() ? "" : options().hosts[i].addresses[rail];
      std::string interface;
      for (const json& item : addresses)
        if (item.is_object() && (wanted.empty() || probe_text(item, "address") == wanted)) {
          interface = probe_text(item, "interface");
          break;
        }
      Endpoints& ends = state_.endpoints[i][rail];
      if (interface.empty() && wanted.empty()) host(i).error = "it has no address";
      const bool is_ipv6 = wanted.find(':') != std::string::npos;
      // One that no interface lists may be its own all the same, as those of loopback: sending will tell.
      if (is_ipv6 ? options().ipv6 : options().ipv4) ends.address[is_ipv6 ? 1 : 0] = wanted;
      if (interface.empty()) continue;
      for (const json& item : addresses) {
        if (!item.is_object() || probe_text(item, "interface") != interface) continue;
        const auto family = probe_number(item, "family", 4, 6);
        const std::string address = probe_text(item, "address");
        std::string& place = ends.address[family == 6 ? 1 : 0];
        const bool is_asked_for = family == 6 ? options().ipv6 : options().ipv4;
        if (family && is_asked_for && (place.empty() || address == wanted)) place = address;
      }
    }
  }

  void listen() {
    std::vector<ProbeLines> commands = nothing();
    for (std::size_t i = 0; i < commands.size(); ++i) {
      json sockets = json::array();
      for (const Endpoints& rail : state_.endpoints[i])
        for (const std::string& address : rail.address)
          for (std::size_t cls = 0; cls < options().classes.size() && !address.empty(); ++cls)
            sockets.push_back({{"address", address},
                               {"port", options().hosts[i].data_port + options().classes[cls].port_offset},
                               {"dscp", options().classes[cls].dscp},
                               {"pcp", options().classes[cls].pcp}});
      if (host(i).error.empty())
        commands[i].push_back({{"do", "listen"}, {"token", state_.token}, {"sockets", std::move(sockets)}});
    }
    ask(commands, seconds(10), [&](std::size_t i, const json& line) {
      const auto failed = line.find("failed");
      if (line["kind"] != "listening" || failed == line.end() || !failed->is_array() || failed->empty()) return;
      const json& first = failed->front();
      // Where a daemon listens already, it answers itself.
      if (options().listens && first.is_object())
        host(i).error =
            fmt::format("it cannot listen on {} port {}: {} (where a daemon runs, leave out --agent, or stop it)",
                        probe_text(first, "address"), probe_number(first, "port", 0, 65535).value_or(0),
                        probe_text(first, "error"));
    });
  }

  // Pairs, rails and families that can be probed.
  Status choose_flows() {
    for (const auto& [from, to] :
         choose_pairs(options().hosts.size(), options().pairs, options().sample, options().seed)) {
      if (!host(from).error.empty() || !host(to).error.empty()) continue;
      const std::size_t rails = std::min(state_.endpoints[from].size(), state_.endpoints[to].size());
      for (std::size_t rail = 0; rail < rails; ++rail)
        for (const bool ipv6 : {false, true})
          if (!options().classes.empty() && !flow_between(state_, from, to, rail, ipv6, 0).is_null()) {
            chosen_.push_back({.from = from, .to = to, .rail = rail, .ipv6 = ipv6});
            chosen_.back().outcome = "not_sent";  // until its host says what has become of it
          }
    }
    const std::size_t of_each = options().classes.size() * options().source_ports;
    if (chosen_.size() * of_each <= options().max_flows) return {};
    std::set<std::pair<std::size_t, std::size_t>> pairs;
    for (const FlowFact& flow : chosen_) pairs.insert(std::minmax(flow.from, flow.to));
    const std::size_t of_a_pair = std::max<std::size_t>(1, chosen_.size() * of_each / pairs.size());
    return Status(Code::kInvalidArgument,
                  fmt::format("these are {} connections between {} pairs of hosts, and {} are at most",
                              chosen_.size() * of_each, pairs.size(), options().max_flows),
                  "--pairs",
                  fmt::format("probe some of them with --pairs sample {} or --pairs ring, or fewer --source-ports",
                              std::max<std::size_t>(1, options().max_flows / (of_a_pair + 1))));
  }

  void probe() {
    std::vector<ProbeLines> commands = nothing();
    std::vector<json> flows(commands.size(), json::array());
    for (FlowFact fact : chosen_)
      for (fact.cls = 0; fact.cls < options().classes.size(); ++fact.cls) {
        json flow = flow_between(state_, fact.from, fact.to, fact.rail, fact.ipv6, fact.cls);
        flow["id"] = state_.seen.flows.size();
        flow["count"] = options().source_ports;
        flows[fact.from].push_back(std::move(flow));
        state_.seen.flows.insert(state_.seen.flows.end(), options().source_ports, fact);
      }
    state_.seen.probe_bytes = state_.seen.flows.size() * kBytesOfProbe;
    for (std::size_t i = 0; i < commands.size(); ++i)
      if (!flows[i].empty())
        commands[i].push_back(
            {{"do", "probe"}, {"token", state_.token}, {"deadline_ms", 15000}, {"flows", std::move(flows[i])}});
    ask(commands, seconds(25), [&](std::size_t i, const json& line) {
      if (line["kind"] == "arrival") note_arrival(i, line);
    });
  }

  // Only of a host's own flows does it know anything.
  FlowFact* own_flow(std::size_t i, const json& line) {
    const auto id = probe_number(line, "id", 0, std::numeric_limits<int>::max());
    if (!id || static_cast<std::size_t>(*id) >= state_.seen.flows.size()) return nullptr;
    FlowFact& flow = state_.seen.flows[static_cast<std::size_t>(*id)];
    return flow.from == i ? &flow : nullptr;
  }

  void note_arrival(std::size_t i, const json& line) {
    FlowFact* flow = own_flow(i, line);
    if (flow == nullptr) return;
    flow->outcome = probe_text(line, "outcome");
    flow->error = probe_text(line, "error");
    flow->source_port = static_cast<std::uint16_t>(probe_number(line, "source_port", 0, 65535).value_or(0));
    flow->own_dscp = probe_number(line, "own_dscp", 0, 63);
    flow->own_priority = probe_number(line, "own_priority", 0, 15);
    flow->left_dscp = probe_number(line, "left_dscp", 0, 63);
    flow->left_pcp = probe_number(line, "left_pcp", 0, 7);
    flow->dscp = probe_number(line, "dscp", 0, 63);
    flow->pcp = probe_number(line, "pcp", 0, 7);
    constexpr int kFirstHopLimit = 64;
    if (const auto limit = probe_number(line, "hop_limit", 1, kFirstHopLimit))
      flow->hop_count = kFirstHopLimit - *limit;
  }

  // Whose ways are looked at: of what fails a few of each class, and of the rest some of each pair, classes in turn.
  std::vector<std::size_t> flows_to_sweep() const {
    using Pair = std::tuple<std::size_t, std::size_t, std::size_t, bool>;
    std::map<Pair, std::map<std::size_t, std::vector<std::size_t>>> good;
    std::map<std::pair<Pair, std::size_t>, std::size_t> failures;
    std::map<Pair, int> hops;
    for (const FlowFact& flow : state_.seen.flows)
      if (flow.hop_count) hops[{flow.from, flow.to, flow.rail, flow.ipv6}] = *flow.hop_count;
    std::vector<std::size_t> first, rest;
    for (std::size_t i = 0; i < state_.seen.flows.size(); ++i) {
      const FlowFact& flow = state_.seen.flows[i];
      const Pair pair{flow.from, flow.to, flow.rail, flow.ipv6};
      if (hops[pair] == 0 || flow.source_port == 0) continue;
      if (flow.dscp == options().classes[flow.cls].dscp)
        good[pair][flow.cls].push_back(i);
      else if (failures[{pair, flow.cls}]++ < kSweptFailures)
        first.push_back(i);
    }
    for (std::size_t turn = 0; turn < options().ways; ++turn)
      for (auto& [pair, classes] : good) {
        const auto cls = std::next(classes.begin(), static_cast<std::ptrdiff_t>(turn % classes.size()));
        if (turn / classes.size() >= cls->second.size()) continue;
        (turn == 0 ? first : rest).push_back(cls->second[turn / classes.size()]);
      }
    first.insert(first.end(), rest.begin(), rest.end());
    return first;
  }

  void sweep() {
    std::vector<ProbeLines> commands = nothing();
    std::vector<json> flows(commands.size(), json::array());
    std::map<std::tuple<std::size_t, std::size_t, std::size_t, bool>, int> hops;
    for (const FlowFact& flow : state_.seen.flows)
      if (flow.hop_count) hops[{flow.from, flow.to, flow.rail, flow.ipv6}] = *flow.hop_count;
    for (const std::size_t i : flows_to_sweep()) {
      const FlowFact& fact = state_.seen.flows[i];
      json flow = flow_between(state_, fact.from, fact.to, fact.rail, fact.ipv6, fact.cls);
      const int count = fact.hop_count.value_or(hops[{fact.from, fact.to, fact.rail, fact.ipv6}]);
      flow["id"] = i;
      flow["source_port"] = fact.source_port;
      flow["hops"] = std::min(count, 32);
      state_.seen.probe_bytes += static_cast<std::uint64_t>(count) * kBytesOfHop;
      flows[fact.from].push_back(std::move(flow));
    }
    const int deadline = std::min(budget_left_ms(), 110000);
    for (std::size_t i = 0; i < commands.size(); ++i)
      if (host(i).error.empty() && !flows[i].empty())
        commands[i].push_back({{"do", "sweep"}, {"deadline_ms", deadline}, {"flows", std::move(flows[i])}});
    ask(commands, milliseconds(deadline + 5000), [&](std::size_t i, const json& line) {
      FlowFact* flow = line["kind"] == "hop" ? own_flow(i, line) : nullptr;
      const auto distance = probe_number(line, "distance", 1, 32);
      if (flow == nullptr || !distance) return;
      flow->hops.push_back({*distance, probe_text(line, "address"), probe_number(line, "dscp", 0, 63)});
    });
  }

  // Hops say where a mark was changed only if a flow takes the same way each time: where some fail, the swept flows are
  // sent once more, and where one arrives otherwise than before, what hops said between its hosts counts no more.
  void check_ways() {
    const auto failed = [&](const FlowFact& flow) { return flow.dscp != options().classes[flow.cls].dscp; };
    if (std::ranges::none_of(state_.seen.flows, failed)) return;
    std::vector<ProbeLines> commands = nothing();
    std::vector<json> flows(commands.size(), json::array());
    for (std::size_t i = 0; i < state_.seen.flows.size(); ++i) {
      const FlowFact& fact = state_.seen.flows[i];
      if (fact.hops.size() < 2 || !fact.arrived()) continue;
      json flow = flow_between(state_, fact.from, fact.to, fact.rail, fact.ipv6, fact.cls);
      flow["id"] = i;
      flow["source_port"] = fact.source_port;
      flows[fact.from].push_back(std::move(flow));
    }
    for (std::size_t i = 0; i < commands.size(); ++i)
      if (host(i).error.empty() && !flows[i].empty())
        commands[i].push_back(
            {{"do", "probe"}, {"token", state_.token}, {"deadline_ms", 5000}, {"flows", std::move(flows[i])}});
    auto& changing = state_.seen.changing_ways;
    ask(commands, seconds(10), [&](std::size_t i, const json& line) {
      const FlowFact* flow = line["kind"] == "arrival" ? own_flow(i, line) : nullptr;
      const auto dscp = probe_number(line, "dscp", 0, 63);
      if (flow != nullptr && dscp && dscp != flow->dscp) changing.insert({flow->from, flow->to});
    });
    for (FlowFact& flow : state_.seen.flows)
      if (flow.hops.size() > 1 && changing.contains({flow.from, flow.to})) flow.hops.clear();
  }

  VerifyState state_;
  std::vector<FlowFact> chosen_;  // one for all classes and source ports
  const Steady::time_point began_;
};

}  // namespace

std::vector<verify::ProbedClass> probed_classes(const fabric::ClassTable& classes) {
  const auto probed = [](const fabric::TrafficClass& cls) {
    return verify::ProbedClass{cls.name, cls.dscp, cls.pcp, cls.lossless, 0};
  };
  std::vector<verify::ProbedClass> all{probed(classes.control)};
  for (const fabric::TrafficClass& cls : classes.data) {
    all.push_back(probed(cls));
    all.back().port_offset = static_cast<std::uint16_t>(all.size() - 1);
  }
  return all;
}

std::vector<std::pair<std::size_t, std::size_t>> choose_pairs(std::size_t hosts, Pairs pairs, std::size_t sample,
                                                              std::uint64_t seed) {
  std::vector<std::pair<std::size_t, std::size_t>> chosen;
  for (std::size_t a = 0; a < hosts; ++a)
    for (std::size_t b = a + 1; b < hosts; ++b)
      if (pairs != Pairs::kRing || b == a + 1 || (a == 0 && b + 1 == hosts)) chosen.emplace_back(a, b);
  if (pairs == Pairs::kSample && sample < chosen.size()) {
    std::mt19937_64 random(seed);
    std::ranges::shuffle(chosen, random);
    chosen.resize(sample);
    std::ranges::sort(chosen);
  }
  const std::size_t count = chosen.size();
  for (std::size_t i = 0; i < count; ++i) chosen.emplace_back(chosen[i].second, chosen[i].first);
  return chosen;
}

nlohmann::json flow_between(const VerifyState& state, std::size_t from, std::size_t to, std::size_t rail, bool ipv6,
                            std::size_t cls) {
  const std::string& source = state.endpoints[from][rail].address[ipv6 ? 1 : 0];
  const std::string& address = state.endpoints[to][rail].address[ipv6 ? 1 : 0];
  if (source.empty() || address.empty()) return nullptr;
  const verify::ProbedClass& marks = state.options.classes[cls];
  return {{"address", address},
          {"source", source},
          {"port", state.options.hosts[to].data_port + marks.port_offset},
          {"dscp", marks.dscp},
          {"pcp", marks.pcp}};
}

Result<verify::Observations> run_verify(const VerifyOptions& options, ProbeHands& hands,
                                        const verify::Topology& topology) {
  return Verifier(options, hands, topology).run();
}

}  // namespace tensorlane::cli
