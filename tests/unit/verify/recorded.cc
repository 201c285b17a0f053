#include "recorded.h"

#include <algorithm>

#include <fmt/format.h>

namespace tensorlane::verify {
namespace {

constexpr std::size_t kPorts = 8;

class Recorder {
 public:
  Recorder(std::uint64_t seed, std::size_t faults) : random_(seed) {
    draw_network();
    for (std::size_t i = 0; i < faults; ++i) draw_fault();
    describe_hosts();
    record_.about = fmt::format("seed {}: {} leaves, {} spines, {}, addresses {}", seed, leaves_, spines_,
                                record_.routed ? "routed" : "bridged", has_addresses_ ? "known" : "not known");
    for (const Fault& fault : record_.faults)
      record_.about += fmt::format("; fault {} at {} {} {}{}", static_cast<int>(fault.kind), fault.node, fault.peer,
                                   fault.ipv4 ? "4" : "", fault.ipv6 ? "6" : "");
  }

  Recorded take() {
    const Topology topology(record_.fabric);
    topology_ = &topology;
    for (std::size_t from = 0; from < hosts(); ++from)
      for (std::size_t to = 0; to < hosts(); ++to)
        for (const bool ipv6 : {false, true})
          for (std::size_t cls = 0; cls < record_.seen.classes.size() && from != to; ++cls) send(from, to, ipv6, cls);
    return std::move(record_);
  }

 private:
  std::size_t draw(std::size_t low, std::size_t high) { return low + random_() % (high - low + 1); }
  bool chance(unsigned percent) { return draw(1, 100) <= percent; }
  std::size_t hosts() const { return record_.fabric.hosts.size(); }

  void draw_network() {
    record_.routed = chance(80);
    leaves_ = draw(1, 3);
    spines_ = leaves_ == 1 ? 0 : record_.routed ? draw(1, 3) : 1;
    has_addresses_ = chance(50);
    std::string hosts = "hosts:\n", switches = "switches:\n", links = "links:\n";
    std::size_t next = 0;
    const auto add_switch = [&](const std::string& name) {
      const std::string own = fmt::format("198.19.0.{}", ++next);
      addresses_[name] = {own, "fd74:6c::" + own};
      const std::string known =
          has_addresses_ ? fmt::format(", addresses: ['{}', '{}']", own, addresses_[name][1]) : "";
      switches += fmt::format("  - {{name: {}, nos: sonic{}}}\n", name, known);
    };
    std::size_t host = 0;
    for (std::size_t leaf = 0; leaf < leaves_; ++leaf) {
      add_switch(fmt::format("leaf{}", leaf));
      for (std::size_t i = 0; i < draw(2, 3); ++i, ++host) {
        hosts += fmt::format("  - {{name: h{}, addresses: {{tcp: 10.0.0.{}}}}}\n", host, host + 1);
        links += fmt::format("  - {{from: h{}, to: leaf{}, to_port: Ethernet{}, speed: 100G}}\n", host, leaf, i);
      }
    }
    for (std::size_t spine = 0; spine < spines_; ++spine) {
      add_switch(fmt::format("spine{}", spine));
      for (std::size_t leaf = 0; leaf < leaves_; ++leaf)
        links +=
            fmt::format("  - {{from: leaf{}, to: spine{}, from_port: Ethernet{}, to_port: Ethernet{}, speed: 100G}}\n",
                        leaf, spine, 100 + spine, leaf);
    }
    record_.fabric = fabric::parse(hosts + switches + links, "fabric.yaml", fabric::Keys::kOptional).value();
    // As the file's own parser writes addresses.
    for (const fabric::Switch& node : record_.fabric.switches)
      if (!node.addresses.empty()) addresses_[node.name] = node.addresses;
    const fabric::ClassTable& classes = record_.fabric.classes;
    record_.seen.classes.push_back({classes.control.name, classes.control.dscp, classes.control.pcp, false});
    for (const auto& cls : classes.data) record_.seen.classes.push_back({cls.name, cls.dscp, cls.pcp, cls.lossless});
  }

  void draw_fault() {
    Fault fault;
    const auto& links = record_.fabric.links;
    const fabric::Link& link = links[draw(0, links.size() - 1)];
    const bool up = chance(50);
    fault.node = up ? link.from : link.to;
    fault.peer = up ? link.to : link.from;
    const bool from_host = fault.node[0] == 'h', to_host = fault.peer[0] == 'h';
    fault.kind = Fault::Kind::kOut;
    if (from_host) fault.kind = Fault::Kind::kSender;
    if (!from_host && !to_host && chance(30)) {
      std::swap(fault.node, fault.peer);
      fault.kind = Fault::Kind::kIn;
    } else if (!from_host && chance(20)) {
      fault.kind = Fault::Kind::kNode;
    }
    fault.ipv4 = !chance(20);
    fault.ipv6 = !fault.ipv4 || !chance(20);
    const auto& classes = record_.seen.classes;
    const std::size_t one = draw(0, classes.size() - 1), other = (one + 1) % classes.size();
    switch (draw(0, 3)) {
      case 0:
        fault.changes = {{classes[one].dscp, static_cast<int>(chance(50) ? 0 : 10)}};
        break;
      case 1:
        fault.changes = {{classes[one].dscp, classes[other].dscp}, {classes[other].dscp, classes[one].dscp}};
        break;
      case 2:
        for (const ProbedClass& cls : classes) fault.changes[cls.dscp] = 0;
        break;
      default:
        fault.changes = {{classes[one].dscp, kLostMark}};
        break;
    }
    if (fault.kind == Fault::Kind::kSender) {
      fault.changes.clear();
      for (const ProbedClass& cls : classes) fault.changes[cls.dscp] = 26;
    }
    record_.faults.push_back(std::move(fault));
  }

  void describe_hosts() {
    const bool privileged = chance(80);
    for (const fabric::Host& host : record_.fabric.hosts) {
      HostFacts facts;
      facts.name = host.name;
      facts.sees_hops = facts.sees_frames = privileged && !chance(10);
      record_.seen.hosts.push_back(std::move(facts));
    }
    if (!record_.routed || !chance(20)) return;
    const auto& switches = record_.fabric.switches;
    silent_ = switches[draw(0, switches.size() - 1)].name;
  }

  // The mark behind a place that a packet passes.
  int pass(Fault::Kind kind, const std::string& node, const std::string& peer, bool ipv6, int mark) const {
    for (const Fault& fault : record_.faults) {
      const bool same = fault.kind == kind && fault.node == node &&
                        (fault.peer == peer || kind == Fault::Kind::kNode || kind == Fault::Kind::kSender);
      if (!same || !fault.suffers(ipv6)) continue;
      if (const auto change = fault.changes.find(mark); change != fault.changes.end()) mark = change->second;
    }
    return mark;
  }

  // Which of the equal-cost ways the flow takes: by its addresses and ports, as switches choose.
  const Way& way_of(std::size_t from, std::size_t to, std::size_t cls, std::uint16_t port) const {
    const auto& ways = topology_->ways(record_.seen.hosts[from].name, record_.seen.hosts[to].name, 0);
    std::uint64_t hash = ((from * 61 + to) * 61 + cls) * 65536 + port;
    for (int round = 0; round < 3; ++round) hash = (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9;
    return ways[(hash >> 32) % ways.size()];
  }

  // Follows a packet; `at_hop` sees it as each hop quotes it.
  template <typename AtHop>
  int travel(const Way& way, bool ipv6, int mark, AtHop at_hop) const {
    for (std::size_t i = 0; i < way.size() && mark != kLostMark; ++i) {
      const Leg& leg = topology_->leg(way[i]);
      if (i > 0) {
        at_hop(i, leg.from, mark);
        mark = pass(Fault::Kind::kNode, leg.from, "", ipv6, mark);
        if (mark != kLostMark) mark = pass(Fault::Kind::kOut, leg.from, leg.to, ipv6, mark);
      }
      if (mark != kLostMark) mark = pass(Fault::Kind::kIn, leg.to, leg.from, ipv6, mark);
    }
    return mark;
  }

  void send(std::size_t from, std::size_t to, bool ipv6, std::size_t cls) {
    for (std::size_t i = 0; i < kPorts; ++i) {
      FlowFact flow;
      flow.from = from, flow.to = to, flow.ipv6 = ipv6, flow.cls = cls;
      flow.source_port = static_cast<std::uint16_t>(draw(32768, 60999));
      const int sent = record_.seen.classes[cls].dscp;
      flow.own_dscp = sent;
      flow.own_priority = std::min(record_.seen.classes[cls].pcp, 6);
      const HostFacts& host = record_.seen.hosts[from];
      const int left = pass(Fault::Kind::kSender, host.name, "", ipv6, sent);
      if (host.sees_frames) flow.left_dscp = left;
      const Way& way = way_of(from, to, cls, flow.source_port);
      const bool swept = i < 3;
      const int arrived = travel(way, ipv6, left, [&](std::size_t distance, const std::string& node, int mark) {
        if (!record_.routed || !swept) return;
        HopFact hop{static_cast<int>(distance), node == silent_ ? "" : addresses_.at(node)[ipv6 ? 1 : 0], {}};
        if (host.sees_hops && !hop.address.empty()) hop.dscp = mark;
        flow.hops.push_back(std::move(hop));
      });
      // The answer has the mark of the class, too, and may get lost.
      const Way& back = way_of(to, from, cls, static_cast<std::uint16_t>(~flow.source_port));
      const int answer = travel(back, ipv6, pass(Fault::Kind::kSender, record_.seen.hosts[to].name, "", ipv6, sent),
                                [](std::size_t, const std::string&, int) {});
      flow.outcome = arrived == kLostMark || answer == kLostMark ? "timed_out" : "arrived";
      if (flow.arrived()) {
        flow.dscp = arrived;
        flow.hop_count = record_.routed ? static_cast<int>(way.size()) - 1 : 0;
      }
      record_.seen.flows.push_back(std::move(flow));
    }
  }

  static constexpr int kLostMark = -1;

  std::mt19937_64 random_;
  Recorded record_;
  const Topology* topology_ = nullptr;
  std::size_t leaves_ = 0, spines_ = 0;
  bool has_addresses_ = false;
  std::string silent_;
  std::map<std::string, std::vector<std::string>> addresses_;
};

}  // namespace

Recorded record(std::uint64_t seed, std::size_t faults) {
  return Recorder(seed, faults).take();
}

}  // namespace tensorlane::verify
